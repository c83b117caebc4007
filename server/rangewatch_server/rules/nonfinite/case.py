"""What is known around one first NaN or Inf: what the agent saw at that moment, and what was recorded before."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from rangewatch.wire.events import MaskDetails, Nonfinite, TensorDetails
from rangewatch.wire.records import KINDS
from rangewatch_server.numerics import first_nonfinite
from rangewatch_server.numerics.first_nonfinite import NONFINITE_NS
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.query.inf_by_design import FIRST_STEPS
from rangewatch_server.rules.evidence import BACKWARD, OPTIMIZER, Evidence
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.recent import rows_of
from rangewatch_server.rules.trend import Growth, growing

Array = NDArray[Any]

_COLUMNS = (*first_nonfinite.COLUMNS, "numel", "amax")

_CONV = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
LINEAR = ("Linear", "Bilinear", "Embedding", "EmbeddingBag", "RNN", "LSTM", "GRU", *_CONV)
"""torch's classes that multiply, add and squash: of finite inputs and weights they give NaN or Inf by overflow alone.
What else has such a name may do more."""

_NORM = re.compile(r"Norm(\dd)?$")


class Bad(msgspec.Struct, frozen=True):
    """One rank's first bad tensor of a step."""

    step: int
    rank: int
    tensor: int
    call_index: int
    nan_count: int
    inf_count: int
    numel: int


class StepView:
    """The tensors of a rank at a step; `columns[name]`: (t,), in the order of `Evidence.tensors`.

    `without`: (t,) bool, tensors that count as finite.
    """

    def __init__(self, evidence: Evidence, rank: int, step: int, without: Array | None = None) -> None:
        self.evidence, self.rank, self.step = evidence, rank, step
        self.entries = evidence.tensors.entries
        wanted = [name for name in _COLUMNS if name in evidence.run.names().fill[RANGES]]
        block = evidence.run.slice(RANGES, [rank], 0, step, step + 1, wanted, np.arange(len(self.entries)))
        self.columns = {name: np.array(values[:, 0], np.float64) for name, values in block.columns.items()}
        if without is not None:
            for name in ("nan_count", "inf_count"):
                self.columns[name][without] = 0.0

    def masked(self, rows: Array) -> Array:
        """(d,) the share of Inf by design in tensors that hold it."""
        infs = self._stored_inf(rows)
        return infs / np.maximum(self.columns["numel"][rows], 1.0)

    def most_masked(self, rows: Array) -> Array:
        """(d,) the largest share of Inf in the first steps of the run, and in those before this one."""
        evidence, shares = self.evidence, []
        first = evidence.run.first_step or 0
        for start in sorted({first, max(first, self.step - FIRST_STEPS)}):
            stop = min(start + FIRST_STEPS, self.step)
            if start < stop:
                block = evidence.run.stored(RANGES, [self.rank], 0, start, stop, ("numel", "inf_count"), rows)
                numel, infs = (np.asarray(block.columns[name], np.float64) for name in ("numel", "inf_count"))
                shares.append((infs / np.maximum(numel, 1.0)).max(axis=1))
        return np.max(shares, axis=0) if shares else np.ones(len(rows))

    def count_inf(self, rows: Array) -> None:
        """Count the Inf of these tensors in this step, which is by design in others."""
        self.columns["inf_count"][rows] = self._stored_inf(rows)
        if NONFINITE_NS in self.columns:
            block = self.evidence.run.stored(RANGES, [self.rank], 0, self.step, self.step + 1, [NONFINITE_NS], rows)
            self.columns[NONFINITE_NS][rows] = block.columns[NONFINITE_NS][:, 0]
        self.__dict__.pop("is_bad", None)

    def _stored_inf(self, rows: Array) -> Array:
        block = self.evidence.run.stored(RANGES, [self.rank], 0, self.step, self.step + 1, ["inf_count"], rows)
        return np.asarray(block.columns["inf_count"][:, 0], np.float64)

    @cached_property
    def is_bad(self) -> Array:
        """(t,) bool: it held NaN or Inf."""
        return (self.columns["nan_count"] > 0) | (self.columns["inf_count"] > 0)

    def is_of(self, *kinds: str) -> Array:
        """(t,) bool: it was observed, and is of one of these kinds."""
        wanted = np.isin(self.evidence.tensors.kind_rows, [KINDS.index(kind) for kind in kinds])
        return wanted & (self.columns["call_count"] > 0)

    def in_order(self, chosen: Array) -> list[int]:
        """Ordinals of the chosen, (t,) bool, in call order."""
        rows = np.flatnonzero(chosen)
        return [int(each) for each in rows[np.argsort(self.evidence.tensors.position[rows], kind="stable")]]

    def first(self) -> Bad | None:
        """The tensor that held NaN or Inf first; None when all are finite."""
        tensors = self.evidence.tensors
        at = first_nonfinite.first_bad(self.columns, tensors.call_index, tensors.kind_rows)
        if at is None:
            return None
        counts = (int(self.columns[name][at]) for name in ("nan_count", "inf_count", "numel"))
        return Bad(self.step, self.rank, at, int(tensors.call_index[at]), *counts)

    def before(self, tensor: int, *kinds: str) -> list[int]:
        """Finite tensors of these kinds that come before this one in call order."""
        position = self.evidence.tensors.position
        return self.in_order(self.is_of(*kinds) & ~self.is_bad & (position < position[tensor]))

    def find(self, fqn: str, kind: str) -> list[int]:
        """Those of this module or parameter and kind that were observed."""
        return [each for each in self.in_order(self.is_of(kind)) if self.entries[each].fqn == fqn]

    def amax(self, tensor: int) -> float:
        """Its largest finite magnitude."""
        return float(self.columns["amax"][tensor])

    def loss(self) -> float | None:
        """The loss that was logged for the step, NaN and Inf too; None where none was."""
        if not self.evidence.has_series("loss"):
            return None
        run = self.evidence.run
        rows = np.array([run.names().series["loss"]])
        block = run.slice(SERIES_PART, [self.rank], 0, self.step, self.step + 1, ("count", "last"), rows)
        return float(block.columns["last"][0, 0]) if block.columns["count"][0, 0] > 0 else None

    def is_contained(self) -> bool:
        """Whether it held Inf alone, and neither its gradients nor its loss took it over, as with masks."""
        loss = self.loss()
        is_in_gradients = (self.is_of(*BACKWARD, *OPTIMIZER) & self.is_bad).any()
        is_seen = self.is_of(*BACKWARD).any()
        return bool(is_seen and not self.columns["nan_count"].any() and not is_in_gradients) and (
            loss is None or bool(np.isfinite(loss))
        )


def _is_around(outer: str, fqn: str) -> bool:
    """Whether a module is this one, or holds it."""
    return outer == fqn or not outer or fqn.startswith(f"{outer}.")


PEAK_BITS = 20.0
"""Bits by which a single element must be above all others of its parameter: no update moves one alone so far."""


def _is_single(details: TensorDetails) -> bool:
    rest = details.rest_amax
    if details.peak_count != 1 or rest is UNSET or rest <= 0 or details.numel < LEAST_ELEMENTS:
        return False
    return details.is_bad or details.amax > rest * 2.0**PEAK_BITS


GARBAGE = 1e30
"""Magnitude of a weight that no training gives, and memory that was never written may hold."""

UPDATE_PART = 1e-3
"""Part of a weight that its last gradient must have been for an update to have made it so."""

LEAST_ELEMENTS = 8
"""Of a parameter, for a single element to say something."""

LEAST_WIDTH = 8
"""Of a row, for whole rows to say something."""

HISTORY = 64
"""Steps before the first bad one that are examined."""


class Case:
    """One rank's first bad tensor of a step, with what is known around it. `view`: that step of that rank."""

    def __init__(self, evidence: Evidence, bad: Bad, view: StepView) -> None:
        self.evidence, self.bad, self.view = evidence, bad, view
        self.entry = evidence.tensors.entries[bad.tensor]

    @cached_property
    def context(self) -> Nonfinite | None:
        """What the agent reported of this very tensor; None where it reported nothing that can be read."""
        mine = self.entry.fqn, self.entry.kind, self.entry.index
        at = self.bad.rank, self.bad.step
        return next(
            (
                known
                for event, known in self.evidence.details(Nonfinite)
                if (event.rank, event.step) == at and (known.fqn, known.kind, known.index) == mine
            ),
            None,
        )

    @cached_property
    def inputs(self) -> tuple[TensorDetails, ...] | None:
        """The module's floating-point inputs; None where they are not known."""
        reported = self.context.inputs if self.context is not None else None
        return reported if reported is not None else self._rows(self.entry.fqn, "input")

    @cached_property
    def model_inputs(self) -> tuple[TensorDetails, ...] | None:
        """The model's own; empty where it takes none, such as token ids. Where a part of it is called by itself, those
        that are larger than all outputs before: else another part may have made them."""
        reported = self.context.model_inputs if self.context is not None else None
        if reported is None:
            return self._rows("", "input")
        if self.context is not None and self.context.entered:
            made = max((self.view.amax(each) for each in self.view.before(self.bad.tensor, "output")), default=0.0)
            return tuple(each for each in reported if each.is_bad or each.amax > made)
        return reported

    @cached_property
    def weights(self) -> tuple[TensorDetails, ...] | None:
        """The parameters of the module, as its forward used them; None where they are not known."""
        reported = self.context.weights if self.context is not None else None
        if reported is not None:
            return reported
        return self._weights_of(self.view)

    @property
    def flipped(self) -> TensorDetails | None:
        """The parameter, of any module, one element of which is far from all others of it, and was not brought there by
        its gradient."""
        return next((each for each in self._large_weights if _is_single(each) and not self.may_be_update(each)), None)

    @property
    def bad_buffer(self) -> TensorDetails | None:
        """A buffer of the module, or of one around it, that held NaN or what memory holds that nobody wrote to."""
        return next((each for each in self._buffers if _is_around(each.name.rpartition(".")[0], self.entry.fqn)), None)

    @property
    def bad_elsewhere(self) -> tuple[TensorDetails, ...]:
        """The parameters, of any module, that held NaN or Inf, or next to the limit of float32, in this forward;
        without masks, where -Inf is meant."""
        return tuple(each for each in self._large_weights if (each.is_bad and not each.is_mask) or each.amax >= GARBAGE)

    @property
    def _large_weights(self) -> tuple[TensorDetails, ...]:
        return tuple(each for each in self._listed if each.noun == "weight")

    @property
    def _buffers(self) -> tuple[TensorDetails, ...]:
        return tuple(each for each in self._listed if each.noun == "buffer")

    @property
    def _listed(self) -> tuple[TensorDetails, ...]:
        return tuple((self.context.large_weights if self.context is not None else None) or ())

    def may_be_update(self, weight: TensorDetails) -> bool:
        """Whether its last gradient was so large that an update by it may have made it so. Adam's are never larger than
        the rate says."""
        if weight.is_bad or keeps_squares(self.evidence):
            return False
        entries = self.view.entries
        rows = [
            at for at, each in enumerate(entries) if each.fqn == weight.name and each.kind in ("grad", "reduced_grad")
        ]
        known = [last[1] for each in rows if (last := self.last_before(each)) is not None]
        return any(each >= UPDATE_PART * weight.amax for each in known)

    @property
    def bad_weights(self) -> tuple[TensorDetails, ...]:
        """Those of them that held NaN or Inf."""
        return tuple(each for each in self.weights or () if each.is_bad)

    @property
    def bad_inputs(self) -> tuple[TensorDetails, ...]:
        """The same of the inputs."""
        return tuple(each for each in self.inputs or () if each.is_bad)

    @property
    def bad_model_inputs(self) -> tuple[TensorDetails, ...]:
        """The same of the model's; without masks, where -Inf is meant."""
        return tuple(each for each in self.model_inputs or () if each.is_bad and not each.is_mask)

    @property
    def large_input(self) -> TensorDetails | None:
        """The finite input with the least headroom."""
        finite = [each for each in self.inputs or () if not each.is_bad and each.amax > 0]
        return min(finite, key=lambda each: headroom(each.dtype, each.amax), default=None)

    @property
    def has_no_softmax(self) -> bool:
        """Whether it is of a class that takes values, and neither scores nor a mask."""
        return self.entry.module in LINEAR or bool(_NORM.search(self.entry.module))

    @cached_property
    def mask_before(self) -> int | None:
        """The output right before it that held Inf by design, where whole rows of it are NaN: what a softmax makes of a
        row that is masked whole. None where it is not so.
        """
        rows, shape = self.evidence.run.inf_by_design, self.entry.shape
        if self.has_no_softmax and self.inputs is not None and not self.bad_inputs:
            return None  # what it was given was finite, so that it made the NaN itself
        if not len(rows) or not self.bad.nan_count or not shape or self.bad.nan_count % max(shape[-1], 1):
            return None
        view, position = self.view, self.evidence.tensors.position
        is_before = view.is_of("output") & (position < position[self.bad.tensor])
        is_mine = np.array([_is_around(each.fqn, self.entry.fqn) for each in view.entries])
        earlier = view.in_order(is_before & ~is_mine)
        masks = rows[view.masked(rows) > 0]
        return earlier[-1] if earlier and earlier[-1] in masks else None

    @property
    def empty_rows(self) -> int:
        """Whole rows that are -Inf, and nothing else, though its inputs were finite: as the maximum over a row that is
        masked whole; or NaN, as its mean. 0 where it is not so.
        """
        width = self.entry.shape[-1] if self.entry.shape else 0
        count = self.bad.nan_count or self.bad.inf_count
        if self.context is None or self.inputs is None or self.bad_inputs or width < LEAST_WIDTH or count % width:
            return 0
        if self.bad.nan_count and self.bad.inf_count:
            return 0
        is_negative = self.bad.inf_count > 0 and self.context.has_positive_inf is False
        is_part = count < self.bad.numel
        return count // width if is_part and (is_negative or bool(self.bad.nan_count and self.given_mask)) else 0

    @property
    def given_mask(self) -> MaskDetails | None:
        """The input that has as many rows without a choice as rows of its output are bad."""
        width = max(self.entry.shape[-1] if self.entry.shape else 0, 1)
        rows = (self.bad.nan_count or self.bad.inf_count) / width
        masks = self.context.masks if self.context is not None and not self.context.masks_of else ()
        return next((each for each in masks if rows and rows in (each.zero_rows, each.one_rows)), None)

    @cached_property
    def previous(self) -> int | None:
        """The output that comes before it in call order and is finite."""
        earlier = self.view.before(self.bad.tensor, "output")
        return earlier[-1] if earlier else None

    def maker(self, details: TensorDetails) -> int | None:
        """The output, the first in call order, whose largest magnitude is that of a later module's input."""
        outputs = self.view.before(self.bad.tensor, "output")
        return next((each for each in outputs if details.amax > 0 and self.view.amax(each) == details.amax), None)

    @cached_property
    def growth(self) -> Growth | None:
        """Of the tensor itself in the steps before."""
        return self.growth_of(self.bad.tensor)

    def growth_of(self, tensor: int) -> Growth | None:
        """How a tensor grew until the step before."""
        return growing(self._steps, self._bits[tensor])

    @cached_property
    def gradient_growth(self) -> Growth | None:
        """How the largest gradient of a parameter grew, the loss scale taken out."""
        return self._growth_of_kind("grad")

    @cached_property
    def output_growth(self) -> Growth | None:
        """How the largest output grew."""
        return self._growth_of_kind("output")

    @property
    def largest_output_before(self) -> float | None:
        """Largest magnitude of any output in the last step before; None where none was observed."""
        rows = np.isin(self.evidence.tensors.kind_rows, rows_of(("output",)))
        largest = np.fmax.reduce(self._bits[rows], axis=0, initial=-np.inf)
        known = largest[np.isfinite(largest)]
        return float(2.0 ** known[-1]) if len(known) else None

    def amax_before(self, tensor: int) -> float | None:
        """Largest magnitude of a tensor in the last step before in which it was observed and finite."""
        last = self.last_before(tensor)
        return None if last is None else last[1]

    def last_before(self, tensor: int) -> tuple[int, float] | None:
        """That step and that magnitude, which may be 0."""
        known = np.flatnonzero(np.isfinite(self._amax[tensor]))
        return (int(self._steps[known[-1]]), float(self._amax[tensor][known[-1]])) if len(known) else None

    def had_zero_gradient(self, parameter: str) -> bool:
        """Whether a parameter whose gradient is not recorded, as where autograd.grad() gives it, got 0 in the step
        before: all that came back to the outputs of its module was. Of one rank: others add theirs."""
        if len(self.evidence.ranks) != 1 or self._is_gradient_recorded(parameter):
            return False
        entries, before, module = self.view.entries, self.bad.step - 1, parameter.rpartition(".")[0]
        of_outputs = [at for at, each in enumerate(entries) if (each.fqn, each.kind) == (module, "grad_output")]
        return bool(of_outputs) and all(self.last_before(at) == (before, 0.0) for at in of_outputs)

    def _is_gradient_recorded(self, parameter: str) -> bool:
        return any(each.fqn == parameter and each.kind in ("grad", "reduced_grad") for each in self.view.entries)

    def is_first_step(self) -> bool:
        """Whether nothing was recorded of this rank's process before."""
        return self.bad.step == self.process_start or not np.isfinite(self._bits).any()

    @cached_property
    def process_start(self) -> int:
        """First step of the process whose record of this step is shown."""
        return int(self._process.first_step)

    @property
    def is_loaded(self) -> bool:
        """Whether it was so at the first step of a process that went on from another one's."""
        return self.is_restart and self.bad.step == self.process_start

    @property
    def is_restart(self) -> bool:
        """Whether that process went on from another one's, as from a checkpoint."""
        return self._process.ordinal > 1 or self.process_start > 0

    @cached_property
    def _process(self) -> Any:
        """Its row of `streams`."""
        rows = self.evidence.run.ranks[self.bad.rank].visible()
        return next(row for row, _ in rows if row.first_step <= self.bad.step)

    @cached_property
    def _steps(self) -> np.ndarray:
        return self.evidence.window((), HISTORY, self.bad.step, self.bad.rank).steps

    @property
    def bits_before(self) -> np.ndarray:
        """(t, n) log2 of the largest magnitudes in the `HISTORY` steps before, NaN where there is none."""
        return self._bits

    @cached_property
    def _bits(self) -> np.ndarray:
        """(t, n) log2 of the largest magnitudes, NaN where there is none or it is 0."""
        with np.errstate(divide="ignore"):
            return np.where(self._amax > 0, np.log2(self._amax), np.nan)

    @cached_property
    def _amax(self) -> np.ndarray:
        """(t, n) the largest magnitudes, NaN where there is none."""
        wanted = ("call_count", "amax", "nan_count", "inf_count")
        columns = self.evidence.window(wanted, HISTORY, self.bad.step, self.bad.rank).columns
        is_clean = (columns["call_count"] > 0) & (columns["nan_count"] + columns["inf_count"] == 0)
        return np.where(is_clean, columns["amax"], np.nan)

    def _growth_of_kind(self, kind: str) -> Growth | None:
        rows = np.isin(self.evidence.tensors.kind_rows, rows_of((kind,)))
        if not rows.any() or not len(self._steps):
            return None
        bits = np.where(np.isnan(self._bits[rows]), -np.inf, self._bits[rows]).max(axis=0)
        if kind == "grad" and self.evidence.is_loss_scaled:
            start, stop = int(self._steps[0]), int(self._steps[-1]) + 1
            with np.errstate(invalid="ignore", divide="ignore"):
                bits = bits - np.log2(self.evidence.series("loss_scale", start, stop, self.bad.rank))
        return growing(self._steps, bits)

    def _rows(self, fqn: str, kind: str) -> tuple[TensorDetails, ...] | None:
        rows = self.view.find(fqn, kind)
        return tuple(self._details(self.view, each, f"input[{self.view.entries[each].index}]") for each in rows) or None

    def _weights_of(self, view: StepView) -> tuple[TensorDetails, ...] | None:
        prefix = f"{self.entry.fqn}." if self.entry.fqn else ""
        rows = [each for each in view.in_order(view.is_of("weight")) if view.entries[each].fqn.startswith(prefix)]
        return tuple(self._details(view, each, view.entries[each].fqn) for each in rows) or None

    @property
    def step_of_finite_weights(self) -> int | None:
        """A later step before which all weights of this rank were examined, and finite: so they had been until then.

        None where they were not, or nobody looked.
        """
        stop = min(self.bad.step + 2 * HISTORY, self.evidence.stop)
        is_finite = self.evidence.series("weights_finite", self.bad.step + 1, stop, self.bad.rank)
        known = np.flatnonzero(np.isfinite(is_finite))
        return self.bad.step + 1 + int(known[0]) if len(known) and is_finite[known[0]] > 0 else None

    def _details(self, view: StepView, tensor: int, name: str) -> TensorDetails:
        entry, columns = view.entries[tensor], view.columns
        numel, nan_count, inf_count = (int(columns[each][tensor]) for each in ("numel", "nan_count", "inf_count"))
        return TensorDetails(name, entry.dtype, numel, view.amax(tensor), nan_count, inf_count)
