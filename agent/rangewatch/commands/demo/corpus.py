"""Real text for the demo, found on any machine: the help topics that ship with Python, read as bytes.

A byte is a token, so there is no tokenizer, no vocabulary file and no download.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY_SIZE = 256
"""One token a byte value."""

_LEAST_BYTES = 200_000
_MOST_BYTES = 1_000_000


def python_text() -> bytes:
    """The language reference that this Python ships for `help()`; its library's sources where it ships without.

    The same bytes for every process on one machine. Another Python version has slightly other text.
    """
    text = _help_topics()
    if len(text) < _LEAST_BYTES:
        text += _library_sources(_MOST_BYTES - len(text))
    return text[:_MOST_BYTES]


def _help_topics() -> bytes:
    if importlib.util.find_spec("pydoc_data") is None:
        return b""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _library_sources(most_bytes: int) -> bytes:
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(text) >= most_bytes:
            break
        text += path.read_bytes()
    return text


class Batches:
    """Windows of text drawn at random places; each rank draws its own, the same ones for the same seed.

    Calling it gives int64 tokens of shape [batch, length + 1]: input is all but the last, target all but the first.
    """

    def __init__(self, *, batch: int, length: int, seed: int, rank: int) -> None:
        self._bytes = torch.frombuffer(bytearray(python_text()), dtype=torch.uint8)
        self._generator = torch.Generator().manual_seed(seed * 1009 + rank)
        self._batch, self._length = batch, length

    def __call__(self) -> Tensor:
        last_start = len(self._bytes) - self._length - 1
        starts = torch.randint(last_start, (self._batch, 1), generator=self._generator)
        return self._bytes[starts + torch.arange(self._length + 1)].long()
