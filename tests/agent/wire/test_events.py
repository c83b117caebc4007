"""Details of events: what is made of a struct is read as that struct, and what anybody else sent never raises."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import (
    ACCOUNTS,
    CodeLine,
    CommandAnswer,
    Died,
    Environment,
    EnvironmentFinding,
    GroupProgress,
    Hang,
    MergedSteps,
    Modules,
    Nonfinite,
    OptimizerDetails,
    Scaler,
    TensorDetails,
    WaitingCall,
)

SEEN = TensorDetails("a.weight", "float16", 12, 3.5, 0, 2, shape=(3, 4))
SENT = [
    Died(exit_code=None, signal=11, signal_name="SIGSEGV", oom_kills=0, stack="File", step=7, module="a"),
    Nonfinite(
        "a", "output", 0, weights=(SEEN,), inputs=(), optimizer=OptimizerDetails("AdamW", "a.weight", state=(SEEN,))
    ),
    Scaler("loss_scale", name="GradScaler", growth_interval=2_000.0),
    Hang(7, 9.5, True, "hooks", (GroupProgress(4, None, ranks=(0, 1), waiting=(WaitingCall("broadcast", 4, 8.0),)),)),
    MergedSteps(0, 63, 8),
]


@pytest.mark.parametrize("details", SENT, ids=lambda each: each.KIND)
def test_what_was_sent_is_read(details: events.Details) -> None:
    sent = events.event(details, 1, 7, "text")
    assert (sent.kind, sent.step, sent.message) == (details.KIND, 7, "text")
    assert events.read(type(details), sent.data) == details
    assert events.read(type(details), msgspec.json.encode(sent.data)) == details


def test_what_is_unset_is_left_out_and_none_is_null() -> None:
    assert events.details_of(Scaler("loss_scale", growth_factor=2)) == {"series": "loss_scale", "growth_factor": 2}
    assert events.details_of(Nonfinite("a", "weight", 0, None)) == {
        "fqn": "a",
        "kind": "weight",
        "index": 0,
        "autocast": None,
    }


GROUP: dict[str, Any] = {"enqueued": 3, "completed": None, "ranks": ["x", None, -1], "hash": [1]}
ODD: list[tuple[Any, Any, Any]] = [
    (Scaler, {"series": "s", "class": 7, "growth_interval": "often", "growth_factor": 1e300}, Scaler("s")),
    (Scaler, {"series": "s", "backoff_factor": True, "later": 1}, Scaler("s")),
    (Scaler, {"series": ["s"]}, None),
    (Died, {"signal": [1], "stack": "x", "module": 7, "collectives": "x"}, Died(stack="x")),
    (Hang, {"groups": [None, 7, {"enqueued": 1}, GROUP]}, Hang(groups=(GroupProgress(3, None, ranks=(-1,)),))),
    (Hang, {"stalled_s": -1, "line": {"file": "a/b.py", "line": "x"}}, Hang(line=CodeLine("a/b.py"))),
    (
        Environment,
        {"facts": 3, "findings": [{"code": "a", "why": 5}, 7]},
        Environment(findings=(EnvironmentFinding("a"),)),
    ),
    (MergedSteps, {"first_step": 0, "last_step": 7, "steps_a_row": 1}, None),
    (ACCOUNTS["other_values"], {"a": {"input[0]": "None", "x": 3}, "junk": 3}, {"a": {"input[0]": "None", "x": 3}}),
    (ACCOUNTS["dropped"], {"reason": "many"}, {}),
]


@pytest.mark.parametrize(("kind", "data", "expected"), ODD)
def test_what_has_not_its_type_is_as_if_it_were_not_there(kind: Any, data: Any, expected: Any) -> None:
    assert events.read(kind, data) == expected
    assert events.read(kind, msgspec.json.encode(data)) == expected


@pytest.mark.parametrize("data", [b"", b"[1]", b"null", b"{", b"\xff", b"3"])
def test_what_is_no_map_is_passed_over(data: bytes) -> None:
    assert events.read(Hang, data) is None


def test_what_is_acted_on_or_counted_is_whole_or_none() -> None:
    assert events.read(CommandAnswer, {"id": 1, "state": "done"}) == CommandAnswer(1, "done")
    assert events.read(CommandAnswer, {"id": 1, "state": "done", "reason": 3}) is None
    assert events.details_of(CommandAnswer(1, "done")) == {"id": 1, "state": "done"}
    assert events.read(Modules, {"classes": [{"module": 1}, {"module": "a", "name": "b.a"}], "of": {"x": 1}}) is None
