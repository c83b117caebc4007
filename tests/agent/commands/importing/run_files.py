"""Run files of W&B: those that wandb itself wrote, and some that no wandb writes: any rows, in sound chunks."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

from rangewatch.commands.importing.wandb_file import BLOCK_BYTES, FIRST, FULL, LAST, MIDDLE, NAME

LOGS = Path(__file__).parent / "wandb_logs"
NO_NUMBERS = "that are no numbers but text, lists, histograms, tables, media or the like"


def path_of(identity: str) -> Path:
    """The file of a run in `wandb_logs`."""
    (found,) = LOGS.rglob(f"run-{identity}.wandb")
    return found


def long_run(folder: Path) -> Path:
    """A run over several blocks of 32 KiB, in a folder `w/run-1` of this one."""
    (folder / "w" / "run-1").mkdir(parents=True)
    path = folder / "w" / "run-1" / "run-dddd4444.wandb"
    path.write_bytes(gzip.decompress((LOGS / "dddd4444.wandb.gz").read_bytes()))
    return path


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as protobuf has it."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    content = b""
    while value > 127:
        content, value = content + bytes([value & 127 | 128]), value >> 7
    return content + bytes([value])


def row(step: int, **items: str) -> bytes:
    """A record with a row: names -> JSON."""
    named = [((name,), text) for name, text in items.items()]
    return row_of([*named, (("_step",), str(step))])


def row_of(items: list[tuple[tuple[str, ...], str]]) -> bytes:
    """A record with a row: paths of names and JSON."""
    content = b""
    for path, text in items:
        names = b"".join(field(2, name.encode()) for name in path)
        content += field(1, names + field(16, text.encode()))
    return field(2, content)


def chunk(kind: int, payload: bytes) -> bytes:
    checked = bytes([kind]) + payload
    return struct.pack("<IH", zlib.crc32(checked), len(payload)) + checked


def run_file(path: Path, *records: bytes) -> Path:
    """Write them in blocks; gives the path."""
    content = NAME
    for record in records:
        first, left = True, record
        while left or first:
            room = BLOCK_BYTES - len(content) % BLOCK_BYTES
            if room < 7:
                content += b"\0" * room
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (FULL if first else LAST) if not left else (FIRST if first else MIDDLE)
            content, first = content + chunk(kind, part), False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
