"""What is said of a death: the event `died`, its data, and its sentence. Pure.

What is known is told as known; what follows from the order of the step before is told with that.
"""

from __future__ import annotations

import re
import signal
import sysconfig
from collections.abc import Sequence
from typing import Any

from rangewatch.last_words import layout
from rangewatch.records import Event, TensorEntry
from rangewatch.watcher.endings import Ending, signal_name
from rangewatch.watcher.recovery import Collective, Scene

_FORWARD, _BACKWARD = ("input", "output"), ("grad_output", "grad")
_STACK_CHARACTERS = 32_000
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (\S+)', re.MULTILINE)
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_IN = {
    "data_wait": "in the data loader", "forward": "in forward", "backward": "in backward",
    "optimizer": "in the optimizer",
}  # fmt: skip
_THE = {
    "output": "", "input": "the input of ", "grad_output": "the gradient of the output of ",
    "grad": "the gradient of ", "reduced_grad": "the reduced gradient of ", "update": "the update of ",
    "weight": "the weight ",
}  # fmt: skip


def died(
    ending: Ending, scene: Scene | None, tensors: Sequence[TensorEntry], oom_kills: int, stack: str, time_ns: int
) -> Event:
    """The event. `scene` None: nothing is known but how it ended. `stack`: what faulthandler wrote."""
    data: dict[str, Any] = {
        "exit_code": ending.exit_code, "signal": ending.signal, "core_dumped": ending.core_dumped,
        "signal_name": signal_name(ending.signal) if ending.signal else None, "oom_kills": oom_kills,
        "stack": stack[:_STACK_CHARACTERS], "replaced": ending.is_replaced,
    }  # fmt: skip
    said_goodbye = scene is not None and scene.closed == layout.AT_EXIT
    parts = [how(ending, oom_kills, said_goodbye=said_goodbye)]
    line = innermost(stack)
    if scene is None:
        where, step = "", -1
    elif said_goodbye:
        where, step = ", after its goodbye, while the interpreter ended", scene.step
    else:
        where, step = _where(scene, tensors, data), scene.step
        parts += _of_collectives(scene.collectives)
    parts[0] += where
    if line:
        parts.append(f"Python was at {line}")
    return Event("died", time_ns, step, "; ".join(parts)[:1000], data)


def how(ending: Ending, oom_kills: int, *, said_goodbye: bool = False) -> str:
    """How it ended, as the words after "rank 5"."""
    if ending.signal == signal.SIGTERM:
        return "was ended by signal 15 (SIGTERM: a preemption or a stop of the job)"
    if ending.signal is not None:
        name = signal_name(ending.signal)
        text = f"died of signal {ending.signal}" + (f" ({name})" if name else "")
        if ending.signal == signal.SIGKILL and oom_kills:
            times = "once" if oom_kills == 1 else f"{oom_kills} times"
            text += f", and the out-of-memory killer of its control group struck {times} in the minute before,"
        return text
    if ending.is_replaced:
        return "went on as another program (exec) without a goodbye"
    if ending.exit_code is not None:
        so = "(such as sys.exit)" if said_goodbye else "without a goodbye (os._exit, or an end outside of Python)"
        return f"ended with exit code {ending.exit_code} {so}"
    return "ended without a goodbye (how is not known: its parent took the exit status, and this kernel keeps it not)"


def _where(scene: Scene, tensors: Sequence[TensorEntry], data: dict[str, Any]) -> str:
    last = tensors[scene.tensor] if scene.tensor is not None else None
    following = _next(scene, tensors)
    inside = None if last is None or following is None else _inside(last, following, tensors)
    data |= {
        "step": scene.step, "phase": scene.phase or None, "last": _told(last), "next": _told(following),
        "module": inside, "collectives": [each._asdict() for each in scene.collectives],
    }  # fmt: skip
    text = f" in step {scene.step}"
    if scene.phase in _IN:
        text += f", {_IN[scene.phase]}"
    if last is None:
        return f"{text}, before any tensor of it was recorded"
    if inside is not None and last.kind in _FORWARD:
        text += f", inside {inside or 'the model'}"
    text += f", after {_named(last)}"
    if following is not None:
        text += f" and before {_named(following)} (by the order of the step before)"
    return text


def _next(scene: Scene, tensors: Sequence[TensorEntry]) -> TensorEntry | None:
    """What was recorded next in the step before; None unless the step before tells, and its phase fits.

    A tensor that is read more or less often than the last one is in another loop: then nobody knows.
    """
    if scene.tensor is None or scene.tensor >= len(scene.calls):
        return None
    last = tensors[scene.tensor]
    kinds = _FORWARD if last.kind in _FORWARD else _BACKWARD if last.kind in _BACKWARD else ()
    phase = "forward" if kinds is _FORWARD else "backward"
    if scene.phase in _IN and scene.phase != phase:
        return None
    order = sorted(
        (entry.call_index, number)
        for number, entry in enumerate(tensors[: len(scene.calls)])
        if entry.kind in kinds and scene.calls[number] > 0
    )
    place = (last.call_index, scene.tensor)
    following = next((number for at in order if at > place for number in at[1:]), None)
    if following is None or scene.calls[following] != scene.calls[scene.tensor]:
        return None
    return tensors[following]


def _inside(last: TensorEntry, following: TensorEntry, tensors: Sequence[TensorEntry]) -> str | None:
    """The innermost module that runs from the one tensor to the other, of those that are observed; None: unknown.

    An output is there when its module is done, an input when it begins: so whatever runs in between runs in what holds
    both.
    """
    if last.kind not in _FORWARD:
        return None
    after = last.fqn if last.kind == "input" else _parent(last.fqn)
    until = _parent(following.fqn) if following.kind == "input" else following.fqn
    if last.fqn == "" and last.kind == "output":
        return None  # the model itself is done
    inside = _common(after, until)
    observed = {entry.fqn for entry in tensors if entry.kind in _FORWARD}
    while inside and inside not in observed:
        inside = _parent(inside)
    return inside


def _parent(fqn: str) -> str:
    return fqn.rpartition(".")[0]


def _common(left: str, right: str) -> str:
    shared = []
    for mine, other in zip(left.split("."), right.split("."), strict=False):
        if mine != other:
            break
        shared.append(mine)
    return ".".join(shared)


def _named(entry: TensorEntry) -> str:
    index = f"[{entry.index}]" if entry.index else ""
    name = entry.fqn or "the model"
    return f"{_THE.get(entry.kind, entry.kind + ' of ')}{name}{index}"


def _told(entry: TensorEntry | None) -> dict[str, Any] | None:
    return None if entry is None else {"fqn": entry.fqn, "kind": entry.kind, "index": entry.index}


def _of_collectives(found: Sequence[Collective]) -> list[str]:
    """Those under way; where none is known to be, the last one called."""
    open_ones = [each for each in found if each.completed is not None and each.completed < each.enqueued]
    shown = open_ones or [each for each in found if each.completed is None]
    names_groups = len(found) > 1
    return [_of_collective(each, names_group=names_groups) for each in shown[:3]]


def _of_collective(each: Collective, *, names_group: bool) -> str:
    of = f" of group {each.group}" if names_group and each.group else ""
    if each.completed is None:
        return f"{each.op} {each.enqueued}{of} was the last collective called"
    return f"{each.op} {each.enqueued}{of} enqueued, {each.completed} completed"


def innermost(stack: str) -> str:
    """Where the thread was that had the fault, outside of torch and the standard library: `train.py:31 in forward`.

    "" where the stack does not say.
    """
    _, _, current = stack.partition("Current thread")
    frames = _FRAME.findall(current.partition("\n\n")[0])
    own = [frame for frame in frames if not _is_foreign(frame[0])]
    for path, line, function in (own or frames)[:1]:
        return f"{path.rpartition('/')[2]}:{line} in {function}"
    return ""


def _is_foreign(path: str) -> bool:
    """Whether it is the standard library's or torch's: what the user called, and not where."""
    if any(f"/{folder}/" in path for folder in _INSTALLED):
        return any(f"/{folder}/torch/" in path for folder in _INSTALLED)
    return path.startswith((*_STANDARD, "<"))
