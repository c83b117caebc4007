"""A rank's end of the watcher: finds the one of this job and machine or starts it, and hands over what it is to hold.

All on a thread of its own, which waits without looking: the watcher's end closes the connection, and then another one
is started. The address is an abstract one (no file), that of the first to bind it; descriptors that were sent to it are
held by the kernel from then on, though nobody has taken them yet.

The crash state of one attached model: memory that outlives the process, and the watcher that holds it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.crash import handover
from rangewatch.crash.handover import peer_uid
from rangewatch.crash.memory.anonymous_file import IS_SUPPORTED
from rangewatch.crash.memory.shared_state import SharedState
from rangewatch.crash.oom_kills import oom_file, oom_kills
from rangewatch.crash.stderr_tail import StderrTail
from rangewatch.delivery.spool.process import this_process
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo


class StackFile:
    """faulthandler's file in memory that outlives the process: the Python stacks of a fatal signal.

    One a process, for as long as any attached model wants it. Where faulthandler is in use already it is left alone,
    and from the moment that somebody else enables or disables it too. Until then others are answered that it is off:
    "on if it is off" stays what it was.
    """

    _lock = threading.Lock()
    _users = 0
    _descriptor = -1
    _is_ours = False
    _originals: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # noqa: RUF012 - one a process

    @classmethod
    def open(cls) -> int:
        """Its descriptor, or -1 where faulthandler is somebody else's. Each call needs a `close`."""
        with cls._lock:
            cls._users += 1
            if cls._users == 1 and IS_SUPPORTED and not faulthandler.is_enabled():
                cls._enable()
            return cls._descriptor

    @classmethod
    def close(cls) -> None:
        """The last of them gives faulthandler back."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and cls._descriptor >= 0:
                cls._disable()

    @classmethod
    def forked(cls) -> None:
        """In a forked child, whose faults are not the rank's: they go nowhere, or to a file of its own."""
        cls._lock = threading.Lock()
        cls._users = 0
        if cls._descriptor >= 0:
            cls._disable()

    @classmethod
    def _enable(cls) -> None:
        cls._descriptor = os.memfd_create("rangewatch-stack", os.MFD_CLOEXEC)
        faulthandler.enable(cls._descriptor, all_threads=True)
        cls._is_ours = True
        wrapped = {"enable": cls._taken_by, "disable": cls._taken_by, "is_enabled": cls._hidden_from}
        for name, wrap in wrapped.items():
            original = getattr(faulthandler, name)
            wrapper = wrap(original)
            cls._originals[name] = original, wrapper
            setattr(faulthandler, name, wrapper)

    @classmethod
    def _disable(cls) -> None:
        for name, (original, wrapper) in cls._originals.items():
            if getattr(faulthandler, name) is wrapper:
                setattr(faulthandler, name, original)
        if cls._is_ours:
            cls._originals["disable"][0]()
        os.close(cls._descriptor)
        cls._originals, cls._descriptor, cls._is_ours = {}, -1, False

    @classmethod
    def _taken_by(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        def used(*args: Any, **kwargs: Any) -> Any:
            cls._is_ours = False
            return original(*args, **kwargs)

        return used

    @classmethod
    def _hidden_from(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: not cls._is_ours and original()


STARTS = 5
"""Times that a rank starts a watcher, at most: one that cannot live here must not be started for ever."""

TRIES = 200
PAUSE_S = 0.05
"""Looks for a watcher that another rank is starting, which takes some tenths of a second, and their distance."""

BACKLOG = 256
"""Ranks that may connect before the watcher takes the first."""

ANSWER_S = 20.0
"""Seconds without its first answer after which that is reported: it imports numpy first, on a busy machine too."""

_LEFT_OUT = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "PYTHONFAULTHANDLER", "PYTHONINSPECT", "PYTHONSTARTUP")
"""Variables that are about the training, not about the watcher."""

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}


class WatchedRank(Protocol):
    """The rank that a `Watch` is for. Called by its thread."""

    def hand_over(self, connection: socket.socket) -> None:
        """Send the watcher what it is to hold. Raises `OSError`."""

    def not_watched(self, why: str) -> None:
        """There is no watcher."""


class Watch:
    """Has the rank watched, from `start` to `stop`."""

    def __init__(self, job: Path, rank: WatchedRank) -> None:
        self._job, self._rank = job, rank
        self._address = address(job)
        self._connection: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="rangewatch-watch", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` where the interpreter allows none any more."""
        self._thread.start()

    def stop(self) -> None:
        """Part from the watcher; waits for nothing."""
        self._is_stopped = True
        connection = self._connection
        if connection is not None:
            _shut(connection)

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most that long."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets, which would seem to be held by it else."""
        for each in (self._connection, self._listener):
            if each is not None:
                each.close()

    def _run(self) -> None:
        try:
            for _ in range(STARTS):
                self._be_watched()
                if self._is_stopped:
                    return
                time.sleep(PAUSE_S)
            self._rank.not_watched("the watcher has ended again and again")
        except Exception as error:  # noqa: BLE001 - a thread of ours prints nothing on the user's terminal
            if not self._is_stopped:
                self._rank.not_watched(f"no watcher can be started: {error}")

    def _be_watched(self) -> None:
        """Until the watcher goes, or `stop`."""
        with self._connect() as connection, contextlib.suppress(ConnectionError):  # it may be ending
            # Before there is a watcher, if it is ours to start: what has been sent outlives this process already.
            self._rank.hand_over(connection)
            self._start_one()
            connection.settimeout(ANSWER_S)
            try:
                is_watched = connection.recv(16) == b"ok"
            except TimeoutError:
                self._rank.not_watched(f"its watcher has not answered for {ANSWER_S:.0f} s")
                is_watched = True  # or will be: what was sent is kept by the kernel until it is taken
            if is_watched:
                connection.settimeout(None)
                while connection.recv(16):  # its answer, where that is late; its end is empty
                    pass

    def _connect(self) -> socket.socket:
        for _ in range(TRIES):
            connection = self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self._address)
            except ConnectionRefusedError:
                connection.close()
            else:
                if peer_uid(connection) != os.geteuid():
                    raise PermissionError(1, "another user has its address")
                return connection
            if self._is_stopped:
                raise TimeoutError("stopped")
            if not self._bind():
                time.sleep(PAUSE_S)
        raise TimeoutError(f"nothing answers at {self._address[1:]}")

    def _bind(self) -> bool:
        """Whether this rank is the one that starts it: the first to have the address."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self._address)
        except OSError:
            listener.close()
            return False
        listener.listen(BACKLOG)
        self._listener = listener
        return True

    def _start_one(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with listener:
                process = _spawn(self._job, listener.fileno())
            process.wait()  # it forks at once, and the one that stays is nobody's child


def address(job: Path) -> str:
    """The abstract address of the watcher of a job: the same for its ranks on this machine, and for nobody else."""
    state = job.parent.stat()
    text = f"{os.geteuid()} {state.st_dev} {state.st_ino} {job.name}"
    return "\0rangewatch-" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def why_no_watcher() -> str:
    """Why no watcher can be started in this process; "" where one can."""
    executable = Path(sys.executable or "")
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    is_python = "python" in executable.name.lower() and os.access(executable, os.X_OK)
    if getattr(sys, "frozen", False) or not is_python:
        return f"there is no Python to start it with ({executable.name or 'none'} is none)"
    return ""


def _spawn(job: Path, descriptor: int) -> subprocess.Popen[bytes]:
    """It has nothing of ours but the socket: no terminal, no output (a pipe to `tee` would wait for it), no session."""
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT} | _ONE_THREAD
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "rangewatch.crash.watcher", str(job), str(descriptor)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env=environment,
        start_new_session=True, pass_fds=[descriptor],
    )  # fmt: skip


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        connection.close()


EVENT = "no_last_words"
"""The event that says why nobody will see how this process ends."""


class CrashState:
    """`start` and `end` are called by the sender's thread, all else by the one that attaches."""

    def __init__(self, options: Options, info: RankInfo, guard: Guard) -> None:
        self._options, self._info, self._guard = options, info, guard
        self._events: Events | None = None
        why_not = why_no_watcher() if options.watcher else ""
        is_wanted = options.watcher and bool(options.spool_bytes)
        is_shared = is_wanted and not why_not
        self.shared_state = SharedState(is_shared=is_shared, histograms=options.histograms, listener=self)
        self._why_not = why_not or (self.shared_state.why_not if is_wanted else "")
        self._watch: Watch | None = None
        self._folder = Path()
        self._stack: int | None = None
        self.stderr = StderrTail(options.token) if options.stderr_tail else None
        """A collector of its own, where the option asks for it."""

    def open(self, events: Events) -> None:
        """Before training begins, and by its thread: faulthandler gives a stack of its own to the one that enables it,
        without which an overflow of the thread's stack cannot be reported.
        """
        self._events = events
        if self.shared_state.descriptors:
            self._stack = StackFile.open()
        if self.stderr is not None:
            self.stderr.open(is_shared=bool(self.shared_state.descriptors))

    def start(self, folder: Path | None) -> None:
        """The rank's spool is in `folder`: have a watcher hold what outlives this process. None: there is no spool."""
        if self._why_not:
            self.not_watched(self._why_not)
        elif folder is None and self.shared_state.descriptors:
            self.not_watched("there is no spool")
        elif folder is not None and self.shared_state.descriptors:
            self._folder = folder
            self._watch = Watch(folder.parent, self)
            self._guard.run("watcher", self._watch.start)

    def end(self) -> None:
        """The agent has ended, and its goodbye is in the spool or with the server."""
        if self._watch is not None:
            self._watch.stop()
        if self._stack is not None:
            self._stack = None
            StackFile.close()
        if self.stderr is not None:
            self.stderr.close()
        self.shared_state.close()

    def abandon(self) -> None:
        """In a forked child, which is nobody's rank."""
        if self._watch is not None:
            self._watch.abandon()
        StackFile.forked()
        if self.stderr is not None:
            self.stderr.forked()
        self.shared_state.close()

    def hand_over(self, connection: socket.socket) -> None:
        """Send the watcher this rank's memory. By the `Watch`'s thread."""
        options, stderr, stack = self._options, self.stderr, self._stack
        more = {
            handover.STACK: -1 if stack is None else stack,
            handover.STDERR: -1 if stderr is None else stderr.descriptor,
        }
        there = {name: descriptor for name, descriptor in more.items() if descriptor >= 0}
        file = oom_file(os.getpid())
        joining = handover.Joining(
            os.fsencode(self._folder), this_process(), self._info, options.url, options.token, tuple(options.allow_inf),
            tuple(there), None if stderr is None else stderr.source, os.fsencode(file), oom_kills(file),
        )  # fmt: skip
        handover.send(connection, joining, self.shared_state.descriptors + list(there.values()))

    def not_watched(self, why: str) -> None:
        """Ship an event: nobody will see how this process ends."""
        self._emit(f"nobody will see how this process ends: {why}")

    def steps_refused(self, why: str) -> None:
        """Ship an event: closed steps are in memory of this process alone. By the training thread."""
        self._emit(f"steps that are not in the spool when this process dies are lost: {why}")

    def _emit(self, message: str) -> None:
        events = self._events
        if events is not None:
            self._guard.run("watcher", lambda: events.add(EVENT, message, {}))
