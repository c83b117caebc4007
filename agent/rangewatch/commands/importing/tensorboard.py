"""Runs of a TensorBoard log folder: the scalars of its event files, as torch, TensorFlow and Keras write them.

A file is records of an event each: `length u64 | checksum u32 | event | checksum u32`, little-endian. An event is a
protobuf message of TensorFlow's event.proto, and a scalar a value of its summary: a float (`simple_value`), or since
TensorFlow 2 a tensor of one number whose first appearance says that it is of the plugin `scalars`. Checksums are not
looked at. A file whose end is missing, as that of a training which goes on or was killed, is read as far as it goes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rangewatch.commands.importing.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    BadMessage,
    double,
    fields,
    signed,
    single,
)
from rangewatch.commands.importing.scalars import ImportFailed, Scalars, nanoseconds

HEAD = struct.Struct("<QI")
TAIL_BYTES = 4
MOST_RECORD_BYTES = 256 << 20
"""Larger ones are no record: images and graphs are some MiB."""
PLUGIN = "scalars"
NUMPY = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""TensorFlow's number of a dtype -> numpy's name of it."""


def find(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Folders with event files, with these in the order in which they were begun."""
    files = sorted(each for each in folder.rglob("*tfevents*") if each.is_file())
    for parent in sorted({each.parent for each in files}):
        yield parent, [each for each in files if each.parent == parent]


def read(name: str, files: list[Path]) -> Scalars:
    """The scalars of one folder's files. Raises `ImportFailed` for a file that is none."""
    found, plugins = Scalars(name), dict[str, str]()
    for path in files:
        try:
            with path.open("rb") as file:
                for event in _records(file):
                    _add(found, plugins, event)
        except BadMessage as error:
            raise ImportFailed(f"{path} is no TensorBoard event file: {error}") from None
    return found


def _records(file: BinaryIO) -> Iterator[bytes]:
    while len(head := file.read(HEAD.size)) == HEAD.size:
        length, _ = HEAD.unpack(head)
        if length > MOST_RECORD_BYTES:
            raise BadMessage(f"a record of {length} bytes")
        event = file.read(length)
        if len(event) < length or len(file.read(TAIL_BYTES)) < TAIL_BYTES:
            return
        yield event


def _add(found: Scalars, plugins: dict[str, str], event: bytes) -> None:
    time_s, step, summary = 0.0, 0, b""
    for number, kind, value in fields(event):
        if number == 1 and kind == FIXED64 and isinstance(value, bytes):
            time_s = double(value)
        elif number == 2 and kind == VARINT and isinstance(value, int):
            step = signed(value)
        elif number == 5 and kind == BYTES and isinstance(value, bytes):
            summary += value
    for number, kind, value in fields(summary):
        if number == 1 and kind == BYTES and isinstance(value, bytes):
            tag, scalar = _scalar(value, plugins)
            if scalar is not None:
                found.add(tag, step, scalar, nanoseconds(time_s))


def _scalar(message: bytes, plugins: dict[str, str]) -> tuple[str, float | None]:
    """A value's name and number; None where it is an image, a histogram or the like."""
    tag, scalar, tensor = "", None, b""
    plugin = None
    for number, kind, value in fields(message):
        if number == 1 and kind == BYTES and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
            scalar = single(value)
        elif number == 8 and kind == BYTES and isinstance(value, bytes):
            tensor = value
        elif number == 9 and kind == BYTES and isinstance(value, bytes):
            plugin = _plugin(value)
    plugins.setdefault(tag, plugin or "")
    if scalar is None and tensor and plugins[tag] == PLUGIN:
        scalar = _number(tensor)
    return tag, scalar


def _plugin(metadata: bytes) -> str:
    for number, kind, value in fields(metadata):
        if number == 1 and kind == BYTES and isinstance(value, bytes):
            for inner, inner_kind, name in fields(value):
                if inner == 1 and inner_kind == BYTES and isinstance(name, bytes):
                    return name.decode(errors="replace")
    return ""


def _number(tensor: bytes) -> float | None:
    """The one number of a tensor; None where it has several, or of a dtype that is not known here."""
    dtype, content = 0, b""
    for number, kind, value in fields(tensor):
        if number == 1 and kind == VARINT and isinstance(value, int):
            dtype = value
        elif number in (4, 5, 6) and isinstance(value, bytes):  # the bytes of it; floats; doubles
            content += value
    name = NUMPY.get(dtype)
    if name is None or len(content) != np.dtype(name).itemsize:
        return None
    return float(np.frombuffer(content, name)[0])
