"""`rangewatch whatif` against a real server, with readings made by hand."""

from __future__ import annotations

import json

from rangewatch.statistics import formats
from tests.agent.commands.command import typed
from tests.agent.commands.test_trace_command import ended, heard, start
from tests.server.process import Run
from tests.server.routes.test_commands import Rank
from tests.server.whatif_batches import send


def test_a_line_for_each_format(run: Run) -> None:
    send(run.post, {(0, "mxfp4"): {"error_sq": 100.0}})
    status, out, err = typed("whatif", run.name, "--url", run.server.url)
    assert (status, err) == (0, "")
    assert f"run {run.name}, steps 0 to 19: 3 of 3 tensors read" in out
    assert "15 % of it becomes zero" in out and "15 dB or more" in out
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert all(each.title in lines for each in formats.FORMATS)
    assert lines["MXFP4"][1:4] == ["2", "of", "3"] and lines["MXFP4"][4:] == ["10.0", "dB"]


def test_what_does_not_survive_and_what_to_keep(run: Run) -> None:
    lost = {"flushed_count": 300, "scale_count": 1, "scale_log2": 250.0, "scale_log2_sq": 250.0**2}
    send(run.post, {(0, "mxfp4"): lost})
    status, out, _ = typed("whatif", run.name, "--url", run.server.url, "--format", "mxfp4")
    assert status == 1
    assert "MXFP4: 2 of 3 tensors survive" in out
    assert "30.00 %" in out and "2^-6.0 +-0.0  blocks.0.up output (bfloat16)" in out
    assert "Modules to keep in bfloat16: 1" in out and "    'blocks.0.up'," in out
    status, out, _ = typed("whatif", run.name, "--url", run.server.url, "--format", "mxfp4", "--flushed-percent", "40")
    assert status == 0 and "3 of 3 tensors survive" in out


def test_nothing_was_read(run: Run) -> None:
    send(run.post, {}, read=())
    status, out, _ = typed("whatif", run.name, "--url", run.server.url)
    assert status == 1 and "--read" in out and "whatif_every" in out
    status, out, _ = typed("whatif", run.name, "--url", run.server.url, "--json")
    assert status == 1 and json.loads(out)["measured"] == 0


def test_read_asks_the_ranks_first(run: Run) -> None:
    rank = Rank(run, 0, world_size=1)
    process = start(run.server.url, "whatif", run.name, "--read", "--module", "head")
    command = heard(rank)
    assert {name: command[name] for name in ("kind", "modules")} == {"kind": "whatif", "modules": ["head"]}
    rank.send({"id": command["id"], "state": "refused", "reason": "none of the tensors was read"})
    status, _, err = ended(process)
    assert status == 1 and "none of the tensors was read" in err
