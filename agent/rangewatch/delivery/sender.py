"""Two threads: `Sender` encodes what the training thread hands over and has it on disk, in order, until the server
has it; `HttpThread` posts, so that however long a server takes to answer, what comes meanwhile is encoded and on
disk.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.core.options import Options
from rangewatch.delivery.batcher import Batcher, Drops, PendingBatch, SendQueue
from rangewatch.delivery.spool.queue import Queue
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.transport import Command, Outcome, Reply, Transport
from rangewatch.recording.step_buffer import EMPTY_BLOCK, Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.records import Event, RankInfo, Samples, StreamHeader

HTTP_THREAD = "rangewatch-poster"


class HttpThread:
    """Posts one body at a time. `answered` is called by its thread when there is a reply to take."""

    def __init__(self, transport: Transport, answered: Callable[[], None]) -> None:
        self._transport, self._answered = transport, answered
        self._bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._result: Reply | Exception | None = None
        self.is_busy = False
        """A body was given, and its reply is not taken yet."""
        self._thread = threading.Thread(target=self._run, name=HTTP_THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` where the interpreter allows none any more."""
        self._thread.start()

    def post(self, body: bytes) -> None:
        """Begin to post; not while it is busy."""
        self.is_busy = True
        self._bodies.put(body)

    def take_reply(self) -> Reply | None:
        """The answer, once; None while there is none. Raises what posting raised."""
        result, self._result = self._result, None
        if result is None:
            return None
        self.is_busy = False
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        """End the thread, after what it is posting; nobody waits for it."""
        self._bodies.put(None)

    def _run(self) -> None:
        while (body := self._bodies.get()) is not None:
            try:
                self._result = self._transport.post(body)
            except Exception as error:  # noqa: BLE001 - the sender's guard gets it
                self._result = error
            self._answered()
        self._transport.close()


THREAD = "rangewatch-sender"
LAST_COUNT = -1  # the catalogue of the shipment before


class Sender:
    """Everything but `start`, `put`, `stop` and `wait` runs on its own thread."""

    def __init__(self, options: Options, info: RankInfo, names: TensorNames, drops: Drops, guard: Guard) -> None:
        self._url, self._info, self._names, self._drops, self._guard = options.url, info, names, drops, guard
        self._handoff = SendQueue(drops)
        self._batcher = Batcher(info, names, options.allow_inf)
        self._queue = Queue(
            info, options.url, options.spool_dir, options.spool_bytes, options.queue_bytes, drops, self._emit_spool
        )
        self._wake = threading.Event()
        self._poster = HttpThread(Transport(options.url, options.token), self._wake.set)
        self._events: list[Event] = []
        self._stop_at_s: float | None = None
        self._goodbye: Callable[[], PendingBatch] | None = None
        self._opened: str | None = None
        self._openings = 0
        self._tensor_count = 0
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
        self.leave: Callable[[], None] = lambda: None
        """Called by the thread when it sees that."""
        self.batched: Callable[[Block], None] = lambda block: None
        """Called by the thread with what it has put into a batch."""
        self.commanded: Callable[[tuple[Command, ...]], None] = lambda commands: None
        """Called by the thread with what the server asks for."""
        self.spool_opened: Callable[[Path | None], None] = lambda folder: None
        """Called by the thread, once, with the rank's spool folder; None: there is none."""
        self.spooling: Callable[[int, object], None] = lambda sequence, mark: None
        """Called by the thread with a batch's sequence and its shipment's `mark`, before it is put into the spool.
        Not for a batch that cannot be encoded or is too large."""
        self.spooled: Callable[[], None] = lambda: None
        """Called by the thread after that."""
        self.ended: Callable[[], None] = lambda: None
        """Called by the thread at its end."""
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    @property
    def is_behind(self) -> bool:
        """Whether something handed over is not stored yet. From any thread."""
        return len(self._queue) > 0 or len(self._handoff) > 0

    def start(self) -> None:
        """Start the threads. Raises `RuntimeError` where the interpreter allows none any more."""
        self._poster.start()
        try:
            self._thread.start()
        except BaseException:
            self._poster.stop()
            raise

    def put(self, shipment: PendingBatch) -> None:
        """Hand over; never waits for more than the copy of a pointer."""
        self._handoff.put(shipment)
        self._wake.set()

    def put_without_rows(self, events: tuple[Event, ...], samples: tuple[Samples, ...], mark: object = None) -> None:
        """Hand over what belongs to no tensor, from any thread: the training thread may hang."""
        self.put(PendingBatch(EMPTY_BLOCK, events, LAST_COUNT, samples=samples, mark=mark))

    def stop(self, timeout_s: float, goodbye: Callable[[], PendingBatch]) -> None:
        """Send what is left for at most `timeout_s`, then `goodbye()`, and end the thread."""
        self.begin_stop(timeout_s, goodbye)
        self.wait()

    def begin_stop(self, timeout_s: float, goodbye: Callable[[], PendingBatch]) -> None:
        """The same without waiting for it.

        The goodbye is made when all else is sent, so that it tells of what was dropped on the way. What is left when
        time is up stays in the spool, and what is in memory only is lost with the process.
        """
        self._goodbye = goodbye
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
                self._guard.run("sender", self.leave)
            if not self._guard.run("sender", self._work):
                self._guard.run("sender", self._skip)
            if self._is_done():
                break
            self._wake.wait(min(self._idle_s(), limits.LEFT_POLL_S))
        self._guard.run("sender", self._poster.stop)
        self._guard.run("spool", self._queue.close)
        self._guard.run("sender", self.ended)

    def _open_spool(self) -> None:
        self._queue.open()
        self.spool_opened(self._queue.folder)

    def _emit_spool(self, message: str) -> None:
        self._events.append(Event("spool", time.time_ns(), -1, message))
        self._warn(message, message)

    def _work(self) -> None:
        while True:
            self._encode_all()
            if self._is_silent():
                self._encode(PendingBatch(EMPTY_BLOCK, (), self._tensor_count))
            if self._poster.is_busy and not self._take_reply():
                return
            if not len(self._queue) or time.monotonic() < self._next_attempt_s or self._is_overdue():
                return
            self._attempt()

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
        if len(self._queue) or len(self._handoff):
            is_hopeless = self._next_attempt_s >= self._stop_at_s and not self._poster.is_busy
            if not self._is_overdue() and not is_hopeless:
                return False
            self._say_goodbye()
            self._guard.run("sender", self._encode_all)  # so that the spool knows that this was an end and no death
            return True
        return not self._say_goodbye()

    def _say_goodbye(self) -> bool:
        """Put the last shipment, once; whether it was now."""
        goodbye, self._goodbye = self._goodbye, None
        if goodbye is not None:
            self._guard.run("sender", lambda: self.put(goodbye()))
        return goodbye is not None

    def _idle_s(self) -> float:
        if len(self._handoff):
            return limits.DEVICE_POLL_S
        if self._poster.is_busy:
            return limits.LEFT_POLL_S if self._stop_at_s is None else max(self._stop_at_s - time.monotonic(), 0.0)
        next_s = self._next_attempt_s if len(self._queue) else self._last_settled_s + self._heartbeat_s()
        return max(next_s - time.monotonic(), 0.0)

    def _encode_all(self) -> None:
        while (shipment := self._handoff.get_complete()) is not None:
            self._encode(shipment)

    def _encode(self, shipment: PendingBatch) -> None:
        if shipment.tensor_count == LAST_COUNT:
            shipment = shipment._replace(tensor_count=self._tensor_count)
        self._tensor_count = shipment.tensor_count
        batch = self._batcher.batch(shipment._replace(events=shipment.events + self._take_events()))
        self.batched(shipment.block)
        body = wire.encode(batch)
        if len(body) > wire.MAX_COMPRESSED_BYTES:
            self._drops.add("too_large")
            return
        whole = tuple(sorted(shipment.block.traced))
        encoded = Encoded(body, shipment.tensor_count, batch.catalogue, batch.sequence, whole)
        self.spooling(batch.sequence, shipment.mark)
        self._queue.put(encoded, partial(self._opening, shipment.tensor_count))
        self.spooled()

    def _take_events(self) -> tuple[Event, ...]:
        events, self._events = tuple(self._events), []
        return events

    def _attempt(self) -> None:
        batch = self._posted = self._queue.first()
        self._is_opening = self._opened != batch.catalogue
        self._poster.post(self._opening(batch.tensor_count) if self._is_opening else batch.body)

    def _take_reply(self) -> bool:
        """Act on the answer, if there is one."""
        self._answered = self._posted
        reply = self._poster.take_reply()
        if reply is not None and self._posted is not None:
            self._act_on(reply, self._posted)
        self._answered = None
        return reply is not None

    def _act_on(self, reply: Reply, batch: Encoded) -> None:
        self.is_reachable = reply.is_answered
        if reply.outcome is Outcome.STORED:
            self._stored(batch, is_opening=self._is_opening)
            self.send_every_s = reply.send_every_s
            self.commanded(reply.commands)
        elif reply.outcome is Outcome.NEEDS_OPENING and self._openings < limits.OPENINGS_A_BATCH:
            self._opened, self._openings = None, self._openings + 1
        elif reply.outcome in {Outcome.REJECTED, Outcome.NEEDS_OPENING}:
            self._rejected(reply, batch)
        else:
            self._retry_later(reply)

    def _opening(self, tensor_count: int) -> bytes:
        return wire.encode(StreamHeader(self._info, self._names.catalogue(tensor_count)))

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

    def _retry_later(self, reply: Reply) -> None:
        if reply.outcome is Outcome.UNAUTHORIZED:
            delay_s = limits.UNAUTHORIZED_RETRY_S
            self._warn("unauthorized", f"{self._url} wants another token ({reply.detail}): set RANGEWATCH_TOKEN")
        else:
            backoff_s = self._next_backoff_s()
            delay_s = backoff_s if reply.retry_after_s is None else reply.retry_after_s
            what = "is not taking data" if reply.is_answered else "does not answer"
            kept = f"batches are kept for later{self._where()}"
            self._warn("away", f"{self._url} {what} ({reply.detail}); training goes on and {kept}")
        self._back_off(delay_s)

    def _where(self) -> str:
        folder = self._queue.folder
        return "" if folder is None else f" in {folder} (`rangewatch replay` sends them, should this run end before)"

    def _next_backoff_s(self) -> float:
        """How long to wait this time; twice as long the next, until a batch is stored."""
        backoff_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, limits.BACKOFF_LAST_S)
        return backoff_s

    def _back_off(self, delay_s: float) -> None:
        self._next_attempt_s = time.monotonic() + delay_s * random.uniform(1.0, 1.25)

    def _warn(self, topic: str, message: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning("rangewatch: %s", message)
