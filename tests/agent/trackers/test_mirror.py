"""Headline numbers in experiment trackers: what is written, and that no tracker can disturb the training."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rangewatch
from rangewatch import trackers
from rangewatch.core import limits
from rangewatch.core.options import Options
from rangewatch.recording.events import Drops
from rangewatch.trackers.base import AlertRow, Tracker
from rangewatch.trackers.headlines import ALL
from rangewatch.trackers.mirror import Mirror
from rangewatch.trackers.mirrors import chosen
from rangewatch.wire.records import RankInfo
from tests.agent.api.test_control import Loop
from tests.agent.api.test_on_alert import RAISED
from tests.agent.ingest_double import IngestDouble

ALERT = AlertRow(7, "warning", "headroom_trend", 0, "blocks.2", "Overflow in about 9 steps.")
HEALTH = {"open_alerts": 3, "critical_alerts": 1, "gpus_in_trouble": 2, "straggler_cost_s": 0.25}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIRROR_EVERY_S", 0.01)


class List:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.links: list[tuple[str, str]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.shown: list[AlertRow] = []
        self.is_closed = False
        self.threads: set[str] = set()

    def link(self, run: str, address: str) -> None:
        self.links.append((run, address))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.threads.add(threading.current_thread().name)
        self.rows.append((step, dict(values)))

    def alerts(self, rows: list[AlertRow]) -> None:
        self.shown = rows

    def close(self) -> None:
        self.is_closed = True

    def newest(self, name: str) -> float:
        return next(values[name] for _, values in reversed(self.rows) if name in values)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes a sink the open run of a tracker named `double`."""

    def plant(sink: Any) -> None:
        tracker = Tracker("double", "json", lambda where, info: sink)
        monkeypatch.setitem(trackers.BY_NAME, "double", tracker)

    return plant


def test_rows_are_those_that_the_server_gets(ingest: IngestDouble, plant: Callable[[Any], None]) -> None:
    sink = List()
    plant(sink)
    with Loop(ingest, mirror="double", full_every=1, run="a run/1") as loop:
        loop.steps(4)
    assert sink.links == [("a run/1", f"{ingest.url}/?q=a%20run%2F1")]
    assert sink.threads == {"rangewatch-mirror-double"} and sink.is_closed
    assert sorted(step for step, _ in sink.rows)[-1] == 3
    cells = [cell for steps in ingest.tensors().values() for cell in steps.values()]
    expected = min(math.log2(torch.finfo(torch.float32).max / cell["amax"]) for cell in cells if cell["amax"])
    assert min(values["least_headroom_bits"] for _, values in sink.rows) == pytest.approx(expected)
    grads = [steps[3]["sum_sq"] for (_, kind, _), steps in ingest.tensors().items() if kind == "grad"]
    assert sink.newest("gradient_norm") == pytest.approx(math.sqrt(sum(grads)))
    assert max(values["step_time_s"] for _, values in sink.rows if "step_time_s" in values) == max(
        ingest.series("step_time_s").values()
    )
    assert sum(values.get("nonfinite_values", 0) for _, values in sink.rows) == 0
    assert set().union(*(values for _, values in sink.rows)) <= {each.name for each in ALL}
    assert len(ALL) <= 20


def test_what_the_server_knows_comes_with_its_answers(ingest: IngestDouble, plant: Callable[[Any], None]) -> None:
    sink = List()
    plant(sink)
    ingest.health = HEALTH
    with Loop(ingest, mirror="double") as loop:
        assert ingest.openings == [] or ingest.openings[0].info.takes_alerts
        loop.obey(id=1, kind="alert", alert=RAISED)
        loop.steps(1)
    assert {name: sink.newest(name) for name in HEALTH} == HEALTH
    summary = "Overflow in about 9 steps."
    assert sink.shown == [AlertRow(1033, "warning", "headroom_trend", 5, "blocks.2", summary)]


@pytest.mark.parametrize("health", [3, {"open_alerts": -1}, {**HEALTH, "straggler_cost_s": 1e300}, [HEALTH]])
def test_a_health_that_cannot_be_is_ignored(ingest: IngestDouble, plant: Callable[[Any], None], health: Any) -> None:
    sink = List()
    plant(sink)
    ingest.health = health
    with Loop(ingest, mirror="double") as loop:
        loop.steps(2)
        assert loop.handle.stats()["faults"] == {}
    assert not any("open_alerts" in values for _, values in sink.rows)


def test_skips_and_a_scale_without_the_scale_in_the_norm(ingest: IngestDouble, plant: Callable[[Any], None]) -> None:
    sink = List()
    plant(sink)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, mirror="double", full_every=1):
        for factor in (1.0, math.inf, 1.0):
            scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert sink.newest("skipped_steps") == 1
    assert sink.newest("loss_scale") == 512.0
    assert sink.newest("gradient_norm") == pytest.approx(math.sqrt(3))  # of two weights and a bias, 1 each
    assert sum(values.get("nonfinite_values", 0) for _, values in sink.rows) > 0


def losses(url: str, **options: Any) -> tuple[list[torch.Tensor], dict[str, int]]:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    found = []
    with rangewatch.attach(model, optimizer, url=url, ship_interval_s=0, **options) as handle:
        for step in range(12):
            loss = model(torch.full((2, 4), step / 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach().clone())
            time.sleep(0.005)
        dropped = handle.stats()["dropped"]
    return found, dropped


class Refusing(List):
    """Raises, at every call."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("refused, as token=hf_abcdefghijklmnopqrstuvwx says")


class Stuck(List):
    """Takes the first row and never comes back, as a tracker whose process was killed."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        super().write(step, values)
        self.let_go.wait(60)


class Slow(List):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        time.sleep(0.03)
        super().write(step, values)


@pytest.mark.parametrize("kind", [Refusing, Stuck, Slow])
def test_no_tracker_changes_the_training(
    ingest: IngestDouble,
    plant: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
) -> None:
    monkeypatch.setattr(limits, "MIRROR_LAST_S", 0.05 if kind is Stuck else 5.0)
    plain, _ = losses(ingest.url)
    sink = kind()
    plant(sink)
    mirrored, dropped = losses(ingest.url, mirror="double")
    assert all(map(torch.equal, plain, mirrored))
    if kind is Refusing:
        assert dropped["mirror_failed"] > 0
        warned = [each.getMessage() for each in caplog.records if "double" in each.getMessage()]
        assert len(warned) == 1 and "hf_abc" not in warned[0]
    elif kind is Stuck:
        assert len(sink.rows) == 1
        sink.let_go.set()
    else:  # rows of steps that there was no time for are merged, none is lost
        assert len(sink.rows) < 12 and sink.rows[-1][0] == 11


def test_alerts_are_bounded(
    ingest: IngestDouble, plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIRROR_ALERTS", 2)
    sink = List()
    plant(sink)
    with Loop(ingest, mirror="double") as loop:
        for number in range(4):
            loop.obey(id=number, kind="alert", alert=RAISED | {"rank": number})
        assert loop.handle.stats()["dropped"] == {"mirror_alerts": 2}
    assert [each.rank for each in sink.shown] == [0, 1]


def test_a_run_that_is_opened_later_is_found(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[List] = []
    tracker = Tracker("double", "json", lambda where, info: next(iter(opened), None))
    monkeypatch.setitem(trackers.BY_NAME, "double", tracker)
    with Loop(ingest, mirror="double") as loop:
        loop.steps(2)
        opened.append(List())
        loop.steps(2)
        time.sleep(0.02)
        loop.steps(1)
    assert opened[0].rows and opened[0].newest("least_headroom_bits") > 0


def test_without_a_run_it_says_so(
    ingest: IngestDouble, plant: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    plant(None)
    with Loop(ingest, mirror="double") as loop:
        loop.steps(1)
    assert "no run of double was open while training went on" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing", "no tracker 'nothing'; there are wandb, mlflow, tensorboard, trackio"),
        ("wandb:x", "takes nothing after its name"),
        (["tensorboard", "tensorboard:x"], "twice"),
    ],
)
def test_what_it_cannot_be(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracker, "is_installed", lambda self: True)
    with pytest.raises(ValueError, match=said):
        rangewatch.attach(torch.nn.Linear(1, 1), mirror=given)


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracker, "is_installed", lambda self: False)
    with pytest.raises(ValueError, match="trackio is not installed: pip install trackio"):
        list(chosen(Options(mirror="trackio").mirror))


def test_tensorboard_reads_the_same_values(ingest: IngestDouble, tmp_path: Path, plant: Callable[[Any], None]) -> None:
    sink = List()
    plant(sink)
    ingest.health = HEALTH
    with Loop(ingest, mirror=[f"tensorboard:{tmp_path}", "double"], run="a `run`") as loop:
        loop.obey(id=1, kind="alert", alert=RAISED)
        loop.steps(5)
    read = EventAccumulator(str(tmp_path / "rangewatch"))
    read.Reload()
    least = [event.value for event in read.Scalars("rangewatch/least_headroom_bits")]
    direct = min(values["least_headroom_bits"] for _, values in sink.rows if "least_headroom_bits" in values)
    assert min(least) == pytest.approx(direct, rel=1e-6)  # TensorBoard holds float32
    assert read.Scalars("rangewatch/open_alerts")[-1].value == 3
    texts = {tag: read.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in read.Tags()["tensors"]}
    assert texts["rangewatch/alerts/text_summary"] == "`warning headroom_trend: Overflow in about 9 steps.`"
    assert texts["rangewatch/run/text_summary"].startswith("`a 'run'` at <http://127.0.0.1:")


class WandbRun:
    """W&B's `Run`, by the names and arguments of wandb 0.31: rows are what `commit` has joined."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[dict[str, Any]] = []
        self.open: dict[str, Any] = {}
        self.config: Any = SimpleNamespace(update=lambda given, allow_val_change: self.configured.update(given))
        self.configured: dict[str, Any] = {}

    @property
    def step(self) -> int:
        return len(self.rows)

    def define_metric(self, name: str, step_metric: str | None = None, hidden: bool | None = None) -> None:
        self.metrics.append((name, {"step_metric": step_metric, "hidden": hidden}))

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.open |= data
        if commit is None or commit:
            self.rows.append(self.open)
            self.open = {}


class Module(ModuleType):
    """Stands where a tracker's package does."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        self.__dict__.update(names)


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[ModuleType], None]]:
    monkeypatch.setattr(Tracker, "is_installed", lambda self: True)
    yield lambda module: monkeypatch.setitem(sys.modules, module.__name__, module)


def test_wandb_gets_no_row_but_the_users_own(
    ingest: IngestDouble, has: Callable[[ModuleType], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WandbRun()
    has(Module("wandb", run=run, Table=lambda columns, data: {"columns": columns, "data": data}))
    sink = List()
    double = Tracker("double", "json", lambda where, info: sink)
    monkeypatch.setitem(trackers.BY_NAME, "double", double)
    with Loop(ingest, mirror=["wandb", "double"], run="one") as loop:
        loop.obey(id=1, kind="alert", alert=RAISED)
        loop.steps(5)
    run.log({"loss": 1.0})
    (row,) = run.rows
    assert row["loss"] == 1.0 and row["rangewatch/step"] == sink.rows[-1][0]
    every = [values["step_time_s"] for _, values in sink.rows if "step_time_s" in values]
    assert row["rangewatch/step_time_s"] == max(every)  # of all that came since the user's last row
    assert row["rangewatch/alerts"]["data"][0][1:3] == ["warning", "headroom_trend"]
    assert run.configured == {"rangewatch": {"run": "one", "url": f"{ingest.url}/?q=one"}}
    assert ("rangewatch/*", {"step_metric": "rangewatch/step", "hidden": None}) in run.metrics


def test_mlflow_gets_metrics_of_the_run_of_the_training_thread(
    ingest: IngestDouble, has: Callable[[ModuleType], None]
) -> None:
    active = threading.local()
    active.run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    metrics: list[Any] = []
    other: dict[str, Any] = {}

    class Client:
        def __init__(self, tracking_uri: str | None = None) -> None:
            assert tracking_uri == "sqlite:///here"

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
            assert run_id == "r1"
            given.extend(metrics)
            other.update(tags)

        def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
            other[artifact_file] = text

    given = metrics
    entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: (key, value, step), RunTag=lambda key, value: (key, value)
    )  # fmt: skip
    has(Module("mlflow", active_run=lambda: getattr(active, "run", None), MlflowClient=Client, entities=entities,
               get_tracking_uri=lambda: "sqlite:///here"))  # fmt: skip
    with Loop(ingest, mirror="mlflow", run="one") as loop:
        loop.obey(id=1, kind="alert", alert=RAISED)
        loop.steps(1)
    assert other["rangewatch.url"] == f"{ingest.url}/?q=one"
    assert '"rule": "headroom_trend"' in other["rangewatch/alerts.jsonl"]
    assert any(key == "rangewatch/least_headroom_bits" and value > 0 for key, value, _ in metrics)


def test_trackio_counts_the_users_steps_alone(ingest: IngestDouble, has: Callable[[ModuleType], None]) -> None:
    class Run:
        _next_step = 0

        def __init__(self) -> None:
            self.logged: list[tuple[int, dict[str, Any]]] = []

        def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
            step = self._next_step if step is None else step
            self._next_step = max(self._next_step, step + 1)
            self.logged.append((step, metrics))

    run = Run()
    current = SimpleNamespace(get=lambda: run)
    has(Module("trackio", context_vars=SimpleNamespace(current_run=current)))
    with Loop(ingest, mirror="trackio") as loop:
        loop.obey(id=1, kind="alert", alert=RAISED)
        loop.steps(1)
    assert run._next_step == 0 and {step for step, _ in run.logged} == {-1}
    assert any(row.get("rangewatch/least_headroom_bits", 0) > 0 for _, row in run.logged)
    assert any(row.get("rangewatch/alert_rule") == "headroom_trend" for _, row in run.logged)


class Busy(List):
    """Takes 5 ms of processor time for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s: list[float] = []
        self.took_s: list[float] = []
        self.alert_calls = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        super().write(step, values)
        self.began_s.append(time.monotonic())
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.005:
            pass
        self.took_s.append(time.thread_time() - began_s)

    def alerts(self, rows: list[AlertRow]) -> None:
        self.shown = rows
        self.alert_calls += 1


@pytest.fixture
def running() -> Iterator[Callable[[List], Mirror]]:
    """Runs the mirror of a sink by itself."""
    started: list[Mirror] = []

    def start(sink: List) -> Mirror:
        tracker = Tracker("double", "json", lambda where, info: sink)
        started.append(Mirror(tracker, "", RankInfo("run", 0, 1, 0, "host", "a", 0), "http://here/", Drops()))
        started[-1].find()
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop(5.0)
        each.wait()


def feed(mirror: Mirror, is_done: Callable[[], bool]) -> None:
    until_s, step = time.monotonic() + 20, 0
    while not is_done() and time.monotonic() < until_s:
        mirror.add(step, {"loss_scale": float(step)})
        step += 1
        time.sleep(0.001)
    assert is_done()


def test_a_tracker_that_takes_processor_time_is_written_to_less_often(
    monkeypatch: pytest.MonkeyPatch, running: Callable[[List], Mirror]
) -> None:
    monkeypatch.setattr(limits, "MIRROR_SHARE", 0.1)
    sink = Busy()
    feed(running(sink), lambda: len(sink.began_s) > 5)
    rests = [later - sooner for sooner, later in pairwise(sink.began_s)]
    assert all(rest >= took / 0.1 for rest, took in zip(rests, sink.took_s, strict=False))
    assert [step for step, _ in sink.rows] == sorted({step for step, _ in sink.rows})


def test_a_row_is_never_older_than_a_minute_whatever_it_takes(
    monkeypatch: pytest.MonkeyPatch, running: Callable[[List], Mirror]
) -> None:
    monkeypatch.setattr(limits, "MIRROR_SHARE", 1e-6)
    monkeypatch.setattr(limits, "MIRROR_REST_S", 0.05)
    monkeypatch.setattr(limits, "MIRROR_FIRST_REST_S", 0.05)
    sink = Busy()
    mirror = running(sink)
    for rank in range(20):  # alerts cost as well, and do not put it off further
        mirror.alert(ALERT._replace(rank=rank))
    feed(mirror, lambda: len(sink.began_s) > 3)
    assert all(later - sooner >= 0.05 for sooner, later in pairwise(sink.began_s))


def test_alerts_do_not_wait_for_a_tracker_that_rests_and_come_together(
    monkeypatch: pytest.MonkeyPatch, running: Callable[[List], Mirror]
) -> None:
    monkeypatch.setattr(limits, "MIRROR_SHARE", 1e-6)  # the next row comes in a minute
    monkeypatch.setattr(limits, "MIRROR_FIRST_REST_S", 60.0)
    sink = Busy()
    mirror = running(sink)
    feed(mirror, lambda: bool(sink.rows))
    monkeypatch.setattr(limits, "MIRROR_EVERY_S", 0.5)
    for rank in range(20):
        mirror.alert(ALERT._replace(rank=rank))
        time.sleep(0.005)
    feed(mirror, lambda: len(sink.shown) == 20)
    assert [each.rank for each in sink.shown] == list(range(20))
    assert sink.alert_calls <= 3 and len(sink.rows) == 1
