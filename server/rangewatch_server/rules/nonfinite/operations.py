"""Which operation outside of the modules made a loss or a gradient NaN or Inf, as far as the autograd graph shows it.

The graph of a loss that was not finite has operands and results; of one that was, whose gradient was not, the names of
the operations alone. A division or a logarithm is not finite in the forward either where its backward is not: the loss
stays finite where a comparison, an index or `torch.where` drops that. A root or a norm of 0 is finite.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from rangewatch.wire.events import LoadedBatch, LossGraph, SavedValue
from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.tensor_phrases import counts, several
from rangewatch_server.rules.rule import Remedy

WORDS = {
    "Exp": "an exponential", "Expm1": "an exponential", "Log": "a logarithm", "Log2": "a logarithm",
    "Log10": "a logarithm", "Xlogy": "a logarithm", "Div": "a division", "Reciprocal": "a division",
    "Rsqrt": "one divided by a root", "Sqrt": "a root", "Pow": "a power", "Norm": "a norm",
    "LinalgVectorNorm": "a norm", "Std": "a standard deviation", "Var": "a variance", "Mul": "a multiplication",
    "Add": "a sum", "Sub": "a difference",
    "MseLoss": "mse_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "NllLoss": "nll_loss",
    "BinaryCrossEntropy": "binary_cross_entropy", "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "Logsumexp": "logsumexp", "Acos": "an arc cosine", "Asin": "an arc sine",
}  # fmt: skip

BAD_IN_FORWARD = ("Div", "Reciprocal", "Rsqrt", "Log", "Log2", "Log10", "Xlogy")
"""Operations that are not finite where their gradient is not."""

BAD_IN_BACKWARD = ("Sqrt", "Pow", "Norm", "LinalgVectorNorm", "Std", "Var", "Acos", "Asin", "Atan2", "Cdist", "Prod")
"""Those that are, and whose gradient is not."""

WHERE, OVERFLOWING = "Where", ("Exp", "Expm1")
"""What drops the value of a branch, and not its gradient; and operations whose result, and so their gradient, is Inf of
a large number."""

SOFTMAX = ("Softmax", "LogSoftmax", "Logsumexp")
"""Operations that are finite of finite numbers, and not of a row that is masked whole."""

NARROW = ("float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def word(op: str) -> str:
    """What an operation is called; a function of the user's own by its name."""
    return WORDS.get(op, op.lower() if op.isidentifier() and not op.endswith("Backward") else op)


def graph_of(case: Case) -> LossGraph | None:
    """What the rank's agent saw at this step of the graph, if anything."""
    at = case.bad.rank, case.bad.step
    known = [graph for event, graph in case.evidence.details(LossGraph) if (event.rank, event.step) == at]
    return known[0] if known else None


def made_by(graph: LossGraph) -> SavedValue | None:
    """The operation whose own result was the first that was not finite, or that was given what it has no value for."""
    result = next((each for each in graph.bad if each.name == "result"), None)
    return result or (None if given(graph) is not None else next(iter(graph.risky), None))


def is_empty_count(made: SavedValue) -> bool:
    """Whether it divides by one number, which no gradient goes through, that is 0: of a loss that is NaN by 0 / 0, what
    was to be averaged was counted, and there was nothing."""
    return made.op in ("Div", "Reciprocal") and made.is_given and made.value.numel == made.value.zero_count == 1


def given(graph: LossGraph) -> SavedValue | None:
    """Of what the loss was given from outside the operand with the fewest bad elements, a target rather than others;
    None where results were bad."""
    if any(each.name == "result" for each in graph.bad):
        return None
    every = [each for each in graph.bad if each.is_given]
    return min(every, key=lambda each: (each.value.nan_count + each.value.inf_count, not is_target(each)), default=None)


def is_target(saved: SavedValue) -> bool:
    """Whether outputs are compared with it, and not multiplied by it."""
    return saved.name == "target" or saved.op == "Sub"


def is_whole(saved: SavedValue) -> bool:
    """Whether nothing of it was finite: a mean or a deviation over all of it spreads what is bad."""
    return saved.value.nan_count + saved.value.inf_count == saved.value.numel


def hidden_in_forward(case: Case) -> tuple[str, ...]:
    """Of a gradient that was bad first: the operations near it that were bad in the forward already, if no other can
    have made it; () else."""
    ops = ops_of(case)
    if WHERE in ops or any(op in BAD_IN_BACKWARD or op.endswith("Backward") for op in ops):
        return ()
    return tuple(op for op in ops if op in BAD_IN_FORWARD)


def behind_where(case: Case) -> tuple[str, ...]:
    """Of a gradient that was bad first: the operations near it that may be so in the branch that torch.where drops; ()
    where there is no torch.where."""
    ops = ops_of(case)
    able = (*BAD_IN_FORWARD, *BAD_IN_BACKWARD, *OVERFLOWING)
    return tuple(op for op in ops if op in able) if WHERE in ops else ()


def ops_of(case: Case) -> tuple[str, ...]:
    """Names of the operations between the gradient that was bad first and the next module towards the loss."""
    graph, fqn = graph_of(case) if case.entry.kind == "grad_output" else None, case.entry.fqn
    if graph is None or graph.gradient_of is None:
        return ()
    # A module returns the output of one inside it as it is: then both have the same gradient.
    short, long = sorted((graph.gradient_of, fqn), key=len)
    return graph.ops if not short or long == short or long.startswith(f"{short}.") else ()


def sentences(case: Case) -> Iterator[str]:
    """What the graph shows of a loss that was not finite."""
    graph = graph_of(case)
    if graph is None:
        return
    made, came = made_by(graph), given(graph)
    if made is not None:
        yield made_text(made)
    elif came is not None:
        yield (
            f"{_operand(came)}, held {counts(came.value)}, and no gradient goes on from it: it came from outside of "
            f"what is differentiated, {_outside(came)}"
        )
    if graph.loaded is not None and made is None:
        yield loaded_text(graph.loaded)


def loaded_text(loaded: LoadedBatch) -> str:
    """What is known of the loader's batch."""
    if loaded.bad_count:
        where = "; what was not finite lies in it, as it was given" if loaded.is_given else ""
        return (
            f"The loader's batch held NaN or Inf in {loaded.bad_count} of its {loaded.count} floating tensors{where}."
        )
    return "The loader's batch, which lies there unchanged, is finite."


def _outside(came: SavedValue) -> str:
    if is_whole(came):
        return "and all of it is bad: a statistic over it, as a mean or a deviation of 0, makes all bad at once."
    return "such as targets, rewards or weights of rows. Some of its elements are bad, and others are not."


def _operand(saved: SavedValue) -> str:
    shape = "" if saved.value.shape is UNSET else f" of shape {list(saved.value.shape)}"
    of = "The target" if saved.name == "target" else "The weights" if "weight" in saved.name else "What"
    how = (
        f"of {word(saved.op)} in the loss"
        if of != "What"
        else f"the loss was given beside outputs, for {word(saved.op)}"
    )
    return f"{of} {how}, {saved.value.dtype}{shape}"


def made_text(saved: SavedValue) -> str:
    """What is known of the operation that made a loss bad."""
    name, value = word(saved.op), saved.value
    if saved.name == "result":
        return f"The first operation that was not finite is {name} ({saved.op}) in {value.dtype}: {counts(value)}."
    zeros = value.zero_count if isinstance(value.zero_count, int) else 0
    negative = value.negative_count if isinstance(value.negative_count, int) else 0
    held = [f"{zeros} zeros"] * bool(zeros) + [f"{negative} negative elements"] * bool(negative)
    what = "divisor" if saved.op in ("Div", "Reciprocal") else "operand"
    return f"There is {name} ({saved.op}) whose {what} held {' and '.join(held)} among {value.numel} elements."


def of_masked_row(op: str) -> str:
    """What one of `SOFTMAX` gives."""
    if op == "Logsumexp":
        return (
            "logsumexp of finite numbers is finite, and of a row that is masked whole it is -Inf: nothing is left in "
            "it, as of the negatives of a batch of one row."
        )
    return "A softmax of finite numbers is finite, and of a row that is masked whole it is NaN."


def near(case: Case) -> Iterator[str]:
    """The operations that may have made a gradient bad."""
    ops = ops_of(case)
    known = (*BAD_IN_FORWARD, *BAD_IN_BACKWARD, *(OVERFLOWING if WHERE in ops else ()))
    able = [op for op in ops if op in known or op.endswith("Backward")]
    if not ops:
        return
    if not able:
        return
    yield (
        f"Between that and the next module towards the loss there are the operations {several(list(ops), 12)}; of "
        f"finite numbers these give NaN or Inf: {several([f'{word(op)} ({op})' for op in able], 6)}."
    )


def remedies(case: Case, because: str) -> Iterator[Remedy]:
    """Against the operation that is named; none where none is."""
    graph = graph_of(case)
    made = None if graph is None else made_by(graph)
    hidden = hidden_in_forward(case)
    if made is not None and made.op not in SOFTMAX:
        yield against(made.op, because)
    elif hidden:
        yield against(hidden[0], because)


def in_where(ops: tuple[str, ...], because: str) -> Remedy:
    """Against what `behind_where` gives."""
    return Remedy(
        f"Give {several([word(op) for op in ops], 4)} a harmless operand where torch.where takes the other branch: "
        "choose what goes in, and not only what comes out; or take a function that is finite there, such as softplus.",
        "def safe_where(wanted, value, function, other):  # function(value) where wanted, and else other\n"
        "    return torch.where(wanted, function(torch.where(wanted, value, torch.ones_like(value))), other)",
        because,
    )  # fmt: skip


def against(op: str, because: str) -> Remedy:
    """Advice on an operation that is not finite for what it was given."""
    if op in ("Exp", "Expm1"):
        return Remedy(
            "Bound what the exponential is given, or take a function that does not overflow: logsigmoid, log_softmax "
            "or logaddexp; and compute it in float32.",
            "def bounded_exp(value):  # in float32 exp() of more than 88 is Inf, in float16 of more than 11\n"
            "    return torch.exp(value.float().clamp(max=20.0))", because,
        )  # fmt: skip
    if op in ("Log", "Log2", "Log10", "Xlogy"):
        return Remedy(
            "Keep what the logarithm is given above 0: clamp it, or take logits and log_softmax or logsigmoid. "
            "torch.where after it does not help its gradient.",
            "def safe_log(value):\n    return torch.log(value.clamp(min=torch.finfo(value.dtype).tiny))", because,
        )  # fmt: skip
    if op in ("Div", "Reciprocal", "Rsqrt"):
        return Remedy(
            "Keep the divisor away from 0: clamp it or add an eps. A comparison or an index that drops what is not "
            "finite does not help its gradient.",
            "def safe_ratio(value, divisor):\n    return value / divisor.clamp(min=1e-6)", because,
        )  # fmt: skip
    return Remedy(f"Look at {word(op)} in the code of the loss: keep what it is given where it is finite.", "", because)
