"""What is said of a death: what is known as known, what follows from the order of calls with that."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.crash.memory import layout
from rangewatch.crash.watcher.death_report import Ending, died, from_stack, how, innermost
from rangewatch.crash.watcher.recovery import Collective, Position
from rangewatch.wire.records import Event, TensorEntry

FQNS = [
    "emb",
    "blocks.0.norm",
    "blocks.0.attn.q",
    "blocks.0.attn.out",
    "blocks.0.attn",
    "blocks.0",
    "blocks.1.norm",
    "",
]
TENSORS = [TensorEntry(fqn, "output", 0, "float32", (1,), 10 * place) for place, fqn in enumerate(FQNS)]
TENSORS += [
    TensorEntry("blocks.0.attn.out", "grad_output", 0, "float32", (1,), 1000),
    TensorEntry("blocks.0.attn.out.weight", "grad", 0, "float32", (1,), 1010),
    TensorEntry("blocks.0.attn", "input", 0, "float32", (1,), 15),
]
PLACES = {(entry.fqn, entry.kind): number for number, entry in enumerate(TENSORS)}
SEGFAULT = Ending(signal=11)


def said(last: tuple[str, str] | None, phase: str = "forward", **changed: object) -> Event:
    calls = np.ones(len(TENSORS))
    calls[PLACES["blocks.0.attn", "input"]] = 0
    tensor = None if last is None else PLACES[last]
    position = Position(1042, phase, layout.OPEN, tensor, calls, ())._replace(**changed)
    return died(SEGFAULT, position, TENSORS, 0, "", 7)


@pytest.mark.parametrize(
    ("last", "inside", "following"),
    [
        ("blocks.0.attn.q", "blocks.0.attn", "blocks.0.attn.out"),
        ("blocks.0.attn.out", "blocks.0.attn", "blocks.0.attn"),
        ("blocks.0.norm", "blocks.0", "blocks.0.attn.q"),
        ("blocks.0.attn", "blocks.0", "blocks.0"),
        ("blocks.0", "", "blocks.1.norm"),  # `blocks` is a ModuleList: nothing of it runs
        ("blocks.1.norm", "", ""),
    ],
)
def test_the_module_that_holds_what_is_done_and_what_comes_next(last: str, inside: str, following: str) -> None:
    event = said((last, "output"))
    assert event.data["module"] == inside
    assert event.data["last"]["fqn"] == last and event.data["next"]["fqn"] == following
    assert f"in step 1042, in forward, inside {inside or 'the model'}, after {last}" in event.message
    assert event.message.endswith(f"before {following or 'the model'} (by the order of the step before)")


def test_an_input_says_that_its_module_has_begun() -> None:
    event = said(("blocks.0.attn", "input"), calls=np.ones(len(TENSORS)))
    assert event.data["module"] == "blocks.0.attn"
    assert "inside blocks.0.attn, after the input of blocks.0.attn" in event.message


def test_what_the_step_before_does_not_tell_is_not_said() -> None:
    calls = np.ones(len(TENSORS))
    calls[PLACES["blocks.0.attn.out", "output"]] = 3  # in a loop of its own
    for event in (
        said(("blocks.0.attn.q", "output"), calls=calls),
        said(("blocks.0.attn.q", "output"), calls=np.zeros(0)),
        said(("blocks.0.attn.q", "output"), phase="optimizer"),
        said(("", "output")),  # the model is done: the loss may be next, or anything
    ):
        assert event.data["next"] is None and event.data["module"] is None
        assert "by the order" not in event.message and "inside" not in event.message
        assert "after blocks.0.attn.q" in event.message or "after the model" in event.message


def test_before_the_first_tensor() -> None:
    event = said(None, phase="data_wait")
    assert event.message == (
        "died of signal 11 (SIGSEGV) in step 1042, in the data loader, before any tensor of it was recorded"
    )


def test_in_backward_no_module_is_named_as_the_one_that_runs() -> None:
    event = said(("blocks.0.attn.out", "grad_output"), phase="backward")
    assert event.data["module"] is None
    assert (
        "in backward, after the gradient of the output of blocks.0.attn.out and before the gradient of "
        in event.message
    )


def test_collectives_under_way_come_before_those_that_are_done() -> None:
    done, under_way = Collective("a", "broadcast", 5, 5, (0,)), Collective("default_pg", "all_reduce", 957, 956, (0,))
    assert said(None, collectives=(under_way,)).message.endswith("; all_reduce 957 enqueued, 956 completed")
    both = said(None, collectives=(done, under_way)).message
    assert both.endswith("; all_reduce 957 of group default_pg enqueued, 956 completed") and "broadcast" not in both
    assert "completed" not in said(None, collectives=(done,)).message
    unknown = said(None, collectives=(done._replace(completed=None),)).message
    assert unknown.endswith("; broadcast 5 was the last collective called")


def test_ends_in_words() -> None:
    assert how(Ending(signal=9), 0) == "died of signal 9 (SIGKILL)"
    assert "out-of-memory killer of its control group struck once" in how(Ending(signal=9), 1)
    assert "out-of-memory" not in how(Ending(signal=11), 1), "that is not what it sends"
    assert how(Ending(signal=15), 0).startswith("was ended by signal 15 (SIGTERM: a preemption")
    assert "exit code 3" in how(Ending(exit_code=3), 0)
    assert "not known" in how(Ending(), 0)
    assert how(Ending(signal=40), 0) == "died of signal 40"


def test_after_its_goodbye_no_step_is_blamed() -> None:
    event = said(("emb", "output"), closed=layout.AT_EXIT)
    assert event.message == "died of signal 11 (SIGSEGV), after its goodbye, while the interpreter ended"


def test_an_exit_code_after_its_goodbye_is_not_one_without() -> None:
    position = Position(1042, "forward", layout.AT_EXIT, None, np.zeros(0), ())
    event = died(Ending(exit_code=3), position, TENSORS, 0, "", 7)
    assert event.message == "ended with exit code 3 (such as sys.exit), after its goodbye, while the interpreter ended"


def test_another_program_in_its_place_is_no_death() -> None:
    event = died(Ending(is_replaced=True), None, (), 0, "", 7)
    assert event.message == "went on as another program (exec) without a goodbye" and event.data["replaced"] is True


def test_nothing_known_but_the_end() -> None:
    event = died(SEGFAULT, None, (), 0, "", 7)
    assert (event.message, event.step) == ("died of signal 11 (SIGSEGV)", -1)


STACK = """Fatal Python error: Segmentation fault

Thread 0x01 (most recent call first):
  File "/x/other.py", line 5 in idle

Current thread 0x02 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9 in _call_impl
  File "/home/me/train.py", line 31 in forward
  File "/home/me/train.py", line 80 in <module>

Extension modules: numpy
"""


def test_the_stack_of_the_thread_that_had_the_fault() -> None:
    assert innermost(STACK) == "train.py:31 in forward"
    assert innermost("nothing") == ""
    assert from_stack(STACK) == Ending(signal=11)
    assert from_stack("Fatal Python error: Aborted\n") == Ending(signal=6)
    assert from_stack("") == Ending() == from_stack("Fatal Python error: init_import_site: x")
