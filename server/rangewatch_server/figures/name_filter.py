"""Which tensors are chosen by kind, by module, and by `q`: part of a name in any case, or a small expression over
names, kinds, dtypes and modules.

No pattern of a stranger's is run as a regular expression: a glob is looked for piece by piece, in time that grows with
the length of the name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, TensorEntry
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.base import label
from rangewatch_server.store.names import Tensors

Array = NDArray[Any]
Test = Callable[[TensorEntry], bool]

MAX_TEXT = 4_200  # a name has 4,096 characters at most, and its kind follows it
MAX_EXPRESSION = 500
MAX_TERMS = 32
KEYS = ("kind", "dtype", "type", "in")
_EXPRESSION = re.compile(rf"[*?|]|(?:^|\s)!|(?:^|[\s!])(?:{'|'.join(KEYS)}):", re.IGNORECASE)


def chosen(tensors: Tensors, kinds: Sequence[str], q: str, module: str = "") -> Array:
    """Ordinals of the tensors of those kinds (all when empty) that `q` means and `module` has, in call order.

    Raises `ApiError` where `q` is an expression that cannot be read.
    """
    is_wanted = name_filter(q)
    ordinals = [
        ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if (not kinds or entry.kind in kinds) and is_wanted(entry) and (not module or is_within(entry.fqn, module))
    ]
    matching = np.array(ordinals, np.int64)
    return matching[np.argsort(tensors.call_index[matching], kind="stable")]


def name_filter(q: str) -> Test:
    """The test that `q` is. Raises `ApiError` in one line that says what is wrong with it."""
    if len(q) > MAX_TEXT:
        raise _bad(f"it has {len(q)} characters; at most {MAX_TEXT}")
    if _EXPRESSION.search(q) is None:
        return _part(q.lower())
    if len(q) > MAX_EXPRESSION:
        raise _bad(f"an expression has at most {MAX_EXPRESSION} characters")
    alternatives = [each.split() for each in q.lower().split("|")]
    if not all(alternatives):
        raise _bad("there is nothing on one side of |")
    if sum(map(len, alternatives)) > MAX_TERMS:
        raise _bad(f"an expression has at most {MAX_TERMS} terms")
    tests = [[_term(term) for term in terms] for terms in alternatives]
    return lambda entry: any(all(test(entry) for test in terms) for terms in tests)


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", f"q: {text}")


def _term(term: str) -> Test:
    if term.startswith("!"):
        if term == "!":
            raise _bad("there is nothing after !")
        refused = _term(term[1:])
        return lambda entry: not refused(entry)
    key, colon, value = term.partition(":")
    if colon and key in KEYS:
        return _keyed(key, value)
    if "*" in term or "?" in term:
        matches = glob(f"*.{term}.*")
        return lambda entry: matches(f".{(entry.fqn or '(model)').lower()}.")
    return _part(term)


def _part(text: str) -> Test:
    return lambda entry: text in label(entry).lower()


def _keyed(key: str, value: str) -> Test:
    if not value:
        raise _bad(f"there is nothing after {key}:")
    if key == "in":
        return lambda entry: is_within(entry.fqn.lower(), value)
    matches = glob(value)
    if key == "kind":
        if not any(matches(kind) for kind in KINDS):
            raise _bad(f"kind {value[:40]!r} is not one of {', '.join(KINDS)}")
        return lambda entry: matches(entry.kind)
    if key == "dtype":
        return lambda entry: matches(entry.dtype.lower())
    return lambda entry: matches(entry.module.lower())


def is_within(name: str, module: str) -> bool:
    """Whether a dotted name is a module's own or lies below it."""
    return name == module or name.startswith(f"{module}.")


def glob(pattern: str) -> Callable[[str], bool]:
    """Whether all of a text is as `pattern`: `*` any characters, `?` one. Pieces between stars have fixed lengths."""
    texts = pattern.split("*")
    pieces = [re.compile(".".join(map(re.escape, each.split("?"))), re.DOTALL) for each in texts]
    if len(pieces) == 1:
        return lambda text: pieces[0].fullmatch(text) is not None
    first, *middle, last = pieces
    tail = len(texts[-1])

    def matches(text: str) -> bool:
        match = first.match(text)
        for piece in middle:  # the first place is never worse than a later one
            match = match and piece.search(text, match.end())
        return match is not None and len(text) - tail >= match.end() and last.match(text, len(text) - tail) is not None

    return matches
