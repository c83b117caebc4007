"""What made the first NaN or Inf, as far as the evidence proves it: an operation, a weight, the data, the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import TensorDetails
from rangewatch.wire.records import MOMENTS
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.nonfinite import forward, operations
from rangewatch_server.rules.nonfinite.case import Case, StepView
from rangewatch_server.rules.nonfinite.optimizer import (
    found_inf,
    optimizer_fault,
    optimizer_sentences,
    was_given_zeros,
)
from rangewatch_server.rules.nonfinite.tensor_phrases import counts, name_of, range_text
from rangewatch_server.rules.phrases import capital
from rangewatch_server.rules.replicas.along_axes import mesh_of


class Origin(msgspec.Struct, frozen=True):
    """`kind`: "data", "sent" (by another rank), "weight", "optimizer", "forward", "between" (code between modules),
    "loss", "backward" or "reduction". `cause` separates forward origins, see `forward.cause_of`, and those of a loss:
    an "operation" that is known, a mean over nothing ("empty"), what it was "given" from outside, or that being bad as
    a whole ("outside"); "" else.
    `where`: the module or parameter to look at, "" for the model itself or its loss; the rank that has sent it.
    `reported`: sentences.
    """

    kind: str
    where: str
    reported: tuple[str, ...]
    cause: str = ""


def origin_of(case: Case) -> Origin:
    """The origin of a case."""
    return _BY_KIND[case.entry.kind](case)


def _output(case: Case) -> Origin:
    if case.bad_model_inputs:
        return _data(case, case.bad_model_inputs)
    if case.bad_weights:
        return _weight(case, case.bad_weights)
    if case.flipped is not None and not case.flipped.is_bad and not case.is_first_step():
        return _flipped(case, case.flipped)
    if case.bad_buffer is not None and not forward.is_masked(case):
        return _weight(case, (case.bad_buffer,))
    if case.bad_inputs and not forward.is_masked(case):
        return _by_parameter(case) or _between(case, case.bad_inputs[0].name)
    return Origin("forward", case.entry.fqn, tuple(forward.sentences(case)), forward.cause_of(case))


def _input(case: Case) -> Origin:
    return _between(case, "input") if case.entry.fqn else _data(case, ())


NEAREST_RANKS = 64
"""So many are looked at for what a rank was sent: stages lie near one another."""

HALF_LIMIT = 65504.0
"""The largest finite float16."""


def _sent(case: Case, given: TensorDetails) -> Origin | None:
    """Another rank, whose modules are others, has put out as many elements in this step, and all of it was finite.
    Replicas begin with the same module."""
    rank, step = case.bad.rank, case.bad.step
    mine, is_pipeline = _modules(case.view), bool(values.axes_of(mesh_of(case.evidence), values.STAGES))
    near = sorted((each for each in case.evidence.ranks if each != rank), key=lambda each: (abs(each - rank), each))
    for other in near[:NEAREST_RANKS] if mine else ():
        view = StepView(case.evidence, other, step)
        outputs = view.in_order(view.is_of("output"))
        theirs = _modules(view)
        if not theirs or theirs[0] == mine[0] or not _are_others(theirs, mine) or view.is_bad[outputs].any():
            continue
        sizes = view.columns["numel"] / np.maximum(view.columns["call_count"], 1)
        output = next((each for each in reversed(outputs) if sizes[each] == given.numel), None)
        if output is None:
            continue
        amax, name = view.amax(output), view.entries[output].fqn or "its last module"
        is_over = bool(given.inf_count) and amax > HALF_LIMIT
        if not is_over and not is_pipeline:  # ranks may train models of their own
            continue
        reported = [
            f"The {given.name} of this rank's model held {counts(given)}. Rank {other}, whose modules are others, put "
            f"out as many elements in this step ({name}), and they were finite, {amax:.4g} at most."
        ]
        if is_over:
            reported.append("That is more than float16 holds, 65,504: if it is sent as float16 it becomes Inf.")
        return Origin("sent", str(other), tuple(reported), "range" if is_over else "")
    return None


def _modules(view: StepView) -> list[str]:
    """Names of the modules that it has outputs of, in call order, but for the model's own."""
    return [fqn for each in view.in_order(view.is_of("output")) if (fqn := view.entries[each].fqn)]


def _are_others(theirs: list[str], mine: list[str]) -> bool:
    """Whether each has modules that the other has not: stages may name some alike."""
    return not set(theirs) <= set(mine) and not set(mine) <= set(theirs)


def _data(case: Case, bad: tuple[TensorDetails, ...]) -> Origin:
    sent = _sent(case, bad[0]) if bad and not case.bad_weights else None
    if sent is not None:
        return sent
    context, cause = case.context, ""
    entered, loaded = (None, None) if context is None else (context.entered, context.loaded)
    whose = f"What {entered} was given from outside, {{}}," if entered else "The model's own {}"
    how = "it came with the batch, or was made of it before the model was called"
    if loaded is not None and (loaded.bad_count or loaded.is_given):
        cause, how = "loaded", "it came with the batch, as the loader gave it"
    elif loaded is not None:
        cause, how = "made", "what the loader gave was finite, so it was made of that before the model was called"
    reported = [f"{whose.format(each.name)} held {counts(each)} already: {how}." for each in bad]
    if case.bad_weights:
        reported.append(f"The weight {case.bad_weights[0].name} was not finite either.")
    return Origin("data", "", tuple(reported or [f"It is the model's own input: {how}."]), cause)


def _between(case: Case, name: str) -> Origin:
    """A module that was given NaN or Inf which no module had put out."""
    parent = case.entry.fqn.rpartition(".")[0]
    reported = [
        f"Its {name} held NaN or Inf already, which no module's output before it did: code between the modules made "
        f"it, in the forward of {parent or 'the model'}."
    ]
    if case.previous is not None:
        entry = case.view.entries[case.previous]
        reported.append(
            f"The last finite output before it in call order is {name_of(entry.fqn)}'s, "
            f"{range_text(entry.dtype, case.view.amax(case.previous))}."
        )
    masked, mask = [each for each in case.bad_inputs if each.masked_rows and each.is_mask], case.mask_before
    reported += [forward.masked_rows_text(each) for each in masked]
    if mask is not None and not masked:
        text = forward.mask_before_text(case, mask)
        reported.append(capital(text))
    return Origin("between", parent, tuple(reported), "masked" if masked or mask is not None else "")


def _flipped(case: Case, weight: TensorDetails) -> Origin:
    reported = (
        f"One of the {weight.numel} elements of {weight.name} was {weight.amax:.3g}, and all others "
        f"{weight.rest_amax:.3g} at most: what the modules behind it computed of that passed the limit.",
        *forward.sentences(case),
    )
    return Origin("weight", weight.name, reported, "flipped")


def _by_parameter(case: Case) -> Origin | None:
    """A parameter that is no module's own, where one was bad: as it began, or what the optimizer made of it."""
    held = case.bad_elsewhere
    if not held or case.is_first_step():
        return _used_outside(case, held) if held else None
    bad = tuple(each for each in held if each.is_bad)
    is_whole = any(each.nan_count + each.inf_count == each.numel for each in bad)
    has_grown = any(
        optimizer_fault(case, each.name) not in ("", "written") or case.may_be_update(each) for each in held
    )
    if not is_whole and not has_grown:
        return _used_outside(case, held)
    return _weight(case, bad) if bad else None


def _used_outside(case: Case, held: tuple[TensorDetails, ...]) -> Origin:
    """Code between the modules used a parameter that is no module's own, such as the weights of all experts in one."""
    reported = [_held_text(each) for each in held[:3]]
    if not case.is_first_step():
        reported.append(
            f"All that was recorded of step {case.bad.step - 1} on this rank was finite. But of a parameter of which "
            "each batch uses a part, as of experts or tables, the rest may have been so since the run began."
        )
    elif not case.is_loaded:
        reported.append("No step before it is recorded: it was loaded, or initialised, so.")
    return Origin("weight", held[0].name, tuple(reported), "part")


def _held_text(each: TensorDetails) -> str:
    what = counts(each) if each.is_bad else f"magnitudes up to {each.amax:.3g}"
    return f"The {each.noun} {each.name} held {what} as this forward used it."


def _own_weight(case: Case) -> Origin:
    details = TensorDetails(
        case.entry.fqn, case.entry.dtype, case.bad.numel, case.view.amax(case.bad.tensor), case.bad.nan_count,
        case.bad.inf_count,
    )  # fmt: skip
    return _weight(case, (details,))


def _weight(case: Case, bad: tuple[TensorDetails, ...]) -> Origin:
    first = bad[0]
    reported = [_held_text(each) for each in bad[:3]]
    if case.is_first_step():
        if not case.is_loaded:
            reported.append("No step before it is recorded: it was loaded, or initialised, so.")
        return Origin("weight", first.name, tuple(reported), "buffer" if first.noun == "buffer" else "")
    if first.noun == "buffer":
        reported.append(
            f"All that was recorded of step {case.bad.step - 1} on this rank was finite. No optimizer writes a buffer: "
            "code does, or loading a checkpoint; one that is not persistent is in no checkpoint, and to_empty() leaves "
            "it as the memory was."
        )
        return Origin("weight", first.name, tuple(reported), "buffer")
    fault = optimizer_fault(case, first.name)
    reported += _turned_bad(case, first.name, fault)
    reported += optimizer_sentences(case, first.name)
    if fault in ("", "growth") and _is_of_zero_gradient(case, first):
        reported.append("All of it is NaN though the gradient was 0: an update that divides by a norm of 0 gives that.")
        fault = "zero"
    return Origin("optimizer" if fault not in ("", "written") else "weight", first.name, tuple(reported), fault)


def _turned_bad(case: Case, name: str, fault: str) -> Iterator[str]:
    """`fault`: of the optimizer; "state" where it was given what was not finite."""
    before = case.bad.step - 1
    what = "The forward" if found_inf(case) else "All that was recorded"
    if "Embedding" in case.entry.module:
        yield (
            f"{what} of step {before} on this rank was finite. But an embedding reads only the rows "
            "that a batch asks for: a bad row shows with the first batch that does, and may have been bad for long."
        )
    else:
        yield f"{what} of step {before} on this rank was finite: it turned bad after that forward."
    gradient = next((each for kind in ("reduced_grad", "grad") for each in _of(case, name, kind)), None)
    if gradient is None and case.had_zero_gradient(name):
        yield (
            f"Its gradient is not recorded (kinds=grad would). But in step {before} what came back to the output of "
            f"{name_of(name.rpartition('.')[0])} was 0 in all elements, and so was what the backward made of it."
        )
    elif gradient is None:
        yield "Its gradient is not recorded (kinds=grad would): whether that was finite is not known."
    elif (last := case.last_before(gradient)) is not None:
        step, amax = last
        when = "that step" if step == before else f"step {step}, the last of which it is known,"
        was = "0 in all elements" if amax == 0 else f"finite, {range_text(case.view.entries[gradient].dtype, amax)}"
        if fault == "state":
            yield f"Its gradient at {when.rstrip(',')}, as the backward made it, was {was}."
        elif fault == "written":
            yield f"Its gradient at {when.rstrip(',')} was {was}."
        else:
            yield (
                f"Its gradient at {when} was {was}: the optimizer's update did it, or what changed the gradient before "
                "that, as a clip, or something else that writes to weights, such as loading a checkpoint."
            )


def _is_of_zero_gradient(case: Case, weight: TensorDetails) -> bool:
    """Whether all of a weight is NaN, and what its last update was given was 0 in all elements."""
    rows = [each for kind in ("reduced_grad", "grad") for each in _of(case, weight.name, kind)]
    last = case.last_before(rows[0]) if rows else None
    is_zero = last == (case.bad.step - 1, 0.0) or was_given_zeros(case, weight.name)
    is_zero = is_zero or case.had_zero_gradient(weight.name)
    return weight.nan_count == weight.numel and is_zero


def _of(case: Case, fqn: str, kind: str) -> list[int]:
    entries = case.view.entries
    return [place for place, each in enumerate(entries) if (each.fqn, each.kind) == (fqn, kind)]


def _update(case: Case) -> Origin:
    reported = ["The optimizer's update of it was the first to be so: what the optimizer was given was finite."]
    reported += optimizer_sentences(case, case.entry.fqn)
    return Origin("optimizer", case.entry.fqn, tuple(reported), optimizer_fault(case, case.entry.fqn) or "update")


def _moment(case: Case) -> Origin:
    kind = case.entry.kind
    reported = [f"Its {kind}, which the optimizer keeps, was the first to be so: no gradient recorded before it was."]
    reported += optimizer_sentences(case, case.entry.fqn)
    return Origin("optimizer", case.entry.fqn, tuple(reported), optimizer_fault(case, case.entry.fqn) or "state")


def _reduced(case: Case) -> Origin:
    own = _of(case, case.entry.fqn, "grad")
    if own and case.view.columns["call_count"][own[0]] > 0:
        magnitude = range_text(case.view.entries[own[0]].dtype, case.view.amax(own[0]))
        reported = [f"As it accumulated on this rank the gradient was finite, {magnitude}."]
    else:
        reported = ["What this rank itself added to it is not recorded (kinds=grad would)."]
    reported.append("Between the backward and the optimizer stand the reduction over ranks, unscaling and clipping.")
    return Origin("reduction", case.entry.fqn, tuple(reported))


def _backward(case: Case) -> Origin:
    loss = case.view.loss()
    is_forward_clean = not (case.view.is_of("output", "input", "weight") & case.view.is_bad).any()
    if loss is not None and not np.isfinite(loss) and is_forward_clean:
        return _loss(case, loss)
    module = case.entry.fqn if case.entry.kind == "grad_output" else case.entry.fqn.rpartition(".")[0]
    reported = (
        [] if loss is None else [f"The loss was finite, {loss:.3g}." if np.isfinite(loss) else f"The loss was {loss}."]
    )
    if case.entry.kind == "grad":
        return _parameter_gradient(case, module, reported)
    earlier = case.view.before(case.bad.tensor, "grad_output")
    if not earlier:
        reported.append("No recorded gradient came before it: it comes out of the backward of the loss itself.")
        reported += operations.near(case)
        return Origin("backward", "", tuple(reported), "loss")
    entry = case.view.entries[earlier[-1]]
    magnitude = range_text(entry.dtype, case.view.amax(earlier[-1]))
    reported.append(f"The gradient before it, of the output of {name_of(entry.fqn)}, was finite, {magnitude}.")
    reported.append(
        f"So it was made in the backward of {name_of(entry.fqn)}, or of code between that and {name_of(module)}."
    )
    reported += operations.near(case)
    return Origin("backward", entry.fqn, tuple(reported))


def _parameter_gradient(case: Case, module: str, reported: list[str]) -> Origin:
    own = case.view.find(module, "grad_output")
    finite = [each for each in own if not case.view.is_bad[each]]
    if finite:
        magnitude = range_text(case.view.entries[finite[0]].dtype, case.view.amax(finite[0]))
        reported.append(
            f"The gradient of the output of {name_of(module)} was finite, {magnitude}: its own backward made it."
        )
    else:
        reported.append(
            f"The gradient of the output of {name_of(module)} is not recorded: where it was made is not known."
        )
    return Origin("backward", module, tuple(reported))


def _loss(case: Case, loss: float) -> Origin:
    word = "NaN" if np.isnan(loss) else "Inf"
    reported = [
        f"The loss of this step was {word}, and every output that is recorded was finite: the loss function made it."
    ]
    outputs = case.view.in_order(case.view.is_of("output"))
    if outputs:
        entry = case.view.entries[outputs[-1]]
        magnitude = range_text(entry.dtype, case.view.amax(outputs[-1]))
        reported.append(f"The last output, of {name_of(entry.fqn)}, was finite, {magnitude}.")
    if (before := case.largest_output_before) is not None:
        reported.append(f"The largest output of the step before was {before:.3g}.")
    if (growth := case.output_growth) is not None:
        reported.append(
            f"The largest output had been growing {growth.bits_a_step:.2g} bits a step for {growth.steps} steps."
        )
    graph = operations.graph_of(case)
    if graph is None:
        return Origin("loss", "", tuple(reported))
    came = operations.given(graph)
    cause = "" if came is None else "outside" if operations.is_whole(came) else "given"
    if (made := operations.made_by(graph)) is not None:
        cause = "empty" if np.isnan(loss) and operations.is_empty_count(made) else "operation"
    elif not cause and graph.loaded is not None and graph.loaded.bad_count:
        cause = "loaded"
    return Origin("loss", "", (*reported, *operations.sentences(case)), cause)


_BY_KIND: dict[str, Callable[[Case], Origin]] = {
    "output": _output, "input": _input, "weight": _own_weight, "grad_output": _backward, "grad": _backward,
    "reduced_grad": _reduced, "update": _update, **dict.fromkeys(MOMENTS, _moment),
    "scaled_input": _input, "scaled_weight": _own_weight, "scaled_grad_output": _backward,
}  # fmt: skip
