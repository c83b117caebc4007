"""What `rangewatch import` reads: event files by TensorBoard's own reader, and CSV with a column of steps."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rangewatch.commands.importing.scalars import ImportFailed, Scalars, nanoseconds

PLUGIN = "scalars"
NUMPY = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""TensorFlow's number of a dtype -> numpy's name of it."""

STEP_COLUMNS = ("train/global_step", "trainer/global_step", "global_step", "step", "Step", "_step")
"""In this order: where Transformers or Lightning log their own step, W&B's `_step` counts rows."""
TIME_COLUMN = "_timestamp"
"""Seconds since 1970, as W&B has it."""
TRUTH = {"True": 1.0, "False": 0.0}


def event_files(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Folders with event files, with these in the order in which they were begun."""
    files = sorted(each for each in folder.rglob("*tfevents*") if each.is_file())
    for parent in sorted({each.parent for each in files}):
        yield parent, [each for each in files if each.parent == parent]


def read_tensorboard(name: str, files: list[Path]) -> Scalars:
    """The scalars of one folder's files, each up to where it is cut off or damaged.

    Raises `ImportFailed` where a file is none, or the extra `tensorboard` is not installed.
    """
    run, plugins = Scalars(name), dict[str, str]()
    for path in files:
        event = None
        for event in _events(path):
            for value in event.summary.value:
                plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                scalar = _scalar(value, plugins[value.tag])
                if scalar is not None:
                    run.add(value.tag, event.step, scalar, nanoseconds(event.wall_time))
        if event is None and path.stat().st_size:
            raise ImportFailed(f"{path} is not a TensorBoard event file")
    return run


def _events(path: Path) -> Iterator[Any]:
    """TensorBoard's `Event` messages."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader  # noqa: PLC0415  extra
    except ModuleNotFoundError as error:
        raise ImportFailed(f"{error.name} is not installed; pip install 'rangewatch[tensorboard]'") from None
    from google.protobuf.message import DecodeError  # noqa: PLC0415  TensorBoard brings it

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    try:
        yield from LegacyEventFileLoader(str(path)).Load()
    except DecodeError as error:
        raise ImportFailed(f"{path} is not a TensorBoard event file: {error}") from None


def _scalar(value: Any, plugin: str) -> float | None:
    """A value's number: a float, or since TensorFlow 2 a tensor of one; None where it is an image, text or the like."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or plugin != PLUGIN or value.tensor.dtype not in NUMPY:
        return None
    tensor, dtype = value.tensor, np.dtype(NUMPY[value.tensor.dtype])
    if len(tensor.tensor_content) == dtype.itemsize:
        return float(np.frombuffer(tensor.tensor_content, dtype)[0])
    numbers = list(chain(tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val))
    return float(numbers[0]) if len(numbers) == 1 else None


def read_csv(name: str, path: Path) -> Scalars:
    """A series a column, a step a row. Raises `ImportFailed` where no column is one of `STEP_COLUMNS`."""
    run = Scalars(name)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file, restval="")
        try:
            names = rows.fieldnames or ()
            steps = [each for each in STEP_COLUMNS if each in names]
            if not steps:
                raise ImportFailed(f"{path} has no column {', '.join(STEP_COLUMNS[:-1])} or {STEP_COLUMNS[-1]}")
            series = [each for each in names if each and each not in steps and not each.startswith("_")]
            for row in rows:
                _add_row(run, row, steps, series)
        except csv.Error as error:
            raise ImportFailed(f"{path}, after line {rows.line_num}: {error}") from None
    return run


def _add_row(run: Scalars, row: dict[str, str], steps: list[str], series: list[str]) -> None:
    written = {each: row[each] for each in series if row[each]}
    step = next((number for each in steps if (number := _number(row[each])) is not None and number.is_integer()), None)
    if step is None:
        run.left_out["of rows without a step"] += len(written)
        return
    time_ns = nanoseconds(_number(row.get(TIME_COLUMN, "")) or 0.0)
    for each, text in written.items():
        number = _number(text)
        if number is None:
            run.left_out["that are no numbers"] += 1
        else:
            run.add(each, int(step), number, time_ns)


def _number(text: str) -> float | None:
    try:
        return TRUTH[text] if text in TRUTH else float(text)
    except ValueError:
        return None
