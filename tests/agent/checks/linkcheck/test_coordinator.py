"""The plan of a check on made-up GPUs: backends, odd devices, fall back; and waiting for silent supervisors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rangewatch.checks.linkcheck import coordinator, output
from rangewatch.checks.linkcheck.coordinator import Plan
from rangewatch.checks.linkcheck.findings import Findings
from rangewatch.checks.linkcheck.group_result import GroupResult
from rangewatch.checks.linkcheck.tasks import GLOO, NCCL, Device, Member, Outcome, Task

Fails = Callable[[tuple[int, ...], str], bool]
NO_GPU = Device("cpu", why="torch sees no CUDA device")


def gpu(number: int) -> Device:
    return Device(f"cuda:{number} NVIDIA H100", f"GPU-{number}", NCCL)


class MadeUpRunner:
    """Every group goes well, but those that `fails` says."""

    def __init__(self, devices: Mapping[int, Device], fails: Fails) -> None:
        self._devices, self._fails = devices, fails

    def test(self, groups: Sequence[tuple[int, ...]], backend: str, large_bytes: int) -> list[GroupResult]:
        return [GroupResult({rank: self._outcome(rank, group, backend) for rank in group}) for group in groups]

    def _outcome(self, rank: int, group: tuple[int, ...], backend: str) -> Outcome:
        device = self._devices[rank]
        if self._fails(group, backend or device.backend):
            return Outcome(rank, "error", "all_reduce", "DistBackendError: unhandled system error", device=device)
        if len(group) == 1:
            return Outcome(rank, "ok", "end", device=device)
        return Outcome(rank, "ok", "end", device=device, latency_s=1e-5, large_s=1e-3)


def checked(
    devices: Sequence[Device], fails: Fails = lambda group, backend: False, backend: str = ""
) -> dict[str, Any]:
    plan = Plan(len(devices), backend, 15.0, 60.0, 0, 0, 3.0)
    found = Findings(plan.world_size, plan.timeout_s)
    found.members = {rank: Member(rank, rank, "node1", 1) for rank in range(plan.world_size)}
    runner: Any = MadeUpRunner(dict(enumerate(devices)), fails)
    coordinator._Check(runner, plan, found, lambda line: None).run()
    return found.result()


def test_ranks_with_a_gpu_each_are_checked_by_nccl() -> None:
    result = checked([gpu(0), gpu(1), gpu(2)])
    assert (result["ok"], result["backend"], result["message_bytes"]) == (True, NCCL, 64 << 20)


@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_without_the_gpu_that_others_have_is_bad_and_no_reason_to_check_gloo(odd: int) -> None:
    """A GPU that fell off the bus takes the driver of its host along, and torch then sees none: that must not be ok."""
    result = checked([NO_GPU if rank == odd else gpu(rank) for rank in range(4)])
    assert (result["ok"], result["backend"], result["bad_ranks"]) == (False, NCCL, [odd])
    assert result["ranks"][odd]["error"] == "torch sees no CUDA device, unlike other ranks"
    assert len(result["pairs"]) == 3 and all(pair["ok"] for pair in result["pairs"])


def test_gloo_that_was_asked_for_takes_ranks_with_and_without_gpus() -> None:
    result = checked([gpu(0), NO_GPU, gpu(2)], backend=GLOO)
    assert (result["ok"], result["backend"], result["backend_reason"]) == (True, GLOO, "")


def test_ranks_that_share_a_gpu_are_checked_by_gloo_and_the_last_line_says_so() -> None:
    result = checked([gpu(0), gpu(1), gpu(0)])
    assert (result["ok"], result["backend"]) == (True, GLOO)
    (line,) = output.verdict(result)
    assert line.endswith("fine, by gloo and not NCCL: ranks 0 and 2 have the same GPU, which NCCL refuses")
    assert "NCCL" not in next(output.verdict(checked([NO_GPU, NO_GPU])))


def test_a_gpu_that_fails_alone_is_bad_and_the_others_go_on() -> None:
    result = checked([gpu(rank) for rank in range(4)], lambda group, backend: group == (2,))
    assert (result["bad_ranks"], result["backend"], result["nccl_error"]) == ([2], NCCL, "")
    assert all(pair["ok"] for pair in result["pairs"])


@pytest.mark.parametrize("least", [1, 2])
def test_nccl_that_works_nowhere_is_a_finding_and_gloo_tells_of_the_hosts(least: int) -> None:
    result = checked([gpu(rank) for rank in range(3)], lambda group, backend: backend == NCCL and len(group) >= least)
    assert (result["ok"], result["backend"], result["bad_ranks"], result["bad_pairs"]) == (False, GLOO, [], [])
    assert "unhandled system error" in result["nccl_error"] and all(pair["ok"] for pair in result["pairs"])


def test_one_bad_nvlink_is_a_bad_pair_and_the_rest_is_measured() -> None:
    result = checked([gpu(rank) for rank in range(4)], lambda group, backend: {1, 3} <= set(group))
    assert (result["bad_ranks"], result["bad_pairs"], result["backend"]) == ([], [[1, 3]], NCCL)


def test_all_together_that_passes_again_is_told_once() -> None:
    fails = iter([True] * 3)
    result = checked([gpu(rank) for rank in range(3)], lambda group, backend: len(group) == 3 and next(fails, False))
    lines = list(output.verdict(result))
    assert result["is_passing_again"] and not result["ok"]
    assert len([line for line in lines if "all ranks together" in line]) == 1


def test_a_group_that_only_fails_together_is_narrowed_down() -> None:
    result = checked([gpu(rank) for rank in range(5)], lambda group, backend: {0, 2, 3} <= set(group))
    assert (result["ok"], result["bad_ranks"], result["bad_pairs"]) == (False, [], [])
    assert result["bad_groups"] == [[0, 2, 3]] and len(result["subsets"]) > 1
    assert any("0, 2 and 3" in line or "0, 2-3" in line for line in output.verdict(result))


def test_a_rank_that_fails_with_every_other_is_left_out_and_the_rest_is_tested_together() -> None:
    result = checked([gpu(rank) for rank in range(4)], lambda group, backend: len(group) > 1 and 2 in group)
    assert (result["bad_ranks"], result["bad_pairs"], result["bad_groups"]) == ([2], [], [])
    assert result["subsets"][-1]["ranks"] == [0, 1, 3] and result["subsets"][-1]["ok"]


class Silence:
    """A store of which rank 0 answers at its fifth sign of life, and rank 1 never gives one."""

    def __init__(self) -> None:
        self.given = 0

    def beat(self) -> None: ...

    def stop(self, number: int, group: int) -> None: ...

    def signs(self, rank: int) -> int:
        self.given += rank == 0
        return self.given if rank == 0 else 0

    def outcome_count(self, number: int) -> int:
        return int(self.given > 5)

    def outcome(self, number: int, rank: int) -> Outcome | None:
        return Outcome(0, "ok", "end") if rank == 0 and self.given > 5 else None


def test_a_silent_supervisor_is_given_up_long_before_the_timeout_and_one_with_signs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "LISTEN_S", 0.05)
    monkeypatch.setattr(coordinator, "SILENT_S", 0.15)
    store: Any = Silence()
    task = Task(0, ((0,), (1,)), timeout_s=3600.0)
    alive, silent = coordinator._Gathering(store, task, {}).until_done()
    assert (alive.outcomes[0].state, silent.outcomes[1].state) == ("ok", "missing")
