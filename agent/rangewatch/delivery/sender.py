"""Two threads: the `Sender`'s has what is handed over in the spool, in order, until the server has it. The other posts,
so that however long a server takes to answer, what comes meanwhile is encoded and on disk.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from pathlib import Path
from typing import Protocol

from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.core.options import Options
from rangewatch.delivery.batcher import Batcher, PendingBatch
from rangewatch.delivery.spool.process import is_there
from rangewatch.delivery.spool.queue import Queue
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.transport import Command, OtherProcess, Outcome, Reply, RunHealth, Transport
from rangewatch.recording.events import Drops
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.recording.rows.step_buffer import EMPTY_BLOCK, Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.records import Event, RankInfo

THREAD, HTTP_THREAD = "rangewatch-sender", "rangewatch-poster"

_chance = random.SystemRandom()
"""Never the module's own functions: a loop that draws from them would draw others with us than without."""


class DeliveryObserver(Protocol):
    """The agent whose batches a `Sender` sends. Called by the sender's thread."""

    def spool_opened(self, folder: Path | None) -> None:
        """Called once, with the rank's spool folder; None: there is none."""

    def batched(self, block: Block) -> None:
        """This has been put into a batch."""

    def commanded(self, commands: tuple[Command, ...]) -> None:
        """The server asks for these."""

    def reported(self, health: RunHealth) -> None:
        """What the server knows of the whole run."""

    def leave(self) -> None:
        """Nobody holds model or handle any more."""

    def goodbye(self) -> None:
        """Hand over the last of all: called when the rest is sent, so that it has the counts of what was dropped."""

    def ended(self) -> None:
        """The thread ends."""


def _post_all(
    transport: Transport, bodies: queue.SimpleQueue[bytes | None],
    replies: queue.SimpleQueue[Reply | Exception], answered: threading.Event,
) -> None:  # fmt: skip
    """Post what comes in `bodies`, one at a time, up to None. It holds no sender, which may end while this waits."""
    while (body := bodies.get()) is not None:
        try:
            replies.put(transport.post(body))
        except Exception as error:  # noqa: BLE001 - the sender's guard gets it
            replies.put(error)
        answered.set()
    transport.close()


class Sender:
    """Everything but `start`, `batcher.put`, `stop` and `wait` runs on its own thread."""

    def __init__(
        self, options: Options, info: RankInfo, names: TensorNames, drops: Drops, guard: Guard, mirror: Mirror,
        observer: DeliveryObserver,
    ) -> None:  # fmt: skip
        self._url, self._info, self._drops, self._guard, self._observer = options.url, info, drops, guard, observer
        self._queue = Queue(info, options.url, options.spool_dir, options.spool_bytes, options.queue_bytes, drops, self)
        self._wake = threading.Event()
        self.batcher = Batcher(info, names, options.allow_inf, drops, mirror, self._queue, self._wake, observer.batched)
        """Where to hand over."""
        self._bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        self._is_posting = False
        """A body was given, and its reply is not taken yet."""
        self._stop_at_s: float | None = None
        self._owes_goodbye = False
        self._opened: str | None = None
        self._openings = 0
        self._last_settled_s = time.monotonic()
        self._posted: Encoded | None = None
        self._is_opening = False
        self._answered: Encoded | None = None
        self._backoff_s = limits.BACKOFF_FIRST_S
        self._next_attempt_s = 0.0
        self._warned: set[str] = set()
        self.is_reachable = True
        self.send_every_s = 0.0
        """What the server asks for when many ranks send to it; read by the training thread."""
        self.has_left = False
        """Nobody holds model or handle any more. Set by the garbage collector, in any thread and under any lock."""
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        posting = (Transport(options.url, options.token), self._bodies, self._replies, self._wake)
        self._http_thread = threading.Thread(target=_post_all, args=posting, name=HTTP_THREAD, daemon=True)

    @property
    def is_behind(self) -> bool:
        """Whether something handed over is not stored yet. From any thread."""
        return len(self._queue) > 0 or len(self.batcher) > 0

    def start(self) -> None:
        """Start the threads. Raises `RuntimeError` where the interpreter allows none any more."""
        self._http_thread.start()
        try:
            self._thread.start()
        except BaseException:
            self._bodies.put(None)
            raise

    def stop(self, timeout_s: float) -> None:
        """Send what is left for at most `timeout_s`, then the goodbye, and end the thread. `wait` waits for it.

        What is left when time is up stays in the spool, and what is in memory only is lost with the process.
        """
        self._owes_goodbye = True
        self._backoff_s = limits.BACKOFF_FIRST_S
        self._next_attempt_s = 0.0
        self._stop_at_s = time.monotonic() + timeout_s
        self._wake.set()

    def wait(self) -> None:
        """Wait until a stop that has begun is done, or its time is up."""
        if self._stop_at_s is not None:
            # A request that is on its way when time is up ends by its own timeouts: the poster is a daemon.
            self._thread.join(max(self._stop_at_s - time.monotonic(), 0.0) + limits.LAST_WRITE_S)

    def _run(self) -> None:
        self._guard.run("spool", self._open_spool)
        while True:
            self._wake.clear()
            if self.has_left and self._stop_at_s is None:
                self._guard.run("sender", self._observer.leave)
            if not self._guard.run("sender", self._work):
                self._guard.run("sender", self._skip)
            if self._is_done():
                break
            self._wake.wait(min(self._idle_s(), limits.LEFT_POLL_S))
        self._bodies.put(None)
        self._guard.run("spool", self._queue.close)
        self._guard.run("sender", self._observer.ended)

    def _open_spool(self) -> None:
        self._queue.open()
        self._observer.spool_opened(self._queue.folder)

    def spool_changed(self, message: str) -> None:
        """Batches are kept elsewhere than usual from here on."""
        self.batcher.events.append(Event("spool", time.time_ns(), -1, message))
        self._warn(message, message)

    def _work(self) -> None:
        while True:
            self.batcher.encode_all()
            if self._is_silent():
                self.batcher.put(PendingBatch(EMPTY_BLOCK, ()))
                self.batcher.encode_all()
            if self._is_posting and not self._take_reply():
                return
            if not len(self._queue) or time.monotonic() < self._next_attempt_s or self._is_overdue():
                return
            batch = self._posted = self._queue.first()
            self._is_opening = self._opened != batch.catalogue
            body = self.batcher.opening(batch.tensor_count) if self._is_opening else batch.body
            self._is_posting = True
            self._bodies.put(body)

    def _is_silent(self) -> bool:
        """Whether it is time for an empty batch, which tells the server that this rank is still there."""
        return not len(self._queue) and time.monotonic() - self._last_settled_s >= self._heartbeat_s()

    def _heartbeat_s(self) -> float:
        """With a slow pace batches come late, and need no heartbeats between them."""
        return max(limits.HEARTBEAT_S, 1.25 * self.send_every_s)

    def _skip(self) -> None:
        """Whatever we failed at, do not fail at it for ever: the batch being sent goes, or the one not yet encoded."""
        if self._answered is not None and len(self._queue) and self._queue.first() is self._answered:
            self._queue.remove_first()
        self._answered = None
        self._drops.add("agent_fault")
        self._last_settled_s = time.monotonic()
        self._next_attempt_s = self._last_settled_s + limits.BACKOFF_FIRST_S

    def _is_overdue(self) -> bool:
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    def _is_done(self) -> bool:
        if self._stop_at_s is None:
            return False
        if len(self._queue) or len(self.batcher):
            is_hopeless = self._next_attempt_s >= self._stop_at_s and not self._is_posting
            if not self._is_overdue() and not is_hopeless:
                return False
            self._say_goodbye()
            self._guard.run(
                "sender", self.batcher.encode_all
            )  # so that the spool knows that this was an end and no death
            return True
        # One that had nothing to say, as that of a run that has failed, wakes nobody.
        return not self._say_goodbye() or not (len(self._queue) or len(self.batcher))

    def _say_goodbye(self) -> bool:
        """Have the last shipment put, once; whether it was now."""
        is_owed, self._owes_goodbye = self._owes_goodbye, False
        if is_owed:
            self._guard.run("sender", self._observer.goodbye)
        return is_owed

    def _idle_s(self) -> float:
        if len(self.batcher):
            return limits.DEVICE_POLL_S
        if self._is_posting:
            return limits.LEFT_POLL_S if self._stop_at_s is None else max(self._stop_at_s - time.monotonic(), 0.0)
        next_s = self._next_attempt_s if len(self._queue) else self._last_settled_s + self._heartbeat_s()
        return max(next_s - time.monotonic(), 0.0)

    def _take_reply(self) -> bool:
        """Act on the answer, if there is one."""
        if self._replies.empty():
            return False
        self._answered = self._posted
        reply = self._replies.get()
        self._is_posting = False
        if isinstance(reply, Exception):
            raise reply
        if self._posted is not None:
            self._act_on(reply, self._posted)
        self._answered = None
        return True

    def _act_on(self, reply: Reply, batch: Encoded) -> None:
        self.is_reachable = reply.is_answered
        if reply.outcome is Outcome.STORED and reply.contiguous > self.batcher.newest_sequence:
            detail = (
                f"it has stored up to sequence {reply.contiguous}, and {self.batcher.newest_sequence} is the newest"
            )
            self._retry_later(Reply(Outcome.RETRY, detail))
        elif reply.outcome is Outcome.STORED:
            self._stored(batch, is_opening=self._is_opening)
            self.send_every_s = reply.send_every_s
            self._observer.commanded(reply.commands)
            if reply.health is not None:
                self._observer.reported(reply.health)
            if reply.also_live is not None:
                self._warn_of_other(reply.also_live)
        elif reply.outcome is Outcome.NEEDS_OPENING and self._openings < limits.OPENINGS_A_BATCH:
            self._opened, self._openings = None, self._openings + 1
        elif reply.outcome in {Outcome.REJECTED, Outcome.NEEDS_OPENING}:
            self._rejected(reply, batch)
        else:
            self._retry_later(reply)

    def _stored(self, batch: Encoded, *, is_opening: bool) -> None:
        self._last_settled_s = time.monotonic()
        if is_opening:
            self._opened = batch.catalogue
        else:
            self._backoff_s = limits.BACKOFF_FIRST_S
            self._openings = 0
            self._queue.remove_first()

    def _rejected(self, reply: Reply, batch: Encoded) -> None:
        self._openings = 0
        self._queue.remove_first()
        self._drops.add("server_rejected", batch.batches)
        self._last_settled_s = time.monotonic()
        self._back_off(self._next_backoff_s())  # a server that refuses everything gets less and less to refuse
        self._warn("rejected", f"{self._url} refused a batch for good ({reply.detail}); it is dropped")

    def _warn_of_other(self, other: OtherProcess) -> None:
        info = self._info
        if info.rank != 0:  # two jobs share all their ranks, and one line is enough
            return
        if other.host == info.host and not is_there(other.pid):
            return  # an older process of a job that was restarted: its watcher sends what it left
        host = "".join(each if each.isprintable() else "?" for each in other.host)
        self._warn(
            "also_live",
            f"process {other.pid} on {host} also sends run {info.run!r} as rank {info.rank}: the two become one run. "
            "RANGEWATCH_RUN gives this job a name of its own",
        )

    def _retry_later(self, reply: Reply) -> None:
        if reply.outcome is Outcome.UNAUTHORIZED:
            delay_s = limits.UNAUTHORIZED_RETRY_S
            self._warn("unauthorized", f"{self._url} wants another token ({reply.detail}): set RANGEWATCH_TOKEN")
        else:
            backoff_s = self._next_backoff_s()
            delay_s = backoff_s if reply.retry_after_s is None else reply.retry_after_s
            what = "is not taking data" if reply.is_answered else "does not answer"
            message = f"batches are kept for later{self._where()}"
            self._warn("away", f"{self._url} {what} ({reply.detail}); training goes on and {message}")
        self._back_off(delay_s)

    def _where(self) -> str:
        folder = self._queue.folder
        return "" if folder is None else f" in {folder} (`rangewatch replay` sends them, should this run end before)"

    def _next_backoff_s(self) -> float:
        """How long to wait this time; twice as long the next, until a batch is stored."""
        backoff_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, limits.BACKOFF_LAST_S)
        return backoff_s

    def _back_off(self, delay_s: float) -> None:
        self._next_attempt_s = time.monotonic() + delay_s * _chance.uniform(1.0, 1.25)

    def _warn(self, topic: str, message: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning("rangewatch: %s", message)
