"""The store through which supervisors and coordinator talk: a TCPStore in a process of its own, or torchrun's.

No call waits for another rank: keys are asked for again and again, so that a rank that is gone holds up nobody.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, but not said to be
from torch.distributed.distributed_c10d import Store as TorchStore

from rangewatch.checks.linkcheck.children import Child
from rangewatch.checks.linkcheck.tasks import Member, Outcome, Task

Shape = TypeVar("Shape")

BACKLOG = 1024
"""Ranks that may knock at once."""
ANSWER_S = 30.0
"""Most seconds for one answer of the store: it only keeps keys, and answers in milliseconds."""


class Address(NamedTuple):
    """Where the store is, and what all keys of this check begin with."""

    host: str
    port: int
    prefix: str


class Store:
    """A connection to the store. Every call raises `RuntimeError` when the store is gone."""

    def __init__(self, address: Address, connect_s: float) -> None:
        """Raises `RuntimeError` when nobody answers within `connect_s`."""
        self.address = address
        self._store = PrefixStore(address.prefix, _connect(address, connect_s))

    def put_task(self, task: Task) -> None:
        """Give all supervisors something to do."""
        self._put(f"task/{task.number}", task)

    def task(self, number: int) -> Task | None:
        """The task, once it is there."""
        return self._get(f"task/{number}", Task)

    def put_outcome(self, number: int, outcome: Outcome) -> None:
        """One rank has done its part."""
        self._put(f"outcome/{number}/{outcome.rank}", outcome)
        self._store.add(f"outcomes/{number}", 1)

    def outcome(self, number: int, rank: int) -> Outcome | None:
        """What became of it on one rank, once that is there."""
        return self._get(f"outcome/{number}/{rank}", Outcome)

    def outcome_count(self, number: int) -> int:
        """How many ranks have done their part."""
        return self._store.add(f"outcomes/{number}", 0)

    def stop(self, number: int, group: int) -> None:
        """One of the group has failed: the others need not go on."""
        self._store.set(f"stop/{number}/{group}", "1")

    def is_stopped(self, number: int, group: int) -> bool:
        """Whether the group is to end."""
        return self._store.check([f"stop/{number}/{group}"])

    def arrive(self, member: Member) -> None:
        """This rank is here."""
        self._put(f"member/{member.rank}", member)

    def member(self, rank: int) -> Member | None:
        """The rank, once it is here."""
        return self._get(f"member/{rank}", Member)

    def beat(self) -> None:
        """The coordinator lives."""
        self._store.add("beat", 1)

    def beats(self) -> int:
        """Grows as long as the coordinator lives."""
        return self._store.add("beat", 0)

    def sign(self, rank: int) -> None:
        """This rank's supervisor lives, while it waits for its worker."""
        self._store.add(f"sign/{rank}", 1)

    def signs(self, rank: int) -> int:
        """Grows as long as the rank's supervisor lives and has a worker."""
        return self._store.add(f"sign/{rank}", 0)

    def leave(self) -> None:
        """A supervisor needs the store no more."""
        self._store.add("left", 1)

    def left(self) -> int:
        """How many have left."""
        return self._store.add("left", 0)

    def _put(self, key: str, value: msgspec.Struct) -> None:
        self._store.set(key, msgspec.json.encode(value).decode())

    def _get(self, key: str, shape: type[Shape]) -> Shape | None:
        return msgspec.json.decode(self._store.get(key), type=shape) if self._store.check([key]) else None


def group_store(address: Address, number: int, group: int) -> TorchStore:
    """For the process group of one test; its own connection, for the worker's process."""
    return PrefixStore(f"{address.prefix}/group/{number}/{group}", _client(address, ANSWER_S))


def host_loopback() -> tuple[Child, Address]:
    """Start a store that only this host reaches, on a port that is free."""
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listening:
        address = Address("127.0.0.1", int(listening.getsockname()[1]), "linkcheck")
        return _serve(address, listening), address


def host(address: Address) -> Child:
    """Start the store for all hosts, on the port of `address`. Raises `OSError` when that is taken."""
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    with socket.create_server(("", address.port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual) as listening:
        return _serve(address, listening)


def _serve(address: Address, listening: socket.socket) -> Child:
    return Child.fork(lambda _: _keep(address, os.dup(listening.fileno())), is_quiet=True)


def _keep(address: Address, listening: int) -> None:
    store = TCPStore(
        address.host,
        address.port,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=ANSWER_S),
        master_listen_fd=listening,
    )
    while store is not None:  # its thread serves until this process is ended
        signal.pause()


def _client(address: Address, connect_s: float) -> TCPStore:
    timeout = datetime.timedelta(seconds=connect_s)
    return TCPStore(address.host, address.port, is_master=False, wait_for_workers=False, timeout=timeout)


def _connect(address: Address, connect_s: float) -> TCPStore:
    """A client. Raises `RuntimeError`.

    In a thread, since with a server that speaks something else torch waits for ever; and with nothing on standard
    error, where torch prints its C++ stack for every try.
    """
    connected: list[TCPStore] = []
    errors: list[RuntimeError] = []
    thread = threading.Thread(target=_try, args=(address, connect_s, connected, errors), daemon=True)
    with _hushed():
        thread.start()
        thread.join(connect_s + 0.5)  # torch tries twice, for as long each time
    if not connected:
        raise errors[0] if errors else RuntimeError(f"{_who_listens(address)} ({connect_s:g} s)")
    return connected[0]


def _who_listens(address: Address) -> str:
    try:
        socket.create_connection((address.host, address.port), 1.0).close()
    except OSError as error:
        return f"nobody listens there: {error.strerror or error}"
    return "what listens there is no store of torch"


def _try(address: Address, connect_s: float, connected: list[TCPStore], errors: list[RuntimeError]) -> None:
    try:
        connected.append(_client(address, connect_s))
    except RuntimeError as error:
        errors.append(error)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    sys.stderr.flush()
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)
