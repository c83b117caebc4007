"""The end of this process as Python runs it, and the exception by which it comes.

A child of `multiprocessing` ends in its own way: it catches what was raised, and one that was forked calls no `atexit`
function at all. Its finalizers are called in both cases, while the exception is on its way.
"""

from __future__ import annotations

import atexit
import sys
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize
from typing import Protocol


class EndsWithProcess(Protocol):
    """The agent."""

    def finish_at_exit(self, error: BaseException | None) -> None:
        """The process ends; None: by no exception that Python tells of."""


_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)


class ProcessEnd:
    """Calls `finish_at_exit` of the agent once, at the end of the process.

    The interpreter keeps the last exception that nobody caught (`sys.last_value`), of which an interactive session
    has many and goes on: one that `pass_over` has seen is not the end.
    """

    def __init__(self, agent: EndsWithProcess) -> None:
        self._agent = agent
        self._finalizer: Finalize | None = None
        self._handled = id(sys.exc_info()[1])
        """Of a caller further out, which is in an `except` clause, or of the loop, which trains in one."""
        self._passed_over = id(None)

    def watch(self) -> None:
        """From here on."""
        self.pass_over()
        atexit.register(self._at_exit)
        if parent_process() is not None:
            self._finalizer = Finalize(None, self._in_child, exitpriority=0)

    def pass_over(self) -> None:
        """Training goes on: what was raised so far has not ended the process."""
        self._passed_over = id(_uncaught())  # no reference to it: it would keep tensors alive

    def pass_over_handled(self) -> None:
        """A step is over: what an `except` clause around it has caught does not end the training."""
        self._handled = id(sys.exc_info()[1])

    def forget(self) -> None:
        """No longer. From any thread."""
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def on_its_way(self) -> BaseException | None:
        """What was raised and is neither passed on nor handled yet, as in a `finally` clause, where that may be the
        end: what is raised where an iterator ends is none."""
        error = sys.exc_info()[1]
        return None if id(error) == self._handled or isinstance(error, _ENDS) else error

    def _at_exit(self) -> None:
        error = _uncaught()
        self._agent.finish_at_exit(None if id(error) == self._passed_over else error)

    def _in_child(self) -> None:
        self._agent.finish_at_exit(self.on_its_way())


def _uncaught() -> BaseException | None:
    return getattr(sys, "last_value", None)
