"""`make test-gpu` and `make bench-gpu`: a part that fails, hangs or has no GPU is a line of the report, and no more.

What the parts see on a GPU nobody can test here; that their programs run without one is `--dry-run`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[1] / "bench" / "gpu"

RUNNER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import __main__, parts, report
from importlib import util
spec = util.spec_from_file_location("runner", sys.argv[1] + "/__main__.py")
runner = util.module_from_spec(spec)
spec.loader.exec_module(runner)
"""


def in_gpu(script: str, *arguments: str) -> Any:
    """What a script prints last, as JSON, that imports as the parts do."""
    command = [sys.executable, "-c", RUNNER + script, str(GPU), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_others_go_on_when_one_fails_or_hangs(tmp_path: Path) -> None:
    script = """
from pathlib import Path
def part(name, code, limit_s=20, **more):
    return parts.Part(name, name.capitalize(), ("-c", code), limit_s, **more)
card = {"card": "H", "driver": "5", "torch": "2", "triton": "3"}
machine = f"import json; print(json.dumps({dict(checks=1, failed=[], figures=card)}))"
aims = tuple(parts.Aim(("a", "b"), bound, f"ratio {bound}") for bound in (1.01, 1.5))
runner.TEST = (part("environment", machine),)
runner.PARTS = {"test": (
    runner.TEST[0],
    part("raises", "raise RuntimeError('no luck')"),
    part("hangs", "import time; time.sleep(60)", 1),
    part("wrong", 'print(\\'{"checks": 3, "failed": ["x is 2"], "figures": {}}\\')'),
    part("absent", "", needs="no-such-program"),
    part("right", 'print(\\'{"checks": 3, "failed": [], "figures": {"a": {"b": 1.2}}, "notes": []}\\')', aims=aims),
)}
sys.argv[1:] = ["test", "--out", sys.argv[2]]
status = runner.run(runner.parse_options())
print(json.dumps([status, (Path(sys.argv[3]) / "report.md").read_text()]))
"""
    status, text = in_gpu(script, str(tmp_path))
    whole = json.loads((tmp_path / "report.json").read_text())
    assert status == 1
    assert text.splitlines()[0] == whole["first_line"] == "H, driver 5, torch 2, Triton 3"
    assert {part["name"]: part["status"] for part in whole["parts"]} == {
        "environment": "passed, 1 checks",
        "raises": "failed: status 1",
        "hangs": "failed: not done after 1 s",
        "wrong": "failed: 1 wrong, 3 checks",
        "absent": "not run: no-such-program is not here",
        "right": "passed, 3 checks",
    }
    assert "RuntimeError: no luck" in text and "- wrong: x is 2" in text
    assert "| ratio 1.01 | at most 1.01 | 1.2 | missed |" in text
    assert "| ratio 1.5 | at most 1.5 | 1.2 | met |" in text


@pytest.mark.slow
def test_without_a_gpu_the_report_says_so_first(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, GPU, "test", "--dry-run", "--out", tmp_path, "--only", "environment", "health", "sanitizer"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("never run on a GPU: no CUDA device (torch ")
    parts = {part["name"]: part for part in json.loads((tmp_path / "report.json").read_text())["parts"]}
    assert {part["status"] for part in parts.values()} == {"not run: no CUDA device"}
    assert parts["health"]["dry_run"].startswith("NVML's double: passed, ") and not parts["sanitizer"]["dry_run"]


@pytest.mark.slow
def test_nothing_is_claimed_where_there_is_no_gpu(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, GPU, "bench", "--out", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--dry-run" in done.stdout
    assert (tmp_path / "report.md").read_text().startswith("never run on a GPU: ")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """In a Python that has nothing installed."""
    done = subprocess.run([sys.executable, "-S", "-E", GPU, "test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    for name in ("torch", "msgspec", "nvidia-ml-py", "fastapi"):
        assert name in done.stderr
    assert "name another Python" in done.stderr


def test_each_wheel_has_its_version() -> None:
    script = """
import wheels
collected = {*wheels.AGENT, *wheels.SERVER, *wheels.TESTS}
print(json.dumps([wheels.pinned(), sorted(set(wheels.MODULES.values()) - collected)]))
"""
    pinned, not_collected = in_gpu(script)
    assert all("==" in each for each in pinned) and not_collected == []
    assert not {each.partition("==")[0] for each in pinned} & {"torch", "numpy"}


def test_nvidia_smi_and_nvml_are_compared_field_by_field() -> None:
    script = """
import health, nvml_double
def wrong(*changes):
    xml = (nvml_double.TESTDATA / "h100.xml").read_text()
    for old, new in changes:
        assert old in xml
        xml = xml.replace(old, new)
    checks = health.Checks()
    health.compare(checks, reader, lambda: xml, "now")
    return checks.failed
nvml_double.install()
nvml = health.Nvml()
nvml.open()
reader = health.Reader(nvml, nvml.call("nvmlDeviceGetHandleByIndex", 0))
print(json.dumps([
    wrong(), wrong(("64 C", "71 C")), wrong(("sw_power_cap>Active", "sw_power_cap>Not Active")),
    wrong(("2619 MHz", "N/A")), wrong(("<dram_correctable>8", "<dram_correctable>9")),
]))
"""
    right, hotter, reasons, unknown, errors = in_gpu(script)
    assert right == []
    assert hotter == ["now: temperature_c is 64.0, nvidia-smi says 71.0 and 71.0"]
    assert reasons == ["now: clocks event reasons 0x4, nvidia-smi {0}"]
    assert unknown == ["now: memory_clock_mhz is 2619.0, which nvidia-smi does not know"]
    assert errors == ["now: ecc_corrected_aggregate is 12.0, nvidia-smi says 13.0 and 13.0"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["kernels", "pytest", "eager", "compiled", "fsdp2", "launches", "gpus_page"])
def test_the_parts_run_without_a_gpu(tmp_path: Path, part: str) -> None:
    done = subprocess.run(
        [sys.executable, GPU, "test", "--dry-run", "--out", tmp_path, "--only", part],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + (tmp_path / "report.md").read_text()
    (result,) = (each for each in json.loads((tmp_path / "report.json").read_text())["parts"] if each["name"] == part)
    assert ": passed" in result["dry_run"]
