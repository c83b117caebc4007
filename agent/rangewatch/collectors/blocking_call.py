"""Calls that may never return, on a thread of their own: a driver whose card hangs, a network file system gone away."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BlockingCall(Generic[T]):
    """Asks one thing at a time on a daemon thread. Used by one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._questions: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._answered = threading.Event()
        self._answers: list[T | Exception] = []
        self.is_busy = False
        """A question waits for its answer."""

    def ask(self, question: Callable[[], T], patience_s: float) -> T:
        """The answer to `question`, or to the one that is still open: then `question` is not asked.

        Raises TimeoutError without an answer in `patience_s`, at once where an earlier one already waited that long;
        and what the question raised.
        """
        if self.is_busy:
            patience_s = 0.0
        else:
            self._put(question)
        if not self._answered.wait(patience_s):
            raise TimeoutError(f"{self._name} has no answer yet")
        self.is_busy = False
        answer = self._answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self, patience_s: float) -> bool:
        """End the thread; whether it did end in that time."""
        if self._thread is None:
            return True
        self._questions.put(None)
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _put(self, question: Callable[[], T]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._answered.clear()
        self.is_busy = True
        self._questions.put(question)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                self._answers.append(question())
            except Exception as error:  # noqa: BLE001 - the guard of the thread that asked counts and logs it
                self._answers.append(error)
            self._answered.set()
