"""Watches the calls of one method of one object, which keeps no sign of it.

The method is wrapped on the class that defines it, so the object still copies and pickles as itself; the class gets its
own method back when the last watch ends. An object may have a method of its own in its `__dict__`, as schedulers put
there: then that one is wrapped, and its copy and its pickle are those of what was there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import ref

Before = Callable[[Any, tuple[Any, ...]], object]
After = Callable[[Any, Any], object]


class Watch:
    """Calls `before(target, arguments)` and `after(target, result)` until `remove`; they must not raise.

    It keeps `target` alive no longer than others do.
    """

    def __init__(self, target: Any, name: str, before: Before, after: After) -> None:
        self.before, self.after = before, after
        self.target, self._name = ref(target), name
        own = getattr(target, "__dict__", {}).get(name)
        self._own = None if own is None else OwnMethod(own, target, self)
        self.patch = None if own is not None else Patch.of(type(target), name)
        """Of the class; None where the object has a method of its own."""
        if self._own is not None:
            setattr(target, name, self._own)
        if self.patch is not None:
            self.patch.add(self)

    def remove(self) -> None:
        """Stop watching. What somebody else has wrapped on top of us stays, and calls us no more."""
        target = self.target()
        if self.patch is not None:
            self.patch.discard(self)
        elif self._own is not None:
            self._own.watch = None
            if target is not None and target.__dict__.get(self._name) is self._own:
                setattr(target, self._name, self._own.method)


class OwnMethod:
    """Stands in an object's `__dict__` for the method that was there, `method`."""

    def __init__(self, method: Callable[..., Any], target: Any, watch: Watch) -> None:
        functools.update_wrapper(self, method)  # its signature too, which torch's scaler asks for
        self.method, self.watch, self._target = method, watch, ref(target)

    watch: Watch | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watch, target = self.watch, self._target()
        if watch is None or target is None:
            return self.method(*args, **kwargs)
        return _call((watch,), self.method, target, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self.method,)  # also what `copy.deepcopy` makes; loads without Rangewatch


class WatchFinder(Protocol):
    """May want to watch an object that was made after `attach`."""

    def unwatched(self, target: Any, arguments: tuple[Any, ...]) -> None:
        """The method of `target`, which nobody watches, is about to be called. Never raises."""


class Patch:
    """The wrapped method of one class: who watches which object, and who wants to meet the others."""

    installed: dict[tuple[type, str], Patch] = {}  # noqa: RUF012 - one for the process, as classes are

    def __init__(self, owner: type, name: str) -> None:
        self.finders: list[WatchFinder] = []
        """Asked about an object that nobody watches, before its method is called."""
        self._owner, self._name = owner, name
        self._watches: dict[int, list[Watch]] = {}
        self._own: Any = vars(owner)[name]
        self._wrapper = _wrap(self._own, self)
        setattr(owner, name, self._wrapper)

    @classmethod
    def of(cls, target: type, name: str) -> Patch:
        """The patch of `name` on the class of `target`'s that defines it, installed now if it is not."""
        owner = next(base for base in target.__mro__ if name in vars(base))
        if (owner, name) not in cls.installed:
            cls.installed[owner, name] = cls(owner, name)
        return cls.installed[owner, name]

    def add(self, watch: Watch) -> None:
        """Call `watch` for its object."""
        key = id(watch.target())
        # By id, as an object may be equal to others or have no hash. A dead one's id may be another's by now.
        self._watches[key] = [each for each in self._watches.get(key, []) if each.target() is not None] + [watch]

    def discard(self, watch: Watch) -> None:
        """Do so no more."""
        remaining = {key: [each for each in watches if each is not watch] for key, watches in self._watches.items()}
        self._watches = {key: watches for key, watches in remaining.items() if watches}
        self.restore_if_unused()

    def watches_of(self, target: Any, arguments: tuple[Any, ...]) -> list[Watch]:
        """Who watches `target`, whose method is about to be called."""
        watches = [each for each in self._watches.get(id(target), ()) if each.target() is target]
        if watches or not self.finders:
            return watches
        for finder in list(self.finders):
            finder.unwatched(target, arguments)
        return [each for each in self._watches.get(id(target), ()) if each.target() is target]

    def restore_if_unused(self) -> None:
        """Give the class its method back, unless somebody wrapped it again on top of us."""
        if not self._watches and not self.finders and vars(self._owner).get(self._name) is self._wrapper:
            setattr(self._owner, self._name, self._own)
            self.installed.pop((self._owner, self._name), None)


def _wrap(method: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        watches = patch.watches_of(self, (*args, *kwargs.values()))
        return _call(watches, functools.partial(method, self), self, args, kwargs)

    return watched


def _call(watches: Any, method: Callable[..., Any], target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    for watch in watches:
        watch.before(target, (*args, *kwargs.values()))
    result = method(*args, **kwargs)
    for watch in watches:
        watch.after(target, result)
    return result
