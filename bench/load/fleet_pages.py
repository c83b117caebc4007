"""Live pages that nobody looks at, in one process: `fleet.py --pages` starts it. A tab in the background asks for
nothing; it only holds its stream of "this changed" events.

    cd bench; python -m load.fleet_pages URL COUNT

Prints a line of JSON each second: streams that are open, events that have come, streams that were cut.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp

ROUTE = "/api/v1/live"
OPEN_A_SECOND = 100


class Pages:
    """All streams, until the process is ended."""

    def __init__(self) -> None:
        self.open = self.events = self.cut = 0

    async def hold(self, session: aiohttp.ClientSession, url: str) -> None:
        """Open one, and again a second after it was cut."""
        while True:
            try:
                async with session.get(url, headers={"Accept": "text/event-stream"}) as answer:
                    answer.raise_for_status()
                    self.open += 1
                    try:
                        async for line in answer.content:
                            self.events += line.startswith(b"event: changed")
                    finally:
                        self.open -= 1
                        self.cut += 1
            except aiohttp.ClientError:
                self.cut += 1
            await asyncio.sleep(1.0)

    async def run(self, url: str, count: int) -> None:
        """Hold `count` streams and tell of them."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            tasks = []
            while True:
                for _ in range(min(OPEN_A_SECOND, count - len(tasks))):
                    tasks.append(asyncio.create_task(self.hold(session, f"{url}{ROUTE}")))
                await asyncio.sleep(1.0)
                print(json.dumps({"open": self.open, "events": self.events, "cut": self.cut}), flush=True)


if __name__ == "__main__":
    asyncio.run(Pages().run(sys.argv[1], int(sys.argv[2])))
