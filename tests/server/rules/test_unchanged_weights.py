"""Weights that get gradients and do not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rangewatch.wire import events
from rangewatch.wire.records import Event, TensorEntry
from rangewatch_server.rules.updates.unchanged_weights import RULE
from tests.faults.fault import Job
from tests.faults.models import CLASSES, FEATURES, cross_entropy, rows
from tests.server.process import Run
from tests.server.rules.conftest import Recording, tensor

LAYERS = [
    tensor("a.weight", "weight", 0, "float32"),
    tensor("b.weight", "weight", 1, "float32"),
    tensor("a.weight", "grad", 2, "float32"),
    tensor("b.weight", "grad", 3, "float32"),
]


def write(
    recording: Recording, squares: Any, steps: int = 350, every: int = 100, gradient: float = 1.0, **more: Any
) -> None:
    """The sum of squares of b is this at each reading; a's changes."""
    at = np.arange(steps)
    read = (at % every == 0).astype(float)
    calls = np.stack([read, read, np.ones(steps), np.full(steps, float(gradient > 0))])
    full = np.stack([read, read, 0 * read, 0 * read])
    sums = np.stack([1 + at * 1e-9, np.broadcast_to(squares, steps), 0 * at, 0 * at]) * full
    amax = np.stack([read, read, np.ones(steps), np.full(steps, gradient)])
    columns = {"call_count": calls, "numel": 32 * calls, "full_numel": 32 * full, "sum_sq": sums, "amax": amax}
    recording.write(LAYERS, steps, columns, **more)


@pytest.mark.parametrize("every", [100, 10])
def test_one_that_does_not_change_is_told(recording: Recording, every: int) -> None:
    write(recording, 0.3, every=every)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.facts["since_step"]) == ("b.weight", "weight", 0, 0)
    assert found.facts["tensors"] == 1


def test_the_learning_rate_is_told(recording: Recording) -> None:
    write(recording, 0.3, series={"lr": 0.0})
    (found,) = recording.diagnose(RULE).findings
    assert "The learning rate is 0." in found.evidence


def test_one_that_stops_changing(recording: Recording) -> None:
    at = np.arange(750)
    write(recording, np.minimum(0.3 + at * 1e-6, 0.3003), steps=750)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["since_step"] == 256  # the group of steps with the reading of step 300


def test_the_least_change_counts(recording: Recording) -> None:
    write(recording, 0.3 * (1 + 1e-13 * np.arange(350)))
    assert recording.diagnose(RULE).findings == ()


def test_a_frozen_one_has_no_gradient(recording: Recording) -> None:
    write(recording, 0.3, gradient=0.0)
    assert recording.diagnose(RULE).findings == ()


def test_two_readings_are_not_enough(recording: Recording) -> None:
    write(recording, 0.3, steps=190)
    assert recording.diagnose(RULE).findings == ()


def test_without_the_full_set_nothing_is_known(recording: Recording) -> None:
    recording.write(LAYERS, 350)
    assert recording.diagnose(RULE).findings == ()


def test_a_gradient_that_is_nothing_but_rounding_moves_nothing(recording: Recording) -> None:
    """An attention's key bias: 0 by its formula, some 1e-8 of the others' in float32."""
    write(recording, 0.3, gradient=1e-6)
    assert recording.diagnose(RULE).findings == ()


def test_a_small_gradient_is_one(recording: Recording) -> None:
    write(recording, 0.3, gradient=1e-4)
    assert len(recording.diagnose(RULE).findings) == 1


@pytest.mark.parametrize(
    ("last", "expected"), [(0.0, [(30, "zero_rate")]), (1e-3, [])], ids=["for good", "for a while"]
)
def test_learning_rates_of_zero(run: Run, last: float, expected: list[tuple[int, str]]) -> None:
    """No optimizer's step changes anything: the agent reads the rates themselves, logged or not."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD([{"params": each.parameters()} for each in model], 1e-2)

    def schedule(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.0 if step == 0 or 30 <= step < 110 else last if step >= 110 else 1e-2

    Job(run.server.url, run.name).train(model, rows(0), cross_entropy, 120, optimizer=optimizer, before=schedule)
    found = [each for each in run.get("/diagnosis")["findings"] if each["rule"] == RULE.name]
    assert [(each["step"], each["subject"]) for each in found] == expected
    assert all(each["facts"]["cause_class"] == "learning_rate" for each in found)
    assert all("It had been 0.01 right before" in each["evidence"][0] for each in found)


@pytest.mark.parametrize(
    ("every", "text"),
    [(1, "It had been 0.001 right before"), (100, "What it was before is not known.")],
)
def test_a_rate_of_zero_that_is_logged_seldom(recording: Recording, every: int, text: str) -> None:
    """Nothing is known of the steps right before: neither its value, nor that it was 0 since the first step."""
    at = np.arange(300)
    rates = np.where(at % every == 0, np.where(at < 180, 1e-3, 0.0), np.nan)
    known = events.Optimizers(("AdamW",), trainable_count=1, zero_rate_steps=64)
    grads = [tensor("a.weight", "grad", 0, "float32")]
    recording.write(grads, 300, series={"lr": rates}, events=[events.event(known, 1, 243)])
    (finding,) = recording.diagnose(RULE).findings
    assert (finding.step, finding.subject) == (180, "zero_rate")
    assert any(text in each for each in finding.evidence)
    assert not any("since the first step" in each for each in finding.evidence)


class Adapted(nn.Module):
    """A frozen layer with an adapter, whose output can be detached by mistake, a head, and perhaps a layer that nothing
    calls."""

    def __init__(self, *, is_detached: bool = False, is_frozen: bool = True, has_unused: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 16).requires_grad_(not is_frozen)
        self.lora_a, self.lora_b = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.lora_c = nn.Linear(16, 16, bias=False)
        self.head, self.is_detached = nn.Linear(16, CLASSES), is_detached
        if has_unused:
            self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        adapted = self.lora_c(self.lora_b(self.lora_a(x)))
        return self.head(self.base(x) + (adapted.detach() if self.is_detached else adapted))


class TwoHeads(nn.Module):
    """The first of which goes into no loss, as before the time when its part of the loss begins; or the trunk is cut
    off."""

    def __init__(self, *, is_cut: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 16), nn.Linear(16, 16))
        self.early = nn.Sequential(*([] if is_cut else [nn.Linear(16, 16), nn.Linear(16, 3)]))
        layers = [nn.Linear(16, 16) for _ in range(2 if is_cut else 1)]
        self.head = nn.Sequential(*layers, nn.Linear(16, CLASSES))
        self.is_cut = is_cut

    def forward(self, x: Tensor) -> Tensor:
        made = self.trunk(x)
        self.early(made)
        return self.head(made.detach() if self.is_cut else made)


def deep() -> nn.Module:
    """Three blocks behind a plain one."""
    blocks = (nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()) for _ in range(3))
    return nn.Sequential(nn.Identity(), *blocks, nn.Flatten())


@pytest.mark.parametrize(
    ("model", "held", "expected"),
    [
        (TwoHeads(), "", ("info", "no_gradient", "early.0.weight", 4, 12)),
        (TwoHeads(is_cut=True), "", ("warning", "no_gradient", "trunk.0.weight", 4, 10)),
        (Adapted(), "lora", ("warning", "no_optimizer", "head.weight", 2, 5)),
        (Adapted(is_detached=True), "", ("warning", "no_gradient", "lora_a.weight", 3, 5)),
        (Adapted(has_unused=True), "", ("info", "no_gradient", "unused.weight", 1, 6)),
        (Adapted(is_frozen=False), "head", ("info", "no_optimizer", "base.weight", 5, 7)),
        (Adapted(), "base", ("warning", "no_optimizer", "lora_a.weight", 5, 5)),
        (deep(), "1.", ("warning", "no_optimizer", "2.0.weight", 4, 6)),
        (deep(), "3.", ("info", "no_optimizer", "1.0.weight", 4, 6)),
        (Adapted(), "", None),
    ],
    ids=[
        "a head for nothing",
        "trunk",
        "head",
        "adapters",
        "unused",
        "not frozen",
        "only what is frozen",
        "later blocks",
        "the last block alone",
        "healthy",
    ],
)
def test_what_no_optimizer_has_and_no_backward_reaches(
    run: Run, model: nn.Module, held: str, expected: tuple[Any, ...] | None
) -> None:
    torch.manual_seed(0)
    held_or_all = [each for name, each in model.named_parameters() if held in name]
    parameters = [each for each in held_or_all if each.requires_grad] or held_or_all
    optimizer = torch.optim.SGD(parameters, 1e-2)
    Job(run.server.url, run.name).train(model, rows(0), cross_entropy, 90, optimizer=optimizer)
    found = [
        (each["severity"], each["subject"], each["tensor"], each["facts"]["parameters"], each["facts"]["of"])
        for each in run.get("/diagnosis")["findings"] if each["rule"] == RULE.name
    ]  # fmt: skip
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("reached", "unreached", "where"),
    [
        (("embed", "block.out", "head"), ("block.query", "block.value"), "block.value"),
        (("embed", "block.query", "head"), ("block.value",), "block.value"),
        (("embed", "block.value", "head"), ("block.query",), ""),  # it may be called for nothing
        (("embed", "block.query", "block.value"), ("block.out",), ""),  # a head that is called for nothing
        (("block.out", "head"), ("block.query",), ""),  # a part that is frozen by no_grad, and is the first
        (("embed", "head"), ("block.query", "block.value", "block.out"), ""),
    ],
)
def test_what_is_cut_off_in_the_middle_of_the_model(
    recording: Recording, reached: tuple[str, ...], unreached: tuple[str, ...], where: str
) -> None:
    """Few of all parameters, and all others are trained."""
    order = ("embed", "block.value", "block.query", "block.out", "block", "head")
    layers = [tensor(each, "output", at, "float32") for at, each in enumerate(order)]
    layers += [tensor(f"{each}.weight", "grad", at + 6, "float32") for at, each in enumerate(reached)]
    names = tuple(f"{each}.weight" for each in unreached)
    known = events.Optimizers(("AdamW",), unreached=names, unreached_count=len(names), trainable_count=40)
    recording.write(layers, 100, events=[events.event(known, 1, 1)])
    found = [each for each in recording.diagnose(RULE).findings if each.subject == "no_gradient"]
    assert [each.severity for each in found] == ["warning" if where else "info"]
    assert [each.tensor for each in found] == [f"{where}.weight" if where else names[0]]
    assert ("or cut off in there" in " ".join(found[0].evidence)) == bool(where)


@pytest.mark.parametrize(("name", "severity"), [("1", "info"), ("3", "warning")])
def test_a_target_in_the_middle_of_the_model_is_a_copy(recording: Recording, name: str, severity: str) -> None:
    """An average of what is trained, without gradients: it is only known by its like."""
    order = ("embed", "core.target.0", f"core.target.{name}", "core.online.0", "core.online.1", "head")
    layers = [tensor(each, "output", at, "float32") for at, each in enumerate(order)]
    reached = [each for each in order if "target" not in each]
    layers += [tensor(f"{each}.weight", "grad", at + 6, "float32") for at, each in enumerate(reached)]
    names = tuple(f"{each}.weight" for each in order if "target" in each)
    known = events.Optimizers(("Adam",), unreached=names, unreached_count=2, trainable_count=40)
    recording.write(layers, 100, events=[events.event(known, 1, 1)])
    found = [each for each in recording.diagnose(RULE).findings if each.subject == "no_gradient"]
    assert [each.severity for each in found] == [severity]


@pytest.mark.parametrize(("reached", "severity"), [("listener.net.0", "info"), ("listener.0", "warning")])
def test_a_module_that_cuts_the_graph(recording: Recording, reached: str, severity: str) -> None:
    """A copy of what is trained is cut off on purpose."""
    layers = [tensor(f"{reached}.{each}", "grad", at, "float32") for at, each in enumerate(("weight", "bias"))]
    known = events.Optimizers(
        ("Adam",), unreached=("song.net.0.weight", "song.net.0.bias"), unreached_count=2, trainable_count=40,
        cut_in=("song",),
    )  # fmt: skip
    recording.write(layers, 100, events=[events.event(known, 1, 1)])
    (found,) = [each for each in recording.diagnose(RULE).findings if each.subject == "no_gradient"]
    assert (found.severity, found.tensor) == (severity, "song.net.0.weight")
    assert ("cut in the forward of song" in " ".join(found.evidence)) == (severity == "warning")


def copied(until: int, steps: int = 200) -> np.ndarray:
    return np.where(np.arange(steps) < until, 1e-3, 0.0)


@pytest.mark.parametrize(("until", "since"), [(100, 99), (0, 0)])
def test_weights_that_nothing_copies_back_any_more(recording: Recording, until: int, since: int) -> None:
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=False), 1, 1)
    grads = [tensor("a.bias", "grad", 0, "bfloat16"), tensor("b.weight", "grad", 1, "bfloat16")]
    recording.write(grads, 200, series={"weights_written": copied(until)}, events=[sampled])
    (finding,) = recording.diagnose(RULE).findings
    assert (finding.subject, finding.step, finding.tensor) == ("copied", since, "a.bias")
    assert finding.facts["cause_class"] == "optimizer"
    is_foreign = not until  # no optimizer of the model's own parameters is known, and none ever changed them
    assert ("the model's own parameters" in finding.remedy[0].text) == is_foreign


@pytest.mark.parametrize("are_held", [True, False])
def test_weights_that_are_updated_or_get_no_gradient_are_quiet(recording: Recording, are_held: bool) -> None:
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=are_held), 1, 1)
    amax = np.ones((2, 200)) * (1.0 if are_held else 0.0)
    grads = [tensor("a.bias", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")]
    recording.write(grads, 200, {"amax": amax}, series={"weights_written": copied(0)}, events=[sampled])
    assert recording.diagnose(RULE).findings == ()


def test_weights_that_one_rank_updates_and_sends_to_the_others_are_quiet(recording: Recording) -> None:
    """As where gradients are reduced to it: the others' optimizers never step."""
    grads = [tensor("a.bias", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")]
    for rank in range(2):
        sampled = events.event(events.SampledWeights(("a.bias",), are_held=rank == 0), 1, 1)
        series = {"weights_written": copied(0)}
        recording.write(grads, 200, rank=rank, world_size=2, series=series, events=[sampled])
    assert recording.diagnose(RULE).findings == ()


def held_still(
    recording: Recording, since: int = 100, amax: Any = 1.0, dtype: str = "float32", other: Any = 1.0, **series: Any
) -> Any:
    """The updates of an attached optimizer leave a.bias as it is from `since` on."""
    sampled = events.event(events.SampledWeights(("a.bias", "z.bias"), are_held=True), 1, 1)
    grads = [tensor("a.bias", "grad", 0, dtype), tensor("b.weight", "grad", 1, dtype)]
    moved = {"sampled_update": copied(since), **series}
    recording.write(
        grads,
        200,
        {"amax": np.array([np.broadcast_to(each, 200) for each in (amax, other)])},
        series=moved,
        events=[sampled],
    )
    return recording.diagnose(RULE).findings


@pytest.mark.parametrize("since", [100, 0])
def test_updates_that_change_nothing_any_more(recording: Recording, since: int) -> None:
    """As where zero_grad() stands between the backward and the step."""
    (finding,) = held_still(recording, since)
    assert (finding.subject, finding.step, finding.tensor, finding.severity) == ("moved", since, "a.bias", "warning")
    assert finding.facts["cause_class"] == "optimizer" and "zero_grad()" in finding.remedy[0].text


def attached(*kinds: str, **options: Any) -> Event:
    return Event("attached", 1, 0, "", {"options": {"kinds": list(kinds), **options}})


@pytest.mark.parametrize(("fraction", "count"), [(np.nan, 1), (1e-3, 0)], ids=["none", "another parameter's"])
def test_updates_that_have_moved_nothing_so_far(recording: Recording, fraction: float, count: int) -> None:
    """No parameter has a gradient, as where the backward goes through a copy of the model."""
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=True), 1, 1)
    moved = {"sampled_update": 0.0, "update_fraction": fraction}
    recording.write([tensor("a", dtype="float32")], 200, series=moved, events=[sampled, attached("output", "grad")])
    findings = recording.diagnose(RULE).findings
    assert [each.facts["cause_class"] for each in findings] == ["no_gradient"] * count
    assert recording.diagnose(RULE, stop=40).findings == ()


@pytest.mark.parametrize(
    "how",
    [
        {"since": 160}, {"amax": 0.0}, {"dtype": "bfloat16"},
        {"update_fraction": np.where(np.arange(200) % 32 == 0, 1e-3, np.nan)},
        {"lr": np.where(np.arange(200) < 100, 0.1, 1e-9)},
        {"lr": 1e-3, "amax": 1e-5},
        {"amax": np.where(np.arange(200) < 100, 1.0, 1e-6), "other": np.where(np.arange(200) < 100, 1.0, 1e-4)},
    ],
    ids=["not for long", "no gradient", "rounded", "others are moved", "rate", "small update", "converged"],
)  # fmt: skip
def test_others_that_stay_for_a_reason_are_quiet(recording: Recording, how: Any) -> None:
    assert held_still(recording, **how) == ()


@pytest.mark.parametrize("steps", [700, 3_000, 9_000])
def test_the_step_of_updates_that_change_nothing_stays(recording: Recording, steps: int) -> None:
    """Also once all of the last steps are so."""
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=True), 1, 1)
    grads = [tensor("a.bias", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")]
    recording.write(grads, steps, series={"sampled_update": copied(300, steps)}, events=[sampled])
    (finding,) = recording.diagnose(RULE).findings
    assert (finding.subject, finding.step) == ("moved", 300) and "any more since" in finding.summary


@pytest.mark.parametrize(
    "known", [(), (attached("output"),), (attached("grad", include=["a"]),)], ids=["not known", "kinds", "include"]
)
def test_gradients_that_are_not_read_are_not_said_to_be_none(recording: Recording, known: tuple[Event, ...]) -> None:
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=True), 1, 1)
    series = {"sampled_update": 0.0, "update_fraction": np.nan}
    recording.write([tensor("a", dtype="float32")], 200, series=series, events=[sampled, *known])
    assert recording.diagnose(RULE).findings == ()


def test_an_lbfgs_that_finds_no_better_place_is_quiet(recording: Recording) -> None:
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=True), 1, 1)
    grads = [tensor("a.bias", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")]
    known = events.event(events.Optimizers(("LBFGS",)), 1, 1)
    recording.write(grads, 200, series={"sampled_update": copied(20)}, events=[sampled, known])
    assert recording.diagnose(RULE).findings == ()


def test_a_rate_that_was_zero_moves_nothing(recording: Recording) -> None:
    sampled = events.event(events.SampledWeights(("a.bias",), are_held=True), 1, 1)
    series = {"sampled_update": 0.0, "update_fraction": np.nan, "lr": 0.0}
    recording.write([tensor("a", dtype="float32")], 200, series=series, events=[sampled, attached("grad")])
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(("frozen", "severity"), [(6, "warning"), (1, "info"), (0, "info")])
def test_adapters_that_no_optimizer_has(recording: Recording, frozen: int, severity: str) -> None:
    """More than half of what could be trained is left out: meant, but where most is frozen, and not a table alone."""
    grads = [tensor(name, "grad", at, "float32") for at, name in enumerate(("q.lora_A", "q.lora_B", "head.weight"))]
    known = events.Optimizers(("AdamW",), ("q.lora_A", "q.lora_B"), 2, trainable_count=3, frozen_count=frozen)
    recording.write(grads, 130, events=[events.event(known, 1, 1)])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.severity, found.facts["cause_class"]) == ("q.lora_A", severity, "optimizer")


@pytest.mark.parametrize("value", [True, False])
def test_requires_grad_that_was_set_on_a_module(recording: Recording, value: bool) -> None:
    known = events.Optimizers(("AdamW",), trainable_count=2, switched=("body.0", "body.2"), switched_to=value)
    before = events.event(events.Optimizers(("AdamW",), trainable_count=2), 1, 2)
    recording.write([tensor("a.weight", "grad", 0)], 130, events=[before, events.event(known, 1, 64)])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.step, found.facts["cause_class"]) == ("body.0", 64, "no_gradient")
    assert f"requires_grad_({value})" in found.remedy[0].code
    assert "have requires_grad = " in found.summary


def test_a_parameter_that_took_the_place_of_another(recording: Recording) -> None:
    """That is no layer which is to be unfrozen later: it is said soon, and though more than half are so."""
    grads = [tensor("table.weight", "grad", 0, "float32"), tensor("head.weight", "grad", 1, "float32")]
    names = ("table.weight", "head.weight")
    known = events.Optimizers(("AdamW",), names, 2, trainable_count=3, replaced=names[:1])
    recording.write(grads, 130, events=[events.event(known, 1, 100)])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.step, found.severity) == ("table.weight", 100, "warning")
    assert any("took the place of table.weight" in each for each in found.evidence)
    assert recording.diagnose(RULE, stop=112).findings == ()


@pytest.mark.parametrize(
    ("steps", "from_step", "amax", "severity", "shape"),
    [(200, 1_000, 0.1, "warning", (4, 4)), (150, 1_000, 0.1, "info", (4, 4)), (100, 1_000, 0.1, "", (4, 4)),
     (300, 100, 0.1, "", (4, 4)), (200, 1_000, 0.0, "", (4, 4)), (200, 150, 0.1, "", (4, 4)),
     (200, 1_000, 0.1, "info", ()), (200, 1_000, 0.1, "info", (1,))],
    ids=["for good", "since the beginning", "not for long yet", "until then", "it gets no gradient", "unfrozen since",
         "a scale", "a scale of one element"],
)  # fmt: skip
def test_a_group_whose_rate_is_zero(
    recording: Recording, steps: int, from_step: int, amax: float, severity: str, shape: tuple[int, ...]
) -> None:
    at = np.arange(steps)
    is_read = np.isin(at + 1, 2 ** np.arange(12)) | (at == from_step) | (at == from_step - 1)
    rates = [np.where(at < from_step, 0.0, 1e-3), np.full(steps, 3e-3)]
    series = {f"lr_group_{place}": np.where(is_read, rate, np.nan) for place, rate in enumerate(rates)}
    known = [events.event(events.Optimizers(("AdamW",), groups=("body.weight", "head.weight")), 1, 1)]
    layers = [TensorEntry("body.weight", "grad", 0, "float32", shape, 0, ""), tensor("head.weight", "grad", 1)]
    columns = {"amax": np.stack([np.full(steps, amax), np.ones(steps)])}
    recording.write(layers, steps, columns, series=series, events=known)
    found = recording.diagnose(RULE).findings
    assert [(each.step, each.tensor, each.facts["cause_class"], each.severity) for each in found] == (
        [(0, "body.weight", "learning_rate", severity)] if severity else []
    )
