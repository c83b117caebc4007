"""Causes of a first NaN or Inf that compete: what speaks for and against each, and the test that would decide.

The best one is named, with how sure that is; advice goes by it, so that none is given against its own evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec import UNSET

from rangewatch.wire.events import GpuEvent, LoadedBatch, Nonfinite, SavedValue, TensorDetails
from rangewatch_server.core.text import ranks_text
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.rules.activations import initial_gain
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.loss.series import RATES, loss_name
from rangewatch_server.rules.nonfinite import operations, overflowed_gradient
from rangewatch_server.rules.nonfinite.case import HISTORY, Case, StepView
from rangewatch_server.rules.nonfinite.forward import LARGE_BITS, NEAR_LIMIT_BITS
from rangewatch_server.rules.nonfinite.optimizer import (
    DIVIDES_BY_NO_NORM,
    OF_GRADIENTS,
    found_inf,
    has_updated,
    made_of_gradients,
    optimizer_of,
)
from rangewatch_server.rules.nonfinite.origin import Origin
from rangewatch_server.rules.nonfinite.search import bad_ranks
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, several
from rangewatch_server.rules.optimizers import newest_optimizers
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.trend import Growth

SHOWN, LIKELY = 0.85, 0.6
"""Weights from which a cause is shown by what was recorded, or likely; below it is possible."""

UNKNOWN, NEAR = 0.58, 0.01
"""The weight of each of two causes of which nothing says which it is, and by how much they may differ."""

BLOWN = 8.0
"""How many times its usual value a loss must be that had blown up before."""

BLOWN_BITS = 10.0
"""Bits by which the outputs of most modules must be above their usual height, where no loss is known."""

DATA_BITS = 10.0
"""Bits by which a first output must jump with an input that is as much larger than what a batch usually is."""

QUERIES, PLACES = 3, 3
"""Linear layers before what an attention gives its output to, and dimensions that they have at the least: layers of as
many units in a row, with activations that are called, give matrices."""

AT_FIRST = 16
"""Steps of a run within which what breaks is the doing of how it begins."""

TARGET_TIMES, FEWEST_LOSSES, USUAL_BITS = 100.0, 8, 1.0
"""How many times all before it, of so many at least, a loss must be whose targets are that large; and bits within which
outputs are as usual."""

JUMP_BITS = 20.0
"""Bits by which a first output must jump within one step to speak for the batch, where no input was recorded."""

LARGE_INPUT = 1e4
"""Magnitude of an input from which it may be the cause: features are scaled, pictures are below 256."""

GROWN_BITS = 2.0
"""Bits by which outputs must have grown before a loss that is not finite, to explain it: less is usual."""

_ATTENTION = re.compile("attn|attention|softmax|scores", re.IGNORECASE)

DEFAULTS = {
    "data": ("data", 0.95), "weight": ("weight", 0.8), "optimizer": ("optimizer", 0.7),
    "forward": ("forward_arithmetic", 0.7), "between": ("forward_arithmetic", 0.7),
    "loss": ("forward_arithmetic", 0.65), "backward": ("backward_arithmetic", 0.65),
    "reduction": ("communication", 0.6), "sent": ("communication", 0.75),
}  # fmt: skip
"""What an origin says of the cause by itself, and with what weight."""

NAMES = {
    "mask": "a mask", "data": "the batch", "learning_rate": "too large updates (the learning rate)",
    "weight": "a weight", "optimizer": "the optimizer",
    "clip": "what stands between backward and optimizer.step(), as clipping does",
    "forward_arithmetic": "arithmetic of the forward", "backward_arithmetic": "arithmetic of the backward",
    "communication": "communication between ranks", "hardware": "the hardware",
    "loss_scale": "an update past the loss scaler",
}  # fmt: skip

TESTS = {
    "mask": "Run this batch without the mask: if the NaN is gone, the mask made it.",
    "data": "Run the step before with this batch, and this step with another: see whether the NaN follows the batch.",
    "learning_rate": "Go back to a checkpoint from before it and train on with a tenth of the learning rate.",
    "weight": "Check the parameters right after the update, and right before the next forward.",
    "optimizer": "Look at the parameters and the optimizer's state right after optimizer.step().",
    "clip": "Print the norm that is clipped by, and whether gradients are finite before and after it.",
    "forward_arithmetic": "Have each operation of it recorded for this batch: the first that gives NaN or Inf is it.",
    "backward_arithmetic": "Run this step with torch.autograd.set_detect_anomaly(True): it names the operation.",
    "hardware": "Run the same steps from a checkpoint on another GPU or host, and test this one (dcgmi diag -r 3, "
    "memtest): if it comes again elsewhere, it is not the hardware.",
    "communication": "Compare the gradient on each rank before and after the reduction.",
    "loss_scale": "Look whether the loop calls scaler.step(optimizer), and nothing else that steps it.",
}  # fmt: skip


BY_TERM = "Evaluate the loss of this batch term by term, each per row: the first that is NaN or Inf is it."
"""What would decide, of a loss."""

NOT_OF_UPDATES = ("masked", "eps", "zero", "state", "written", "flipped", "given", "outside", "made", "loaded")
"""Causes of an origin that no size of updates leads to."""


class Candidate(msgspec.Struct, frozen=True):
    """A class of cause, its weight from 0 to 1, and sentences for and against it. `where`: the module that it is in,
    where that is not the one of the first NaN or Inf.
    """

    cause: str
    weight: float
    supports: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    where: str = ""

    @property
    def sureness(self) -> str:
        """In a word."""
        return "shown" if self.weight >= SHOWN else "likely" if self.weight >= LIKELY else "possible"


def candidates(case: Case, origin: Origin, *, rate_rose: bool, jumped: Candidate | None = None) -> list[Candidate]:
    """All that something speaks for, the best first. `jumped`: of a loss that had jumped right before, in place of
    what a loss that had blown up says by itself."""
    everything = [_by_origin(case, origin), *([jumped] if jumped is not None else [])]
    if rate_rose:
        everything.append(Candidate("learning_rate", 0.9, ("The learning rate had risen right before.",)))
    if origin.kind in ("forward", "between", "backward", "loss", "optimizer", "weight") and not case.is_first_step():
        everything += _data(case, origin)
        is_of_batch = any(each.cause == "data" for each in everything)
        if origin.cause not in NOT_OF_UPDATES and not is_of_batch and jumped is None:
            everything += _too_large_updates(case)
    if origin.kind in ("between", "forward") and origin.cause in ("", "masked"):
        everything += _mask(case, origin)
    if origin.kind == "forward" and origin.cause in ("", "range"):
        everything += _filled(case)
    if origin.kind in ("between", "forward") and origin.cause == "":
        everything += _made_in_forward(case, origin)
    if origin.kind == "forward":
        everything += _swollen(case)
    if origin.kind in ("loss", "backward"):
        everything += _masked_outputs(case)
        everything += _operation(case, origin)
    if origin.kind == "backward":
        everything += _overflowed(case)
    everything += _hardware(case, origin)
    if origin.kind == "reduction" and len(case.evidence.ranks) == 1:
        everything.append(
            Candidate("clip", 0.9, ("One rank reduces with nobody: what is left is unscaling and clipping.",))
        )
    if origin.kind == "optimizer" and origin.cause in ("state", "zero"):
        everything += _clip(case, origin)
    if origin.kind in ("optimizer", "weight"):
        everything += _scaler_passed_over(case)
    best: dict[str, Candidate] = {}
    for each in everything:
        if each.cause not in best or best[each.cause].weight < each.weight:
            best[each.cause] = each
    return sorted(best.values(), key=lambda each: (-each.weight, each.cause))


def _by_origin(case: Case, origin: Origin) -> Candidate:
    if origin.cause == "masked":
        return Candidate("mask", 0.85, ("Rows that are masked whole have no softmax.",))
    if origin.kind == "data":
        return _of_data(origin)
    cause, weight = DEFAULTS[origin.kind]
    if origin.cause == "given":
        weight = UNKNOWN - 0.1  # `_operation` says what speaks for which
    if origin.cause == "flipped":
        return Candidate(cause, 0.9, ("A single element of it had jumped, and no update moves one alone so far.",))
    if origin.cause in ("range", "zero", "negative", "eps"):
        weight = max(weight, 0.8 if origin.kind == "sent" else 0.75)
    if origin.kind == "backward" and is_near_limit(case):
        return Candidate(cause, 0.8, ("In the step before, the gradient was just below the limit of its dtype.",))
    return Candidate(cause, weight, (_seen(case, origin),))


NOT_RECORDED = "Whether it came with the data, or code without gradient made it of them, is not recorded."


def _of_data(origin: Origin) -> Candidate:
    if origin.cause == "made":
        text = "What the loader gave was finite, and what the model was given was not: code between the two made it."
        return Candidate("forward_arithmetic", 0.86, (text,), (ELSEWHERE,))
    if origin.cause == "loaded":
        return Candidate("data", 0.95, ("What the loader gave was not finite.",))
    return Candidate("data", 0.84, (_SEEN["data"],), (NOT_RECORDED,))


ELSEWHERE = "Of what came from elsewhere than the loader, as from a file or an environment, nothing is known."


def _seen(case: Case, origin: Origin) -> str:
    """What speaks for an origin by itself."""
    if origin.kind == "forward":
        is_known = case.inputs is not None and (case.weights is not None or case.step_of_finite_weights is not None)
        of = "Its inputs and its weights were finite" if is_known else "All that is known before it was finite"
        return f"{of}, and its output was not."
    if origin.kind == "reduction":
        return "Before it nothing in this step was NaN or Inf."
    if origin.kind == "weight" and case.bad_buffer is not None and not case.bad_buffer.is_bad:
        return f"The buffer {origin.where} held values that only memory holds to which nobody wrote."
    return _SEEN[origin.kind].format(where=origin.where, noun="buffer" if origin.cause == "buffer" else "weight")


_SEEN = {
    "data": "What the model was given was not finite.",
    "sent": "What this rank was given was not finite, and what rank {where} put out was.",
    "weight": "The {noun} {where} was not finite before anything was computed of it.",
    "optimizer": "Between one forward and the next {where} or what the optimizer keeps of it turned NaN or Inf.",
    "between": "A module was given NaN or Inf, and no output before it held one.",
    "loss": "The outputs were finite, and the loss that was computed of them was not.",
    "backward": "The forward was finite, and a gradient was not.",
}


def deciding_test(best: Candidate, case: Case, origin: Origin) -> str:
    """What would decide whether it is this cause."""
    if best.cause == "forward_arithmetic" and origin.cause == "range":
        return "Run this batch alone in float64: if it is finite there, the range was too small."
    if origin.kind == "sent" and best.cause == "communication":
        return (
            f"Compare what rank {origin.where} sends in this step with what this rank receives: largest value, dtype."
        )
    if origin.kind == "data" and origin.cause == "":
        return (
            "Check the batch for NaN and Inf as the loader or the file gives it, before anything is computed of it: if "
            "it is finite there, code between that and the model makes it."
        )
    if origin.cause == "buffer":
        return f"Print {origin.where} right before this forward, and right after what loads or moves the model."
    if origin.cause == "made":
        return "Check for NaN and Inf after each operation between the loader and the model, of this step's batch."
    if origin.kind == "loss" and (best.cause == "data" or origin.cause in ("given", "outside")):
        return "Check for NaN and Inf what the loss of this batch is given besides outputs, and what that is made of."
    if best.cause == "forward_arithmetic" and origin.kind == "loss":
        return BY_TERM
    if best.cause == "clip" and is_of_elements(best):
        return f"Look for NaN and Inf in the gradient of {origin.where} after each operation behind the backward."
    return TESTS[best.cause]


def _mask(case: Case, origin: Origin) -> Iterator[Candidate]:
    """Whole rows are NaN behind the code of an attention, of values whose products are far from the limit; or -Inf, as
    of a pool whose rows are masked whole."""
    yield from _masked_pool(case, origin)
    shape, previous = case.entry.shape, case.previous
    if not is_of_attention(case, origin) or previous is None or not case.bad.nan_count or not shape:
        return
    left = headroom(case.entry.dtype, case.view.amax(previous)) - headroom(case.entry.dtype, 1.0) / 2
    is_by_rows = case.bad.nan_count % max(shape[-1], 1) == 0 and left > NEAR_LIMIT_BITS
    if is_by_rows and (known := _mask_around(case)) is not None:
        yield known
    elif is_by_rows and case.bad.nan_count < case.bad.numel:
        text = (
            f"Whole rows of {shape[-1]} elements are NaN and others are not, behind an attention whose values were "
            "finite and small: a softmax gives that of a row that is masked whole."
        )
        yield Candidate("mask", 0.78, (text,), ("The mask itself was not recorded.",))


def _mask_around(case: Case) -> Candidate | None:
    """The module around was given a mask of which as large a part has nothing to choose from as rows are NaN."""
    context, count, numel = case.context, case.bad.nan_count, case.bad.numel
    if context is None or not context.masks_of:
        return None
    for mask in context.masks:
        for empty, value in ((mask.zero_rows, "0"), (mask.one_rows, "1")):
            if empty and empty * numel == count * mask.rows:
                text = (
                    f"{count // max(case.entry.shape[-1], 1)} rows are NaN, behind an attention whose values were "
                    f"finite and small; and {empty} of the {mask.rows} rows of {mask.name} of {context.masks_of}, a "
                    f"mask, are {value} in all elements: where that means that nothing may be attended to, the softmax "
                    "of such a row is NaN. A mask whose meaning is inverted gives that for rows without padding."
                )
                return Candidate("mask", 0.9 if empty < mask.rows else 0.84, (text,))
    return None


def _masked_pool(case: Case, origin: Origin) -> Iterator[Candidate]:
    rows = case.empty_rows
    if origin.kind != "forward" or origin.cause or not rows:
        return
    mask, width = case.given_mask, case.entry.shape[-1]
    what = "NaN" if case.bad.nan_count else "-Inf"
    text = f"{rows} whole row{'s' if rows > 1 else ''} of {width} elements are {what} and others finite"
    if mask is not None:
        which = "0" if mask.zero_rows == rows else "1"
        text += (
            f", and as many of the {mask.rows} rows of its {mask.name}, a mask, are {which} in all elements: over "
            "such a "
            "row there is no maximum and no mean."
        )
        yield Candidate("mask", 0.92, (text,))
    else:
        text += ": that is the maximum over what is masked whole."
        # What has as many dimensions as it was given is no maximum: a log of rows of 0 looks alike.
        weight = 0.66 if _is_given_as_many_dimensions(case) else 0.8
        yield Candidate(
            "mask", weight, (text,), ("The mask itself was not recorded; a log of whole rows of 0 looks alike.",)
        )


def filled_input(case: Case) -> TensorDetails | None:
    """What it is given that holds the largest magnitude of its dtype, as where a mask fills with the lowest number in
    place of -inf. Not in float16: 65,504 is reached by values that grow; nor of an attention, whose mask holds it in
    each step."""
    if not case.has_no_softmax:
        return None
    given = (each for each in case.inputs or () if not each.is_bad and each.dtype != "float16")
    return next((each for each in given if each.amax == limits_of(each.dtype).max_finite), None)


def _filled(case: Case) -> Iterator[Candidate]:
    if (filled := filled_input(case)) is not None:
        text = (
            f"What it is given holds the largest magnitude that {filled.dtype} has, exactly: as a mask's filling by "
            "the lowest number leaves it in a row of which all is masked, where the maximum or the sum over it is "
            "taken."
        )
        yield Candidate("mask", 0.86, (text,), ("The mask itself was not recorded.",))


def _is_given_as_many_dimensions(case: Case) -> bool:
    """Whether all that it is given is one floating tensor, of as many dimensions as it gives."""
    if case.inputs is None or len(case.inputs) != 1 or "float" not in case.inputs[0].dtype:
        return False
    shape = case.inputs[0].shape
    return isinstance(shape, tuple) and len(shape) == len(case.entry.shape)


def _made_in_forward(case: Case, origin: Origin) -> Iterator[Candidate]:
    """The graph of the loss goes through the code of the forward, too: which operation of it was bad first."""
    graph = operations.graph_of(case)
    made = None if graph is None else operations.made_by(graph)
    if made is None:
        return
    said = operations.made_text(made)
    if made.name != "result":
        zeros = made.value.zero_count if isinstance(made.value.zero_count, int) else 0
        if origin.kind in ("forward", "between") and zeros and case.bad.nan_count % zeros == 0:
            yield Candidate("forward_arithmetic", 0.84, (f"{said} The NaN are a multiple of them.",))
        return
    if made.op not in operations.SOFTMAX:
        yield Candidate("forward_arithmetic", 0.78, (said,))
    elif _is_product_in_range(case, made.value.dtype) and not (origin.kind == "forward" and _comes_after(case, made)):
        text = f"{said} Of finite numbers it is finite, and of a row that is masked whole it is NaN."
        yield Candidate("mask", 0.86, (text,), ("The mask itself was not recorded.",))


def _comes_after(case: Case, made: SavedValue) -> bool:
    """Whether a softmax is of what the module gave, and held the NaN already: it has as many elements, and spreads NaN
    over their rows."""
    return made.value.numel == math.prod(case.entry.shape) and made.value.nan_count > case.bad.nan_count > 0


def _is_product_in_range(case: Case, dtype: str) -> bool:
    """Whether products of what modules had put out until then are far from the limit, so that no score is Inf itself:
    the softmax of that is NaN, too."""
    view, position = case.view, case.evidence.tensors.position
    is_before = view.is_of("output") & ~view.is_bad & (position < position[case.bad.tensor])
    largest = float(view.columns["amax"][is_before].max(initial=0.0))
    return largest > 0 and headroom(dtype, largest) - headroom(dtype, 1.0) / 2 > NEAR_LIMIT_BITS


AT_LIMIT_BITS = 2.0
"""Bits below float16's limit within which an output is so near that what is computed of it is beyond."""


def _at_limit(case: Case) -> str:
    """A sentence on the output of this step that is so near its dtype's limit; "" where none is."""
    columns, entries = case.view.columns, case.view.entries
    for at in np.flatnonzero(case.view.is_of("output") & ~case.view.is_bad & (columns["amax"] > 0)).tolist():
        dtype, amax = entries[at].dtype, float(columns["amax"][at])
        if dtype == "float16" and headroom(dtype, amax) < AT_LIMIT_BITS:
            name = the(entries[at])
            return f"{name[0].upper()}{name[1:]} was {amax:.4g}, just below the limit of {dtype}."
    return ""


SWOLLEN, BY_FAR = 256.0, 1e3
"""Magnitude of a weight that no layer needs, and how many times what the module gave in the step before the product of
its largest weight and input must be for the weight to be another one than in that step."""


def _swollen(case: Case) -> Iterator[Candidate]:
    """Finite weights of the module that are far too large, and cannot have been so in the step before."""
    before = case.bits_before[case.bad.tensor]
    before = before[np.isfinite(before)]
    if case.is_first_step() or not len(before) or not case.inputs or not case.weights:
        return
    largest = max(case.weights, key=lambda each: 0.0 if each.is_bad else each.amax)
    given, gave = max(each.amax for each in case.inputs), 2.0 ** float(before[-1])
    # What it is given may itself have grown, for which the weight is not to blame.
    was_given = min(given, _before(case, given))
    if largest.is_bad or largest.amax < SWOLLEN or largest.amax * was_given < BY_FAR * gave:
        return
    text = (
        f"The weight {largest.name} was up to {largest.amax:.3g} and what the module was given up to {given:.3g}, "
        f"where the module had given {gave:.3g} at most in the step before: the weight was changed in between, by far "
        "more than a usual update does."
    )
    yield Candidate("weight", 0.85, (text,), where=largest.name)


def _before(case: Case, amax: float) -> float:
    """How large the output that is `amax` at this step was in the step before; Inf where there is none of just that."""
    rows = np.flatnonzero(case.view.is_of("output") & (np.asarray(case.view.columns["amax"]) == amax)).tolist()
    known = [float(bits[-1]) for row in rows if len(bits := case.bits_before[row]) and np.isfinite(bits[-1])]
    return 2.0 ** max(known) if known else float("inf")


MASK_SERIES = ("mask_share", "added_mask_share", "attention_share", "token_share")
"""Of a model that is given masks, or padding."""


def _operation(case: Case, origin: Origin) -> Iterator[Candidate]:
    """What the graph of the loss shows."""
    graph = operations.graph_of(case)
    if graph is None:
        return
    made, came, hidden = operations.made_by(graph), operations.given(graph), operations.hidden_in_forward(case)
    near = _at_limit(case)
    if origin.cause == "operation" and made is not None and made.op in operations.SOFTMAX and near:
        text = f"{near} What the loss computes of it may be Inf, and a softmax of Inf is NaN."
        yield Candidate("forward_arithmetic", 0.88, (text,))
    elif origin.cause == "operation" and made is not None and made.op in operations.SOFTMAX:
        text = operations.of_masked_row(made.op)
        yield Candidate("mask", 0.86, (text,), ("The mask itself was not recorded.",))
    elif origin.cause == "empty":
        text = (
            "In the loss 0 was divided by 0, and the divisor is one number that no gradient goes through, such as a "
            "count of targets, a sum of a mask or of the weights of rows: nothing of this batch counted."
        )
        against = "A running average or a deviation, which may be 0 as well, is no count."
        # A count of what is not masked is of integers; a sum in floating point may be one of weights of rows as well.
        has_mask = any(case.evidence.has_series(name) for name in MASK_SERIES)
        is_counted = has_mask or (made is not None and "int" in made.value.dtype)
        yield Candidate("mask" if is_counted else "data", 0.88, (text,), (against,))
    elif origin.cause == "operation" and made is not None:
        # In float32 an exponential is Inf above 88, which is as a rule where a training has diverged before.
        weight = 0.93 if made.value.dtype in operations.NARROW else 0.87
        name = operations.word(made.op)
        yield Candidate("forward_arithmetic", weight, (f"In the loss {name} was the first that was not finite.",))
    elif origin.cause in ("given", "outside") and came is not None:
        yield from _given(graph.loaded, came, is_whole=origin.cause == "outside")
    elif origin.cause == "loaded":
        against = "A loop may pass over NaN that is in many batches, as that of missing targets."
        yield Candidate("data", 0.75, ("What the loader gave was not finite.",), (against,))
    elif hidden:
        text = (
            f"{operations.word(hidden[0]).capitalize()} is the only operation near it whose gradient can be so, and "
            "where that is so its forward is not finite either; what comes after it dropped that."
        )
        yield Candidate("forward_arithmetic", 0.7, (text,), ("The values of that forward were not recorded.",))
    elif behind := operations.behind_where(case):
        names = several([operations.word(op) for op in behind], 4)
        text = (
            f"There is a torch.where near {names}: it drops the value of a branch that is Inf or NaN, and multiplies "
            "its gradient by 0, which of Inf is NaN."
        )
        yield Candidate("backward_arithmetic", 0.8, (text,), ("The values of that forward were not recorded.",))


def _given(loaded: LoadedBatch | None, came: SavedValue, *, is_whole: bool) -> Iterator[Candidate]:
    """Of a loss whose operand from outside of the graph was not finite. A target is as a rule of the data; what outputs
    are multiplied by, as advantages and weights of rows, is as a rule computed."""
    text = f"What the loss was given for {operations.word(came.op)} was not finite, and outputs were."
    if loaded is not None and loaded.bad_count:
        yield Candidate("data", 0.92 if loaded.is_given else 0.8, (text, "Nor was what the loader gave."))
    elif loaded is not None:
        made = "What the loader gave was finite: code without gradient made it."
        yield Candidate("forward_arithmetic", 0.84, (text, made), (ELSEWHERE,))
    elif is_whole:
        yield Candidate("forward_arithmetic", 0.84, (text,), (NOT_RECORDED,))
        yield Candidate("data", LIKELY, (text,))
    elif operations.is_target(came):
        yield Candidate("data", 0.75, (text,), (NOT_RECORDED,))
        yield Candidate("forward_arithmetic", LIKELY, (text,))
    else:
        # A row or two: a gap in the data is as likely as a division that fails in them alone, and is looked for first.
        first, second = ("data", "forward_arithmetic") if _is_of_few(came) else ("forward_arithmetic", "data")
        yield Candidate(first, UNKNOWN, (text,), (NOT_RECORDED,))
        yield Candidate(second, UNKNOWN - NEAR, (text,), (NOT_RECORDED,))


FEW_ROWS = 1 / 16
"""Part of the elements that a few bad rows are at most."""


def _is_of_few(came: SavedValue) -> bool:
    return 0 < came.value.nan_count + came.value.inf_count <= max(1.0, FEW_ROWS * came.value.numel)


def _masked_outputs(case: Case) -> Iterator[Candidate]:
    """The gradient is NaN by whole rows, and its output holds Inf by design: a row was masked whole for the loss."""
    rows, shape, view = case.evidence.run.inf_by_design, case.entry.shape, case.view
    own = [at for at in view.find(case.entry.fqn, "output") if at in rows] if case.entry.kind == "grad_output" else []
    if not own or not shape or not case.bad.nan_count or case.bad.nan_count == case.bad.numel:
        return
    chosen = np.array(own[:1])
    if case.bad.nan_count % max(shape[-1], 1) or not view.masked(chosen)[0] > 0:
        return
    name, share, most = the(case.view.entries[own[0]]), float(view.masked(chosen)[0]), view.most_masked(chosen)[0]
    text = (
        f"{name[0].upper()}{name[1:]} holds Inf by design, and {case.bad.nan_count // shape[-1]} whole rows of "
        f"{shape[-1]} elements of its gradient are NaN: what a softmax gives of a row that is masked whole."
    )
    more = (
        f" More was masked in this step than before: {share:.3%} of its elements, where {most:.3%} had been the most."
    )
    yield Candidate("mask", 0.86 if share > most else 0.78, (text + (more if share > most else ""),))


def _hardware(case: Case, origin: Origin) -> Iterator[Candidate]:
    """A single element that jumped, an uncorrectable memory error of its card, or one rank alone without a reason."""
    flipped, rank, step = case.flipped, case.bad.rank, case.bad.step
    if (xid := _memory_error(case)) is not None:
        text = f"The card of rank {rank} reported Xid {xid[0]}, an error of its memory, at step {xid[1]}."
        yield Candidate("hardware", 0.86, (text,))
    elif flipped is not None and not case.is_first_step() and (not flipped.is_bad or origin.where == flipped.name):
        value = "not finite" if flipped.is_bad else f"{flipped.amax:.3g}"
        text = (
            f"One element of {flipped.name} alone was {value}, where all others of it were {flipped.rest_amax:.3g} at "
            "most: a bit of an exponent that flips in memory looks like that."
        )
        yield Candidate("hardware", 0.5, (text,), ("Code that writes to one element does, too.",))
    elif origin.kind == "forward" and not origin.cause and len(case.evidence.ranks) > 1:
        is_finite = case.inputs is not None and case.weights is not None and not case.bad_inputs
        if is_finite and bad_ranks(case.evidence, step) == (rank,):
            text = f"Rank {rank} alone held it, of inputs and weights that were finite and far from the limit."
            yield Candidate("hardware", 0.4, (text,), ("Each rank has a batch of its own.",))


def _memory_error(case: Case) -> tuple[int, int] | None:
    """Number and step of an Xid on the memory of the rank's card, right before."""
    near = [
        (known.xid, each.step)
        for each in case.evidence.events("xid")
        if each.rank == case.bad.rank
        and 0 <= case.bad.step - each.step <= HISTORY
        and (known := each.read(GpuEvent)) is not None
        and known.xid is not None
    ]
    return next((each for each in near if each[0] in MEMORY_ERRORS), None)


MEMORY_ERRORS = frozenset({48, 63, 64, 92, 94, 95})
"""Xids of NVIDIA's list that are ECC errors and what is done about them."""


def is_of_attention(case: Case, origin: Origin) -> bool:
    """Whether code of an attention made it, by the names of the module and its class, or by what comes right before:
    three linear layers that give as many elements as it is given, queries, keys and values."""
    if origin.kind == "between" and _comes_after_queries(case):
        return True
    classes = [each.module for each in case.view.entries if each.kind == "output" and each.fqn == origin.where]
    return any(_ATTENTION.search(each) for each in (origin.where, case.entry.module, *classes))


def _comes_after_queries(case: Case) -> bool:
    entries, given = case.view.entries, next(iter(case.bad_inputs), None)
    before = [entries[each] for each in case.view.before(case.bad.tensor, "output")[-QUERIES:]]
    is_alike = len(before) == QUERIES and len({each.shape for each in before}) == 1
    is_alike = is_alike and len(before[0].shape) >= PLACES
    is_linear = all(each.module == "Linear" for each in (*before, case.entry))
    return is_alike and is_linear and given is not None and given.numel == math.prod(before[0].shape)


def is_near_limit(case: Case) -> bool:
    """Whether the bad tensor was just below its dtype's limit in the step before."""
    before = case.amax_before(case.bad.tensor)
    return before is not None and headroom(case.entry.dtype, before) < NEAR_LIMIT_BITS


def reaches_limit(case: Case, growth: Growth | None) -> bool:
    """Whether growth like that before may have led to the limit: a little of it far below explains nothing."""
    before = case.amax_before(case.bad.tensor)
    left = np.inf if before is None else headroom(case.entry.dtype, before)
    return growth is not None and (before is None or left < max(LARGE_BITS, growth.bits))


def is_of_magnitude(case: Case, origin: Origin, best: Candidate) -> bool:
    """Whether values were too large before there was NaN or Inf: gradients that explode may lead to that."""
    if best.cause not in ("learning_rate", "optimizer", "forward_arithmetic", "backward_arithmetic"):
        return False
    grown = any(reaches_limit(case, each) for each in (case.growth, case.gradient_growth))
    is_of_range = best.cause == "learning_rate" or origin.cause in ("range", "growth")
    return is_of_range or grown or is_near_limit(case) or (origin.kind == "loss" and outputs_reach_limit(case))


def outputs_reach_limit(case: Case) -> bool:
    """Whether outputs grew to where the exponential or the square of one is beyond the limit, as losses take them."""
    growth, largest = case.output_growth, case.largest_output_before
    if growth is None or largest is None or growth.bits < GROWN_BITS:
        return False
    limit_bits = headroom(case.entry.dtype, 1.0)
    return bool(largest >= limit_bits * np.log(2) / 2 or limit_bits / 2 - np.log2(largest) < LARGE_BITS)


def _too_large_updates(case: Case) -> Iterator[Candidate]:
    """The weights moved far within a few steps: outputs or the loss blew up and no input did."""
    blown = loss_ratio(case)
    if (large := initially_large(case)) is not None:
        fqn, factor = large
        text = (
            f"The output of {fqn} has been {factor:.3g} times as large as what comes before it since the first step, "
            "and others have not: its weights are as they were initialised, or loaded, and updates of such a network "
            "are far too large at any rate."
        )
        yield Candidate("weight", 0.89, (text,), ("Code before it may make what it is given so large.",))
    if blown is not None and blown[0] >= BLOWN:
        yield Candidate("learning_rate", 0.88, (blown_text(*blown[1:]),), _against_rate(case))
    bits = output_rise(case)
    if bits is not None and bits >= BLOWN_BITS and (given := _given_rise(case)) is not None and given >= bits / 2:
        text = (
            f"What the model is given in this step is {2.0**given:.3g} times as large as in any before, by a sample of "
            f"it, and the outputs before the first NaN or Inf are {2.0**bits:.3g} times as large as usual."
        )
        yield Candidate("data", 0.8, (text,))
    elif bits is not None and bits >= BLOWN_BITS:
        text = f"The outputs before it were {2.0**bits:.3g} times as large as usual: the weights had moved far."
        if case.model_inputs is None:  # a batch with huge values looks alike
            unknown = "What the model was given was not recorded: a batch of huge values looks the same."
            yield Candidate("learning_rate", 0.72, (text,), (unknown, *_against_rate(case)))
            yield Candidate("data", LIKELY, ("Outputs jumped within one step.",))
        else:
            yield Candidate("learning_rate", 0.8, (text,), _against_rate(case))


def initially_large(case: Case) -> tuple[str, float] | None:
    """The layer, and how many times as large as what comes before it its output has been since the first step, of a run
    that was broken within its first steps."""
    if case.bad.step - case.evidence.start > AT_FIRST:
        return None
    high, _, _ = initial_gain.far(case.evidence)
    return (case.view.entries[high[0].tensor].fqn, high[0].factor) if high else None


def _against_rate(case: Case) -> tuple[str, ...]:
    start, stop = max(case.evidence.start, case.bad.step - HISTORY), case.bad.step + 1
    is_known = any(np.isfinite(case.evidence.series(name, start, stop)).any() for name in RATES)
    return () if is_known else ("The learning rate itself is not known.",)


def loss_ratio(case: Case) -> tuple[float, float, float] | None:
    """How many times its usual value the last finite loss was, that loss, and the usual value; None: not known."""
    name = loss_name(case.evidence)
    if name is None:
        return None
    return ratio_of(case.evidence, name, case.bad.step, case.bad.rank)


def ratio_of(evidence: Evidence, name: str, step: int, rank: int) -> tuple[float, float, float] | None:
    """`loss_ratio` of the series `name` of a rank, up to `step`."""
    start = max(evidence.start, step - HISTORY)
    values = evidence.series(name, start, min(step + 1, evidence.stop), rank)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    before, last = values[: max(1, len(values) // 2)], float(values[-1])
    usual = float(np.median(np.abs(before)))
    if not usual > 0:
        return None
    # What is minimised has not blown up where it fell below 0, as the logarithm of a density does.
    has_fallen = last < 0 and last <= np.median(before)
    return (min(1.0, abs(last) / usual) if has_fallen else abs(last) / usual), last, usual


def blown_text(last: float, usual: float) -> str:
    """Of a loss that had blown up before the step that is judged."""
    return f"The loss had blown up before: {last:.3g} where {usual:.3g} had been usual."


FIRST_BITS = 20.0
"""Bits by which outputs must have risen with the first update of all: of one step it is not known what is usual."""


def output_rise(case: Case) -> float | None:
    """Median of the bits by which finite outputs before the bad tensor are above their usual height; None: not known.

    Usual is what they were in the first half of the steps before.
    """
    position, columns = case.evidence.tensors.position, case.view.columns
    is_finite = case.view.is_of("output") & ~case.view.is_bad & (columns["amax"] > 0)
    is_finite &= ~is_repeated(case)
    rows = np.flatnonzero(is_finite & (position < position[case.bad.tensor]))
    history = case.bits_before[rows]
    if not len(rows) or not history.shape[1]:
        return None
    usual = [row[np.isfinite(row)] for row in history[:, : max(1, history.shape[1] // 2)]]
    now = np.log2(columns["amax"][rows])
    rises = [bits - float(np.median(row)) for bits, row in zip(now, usual, strict=True) if len(row)]
    rise = float(np.median(rises)) if rises else None
    if rise is not None and history.shape[1] < 2 and rise < FIRST_BITS:
        return None
    return rise


def jumped_alone(case: Case) -> bool:
    """Whether the loss of this step was finite and far above all before it while each output was as usual: neither the
    weights nor what the model was given made it so."""
    name, step, rank = loss_name(case.evidence), case.bad.step, case.bad.rank
    if name is None:
        return False
    values = case.evidence.series(name, max(case.evidence.start, step - HISTORY), step + 1, rank)
    before = np.abs(values[:-1][np.isfinite(values[:-1])])
    if len(before) < FEWEST_LOSSES or not np.isfinite(values[-1]) or values[-1] < TARGET_TIMES * before.max():
        return False
    outputs = np.flatnonzero(case.view.is_of("output") & (case.view.columns["amax"] > 0))
    history = np.where(np.isfinite(case.bits_before[outputs]), case.bits_before[outputs], -np.inf)
    rises = np.log2(case.view.columns["amax"][outputs]) - history.max(axis=1, initial=-np.inf)
    return bool(len(rises) and not case.view.is_bad[outputs].any() and rises.max() < USUAL_BITS)


def _targets(case: Case, origin: Origin) -> Iterator[Candidate]:
    if origin.kind == "backward" and origin.cause not in NOT_OF_UPDATES and jumped_alone(case):
        text = (
            "The loss jumped at this very step, and no output of it was larger than before: what the loss is given "
            "besides outputs, such as the targets of this batch, may be that large."
        )
        against = (
            "A term of the loss that was raised at this step looks the same, and so does a division by an output that "
            "is next to 0."
        )
        yield Candidate("data", 0.82, (text,), (against,))


def _data(case: Case, origin: Origin) -> Iterator[Candidate]:
    """An input of the model that is finite and far larger than what its first modules have been given before."""
    yield from _targets(case, origin)
    if case.model_inputs is None:
        yield from _jump(case)
    inputs = [each for each in case.model_inputs or () if not each.is_bad and each.amax >= LARGE_INPUT]
    if not inputs:
        return
    largest = max(inputs, key=lambda each: each.amax)
    before, given = _first_output_before(case), _given_before(case)
    if given is not None and np.log2(largest.amax / given) < DATA_BITS:  # a layer may bound what it is given
        return
    grown = before is not None and np.log2(largest.amax / before) >= DATA_BITS
    if grown or headroom(largest.dtype, largest.amax) < NEAR_LIMIT_BITS:
        shape = "" if largest.shape is UNSET else f" of shape {list(largest.shape)}"
        text = f"The model's own {largest.name}{shape} held {largest.amax:.3g} in this step: the batch is that large."
        more = f" Its first module gave {before:.3g} at most until then." if before else ""
        yield Candidate("data", 0.92, (text + more,))


def _jump(case: Case) -> Iterator[Candidate]:
    """A first output far above all before it, though the loss had been usual: no update moves a weight so far."""
    blown, columns = loss_ratio(case), case.view.columns
    if blown is None or blown[0] >= BLOWN:
        return
    usable = case.view.is_of("output") & ~case.view.is_bad & (columns["amax"] > 0) & ~is_repeated(case)
    was_usual = False
    for at in case.view.in_order(usable):
        before = case.bits_before[at][np.isfinite(case.bits_before[at])]
        bits = float(np.log2(columns["amax"][at]) - before.max()) if len(before) else 0.0
        if bits >= JUMP_BITS and was_usual and _is_given_as_usual(case):
            text = (
                f"From one step to the next {the(case.view.entries[at])} was {2.0**bits:.3g} times as large as ever "
                "before; the loss before it was usual, and so are the inputs of this step and what comes before it: no "
                "batch does that, and no update. A weight of it was overwritten, or a bit of it flipped."
            )
            yield Candidate("weight", 0.8, (text,), where=case.view.entries[at].fqn)
            return
        was_usual = was_usual or (len(before) > 0 and bits < 1)
        if bits >= JUMP_BITS:
            text = (
                f"From one step to the next {the(case.view.entries[at])} was {2.0**bits:.3g} times as large as ever "
                "before, and the loss before it was usual: the batch may be as large, or a weight was overwritten."
            )
            yield Candidate("data", 0.7, (text,), ("What the model was given was not recorded.",))
            return


WHOLE = 4_096
"""Elements of an input up to which all are read for its size."""


def _is_given_as_usual(case: Case) -> bool:
    """Whether all elements that the model was given were read, and are of a size as in the steps before."""
    evidence, step, rank = case.evidence, case.bad.step, case.bad.rank
    count = (
        evidence.series("input_elements", step, step + 1, rank) if evidence.has_series("input_elements") else [np.nan]
    )
    if not len(count) or not count[0] <= WHOLE:
        return False
    given = list(_input_sizes(case))
    return bool(given) and all(len(before) > 0 and now <= 2 * before.max() for before, now in given)


def _given_before(case: Case) -> float | None:
    """The largest root mean square of an input of the model in the steps before, from samples of its elements."""
    largest = max((float(before.max()) for before, _ in _input_sizes(case) if len(before)), default=0.0)
    return largest if largest > 0 else None


def _given_rise(case: Case) -> float | None:
    """Bits by which a root mean square of an input of the model is above all in the steps before; None: not known."""
    known = [(before.max(), now) for before, now in _input_sizes(case) if len(before) and before.max() > 0 and now > 0]
    return max((float(np.log2(now / before)) for before, now in known if np.isfinite(now)), default=None)


def _input_sizes(case: Case) -> Iterator[tuple[np.ndarray, float]]:
    """Of each input of the model its root mean squares in the steps before, and that of the step, NaN where unknown."""
    evidence, step, rank = case.evidence, case.bad.step, case.bad.rank
    low = max(evidence.start, step - HISTORY)
    for name in (each for each in INPUTS if evidence.has_series(each)):
        values = evidence.series(name, low, step + 1, rank)
        before = values[: step - low]
        yield before[np.isfinite(before)], float(values[step - low]) if len(values) > step - low else np.nan


def is_repeated(case: Case) -> np.ndarray:
    """(t,) bool: outputs of modules that are called more often in a step than others, and of those around them.

    What a recurrence, a solver or shared weights make of themselves within a step says nothing of batch or weights.
    """
    view = case.view
    outputs, calls = view.is_of("output"), view.columns["call_count"]
    least = calls[outputs].min(initial=np.inf)
    names = [view.entries[each].fqn for each in np.flatnonzero(outputs & (calls > least))]
    around = {"", *names}
    for name in names:
        while name:
            name = name.rpartition(".")[0]
            around.add(name)
    chosen = np.array([each.fqn in around for each in view.entries], bool)
    return outputs & chosen if names else np.zeros_like(outputs)


def _first_output_before(case: Case) -> float | None:
    outputs = case.view.in_order(case.view.is_of("output"))
    known = [case.bits_before[each][np.isfinite(case.bits_before[each])] for each in outputs[:3]]
    highest = [float(2.0 ** each.max()) for each in known if len(each)]
    return highest[0] if highest else None


OF_WEIGHTS_ALONE = "What a term of the loss that is of weights alone, as a penalty, adds to a gradient is not recorded."

WRITES_TO_ELEMENTS = "this is code that writes to elements"


def _clip(case: Case, origin: Origin) -> Iterator[Candidate]:
    """What the optimizer was given is bad, or all that it keeps of that, though gradients were finite when the backward
    ended; or it has made NaN of a gradient of zeros, of which its own update makes none.
    """
    optimizer = optimizer_of(case, origin.where)
    if optimizer is None:
        return
    if origin.cause == "zero":
        if optimizer.name in DIVIDES_BY_NO_NORM:
            zero = (
                f"The gradient was 0 in all elements, of which {optimizer.name} makes no NaN: 0 divided by its own "
                "norm, as a clip does it between backward and optimizer.step(), is NaN."
            )
            yield Candidate("clip", 0.84, (zero,))
        return
    state = [each for each in made_of_gradients(optimizer) if each is optimizer.gradient or each.name in OF_GRADIENTS]
    amax = _last_gradient(case, origin.where)
    if not state or amax is None or not all(each.is_bad for each in state):
        return
    whose = (
        "all that the optimizer keeps of gradients" if optimizer.gradient is None else "what the optimizer was given"
    )
    text = (
        f"The gradient was finite when the backward ended, and {whose} was not: it turned bad between backward and "
        "optimizer.step()"
    )
    if optimizer.gradient is not None and len(state) == 1 and optimizer.name not in DIVIDES_BY_NO_NORM:
        against = (f"{optimizer.name} may change gradients in place itself.",)
        yield Candidate("clip", 0.72, (f"{text}, where gradients are clipped or divided.",), against)
        return
    if amax == 0:
        zero = f"{text}. It was 0 in all elements, and 0 divided by its own norm, as a clip does it, is NaN."
        if len(case.evidence.ranks) > 1 and not case.evidence.has_series("clipped_norm"):
            made = "a hook that compresses what ranks reduce (PowerSGD) makes 0 / 0 of it"
            hook = f"{text}. It was 0 in all elements: {made}."
            no_clip = "Whether gradients are clipped by hand is not recorded; torch's own clip was not called."
            yield Candidate("communication", 0.72, (hook,), (no_clip,))
            yield Candidate("clip", 0.7, (zero,))
            return
        if case.had_zero_gradient(origin.where):
            yield Candidate("clip", 0.84, (zero,), (OF_WEIGHTS_ALONE,))
            return
        yield Candidate("clip", 0.92, (zero,))
        return
    is_whole = all(each.nan_count + each.inf_count == each.numel for each in state)
    few = "" if is_whole else f" {state[0].nan_count + state[0].inf_count} of {state[0].numel} elements were bad alone:"
    if len(case.evidence.ranks) == 1:
        if is_whole:
            yield Candidate("clip", 0.86, (f"{text}, where gradients are clipped or divided.",))
            return
        why = f"{text}.{few} a clip by a norm makes all of them so, and {WRITES_TO_ELEMENTS}."
        yield Candidate("clip", 0.75, (why,))
        yield Candidate("hardware", 0.5, ("A fault of the memory spoils a few elements in a row, too.",))
        return
    unlikely = f" Its largest magnitude was {amax:.3g}, neither 0 nor near a limit: a clip makes no NaN of that."
    same = _same_elsewhere(case, origin)
    weight = 0.72 if is_whole else 0.86 if same else 0.8
    yield Candidate(
        "communication", weight,
        (f"{text}, where ranks reduce it.{few and few + ' no clip by a norm.'}{unlikely}{same}",),
        ("Whose part of the sum was bad is not known: after the reduction all ranks hold the same.",),
    )  # fmt: skip
    if is_whole:
        yield Candidate("clip", LIKELY, (f"{text}, where gradients are clipped or divided.",))


def is_of_elements(best: Candidate) -> bool:
    """Whether some elements of a gradient were spoiled alone, which no clip by a norm does."""
    return any(WRITES_TO_ELEMENTS in each for each in best.supports)


def _same_elsewhere(case: Case, origin: Origin) -> str:
    """On other ranks whose weight turned bad in as many elements at this step."""

    def bad_elements(known: Nonfinite) -> list[tuple[int, int]]:
        return [(each.nan_count, each.inf_count) for each in known.weights or () if each.name == origin.where]

    mine = [] if case.context is None else bad_elements(case.context)
    others = {
        event.rank
        for event, known in case.evidence.details(Nonfinite)
        if event.step == case.bad.step and event.rank != case.bad.rank and mine and bad_elements(known) == mine
    }
    if not others:
        return ""
    ranks = ranks_text(sorted({case.bad.rank, *others}))
    return f" {ranks[0].upper()}{ranks[1:]} hold the same number of bad elements in {origin.where} since this step."


def _scaler_passed_over(case: Case) -> Iterator[Candidate]:
    """The loss scaler found Inf in the step before, and the optimizer updated the weights in it all the same."""
    evidence, rank = case.evidence, case.bad.rank
    if len(newest_optimizers(evidence, rank).classes) > 1:
        return  # one of them may be skipped, and the other not
    if found_inf(case) and has_updated(case):
        text = (
            f"The loss scaler found Inf or NaN in the gradients of step {case.bad.step - 1}, which scaler.step() "
            "skips, and the optimizer made its update all the same: the loop calls optimizer.step() itself."
        )
        yield Candidate("loss_scale", 0.93, (text,))


def _overflowed(case: Case) -> Iterator[Candidate]:
    """A gradient that passed the limit of float16 in a backward whose operations are sound."""
    was = overflowed_gradient.overflowed(case)
    if was and overflowed_gradient.passes_scaler(case):
        text = (
            f"{was}, and what is summed of it passed that limit. So a scale is found: scaler.step() leaves out such a "
            "step, and this one was not left out."
        )
        yield Candidate("loss_scale", 0.88, (text,))
    elif was:
        yield Candidate("backward_arithmetic", 0.86, (f"{was}, and what is summed of it passed that limit.",))


def _last_gradient(case: Case, parameter: str) -> float | None:
    """Largest magnitude of the parameter's gradient as the last update before was given it; None where that was not
    finite or not recorded; where it is not, but what it is made of is known to be 0, that.
    """
    is_update, bad = case.entry.kind == "update", case.bad
    view = case.view if is_update else StepView(case.evidence, bad.rank, max(case.evidence.start, bad.step - 1))
    rows = [each for kind in ("reduced_grad", "grad") for each in view.find(parameter, kind)]
    if not rows and not is_update and case.had_zero_gradient(parameter):
        return 0.0
    return None if not rows or view.is_bad[rows[0]] else view.amax(rows[0])


def sentences(best: Candidate, others: list[Candidate], test: str) -> Iterator[str]:
    """The verdict in the evidence. `test`: what would decide."""
    yield f"Cause ({best.sureness}): {NAMES[best.cause]}. {' '.join(best.supports)}"
    for text in best.against:
        yield f"Against that: {text}"
    for each in others[:1]:
        if each.weight >= best.weight - NEAR - 1e-9 and best.weight < LIKELY:
            yield f"As likely: {NAMES[each.cause]}."
        elif each.weight >= LIKELY:
            yield f"Less likely: {NAMES[each.cause]}."
    yield f"What would decide: {test}"
    for each in others:
        if each.cause == "hardware":
            yield f"It may be the hardware: {' '.join((*each.supports, *each.against))} {TESTS['hardware']}"
