"""What a rank says to the watcher when it joins: who it is, and the descriptors that outlive it."""

from __future__ import annotations

import os
import socket
import struct

import msgspec

from rangewatch.delivery.spool.process import Process
from rangewatch.wire.records import RankInfo

MESSAGE_BYTES = 1 << 16
DESCRIPTORS = 5
"""Of a message: the process's pidfd, the steps, the names, the events, and faulthandler's file where there is one."""


class Joining(msgspec.Struct, frozen=True):
    """`folder`: its spool, as the bytes of its path. The token travels here alone: no file and no argument has it."""

    folder: bytes
    process: Process
    info: RankInfo
    url: str
    token: str | None = None
    allow_inf: tuple[str, ...] = ()


def send(connection: socket.socket, joining: Joining, descriptors: list[int]) -> None:
    """`descriptors`: of the memory and faulthandler's file; this process's own pidfd is added. Raises `OSError`."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(connection, [msgspec.json.encode(joining)], [pidfd, *descriptors])
    finally:
        os.close(pidfd)


def receive(connection: socket.socket) -> tuple[Joining, list[int]] | None:
    """The other end of `send`; None for what is no such message. Raises `OSError`."""
    data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS)
    try:
        joining = msgspec.json.decode(data, type=Joining)
        if len(descriptors) >= DESCRIPTORS - 1:
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
