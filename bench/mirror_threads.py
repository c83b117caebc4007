"""What mirroring headline numbers takes of a core once it runs: of the mirror's own thread, and of the tracker's.

    python bench/mirror_threads.py [--seconds 60] [--only NAME]

No model is trained: the main thread gives the mirror a step's numbers forty times a second and sleeps, so that of the
process's time all but its own is the mirror's and the tracker's. `first` is what the first row took, with the link,
what is imported, and the database that is opened; it comes once. The rest is a percentage of one core:

- `all`: of all threads but the main one, less what the open tracker took in ten seconds before it was mirrored into;
- `mirror`: of that, the mirror's own thread, which it measures to rest from; the others are the tracker's;
- `children`: of the tracker's own processes (W&B), less the same: they run beside the training, on a core of theirs;
- rows written, and the most seconds between two of them: how old a row can be.

At the end an alert opens while the mirror rests: ms until the tracker is given it.

Predicted: all at most 1, mirror 0.5, rows at most 10 s apart, an alert within 1.1 s. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from rangewatch import trackers
from rangewatch.recording.events import Drops
from rangewatch.trackers.base import AlertRow
from rangewatch.trackers.headlines import ALL
from rangewatch.trackers.mirror import Mirror
from rangewatch.wire.records import RankInfo
from trackers_open import OPENED, Opened

EVERY_S, IDLE_S, FIRST_S = 0.025, 10.0, 30.0
INFO = RankInfo("bench", 0, 1, 0, "host", "a", 0)
ALERT = AlertRow(7, "warning", "headroom_trend", 0, "blocks.2", "Overflow in about 9 steps.")


class Timed:
    """A sink that notes when it was given what, and the mirror's processor time then."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.rows_s: list[float] = []
        self.alert_s = self.own_s = 0.0

    def write(self, step: int, values: Any) -> None:
        self._sink.write(step, values)
        self.rows_s.append(time.monotonic())
        self.own_s = time.thread_time()

    def alerts(self, rows: list[AlertRow]) -> None:
        self.alert_s = time.monotonic()
        self._sink.alerts(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class Others:
    """Processor seconds of the threads but this one, and of the child processes, since it was made."""

    def __init__(self) -> None:
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        children = psutil.Process().children(recursive=True)
        times = [each.cpu_times() for each in children if each.is_running()]
        threads_s = time.process_time() - time.thread_time()
        return time.monotonic(), threads_s, sum(each.user + each.system for each in times)

    def taken(self) -> tuple[float, float, float]:
        """Seconds since, of the threads, and of the children."""
        wall_s, threads_s, children_s = (now - began for now, began in zip(self._now(), self._began, strict=True))
        return wall_s, threads_s, children_s

    def percent(self) -> tuple[float, float]:
        """Of one core: the threads, and the children."""
        wall_s, threads_s, children_s = self.taken()
        return 100 * threads_s / wall_s, 100 * children_s / wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each tracker, after its first row")
    parser.add_argument("--only", default="", choices=("", *OPENED), help="this tracker alone")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, each in OPENED.items():
            if each.is_installed() and options.only in ("", name):
                with each(Path(folder) / name) as opened:
                    found.append(measured(name, opened, options.seconds))
                print(
                    "{sink:<12} first row {first_ms:5.0f} ms, then of one core {all:5.2f}% (mirror {mirror:.2f}%), "
                    "children {children:5.2f}%, {rows} rows, at most {apart_s:.1f} s apart, an alert after "
                    "{alert_ms:.0f} ms".format(**found[-1]), flush=True,
                )  # fmt: skip
    print(json.dumps({"benchmark": "mirror_threads", "seconds": options.seconds, "rows": found}))


def measured(name: str, opened: Opened, seconds: float) -> dict[str, Any]:
    """One tracker that is open."""
    timed: list[Timed] = []
    real = trackers.BY_NAME[name]

    def find(where: str, info: RankInfo) -> Timed | None:
        sink = real.find(where, info)
        timed[:] = [] if sink is None else [Timed(sink)]
        return timed[0] if timed else None

    idle = Others()
    time.sleep(IDLE_S)
    idle_percent = idle.percent()
    mirror = Mirror(real._replace(find=find), opened.option.partition(":")[2], INFO, "http://127.0.0.1:8642/", Drops())
    first = Others()
    mirror.find()
    mirror.start()
    sink, step = timed[0], 0
    until_s = time.monotonic() + FIRST_S
    while not sink.rows_s and time.monotonic() < until_s:
        step = give(mirror, step)
    first_ms = 1e3 * first.taken()[1]
    assert sink.rows_s, f"{name} took no row in {FIRST_S:.0f} s"
    rest, own_s, until_s = Others(), sink.own_s, time.monotonic() + seconds
    while time.monotonic() < until_s:
        step = give(mirror, step)
    percent, wall_s = rest.percent(), rest.taken()[0]
    rows_s, mirror_percent = list(sink.rows_s), 100 * (sink.own_s - own_s) / wall_s
    mirror.alert(ALERT)
    began_s, until_s = time.monotonic(), time.monotonic() + FIRST_S
    while not sink.alert_s and time.monotonic() < until_s:
        time.sleep(EVERY_S)
    mirror.stop(5.0)
    mirror.wait()
    apart_s = max((later - sooner for sooner, later in pairwise(rows_s)), default=wall_s)
    return {
        "sink": name, "first_ms": first_ms, "all": percent[0] - idle_percent[0], "mirror": mirror_percent,
        "children": percent[1] - idle_percent[1], "rows": len(rows_s), "apart_s": apart_s,
        "alert_ms": 1e3 * (sink.alert_s - began_s) if sink.alert_s else None, "wall_s": wall_s,
    }  # fmt: skip


def give(mirror: Mirror, step: int) -> int:
    """The numbers of a step, and a step's pause."""
    mirror.add(step, {each.name: 1.0 + step % 7 for each in ALL})
    time.sleep(EVERY_S)
    return step + 1


if __name__ == "__main__":
    main()
