"""What matters most of a run now, in one sentence: made from all its open findings, the gravest first.

The sentence is the finding's own summary, as alerts, notifications and `rangewatch diagnose` have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from sqlalchemy import Connection

from rangewatch_server import rules
from rangewatch_server.figures.quantities import FAR_BITS
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules import Finding
from rangewatch_server.rules.importance import HANG_PLACE, LABELS, NONFINITE, NONFINITE_PLACE, importance
from rangewatch_server.store import alerts
from rangewatch_server.views.extremes import Place, place_at

WARNING_BITS = 2.0
MOST_CHAIN, MOST_LINKS, MOST_OTHERS = 3, 3, 6
OPENING = {"hang": 2}  # sentences of evidence in the chain: of a hang who waits, and where the missing rank is
MOST_READ = 20  # open findings of a run whose text is read: more are counted

_OWNERS = {"output": "the output of ", "grad_output": "the gradient of the output of ", "grad": "the gradient of "}

Part = tuple[str, str]
"""Kind (`text`, `code`, `strong`) and text."""


class Link(msgspec.Struct, frozen=True):
    """A page that shows the evidence."""

    label: str
    path: str


class Fix(msgspec.Struct, frozen=True):
    """What to try first; `code` is "" where there is nothing to paste."""

    text: str
    code: str


class Other(msgspec.Struct, frozen=True):
    """Another open finding, in a few letters."""

    severity: str
    label: str
    path: str


class Where(msgspec.Struct, frozen=True):
    """Of an open finding its rule, where it began (None: of no one rank or step), and its sentence ("" before a rule
    has made one).
    """

    rule: str
    severity: str
    rank: int | None
    step: int | None
    summary: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """`level`: `critical`, `warning`, `ok` (nothing is open above info) or `empty`. `chain`: what led to it and what it
    led to, a sentence each. `more`: open findings that are not among `others`. `findings`: those that are open above
    info, that of the sentence first.
    """

    level: str
    parts: tuple[Part, ...]
    chain: tuple[str, ...] = ()
    fix: Fix | None = None
    links: tuple[Link, ...] = ()
    others: tuple[Other, ...] = ()
    more: int = 0
    findings: tuple[Where, ...] = ()


class OpenFinding(msgspec.Struct, frozen=True):
    """A finding that is open as an alert of this number."""

    alert: int
    finding: Finding


def open_findings(run: RunReader) -> tuple[list[OpenFinding], int]:
    """The run's open findings, the gravest first and `MOST_READ` at most; and how many there are."""
    rows = sorted(alerts.open_of(run.connection, [run.id]), key=importance)
    text = alerts.findings(run.connection, [row.id for row in rows[:MOST_READ]])
    known = [OpenFinding(row.id, msgspec.json.decode(text[row.id], type=Finding)) for row in rows if row.id in text]
    return known, len(rows)


def verdict(
    run: RunReader, least: Mapping[str, Any] | None, skipped: int, first: Mapping[str, Any] | None,
    first_of_skipped: Mapping[str, Any] | None, hang: str | None = None,
) -> Verdict:  # fmt: skip
    """`least`: the least headroom; `skipped`: steps that the loss scaler skipped; `first`: the first NaN or Inf of the
    other steps; `first_of_skipped`: that of those; `hang`: who the run waits for now. The first NaN or Inf and a hang
    are shown before the rules have seen them.
    """
    known, count = open_findings(run)
    loud = [each for each in known if each.finding.severity != "info"]
    noted = next((each for each in known if each.finding.rule == "first_nonfinite"), None)
    above_info = [each.finding for each in loud]
    where = tuple(Where(each.rule, each.severity, each.rank, each.step, each.summary) for each in above_info)
    if hang is not None and not (loud and importance(loud[0].finding)[1] <= HANG_PLACE):
        own = Where("hang", "critical", None, None)
        return msgspec.structs.replace(_hung(run, hang), **_others(run, known, count), findings=(own, *where))
    if first is not None and noted is None and not (loud and importance(loud[0].finding)[1] <= NONFINITE_PLACE):
        own = Where("first_nonfinite", "critical", first["rank"], first["step"])
        return msgspec.structs.replace(_overflow(run, first), **_others(run, known, count), findings=(own, *where))
    if loud:
        shown = msgspec.structs.replace(_of_finding(run, loud[0], known, count), findings=where)
        is_of_first = first is not None and (loud[0].finding.step, loud[0].finding.rank) == (
            first["step"],
            first["rank"],
        )
        before = _before(run, first) if first is not None and is_of_first else ()
        return msgspec.structs.replace(shown, chain=(*before, *shown.chain)[:MOST_CHAIN])
    if first is not None and noted is not None:  # Inf that went nowhere
        return _of_finding(run, noted, known, count)
    return msgspec.structs.replace(_calm(run, least, skipped, first_of_skipped), **_others(run, known, count))


def headlines(connection: Connection, run_ids: Sequence[int]) -> dict[int, dict[str, str | None]]:
    """Of each run the gravest open finding above info, in a line: its `level`, `label` and `summary`, for a list."""
    rows: dict[int, Any] = {}
    for row in alerts.open_of(connection, run_ids):
        if row.severity != "info" and (row.run_id not in rows or importance(row) < importance(rows[row.run_id])):
            rows[row.run_id] = row
    text = alerts.findings(connection, [row.id for row in rows.values()])
    gravest = {
        run_id: msgspec.json.decode(text[row.id], type=Finding) for run_id, row in rows.items() if row.id in text
    }
    calm: dict[str, str | None] = {"level": "ok", "label": None, "summary": None}
    lines: dict[int, dict[str, str | None]] = {
        run_id: {"level": each.severity, "label": label(each), "summary": each.summary}
        for run_id, each in gravest.items()
    }
    return {run_id: lines.get(run_id, calm) for run_id in run_ids}


def _of_finding(run: RunReader, gravest: OpenFinding, known: Sequence[OpenFinding], count: int) -> Verdict:
    finding = gravest.finding
    fix = next((Fix(each.text, each.code) for each in finding.remedy), None)
    others = [each for each in known if each is not gravest]
    return Verdict(
        level="ok" if finding.severity == "info" else finding.severity,
        parts=(("strong", label(finding)), ("text", " "), *_marked(finding)),
        chain=(*finding.evidence[: OPENING.get(finding.rule, 1)], *finding.consequences)[:MOST_CHAIN], fix=fix,
        links=_links_of(run, gravest)[:MOST_LINKS], **_others(run, others, count - 1),
    )  # fmt: skip


def label(finding: Finding) -> str:
    """The first words of it as a verdict."""
    return f"{rules.label(finding)}."


def _marked(finding: Finding) -> list[Part]:
    """Its summary, with the tensor's name as code."""
    before, name, after = finding.summary.partition(finding.tensor or "\0")
    return [("text", before), ("code", name), ("text", after)] if name else [("text", finding.summary)]


def _links_of(run: RunReader, gravest: OpenFinding) -> tuple[Link, ...]:
    finding = gravest.finding
    frames = []
    if finding.step is not None:
        where = {"step": finding.step} | ({} if finding.rank is None else {"rank": finding.rank})
        frames = [Link("Step frames", f"/runs/{run.id}/step?{urlencode(where)}")]
    own = [Link(*each) for each in finding.links]
    evidence = (frames + own) if finding.tensor is not None else (own + frames)  # the step shows tensors
    return (*evidence[: MOST_LINKS - 1], Link("All evidence", _alert_path(run, gravest.alert)))


def _alert_path(run: RunReader, alert: int) -> str:
    return f"/runs/{run.id}/alerts?key={alert}"


def _others(run: RunReader, others: Sequence[OpenFinding], count: int) -> dict[str, Any]:
    shown = [_other(run, each) for each in others[:MOST_OTHERS]]
    return {"others": tuple(shown), "more": count - len(shown)}


def _other(run: RunReader, each: OpenFinding) -> Other:
    finding = each.finding
    where = [
        *([] if finding.rank is None else [f"rank {finding.rank}"]),
        *([] if finding.step is None else [f"step {finding.step:,}"]),
    ]
    text = rules.label(finding) + (f": {', '.join(where)}" if where else "")
    return Other(finding.severity, text, _alert_path(run, each.alert))


def _calm(
    run: RunReader, least: Mapping[str, Any] | None, skipped: int, first_of_skipped: Mapping[str, Any] | None
) -> Verdict:
    """Nothing is open above info."""
    by_scaler = _by_scaler(skipped, first_of_skipped)
    links = () if first_of_skipped is None else _place_links(run, first_of_skipped)[:1]
    if least is None:
        nothing = run.last_step is None
        summary = "No step has been recorded yet." if nothing else "No overflow; nothing but zeros has been recorded."
        return Verdict("empty" if nothing else "ok", (("text", summary), *by_scaler), links=links)
    if least["bits"] > FAR_BITS:  # what is nearest of all that is far says nothing
        far: tuple[Part, ...] = (
            ("text", f"No overflow; every tensor is more than {FAR_BITS:.0f} bits from the limit of its dtype."),
            *by_scaler,
        )
        return Verdict("ok", far, links=links or (Link("Change of each layer", f"/runs/{run.id}/layers"),))
    near = least["bits"] < WARNING_BITS
    entry = run.names().tensors.entries[least["tensor"]]
    begin = "Little headroom" if near else "No overflow in a step that was taken" if skipped else "No overflow"
    parts: tuple[Part, ...] = (
        ("text", f"{begin}; least headroom {least['bits']:.1f} bits ("),
        ("code", entry.fqn or "(model)"),
        ("text", f" {entry.kind}, rank {least['rank']}, step {least['step']})."),
        *by_scaler,
    )
    return Verdict("warning" if near else "ok", parts, links=links or _place_links(run, least))


def _by_scaler(skipped: int, first: Mapping[str, Any] | None) -> tuple[Part, ...]:
    if not skipped:
        return ()
    steps = "a step" if skipped == 1 else f"{skipped:,} steps"
    if first is None:
        return (("text", f" The loss scaler skipped {steps}; what overflowed was not recorded."),)
    which = "" if skipped == 1 else "the first "
    return (
        ("text", f" The loss scaler skipped {steps}: {which}at step {first['step']}, rank {first['rank']}, where "
                 f"{_owner(first)}"),
        ("code", first["fqn"] or "(model)"),
        ("text", f" held {_held(first)} first."),
    )  # fmt: skip


def _overflow(run: RunReader, first: Mapping[str, Any]) -> Verdict:
    parts: tuple[Part, ...] = (
        ("strong", f"{NONFINITE}."),
        ("text", f" Step {first['step']}, rank {first['rank']}: {_owner(first)}"),
        ("code", first["fqn"] or "(model)"),
        ("text", f" is the first to hold {_held(first)}."),
    )
    return Verdict("critical", parts, chain=_before(run, first), links=_place_links(run, first))


def _hung(run: RunReader, sentence: str) -> Verdict:
    links = (Link("Where each rank is", f"/runs/{run.id}/hang"),)
    return Verdict("critical", (("strong", f"{LABELS['hang']}."), ("text", f" {sentence}")), links=links)


def _owner(place: Mapping[str, Any]) -> str:
    return _OWNERS.get(place["kind"], f"{place['kind']} of ")


def _held(place: Mapping[str, Any]) -> str:
    return "NaN" if place["what"] == "nan" else "Inf"


def _before(run: RunReader, first: Mapping[str, Any]) -> tuple[str, ...]:
    """How the same tensor stood one step and some hundred steps earlier, where that was recorded."""
    places: list[Place] = []
    for back in (1, 100):
        step = first["step"] - back
        if step >= 0:
            places.append(place_at(run, first["rank"], step, first["tensor"]))
    reported = [f"{place.bits:.1f} bits at step {place.step}" for place in places if place.bits is not None]
    return (f"Its headroom was {' and '.join(reported)}.",) if reported else ()


def _place_links(run: RunReader, place: Mapping[str, Any]) -> tuple[Link, ...]:
    where = f"rank={place['rank']}"
    return (
        Link("Step frames", f"/runs/{run.id}/step?step={place['step']}&{where}"),
        Link("This tensor over time", f"/runs/{run.id}/tensor?tensor={place['tensor']}&{where}"),
    )
