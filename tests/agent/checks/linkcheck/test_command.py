"""`rangewatch linkcheck` on real gloo ranks with planted faults; a soak has all of them on 8 ranks."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rangewatch.commands import linkcheck
from rangewatch.commands.linkcheck import main
from tests.agent.checks.linkcheck.run_command import CODE, LAUNCHERS, Begun, Forker, finish, processes_of, start
from tests.agent.ingest_double import IngestDouble


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    forker = Forker(tmp_path_factory.mktemp("commands"))
    yield forker
    forker.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_healthy_ranks_pass_and_all_of_it_is_told_written_and_posted(
    forker: Forker, ingest: IngestDouble, tmp_path: Path
) -> None:
    found = tmp_path / "result.json"
    ran = forker.run("--nproc", "2", "--json", str(found), "--post", ingest.url, "--run", "links of Tuesday")
    result = json.loads(found.read_text())
    assert (ran.status, result["ok"], result["bad_ranks"], result["bad_pairs"]) == (0, True, [], []), ran.err
    assert result["slow_pairs"] == [] and result["nccl_error"] == ""
    assert (result["world_size"], result["backend"]) == (2, "gloo")
    assert [(pair["a"], pair["b"]) for pair in result["pairs"]] == [(0, 1)]
    assert all(pair["ok"] and pair["latency_s"] > 0 and pair["busbw_bytes_per_s"] > 0 for pair in result["pairs"])
    ok = [line for line in ran.out.splitlines() if "OK  rank" in line]
    assert len(ok) == 2 and "rank 1 of 2: cpu, gloo" in ok[1]
    assert "busbw of pairs in GB/s (all_reduce of 4 MiB)" in ran.out and "latency of pairs in us" in ran.out
    assert "pairs, round 1 of 1: 1 ok" in ran.err
    assert "all 2 ranks and all links tested are fine" in ran.out
    (event,) = ingest.events("linkcheck")
    assert event.data["pairs"][0]["busbw_bytes_per_s"] == result["pairs"][0]["busbw_bytes_per_s"]
    assert event.message == "all 2 ranks and all links tested are fine"
    assert ingest.openings[0].info.run == "links of Tuesday"


@pytest.mark.parametrize("last", [pytest.param(3, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.soak)])
def test_a_rank_that_crashes_with_every_other_takes_nobody_down(forker: Forker, last: int) -> None:
    """The case of ranks 0-6 that work together, and 7 that works alone only; and of fewer."""
    ran = forker.run("--nproc", str(last + 1), "--inject", f"{last}:die", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"]) == (1, [last], [])
    rank = result["ranks"][last]
    assert "died by SIGSEGV" in rank["error"] and "before_first_collective" in rank["log"]
    assert f"ranks 0-{last - 1} work together" in ran.err and f"alone: {last + 1} ok" in ran.err


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wrong", "hang")),
        pytest.param("slow", marks=pytest.mark.soak),
    ],
)
def test_a_bad_rank_is_named(forker: Forker, kind: str) -> None:
    ran = forker.run("--nproc", "4", "--timeout", "2", "--inject", f"2:{kind}", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"], result["slow_pairs"]) == (1, [2], [], [])
    assert result["ranks"][2]["fault"] == kind
    failed = [
        (pair["a"], pair["b"])
        for pair in result["pairs"]
        if pair["slow" if kind == "slow" else "ok"] is (kind == "slow")
    ]
    assert failed and all(2 in pair for pair in failed)
    if kind == "wrong":
        assert "got wrong values from rank 2: element 21845 is 0x" in result["ranks"][2]["error"]
    if kind != "slow":
        assert result["subsets"][-1]["ranks"] == [0, 1, 3] and result["subsets"][-1]["ok"]


@pytest.mark.parametrize(("kind", "said"), [("die", "died by SIGSEGV"), ("wrong", "element 21845 is 0x")])
def test_a_bad_link_is_told_from_a_bad_rank(forker: Forker, kind: str, said: str) -> None:
    ran = forker.run("--nproc", "3", "--inject", f"0-2:{kind}", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"]) == (1, [], [[0, 2]])
    (failed,) = [pair for pair in result["pairs"] if not pair["ok"]]
    assert (failed["a"], failed["b"]) == (0, 2) and said in json.dumps(failed)


@pytest.mark.soak
def test_a_group_that_only_fails_together_is_narrowed_down(forker: Forker) -> None:
    ran = forker.run("--nproc", "5", "--inject", "0-2-3:die", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"], result["bad_groups"]) == (1, [], [], [[0, 2, 3]])


@pytest.mark.slow
def test_nccl_that_is_not_there_falls_back_to_gloo_and_says_so(forker: Forker) -> None:
    ran = forker.run("--nproc", "2", "--backend", "nccl", "--json")
    result = ran.result()
    assert (ran.status, result["backend"], result["bad_ranks"]) == (1, "gloo", [])
    assert "NCCL" in result["nccl_error"] and "going on with gloo" in ran.err
    assert result["pairs"][0]["ok"]


@pytest.mark.slow
def test_ranks_find_one_another_by_slurms_variables(forker: Forker) -> None:
    # A job's number makes the port: two runs of this test beside each other must not meet, nor any other service.
    job = next(each for each in itertools.count(os.getpid()) if is_free(20_000 + each % 10_000))
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost"}
    at_once = "from rangewatch.checks.linkcheck import launch; launch.EXIT_S = 0.0"
    ranks = [
        forker.begin("--json", prelude=at_once, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **slurm)
        for rank in range(2)
    ]
    first, other = [each.end() for each in ranks]
    assert (first.status, other.status) == (0, 0), first.err
    assert first.result()["world_size"] == 2


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET6) as listening:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listening.bind(("::", port))
        except OSError:
            return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_outlives_the_check(stop: signal.Signals) -> None:
    process = start("--nproc", "3", "--inject", "1:hang")
    assert process.stderr is not None
    while "backend" not in process.stderr.readline():
        pass
    mine = processes_of(process.pid)
    assert len(mine) >= 4  # store and supervisors
    process.send_signal(stop)
    ran = finish(process)
    assert ran.status == (130 if stop != signal.SIGKILL else -signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in mine):
        time.sleep(0.05)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_supervisor_that_is_killed_is_missing_and_named(forker: Forker) -> None:
    """Rank 3 loses its supervisor at once. Nobody tells then that its worker hangs.

    The timeout of a phase is no way out: it would take ten minutes.
    """
    silent = "from rangewatch.checks.linkcheck import coordinator; coordinator.SILENT_S = 2.0"
    process = forker.begin("--nproc", "4", "--inject", "0-1:slow", "--timeout", "600", "--json", prelude=silent)
    process.until("backend")
    os.kill(sorted(direct_children(process.pid))[-1], signal.SIGKILL)  # forked in order: the store, then ranks 0 to 3
    ran = process.end()
    assert (ran.status, ran.result()["bad_ranks"]) == (1, [3])
    assert ran.result()["ranks"][3]["fault"] == "missing"


def direct_children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.slow
def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(CODE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launch, str(tmp_path / "check.py"), "--json", str(tmp_path / "result.json")],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    ran = finish(process)
    assert ran.status == 0, ran.err
    assert json.loads((tmp_path / "result.json").read_text())["world_size"] == 2
    assert "rank 1 of 2: cpu, gloo" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nproc", "0"], "not a whole number from 1"),
        (["--nproc", "two"], "not a whole number from 1"),
        (["--timeout", "nan"], "not a number from 1"),
        (["--nproc", "2", "--inject", "1:explode"], "not RANK:KIND"),
        (["--nproc", "2", "--inject", "2:die"], "there is no rank 2 among 2"),
        (["--nproc", "2", "--json", "/nowhere/at/all.json"], "there is no directory /nowhere/at"),
        (["--nproc", "2", "--json", "/"], "is a directory"),
        (["--nproc", "2", "--json", ""], "is a directory"),
        (["--nproc", "2", "--post", "ftp://host"], "must be http"),
    ],
)
def test_bad_input_is_told_before_any_process_is_started(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("os.fork")
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    try:
        status: object = main(arguments)
    except SystemExit as ended:  # argparse
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err


def test_a_system_that_has_no_process_left_is_told_and_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", refuse)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert main(["--nproc", "2"]) == 2
    assert "out of processes, sockets or files: Resource temporarily" in capsys.readouterr().err


def test_a_ctrl_c_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(linkcheck, "_run", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--nproc", "2"]) == 130
    assert capsys.readouterr().err == "rangewatch linkcheck: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_half_a_launcher_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert main([]) == 2 and "MASTER_ADDR is not set" in capsys.readouterr().err


def launched(forker: Forker, rank: int, world_size: int, port: int, *arguments: str) -> Begun:
    """A rank as torchrun's variables place it."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return forker.begin(*arguments, **place)


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_and_the_others_are_tested(forker: Forker) -> None:
    port = _free_port()
    begun = [launched(forker, rank, 3, port, "--json", "--join-timeout", "10") for rank in (0, 2)]
    first, other = [each.end() for each in begun]
    result = first.result()
    assert (first.status, other.status, result["bad_ranks"]) == (1, 0, [1])
    assert result["ranks"][1]["fault"] == "missing" and result["all_ranks"]["ranks"] == [0, 2]


@pytest.mark.slow
def test_a_post_that_fails_is_told_and_loses_nothing(forker: Forker) -> None:
    ran = forker.run("--nproc", "1", "--post", f"http://127.0.0.1:{_free_port()}", "--json")
    assert ran.status == 2 and ran.result()["ok"] and "did not take the result" in ran.err


@pytest.mark.slow
def test_what_listens_at_the_address_and_is_no_store_is_told(forker: Forker, ingest: IngestDouble) -> None:
    begun = [launched(forker, rank, 2, ingest.port, "--join-timeout", "1") for rank in (0, 1)]
    first, other = [each.end() for each in begun]
    assert (first.status, other.status) == (2, 2)
    assert f"cannot listen on port {ingest.port}" in first.err
    assert "rank 0 at 127.0.0.1" in other.err and "does not answer" in other.err


CLOSED = "os.close(0); os.close(1); os.close(2); sys.stdin = sys.stdout = sys.stderr = None"
GONE = "read, write = os.pipe(); os.dup2(write, 2); os.close(read); os.close(write)"
FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, {}))\n"


@pytest.mark.parametrize("prelude", [CLOSED, pytest.param(GONE, marks=pytest.mark.slow)], ids=["closed", "gone"])
def test_streams_that_are_closed_or_that_nobody_reads_end_no_check(
    forker: Forker, prelude: str, tmp_path: Path
) -> None:
    """Nothing may be opened in their place: the pipe to a child would get number 1, and its output with it."""
    found = tmp_path / "result.json"
    assert forker.run("--nproc", "1", "--json", str(found), prelude=prelude).status == 0
    assert json.loads(found.read_text())["ok"]


def test_a_result_that_cannot_be_written_is_told_and_is_no_finding(forker: Forker) -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    ran = forker.run("--nproc", "1", "--json", prelude=full)
    assert (ran.status, "Traceback" in ran.err) == (2, False)
    assert "the result cannot be written: No space left on device" in ran.err


@pytest.mark.slow
def test_descriptors_are_taken_as_many_as_there_are(forker: Forker) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ran = forker.run("--nproc", "4", "--rounds", "1", "--json", prelude=FEW.format(hard))
    assert (ran.status, ran.result()["ok"]) == (0, True), ran.err


def test_without_descriptors_it_says_so_and_claims_no_finding(forker: Forker) -> None:
    ran = forker.run("--nproc", "4", prelude=FEW.format(16))
    assert ran.status == 2 and "4 ranks need 32 open files, and the limit is 16" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["wrong", "slow", "hang", "die"])
@pytest.mark.parametrize("where", ["0", "5", "7", "0-1", "2-6"])
def test_eight_ranks_with_each_fault(forker: Forker, where: str, kind: str) -> None:
    ran = forker.run("--nproc", "8", "--inject", f"{where}:{kind}", "--json")
    result, ranks = ran.result(), [int(each) for each in where.split("-")]
    assert ran.status == 1 and not result["ok"]
    assert result["bad_ranks"] == (ranks if len(ranks) == 1 else [])
    pairs = [ranks] if len(ranks) == 2 else []
    assert result["bad_pairs"] == (pairs if kind != "slow" else [])
    assert result["slow_pairs"] == (pairs if kind == "slow" else [])


@pytest.mark.soak
@pytest.mark.parametrize("number", range(5))
def test_eight_healthy_ranks_are_never_accused(forker: Forker, number: int) -> None:
    ran = forker.run("--nproc", "8", "--json")
    assert (ran.status, ran.result()["ok"]) == (0, True), ran.err
