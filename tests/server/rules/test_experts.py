"""A dead expert, an overloaded one and a collapse are named within 50 steps; uneven loads of healthy runs are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.statistics import experts
from rangewatch.wire.events import Optimizers, Router, Routers, event
from rangewatch.wire.records import Event
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules.experts import dead_expert, expert_collapse, overloaded_expert
from tests.server.rules.conftest import Recording, tensor

RULES = dead_expert.RULE, overloaded_expert.RULE, expert_collapse.RULE
STEPS, AT = 160, 100
ROUTERS = [tensor("layers.0.router"), tensor("layers.1.router", call_index=1), tensor("layers.1.out", call_index=2)]


def known(count: int = 8, top_k: int = 2, step: int = 0) -> Event:
    details = Routers(tuple(Router(each.fqn, count, top_k) for each in ROUTERS[:2]))
    return event(details, 1, step)


def even(count: int = 8, steps: int = STEPS, tokens: int = 512, top_k: int = 2) -> np.ndarray[Any, Any]:
    """(routers, experts, steps) of tokens that are spread as chance has it."""
    chance = np.random.default_rng(5)
    share = chance.dirichlet(np.full(count, 30.0), size=2)
    return np.stack([chance.multinomial(tokens * top_k, each, size=steps).T for each in share])


def columns(loads: np.ndarray[Any, Any], routed: float = 512.0) -> dict[str, Any]:
    """As `Recording.write` takes them: the third tensor is no router."""
    cells = {experts.ROUTED: np.array([[routed], [routed], [0.0]])}
    for expert in range(loads.shape[1]):
        cells[experts.column(expert)] = np.vstack([loads[:, expert], np.zeros((1, loads.shape[2]))])
    return cells


def write(recording: Recording, loads: np.ndarray[Any, Any], routed: float = 512.0, **more: Any) -> None:
    count = loads.shape[1]
    recording.write(ROUTERS, loads.shape[2], columns(loads, routed), events=[known(count)], **more)


def first_named(recording: Recording, rule: Any) -> tuple[int, Any]:
    """The step at whose end the rule first says something."""
    for stop in range(1, STEPS + 1):
        for found in recording.diagnose(rule, stop=stop).findings:
            return stop - 1, found
    raise AssertionError("it is never named")


class TestDead:
    def test_it_is_named_within_50_steps(self, recording: Recording) -> None:
        loads = even()
        loads[1, 5, AT:] = 0
        write(recording, loads)
        at, found = first_named(recording, dead_expert.RULE)
        assert AT < at < AT + 50
        assert (found.rule, found.severity, found.tensor, found.step) == (
            "dead_expert", "warning", "layers.1.router", AT
        )  # fmt: skip
        assert "expert 5 of layers.1.router gets no token" in found.summary

    def test_from_the_start_too(self, recording: Recording) -> None:
        loads = even()
        loads[0, 2] = 0
        write(recording, loads)
        at, found = first_named(recording, dead_expert.RULE)
        assert at < 50
        assert found.facts == {"experts": 1, "routers": 1, "first_expert": 2}

    def test_one_that_rarely_gets_some_is_not(self, recording: Recording) -> None:
        loads = even()
        loads[0, 2] = np.where(np.arange(STEPS) % 20 == 0, 64, 0)
        write(recording, loads)
        assert not recording.diagnose(*RULES).findings

    def test_with_few_tokens_chance_may_leave_one_without(self, recording: Recording) -> None:
        loads = np.zeros((2, 64, STEPS))
        loads[:, :2] = 16  # of 64 experts the mean gets half a token a step
        write(recording, loads, routed=16)
        assert not recording.diagnose(dead_expert.RULE).findings

    def test_a_tensor_of_ranks_is_dead_where_it_is_on_all(self, recording: Recording) -> None:
        for rank in range(2):
            loads = even()
            loads[0, 3] = 0 if rank else loads[0, 3]
            write(recording, loads, rank=rank, world_size=2)
        assert not recording.diagnose(*RULES).findings


class TestOverloaded:
    def test_it_is_named_with_its_load(self, recording: Recording) -> None:
        loads = even(count=16)
        loads[0, :, AT:] = loads[0, :, AT:] // 4
        loads[0, 7, AT:] = 480
        write(recording, loads)
        at, found = first_named(recording, overloaded_expert.RULE)
        assert AT < at < AT + 50
        assert (found.tensor, found.facts["expert"], found.step) == ("layers.0.router", 7, AT)
        assert "94% of all tokens" in found.summary

    def test_with_few_experts_no_load_is_many_times_the_mean(self, recording: Recording) -> None:
        loads = even()
        loads[0, :, AT:] = loads[0, :, AT:] // 3
        loads[0, 7, AT:] = 490  # of 512: 3.8 times the mean, of 4 that there could be
        write(recording, loads)
        assert [each.rule for each in recording.diagnose(*RULES).findings] == ["overloaded_expert"]

    def test_an_uneven_load_is_not(self, recording: Recording) -> None:
        loads = even(count=16)
        loads[0, 7] = 240
        write(recording, loads)
        assert not recording.diagnose(*RULES).findings


class TestCollapse:
    def test_it_is_named_within_50_steps_and_explains_the_rest(self, recording: Recording) -> None:
        loads = even()
        loads[:, :, AT:] = 0
        loads[0, [1, 6], AT:] = 512
        loads[1, [0, 3], AT:] = 512
        write(recording, loads)
        at, found = first_named(recording, expert_collapse.RULE)
        assert AT < at < AT + 50
        assert (found.severity, found.tensor, found.step) == ("critical", "layers.0.router", AT)
        assert "the same 2 experts take 100%" in found.summary
        (only,) = recording.diagnose(*RULES).findings
        assert only.rule == "expert_collapse" and len(only.consequences) == 2

    @pytest.mark.parametrize("steps", [20, 47])
    def test_the_first_steps_of_a_run_are_not_judged(self, steps: int, recording: Recording) -> None:
        loads = np.zeros((2, 8, steps), np.int64)
        loads[:, :2] = 512
        write(recording, loads)
        assert not recording.diagnose(*RULES).findings


def test_even_loads_are_silent(recording: Recording) -> None:
    write(recording, even())
    assert not recording.diagnose(*RULES).findings


def test_a_run_without_routers_is_not_asked(recording: Recording) -> None:
    recording.write(ROUTERS, STEPS)
    assert not recording.diagnose(*RULES).findings


BY_HAND = [
    tensor("moe.router.weight", "grad", 0, "float32"),
    *(tensor(f"moe.experts.{at}.0.weight", "grad", 1 + at, "float32") for at in range(4)),
]


class TestWithoutCounts:
    def write(self, recording: Recording, amax: Any, model: Any = BY_HAND, **more: Any) -> Any:
        recording.write(model, STEPS, {"amax": amax, "call_count": np.asarray(amax) > 0}, **more)
        return recording.diagnose(dead_expert.RULE).findings

    def test_experts_without_a_gradient(self, recording: Recording) -> None:
        amax = np.ones((5, STEPS))
        amax[2, 40:], amax[4, 70:] = 0, 0
        (found,) = self.write(recording, amax)
        assert (found.facts["where"], found.step) == ("moe.experts", 40)
        assert "such as moe.experts.1.0.weight" in found.evidence[0]
        assert "2 experts (1, 3) of the 4 of moe.experts" in found.summary
        assert found.facts["cause_class"] == "dead_units"
        (before,) = recording.diagnose(dead_expert.RULE, stop=110).findings
        assert (before.tensor, before.step) == (found.tensor, found.step)  # one more has none by now
        assert recording.diagnose(dead_expert.RULE, stop=103).findings == ()

    @pytest.mark.parametrize(
        ("numel", "given", "is_inside"),
        [
            (np.arange(STEPS) % 7 + 32.0, None, True), (0.0, None, False), (32.0, None, None), (32.0, 1.0, True),
            (32.0, 0.0, False),
        ],
        ids=["rows", "no row", "a buffer", "a buffer with rows", "a buffer of zeros"],
    )  # fmt: skip
    def test_an_expert_that_gives_zeros(
        self, recording: Recording, numel: Any, given: float | None, is_inside: bool | None
    ) -> None:
        """A loop over all experts calls those that get no row, too."""
        model = [*BY_HAND, *(tensor(f"moe.experts.{at}", "output", 5 + at) for at in range(4))]
        model += [tensor("moe.experts.2", "input", 9)] * (given is not None)
        amax, elements = np.ones((len(model), STEPS)), np.full((len(model), STEPS), 32.0)
        amax[3, 40:], amax[7, 40:] = 0, 0
        elements[7, 40:] = np.broadcast_to(numel, STEPS)[40:]
        if given is not None:
            amax[9, 40:] = given
        recording.write(model, STEPS, {"amax": amax, "call_count": 1.0, "numel": elements})
        (found,) = recording.diagnose(dead_expert.RULE).findings
        assert (found.step, found.facts["where"], found.facts["cause_class"]) == (40, "moe.experts.2", "dead_units")
        advice = " ".join(each.text for each in found.remedy)
        expected = is_inside is not False, is_inside is not True
        assert ("initialise them anew" in advice, "balance" in advice) == expected

    def test_however_many_are_idle_a_few_reads_say_since_when(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 58 layers of 256 experts a read for each was thousands, at each evaluation."""
        layers, experts = 6, 8
        model = [
            tensor(f"layers.{layer}.experts.{at}.weight", "grad", layer * experts + at)
            for layer in range(layers) for at in range(experts)
        ]  # fmt: skip
        amax = np.ones((len(model), STEPS))
        amax[::2, 40:] = 0
        recording.write(model, STEPS, {"amax": amax, "call_count": amax > 0})
        reads: list[int] = []
        own = RunReader.slice
        monkeypatch.setattr(RunReader, "slice", lambda *given, **more: reads.append(1) or own(*given, **more))
        (found,) = recording.diagnose(dead_expert.RULE).findings
        assert (found.step, found.facts["experts"]) == (40, layers * experts // 2)
        assert 0 < len(reads) < layers

    def test_one_that_no_backward_has_reached(self, recording: Recording) -> None:
        known = event(Optimizers(("Adam",), unreached=("moe.experts.4.0.weight",), unreached_count=1), 1, 2)
        (found,) = self.write(recording, np.ones((5, STEPS)), events=[known])
        assert found.step == 0 and "such as moe.experts.4.0.weight" in found.evidence[0]

    def test_a_list_beside_a_router(self, recording: Recording) -> None:
        model = [tensor("ff.gate.weight", "grad", 0), *(tensor(f"ff.parts.{at}.weight", "grad", 1) for at in range(4))]
        amax = np.ones((5, STEPS))
        amax[1, 20:] = 0
        (found,) = self.write(recording, amax, model)
        assert found.facts["where"] == "ff.parts.0"

    @pytest.mark.parametrize("fqn", ["layers", "heads", "blocks.0.experts_of_old.branches"])
    def test_other_lists_are_not_judged(self, recording: Recording, fqn: str) -> None:
        model = [BY_HAND[0], *(tensor(f"{fqn}.{at}.weight", "grad", 1) for at in range(4))]
        amax = np.ones((5, STEPS))
        amax[1, 20:] = 0
        assert self.write(recording, amax, model) == ()

    def test_experts_that_are_chosen_seldom(self, recording: Recording) -> None:
        at = np.arange(STEPS)
        amax = np.stack([at >= 0, *((at + 5 * each) % 20 == 0 for each in range(4))]).astype(float)
        amax[1, 20:] = 0
        assert self.write(recording, amax) == ()
