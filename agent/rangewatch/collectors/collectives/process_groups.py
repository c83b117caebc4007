"""What is known of each process group, without keeping any alive: groups come and go by the thousand."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist

from rangewatch.collectors.collectives.ops import Kind

if dist.is_available():
    from torch.distributed import device_mesh, distributed_c10d

    _MODULES: tuple[Any, ...] = (distributed_c10d, dist, device_mesh)
else:
    _MODULES = ()

ISSUED, ENDED, FAILED, UNKNOWN = 1, 2, 3, 4
"""What is known of a collective: its call has returned; how it ended."""

INSTANCES = 10_000
"""Names of groups that are known again, so that a group made anew under an old name is told apart from the old one."""

WAITING = 1000
"""Collectives of one group that have not ended and are kept as evidence; the oldest says where a hang began."""

DEVICE_BACKENDS = frozenset({"nccl", "nccl2", "ncclx", "rccl", "xccl", "hccl"})
"""Backends whose collectives run on a device, after the call has returned."""

CALLS_BACK_SAFELY = "2.8"
"""Before torch 2.8 a group is destroyed with the GIL held until gloo's threads have ended, and they would wait for the
GIL to call us back."""

_LACKING = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""What torch raises for a group that is being made, has been destroyed, or whose backend cannot say."""


class Record:
    """One collective of this rank. `group` None: it is not recorded."""

    __slots__ = (
        "began_ns", "bucket", "bytes", "dtype", "duration_s", "enqueued_ns", "group", "is_async", "kind", "sequence",
        "state", "step", "thread",
    )  # fmt: skip

    def __init__(self) -> None:
        self.group: Group | None = None
        self.state = 0
        self.duration_s = math.nan
        self.bucket = -1
        self.sequence = self.step = self.bytes = self.enqueued_ns = self.began_ns = self.thread = 0
        self.dtype = ""
        self.is_async = False
        self.kind: Kind

    @property
    def op(self) -> str:
        """Its name, such as all_reduce."""
        return self.kind.name

    @property
    def is_open(self) -> bool:
        """Called, and not known to have ended."""
        return self.state in (0, ISSUED)

    def waited_s(self) -> float:
        """Seconds since it was called, by the monotonic clock."""
        return (time.perf_counter_ns() - self.began_ns) / 1e9


class Group:
    """One process group on one kind of device: a group with gloo and NCCL counts twice, as its backends do."""

    def __init__(self, name: str, ranks: Sequence[int], desc: str, device: str, backend: str, instance: int) -> None:
        self.name, self.ranks, self.desc, self.backend, self.instance = name, list(ranks), desc, backend, instance
        self.hash = ranks_hash(ranks)
        self.device = torch.device(device)
        self.enqueued = self.completed = 0
        """Sequences of this rank's last collective that was called, and of the last that ended."""
        self.waiting: OrderedDict[int, Record] = OrderedDict()
        """What was called and has not ended, by the record's number."""
        self.has_futures = self.knows_ends = tells_by_future(device, backend)
        """Whether futures tell when a collective has ended; whether anybody does, such as the flight recorder."""
        self.silent: set[Kind] = set()
        """Collectives of which this backend never says when they have ended."""
        self._count = self._sent = 0
        self._is_after_sending = False

    def next_sequence(self, group: Any, *, is_point_to_point: bool = False) -> int:
        """The number of the collective that is about to be called: the backend's own count, which all ranks share.

        Counted here where the backend does not say. Call it before sends and receives too: gloo counts those among its
        collectives, so that ranks which send more would have got further.
        """
        try:
            count = int(group._get_backend(self.device)._get_sequence_number_for_group())
        except _LACKING:
            return self.enqueued + 1
        if self._is_after_sending:  # at most one, though others that are not seen may have been called since
            self._sent += min(max(count - self._count, 0), 1)
        self._count, self._is_after_sending = count, is_point_to_point
        return count - self._sent + 1

    def about(self) -> dict[str, Any]:
        """As it travels. Ranks of a run agree on all of it, if all made their groups in one order."""
        return {
            "name": self.name, "hash": self.hash, "ranks": self.ranks, "desc": self.desc, "backend": self.backend,
            "instance": self.instance,
        }  # fmt: skip


def ranks_hash(ranks: Sequence[int]) -> str:
    """SHA-1 of the global ranks, sorted and joined by commas: groups of one name need not have the same members."""
    return hashlib.sha1(",".join(map(str, sorted(ranks))).encode(), usedforsecurity=False).hexdigest()


class ProcessGroups:
    """The groups of this process, by torch's own objects. From any thread."""

    def __init__(self) -> None:
        self._groups: WeakKeyDictionary[Any, dict[str, Group]] = WeakKeyDictionary()
        self._instances: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, group: Any, device: str) -> Group:
        """What is known of `group` for tensors on `device`."""
        known = self._groups.get(group)
        known_group = known.get(device) if known else None
        return known_group or self._add(group, device)

    def all(self) -> list[Group]:
        """Every group that is still alive and was used."""
        with self._lock:
            return [each for known in list(self._groups.values()) for each in dict.fromkeys(known.values())]

    def _add(self, group: Any, device: str) -> Group:
        ranks, backend = members(group), backend_name(group, device)
        with self._lock:
            known = self._groups.setdefault(group, {})
            same = [each for each in known.values() if each.backend == backend]  # gloo's counts are of both devices
            if device not in known:
                known[device] = same[0] if same else self._made(group, ranks, device, backend)
            return known[device]

    def _made(self, group: Any, ranks: list[int], device: str, backend: str) -> Group:
        name, desc = str(group.group_name), str(getattr(group, "group_desc", ""))
        return Group(name, ranks, desc, device, backend, self._instance((name, ranks_hash(ranks), backend)))

    def _instance(self, key: tuple[str, str, str]) -> int:
        count = self._instances.pop(key, -1) + 1
        self._instances[key] = count
        while len(self._instances) > INSTANCES:
            self._instances.popitem(last=False)
        return count


def members(group: Any) -> list[int]:
    """Global ranks of a group; empty when torch does not know it."""
    with contextlib.suppress(*_LACKING):
        return [int(rank) for rank in dist.get_process_group_ranks(group)]
    return []


def backend_name(group: Any, device: str) -> str:
    """Such as "gloo" or "nccl"."""
    with contextlib.suppress(*_LACKING):
        return str(group._get_backend(torch.device(device)).name())
    with contextlib.suppress(*_LACKING):
        return str(dist.get_backend(group))
    return ""


def tells_by_future(device: str, backend: str) -> bool:
    """Whether a collective's future says when it has ended. NCCL's says only that it was enqueued."""
    if torch.torch_version.TorchVersion(torch.__version__) < CALLS_BACK_SAFELY:
        return False
    return backend == "gloo" or (device == "cpu" and backend not in DEVICE_BACKENDS)


def live_groups() -> list[Any]:
    """torch's process groups of this process that are initialised, whoever made them."""
    world = getattr(distributed_c10d, "_world", None) if _MODULES else None
    return list(world.pg_map) if world is not None else []


class GroupListener(Protocol):
    """Wants to know of new process groups."""

    def group_made(self, group: Any) -> None:
        """Called in the thread that makes it. Must not raise."""


class NewGroups:
    """Tells `listener` of each group as it is made: groups inherit no hooks."""

    def __init__(self, listener: GroupListener) -> None:
        self._listener: GroupListener | None = listener
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def start(self) -> None:
        """Watch the functions that all of torch's own ways to make a group go through."""
        for name in ("_new_process_group_helper", "split_group"):
            original = getattr(distributed_c10d, name, None)
            if original is None:
                continue
            wrapper = self._wrapped(original)
            for module in _MODULES:
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapper)
                    self._undo.append((module, name, wrapper, original))

    def stop(self) -> None:
        """Put torch's functions back, unless somebody has wrapped ours."""
        for module, name, wrapper, original in self._undo:
            if getattr(module, name, None) is wrapper:
                setattr(module, name, original)
        self._listener = None

    def _wrapped(self, original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if self._listener is not None:
                self._listener.group_made(made[0] if isinstance(made, tuple) else made)
            return made

        return make_group
