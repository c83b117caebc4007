"""The watcher's loop: takes ranks that come, waits for them to end, and ends itself when all have and all is sent, or
its patience with a server is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from rangewatch.crash.handover import peer_uid, receive
from rangewatch.crash.watcher.death_report import Ending
from rangewatch.crash.watcher.rank import Rank
from rangewatch.crash.watcher.uploads import Uploads
from rangewatch.delivery.spool import place, process
from rangewatch.delivery.spool.folder import Folder, SpoolError

POLL_S = 1.0
"""Seconds between two looks at what may change without a word: the counts of the out-of-memory killer."""

LINGER_S = 1.0
"""Seconds that it stays when there is no rank: a job that is started again needs no other one."""

PATIENCE_S = 120.0
"""Seconds after the last rank's end in which it tries to send what they left."""

PATIENCE_STOPPED_S = 15.0
"""The same when the job was stopped (SIGTERM): whoever stopped it waits for all of its processes, some 30 s. A second
SIGTERM when no rank is left, or one that comes later than so, ends it at once.
"""

PROGRESS_S = 5.0
"""Past its patience it stays for as long as batches are taken, with no longer than so between two of them."""

ORPHAN_AFTER_S = 60.0
"""Seconds in which nobody has changed a spool of a dead process, after which no watcher of its own has it."""

MOST_UNKNOWN = 64
"""Connections that have not said who they are: the oldest goes for one more."""

FULL_S = 0.1
"""Seconds of rest when there is no descriptor left for who has connected."""


class Node:
    """`listener`: where ranks connect. `job`: the folder in which their spools are."""

    def __init__(self, listener: socket.socket, job: Path) -> None:
        self._listener, self._job = listener, job
        self._ranks: dict[int, Rank] = {}
        """By the descriptor that is polled: a rank's pidfd."""
        self._tokens: dict[str, str | None] = {}
        """Of each server, as this job's ranks have it: what earlier jobs left gets no token of another server's."""
        self._connections: dict[int, tuple[socket.socket, Rank]] = {}
        self._unknown: dict[int, socket.socket] = {}
        """Who has not said yet who it is."""
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._alone_since_s = time.monotonic()
        self._stops = 0
        self._uploads = Uploads(self._is_out_of_patience)
        # On a thread of their own: what died now must not wait for twenty servers of last week that do not answer.
        self._orphans = Uploads(self._is_out_of_patience)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stopped)

    def run(self) -> None:
        """Until all is done, or its patience is over."""
        has_taken_orphans = False
        while not self._is_done():
            ready = self._poll.poll(1000 * POLL_S)
            for descriptor, _ in ready:
                self._on(descriptor)
            if not ready and not has_taken_orphans:  # whoever has connected is known by now
                has_taken_orphans = True
                self._take_orphans()
            for rank in self._ranks.values():
                rank.poll()

    def _on(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._ranks:
            self._gone(descriptor)
        elif descriptor in self._unknown:
            self._introduce(self._unknown[descriptor])
        elif descriptor in self._connections:
            self._disconnected(descriptor)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are too many: those that are watched stay watched
            time.sleep(FULL_S)
            return
        connection.setblocking(False)  # one that says nothing keeps nobody waiting
        if not _is_ours(connection):
            connection.close()
            return
        if len(self._unknown) >= MOST_UNKNOWN:
            self._close(self._unknown.pop(next(iter(self._unknown))))
        self._unknown[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def _introduce(self, connection: socket.socket) -> None:
        """It has said who it is, or something else."""
        joined = None
        try:
            joined = receive(connection)
        except BlockingIOError:
            return  # what was to be read was of another one, whose descriptor it has been given
        except OSError:
            pass
        del self._unknown[connection.fileno()]
        if joined is None:
            self._close(connection)
            return
        rank = Rank(*joined)
        self._ranks[rank.pidfd] = rank
        self._tokens[rank.joining.url] = rank.joining.token
        self._connections[connection.fileno()] = connection, rank
        self._poll.register(rank.pidfd, select.POLLIN)
        with contextlib.suppress(OSError):
            connection.send(b"ok")

    def _close(self, connection: socket.socket) -> None:
        self._poll.unregister(connection)
        connection.close()

    def _gone(self, pidfd: int, ending: Ending | None = None) -> None:
        rank = self._forget(pidfd)
        with contextlib.suppress(Exception):  # the other ranks are still to be seen
            died = rank.ended(ending)
            if died is not None:
                folder, unsaved = died
                self._uploads.add(folder, rank.joining.token, unsaved)
        rank.close()

    def _disconnected(self, descriptor: int) -> None:
        """Its agent has ended, or all of it: of that the pidfd tells, unless another program has taken its place."""
        connection, rank = self._connections.pop(descriptor)
        self._close(connection)
        if rank.pidfd not in self._ranks:
            return
        if rank.is_replaced():
            self._gone(rank.pidfd, Ending(is_replaced=True))
        elif rank.has_left():
            self._forget(rank.pidfd)
            with contextlib.suppress(OSError, SpoolError):
                folder = Folder(rank.folder)
                if folder.claim():
                    self._uploads.add(folder, rank.joining.token)
            rank.close()

    def _forget(self, pidfd: int) -> Rank:
        self._poll.unregister(pidfd)
        self._alone_since_s = time.monotonic()
        return self._ranks.pop(pidfd)

    def _take_orphans(self) -> None:
        """What earlier jobs of this user have left on this machine, whose processes are gone."""
        for path in place.spools(self._job.parent):
            with contextlib.suppress(OSError, SpoolError):
                folder = Folder(path)
                is_left = time.time() - path.stat().st_mtime > ORPHAN_AFTER_S
                if is_left and process.is_gone(folder.owner.process) and folder.claim():
                    self._orphans.add(folder, self._tokens.get(folder.url))

    def _is_done(self) -> bool:
        if self._ranks or time.monotonic() - self._alone_since_s < LINGER_S:
            return False
        both = (self._uploads, self._orphans)
        if all(each.are_done for each in both):
            return True
        # A try that is under way may take long to fail, and twenty may wait for theirs: it does not wait for them.
        is_taken = not self._stops and any(time.monotonic() - each.taken_s < PROGRESS_S for each in both)
        return self._is_out_of_patience() and not is_taken

    def _is_out_of_patience(self) -> bool:
        patience_s = (PATIENCE_S, PATIENCE_STOPPED_S, 0.0)[min(self._stops, 2)]
        return not self._ranks and time.monotonic() - self._alone_since_s > patience_s

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Not yet: what stops the job stops the ranks too, and those are to be seen. While they live all such signals
        are one: some launchers and schedulers send two."""
        self._stops = 1 if self._ranks else self._stops + 1


def _is_ours(connection: socket.socket) -> bool:
    """Whether who has connected is this user: anybody may connect to an abstract address."""
    return peer_uid(connection) == os.geteuid()
