"""The typed records that flow from the agent to the server. No torch, no I/O.

Arrays are numpy, oriented (tensors, steps): one tensor's values over time lie together, which is how they compress
and how every reader wants them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
StepArray = NDArray[np.int64]

# Most items of what a message brings, which decoding looks at before it takes memory for them.
MAX_DIMS, MAX_VERSIONS, MAX_STATISTICS, MAX_TENSORS = 64, 1_000, 4_096, 200_000

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""What optimizers keep of a parameter's gradients, by their own names for it."""

SCALED = ("scaled_input", "scaled_weight", "scaled_grad_output")
"""Operands of a layer's matrix products that are cast to a format of 8 bits or less by scales (`statistics.scales`)."""

# Stored rows are numbered by places in it: new kinds come last.
KINDS = ("output", "input", "grad_output", "weight", "grad", "reduced_grad", "update", *MOMENTS, *SCALED)


class Statistic(msgspec.Struct, frozen=True):
    """One statistic: its name, unit, merge rule (`max`, `min`, `sum` or `last`), neutral element and a line of help."""

    name: str
    unit: str
    merge: str
    identity: float
    help: str


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of a rank. Its number on that rank is its position in `Catalogue.tensors`.

    `index` is the position in a container of outputs; `call_index` orders a rank's tensors by first use in a step, with
    gaps and ties (then the lower number is first); `module` is the class name; `shape` that of the first observation.
    """

    fqn: str
    kind: str
    index: int
    dtype: str
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMS)]
    call_index: int
    module: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """What a rank's rows mean. It only grows, and travels when it has, named by its digest."""

    statistics: Annotated[tuple[Statistic, ...], msgspec.Meta(max_length=MAX_STATISTICS)]
    tensors: Annotated[tuple[TensorEntry, ...], msgspec.Meta(max_length=MAX_TENSORS)]


class RankInfo(msgspec.Struct, frozen=True):
    """Who sends: one rank of one run, in one incarnation (a process from attach to its end)."""

    run: str
    rank: int
    world_size: int
    local_rank: int
    host: str
    incarnation: str
    started_ns: int
    pid: int = 0
    device: str = "cpu"
    versions: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_VERSIONS)] = {}
    loss_scaled: bool = False
    """A loss scaler is in use: `grad_output` and `grad` are as the hardware held them, multiplied by the scale."""
    ship_every: int = 1
    """Steps merged into one row of the ranges, named by the last of them; around NaN and Inf each has its own."""
    takes_alerts: bool = False
    """It is sent the run's alerts, as commands."""


class StreamHeader(msgspec.Struct, frozen=True):
    """First message of an incarnation, and again whenever the catalogue grew or the server asks for it."""

    info: RankInfo
    catalogue: Catalogue


class RangeRows(msgspec.Struct, frozen=True):
    """Statistics of `tensors` at `steps`.

    `steps`: (n,) int64, strictly ascending. `tensors`: (t,) int64, positions in the catalogue, strictly ascending.
    `columns`: statistic name -> (t, n) float64; a statistic left out holds its identity everywhere.
    """

    steps: StepArray
    tensors: StepArray
    columns: dict[str, FloatArray]


class SeriesRows(msgspec.Struct, frozen=True):
    """Values of one series: `steps` (n,) int64 strictly ascending, `values` (n,) float64, NaN being a value."""

    name: str
    steps: StepArray
    values: FloatArray


class Samples(msgspec.Struct, frozen=True):
    """Rows keyed by time rather than by tensor: a GPU's health, a host's, the collectives of a rank.

    `source` names what they are rows of, `key` which one (a GPU's UUID), "" where there is one only. `times_ns`: (n,)
    int64 Unix time, ascending, ties allowed. `columns`: name -> (n,) float64, NaN where a value is unknown or not
    supported. `about`: JSON details, such as the names that a column refers to by number.
    """

    source: str
    key: str
    times_ns: StepArray
    columns: dict[str, FloatArray]
    about: dict[str, Any] = {}


class Event(msgspec.Struct, frozen=True):
    """Something that happened: `attached`, `finished`, `fault`, `dropped`, `not_observed`, ... with free details."""

    kind: str
    time_ns: int
    step: int
    message: str = ""
    data: dict[str, Any] = {}


class Batch(msgspec.Struct, frozen=True):
    """What one rank ships at once. `sequence` counts from 0 within an incarnation; resending is harmless.

    Every sequence below `settled` has arrived or never will (it was dropped): the server need not wait for it.
    """

    run: str
    rank: int
    incarnation: str
    sequence: int
    catalogue: str
    ranges: RangeRows | None = None
    series: tuple[SeriesRows, ...] = ()
    events: tuple[Event, ...] = ()
    settled: int = 0
    samples: tuple[Samples, ...] = ()
