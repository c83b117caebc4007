"""The end of this process's stderr, for the server and for the watcher. What is written goes where it went before.

Where stderr is a regular file (`torchrun --redirects`, Slurm's files) it is read back: all is in it, what C++, CUDA and
NCCL wrote too, and nothing of ours lies between. Of a terminal or a pipe that can be had by putting something between
only, and were that to die or to fall behind, the training would lose its output, or stop. So there only what goes
through Python's `sys.stderr` is copied, by its method `write`, and the event says that the rest is not seen.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rangewatch.collectors.blocking_call import BlockingCall
from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.crash.memory.text_ring import Tail, TextRing
from rangewatch.crash.stderr_lines import read_file, with_tail
from rangewatch.recording.events import Events
from rangewatch.wire.events import Stderr
from rangewatch.wire.records import Samples

STDERR = 2
RING_FILE = "rangewatch-stderr"
PATH_CHARACTERS = 500


class Capture:
    """What can be seen of stderr: one a process, for as long as any attached model wants it."""

    _lock = threading.Lock()
    _users = 0
    _current: ClassVar[Capture | None] = None

    def __init__(self, *, is_shared: bool) -> None:
        self.guard = Guard()
        self.descriptor, self.ring = -1, None
        stream = sys.stderr
        kind, is_file = _kind(stream)
        if is_file:
            with contextlib.suppress(OSError):  # not ours to read, or no /proc
                path = Path(f"/proc/self/fd/{STDERR}")
                self.source = Stderr(source="file", path=str(path.readlink())[:PATH_CHARACTERS])
                self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            kind += " that this process may not read"
        try:
            ring = TextRing(RING_FILE, is_shared=is_shared)
            self._writes = Writes(stream, ring, self.guard)
        except (OSError, AttributeError, TypeError) as error:
            why = f"what goes to sys.stderr cannot be copied ({type(error).__name__})"
            self.source = Stderr(stream=kind, why_not=why)
        else:
            self.ring, self.descriptor = ring, ring.memory.descriptor
            self.source = Stderr(source="python", stream=kind)

    @classmethod
    def acquire(cls, *, is_shared: bool) -> Capture:
        """The one of this process. Each call needs a `release`."""
        with cls._lock:
            capture = cls._current = cls._current or cls(is_shared=is_shared)
            cls._users += 1
            return capture

    @classmethod
    def release(cls) -> None:
        """The last of them leaves stderr as it was."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and cls._current is not None:
                capture, cls._current = cls._current, None
                capture._close()

    @classmethod
    def forked(cls) -> None:
        """In a forked child, whose text is not the rank's."""
        cls._lock, cls._users = threading.Lock(), 0
        capture, cls._current = cls._current, None
        if capture is not None:
            capture._close()

    def tail(self) -> Tail:
        """The text's end. Raises `OSError`."""
        if self.ring is not None:
            return self.ring.tail()
        return read_file(self.descriptor) if self.descriptor >= 0 else Tail(b"", False)

    def _close(self) -> None:
        if self.ring is not None:
            self._writes.stop()
            self.ring.close()
        elif self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
        self.descriptor = -1


class Writes:
    """The method `write` of a stream, with a copy of each text. The stream stays the object that it was, for who has it
    already. Raises `AttributeError` or `TypeError` where it takes none.
    """

    def __init__(self, stream: Any, ring: TextRing, guard: Guard) -> None:
        self._stream, self._ring, self._guard = stream, ring, guard
        self._is_active = True
        self._own = vars(stream).get("write")
        """Another program's, put there before this one."""
        self._wrapper = self._wrapped(stream.write)
        stream.write = self._wrapper

    def stop(self) -> None:
        """No copies any more; the method is as it was, unless somebody has put another one around it."""
        self._is_active = False
        with contextlib.suppress(AttributeError):
            if vars(self._stream).get("write") is not self._wrapper:
                return
            if self._own is None:
                del self._stream.write
            else:
                self._stream.write = self._own

    def _wrapped(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def write(text: Any, *args: Any, **options: Any) -> Any:
            if self._is_active and isinstance(text, str):
                self._copy(text)
            return original(text, *args, **options)

        return write

    def _copy(self, text: str) -> None:
        """Before it is written: of a process that is killed while it writes, too."""
        try:
            self._ring.append(text)
        except Exception as error:  # noqa: BLE001 - as the guard's own `run`, which may not log what gave up
            self._is_active = self._is_active and not self._guard.fault("stderr", error)


class StderrTail:
    """A collector beside those of the shelf: sends the last lines when they are others, and at the end.

    `open` and `close` are called as those of `CrashState`.
    """

    name = "stderr"
    help = "the last lines of stderr, with `stderr_tail=True`"
    docs = "stderr.md"

    def __init__(self, token: str | None) -> None:
        self._token = token
        self.guard = Guard()
        self._capture: Capture | None = None
        self._events: Events | None = None
        self._file: BlockingCall[Tail] = BlockingCall("rangewatch-stderr")
        self._sent: Stderr | None = None
        self._due_s = float("-inf")

    def open(self, *, is_shared: bool) -> None:
        """Begin. `is_shared`: for the watcher too."""
        self._capture = Capture.acquire(is_shared=is_shared)
        self.guard = self._capture.guard

    def close(self) -> None:
        """Leave stderr as it was."""
        if self._capture is not None:
            self._capture = None
            Capture.release()

    def forked(self) -> None:
        """In a forked child."""
        self._capture = None
        Capture.forked()

    @property
    def source(self) -> Stderr | None:
        """What is read, without lines; None before `open`."""
        return None if self._capture is None else self._capture.source

    @property
    def descriptor(self) -> int:
        """Of what the watcher reads when this process is gone; -1 where there is nothing."""
        return -1 if self._capture is None else self._capture.descriptor

    def start(self, events: Events) -> None:
        """Say that it is on, with what is there already."""
        self._events = events
        self._send()

    def collect(self, step: int) -> Sequence[Samples]:
        """Now and then."""
        if time.monotonic() >= self._due_s:
            self._send()
        return ()

    def stop(self) -> None:
        """With what the end has written: Python has printed an uncaught exception by now."""
        self._send()
        self._file.stop(0.0)

    def _send(self) -> None:
        capture, events = self._capture, self._events
        if capture is None or events is None:
            return
        self._due_s = time.monotonic() + limits.STDERR_EVERY_S
        details = self._details(capture)
        if details != self._sent:
            self._sent = details
            events.add(details)

    def _details(self, capture: Capture) -> Stderr:
        try:
            is_memory = capture.ring is not None
            tail = capture.tail() if is_memory else self._file.ask(capture.tail, limits.STDERR_READ_S)
        except (OSError, TimeoutError) as error:
            why = f"its file cannot be read now ({error.strerror or error})"
            return msgspec.structs.replace(capture.source, why_not=why)
        return with_tail(capture.source, tail, self._token)


def _kind(stream: Any) -> tuple[str, bool]:
    """What stderr is, and whether that is a regular file which `stream` writes to."""
    try:
        is_ours = stream.fileno() == STDERR
        mode = os.fstat(STDERR).st_mode
    except (OSError, AttributeError, ValueError, TypeError):
        return "no file", False
    if not is_ours:
        return "a stream of the program's own", False
    names = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISREG: "a file"}
    named = next((name for test, name in names.items() if test(mode)), "")
    return named or ("a terminal" if os.isatty(STDERR) else "a device"), stat.S_ISREG(mode)
