"""The classic text report of one rank and step: the frames up to the first bad one.

A frame is a module with its weights, inputs and outputs, in the order in which the forwards end; then, where the first
bad one is there, modules in the order of the backward. Layout and words are what engineers know from Transformers'
`DebugUnderflowOverflow`: `abs min`, `abs max`, then what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

FRAMES = 21  # modules, as Transformers keeps
MAX_FRAMES = 10_000

Tensor = Mapping[str, Any]
Others = Mapping[str, Mapping[str, str]]
"""Module -> "input[1]" or "output[0]" -> "None" or "not a tensor"."""

_FORWARD = ("weight", "input", "output")


class Frame(NamedTuple):
    """One module's lines, the first bad tensor's position among all if one of them is not finite."""

    name: str
    lines: list[str]
    is_bad: bool


def text(
    run: str, rank: int, step: int, tensors: list[dict[str, Any]], others: Others | None = None, count: int = FRAMES
) -> str:
    """The report of `tensors` (as docs/api.md has them, in call order), with up to `count` frames of a pass."""
    forward = _cut(list(_forward_frames(tensors, others or {})), count)
    backward = _cut(list(_backward_frames(tensors)), count)
    bad = "forward" if _ends_bad(forward) else "backward" if _ends_bad(backward) else None
    head = f"Detected inf/nan during batch_number={step}" if bad else f"No inf/nan in batch_number={step}"
    lines = [head, f"(run {run}, rank {rank}, step {step})"]
    if not all(tensor["full"] for tensor in tensors):
        lines.append("(- : abs min was not measured at this step)")
    for name, frames in (("forward", forward), ("backward", backward)):
        if frames and bad in (None, name):
            lines += [f"Last {len(frames)} {name} frames:", "abs min  abs max  metadata"]
            lines += [line for frame in frames for line in (f"                  {frame.name}", *frame.lines)]
    return "\n".join(lines)


def _cut(frames: list[Frame], count: int) -> list[Frame]:
    """Up to `count` frames that end with the first bad one, or else the last."""
    end = next((position + 1 for position, frame in enumerate(frames) if frame.is_bad), len(frames))
    return frames[max(0, end - count) : end]


def _ends_bad(frames: list[Frame]) -> bool:
    return bool(frames) and frames[-1].is_bad


def _forward_frames(tensors: list[dict[str, Any]], others: Others) -> Iterator[Frame]:
    modules: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor["kind"] in ("input", "output"):
            lines = modules.pop(tensor["fqn"], [])  # its place is that of its last output
            modules[tensor["fqn"]] = [*lines, tensor]
    weights: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor["kind"] == "weight":
            module = tensor["fqn"].rpartition(".")[0]
            weights.setdefault(module, []).append(tensor)
            modules.setdefault(module, [])
    for fqn, seen in modules.items():
        own = sorted((*weights.get(fqn, ()), *seen), key=lambda tensor: _FORWARD.index(tensor["kind"]))
        other = {where: word for where, word in others.get(fqn, {}).items() if where not in map(_where, own)}
        yield Frame(_name(fqn, seen), _lines(own, other), any(map(_is_bad, own)))


def _lines(own: list[Tensor], others: Mapping[str, str]) -> list[str]:
    outputs = sum(tensor["kind"] == "output" for tensor in own) + sum(where.startswith("output") for where in others)
    lines = []
    for kind in _FORWARD:
        found = [
            (tensor["index"], f"{_range(tensor)} {_what(tensor, outputs)}{_note(tensor)}")
            for tensor in own
            if tensor["kind"] == kind
        ]
        found += [(_index(where), f"{word:>17} {where}") for where, word in others.items() if where.startswith(kind)]
        lines += [line for _, line in sorted(found, key=lambda each: each[0])]
    return lines


def _what(tensor: Tensor, outputs: int) -> str:
    if tensor["kind"] == "weight":
        return str(tensor["fqn"].rpartition(".")[2])
    return "output" if tensor["kind"] == "output" and outputs == 1 else _where(tensor)


def _where(tensor: Tensor) -> str:
    return f"{tensor['kind']}[{tensor['index']}]"


def _index(where: str) -> int:
    return int(where.rpartition("[")[2].rstrip("]"))


def _backward_frames(tensors: list[dict[str, Any]]) -> Iterator[Frame]:
    classes = {tensor["fqn"]: tensor for tensor in tensors if tensor["kind"] in ("output", "input", "grad_output")}
    frame: Frame | None = None
    for tensor in tensors:
        if tensor["kind"] in _FORWARD:
            continue
        is_module = tensor["kind"] == "grad_output"
        fqn = tensor["fqn"] if is_module else tensor["fqn"].rpartition(".")[0]
        name = _name(fqn, [classes[fqn]] if fqn in classes else [])
        what = _where(tensor) if is_module else f"{tensor['fqn'].rpartition('.')[2]} {tensor['kind']}"
        if frame is not None and frame.name != name:
            yield frame
            frame = None
        lines = [] if frame is None else frame.lines
        is_bad = _is_bad(tensor) or (frame is not None and frame.is_bad)
        frame = Frame(name, [*lines, f"{_range(tensor)} {what}{_note(tensor)}"], is_bad)
    if frame is not None:
        yield frame


def _name(fqn: str, seen: list[Tensor]) -> str:
    return f"{fqn or '(model)'} {seen[0]['module'] if seen else ''}".rstrip()


def _is_bad(tensor: Tensor) -> bool:
    return bool(tensor["nan_count"] or tensor["inf_count"])


def _range(tensor: Tensor) -> str:
    return f"{_low(tensor)} {_high(tensor)}"


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
