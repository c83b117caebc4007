"""What is said of a death: the event `died`, its data, and its sentence.

What is known is reported as known; what follows from the order of the step before is reported with that.

How a process ended, from its pidfd: the exit code or the signal, whoever its parent is.
"""

from __future__ import annotations

import contextlib
import re
import signal
import struct
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rangewatch.crash.memory import layout
from rangewatch.crash.watcher.recovery import Collective, Position
from rangewatch.wire.events import Died, event
from rangewatch.wire.records import Event, TensorEntry

try:
    import fcntl
except ImportError:  # Windows, where no watcher runs
    fcntl = None  # type: ignore[assignment]

_INFO = struct.Struct("<QQ11Ii")
"""`struct pidfd_info` as of Linux 6.13: mask, cgroup id, eleven ids, exit code."""

_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""`PIDFD_GET_INFO`, an _IOWR of that size."""

_HAS_EXIT = 1 << 3
"""`PIDFD_INFO_EXIT`, from Linux 6.15 on: the exit code of a process that its parent has waited for."""

_FATAL = {
    "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Floating": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
} | ({"Bus error": signal.SIGBUS} if hasattr(signal, "SIGBUS") else {})  # fmt: skip


class Ending(NamedTuple):
    """`exit_code` or `signal` (with `core_dumped`); both None where nobody could tell, and of a process that goes on
    as another program (`exec`).
    """

    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    is_replaced: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is known at all."""
        return self.exit_code is not None or self.signal is not None


def of_process(pidfd: int, pid: int, start_ticks: int) -> Ending:
    """Of a process that has ended, for which `pidfd` was opened while it lived.

    While its parent has not waited for it, /proc has the exit code; from then on the pidfd (Linux 6.15).
    """
    for _ in range(2):  # it may be waited for between the two looks
        status = _from_pidfd(pidfd)
        if status is None:
            status = _from_zombie(pid, start_ticks)
        if status is not None:
            return _ending(status)
    return Ending()


def from_stack(text: str) -> Ending:
    """The signal that faulthandler wrote down, where the kernel does not tell."""
    match = re.match(r"Fatal Python error: ([A-Z][a-z]+(?: [a-z]+)?)", text)
    for phrase, number in _FATAL.items():
        if match and match[1].startswith(phrase):
            return Ending(signal=int(number))
    return Ending()


def _ending(status: int) -> Ending:
    if status & 0x7F:
        return Ending(signal=status & 0x7F, core_dumped=bool(status & 0x80))
    return Ending(exit_code=status >> 8 & 0xFF)


def _from_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_HAS_EXIT, *[0] * 13))
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        if mask & _HAS_EXIT:
            return int(status)
    return None


def _from_zombie(pid: int, start_ticks: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X") and int(fields[19]) == start_ticks:
            return int(fields[49])
    return None


def signal_name(number: int) -> str:
    """Such as "SIGSEGV"; "" for one that has no name here."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return ""


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
    "weight": "the weight ", "exp_avg": "the exp_avg of ", "exp_avg_sq": "the exp_avg_sq of ",
    "momentum_buffer": "the momentum_buffer of ",
}  # fmt: skip


def died(
    ending: Ending, position: Position | None, tensors: Sequence[TensorEntry], oom_kills: int, stack: str, time_ns: int
) -> Event:
    """The event. `position` None: nothing is known but how it ended. `stack`: what faulthandler wrote."""
    details = Died(
        exit_code=ending.exit_code,
        signal=ending.signal,
        core_dumped=ending.core_dumped,
        signal_name=signal_name(ending.signal) if ending.signal else None,
        oom_kills=oom_kills,
        stack=stack[:_STACK_CHARACTERS],
        replaced=ending.is_replaced,
    )
    said_goodbye = position is not None and position.closed == layout.AT_EXIT
    parts = [how(ending, oom_kills, said_goodbye=said_goodbye)]
    line = innermost(stack)
    if position is None:
        where, step = "", -1
    elif said_goodbye:
        where, step = ", after its goodbye, while the interpreter ended", position.step
    else:
        (where, details), step = _where(position, tensors, details), position.step
        parts += _of_collectives(position.collectives)
    parts[0] += where
    if line:
        parts.append(f"Python was at {line}")
    return event(details, time_ns, step, "; ".join(parts)[:1000])


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


def _where(position: Position, tensors: Sequence[TensorEntry], details: Died) -> tuple[str, Died]:
    """In words, and `details` with it."""
    last = tensors[position.tensor] if position.tensor is not None else None
    following = _next(position, tensors)
    inside = None if last is None or following is None else _inside(last, following, tensors)
    details = msgspec.structs.replace(
        details,
        step=position.step,
        phase=position.phase or None,
        last=_reported(last),
        next=_reported(following),
        module=inside,
        collectives=[each._asdict() for each in position.collectives],
    )
    text = f" in step {position.step}"
    if position.phase in _IN:
        text += f", {_IN[position.phase]}"
    if last is None:
        return f"{text}, before any tensor of it was recorded", details
    if inside is not None and last.kind in _FORWARD:
        text += f", inside {inside or 'the model'}"
    text += f", after {_named(last)}"
    if following is not None:
        text += f" and before {_named(following)} (by the order of the step before)"
    return text, details


def _next(position: Position, tensors: Sequence[TensorEntry]) -> TensorEntry | None:
    """What was recorded next in the step before; None unless the step before tells, and its phase fits.

    A tensor that is read more or less often than the last one is in another loop: then nobody knows.
    """
    if position.tensor is None or position.tensor >= len(position.calls):
        return None
    last = tensors[position.tensor]
    kinds = _FORWARD if last.kind in _FORWARD else _BACKWARD if last.kind in _BACKWARD else ()
    phase = "forward" if kinds is _FORWARD else "backward"
    if position.phase in _IN and position.phase != phase:
        return None
    order = sorted(
        (entry.call_index, number)
        for number, entry in enumerate(tensors[: len(position.calls)])
        if entry.kind in kinds and position.calls[number] > 0
    )
    place = (last.call_index, position.tensor)
    following = next((number for at in order if at > place for number in at[1:]), None)
    if following is None or position.calls[following] != position.calls[position.tensor]:
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


def _reported(entry: TensorEntry | None) -> dict[str, Any] | None:
    return None if entry is None else {"fqn": entry.fqn, "kind": entry.kind, "index": entry.index}


def _of_collectives(collectives: Sequence[Collective]) -> list[str]:
    """Those under way; where none is known to be, the last one called."""
    open_ones = [each for each in collectives if each.completed is not None and each.completed < each.enqueued]
    shown = open_ones or [each for each in collectives if each.completed is None]
    names_groups = len(collectives) > 1
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
