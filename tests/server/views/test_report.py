"""`rangewatch report` against a real run."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, Event, TensorEntry
from tests import forked
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening


def report(run: Run, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command says of the run."""
    return command(run.server.url, run.name, *arguments)


def command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", "report", "--url", url, *arguments, timeout=60)


def test_report_of_the_first_overflow(run: Run) -> None:
    known = catalogue(30, kinds=("output",))
    bad = np.zeros((30, 10))
    bad[25:, 7] = 1
    run.post(opening(known))
    run.post(batch(known, 0, range(10), {"inf_count": bad, "full_numel": 32.0, "amin": 0.5}))
    found = report(run)
    lines = found.stdout.splitlines()
    assert found.returncode == 0
    assert lines[:4] == [
        "Detected inf/nan during batch_number=7", f"(run {run.name}, rank 0, step 7)", "Last 21 forward frames:",
        "abs min  abs max  metadata",
    ]  # fmt: skip
    assert lines[-2:] == ["                  blocks.25.ff Linear", "5.00e-01      inf output"]
    assert len(report(run, "--frames", "3").stdout.splitlines()) == 4 + 2 * 3
    by_number = command(run.server.url, str(run.id), "--step", "3")
    assert by_number.stdout.startswith("No inf/nan in batch_number=3")
    assert json.loads(report(run, "--json").stdout)["first_nonfinite"] == 25
    clean = Run(run.server, f"{run.name}, but clean")
    clean.post(opening(known), batch(known, 0, range(5)))
    found = report(clean)
    assert (found.returncode, found.stdout) == (1, f"No NaN or Inf in run {clean.name}, steps 0 to 4.\n")


def test_it_names_what_had_begun_before(run: Run) -> None:
    """A report is of one step, and its root may lie before: the first finding says so, with an overflow or without."""
    known = catalogue(3, kinds=("output",))
    steps, loss = 120, np.full(120, 2.0) + np.linspace(0, 0.01, 120)
    loss[100:] = 50.0
    clean = Run(run.server, f"{run.name}, but finite")
    for each, last in ((run, 1.0), (clean, 0.0)):
        bad = np.zeros((3, steps))
        bad[1:, 110] = last
        each.post(opening(known), batch(known, 0, range(steps), {"inf_count": bad, "amax": 1.0}, series={"loss": loss}))
    lines = report(run).stdout.splitlines()
    assert lines[0] == "Detected inf/nan during batch_number=110"
    assert lines[-2].startswith("It had begun before: Loss jumped. Step 100, rank 0: the loss jumped from 2.")
    assert lines[-1] == f"Why, and what to try: rangewatch diagnose {run.name}"
    lines = report(clean).stdout.splitlines()
    assert lines[0] == f"No NaN or Inf in run {clean.name}, steps 0 to 119."
    assert lines[1].startswith("What else is wrong: Loss jumped. Step 100")
    assert "Loss jumped" not in report(run, "--step", "110").stdout


STEP = [
    ("ff.weight", "weight", 0, "Parameter"), ("", "input", 0, "Net"), ("ff", "input", 0, "Linear"),
    ("ff", "output", 0, "Linear"), ("", "output", 1, "Net"), ("ff", "grad_output", 0, "Linear"),
    ("ff.weight", "grad", 0, "Parameter"), ("ff.weight", "reduced_grad", 0, "Parameter"),
]  # fmt: skip
OTHERS = {"": {"input[1]": "None", "output[0]": "not a tensor", "output[1]": "None"}, "gone": {"input[0]": "None"}}


def test_a_frame_has_weights_inputs_and_outputs(run: Run) -> None:
    entries = (
        TensorEntry(fqn, kind, index, "float32", (4,), n, module) for n, (fqn, kind, index, module) in enumerate(STEP)
    )
    known = Catalogue(statistics.ALL, tuple(entries))
    amax = np.arange(1.0, 9.0)[:, np.newaxis]
    nan = np.zeros((8, 3))
    nan[6, 1] = nan[1, 2] = 1
    run.post(opening(known))
    full = {"amax": amax, "nan_count": nan, "full_numel": 32.0, "amin": 0.5}
    reported = Event("other_values", 0, 1, "", OTHERS)
    run.post(batch(known, 0, range(3), full, events=(reported, Event("other_values", 1, 2, "", {"junk": 3}))))
    forward = """\
Last 2 forward frames:
abs min  abs max  metadata
                  ff Linear
5.00e-01 1.00e+00 weight
5.00e-01 3.00e+00 input[0]
5.00e-01 4.00e+00 output
                  (model) Net
5.00e-01 2.00e+00 input[0]
             None input[1]
     not a tensor output[0]
5.00e-01 5.00e+00 output[1]
"""
    backward = """\
Last 1 backward frames:
abs min  abs max  metadata
                  ff Linear
5.00e-01 6.00e+00 grad_output[0]
5.00e-01 {0} weight grad
"""
    optimizer = """\
Last 1 optimizer frames:
abs min  abs max  metadata
                  ff Linear
5.00e-01 8.00e+00 weight reduced_grad
"""
    head = f"No inf/nan in batch_number=0\n(run {run.name}, rank 0, step 0)\n"
    clean = f"{head}{forward}{backward.format('7.00e+00')}{optimizer}"
    assert report(run, "--step", "0").stdout == clean
    bad = f"Detected inf/nan during batch_number=1\n(run {run.name}, rank 0, step 1)\n{backward.format('     nan')}"
    assert report(run).stdout == bad
    subnormal = np.zeros((8, 1))
    subnormal[3], subnormal[4] = 10, 9
    few = full | {"nan_count": 0.0, "numel": 1000.0, "full_numel": 1000.0, "subnormal_count": subnormal}
    other = Run(run.server, f"{run.name}, small")
    other.post(opening(known), batch(known, 0, range(1), few))
    small = report(other, "--step", "0").stdout
    assert "4.00e+00 output  (underflow: 1.0 % subnormal)\n" in small and small.count("underflow") == 1
    in_forward = report(run, "--step", "2").stdout
    assert "backward" not in in_forward and "     nan input[0]\n" in in_forward and "None" not in in_forward


def test_each_section_has_its_own_frames(run: Run) -> None:
    """Where only the weight of a module is seen it was there first; many optimizer lines hide no gradient."""
    entries = [
        TensorEntry(f"{fqn}{'.weight' if kind == 'weight' else ''}", kind, 0, "float32", (4,), n, "Linear")
        for n, (fqn, kind) in enumerate([("a", "weight"), ("shared", "weight"), ("a", "output"), ("", "output")])
    ]
    entries += [TensorEntry("a", "grad_output", 0, "float32", (4,), 5, "Linear")]
    for kind in ("reduced_grad", "update"):
        entries += [TensorEntry(f"m{n}.weight", kind, 0, "float32", (4,), 10, "Parameter") for n in range(30)]
    known = Catalogue(statistics.ALL, tuple(entries))
    inf = np.zeros((len(entries), 2))
    inf[40, 1] = 1
    run.post(opening(known))
    run.post(batch(known, 0, range(2), {"inf_count": inf, "full_numel": 32.0, "amin": 0.5}))
    lines = report(run, "--step", "0").stdout.splitlines()
    assert [line for line in lines if line.startswith(("Last", "   "))][:7] == [
        "Last 3 forward frames:", "                  shared", "                  a Linear",
        "                  (model) Linear", "Last 1 backward frames:", "                  a Linear",
        "Last 21 optimizer frames:",
    ]  # fmt: skip
    bad = report(run).stdout.splitlines()
    assert (bad[2], bad[-2:]) == (
        "Last 21 optimizer frames:",
        ["                  m5", "5.00e-01      inf weight update"],
    )


def test_an_empty_tensor_is_no_nan(run: Run) -> None:
    known = catalogue(2, kinds=("output",))
    numel = np.array([[0.0, 0.0], [32.0, 32.0]])
    full = {"numel": numel, "amax": numel / 8, "full_numel": np.array([[0.0, 0.0], [0.0, 32.0]]), "amin": 0.5}
    run.post(opening(known), batch(known, 0, range(2), full))
    for step, low in ((0, "       -"), (1, "5.00e-01")):
        text = report(run, "--step", str(step)).stdout
        assert "blocks.0.ff Linear\n            empty output\n" in text and f"{low} 4.00e+00 output\n" in text


def test_names_forge_no_lines(served: Server) -> None:
    """Control characters, line breaks of any kind and marks that turn the text round are not printed."""
    evil = "x\n  nan output\x1b[31m\u2028\u202e\x85y"
    entries = (
        TensorEntry(evil, "output", 0, "float32", (4,), 0, evil),
        TensorEntry(f"{evil}.{evil}", "weight", 0, "float32", (4,), 1, evil),
        TensorEntry(f"{evil}.{evil}", "grad", 0, "float32", (4,), 2, evil),
    )
    known = Catalogue(statistics.ALL, entries)
    odd = Run(served, evil)
    odd.post(opening(known), batch(known, 0, range(1)))
    text = odd.get("/step")["report"]
    assert len(text.splitlines()) == 3 + 5 + 4
    assert all(each.isprintable() for each in text.split("\n"))
    assert "x\N{REPLACEMENT CHARACTER}  nan output" in text


ODD: tuple[dict[str, object], ...] = (
    {"blocks.0.ff": {"output[x]": "None", "input": "None", "input[-5]": "None", "output[\u0664]": "None"}},
    {"blocks.0.ff": {"input[" + "9" * 5000 + "]": "None", "weird[1]": "None", "input[1]\n": "None"}},
    {"a": 3, "b": [1], "blocks.0.ff": None},
    {"blocks.0.ff": {"input[0]": 1.5, "input[2]": ["None"], "input[3]": {"None": 1}, "output[1]": "x\n\x1b[31m"}},
)


def test_an_agent_may_send_anything_beside_tensors(run: Run) -> None:
    """Each as what was seen at one step, and something good after it."""
    known = catalogue(1)
    run.post(opening(known))
    good = {"blocks.0.ff": {"input[4]": "integer tensor", "input[5]": "None"}}
    for step, reported in enumerate(each for data in ODD for each in (data, good)):
        run.post(batch(known, step, [step], events=(Event("other_values", 1, step + 1, "", reported),)))
    for number, data in enumerate(ODD):
        text = run.get(f"/step?step={2 * number}")["report"]
        others = [line for line in text.splitlines() if "not a tensor" in line]
        kept: Any = data.get("blocks.0.ff") or {}
        assert others == [
            f"     not a tensor {where}" for where in ("input[0]", "input[2]", "input[3]", "output[1]") if where in kept
        ], data
        later = run.get(f"/step?step={2 * number + 1}")["report"]
        assert "   integer tensor input[4]\n             None input[5]\n" in later, data


def test_what_is_wrong_is_one_line(served: Server) -> None:
    for arguments, said in (
        ((served.url, "nothing"), "no run 'nothing'"),
        (("http://127.0.0.1:9", "x"), "no Rangewatch server answers at http://127.0.0.1:9"),
    ):
        found = command(*arguments)
        assert (found.returncode, len(found.stderr.splitlines())) == (2, 1)
        assert said in found.stderr
