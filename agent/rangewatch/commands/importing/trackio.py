"""Runs of a trackio project: its SQLite file has a row a step with the logged values as JSON."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from rangewatch.commands.importing.scalars import IN_WORDS, ImportFailed, Scalars, nanoseconds, run_name

WANTED = {"run_name", "step", "timestamp", "metrics"}


def find(top: Path) -> Iterator[Path]:
    """The file that was named, if it is not W&B's, or the projects' files in a folder and below it."""
    if not top.is_file():
        yield from sorted(each for each in top.rglob("*.db") if _is_project(each))
    elif top.suffix != ".wandb":
        yield top


def read(base: str, path: Path) -> Iterator[Scalars]:
    """The runs of a project, each `base/its name`. Raises `ImportFailed` for another file."""
    if not _is_project(path):
        raise ImportFailed(f"{path} is no SQLite file of trackio")
    with closing(_connection(path)) as connection:
        try:
            yield from _runs(connection, base)
        except sqlite3.DatabaseError as error:
            raise ImportFailed(f"{path}: {error}") from None


def _runs(connection: sqlite3.Connection, base: str) -> Iterator[Scalars]:
    """Older files know a run by its name, newer ones by an id: names may then be the same."""
    key = "run_id" if "run_id" in _columns(connection) else "run_name"
    runs = connection.execute(f"SELECT {key}, min(run_name) FROM metrics GROUP BY {key} ORDER BY min(id)").fetchall()  # noqa: S608
    taken: set[str] = set()
    for identity, name in runs:
        found = Scalars(run_name(base, str(name)))
        if found.name in taken:
            found.name = run_name(base, str(name), str(identity)[:8])
        taken.add(found.name)
        query = f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY id"  # noqa: S608
        for step, time, metrics in connection.execute(query, (identity,)):
            _add(found, step, _nanoseconds(time), metrics)
        yield found


def _add(found: Scalars, step: object, time_ns: int, metrics: str | bytes) -> None:
    try:
        values = msgspec.json.decode(metrics, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        found.left_out["that are no JSON"] += 1
        return
    for name, value in values.items():
        number = IN_WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, float | int) and isinstance(step, int):
            found.add(name, step, _as_float(number), time_ns)


def _as_float(number: float | int) -> float:
    """Whole numbers may have any length."""
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _nanoseconds(text: object) -> int:
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return 0
    return nanoseconds((time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp())


def _is_project(path: Path) -> bool:
    try:
        with closing(_connection(path)) as connection:
            return _columns(connection) >= WANTED
    except sqlite3.Error:
        return False


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}


def _connection(path: Path) -> sqlite3.Connection:
    """To read only: a training may be writing it."""
    return sqlite3.connect(f"file:{quote(bytes(path.resolve()))}?mode=ro", uri=True)
