"""A rank's end of the watcher: finds the one of this job and machine or starts it, and hands over what it is to hold.

All on a thread of its own, which waits without looking: the watcher's end closes the connection, and then another one
is started. The address is an abstract one (no file), that of the first to bind it; descriptors that were sent to it are
held by the kernel from then on, though nobody has taken them yet.

The crash state of one attached model: memory that outlives the process, and the watcher that holds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.crash import handover
from rangewatch.crash.handover import peer_uid
from rangewatch.crash.stack_file import StackFile
from rangewatch.delivery.spool.process import this_process
from rangewatch.recording.memory.shared_state import SharedState
from rangewatch.wire.records import RankInfo

STARTS = 5
"""Times that a rank starts a watcher, at most: one that cannot live here must not be started for ever."""

TRIES = 200
PAUSE_S = 0.05
"""Looks for a watcher that another rank is starting, which takes some tenths of a second, and their distance."""

BACKLOG = 256
"""Ranks that may connect before the watcher takes the first."""

ANSWER_S = 20.0
"""Seconds without its first answer after which that is told: it imports numpy first, on a machine that may be busy."""

_LEFT_OUT = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "PYTHONFAULTHANDLER", "PYTHONINSPECT", "PYTHONSTARTUP")
"""Variables that are about the training, not about the watcher."""

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}


class Watch:
    """`hand_over(connection)` sends the rank's message; `said(why)` is told, once, that there is no watcher."""

    def __init__(self, job: Path, hand_over: Callable[[socket.socket], None], said: Callable[[str], None]) -> None:
        self._job, self._hand_over, self._said = job, hand_over, said
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
            self._said("the watcher has ended again and again")
        except Exception as error:  # noqa: BLE001 - a thread of ours prints nothing on the user's terminal
            if not self._is_stopped:
                self._said(f"no watcher can be started: {error}")

    def _be_watched(self) -> None:
        """Until the watcher goes, or `stop`."""
        with self._connect() as connection, contextlib.suppress(ConnectionError):  # it may be ending
            # Before there is a watcher, if it is ours to start: what has been sent outlives this process already.
            self._hand_over(connection)
            self._start_one()
            connection.settimeout(ANSWER_S)
            try:
                is_watched = connection.recv(16) == b"ok"
            except TimeoutError:
                self._said(f"its watcher has not answered for {ANSWER_S:.0f} s")
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

Tell = Callable[[str, str, dict[str, Any]], None]


class CrashState:
    """`start` and `end` are called by the sender's thread, `open` by the one that attaches. `emit(kind, message, data)`
    ships an event.
    """

    def __init__(self, options: Options, info: RankInfo, guard: Guard, emit: Tell) -> None:
        self._options, self._info, self._guard, self._emit = options, info, guard, emit
        why_not = why_no_watcher() if options.watcher else ""
        is_wanted = options.watcher and bool(options.spool_bytes)
        self.shared_state = SharedState(is_shared=is_wanted and not why_not, histograms=options.histograms)
        self.shared_state.steps.refused = self._steps_refused
        self._why_not = why_not or (self.shared_state.why_not if is_wanted else "")
        self._watch: Watch | None = None
        self._stack: int | None = None

    def open(self) -> None:
        """Before training begins, and by its thread: faulthandler gives a stack of its own to the one that enables it,
        without which an overflow of the thread's stack cannot be told.
        """
        if self.shared_state.descriptors:
            self._stack = StackFile.open()

    def start(self, folder: Path | None) -> None:
        """The rank's spool is in `folder`: have a watcher hold what outlives this process. None: there is no spool."""
        if self._why_not:
            self._say(self._why_not)
        elif folder is None and self.shared_state.descriptors:
            self._say("there is no spool")
        elif folder is not None and self.shared_state.descriptors:
            self._watch = Watch(folder.parent, lambda to: self._hand_over(to, folder), self._say)
            self._guard.run("watcher", self._watch.start)

    def end(self) -> None:
        """The agent has ended, and its goodbye is in the spool or with the server."""
        if self._watch is not None:
            self._watch.stop()
        if self._stack is not None:
            self._stack = None
            StackFile.close()
        self.shared_state.close()

    def abandon(self) -> None:
        """In a forked child, which is nobody's rank."""
        if self._watch is not None:
            self._watch.abandon()
        StackFile.forked()
        self.shared_state.close()

    def _hand_over(self, connection: socket.socket, folder: Path) -> None:
        options = self._options
        said = handover.Joining(
            os.fsencode(folder), this_process(), self._info, options.url, options.token, tuple(options.allow_inf)
        )
        stack = self._stack
        handover.send(
            connection, said, self.shared_state.descriptors + ([stack] if stack is not None and stack >= 0 else [])
        )

    def _say(self, why: str) -> None:
        self._guard.run("watcher", lambda: self._emit(EVENT, f"nobody will see how this process ends: {why}", {}))

    def _steps_refused(self, why: str) -> None:
        message = f"steps that are not in the spool when this process dies are lost: {why}"
        self._guard.run("watcher", lambda: self._emit(EVENT, message, {}))
