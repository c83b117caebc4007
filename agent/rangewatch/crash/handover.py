"""What a rank says to the watcher when it joins: who it is, and the descriptors that outlive it."""

from __future__ import annotations

import os
import socket
import struct

import msgspec

from rangewatch.delivery.spool.process import Process
from rangewatch.wire.events import Stderr
from rangewatch.wire.records import RankInfo

MESSAGE_BYTES = 1 << 16
DESCRIPTORS = 4
"""Of every message: the process's pidfd, the steps, the names, the events."""

STACK, STDERR = "stack", "stderr"
"""Of some: faulthandler's file, and where the end of stderr is to be read."""


class Joining(msgspec.Struct, frozen=True):
    """`folder`: its spool, as the bytes of its path. The token travels here alone: no file and no argument has it.

    `more`: what the descriptors after the first four are. `stderr`: what the one of stderr is. `oom_file`: the path
    that counts the out-of-memory kills of its control group, and `oom_kills` how many there were until now.
    """

    folder: bytes
    process: Process
    info: RankInfo
    url: str
    token: str | None = None
    allow_inf: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    stderr: Stderr | None = None
    oom_file: bytes = b""
    oom_kills: int = 0


def send(connection: socket.socket, joining: Joining, descriptors: list[int]) -> None:
    """`descriptors`: of the memory, and those of `joining.more`; this process's pidfd is added. Raises `OSError`."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(connection, [msgspec.json.encode(joining)], [pidfd, *descriptors])
    finally:
        os.close(pidfd)


def receive(connection: socket.socket) -> tuple[Joining, list[int]] | None:
    """The other end of `send`; None for what is no such message. Raises `OSError`."""
    data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS + 2)
    try:
        joining = msgspec.json.decode(data, type=Joining)
        if len(descriptors) >= DESCRIPTORS:
            return joining, descriptors
    except msgspec.DecodeError:
        pass
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
