"""Chromium as a reader has it: nothing debugs its pages.

Playwright keeps the inspector of each page on, and V8 then parses functions again for the stack of each request and
each exception: 0.4 s of a first view of 0.8 s, and the answers are kept in the page's process. What is said to the
browser here is what has to be: where to go, what to click, and expressions to evaluate.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0",
    "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",  # a reader looks at the tab
    "--disable-background-timer-throttling",
    # Who drags has a mouse. Without one Plotly sets the cursor of the whole document instead, whose style is then found
    # again: 15 ms at the end of a drag.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
]  # fmt: skip
LISTENS = "DevTools listening on"
END_S = 30.0


class Connection:
    """Chromium's DevTools Protocol over one socket: a command, then its answer. Events are not looked at."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self._loop.run_until_complete(self._open(address))

    async def _open(self, address: str) -> None:
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(address, max_msg_size=0)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result. Raises RuntimeError where the browser refuses it."""
        self._number += 1
        return self._loop.run_until_complete(self._ask(self._number, method, parameters))

    async def _ask(self, number: int, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(await self._socket.receive_str(timeout=60))).get("id") != number:
            continue
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()


class Browser(Connection):
    """Its profiles are new: what is cold in one is not warmed by another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Raises RuntimeError where it ends before it listens."""
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith(LISTENS):
                break
        else:
            raise RuntimeError(f"Chromium did not start: {''.join(said[-20:])}")
        # Who logs into a full pipe waits.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        address = said[-1].split()[-1]
        super().__init__(address)
        self._pages = address.partition("/devtools/")[0] + "/devtools/page/"

    def new_profile(self) -> tuple[str, Connection]:
        """Its name, and its only page."""
        profile = self.send("Target.createBrowserContext")["browserContextId"]
        page = self.send("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
        return profile, Connection(self._pages + page)

    def drop_profile(self, name: str) -> None:
        self.send("Target.disposeBrowserContext", browserContextId=name)


@contextmanager
def chromium() -> Iterator[Browser]:
    """One for all samples: what is cold in a new tab is its profile."""
    with tempfile.TemporaryDirectory(prefix="rangewatch-chromium-", ignore_cleanup_errors=True) as folder:
        command = [CHROMIUM, *ARGUMENTS, f"--user-data-dir={Path(folder)}"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            browser = Browser(process)
            yield browser
            browser.close()
        finally:
            process.kill()
            process.wait(END_S)
