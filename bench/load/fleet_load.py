"""A fleet of simulated ranks in one process: `fleet.py` starts it, and gives it one core of the two.

    cd bench; python -m load.fleet_load URL --ranks 1024 --tensors 600 --seconds 600

Every rank does what the agent does. Steps end everywhere at about the same time. At a step's end, when the interval has
passed since the last time (`ship_interval_s`, or `send_every_s` of the server's last reply where that is longer), or
64 steps are there, the steps since then become one batch, encoded at once. Batches wait in order; one at a time is on
its way over a connection of the rank's own, and after 429 or 503 is sent again when the reply says. Some
seconds with no batch, and an empty one is sent.

Prints a line of JSON each second (`Counts`), the last one when everything is acknowledged or given up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field

import aiohttp
import numpy as np

from load.traffic import FULL_EVERY, Rank, values_a_step

SHIP_INTERVAL_S = 0.5  # the agent's default least time between two shipments
BUFFER_STEPS = 64  # the agent's step buffer
ATTACH_S = 2.0  # ranks of one job attach within this time
HEARTBEAT_S = 5.0  # without a batch, then the agent sends an empty one; 1.25 times the pace when that is longer
JITTER_S = 0.02  # a step's end on one rank and on another
GIVE_UP_S = 60.0  # for what is still unacknowledged after the last step


@dataclass
class Counts:
    """What the fleet has done so far, and what is on the way."""

    elapsed_s: float = 0.0
    steps_per_s: float = 0.0
    steps: int = 0
    """Of every rank."""
    made: int = 0
    """Batches made, with the openings; `acknowledged` of them stored."""
    acknowledged: int = 0
    values: int = 0
    """In acknowledged batches."""
    refused: int = 0
    """Attempts answered 429 or 503, to be tried again."""
    rejected: int = 0
    """Batches refused for good."""
    send_every_s: float = 0.0
    """Of the last reply."""
    oldest_s: float = 0.0
    """Age of the oldest batch that waits or is on its way."""
    late_s: float = 0.0
    """The most that the load itself was behind its own clock in the last second."""
    latencies_ms: list[float] = field(default_factory=list)
    """From a batch's first attempt to its acknowledgement, of the last second."""
    is_behind: bool = False
    """`--find-limit`: the server no longer keeps up."""


class Agent:
    """One rank."""

    def __init__(self, fleet: Fleet, rank: Rank) -> None:
        self.fleet, self.rank = fleet, rank
        self.jitter_s = float(fleet.random.uniform(0, JITTER_S))
        self.waiting: deque[tuple[float, bytes, int]] = deque()
        """(when made, body, values) of what is not acknowledged, the one on its way first."""
        self.is_there = asyncio.Event()
        self.send_every_s = 0.0
        self.last_ship_s = -1e9

    def step_ended(self, now_s: float, step: int) -> None:
        """Ship when it is time; `step` steps have ended."""
        ready = step - self.rank.step
        is_time = not self.waiting and now_s - self.last_ship_s >= max(SHIP_INTERVAL_S, self.send_every_s)
        if ready and (is_time or ready >= BUFFER_STEPS):
            self.last_ship_s = now_s
            self.ship(step)

    def ship(self, step: int) -> None:
        """What has not been shipped of the first `step` steps."""
        while self.rank.step < step:
            steps = min(step - self.rank.step, BUFFER_STEPS)
            self.put(self.rank.batch(steps), steps * self.fleet.values_a_step)

    def put(self, body: bytes, values: int) -> None:
        """At the end of the queue."""
        self.waiting.append((time.monotonic(), body, values))
        self.fleet.counts.made += 1
        self.is_there.set()

    async def run(self) -> None:
        """Send what waits, in order, for ever."""
        await asyncio.sleep(float(self.fleet.random.uniform(0, self.fleet.attach_s)))
        self.put(self.rank.opening(), 0)
        self.last_ship_s = time.monotonic()  # the agent ships when it attaches, and steps after its interval
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            while True:
                while self.waiting:
                    await self._send(session)
                await self._wait()

    async def _wait(self) -> None:
        self.is_there.clear()
        try:
            await asyncio.wait_for(self.is_there.wait(), max(HEARTBEAT_S, 1.25 * self.send_every_s))
        except asyncio.TimeoutError:
            if not self.fleet.has_ended:
                self.put(self.rank.heartbeat(), 0)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        counts = self.fleet.counts
        began_s, body, values = time.monotonic(), *self.waiting[0][1:]
        while (retry_s := await self._attempt(session, body)) is not None:
            counts.refused += 1
            await asyncio.sleep(retry_s * float(self.fleet.random.uniform(1, 1.25)))
        self.waiting.popleft()
        counts.acknowledged += 1
        counts.values += values
        counts.latencies_ms.append((time.monotonic() - began_s) * 1e3)

    async def _attempt(self, session: aiohttp.ClientSession, body: bytes) -> float | None:
        """None when it is stored or refused for good, else the seconds to wait."""
        try:
            async with session.post(f"{self.fleet.url}/api/v1/ingest", data=body) as answer:
                text = await answer.read()
                if answer.status in (429, 503):
                    return float(answer.headers.get("Retry-After", 1))
        except (aiohttp.ClientError, TimeoutError):
            return 1.0
        if answer.status == 202:
            self.send_every_s = self.fleet.counts.send_every_s = float(json.loads(text).get("send_every_s") or 0)
        else:
            self.fleet.counts.rejected += 1
        return None


class Fleet:
    """All ranks, and the clock of their steps."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.url = options, options.url
        self.random = np.random.default_rng(0)
        self.attach_s = min(ATTACH_S, options.seconds / 4)
        self.values_a_step = options.tensors * values_a_step(options.full_every)
        self.counts = Counts(steps_per_s=options.steps_per_s)
        ranks = (Rank("fleet", n, options.ranks, options.tensors, options.full_every) for n in range(options.ranks))
        self.agents = [Agent(self, rank) for rank in ranks]
        self.began_s = time.monotonic()
        self.has_ended = False

    async def run(self) -> None:
        """Train, then wait for what is still on its way."""
        tasks = [asyncio.create_task(agent.run()) for agent in self.agents]
        reporter = asyncio.create_task(self._report())
        await asyncio.sleep(self.attach_s)
        await (self._find_limit() if self.options.find_limit else self._train(self.options.seconds))
        self.has_ended = True
        for agent in self.agents:  # the run ends: what is left is sent
            agent.ship(self.counts.steps)
        give_up_s = time.monotonic() + GIVE_UP_S
        while self.counts.acknowledged < self.counts.made and time.monotonic() < give_up_s:
            await asyncio.sleep(0.05)
        reporter.cancel()
        self._print()
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _train(self, seconds: float) -> None:
        """Steps for so long, in order of the ranks' jitter."""
        agents = sorted(self.agents, key=lambda agent: agent.jitter_s)
        next_s, end_s = time.monotonic(), time.monotonic() + seconds
        while (next_s := next_s + 1 / self.counts.steps_per_s) < end_s:
            self.counts.steps += 1
            for agent in agents:
                due_s = next_s + agent.jitter_s
                if (wait_s := due_s - time.monotonic()) > 0.001:  # finer, and waiting is most of the work
                    await asyncio.sleep(wait_s)
                agent.step_ended(time.monotonic(), self.counts.steps)
            self.counts.late_s = max(self.counts.late_s, time.monotonic() - due_s)
            await asyncio.sleep(0)

    async def _find_limit(self) -> None:
        """Faster and faster steps, until a stage ends with a batch that has waited for longer than `behind_s`."""
        while not self.counts.is_behind:
            await self._train(self.options.stage_s)
            self._print(is_behind=self._oldest_s() > self.options.behind_s)
            if not self.counts.is_behind:
                self.counts.steps_per_s *= self.options.growth

    def _oldest_s(self) -> float:
        oldest_s = min((agent.waiting[0][0] for agent in self.agents if agent.waiting), default=time.monotonic())
        return time.monotonic() - oldest_s

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._print()

    def _print(self, *, is_behind: bool = False) -> None:
        self.counts.is_behind = self.counts.is_behind or is_behind
        self.counts.elapsed_s = time.monotonic() - self.began_s
        self.counts.oldest_s = self._oldest_s()
        print(json.dumps(asdict(self.counts)), flush=True)
        self.counts.latencies_ms.clear()
        self.counts.late_s = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    add_options(parser)
    asyncio.run(Fleet(parser.parse_args()).run())


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the load and `fleet.py` both take."""
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--tensors", type=int, default=600)
    parser.add_argument("--steps-per-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--full-every", type=int, default=FULL_EVERY, help="1: ten statistics a step, as from CUDA")
    parser.add_argument("--find-limit", action="store_true", help="more steps a second, stage by stage, until too many")
    parser.add_argument("--stage-s", type=float, default=40.0, help="seconds of one stage of --find-limit")
    parser.add_argument("--growth", type=float, default=1.25, help="steps a second of a stage over the one before")
    parser.add_argument("--behind-s", type=float, default=5.0, help="age of an unacknowledged batch that is too much")


if __name__ == "__main__":
    main()
