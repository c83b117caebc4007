"""Runs of a W&B folder: the numbers of the rows that `run.log` wrote, as each run keeps them in a file of its own.

A record of that file is a protobuf message of W&B's wandb_internal.proto. A row has names with values in JSON: newer
versions write the path of names to each value, older ones a nested value whole, and both are named as W&B does it,
`optimizer.grad_norm`. What the system did meanwhile has no step, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rangewatch.commands.importing.protobuf import BadMessage, contents, fields
from rangewatch.commands.importing.scalars import (
    IN_WORDS,
    LONGEST_NAME,
    ImportFailed,
    Scalars,
    below,
    nanoseconds,
    run_name,
)
from rangewatch.commands.importing.wandb_file import RunFile

ROW, SYSTEM, RUN, EXIT = 2, 7, 17, 18
"""Fields of a record."""
STEP_NAMES = ("train/global_step", "trainer/global_step", "_step")
"""Transformers and Lightning log the training's step with each row; W&B's own then counts the rows, and comes last."""
OWN = ("_timestamp", "_runtime", "_step", "_wandb")
"""What W&B adds to each row."""
DEEPEST = 32
"""What is nested further is left out."""
JSON = json.JSONDecoder(parse_int=float)
"""Whole numbers may have any length."""


def find(top: Path) -> list[Path]:
    """The file that was named, or those in a folder and below it, each folder's runs in the order they were begun."""
    if top.is_file():
        return [top] if top.suffix == ".wandb" else []
    found = (each for each in top.rglob("run-*.wandb") if each.is_file())
    return sorted(found, key=lambda each: (each.parent.parent, each.parent.name.removeprefix("offline-"), each.name))


def run(base: str, top: Path, path: Path) -> Scalars:
    """The run of a file that `find(top)` gave, where `base` is the name of `top`. Raises `ImportFailed`."""
    found = read(path)
    found.name = _name(base, top, path, found.name)
    return found


def _name(base: str, top: Path, path: Path, shown: str) -> str:
    """Of this file alone, so that the run keeps it whatever becomes of those beside it.

    A resumed run has the same identity in each of its folders: the time that these have in their names is part of it.
    """
    own = _of_own_folder(path)
    if top == path or (own and top == path.parent):
        return base
    return run_name(below(base, top, path.parent.parent if own else path.parent), shown, own or _identity(path))


def _of_own_folder(path: Path) -> str:
    """`TIME-ID` where the file is in `run-TIME-ID` or `offline-run-TIME-ID`, as W&B puts it; else nothing."""
    folder = path.parent.resolve().name.removeprefix("offline-")
    own = folder.removeprefix("run-")
    return own if own != folder and own.endswith(f"-{_identity(path)}") else ""


def _identity(path: Path) -> str:
    """W&B's own of a run, from the name of its file."""
    return path.stem.removeprefix("run-")


def read(path: Path) -> Scalars:
    """The numbers of a run, by the name that it was given, if any. Raises `ImportFailed` for another file."""
    found = Scalars("", is_finished=False)
    with path.open("rb") as opened:
        file = RunFile(opened)
        try:
            for record in file.records():
                _add(found, record)
        except BadMessage as error:
            raise ImportFailed(f"{path} is no run file of W&B: {error}") from None
    if file.lost_bytes:
        found.remarks.append(f"{file.lost_bytes} bytes left out of {path}: damaged, or of a record that is too large")
    if file.is_cut:
        found.remarks.append(f"{path} ends within a record, as if its run was killed or goes on; all before is read")
    return found


def _add(found: Scalars, record: bytes) -> None:
    for number, _, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if number == ROW:
            _add_row(found, value)
        elif number == RUN:
            for name in contents(value, 8):
                found.name = name.decode(errors="replace") or found.name
        elif number == EXIT:
            found.is_finished = True
        elif number == SYSTEM:
            for _ in contents(value, 3):
                found.left_out["of the system, which have no step"] += 1


def _add_row(found: Scalars, message: bytes) -> None:
    row = _row(message)
    step, time_s = _step(row), row.get("_timestamp")
    time_ns = nanoseconds(time_s) if isinstance(time_s, float) else 0
    for name, value in _leaves({name: value for name, value in row.items() if name not in OWN}):
        number = IN_WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, float | int):
            found.add(name, step, float(number), time_ns)
        else:
            found.left_out["that are no numbers but text, lists, histograms, tables, media or the like"] += 1


def _step(row: dict[str, Any]) -> int:
    steps = (row.get(name) for name in STEP_NAMES)
    return next((int(step) for step in steps if isinstance(step, float) and step.is_integer()), -1)


def _row(message: bytes) -> dict[str, Any]:
    """Names -> values, nested."""
    row: dict[str, Any] = {}
    for item in contents(message, 1):
        *outer, name, text = _names_and_text(item)
        if len(outer) > DEEPEST:
            outer, text = outer[:DEEPEST], ""
        inner = row
        for each in outer:
            if not isinstance(inner.get(each), dict):
                inner[each] = {}
            inner = inner[each]
        inner[name] = _value(text)
    return row


def _names_and_text(item: bytes) -> list[str]:
    """The path to a value, of at least one name, and the value's JSON."""
    key, nested, text = b"", [], b""
    for number, _, value in fields(item):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            key = value
        elif number == 2:
            nested.append(value)
        elif number == 16:
            text = value
    return [each.decode(errors="replace") for each in (*(nested or [key]), text)]


def _value(text: str) -> object:
    try:
        return JSON.decode(text)
    except (ValueError, RecursionError):
        return None


def _leaves(row: dict[str, Any], outer: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Each value that is not nested further, with its name; a histogram, a picture and the like is one, of None."""
    for inner, value in row.items():
        name = outer + inner
        if not isinstance(value, dict):
            yield name, value
        elif isinstance(value.get("_type"), str) or depth == DEEPEST or len(name) > LONGEST_NAME:
            yield name, None
        else:
            yield from _leaves(value, f"{name}.", depth + 1)
