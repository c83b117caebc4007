"""The corpus of bad frames: what each is, how the server must refuse it, and the bytes.

`python -m tests.fuzz.bad_frames` writes `corpus/`, where each file is one body of a POST, and `corpus.json`, which has
the code of each: making them takes seconds, so tests read them. A case that a fuzzer finds gets an entry in one of the
files below, with a name.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.fuzz import bad_bodies, bad_headers, bad_rows

CORPUS = Path(__file__).parent / "corpus"
CODES = CORPUS.with_suffix(".json")
MAKERS = (
    bad_bodies.containers, bad_bodies.bombs, bad_headers.cuts, bad_headers.prefixes, bad_headers.headers,
    bad_headers.numbers, bad_headers.texts, bad_headers.details, bad_rows.columns, bad_rows.rows, bad_rows.openings,
)  # fmt: skip


class Frame(msgspec.Struct, frozen=True):
    """One bad body: the code it is refused with (docs/wire.md), what is wrong with it, and itself."""

    code: str
    what: str
    body: bytes


def codes() -> dict[str, str]:
    """The code that each is refused with, by its name, as they were written."""
    return msgspec.json.decode(CODES.read_bytes(), type=dict[str, str])


def frames() -> dict[str, Frame]:
    """All of them by name."""
    found: dict[str, Frame] = {}
    for make in MAKERS:
        for name, code, what, body in make():
            assert name not in found, name
            found[name] = Frame(code, what, body)
    return found


def write() -> None:
    """Write what differs, and take away what is no longer made."""
    made = frames()
    for path in CORPUS.glob("*.rwch"):
        if path.stem not in made:
            path.unlink()
    for name, frame in made.items():
        (CORPUS / f"{name}.rwch").write_bytes(frame.body)
    listed = msgspec.json.encode({name: frame.code for name, frame in made.items()})
    CODES.write_bytes(msgspec.json.format(listed) + b"\n")


if __name__ == "__main__":
    write()
