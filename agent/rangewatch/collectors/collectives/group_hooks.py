"""Collectives by the hooks of torch's process groups, from torch 2.14 on: the cheapest way to see every one.

An exception in such a hook reaches the user's collective, so each is a `Guarded`. Torch reads its table of hooks
without a lock: hooks are put on a group in the thread that makes it, or while attaching, and stay until the process
ends. There they are taken off: a group that outlives the interpreter, since nobody has destroyed it, would let go of
them without one.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

from torch import distributed as dist

from rangewatch.collectors.collectives.ops import HOOKED
from rangewatch.collectors.collectives.process_groups import NewGroups, Record, live_groups
from rangewatch.collectors.collectives.recorder import ActiveRecorder, Call
from rangewatch.core.guard import Guard, Guarded

HOOK_ID = 0x72616E67
"""Torch replaces a hook of the same number without a word, so ours is one that nobody counts up to."""

_hooked: WeakSet[Any] = WeakSet()


@atexit.register
def _unhook() -> None:
    for group in list(_hooked):
        with contextlib.suppress(RuntimeError):
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)


def are_supported() -> bool:
    """Whether torch's process groups have hooks."""
    return dist.is_available() and hasattr(dist.ProcessGroup, "register_pre_hook")


class GroupHooks:
    """Hooks on every group there is and every group to come."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._new = NewGroups(self)

    def start(self) -> None:
        """Call it in the thread that trains, while no collective runs."""
        self._new.start()
        for group in live_groups():
            self.group_made(group)

    def stop(self) -> None:
        """Hook no more groups. The hooks that are there do nothing once nobody listens."""
        self._new.stop()

    def group_made(self, group: Any) -> None:
        """Hook it."""
        self._guard.run("hooks of a process group", lambda: self._add(group))

    def _add(self, group: Any) -> None:
        if group not in _hooked and hasattr(group, "register_pre_hook"):
            hooks = _Hooks(self._guard, group)
            group.register_pre_hook(HOOK_ID, hooks.pre)
            group.register_post_hook(HOOK_ID, hooks.post)
            _hooked.add(group)


class _Hooks:
    """The hooks of one group. A collective calls both in one thread, the second after it was issued."""

    def __init__(self, guard: Guard, group: Any) -> None:
        self._local = threading.local()
        self._read = _reader(group)
        self.pre, self.post = (
            Guarded(guard, "before a collective", self._pre),
            Guarded(guard, "a collective", self._post),
        )

    def _pre(self, args: Any) -> None:
        recorder, last = ActiveRecorder.recorder, getattr(self._local, "open", None)
        if recorder is None:
            return
        if last is not None:
            recorder.failed(last[1])  # it raised, so the second hook was not called
            self._local.open = None
        kind = HOOKED.get(args.name.name)
        if kind is not None:
            record = Record()
            recorder.begin(record, kind, self._read, args)
            self._local.open = (args.op_id, record)

    def _post(self, args: Any) -> None:
        recorder, last = ActiveRecorder.recorder, getattr(self._local, "open", None)
        if recorder is None or last is None or last[0] != args.op_id:
            return
        self._local.open = None
        if last[1].group is not None:
            recorder.issued(last[1], _work_of, args)


def _work_of(args: Any) -> Any:
    return args.work


def _reader(group: Any) -> Callable[[Any], Call]:
    reference = ref(group)  # the group holds its hooks: a reference back would keep both for ever

    def read(args: Any) -> Call:
        return reference(), args.input_tensors, args.output_tensors, args.async_op

    return read
