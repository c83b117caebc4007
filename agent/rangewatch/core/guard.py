"""The one boundary between the agent and the training process: no exception of ours passes it.

Everything torch, the optimizer, the scaler or a thread calls of ours goes through a `Guard`. It catches `Exception` and
never more, is never put around the host's own call, counts faults by place, logs at most once a minute a place, and
tells a place that failed too often to give up. In tests `Guard.fatal` makes every fault an exception.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rangewatch.core import limits

logger = logging.getLogger("rangewatch")


class TrainingStopped(RuntimeError):
    """Training is stopped because `attach` was asked to: the only exception of ours that reaches the user's loop."""


class Guard:
    """Counts faults by place, from whatever thread they are in."""

    fatal: ClassVar[bool] = False
    """Set by the tests: raise instead of going on."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._logged_s: dict[str, float] = {}
        self.silent = False
        """After a fork: the child may hold a lock of `logging` that nobody will release."""

    def fault(self, place: str, error: BaseException) -> bool:
        """Count a fault; whether `place` has had so many that it must give up. Raises only in tests.

        And passes `TrainingStopped` on.
        """
        if Guard.fatal or isinstance(error, TrainingStopped):
            raise error
        count = self.counts[place] = self.counts.get(place, 0) + 1
        gives_up = count >= limits.FAULTS_TO_DETACH
        with contextlib.suppress(Exception):  # a logging handler of the host's may itself be broken
            self._log(place, error, gives_up)
        return gives_up

    def run(self, place: str, body: Callable[[], Any]) -> bool:
        """Call `body`; whether it went without a fault."""
        try:
            body()
        except Exception as error:
            self.fault(place, error)
            return False
        return True

    def _log(self, place: str, error: BaseException, gives_up: bool) -> None:
        now_s = time.monotonic()
        is_due = now_s - self._logged_s.get(place, float("-inf")) >= limits.LOG_INTERVAL_S
        if self.silent or not (is_due or self.counts[place] == limits.FAULTS_TO_DETACH):
            return
        self._logged_s[place] = now_s
        end = "; not recorded from here on" if gives_up else ""
        logger.warning("rangewatch: fault in %s (%d so far): %s%s", place, self.counts[place], repr(error)[:300], end)


class Guarded:
    """A callable that torch may hold: runs `body` inside the guard and always returns None.

    A copy or a pickle of it does nothing, so a copied or saved model carries no agent; the pickle names only the
    standard library, so it loads where Rangewatch is not installed.
    """

    __slots__ = ("__weakref__", "body", "guard", "place")

    __torch_unserializable__ = True
    """Torch then pickles a tensor that holds this as a hook without a warning."""

    __name__ = "rangewatch_hook"
    """Torch asks a hook for its name, as `torch.jit.script` does to say that it cannot compile one."""

    def __init__(self, guard: Guard, place: str, body: Callable[..., Any]) -> None:
        self.guard, self.place, self.body = guard, place, body

    def __call__(self, *args: Any) -> None:
        try:
            self.body(*args)
        except Exception as error:
            self.fault(error)

    def fault(self, error: Exception) -> None:
        """`body` raised `error`."""
        if self.guard.fault(self.place, error):
            self.body = _nothing

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        # nullcontext().__exit__ takes any arguments and returns None, which is what a hook that does nothing must do.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


def _nothing(*args: Any) -> None:
    pass
