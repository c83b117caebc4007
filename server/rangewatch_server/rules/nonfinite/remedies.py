"""What to try against a first NaN or Inf: for each origin its own, with code that names the module.

What to try against NaN or Inf that a module made in the forward, or code between modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rangewatch_server.rules.activations import initial_gain
from rangewatch_server.rules.activations.headroom_trend import scale_inputs
from rangewatch_server.rules.inputs import never_normalised
from rangewatch_server.rules.loss_scale import remedies as scaler_remedies
from rangewatch_server.rules.loss_scale.causes import device_of
from rangewatch_server.rules.nonfinite import operations, overflowed_gradient
from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.causes import (
    LARGE_INPUT,
    Candidate,
    filled_input,
    initially_large,
    is_near_limit,
    is_of_elements,
    jumped_alone,
    outputs_reach_limit,
    reaches_limit,
)
from rangewatch_server.rules.nonfinite.code_snippets import (
    BAD_BUFFERS,
    BAD_PARAMETERS,
    CLIP,
    CLIP_FINITE,
    EPS,
    FIND_BACKWARD,
    FIND_BAD_GRADIENTS,
    INITIAL,
    LOSS,
    MASKED_POOL,
    OPTIMIZER_EPS,
    REDUCE,
    SEND,
    WARM_UP,
    ZERO_GRADIENTS,
    away,
    away_inside,
    check_batch,
    check_targets,
    masked_softmax,
    unmasked,
    watch_inside,
)
from rangewatch_server.rules.nonfinite.forward import LARGE_BITS
from rangewatch_server.rules.nonfinite.optimizer import optimizer_of
from rangewatch_server.rules.nonfinite.origin import Origin
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, name_of, range_text
from rangewatch_server.rules.phrases import in_bfloat16, in_float32, module_path
from rangewatch_server.rules.rule import Remedy
from rangewatch_server.rules.trend import Growth

FIRST_STEPS = 5
"""Steps after the first recorded one in which initialisation is the suspect."""

NARROW = ("float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
"""Dtypes whose largest number activations reach in practice."""


def forward_remedies(case: Case, origin: Origin) -> Iterator[Remedy]:
    name, module = name_of(case.entry.fqn), module_path(case.view.entries, case.entry.fqn)
    is_module = module == case.entry.fqn
    if origin.cause == "range":
        yield from _overflow(case)
    elif origin.cause == "masked":
        is_softmax = is_module and "Softmax" in case.entry.module
        yield _masked(unmasked(module) if is_softmax else masked_softmax(module))
    elif origin.cause in ("zero", "negative"):
        yield Remedy(
            f"Keep the input of {name} away from where its function is not finite.",
            away(module, origin.cause) if is_module else away_inside(module),
            f"its input held {'zeros' if origin.cause == 'zero' else 'negative elements'}",
        )  # fmt: skip
    else:
        yield _inside(case, module, "what in it made NaN or Inf is not recorded")
        narrow = _narrow(case)
        if narrow and module == case.entry.fqn and module:
            yield Remedy(
                f"Compute what {name} does by itself (a log, a softmax, a division, noise that is drawn) in float32: a "
                f"random number in {narrow} is exactly 0 now and then, and its log is -Inf.", in_float32(module),
                f"its inputs were finite, and it computes in {narrow}",
            )  # fmt: skip
    yield from _eps(case)


def _narrow(case: Case) -> str:
    """The dtype of 16 bits that a module computes in; "" where it does not."""
    autocast = case.context.autocast if case.context is not None else None
    given = [each.dtype for each in case.inputs or ()]
    return next((each for each in (case.entry.dtype, autocast, *given) if each in ("bfloat16", "float16")), "")


def _overflow(case: Case) -> Iterator[Remedy]:
    fqn, dtype = module_path(case.view.entries, case.entry.fqn), case.entry.dtype
    large_input = case.large_input
    why = f"its output is {dtype}"
    before = case.amax_before(case.bad.tensor)
    if large_input is not None and headroom(dtype, large_input.amax) < LARGE_BITS:
        why = f"its input had {range_text(dtype, large_input.amax)}"
    elif before is not None:
        why = f"in the step before it had {range_text(dtype, before)}"
    if dtype in NARROW:
        yield Remedy(
            f"Run {name_of(fqn)} in float32, and what follows up to the next normalisation.",
            in_float32(fqn), why,
        )  # fmt: skip
        yield Remedy(
            f"Train in bfloat16, whose limit is 3.4e38 and not {dtype}'s; no loss scaler is needed then.",
            in_bfloat16(device_of(case.evidence)), "it is the range that did not suffice",
        )  # fmt: skip
    if _is_of_the_batch(case):
        yield Remedy(
            "Look at the batch of this step.", check_batch(case.bad.step), "the large input is the model's own"
        )
        return
    yield from growth_remedies(case, case.growth)
    if case.weights and case.growth is None and case.bad.step - case.evidence.start < FIRST_STEPS:
        yield Remedy(
            "Scale the initialisation down.", INITIAL.format(name=repr(_weight_name(case))),
            "it happened within the first steps that were recorded",
        )  # fmt: skip


def _is_of_the_batch(case: Case) -> bool:
    """Whether what was too large came with the batch."""
    large_input = case.large_input
    is_large = large_input is not None and headroom(case.entry.dtype, large_input.amax) < LARGE_BITS
    return is_large and large_input is not None and large_input.amax in {each.amax for each in case.model_inputs or ()}


def growth_remedies(case: Case, growth: Growth | None) -> Iterator[Remedy]:
    if growth is None:
        return
    if (
        of_inputs := scale_inputs(case.evidence, case.bad.step - growth.steps, case.bad.step + 1, growth.bits)
    ) is not None:
        yield of_inputs
        return
    yield Remedy(
        "Lower the learning rate, or warm it up for longer.", WARM_UP,
        f"it had grown {growth.bits_a_step:.2g} bits a step for {growth.steps} steps",
    )  # fmt: skip
    if case.gradient_growth is not None:
        yield clip(case.gradient_growth)


def _lower_rate(case: Case, because: str) -> Iterator[Remedy]:
    """Within the first steps inputs that were never normalised are what makes a usual rate too high."""
    if case.bad.step - case.evidence.start < FIRST_STEPS:
        yield from never_normalised(case.evidence, case.bad.step)
    yield Remedy("Lower the learning rate, or warm it up for longer.", WARM_UP, because)


def clip(growth: Growth) -> Remedy:
    because = f"gradients grew {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"
    return Remedy("Clip the gradients.", CLIP, because)


def _eps(case: Case) -> Iterator[Remedy]:
    eps = case.context.eps if case.context is not None else None
    if "Norm" in case.entry.module and eps is not None and eps < 1e-6:
        because = f"its class divides by a root, and its eps is {eps:g}"
        module = module_path(case.view.entries, case.entry.fqn)
        yield Remedy(f"Give {name_of(module)} a larger eps.", EPS.format(name=repr(module)), because)


def _masked(code: str, because: str = "whole rows were -Inf") -> Remedy:
    return Remedy("Let no row be masked whole, or mask with the lowest number of the dtype.", code, because)


def between_remedies(case: Case, origin: Origin) -> Iterator[Remedy]:
    if origin.cause == "masked":
        yield _masked(masked_softmax(origin.where))
    where = module_path(case.view.entries, origin.where)
    if (largest := _product_beyond(case)) is not None:
        yield Remedy(
            "Compute products of such values in float32, or divide one operand before the product (a query by the "
            f"root of its width), in the forward of {name_of(where)}.",
            "def product(a, b):\n    with torch.autocast(a.device.type, enabled=False):\n"
            "        return a.float() @ b.float()",
            f"values of {largest:.3g} went in, whose products pass {case.entry.dtype}'s limit",
        )  # fmt: skip
    yield _inside(case, where, "code between the modules made it, which only its values can show")


WIDTH = 8
"""Products that are added up, at the least, where two tensors are multiplied: a head of an attention is wider."""


def _product_beyond(case: Case) -> float | None:
    """In 16 bits, the largest magnitude that modules gave before, where a sum of a few squares of it is beyond the
    limit."""
    if case.entry.dtype not in NARROW:
        return None
    view, position = case.view, case.evidence.tensors.position
    is_before = view.is_of("output") & ~view.is_bad & (position < position[case.bad.tensor])
    largest = float(view.columns["amax"][is_before].max(initial=0.0))
    return largest if largest > 0 and headroom(case.entry.dtype, WIDTH * largest**2) < 0 else None


def _inside(case: Case, fqn: str, because: str) -> Remedy:
    """`fqn`: of a module that was given what is finite."""
    made = (
        "a division by 0, a log of 0, or a power of what is large"
        if case.bad.inf_count
        else "0 divided by 0 (a norm, a sum or a size that is 0), or a root or log of what is below 0"
    )
    text = f"Look in the forward of {name_of(fqn)} for {made}, and add an eps or clamp there; its values show which."
    if case.bad.inf_count and case.entry.dtype == "float16":
        text += " In float16 a product, a dot product or a sum beyond 65504 is Inf, too: compute it in float32."
    return Remedy(text, watch_inside(fqn), because)


def _weight_name(case: Case) -> str:
    """The largest of its own weights."""
    return max(case.weights or (), key=lambda each: each.amax).name


def remedies(case: Case, origin: Origin, best: Candidate, *, is_named: bool = False) -> Iterator[Remedy]:
    """Most promising first, by the best of the causes; at least one. `is_named`: it has its advice already."""
    given = list(_by_cause(case, origin, best, is_named=is_named))
    yield from given
    if not given and not is_named:
        where = module_path(case.view.entries, origin.where)
        yield _inside(case, where, "neither growth nor the batch explains it, and its values inside are not recorded")


def _by_cause(case: Case, origin: Origin, best: Candidate, *, is_named: bool) -> Iterator[Remedy]:
    because = best.supports[0][0].lower() + best.supports[0][1:].rstrip(".") if best.supports else ""
    is_overflow = (origin.kind, origin.cause) == ("forward", "range")  # the loss was given Inf, and made none
    if best.cause == "forward_arithmetic" and not is_overflow and (named := list(operations.remedies(case, because))):
        yield from named
    elif origin.cause == "empty" and best.cause in ("mask", "data"):
        yield Remedy(
            f"Look at the targets of the batch of step {case.bad.step}, and at the mask: it seems that all of them are "
            "left out (padding, labels of -100, a text cut off before its answer, weights of 0). Leave out such a "
            "batch, or divide by 1 where nothing counts.",
            "def masked_mean(values, mask):  # 0, and a gradient of 0, where the mask has nothing\n"
            "    return (values * mask).sum() / mask.sum().clamp(min=1)", because,
        )  # fmt: skip
    elif origin.cause in ("given", "outside"):
        yield _of_given(case, best, because)
    elif origin.cause == "loaded" and best.cause == "data" and origin.kind == "loss":
        yield Remedy(
            "Look at the batch of this step as the loader gives it, targets and weights of rows too, and leave out "
            "rows that are not finite, or fill them in.", check_targets(case.bad.step), because,
        )  # fmt: skip
    elif best.cause == "data" and origin.kind == "backward" and jumped_alone(case):
        yield Remedy(
            "Look at the targets of this batch, and leave out or clamp any that are so large; and leave out a step "
            "whose gradients are not finite, as torch.amp.GradScaler does.", check_targets(case.bad.step), because,
        )  # fmt: skip
    elif best.cause == "data" and origin.kind != "data":
        yield Remedy(
            "Look at the batch of this step, and leave out samples, or clamp them, that are so large.",
            check_batch(case.bad.step, LARGE_INPUT), because,
        )  # fmt: skip
    elif best.cause == "learning_rate" and origin.kind not in ("forward", "optimizer"):
        if not is_named:
            yield from _lower_rate(case, because)
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", CLIP, because)
    elif best.cause == "learning_rate":
        if not is_named:
            yield from _lower_rate(case, because)
        yield from (each for each in _BY_ORIGIN[origin.kind](case, origin) if "learning rate" not in each.text)
    elif best.cause == "mask" and origin.cause != "masked" and (case.empty_rows or filled_input(case)):
        yield Remedy(
            "Let no row be masked whole where it is pooled: leave such rows out, or give them a value of their own.",
            MASKED_POOL, because,
        )  # fmt: skip
    elif best.cause == "mask" and origin.cause != "masked":
        yield _masked(masked_softmax(origin.where), because)
        if best.against:
            yield _inside(case, module_path(case.view.entries, origin.where), "the mask itself was not recorded")
    elif best.cause == "loss_scale":
        yield Remedy(
            "Call scaler.step(optimizer), and not optimizer.step(): it leaves out the update of a step whose gradients "
            "hold Inf or NaN. Go back to a checkpoint from before.",
            "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
            "scaler.step(optimizer)\nscaler.update()",
            because,
        )  # fmt: skip
    elif best.cause == "clip":
        of_elements = is_of_elements(best)
        yield Remedy(
            "Look at what stands between the backward and optimizer.step(): "
            + ("code that writes to single elements of this gradient." if of_elements else
               "clip by a norm that is finite and not 0."),
            FIND_BAD_GRADIENTS if of_elements else CLIP_FINITE, because,
        )  # fmt: skip
    elif best.cause == "hardware":
        yield Remedy(
            "Run the same steps from a checkpoint on another GPU, and test this one: dcgmi diag -r 3.", "", because
        )
    elif best.cause == "weight" and origin.kind != "weight" and (large := initially_large(case)) is not None:
        yield initial_gain.remedy(case.evidence, large[0], because)
    elif best.cause == "weight" and origin.kind not in ("weight", "data", "optimizer"):
        yield Remedy(
            "See what wrote to the weights right before: a checkpoint or a copy that was loaded, or code that sets "
            "them. Go back to a checkpoint from before.",
            "", because,
        )  # fmt: skip
    elif best.cause == "backward_arithmetic" and origin.kind in ("forward", "between", "loss"):
        yield Remedy(
            "Look for a root, norm, logarithm or division of what is nearly 0 in the loss of the step before, and add "
            "an epsilon; clip the gradients; and go back to a checkpoint from before.", CLIP, because,
        )  # fmt: skip
    elif best.cause == "communication" and origin.kind == "sent":
        yield Remedy(
            f"Send what rank {origin.where} puts out in bfloat16 or float32, and receive it in the same dtype: float16 "
            "holds 65,504 at most." if origin.cause == "range" else
            f"Compare what rank {origin.where} sends with what is received: dtype, shape, and whether the transfer has "
            "ended before it is read.", SEND, because,
        )  # fmt: skip
    elif best.cause == "communication":
        yield Remedy(
            "Check each rank's gradients, and its buckets where a communication hook changes them, right before the "
            "reduction and right after it.", CLIP_FINITE, because,
        )  # fmt: skip
        yield Remedy("Reduce the gradients in float32.", REDUCE, "they were finite before the reduction")
    else:
        yield from _BY_ORIGIN[origin.kind](case, origin)


def _of_given(case: Case, best: Candidate, because: str) -> Remedy:
    """Of what the loss is given beside outputs."""
    graph = operations.graph_of(case)
    loaded = None if graph is None else graph.loaded
    if loaded is not None and loaded.bad_count:
        text = (
            "Look at the batch of this step as the loader gives it: targets, rewards and weights of rows; leave out "
            "rows that are not finite, or fill them in."
        )
    elif loaded is not None:
        text = (
            "Look at the code between the loader and the loss that runs without gradient, which makes targets, "
            "rewards, advantages or weights of rows: a division by 0 or by a deviation of 0, or a log of 0."
        )
    else:
        text = (
            "Look at what the loss of this step was given besides outputs: targets, rewards, advantages and weights of "
            "rows. If the data held it already, leave those rows out; else look at what they are made by: a division "
            "by 0 or by a deviation of 0, or a log of 0."
        )
    return Remedy(text, check_targets(case.bad.step), because)


def _data(case: Case, origin: Origin) -> Iterator[Remedy]:
    code = check_batch(case.bad.step)
    if origin.cause == "made":
        yield Remedy(
            "Look at what is computed between the loader and the model, without gradient: a division by 0 or by a "
            "deviation of 0, or a log of 0; add an eps, or clamp what it is given.", code,
            "the loader's batch was finite, and the model's own input was not",
        )  # fmt: skip
    elif origin.cause == "loaded":
        yield Remedy(
            "Look at the batch of this step, and leave out samples that are not finite.", code,
            "the loader's batch and the model's own input were not finite",
        )  # fmt: skip
    else:
        yield Remedy(
            "Look at the batch of this step as the data gives it: if it is not finite there, leave such samples out or "
            "fill in what is missing; "
            "if it is, look at what is computed of it before the model is called: a division by 0, or a log of 0.",
            code, "the model's own input was not finite",
        )  # fmt: skip


def _weight(case: Case, origin: Origin) -> Iterator[Remedy]:
    if origin.cause == "flipped":
        yield Remedy(
            f"Go back to a checkpoint in which all of {origin.where} is as usual, and run the same steps elsewhere.",
            "", "one element of it changed alone: where that comes again, code writes it; else it was the hardware",
        )  # fmt: skip
        return
    if origin.cause == "part":
        yield Remedy(
            f"Initialise all of {origin.where}: what torch.empty() leaves is what lay in that memory, and a loop over "
            "fewer parts than there are, or a checkpoint without them, leaves it so. Look for it right after building "
            "or loading the model.", BAD_PARAMETERS, "it held such values, and code between the modules used them",
        )  # fmt: skip
        return
    if origin.cause == "buffer":
        yield Remedy(
            f"Compute {origin.where} anew after loading or to_empty(), and look at what writes it.", BAD_BUFFERS,
            "it held what is no number, or far too large, when the forward used it, and no optimizer writes it",
        )  # fmt: skip
        return
    if case.is_first_step():
        yield Remedy(
            "Look for parameters that are not finite right after building or loading the model.", BAD_PARAMETERS,
            "it was so at the first step that is recorded",
        )  # fmt: skip
        return
    if origin.cause == "written":
        yield Remedy(
            f"Look at what writes to {origin.where} between step {case.bad.step - 1} and this one: a checkpoint that "
            "is loaded, or was saved in a format with a smaller range, an average, a reset. Check the parameters after "
            "it.", BAD_PARAMETERS, "its last update was finite",
        )  # fmt: skip
        return
    yield Remedy(
        "Look whether the optimizer or something else writes it: check the parameters after the update.",
        BAD_PARAMETERS, "what wrote it is not recorded; attach(level='frames', weight_every=1) records it",
    )  # fmt: skip


def _optimizer(case: Case, origin: Origin) -> Iterator[Remedy]:
    optimizer = optimizer_of(case, origin.where)
    if origin.cause == "eps" and optimizer is not None:
        yield Remedy(
            f"Give {optimizer.name} an eps that the parameters' dtype holds, or keep the parameters in float32.",
            OPTIMIZER_EPS, "its update divided 0 by 0",
        )  # fmt: skip
        return
    if origin.cause == "zero":
        name = "the optimizer" if optimizer is None else optimizer.name
        yield Remedy(
            f"Let {name} divide by no norm of 0: add an eps to it, and leave out parameters whose gradient is 0.",
            ZERO_GRADIENTS, "the gradient was 0 in all elements, and all of the weight is NaN",
        )  # fmt: skip
        return
    growth = case.gradient_growth or case.output_growth
    if origin.cause == "state" and growth is None:  # no learning rate makes that of gradients as they were
        yield Remedy(
            "Look at what the optimizer was given: its state is made of gradients, and turned bad with them.",
            CLIP_FINITE, "gradients and outputs had not grown before",
        )  # fmt: skip
        return
    because = "the weights or their updates turned bad while the gradients were finite"
    yield from _lower_rate(case, because)
    if growth is not None:
        yield (
            clip(growth)
            if case.gradient_growth is not None
            else Remedy(
                "Clip the gradients.",
                CLIP,
                f"outputs grew {growth.bits_a_step:.2g} bits a step for {growth.steps} steps",
            )
        )


def _loss(case: Case, origin: Origin) -> Iterator[Remedy]:
    if outputs_reach_limit(case):
        largest = case.largest_output_before or 0.0
        yield Remedy(
            "Compute the loss so that it stays finite for outputs of this size: with logarithms in place of what they "
            "are of (logsumexp, logsigmoid, softplus), or clamp what an exp or a square is given.",
            "def stable(outputs):  # exp of more than 88 is Inf in float32\n    return outputs.clamp(-60, 60)",
            f"outputs had come to {largest:.3g}, whose exponential or square is near the limit",
        )  # fmt: skip
        yield from growth_remedies(case, case.output_growth)
        return
    if (made := _beyond_a_square(case)) is not None:
        name = module_path(case.view.entries, made[0])
        yield Remedy(
            f"Look at what {name_of(name)} computes in this step: what comes out of it is too large for the loss.",
            watch_inside(name), f"its output was {made[1]:.3g}, whose square is beyond the limit of {case.entry.dtype}",
        )  # fmt: skip
        return
    if (last := _last_probabilities(case)) is not None:
        yield Remedy(
            "Give the loss the logits and not their softmax or sigmoid, and let it see at least one target.", LOSS,
            f"{last} is the last module, and its outputs may be 0: the outputs were finite and the loss was not",
        )  # fmt: skip
    else:
        yield Remedy(
            "Look in the loss function for a log, a division, a sqrt or a sum that is not finite for what it is given.",
            away_inside(""), "the outputs were finite and the loss was not",
        )  # fmt: skip
    yield Remedy(
        "Look at what else the loss of this step was given: targets and their weights.", check_targets(case.bad.step),
        "the outputs were finite, and it depends on these too",
    )  # fmt: skip


def _beyond_a_square(case: Case) -> tuple[str, float] | None:
    """Name and magnitude of the first finite output of the step whose square passes the limit."""
    view, limit_bits = case.view, headroom(case.entry.dtype, 1.0)
    for each in view.in_order(view.is_of("output") & ~view.is_bad):
        if view.amax(each) > 2.0 ** (limit_bits / 2):
            return view.entries[each].fqn, view.amax(each)
    return None


def _last_probabilities(case: Case) -> str | None:
    """Name of the last module that was called, where it gives probabilities."""
    outputs = [case.view.entries[each] for each in case.view.in_order(case.view.is_of("output"))]
    inner = [each for each in outputs if each.fqn]
    is_one = bool(inner) and any(word in inner[-1].module for word in ("Softmax", "Softmin", "Sigmoid"))
    return inner[-1].fqn if is_one and "Log" not in inner[-1].module else None


def _backward(case: Case, origin: Origin) -> Iterator[Remedy]:
    if reaches_limit(case, case.gradient_growth):
        yield from growth_remedies(case, case.gradient_growth)
    elif reaches_limit(case, case.growth):
        yield from growth_remedies(case, case.growth)
    elif is_near_limit(case):
        yield Remedy(
            f"Clip the gradients, or run {name_of(origin.where)} in float32: they passed the limit of "
            f"{case.entry.dtype}.", CLIP, "in the step before it was just below that limit",
        )  # fmt: skip
    elif overflowed_gradient.overflowed(case):
        yield from overflowed_gradient.remedies(case)
        return
    elif behind := operations.behind_where(case):
        yield operations.in_where(behind, "the loss was finite, and a torch.where is near where its gradient was not")
    else:
        yield Remedy(
            "sqrt, norm, pow below 1, log and division have an infinite gradient at 0: keep their input away from it.",
            away_inside(origin.where), "the forward was finite, and the gradient had not grown before",
        )  # fmt: skip
    yield Remedy(
        "Have torch name the operation, in one slow run of these steps.", FIND_BACKWARD, "it was made in the backward"
    )
    if case.entry.dtype in NARROW and not case.evidence.is_loss_scaled:
        yield scaler_remedies.scaler(
            "Train with a loss scaler, which skips such steps.", device_of(case.evidence), 2**16, 2_000,
            f"the gradient is {case.entry.dtype}",
        )  # fmt: skip


def _reduction(case: Case, origin: Origin) -> Iterator[Remedy]:
    yield Remedy("Reduce the gradients in float32.", REDUCE, "they were finite before the reduction")
    yield Remedy("Clip by a norm that is finite.", CLIP_FINITE, "clipping comes between")


_BY_ORIGIN: dict[str, Callable[[Case, Origin], Iterator[Remedy]]] = {
    "data": _data, "forward": forward_remedies, "between": between_remedies, "weight": _weight, "optimizer": _optimizer,
    "loss": _loss, "backward": _backward, "reduction": _reduction,
}  # fmt: skip
