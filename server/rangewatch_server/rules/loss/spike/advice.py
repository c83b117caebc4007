"""Of a jump: the sentences that name its cause, what would decide, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.loss.learning_rate import Rate
from rangewatch_server.rules.loss.spike import changed_loss
from rangewatch_server.rules.loss.spike.changed_loss import ChangedLoss
from rangewatch_server.rules.loss.spike.weights import Thawed
from rangewatch_server.rules.nonfinite.causes import LIKELY, Candidate
from rangewatch_server.rules.rule import Remedy

NAMES = {
    "data": "the batch of that step", "learning_rate": "the learning rate",
    "weight": "a weight that had moved too far", "optimizer": "the optimizer's state",
    "forward_arithmetic": "what the loss was multiplied by",
    "clip": "gradients that were no longer clipped", "mask": "a mask that changed",
    "no_gradient": "how the loss is computed", "dead_units": "units that died, or experts that no row reaches any more",
    "regularization": "a term of the loss that was raised",
    "backward_arithmetic": "arithmetic of the backward", "eval": "the model's mode",
    "loss_scale": "a term that is made of scaled gradients",
}  # fmt: skip

_OVERWRITTEN = "weights that were overwritten"

_ALL_SINCE = "the batches since that step, or how their loss is computed"

_BOTH_LOSSES = (
    "Compute the loss of a batch from before that step again: if it is as it was then, the batches since are others "
    "(harder, or with other targets); if it is not, the loss is computed otherwise. Either may be meant."
)

_AS_BEFORE = "Go back to a checkpoint from before it and repeat these steps with as many calls as before."

_UPHILL = (
    "Make one update on one batch with a hundredth of the learning rate: the loss of that batch falls, or a sign is "
    "wrong."
)

_COMPARE = "Compare all parameters right after the optimizer's step and right before the next forward."

TESTS = {
    "data": "Go back to a checkpoint from before it and leave out this batch: if the jump is gone, the batch made it.",
    "learning_rate": "Go back to a checkpoint from before it and repeat these steps with the rate as it was.",
    "optimizer": "Go back to a checkpoint from before it and repeat these steps with the state left as it was.",
    "forward_arithmetic": "Compute the loss of that batch again, outside of the loop: if it is usual there, the loop's "
    "code multiplied it.",
    "clip": "Go back to a checkpoint from before it and repeat these steps with the clip as it was.",
    "backward_arithmetic": "Run this step with torch.autograd.set_detect_anomaly(True).",
    "no_gradient": "Print each step of the loss's own computation for one batch, in its dtype and in float32.",
    "regularization": "Log each term of the loss by itself: the one that rose at that step is it.",
    "dead_units": "Count what each ReLU gives above 0, or the rows of each expert, in the steps before it and since.",
    "mask": "Compute the loss of one batch with the mask of a step before it and with that of now.",
    "eval": "Compute the loss of one batch in train() and in eval().",
    "loss_scale": "Log the term by itself, and compare it at a loss scale of 1.",
    "weight": "Run the step before with this batch: a loss that is usual there speaks for the weights, not the batch.",
}  # fmt: skip


def verdict(
    order: list[Candidate],
    *,
    are_written: bool,
    is_of_all_since: bool,
    is_of_calls: bool = False,
    climbs: bool = False,
    changed: ChangedLoss | None = None,
) -> Iterator[str]:
    if not order:
        yield "Why is not known: nothing else that was recorded left its usual range with it."
        return
    best, *others = order
    is_written = are_written and best.cause == "weight"
    name, test = (_OVERWRITTEN, _COMPARE) if is_written else (NAMES[best.cause], TESTS[best.cause])
    if is_of_all_since and best.cause == "data":
        name, test = _ALL_SINCE, _BOTH_LOSSES
    if is_of_calls:
        name, test = ("gradients that are summed" if best.cause == "optimizer" else "a longer recurrence"), _AS_BEFORE
    if climbs:
        name, test = "the direction of the updates", _UPHILL
    if changed is not None and best.cause != "loss_scale":
        name, test = changed_loss.NAME, changed_loss.TEST
    yield f"Cause ({best.sureness}): {name}. {' '.join(best.supports)}"
    for text in best.against:
        yield f"Not known: {text}"
    for each in others[:1]:
        other = _ALL_SINCE if is_of_all_since and each.cause == "data" else NAMES[each.cause]
        yield f"Less likely: {other}. {' '.join(each.supports)}"
    yield f"What would decide: {test}"


def remedies(
    order: list[Candidate],
    step: int,
    rate: Rate | None,
    place: TensorEntry | None,
    *,
    is_lasting: bool,
    is_of_all_since: bool,
    are_written: bool = False,
    thawed: Thawed | None = None,
    is_of_calls: bool = False,
    climbs: bool = False,
    changed: ChangedLoss | None = None,
) -> Iterator[Remedy]:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)"
    is_named = bool(order) and (order[0].weight >= LIKELY or order[0].cause == "data")
    cause = order[0].cause if is_named else ""
    because = order[0].supports[0].partition(": ")[0].rstrip(".") if cause else "based on the loss alone"
    if changed is not None and cause:
        yield changed_loss.remedy(changed, step, because)
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif is_of_calls and cause == "optimizer":
        yield Remedy(
            "Divide each microbatch's loss by their number before its backward; or lower the learning rate as far, or "
            "clip the gradients, where their sum is meant.",
            "def backward(loss, microbatches):  # of each\n    (loss / microbatches).backward()", because,
        )  # fmt: skip
    elif is_of_calls and cause == "forward_arithmetic":
        yield Remedy(
            "Hold what one round passes on to the next, by a normalisation, a gate, a tanh or a clamp; and make the "
            "recurrence longer in small steps.",
            "", because,
        )  # fmt: skip
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif is_of_calls and cause == "backward_arithmetic":
        yield Remedy(
            "Clip the gradients, and make the recurrence longer in small steps, or cut the backward off after some "
            "rounds (truncated backpropagation).",
            clip, because,
        )  # fmt: skip
    elif cause == "backward_arithmetic":
        where = "in the loss of that step" if place is None else f"in {place.fqn or 'the model'} and right behind it"
        yield Remedy(
            f"Look for a root, norm, logarithm or division of what is nearly 0 {where}, and for an autograd function "
            "or a hook of your own there; add an epsilon, and go back to a checkpoint from before.",
            "with torch.autograd.set_detect_anomaly(True):\n    pass  # run that step here, and print the gradients",
            because,
        )  # fmt: skip
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif cause == "learning_rate" and rate is not None and rate.high < 0:
        yield Remedy(
            "Look at the schedule: the learning rate must not fall below 0. Clamp it, and go back to a checkpoint from "
            f"before step {rate.step}.",
            "for group in optimizer.param_groups:\n    group['lr'] = max(group['lr'], 0.0)", because,
        )  # fmt: skip
    elif cause == "learning_rate" and rate is not None and rate.group is not None:
        yield Remedy(
            f"Set the learning rate of parameter group {rate.group} back to {rate.low:.3g}, or raise it in small "
            "steps.",
            "groups = optimizer.param_groups  # of several optimizers those of the first come first\n"
            f"groups[{rate.group}]['lr'] *= {rate.low / rate.high:.3g}", because,
        )  # fmt: skip
    elif cause == "learning_rate" and rate is not None:
        yield Remedy(
            f"Set the learning rate back to {rate.low:.3g}, or raise it in small steps.",
            f"for group in optimizer.param_groups:\n    group['lr'] *= {rate.low / rate.high:.3g}", because,
        )  # fmt: skip
    elif cause == "learning_rate" and thawed is not None:
        yield Remedy(
            f"Give the parameters that are trained since step {thawed.step} a parameter group with a smaller learning "
            "rate of its own, such as a tenth to a hundredth, or warm it up from there; and go back to a checkpoint "
            "from "
            "before.",
            f"thawed = dict(model.named_parameters())[{thawed.fqn!r}]\n"
            "for group in optimizer.param_groups:\n"
            "    if any(each is thawed for each in group['params']):\n"
            "        group['lr'] *= 0.01",
            because,
        )  # fmt: skip
    elif cause == "learning_rate":
        code = "for group in optimizer.param_groups:\n    group['lr'] *= 0.1"
        yield Remedy("Lower the learning rate.", code, because)
    elif cause == "data":
        computed = "and at how the loss is computed: a sum where a mean was, a factor, a mask."
        text = f"Look at the batch of step {step}, its targets too, and leave out what is wrong with it; {computed}"
        if is_lasting:
            text = f"Look at the batches from step {step} on, their targets too, {computed}"
        yield Remedy(
            text,
            "def name_rows(ids, losses):  # call it in the loop: findings then name the rows\n"
            "    rangewatch.batch(ids=ids, losses=losses)",
            because,
        )  # fmt: skip
        if is_of_all_since:
            yield Remedy(
                f"Look at what the loop does at step {step}: a mask that is made another way (turned around: True is "
                "what nn.MultiheadAttention leaves out and scaled_dot_product_attention reads), a limit on the "
                "weights of rows that is gone, a term of the loss that is raised or switched on. Data that become "
                "harder are no fault where that is meant.",
                "", because,
            )  # fmt: skip
            return
        if order[0].weight < LIKELY:
            yield Remedy(
                f"Go back to a checkpoint from before step {step}, and see whether it comes again with other batches.",
                "", because,
            )  # fmt: skip
        yield Remedy("Clip the gradients, so that one batch moves the weights by so much at most.", clip, because)
    elif cause == "mask":
        yield Remedy(
            f"Look at the mask from step {step} on. Of booleans True is what scaled_dot_product_attention reads, and "
            "what nn.MultiheadAttention and Transformer layers leave out. One that is added must be -inf at each place "
            "that is padding or lies ahead, and 0 elsewhere: ones and zeros, as tokenizers give them, mask nothing.",
            "mask = torch.zeros(4, 8).masked_fill(torch.arange(8) >= 5, float('-inf'))  # places from 5 on are padding",
            because,
        )
    elif cause == "eval":
        yield Remedy(
            f"Call model.train() before step {step}, after the evaluation. If batch norms are to stand still from "
            "there on, see what their running statistics are of: an evaluation in train() moves them.",
            "model.train()  # before the forward of each training step", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "no_gradient":
        yield Remedy(
            "Compute the loss in float32, its sums above all, and divide only then; and look for a clamp that all "
            f"values are beyond since step {step}.",
            "prediction, target = torch.rand(8), torch.rand(8)  # of the loop\n"
            "overlap = (prediction.float() * target.float()).sum()  # and not .half()",
            because,
        )
    elif cause == "dead_units" and place is not None and place.kind == "output":
        yield Remedy(
            f"Look at what wrote to the weights or the bias of the layer before {place.fqn} at step {step}, outside of "
            "the optimizer, and at the size of the update right before it. Dead ReLUs get no gradient and stay so: go "
            f"back to a checkpoint from before step {step}, or initialise that layer anew.",
            "", because,
        )  # fmt: skip
    elif cause == "dead_units":
        yield Remedy(
            f"Look at what gives rows to experts at step {step}: the router's weights and bias, its balance, or the "
            "rule (a hash, a number) by which rows are shared out: some experts get none since then, others theirs.",
            "", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "regularization":
        where = "the weights" if place is None or place.kind == "grad" else f"the output of {place.fqn or 'the model'}"
        yield Remedy(
            f"Look at the term of the loss that is computed from {where}, and at what was set at step {step}: its "
            "weight, or a sum in place of a mean. If it is to be raised, raise it in small steps: what it is a penalty "
            "on is driven to 0 else, and units, or gates, that it drives there give no gradient any more (dead ReLU, "
            "saturated sigmoid).",
            "", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}, with the term as it was.", "", because)
    elif cause == "forward_arithmetic":
        yield Remedy(
            f"Look at what multiplied the loss at step {step}: the weight of a term or of rows, a sum in place of a "
            "mean, a division (by microbatches, by targets that count) that was left out or was by nearly 0.",
            "", because,
        )  # fmt: skip
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif cause == "clip":
        yield Remedy(
            f"Clip the gradients in each step, as before step {step}, or lower the learning rate where the clip is "
            "meant to end: all of a gradient is in the update without it.",
            clip, because,
        )  # fmt: skip
    elif cause == "optimizer" and climbs:
        yield Remedy(
            "Look for a sign: maximize in the optimizer's groups, a learning rate or a limit of a clip (by norm, or by "
            "a share of the weights) that has fallen below 0, a minus before the loss. If there is none, lower the "
            "learning rate.",
            "for group in optimizer.param_groups:\n    print(group['lr'], group.get('maximize'))", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "optimizer" and are_written:
        yield Remedy(
            "Save and load the whole state of what writes to the weights besides the optimizer (Lookahead's slow "
            "weights, an average): build it from the weights after the checkpoint is loaded, or restore it with it.",
            "checkpoint = {'model': model.state_dict(), 'optimizer': optimizer.state_dict()}\n"
            "# and the copies that are written back, under a name of their own",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "optimizer":
        yield Remedy(
            "Look at the optimizer's state, and at what loaded or set it: whether it is whole (second moments and the "
            "count of steps too), of this model, of these parameters in this order, and of gradients without a loss "
            "scale; its groups bring their learning rate, momentum and maximize along. Else begin with a new optimizer "
            "and a warm-up.",
            "for state in optimizer.state.values():\n"
            "    print({name: float(each.abs().max()) for name, each in state.items() if torch.is_tensor(each)})",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "weight" and are_written:
        yield Remedy(
            f"See what wrote to the weights right before step {step}: an average's weights (EMA) that were copied into "
            "the model for an evaluation and not restored, a checkpoint that was loaded, or a reset. Restore them, or "
            "evaluate a copy of the model.",
            "import copy\n"
            "evaluated = copy.deepcopy(model)  # give this one the average's weights: the model keeps its own",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "weight":
        where = "it" if place is None else place.fqn
        yield Remedy(
            f"See what wrote to the weights or the bias of {where} right before step {step}: code that sets them, a "
            "group of the optimizer with settings of its own, a checkpoint that was loaded, or a bit that flipped.",
            "", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    else:
        yield Remedy(
            f"Go back to a checkpoint from before step {step}, and see whether it comes again with other batches.",
            "",
            because,
        )
        yield Remedy("Clip the gradients, so that one batch moves the weights by so much at most.", clip, because)
        yield Remedy(
            "Lower the learning rate, if it jumps again.",
            "for group in optimizer.param_groups:\n    group['lr'] *= 0.5",
            because,
        )
