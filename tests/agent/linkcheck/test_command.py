"""`rangewatch linkcheck` on real gloo ranks with planted faults; all of them on 8 ranks with RANGEWATCH_SOAK=1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rangewatch.linkcheck.command import main
from tests.agent.ingest_double import IngestDouble
from tests.agent.linkcheck.run_command import CODE, LAUNCHERS, finish, processes_of, run, start

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))


def test_healthy_ranks_pass_and_every_pair_is_measured() -> None:
    ran = run("--nproc", "3", "--json")
    result = ran.result()
    assert (ran.status, result["ok"], result["bad_ranks"], result["bad_pairs"]) == (0, True, [], [])
    assert result["slow_pairs"] == [] and result["nccl_error"] == ""
    assert (result["world_size"], result["backend"]) == (3, "gloo")
    assert [(pair["a"], pair["b"]) for pair in result["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(pair["ok"] and pair["latency_s"] > 0 and pair["busbw_bytes_per_s"] > 0 for pair in result["pairs"])
    assert "all 3 ranks and all links tested are fine" in ran.err


def test_the_text_has_one_ok_line_a_rank_and_both_matrices() -> None:
    ran = run("--nproc", "2")
    ok = [line for line in ran.out.splitlines() if "OK  rank" in line]
    assert len(ok) == 2 and "rank 1 of 2: cpu, gloo" in ok[1]
    assert "busbw of pairs in GB/s (all_reduce of 4 MiB)" in ran.out and "latency of pairs in us" in ran.out
    assert "pairs, round 1 of 1: 1 ok" in ran.err


@pytest.mark.parametrize("kind", ["wrong", "hang", *(["slow"] if SOAK else [])])
def test_a_bad_rank_is_named(kind: str) -> None:
    ran = run("--nproc", "4", "--timeout", "2", "--inject", f"2:{kind}", "--json")
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


def test_a_rank_that_crashes_with_every_other_takes_nobody_down() -> None:
    """The case of ranks 0-6 that work together, and 7 that works alone only."""
    ran = run("--nproc", "8", "--inject", "7:die", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"]) == (1, [7], [])
    assert "died by SIGSEGV" in result["ranks"][7]["error"] and "before_first_collective" in result["ranks"][7]["log"]
    assert "ranks 0-6 work together" in ran.err and "alone: 8 ok" in ran.err


def test_a_bad_link_is_told_from_a_bad_rank() -> None:
    ran = run("--nproc", "4", "--inject", "1-3:die", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"]) == (1, [], [[1, 3]])
    assert [(pair["a"], pair["b"]) for pair in result["pairs"] if not pair["ok"]] == [(1, 3)]


@pytest.mark.skipif(not SOAK, reason="many subsets; RANGEWATCH_SOAK=1 runs it")
def test_a_group_that_only_fails_together_is_narrowed_down() -> None:
    ran = run("--nproc", "5", "--inject", "0-2-3:die", "--json")
    result = ran.result()
    assert (ran.status, result["bad_ranks"], result["bad_pairs"], result["bad_groups"]) == (1, [], [], [[0, 2, 3]])


def test_nccl_that_is_not_there_falls_back_to_gloo_and_says_so() -> None:
    ran = run("--nproc", "2", "--backend", "nccl", "--json")
    result = ran.result()
    assert (ran.status, result["backend"], result["bad_ranks"]) == (1, "gloo", [])
    assert "NCCL" in result["nccl_error"] and "going on with gloo" in ran.err
    assert result["pairs"][0]["ok"]


def test_a_rank_that_never_comes_is_named_and_the_others_are_tested(free_port: int) -> None:
    launched = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    ranks = [start("--json", "--join-timeout", "10", RANK=str(rank), **launched) for rank in (0, 2)]
    first, other = (finish(each) for each in ranks)
    result = first.result()
    assert (first.status, other.status, result["bad_ranks"]) == (1, 0, [1])
    assert result["ranks"][1]["fault"] == "missing" and result["all_ranks"]["ranks"] == [0, 2]


def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    script, found = tmp_path / "check.py", tmp_path / "result.json"
    script.write_text(CODE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    ran = subprocess.run([*launch, "--json", str(found)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert '"world_size": 2' in found.read_text()
    assert "rank 1 of 2: cpu, gloo" in ran.stdout


def test_ranks_find_one_another_by_slurms_variables() -> None:
    # A job's number makes the port: two runs of this test beside each other must not meet.
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
    ranks = [start("--json", SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **slurm) for rank in range(2)]
    first, other = (finish(each) for each in ranks)
    assert (first.status, other.status) == (0, 0), first.err
    assert first.result()["world_size"] == 2


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_supervisor_that_is_killed_is_missing_and_named() -> None:
    process = start("--nproc", "4", "--inject", "0-1:slow", "--timeout", "3", "--json")
    assert process.stderr is not None
    while "backend" not in process.stderr.readline():
        pass
    children = sorted(pid for pid in processes_of(process.pid) if pid in direct_children(process.pid))
    os.kill(children[-1], signal.SIGKILL)  # forked in order: the store, then ranks 0 to 3
    ran = finish(process)
    assert (ran.status, ran.result()["bad_ranks"]) == (1, [3])
    assert ran.result()["ranks"][3]["fault"] == "missing"


def direct_children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_the_result_is_posted_as_an_event(ingest: IngestDouble) -> None:
    ran = run("--nproc", "2", "--post", ingest.url, "--run", "links of Tuesday", "--json")
    assert ran.status == 0, ran.err
    (event,) = ingest.events("linkcheck")
    assert event.data["pairs"][0]["busbw_bytes_per_s"] == ran.result()["pairs"][0]["busbw_bytes_per_s"]
    assert event.message == "all 2 ranks and all links tested are fine"
    assert ingest.openings[0].info.run == "links of Tuesday"


def test_a_post_that_fails_is_told_and_loses_nothing(free_port: int) -> None:
    ran = run("--nproc", "1", "--post", f"http://127.0.0.1:{free_port}", "--json")
    assert ran.status == 2 and ran.result()["ok"] and "did not take the result" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nproc", "0"], "not a whole number from 1"),
        (["--nproc", "two"], "not a whole number from 1"),
        (["--timeout", "nan"], "not a number from 1"),
        (["--nproc", "2", "--inject", "1:explode"], "not RANK:KIND"),
        (["--nproc", "2", "--inject", "2:die"], "there is no rank 2 among 2"),
        (["--nproc", "2", "--json", "/nowhere/at/all.json"], "there is no directory /nowhere/at"),
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
        status = main(arguments)
    except SystemExit as ended:  # argparse
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err


def test_half_a_launcher_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert main([]) == 2 and "MASTER_ADDR is not set" in capsys.readouterr().err


def test_what_listens_at_the_address_and_is_no_store_is_told(ingest: IngestDouble) -> None:
    there = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ingest.port)}
    ranks = [start("--join-timeout", "1", RANK=str(rank), **there) for rank in range(2)]
    first, other = (finish(each) for each in ranks)
    assert (first.status, other.status) == (2, 2)
    assert f"cannot listen on port {ingest.port}" in first.err
    assert "rank 0 at 127.0.0.1" in other.err and "does not answer" in other.err


@pytest.mark.skipif(not SOAK, reason="five minutes; RANGEWATCH_SOAK=1 runs it")
@pytest.mark.parametrize("kind", ["wrong", "slow", "hang", "die"])
@pytest.mark.parametrize("where", ["0", "5", "7", "0-1", "2-6"])
def test_eight_ranks_with_each_fault(where: str, kind: str) -> None:
    ran = run("--nproc", "8", "--inject", f"{where}:{kind}", "--json")
    result, ranks = ran.result(), [int(each) for each in where.split("-")]
    assert ran.status == 1 and not result["ok"]
    assert result["bad_ranks"] == (ranks if len(ranks) == 1 else [])
    pairs = [ranks] if len(ranks) == 2 else []
    assert result["bad_pairs"] == (pairs if kind != "slow" else [])
    assert result["slow_pairs"] == (pairs if kind == "slow" else [])


@pytest.mark.skipif(not SOAK, reason="a minute; RANGEWATCH_SOAK=1 runs it")
@pytest.mark.parametrize("number", range(5))
def test_eight_healthy_ranks_are_never_accused(number: int) -> None:
    ran = run("--nproc", "8", "--json")
    assert (ran.status, ran.result()["ok"]) == (0, True), ran.err
