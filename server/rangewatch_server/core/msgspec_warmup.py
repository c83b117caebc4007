"""Types that are decoded, learnt before there is a second thread.

msgspec finds out how to decode a class when it is first asked to, and keeps that on the class before it is complete:
two threads that ask at once end the process with a segmentation fault (0.22.0; once in some 5,400 tests, and each time
in tests/server/http/test_msgspec_warmup.py without this).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

OURS = ("rangewatch", "rangewatch_server")


def learn() -> None:
    """Of all our classes that are imported. Those that cannot be, with annotations for readers only, never are."""
    for each in ours():
        with contextlib.suppress(TypeError, NameError):
            msgspec.json.Decoder(each)


def ours() -> Iterator[type[msgspec.Struct]]:
    """Our classes of messages, rows and findings."""
    for each in _below(msgspec.Struct):
        if each.__module__.partition(".")[0] in OURS:
            yield each


def _below(parent: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in parent.__subclasses__():
        yield each
        yield from _below(each)
