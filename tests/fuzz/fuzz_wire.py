"""Coverage-guided fuzzing of what decodes and checks messages: `python -m tests.fuzz.fuzz_wire LIMIT [FOUND]`, where
LIMIT is libFuzzer's: `-runs=3000`, `-max_total_time=60` (seconds).

A body is decoded to a message that comes back equal when it is sent again, or refused with a `WireError`; nothing else
is raised, and the process never has more than `RSS_MIB`, which bounds what any body costs: the largest there may be is
64 MiB unpacked. libFuzzer (atheris) is told of every branch of our code and grows its corpus from the golden files and
the bad frames. What it finds is written to the folder FOUND; a case gets a name in `bad_frames.py`.

An input is a byte that says how to read the rest: as a body, or as what a body unpacks to, since nobody would find a
branch behind zstd by changing its bytes.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["rangewatch.wire", "rangewatch_server.store.batch_checks"]):
    from rangewatch import wire
    from rangewatch_server.store import batch_checks

import msgspec
import zstandard

from rangewatch.wire import messages
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.errors import STATUS_OF_CODE
from tests.agent.wire.samples import GOLDEN
from tests.fuzz import template
from tests.fuzz.bad_frames import CORPUS

RSS_MIB = 1_024  # measured: 176; a constant that stands for 2^25 values is 256 MiB when it is sent again
MOST_BYTES = 1 << 16  # of an input: what is large is in the corpus of bad frames, and slow to change at random
BODY, UNPACKED = b"\0", b"\1"
PREFIX = struct.Struct("<4sHI")
ODD: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, float("nan"), float("inf"), "", "\0",
    "x" * 5_000,
    b"", None, True, (), [1], {}, {"a": 1}, "u1", "u2", "u4", "i8", "f4", "f8", "const", "range", "shuffle",
    "sum", "max",
)  # fmt: skip


def one_input(data: bytes) -> None:
    """What libFuzzer calls."""
    body = data[1:] if data[:1] == BODY else zstandard.compress(data[1:])
    try:
        message = wire.decode(body)
    except wire.WireError as error:
        _is_fit(error)
        return
    again = wire.encode(message)
    same = wire.encode(wire.decode(again))
    if again != same:  # every value is written exactly, so equal bytes are equal messages
        raise AssertionError("a message does not come back equal")
    try:
        _check(message)
    except wire.WireError as error:
        _is_fit(error)


def _check(message: StreamHeader | Batch) -> None:
    if isinstance(message, StreamHeader):
        batch_checks.check_opening(message)
        return
    batch_checks.check_header(message)
    if message.ranges is not None:
        batch_checks.check_ranges(message.ranges, template.CATALOGUE.statistics, len(template.CATALOGUE.tensors))
    for rows in (message.ranges, *message.series):
        if rows is not None and len(rows.steps):
            ascending = rows.steps.tolist()
            if not ascending[0] >= 0 or ascending[-1] > batch_checks.MAX_STEP or sorted(set(ascending)) != ascending:
                raise AssertionError("steps out of order or bounds were let through")


def _is_fit(error: wire.WireError) -> None:
    if error.code not in STATUS_OF_CODE or "\n" in str(error) or not 0 < len(str(error)) < 500:
        raise AssertionError(f"no fit refusal: {error.code!r} {str(error)!r}")


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Another input: half of the time another header of the same message, with a true length; else other bytes."""
    dice = random.Random(seed)
    if data[:1] == BODY or len(data) < 1 + PREFIX.size or dice.random() < 0.5:
        return bytes(atheris.Mutate(data, most))
    raw = data[1:]
    length = PREFIX.unpack_from(raw)[2]
    try:
        header = msgspec.msgpack.decode(raw[PREFIX.size : PREFIX.size + length])
        for _ in range(dice.choice((1, 1, 2, 4))):
            header = _changed(header, dice)
        encoded = msgspec.msgpack.encode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, OverflowError):
        return bytes(atheris.Mutate(data, most))
    blocks = raw[PREFIX.size + length :]
    if blocks and dice.random() < 0.3:
        blocks = bytes(atheris.Mutate(blocks, len(blocks) + 64))
    return (UNPACKED + PREFIX.pack(b"RWCH", dice.choice((1, 2, 2)), len(encoded)) + encoded + blocks)[:most]


def _changed(value: Any, dice: random.Random) -> Any:
    """The same with one thing in it another: found by going down at random."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        if dice.random() < 0.05:
            return {each: kept for each, kept in value.items() if each != key}
        return value | {key: _changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        if dice.random() < 0.1:
            return value[:at] + value[at + 1 :] if dice.random() < 0.5 else [*value, value[at]]
        return [*value[:at], _changed(value[at], dice), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.4:
        return value + dice.choice((-1, 1, -8, 8))
    return dice.choice(ODD)


def _seeds(folder: Path) -> None:
    for path in (*GOLDEN.glob("*.rwch"), *CORPUS.glob("*.rwch")):
        body = path.read_bytes()
        (folder / path.stem).write_bytes(BODY + body)
        try:
            raw = messages._decompress(body)
        except wire.WireError:
            continue
        if len(raw) < MOST_BYTES:
            (folder / f"{path.stem}.raw").write_bytes(UNPACKED + raw)
    for number in range(2):
        (folder / f"good_{number}.raw").write_bytes(
            UNPACKED + zstandard.decompress(wire.encode(template.good_batch(number)))
        )
    (folder / "opening.raw").write_bytes(UNPACKED + zstandard.decompress(wire.encode(template.OPENING)))


def main(limit: str, found: str) -> None:
    """Fuzz up to a limit of libFuzzer's; exits with its status, 0 when nothing was found."""
    with tempfile.TemporaryDirectory() as seeds:
        _seeds(Path(seeds))
        options = [limit, f"-rss_limit_mb={RSS_MIB}", f"-max_len={MOST_BYTES}", "-timeout=60"]
        options += ["-seed=1", "-print_final_stats=1", f"-artifact_prefix={found}/", seeds]
        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    # The limit is of the most that getrusage has seen, which outlives exec: what started us counted as ours.
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ".")
