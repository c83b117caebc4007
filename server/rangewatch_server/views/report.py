"""The classic text report of one rank and step: the frames up to the one that holds the first bad tensor.

A frame is a module with its weights, inputs and outputs, in the order in which the forwards end; or, where the first
bad one is there, modules in the order of the backward, or what the optimizer got and did. Layout and words are what
engineers know from Transformers' `DebugUnderflowOverflow`: `abs min`, `abs max`, then what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rangewatch.wire.records import MOMENTS

FRAMES = 21  # modules, as Transformers keeps
MAX_FRAMES = 10_000

Tensor = Mapping[str, Any]
Others = Mapping[str, Mapping[str, str]]
"""Module -> "input[1]" or "output[0]" -> "None", "not a tensor", "integer tensor" or "bool tensor"."""

_FORWARD = ("weight", "input", "output")
_OPTIMIZER = ("reduced_grad", "update", *MOMENTS)


class Frame(NamedTuple):
    """One module's lines, and whether it is the first to end with what was bad first."""

    name: str
    lines: list[str]
    holds_first: bool


def text(
    run: str, rank: int, step: int, tensors: Sequence[Tensor], first: int | None, others: Others | None = None,
    count: int = FRAMES,
) -> str:  # fmt: skip
    """The report of `tensors` (as docs/api.md has them, in call order), with up to `count` frames of a section.

    `first`: which of the tensors held NaN or Inf first; None when all are finite.
    """
    bad = None if first is None else tensors[first]
    backward = [tensor for tensor in tensors if tensor["kind"] not in (*_FORWARD, *_OPTIMIZER)]
    sections = {
        "forward": list(_forward_frames(tensors, others or {}, bad)),
        "backward": list(_gradient_frames(tensors, backward, bad)),
        "optimizer": list(_gradient_frames(tensors, [each for each in tensors if each["kind"] in _OPTIMIZER], bad)),
    }
    head = f"No inf/nan in batch_number={step}" if bad is None else f"Detected inf/nan during batch_number={step}"
    if not tensors:
        head = f"Nothing is stored for batch_number={step}"
    lines = [head, f"(run {_plain(run)}, rank {rank}, step {step})"]
    if not all(tensor["full"] for tensor in tensors):
        lines.append("(- : abs min was not measured at this step)")
    for name, frames in sections.items():
        shown = _cut(frames, count)
        if shown and (bad is None or shown[-1].holds_first):
            lines += [f"Last {len(shown)} {name} frames:", "abs min  abs max  metadata"]
            lines += [line for frame in shown for line in (f"                  {frame.name}", *frame.lines)]
    return "\n".join(lines)


def _cut(frames: list[Frame], count: int) -> list[Frame]:
    """Up to `count` frames that end with the one that holds the first bad tensor, or else the last."""
    end = next((position + 1 for position, frame in enumerate(frames) if frame.holds_first), len(frames))
    return frames[max(0, end - count) : end]


def _plain(name: str) -> str:
    """A name in one line: names are untrusted, and what is no letter must neither forge lines nor steer a terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def _forward_frames(tensors: Sequence[Tensor], others: Others, bad: Tensor | None) -> Iterator[Frame]:
    modules: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor["kind"] in ("input", "output"):
            lines = modules.pop(tensor["fqn"], [])  # its place is that of its last output
            modules[tensor["fqn"]] = [*lines, tensor]
    weights: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor["kind"] == "weight":
            weights.setdefault(tensor["fqn"].rpartition(".")[0], []).append(tensor)
    # Of a tied embedding, or a module that is not called itself, only the weight is seen: it was there before all.
    unseen: dict[str, list[Tensor]] = {fqn: [] for fqn in weights if fqn not in modules}
    for fqn, seen in (unseen | modules).items():
        own = sorted((*weights.get(fqn, ()), *seen), key=lambda tensor: _FORWARD.index(tensor["kind"]))
        other = {where: word for where, word in others.get(fqn, {}).items() if where not in map(_where, own)}
        is_first = any(tensor is bad for tensor in own)
        if bad is not None and _is_inside(fqn, bad):
            is_first = is_first or any(map(_is_bad, own))
        yield Frame(_name(fqn, seen), _lines(own, other), is_first)


def _is_inside(fqn: str, bad: Tensor) -> bool:
    """Whether `bad` is the input of a module that holds this one: a frame ends with its forward, so this is sooner."""
    return bad["kind"] == "input" and (fqn.startswith(f"{bad['fqn']}.") or not bad["fqn"])


def _is_bad(tensor: Tensor) -> bool:
    return bool(tensor["nan_count"] or tensor["inf_count"])


def _lines(own: list[Tensor], others: Mapping[str, str]) -> list[str]:
    outputs = sum(tensor["kind"] == "output" for tensor in own) + sum(where.startswith("output") for where in others)
    lines = []
    for kind in _FORWARD:
        numbered = [
            (tensor["index"], f"{_range(tensor)} {_what(tensor, outputs)}{_note(tensor)}")
            for tensor in own
            if tensor["kind"] == kind
        ]
        numbered += [(_index(where), f"{word:>17} {where}") for where, word in others.items() if where.startswith(kind)]
        lines += [line for _, line in sorted(numbered, key=lambda each: each[0])]
    return lines


def _what(tensor: Tensor, outputs: int) -> str:
    if tensor["kind"] == "weight":
        return _plain(tensor["fqn"].rpartition(".")[2])
    return "output" if tensor["kind"] == "output" and outputs == 1 else _where(tensor)


def _where(tensor: Tensor) -> str:
    return f"{tensor['kind']}[{tensor['index']}]"


def _index(where: str) -> int:
    return int(where.rpartition("[")[2].rstrip("]"))


def _gradient_frames(tensors: Sequence[Tensor], wanted: Sequence[Tensor], bad: Tensor | None) -> Iterator[Frame]:
    """Neighbours of `wanted` that belong to one module, in call order; `tensors` have the modules' classes."""
    classes = {tensor["fqn"]: tensor for tensor in tensors if tensor["kind"] in ("output", "input", "grad_output")}
    for fqn, group in groupby(wanted, _module):
        own = list(group)
        lines = [f"{_range(tensor)} {_gradient(tensor)}{_note(tensor)}" for tensor in own]
        name = _name(fqn, [classes[fqn]] if fqn in classes else [])
        yield Frame(name, lines, any(tensor is bad for tensor in own))


def _module(tensor: Tensor) -> str:
    fqn: str = tensor["fqn"]
    return fqn if tensor["kind"] == "grad_output" else fqn.rpartition(".")[0]


def _gradient(tensor: Tensor) -> str:
    is_module = tensor["kind"] == "grad_output"
    return _where(tensor) if is_module else f"{_plain(tensor['fqn'].rpartition('.')[2])} {tensor['kind']}"


def _name(fqn: str, seen: list[Tensor]) -> str:
    return f"{_plain(fqn) or '(model)'} {_plain(seen[0]['module']) if seen else ''}".rstrip()


def _range(tensor: Tensor) -> str:
    return f"{_low(tensor)} {_high(tensor)}" if tensor["numel"] else f"{'empty':>17}"


def _note(tensor: Tensor) -> str:
    """Underflow, which the bare range does not show."""
    return f"  ({tensor['what']})" if tensor["what"].startswith("underflow") else ""


def _low(tensor: Tensor) -> str:
    if not tensor["full"]:
        return "       -"
    zero = bool(tensor["zero_fraction"])
    return f"{0.0:8.2e}" if zero else "     nan" if tensor["amin"] is None else f"{tensor['amin']:8.2e}"


def _high(tensor: Tensor) -> str:
    if tensor["nan_count"]:
        return "     nan"
    if tensor["inf_count"]:
        return "     inf"
    return "     nan" if tensor["amax"] is None else f"{tensor['amax']:8.2e}"
