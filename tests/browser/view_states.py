"""Views drawn by chance, each as a path with its query; and what a page shows, so that two tabs can be compared."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Page

from rangewatch_server.figures.heatmaps import heatmap
from tests.browser.hand_made import STEPS, TENSORS, Runs

KINDS = ("output", "grad_output", "grad")
# Of each page its tables and some of their columns, as addresses call them. None is the usual order of its table.
ORDERS = {
    "/layers": {"comparison-table": ("layer.up", "difference.down", "here.up", "there.down", "where.up")},
    "/collectives": {
        "collectives-table": ("op.up", "count.down", "time-p50.up", "no-such-column.up"),
        "ranks-table": ("rank.up", "came-last.down", "costs-others-a-step.up"),
    },
    "/loss-scale": {"overflow-table": ("tensor.up", "was-first.down", "overflowed.up", "last-time.up")},
    "/gpu": {"gpu-events-table": ("step.up", "kind.down", "when.up")},
    "/agent": {"agent-dropped": ("times.up", "reason.down"), "agent-faults": ("place.down",), "no-table": ("a.up",)},
    "/environment": {"link-problems": ("who.down", "where.up")},
}  # fmt: skip
STATISTICS = tuple(
    name for name in heatmap.STATISTICS if name != heatmap.HEADROOM.name
)  # what the pages offer besides headroom

# What a reader sees and could compare: words, what controls hold, the numbers of every figure, the pixels of canvases.
# Left out is what goes on with the clock: how long ago a run was seen, and notes of how long a rank has been silent.
SHOWN = r"""() => {
  const main = document.querySelector("main");
  const plain = (value) => {
    if (value === undefined || value === null) return null;
    if (ArrayBuffer.isView(value)) return Array.from(value, (each) => (Number.isFinite(each) ? each : null));
    if (Array.isArray(value)) return value.map(plain);
    if (typeof value === "number") return Number.isFinite(value) ? value : null;
    return value;
  };
  const heat = (z) => plain(Array.from(z?._inputArray ?? z ?? [], plain));
  const cells = ({ rows, columns, x0, dx, z, states, low, high }) =>
    [rows.length, columns, x0, dx, plain(z), plain(states), low, high];
  const figure = (plot) => [
    plot.dataset.testid, plain(plot._fullLayout?.xaxis?.range),
    (plot.data ?? []).map(({ type, x, y, z, x0, dx }) => [type, plain(x), plain(y), heat(z), x0 ?? null, dx ?? null]),
    plot.cells ? cells(plot.cells) : null,
  ];
  const held = (field) => (field.type === "checkbox" ? field.checked : field.value);
  const control = (field) => [field.getAttribute("aria-label"), held(field)];
  const ticking = ".run-header .run-details, .notes, [data-testid=hang-note]";
  const words = [...main.querySelectorAll("h1, h2, p, li, th, td, dt, dd, label, button, output, summary, .badge")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest(ticking))
    .map((node) => node.innerText.replace(/\d+(\.\d+)? (s|min|h|d)( ago)?\b/g, "a while"));
  return {
    address: location.pathname + location.search,
    title: document.title,
    words,
    pressed: [...main.querySelectorAll("[aria-pressed], [aria-sort], [aria-selected]")]
      .filter((node) => node.checkVisibility()).map((node) => node.outerHTML),
    controls: [...main.querySelectorAll("input, select, textarea")].map(control),
    figures: [...main.querySelectorAll(".plot")].filter((plot) => plot.checkVisibility()).map(figure),
    canvases: [...main.querySelectorAll("canvas")]
      .filter((canvas) => canvas.checkVisibility({ visibilityProperty: true })).map((canvas) => canvas.toDataURL()),
    strip: main.querySelector(".step-brush")?.getAttribute("aria-valuetext") ?? null,
    current: document.querySelector("#nav [aria-current]")?.dataset.page ?? null,
  };
}"""


def picture(page: Page) -> dict[str, Any]:
    """Once two looks, a moment apart, are the same: a figure may be drawn again with more columns."""
    before: dict[str, Any] = {}
    for _ in range(40):
        found: dict[str, Any] = page.evaluate(SHOWN)
        if found == before:
            return found
        before = found
        page.wait_for_timeout(300)
    raise AssertionError(f"{page.url} does not come to rest")


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Where two pictures differ, shortened."""
    return {
        name: _first_difference(one[name], other[name])
        for name in one
        if json.dumps(one[name]) != json.dumps(other[name])
    }


def _first_difference(one: Any, other: Any) -> tuple[str, str]:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(_first_difference(a, b) for a, b in zip(one, other, strict=True) if a != b)
    return json.dumps(one)[:400], json.dumps(other)[:400]


def views(runs: Runs, chance: random.Random) -> Iterator[str]:
    """Addresses without end, every page first."""
    makers: tuple[Callable[[Runs, random.Random], str], ...] = (
        _layers, _tensor, _overview, _step, _collectives, _loss_scale, _gpu, _agent, _alerts, _runs, _environment,
        _hang,
    )  # fmt: skip
    yield from (make(runs, chance) for make in makers)
    while True:
        yield chance.choice(makers)(runs, chance)


def _path(run: int, page: str, query: dict[str, Any], repeated: list[tuple[str, str]] | None = None) -> str:
    """In the order that the site itself writes: one view has one address."""
    pairs = [(name, str(value)) for name, value in query.items() if value is not None]
    before, after = (
        ("step", "rank", "tensor", "start", "stop", "last"),
        ("q", "key", "axis", "statistic", "axes", "sort"),
    )
    ordered = [pair for name in before for pair in pairs if pair[0] == name]
    ordered += [pair for pair in repeated or [] if pair[0] == "kind"]
    ordered += [pair for name in (*after, "against") for pair in pairs if pair[0] == name]
    ordered += [pair for pair in repeated or [] if pair[0] in ("closed", "order")]
    text = urlencode(ordered)
    return f"/runs/{run}{page}" + (f"?{text}" if text else "")


def _range(chance: random.Random, steps: int) -> dict[str, int]:
    start = chance.randrange(steps - 2)
    return chance.choice(
        [{}, {"start": start}, {"stop": start + 2}, {"start": start, "stop": chance.randrange(start + 2, steps + 50)},
         {"last": chance.randrange(2, steps)}]
    )  # fmt: skip


def _some(chance: random.Random, **choices: Any) -> dict[str, Any]:
    """Each of these as often as not."""
    return {name: chance.choice(values) for name, values in choices.items() if chance.random() < 0.5}


def _orders(chance: random.Random, page: str) -> list[tuple[str, str]]:
    """An order for each table of the page as often as not, by their names."""
    some = _some(chance, **ORDERS.get(page, {}))
    return [("order", f"{table}.{order}") for table, order in sorted(some.items())]


def _layers(runs: Runs, chance: random.Random) -> str:
    query = _some(
        chance, rank=["all", 0, 1], q=["ff", "blocks.1", "7"], statistic=STATISTICS, sort=["name", "worst"],
        axes=["step,rank", "tensor,rank"], tensor=[0, 3, 7],
        against=[f"step:{chance.randrange(STEPS)}", "rank:1", f"run:{runs.partial}"],
    )  # fmt: skip
    if "tensor" in query and query.get("rank") == 1:
        del query["rank"]  # it falls silent: to look for its worst place after that is a failed request
    kinds = [("kind", kind) for kind in KINDS if chance.random() < 0.3]
    closed = [("closed", "blocks")] if chance.random() < 0.3 else []
    return _path(runs.states, "/layers", _range(chance, STEPS) | query, kinds + closed + _orders(chance, "/layers"))


def _tensor(runs: Runs, chance: random.Random) -> str:
    query = {"tensor": chance.randrange(TENSORS)} | _some(chance, rank=["all", 0, 1])
    return _path(runs.states, "/tensor", _range(chance, STEPS) | query)


def _overview(runs: Runs, chance: random.Random) -> str:
    run, steps = chance.choice([(runs.states, STEPS), (runs.partial, 60), (runs.health, 60), (runs.hostile, 30)])
    return _path(run, "", _range(chance, steps))


def _step(runs: Runs, chance: random.Random) -> str:
    query = {"step": chance.randrange(STEPS), "rank": chance.choice([0, 1])} | _some(
        chance, tensor=[3, 7], q=["ff", "1"]
    )
    return _path(runs.states, "/step", query)


def _collectives(runs: Runs, chance: random.Random) -> str:
    query = _range(chance, 60) | _some(chance, step=[7, 30])
    return _path(runs.health, "/collectives", query, _orders(chance, "/collectives"))


def _loss_scale(runs: Runs, chance: random.Random) -> str:
    run = chance.choice([runs.states, runs.partial])
    return _path(run, "/loss-scale", _range(chance, 60), _orders(chance, "/loss-scale"))


def _gpu(runs: Runs, chance: random.Random) -> str:
    rank = chance.randrange(4)
    query = {"rank": rank, "key": f"GPU-{rank}"} | _some(chance, axis=["steps", "time"])
    return _path(runs.health, "/gpu", _range(chance, 60) | query, _orders(chance, "/gpu"))


def _agent(runs: Runs, chance: random.Random) -> str:
    return _path(chance.choice([runs.states, runs.hostile, runs.empty]), "/agent", {}, _orders(chance, "/agent"))


def _alerts(runs: Runs, chance: random.Random) -> str:
    run = chance.choice([runs.states, runs.partial, runs.health])
    known = [each["id"] for each in runs.server.get(f"/api/v1/runs/{run}/alerts")["alerts"]]
    return _path(run, "/alerts", _some(chance, key=[*known, 10**9]))


def _runs(runs: Runs, chance: random.Random) -> str:
    query = _some(chance, q=["a", "states"], sort=["oldest", "name"], archived=["all"])
    return "/" + (f"?{urlencode(query)}" if query else "")


def _environment(runs: Runs, chance: random.Random) -> str:
    page = chance.choice(["/environment", "/gpus"])
    return _path(chance.choice([runs.health, runs.states]), page, {}, _orders(chance, page))


def _hang(runs: Runs, chance: random.Random) -> str:
    return _path(chance.choice([runs.hung, runs.mismatch, runs.health]), "/hang", {})
