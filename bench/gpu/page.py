"""The GPUs page of a real training: its samples in a real server, and a picture where Chromium is.

    python bench/gpu/page.py --out FOLDER [--dry-run]
    python bench/gpu/page.py --out FOLDER --database FOLDER/gpus.db     # the picture of what another machine has left

A GPU machine has no browser as a rule: it leaves the database, which is small. `--dry-run`: a training on a CPU, beside
NVML's double.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nvml_double
import torch
from checks import Checks, parser
from torch import nn

import rangewatch
from rangewatch.commands.demo.children import free_port, start_server

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SECONDS, DRY_SECONDS = 20.0, 5.0
COLUMNS = ("utilization_gpu_percent", "memory_used_bytes", "power_w", "temperature_c", "sm_clock_mhz")


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, required=True, help="where the database and the picture go")
    options.add_argument("--database", type=Path, help="of a training that is over")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        database = folder / "gpus.db"
        if chosen.database:
            shutil.copy(chosen.database, database)
        url, _ = start_server(free_port(), database, folder, stack)
        if not chosen.database:
            train(checks, url, is_dry=chosen.dry_run)
            copy(database, chosen.out / "gpus.db")
        look_at(checks, url)
        picture(checks, url, chosen.out / "gpus.png")
    return checks.end()


def train(checks: Checks, url: str, *, is_dry: bool) -> None:
    """Keep the card busy for some seconds, and idle for some, with the agent's collectors at work."""
    why_not = nvml_double.install() if is_dry else ""
    if why_not:
        checks.notes.append(why_not)
    device = "cpu" if is_dry else "cuda"
    width = 64 if is_dry else 8192
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(width, width, device=device)
    with rangewatch.attach(model, optimizer, url=url, run="gpus page") as handle:
        until_s = time.monotonic() + (DRY_SECONDS if is_dry else SECONDS)
        while time.monotonic() < until_s:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if is_dry:
                time.sleep(0.05)
            else:
                torch.cuda.synchronize()
        checks.equal(handle.stats()["dropped"], {}, "what was dropped")


def look_at(checks: Checks, url: str) -> None:
    """The page's own answer has a card, and its values."""
    cards: list[dict[str, Any]] = []
    for _ in range(50):
        with urllib.request.urlopen(f"{url}/api/v1/runs/1/gpus", timeout=10) as answer:
            cards = json.load(answer)["gpus"]
        if cards:
            break
        time.sleep(0.2)
    if not checks.that(cards, "the page has no card"):
        return
    values = cards[0].get("values", cards[0])
    for name in COLUMNS:
        value = values.get(name)
        checks.that(value is not None and math.isfinite(value), f"the page does not know {name}: {value}")
    checks.figures["card"] = {name: values.get(name) for name in COLUMNS}


def copy(database: Path, target: Path) -> None:
    """What SQLite has, its log included."""
    import sqlite3

    target.unlink(missing_ok=True)
    with sqlite3.connect(database) as source, sqlite3.connect(target) as copied:
        source.backup(copied)


def picture(checks: Checks, url: str, target: Path) -> None:
    """1280 x 700, where a browser is."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or not Path(CHROMIUM).exists():
        checks.notes.append(
            "no picture: no browser here. Elsewhere: python bench/gpu/page.py --database gpus.db --out ."
        )
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 700})
        page.goto(f"{url}/runs/1/gpus")
        page.get_by_text("°C").first.wait_for()
        page.wait_for_timeout(1500)  # figures come after the text
        page.screenshot(path=target, animations="disabled")
        browser.close()
    checks.that(target.stat().st_size > 10_000, "the picture is empty")
    checks.figures["picture"] = str(target)


if __name__ == "__main__":
    sys.exit(main())
