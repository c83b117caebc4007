"""A server just started: the list of runs of many tensors, and a thousand live ranks that speak to it at once.

    python bench/start.py [--only names|page|ranks] [--keep DIR] [--profile FILE] [--db postgresql://...]

`names`: 60 runs of 30,000 tensors, and 9 of 200,000, each beside as many runs of 300, are written through the real
writer, a tile and some steps that are not in tiles each. On a server that has just started `GET /api/v1/runs` is asked
for until every line is whole, and ten times more: status and ms of the first answer, how many were asked until the
lines were whole, ms of the later ones, and the most memory that the server held (VmHWM), as ratios to runs of 300.
Asked while the runs are silent, and once more with an empty batch of each run just before: then they are live.

`ranks`: one run of 1,024 ranks x 600 tensors, 80 steps; on a server that has just started each rank sends an empty
batch, as after a restart in mid-run, and then 8 steps. Processor time of the server until it rests, the slowest answer,
and the home page meanwhile; the same once more is the baseline. The last line is JSON.

`page`: the same run while no rank speaks: processor time of a server until `/healthz`, the list and the run's page have
answered, beside a server without any run, three times each in turn; also on the PostgreSQL of `--db`.

Predicted before measuring: a first page of 60 x 30,000 takes 4 s with most lines to come, 25 requests until all are
whole and 700 MiB, since the names of each are read; of 1,024 ranks 9 s of processor at first, and 2 s after. `page`:
4 s more than a server without runs.
"""

from __future__ import annotations

import argparse
import json
import statistics as plain
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

from load.large_run import LargeRun
from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.store.engine import open_database
from servers.process import Server, fresh_database

KINDS, STEPS, BATCH_STEPS = ("output", "grad_output", "grad"), 72, 8  # 64 in a tile and 8 that are not
FEW = 300
CASES = ((60, 30_000), (9, 200_000))
LIST = "/api/v1/runs?limit=100"
MOST_ASKED, LATER, ROUNDS = 60, 10, 3
SILENT_S = 16.0  # a rank that was silent for 15 s is not live
REST_S, REST_SHARE = 2.0, 0.05  # the server rests when it took less of a core for so long
MIB = 1 << 20


def main() -> None:
    options = parse_options()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rangewatch-start-") as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        if options.only in ("", "names"):
            result["names"] = [names(keep, runs, tensors, options) for runs, tensors in options.cases]
        if options.only in ("", "page"):
            result["page"] = first_page(keep, options)
        if options.only in ("", "ranks"):
            result["ranks"] = ranks(keep, options)
    print(json.dumps({"benchmark": "start", "result": result}))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("names", "page", "ranks"), default="")
    parser.add_argument("--keep", type=Path, help="folder of the databases, 1 GB; default: for this time only")
    parser.add_argument("--db", default="", help="the PostgreSQL of `page`, where nothing is kept; default: SQLite")
    parser.add_argument("--profile", default="", help="py-spy's record of the server of `ranks` or `page`, a file")
    parser.add_argument("--quick", action="store_true", help="3 runs, 8 ranks: whether it runs at all")
    options = parser.parse_args()
    options.cases, options.ranks, options.tensors, options.rounds = CASES, 1_024, 600, ROUNDS
    if options.quick:
        options.cases, options.ranks, options.tensors, options.rounds = ((3, 1_000),), 8, 20, 1
    return options


def names(keep: Path, runs: int, tensors: int, options: argparse.Namespace) -> dict[str, Any]:
    """The list of so many runs, of so many tensors and of few."""
    found = {each: listed(build(keep, runs, each), runs, each) for each in (FEW, tensors)}
    few, many = found[FEW], found[tensors]
    ratios = {name: many[name] / max(few[name], 1e-9) for name in ("first_ms", "later_ms", "live_ms", "hwm_mib")}
    print(f"{runs} runs of {tensors:,} tensors, and of {FEW}:")
    for label, each in (("", many), (f"({FEW}) ", few)):
        print("  {}first answer {first_status} in {first_ms:,.0f} ms with {first_partial} lines partial, whole after "
              "{asked} requests and {whole_s:.1f} s, later ones {later_ms:.0f} ms; live {live_ms:,.0f} ms, at most "
              "{live_max_ms:,.0f}, {live_partial} partial; memory {hwm_mib:.0f} MiB".format(label, **each))  # fmt: skip
    print("  ratios: " + "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return {"runs": runs, "tensors": tensors, "many": many, "few": few, "ratios": ratios}


def build(keep: Path, runs: int, tensors: int) -> Path:
    """The database, made where it is not there."""
    path = keep / f"names-{runs}x{tensors}.db"
    if path.exists():
        return path
    unfinished = path.with_suffix(".unfinished")
    for left in keep.glob(f"{unfinished.name}*"):
        left.unlink()
    engines = open_database(f"sqlite:///{unfinished}")
    writer = Writer(engines)
    writer.start()
    known = catalogue(tensors)
    digest, random = wire.catalogue_digest(known), np.random.default_rng(0)
    for run in range(runs):
        send(writer, StreamHeader(info(run), known))
        for sequence in range(STEPS // BATCH_STEPS):
            send(writer, batch(run, sequence, digest, tensors, random))
        sys.stderr.write(f"\rbuilding {runs} x {tensors:,}: {run + 1}")
    writer.stop()
    engines.dispose()
    unfinished.rename(path)
    sys.stderr.write("\n")
    return path


def catalogue(tensors: int) -> Catalogue:
    entries = (
        TensorEntry(
            f"model.layers.{at // 21}.self_attn.heads.{at // 3 % 7}.proj", KINDS[at % 3], 0, "float16", (4_096, 512),
            at, "Linear",
        )
        for at in range(tensors)
    )  # fmt: skip
    return Catalogue(statistics.ALL, tuple(entries))


def info(run: int) -> RankInfo:
    return RankInfo(f"train-{run}", 0, 1, 0, "host", "a", time.time_ns(), loss_scaled=True)


def batch(run: int, sequence: int, digest: str, tensors: int, random: np.random.Generator) -> Batch:
    at = np.arange(sequence * BATCH_STEPS, (sequence + 1) * BATCH_STEPS)
    shape = (tensors, len(at))
    amax = random.lognormal(0, 2, (tensors, 1)).astype(np.float16).astype(np.float64) * np.ones(len(at))
    columns = {name: np.broadcast_to(0.0, shape) for name in ("nan_count", "inf_count")}
    columns |= {"call_count": np.broadcast_to(1.0, shape), "numel": np.broadcast_to(4_096.0, shape), "amax": amax}
    series = tuple(SeriesRows(name, at, 2 + np.exp(-at / 20)) for name in ("loss", "loss_scale"))
    return Batch(f"train-{run}", 0, "a", sequence, digest, RangeRows(at, np.arange(tensors), columns), series)


def send(writer: Writer, message: Any) -> None:
    writer.submit(message, wire.encode(message)).result()


def listed(path: Path, runs: int, tensors: int) -> dict[str, Any]:
    """What the list of runs takes of a server that has just started."""
    digest = wire.catalogue_digest(catalogue(tensors))
    while time.time() - newest_s(path) < SILENT_S:
        time.sleep(0.5)
    with Server(path) as server:
        pool = urllib3.PoolManager()
        answers = [ask(pool, server)]
        while answers[-1]["partial"] and len(answers) < MOST_ASKED:
            answers.append(ask(pool, server))
        later = [ask(pool, server) for _ in range(LATER)]
        silent_mib = hwm_mib(server)
        for run in range(runs):
            sequence = time.time_ns() // 1_000  # past those of earlier measurements of the same file
            beat = Batch(f"train-{run}", 0, "a", sequence, digest, settled=sequence)
            pool.request("POST", f"{server.url}/api/v1/ingest", body=wire.encode(beat))
        live = [ask(pool, server) for _ in range(LATER)]
        most_mib = hwm_mib(server)
    return {
        "first_status": answers[0]["status"], "first_ms": answers[0]["ms"], "first_partial": answers[0]["partial"],
        "asked": len(answers), "whole_s": sum(each["ms"] for each in answers) / 1e3,
        "statuses": sorted({each["status"] for each in (*answers, *later, *live)}),
        "later_ms": plain.median(each["ms"] for each in later), "live_ms": plain.median(each["ms"] for each in live),
        "live_max_ms": max(each["ms"] for each in live), "live_partial": live[-1]["partial"],
        "silent_mib": silent_mib, "hwm_mib": most_mib,
    }  # fmt: skip


def newest_s(path: Path) -> float:
    """When a rank last spoke, Unix time."""
    engines = open_database(f"sqlite:///{path}")
    with engines.reader.connect() as connection:
        newest = connection.exec_driver_sql("SELECT max(last_seen_ns) FROM streams").scalar_one()
    engines.dispose()
    return float(newest) / 1e9


def ask(pool: urllib3.PoolManager, server: Server) -> dict[str, Any]:
    began_s = time.perf_counter()
    answer = pool.request("GET", f"{server.url}{LIST}", retries=False, timeout=60)
    ms = (time.perf_counter() - began_s) * 1e3
    partial = sum(each["is_partial"] for each in answer.json()["runs"]) if answer.status == 200 else -1
    return {"status": answer.status, "ms": ms, "partial": partial}


def hwm_mib(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def first_page(keep: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Processor time until the list of runs and a run's page have answered."""
    db = options.db
    with filled(keep, options) as many, fresh_database(db) as none:
        rounds = [(answered(many, options.profile), answered(none.db)) for _ in range(options.rounds)]
    more = [full["cpu_s"] - empty["cpu_s"] for full, empty in rounds]
    found = {"db": db or "sqlite", "rounds": rounds, "more_cpu_s": plain.median(more), "least_more_cpu_s": min(more)}
    print(f"{options.ranks:,} ranks on a server just started, {found['db'].partition(':')[0]}:")
    for full, empty in rounds:
        print("  {up_cpu_s:.2f} s of processor until it is up, {cpu_s:.2f} until list and page have answered "
              "({list_ms:,.0f} and {page_ms:,.0f} ms, statuses {statuses})".format(**full))  # fmt: skip
        print(f"  {empty['cpu_s']:.2f} without runs")
    print(f"  {found['more_cpu_s']:.2f} s more than without runs, at least {found['least_more_cpu_s']:.2f}")
    return found


@contextmanager
def filled(keep: Path, options: argparse.Namespace) -> Iterator[str]:
    """The database of the run of many ranks: a SQLite file that is made once, or on PostgreSQL one for this time."""
    if options.db:
        with fresh_database(options.db) as many:
            fill(many.db, options)
            yield many.db
        return
    path = keep / f"page-{options.ranks}x{options.tensors}.db"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        for left in keep.glob(f"{unfinished.name}*"):
            left.unlink()
        fill(str(unfinished), options)
        unfinished.rename(path)
    yield str(path)


def fill(db: str, options: argparse.Namespace) -> LargeRun:
    """Write 80 steps of the run of many ranks."""
    run = LargeRun(options.ranks, options.tensors)
    engines = open_database(db if "://" in db else f"sqlite:///{db}")
    writer = Writer(engines)
    writer.start()
    run.open(writer)
    for _ in range(10):
        run.send(writer, 8)
    writer.stop()
    engines.dispose()
    return run


def answered(db: str, profile: str = "") -> dict[str, Any]:
    """What a server just started takes until its first pages have answered."""
    with Server(db) as server:
        start_profile(server, profile)
        pool, up_cpu_s = urllib3.PoolManager(), server.cpu_s()
        times, statuses = [], []
        for path in (LIST, "/api/v1/runs/1"):
            began_s = time.perf_counter()
            statuses.append(pool.request("GET", f"{server.url}{path}", retries=False, timeout=60).status)
            times.append((time.perf_counter() - began_s) * 1e3)
        return {"up_cpu_s": up_cpu_s, "cpu_s": server.cpu_s(), "list_ms": times[0], "page_ms": times[1],
                "statuses": statuses}  # fmt: skip


def ranks(keep: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A run of so many ranks goes on at a server that has just started."""
    path = Path(tempfile.mkdtemp(dir=keep)) / "ranks.db"
    run = fill(str(path), options)
    with Server(path) as server:
        resting_s = rest(server)
        spy = start_profile(server, options.profile)
        first = spoken(server, beats(run))
        if spy is not None:
            spy.wait(60)
        steps = spoken(server, eight_steps(run))
        later = spoken(server, beats(run)), spoken(server, eight_steps(run))
        memory = hwm_mib(server)
    found = {"first": first, "first_steps": steps, "later": later[0], "later_steps": later[1], "hwm_mib": memory,
             "resting_s": resting_s, "ratio": first["cpu_s"] / max(later[0]["cpu_s"], 1e-9)}  # fmt: skip
    print(f"{options.ranks:,} live ranks on a server just started:")
    for name in ("first", "first_steps", "later", "later_steps"):
        print("  {}: {cpu_s:.2f} s of processor, slowest answer {max_ms:,.0f} ms, home page at most {page_ms:,.0f} "
              "ms, statuses {statuses}".format(name, **found[name]))  # fmt: skip
    print(f"  ratio of the first to a later time {found['ratio']:.2f}; most memory {memory:.0f} MiB")
    return found


def beats(run: LargeRun) -> list[bytes]:
    """An empty batch of each rank."""
    run.sequence += 1
    empty = [
        Batch("large", rank, "a", run.sequence - 1, run.digest, settled=run.sequence - 1) for rank in range(run.ranks)
    ]
    return [wire.encode(each) for each in empty]


def eight_steps(run: LargeRun) -> list[bytes]:
    """The next steps of each rank."""
    bodies = run.bodies(8)
    run.step, run.sequence = run.step + 8, run.sequence + 1
    return bodies


def spoken(server: Server, bodies: list[bytes]) -> dict[str, Any]:
    """All ranks send at once; what it took until the server rests."""
    pool = urllib3.PoolManager(maxsize=32)
    is_done = threading.Event()
    pages: list[float] = []

    def watch() -> None:
        own = urllib3.PoolManager()
        while not is_done.wait(0.1):
            pages.append(ask(own, server)["ms"])

    def post(body: bytes) -> tuple[int, float]:
        began_s = time.perf_counter()
        while (answer := pool.request("POST", f"{server.url}/api/v1/ingest", body=body)).status in (429, 503):
            time.sleep(0.2)
        return answer.status, (time.perf_counter() - began_s) * 1e3

    began_cpu_s, watcher = server.cpu_s(), threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(post, bodies))
    sent_cpu_s = server.cpu_s() - began_cpu_s
    is_done.set()
    watcher.join()
    rest(server)
    return {
        "cpu_s": server.cpu_s() - began_cpu_s, "until_sent_cpu_s": sent_cpu_s, "page_ms": max(pages, default=0.0),
        "max_ms": max(ms for _, ms in answers), "statuses": sorted({status for status, _ in answers}),
    }  # fmt: skip


def rest(server: Server) -> float:
    """Wait until the server rests; the processor seconds it has used."""
    while True:
        before_s = server.cpu_s()
        time.sleep(REST_S)
        if server.cpu_s() - before_s < REST_SHARE * REST_S:
            return server.cpu_s()


def start_profile(server: Server, path: str) -> subprocess.Popen[bytes] | None:
    if not path:
        return None
    command = ["py-spy", "record", "--pid", str(server.process.pid), "--duration", "15", "--format", "raw", "-o", path]
    spy = subprocess.Popen([*command, "--rate", "200", "--gil"])
    time.sleep(1.0)
    return spy


if __name__ == "__main__":
    main()
