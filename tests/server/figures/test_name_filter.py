"""`q`: part of a name, or an expression; and that no expression costs more than a look along the name."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rangewatch.wire.records import TensorEntry
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.name_filter import MAX_EXPRESSION, MAX_TERMS, glob, name_filter


def entry(fqn: str, kind: str = "output", dtype: str = "float16", module: str = "Linear") -> TensorEntry:
    return TensorEntry(fqn, kind, 0, dtype, (4,), 0, module)


TENSORS = [
    entry("blocks.3.attn"),
    entry("blocks.3.attn", "grad_output"),
    entry("blocks.30.attn", dtype="bfloat16"),
    entry("blocks.3.ff", module="FeedForward"),
    entry("", "input"),
    entry("blocks.3"),
]
NESTED = [entry(f"model.blocks.3.{name}") for name in ("attn.qkv", "attn", "attn_norm")]  # fmt: skip


@pytest.mark.parametrize(
    ("q", "wanted"),
    [
        ("", {0, 1, 2, 3, 4, 5}),
        ("ATTN", {0, 1, 2}),
        ("attn grad", {1}),
        ("(model)", {4}),
        ("blocks.*.attn", {0, 1, 2}),
        ("blocks.?.attn", {0, 1}),
        ("blocks.*", {0, 1, 2, 3, 5}),
        ("*.attn kind:grad*", {1}),
        ("blocks !attn", {3, 5}),
        ("in:blocks.3", {0, 1, 3, 5}),
        ("in:BLOCKS", {0, 1, 2, 3, 5}),
        ("in:block", set()),
        ("dtype:bf*", {2}),
        ("type:feedforward | (model)", {3, 4}),
        ("!in:blocks.3 !kind:input", {2}),
        ("foo:bar", set()),
        ("3.attn output", {0}),
    ],
)
def test_what_an_expression_leaves(q: str, wanted: set[int]) -> None:
    found = name_filter(q)
    assert {at for at, each in enumerate(TENSORS) if found(each)} == wanted


@pytest.mark.parametrize(
    ("q", "wanted"),
    [("blocks.*.attn", {0, 1}), ("*.attn", {0, 1}), ("bl*", {0, 1, 2}), ("attn?norm", {2}), ("locks.*", set())],
)
def test_a_glob_is_whole_parts_of_a_name_wherever_they_are(q: str, wanted: set[int]) -> None:
    found = name_filter(q)
    assert {at for at, each in enumerate(NESTED) if found(each)} == wanted


def test_plain_text_with_signs_of_other_languages_is_a_part_of_the_name() -> None:
    for name in ("<b>!bold</b>", "a:b", "{x}[0]", "a!b", "(model)+"):
        assert name_filter(name)(entry(f"x.{name}")), name


@pytest.mark.parametrize(
    ("q", "word"),
    [
        ("a |", "nothing on one side"),
        ("| a", "nothing on one side"),
        ("a !", "nothing after !"),
        ("kind:", "nothing after kind:"),
        ("kind:nope", "is not one of output"),
        ("*" * (MAX_EXPRESSION + 1), "at most"),
        ("!a " * (MAX_TERMS + 1), "terms"),
        ("a" * 5_000, "characters"),
    ],
)
def test_a_bad_expression_says_what_is_wrong(q: str, word: str) -> None:
    with pytest.raises(ApiError, match=re.escape(word)) as caught:
        name_filter(q)
    assert (caught.value.status, caught.value.code) == (422, "bad_parameter")
    assert str(caught.value).startswith("q: ")


@given(st.text(alphabet="ab.*?", max_size=12), st.text(alphabet="ab." + string.punctuation, max_size=16))
def test_a_glob_is_what_a_regular_expression_says(pattern: str, text: str) -> None:
    said = "".join(".*" if each == "*" else "." if each == "?" else re.escape(each) for each in pattern)
    assert glob(pattern)(text) == (re.fullmatch(said, text, re.DOTALL) is not None)


def test_a_pattern_that_backtracks_elsewhere_ends_here() -> None:
    """As a regular expression this would run for longer than the universe has."""
    assert not glob("a*" * 200 + "b")("a" * 4_096)
