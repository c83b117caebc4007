"""Step time with headline numbers mirrored into a tracker, and with OTLP pushed by the server, in every trouble of
theirs: the ratio to the same training watched without should be at most 1.01, and losses the same to the bit.

    python bench/mirror.py [--minutes 3.5] [--only NAME] [--quick]

Of W&B (offline), MLflow (SQLite), TensorBoard and trackio those are measured that are installed. A round is a window of
steps of each condition in random order, on one model that begins each window with the same weights and batches:

- without: Rangewatch is attached and mirrors nothing;
- healthy: the tracker as it is;
- slow: each call of it takes 2 s more; refusing: each call raises `ConnectionError`;
- killed: after a third of the steps W&B's own process is killed, or the tracker's files are deleted.

OTLP is the server's: the training sends to a server that pushes every second to a collector that answers, takes 5 s,
answers 503, or is gone after a third of the window; the ratio is to a server without.

Counted is processor time, since others use the machine. `ratio`: what all threads but the training's took more than
without, over what the process took without, and 1; a mirror works on threads of its own, and the training's own time
is blurred by what else the machine does (`whole` has it too, `wall` is the ratio of the median step's time).
`threads` is the same of the mirrors' and the trackers' own Python threads alone, each by its own clock: it leaves out
the agent's other threads, whose noise is more than a mirror takes, and what is native in a tracker.

Predicted: 1.00 to 1.01 everywhere: a row a second of at most twenty numbers is a few milliseconds. The first healthy
window has the import of the writer, half a second for TensorBoard, and is therefore left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rangewatch
from servers.collector import Collector
from servers.process import Server
from trackers_open import OPENED, Opened, threads_cpu_s

MODES = ("without", "healthy", "slow", "refusing")
WARM_STEPS = 5
"""Of a window, not counted: attaching, and cold caches."""

LEAST_STEPS = 15
WINDOWS = 7
"""Of each sink, at the least."""

AFFORDED = 0.35
"""Of the time in steps, with one round of all sinks; the rest goes into attaching, opening, and second rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.5, help="that all of it takes; windows are as long as fits")
    parser.add_argument("--only", default="", choices=("", *OPENED), help="this tracker alone, without OTLP")
    parser.add_argument("--quick", action="store_true", help="TensorBoard and OTLP, one short round: does it run?")
    options = parser.parse_args()
    began_s = time.monotonic()
    subjects = ["tensorboard"] if options.quick else [name for name, each in OPENED.items() if each.is_installed()]
    subjects = [options.only] if options.only else subjects
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, Server(Path(name) / "bench.db") as server:
        training = Training()
        warm = training.window(
            lambda: rangewatch.attach(training.model, training.optimizer, url=server.url, run="warm")
        )
        if not options.quick:
            whole = AFFORDED * 60 * options.minutes / (WINDOWS * (len(subjects) + 1)) / warm.wall_s
            training.steps = min(400, max(LEAST_STEPS, round(whole)))
        for number, subject in enumerate(subjects):
            left_s = 0.0 if options.quick else 60 * options.minutes - (time.monotonic() - began_s)
            share_s = left_s / (len(subjects) + 1 - number)
            show(rows, tracker(subject, training, server.url, Path(name) / subject, share_s))
        left_s = 0.0 if options.quick else 60 * options.minutes - (time.monotonic() - began_s)
        if not options.only:
            show(rows, otlp(training, server.url, Path(name), left_s))
    print(json.dumps({"benchmark": "mirror", "steps": training.steps, "rows": rows}))


def show(rows: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Print what has been measured, and keep it."""
    rows += found
    for row in found:
        print(
            f"{row['sink']:<12} {row['mode']:<9} {row['ratio']:6.3f} ({row['low']:.3f} to {row['high']:.3f}, "
            f"{row['rounds']} rounds)  "
            f"threads {row['threads']:6.4f} (to {row['threads_high']:.4f})  whole {row['whole']:6.3f}  "
            f"wall {row['wall']:6.3f}  losses {'equal' if row['equal'] else 'DIFFER'}",
            flush=True,
        )


class Window:
    """What one window of steps took: seconds of processor a step, of them those of other threads than the training's,
    and those of the mirrors and trackers; seconds of the median step, and the losses.
    """

    def __init__(self, cpu_s: float, others_s: float, threads_s: float, wall_s: float, losses: list[float]) -> None:
        self.cpu_s, self.others_s, self.threads_s = cpu_s, others_s, threads_s
        self.wall_s, self.losses = wall_s, losses


class Training:
    """24 layers of 256 with GELU and AdamW: 120 tensors, some 25 ms a step on one core."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(256, 256), nn.GELU())])
        self._begin = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.steps = LEAST_STEPS
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def window(self, attach: Callable[[], Any], at_third: Callable[[], None] | None = None) -> Window:
        """Train anew from the first weights, watched by what `attach` gives."""
        self.model.load_state_dict(self._begin)
        self.optimizer.state.clear()
        torch.manual_seed(1)
        losses, walls = [], []
        with attach() as handle:
            for number in range(WARM_STEPS + self.steps):
                if number == WARM_STEPS:
                    began_s, own_s, threads_s = time.process_time(), time.thread_time(), threads_cpu_s()
                if at_third is not None and number == WARM_STEPS + self.steps // 3:
                    paused_s, own_paused_s = time.process_time(), time.thread_time()
                    at_third()
                    began_s += time.process_time() - paused_s
                    own_s += time.thread_time() - own_paused_s
                step_s = time.perf_counter()
                self.optimizer.zero_grad()
                loss = self.model(torch.randn(128, 256)).square().mean()
                loss.backward()
                self.optimizer.step()
                handle.log(loss=loss)
                losses.append(loss.item())
                walls.append(time.perf_counter() - step_s)
            cpu_s = (time.process_time() - began_s) / self.steps
            others_s = cpu_s - (time.thread_time() - own_s) / self.steps
            threads_s = (threads_cpu_s() - threads_s) / self.steps
        return Window(cpu_s, others_s, threads_s, statistics.median(walls[WARM_STEPS:]), losses)


def tracker(name: str, training: Training, url: str, folder: Path, share_s: float) -> list[dict[str, Any]]:
    """Rounds of all modes but killed, then killed ones, which need the tracker opened anew."""
    number = iter(range(1_000_000))

    def watched(mode: str, opened: Opened | None) -> Callable[[], Any]:
        mirror = [] if mode == "without" or opened is None else [opened.option]
        return lambda: rangewatch.attach(
            training.model, training.optimizer, url=url, run=f"{name}-{mode}-{next(number)}", budget_percent=100,
            mirror=mirror,
        )  # fmt: skip

    found: list[dict[str, Window]] = []
    ends_s = time.monotonic() + 0.6 * share_s
    opened = OPENED[name](folder / "open")
    with opened:
        training.window(watched("healthy", opened))
        while not found or time.monotonic() < ends_s:
            each: dict[str, Window] = {}
            for mode in random.sample(MODES, len(MODES)):
                with opened.in_trouble(mode):
                    each[mode] = training.window(watched(mode, opened))
            found.append(each)
    killed: list[dict[str, Window]] = []
    ends_s = time.monotonic() + 0.4 * share_s
    while not killed or time.monotonic() < ends_s:
        each = {"without": training.window(watched("without", None))}
        again = OPENED[name](folder / f"killed-{len(killed)}")
        with again:
            each["killed"] = training.window(watched("killed", again), again.kill)
        killed.append(each)
    return [row(name, mode, found) for mode in MODES[1:]] + [row(name, "killed", killed)]


def otlp(training: Training, url: str, folder: Path, share_s: float) -> list[dict[str, Any]]:
    """The training sends to the server that pushes to a collector, and to the one that does not."""
    modes = ("without", "healthy", "slow", "refusing", "killed")
    found: list[dict[str, Window]] = []
    with ExitStack() as stack:
        collector = stack.enter_context(Collector())
        arguments = ["--otlp", collector.url, "--otlp-every", "1"]
        pushing = stack.enter_context(Server(folder / "otlp.db", 0, *arguments))
        ends_s = time.monotonic() + share_s
        while not found or time.monotonic() < ends_s:
            each: dict[str, Window] = {}
            for mode in random.sample(modes, len(modes)):
                collector.mode = "healthy" if mode in ("without", "killed") else mode
                to = url if mode == "without" else pushing.url
                run = f"otlp-{mode}-{len(found)}"
                each[mode] = training.window(
                    lambda to=to, run=run: rangewatch.attach(  # type: ignore[misc]
                        training.model, training.optimizer, url=to, run=run, budget_percent=100
                    ),
                    collector.stop if mode == "killed" else None,
                )
                collector.start()
            found.append(each)
        assert collector.pushes, "nothing was pushed at all"
    return [row("otlp", mode, found) for mode in modes[1:]]


def row(sink: str, mode: str, rounds: list[dict[str, Window]]) -> dict[str, Any]:
    """Medians of the rounds' ratios."""
    pairs = [(each[mode], each["without"]) for each in rounds]
    ratios = sorted(1 + (one.others_s - without.others_s) / without.cpu_s for one, without in pairs)
    threads = sorted(1 + (one.threads_s - without.threads_s) / without.cpu_s for one, without in pairs)
    whole = [one.cpu_s / without.cpu_s for one, without in pairs]
    walls = [each[mode].wall_s / each["without"].wall_s for each in rounds]
    return {
        "sink": sink, "mode": mode, "ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1],
        "threads": statistics.median(threads), "threads_high": threads[-1],
        "whole": statistics.median(whole), "wall": statistics.median(walls), "rounds": len(rounds),
        "equal": all(each[mode].losses == each["without"].losses for each in rounds),
    }  # fmt: skip


if __name__ == "__main__":
    main()
