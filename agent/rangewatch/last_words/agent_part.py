"""The last words of one attached model, as its agent has them: memory that outlives the process, and who holds it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rangewatch.guard import Guard
from rangewatch.last_words import joining, watch
from rangewatch.last_words.scene import Kept
from rangewatch.last_words.stack_file import StackFile
from rangewatch.options import Options
from rangewatch.records import RankInfo
from rangewatch.spool.process import this_process

EVENT = "no_last_words"
"""The event that says why nobody will see how this process ends."""

Tell = Callable[[str, str, dict[str, Any]], None]


class LastWords:
    """`start` and `end` are called by the sender's thread, `open` by the one that attaches. `tell(kind, message, data)`
    ships an event.
    """

    def __init__(self, options: Options, info: RankInfo, guard: Guard, tell: Tell) -> None:
        self._options, self._info, self._guard, self._tell = options, info, guard, tell
        why_not = watch.why_not() if options.watcher else ""
        is_wanted = options.watcher and bool(options.spool_bytes)
        self.kept = Kept(is_shared=is_wanted and not why_not, histograms=options.histograms)
        self.kept.steps.refused = self._steps_refused
        self._why_not = why_not or (self.kept.why_not if is_wanted else "")
        self._watch: watch.Watch | None = None
        self._stack: int | None = None

    def open(self) -> None:
        """Before training begins, and by its thread: faulthandler gives a stack of its own to the one that enables it,
        without which an overflow of the thread's stack cannot be told.
        """
        if self.kept.descriptors:
            self._stack = StackFile.open()

    def start(self, folder: Path | None) -> None:
        """The rank's spool is in `folder`: have a watcher hold what outlives this process. None: there is no spool."""
        if self._why_not:
            self._say(self._why_not)
        elif folder is None and self.kept.descriptors:
            self._say("there is no spool")
        elif folder is not None and self.kept.descriptors:
            self._watch = watch.Watch(folder.parent, lambda to: self._hand_over(to, folder), self._say)
            self._guard.run("watcher", self._watch.start)

    def end(self) -> None:
        """The agent has ended, and its goodbye is in the spool or with the server."""
        if self._watch is not None:
            self._watch.stop()
        if self._stack is not None:
            self._stack = None
            StackFile.close()
        self.kept.close()

    def abandon(self) -> None:
        """In a forked child, which is nobody's rank."""
        if self._watch is not None:
            self._watch.abandon()
        StackFile.forked()
        self.kept.close()

    def _hand_over(self, connection: socket.socket, folder: Path) -> None:
        options = self._options
        said = joining.Joining(
            os.fsencode(folder), this_process(), self._info, options.url, options.token, tuple(options.allow_inf)
        )
        stack = self._stack
        joining.send(connection, said, self.kept.descriptors + ([stack] if stack is not None and stack >= 0 else []))

    def _say(self, why: str) -> None:
        self._guard.run("watcher", lambda: self._tell(EVENT, f"nobody will see how this process ends: {why}", {}))

    def _steps_refused(self, why: str) -> None:
        message = f"steps that are not in the spool when this process dies are lost: {why}"
        self._guard.run("watcher", lambda: self._tell(EVENT, message, {}))
