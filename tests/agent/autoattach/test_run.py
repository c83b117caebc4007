"""`rangewatch run -- COMMAND`, as people call it: plain Python, torchrun, and trainers in scripts that know nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rangewatch.autoattach import SITE
from rangewatch.commands import run
from tests.agent.ingest_double import IngestDouble

PLAIN = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.exit(7)
"""
RANKS = """
    import os, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DistributedDataParallel(model)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
TRAINER = """
    import torch
    from transformers import Trainer, TrainingArguments
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)
        def forward(self, x, labels=None):
            return {"loss": (self.net(x) - labels).square().mean()}
    data = [{"x": torch.ones(4), "labels": torch.zeros(1)} for _ in range(16)]
    arguments = TrainingArguments(output_dir="out", max_steps=4, per_device_train_batch_size=2, report_to=[],
                                  use_cpu=True, disable_tqdm=True, save_strategy="no")
    Trainer(model=Net(), args=arguments, train_dataset=data).train()
"""
LIGHTNING = """
    import torch, lightning.pytorch as pl
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            return self.net(batch).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=4)
    trainer = pl.Trainer(max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Net(), loader)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, ingest: IngestDouble) -> Start:
    def start(script: str, *command: str, **variables: str) -> subprocess.Popen[str]:
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(script))
        ours = [sys.executable, "-m", "rangewatch", "run", "--url", ingest.url, "--run", "auto", "--"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables
        environment.pop("RANGEWATCH_QUIET", None)
        return subprocess.Popen(
            [*ours, *(command or (sys.executable,)), str(file)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
        )  # fmt: skip

    return start


@pytest.mark.slow
def test_a_plain_script_is_watched_and_its_status_is_its_own(start: Start, ingest: IngestDouble) -> None:
    process = start(PLAIN)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 7
    assert errors == f"rangewatch: run auto at {ingest.url}/?q=auto\nrangewatch: attached to Sequential with AdamW\n"
    assert ("0", "output", 0) in ingest.tensors() and set(ingest.series("wall_time_s")) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fqn", "steps"), [(TRAINER, "net", 4), (LIGHTNING, "net", 4)], ids=["transformers", "lightning"]
)
def test_trainers_that_know_nothing(start: Start, ingest: IngestDouble, script: str, fqn: str, steps: int) -> None:
    process = start(script)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "rangewatch: attached to Net with " in errors
    assert (fqn, "output", 0) in ingest.tensors()
    assert len(ingest.series("wall_time_s")) == steps


@pytest.mark.slow
def test_every_rank_of_torchrun(start: Start, ingest: IngestDouble) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = start(RANKS, *torchrun)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert {each.info.rank for each in ingest.openings} == {0, 1}
    assert errors.count("rangewatch: attached to ") == 1, errors
    assert "nothing was attached" not in errors, "the launcher trains nothing"


@pytest.mark.slow
def test_a_signal_is_the_commands_own(start: Start) -> None:
    process = start("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(40))
        print("ready", flush=True)
        time.sleep(60)
    """)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 40


@pytest.mark.slow
def test_a_script_without_a_model_runs_untouched(start: Start) -> None:
    process = start("import torch\nprint(torch.ones(2).sum().item())\n")
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "2.0\n")
    assert errors.startswith("rangewatch: nothing was attached in process ")


def test_the_sites_own_file_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.flags_of_site = 1\n")
    path = os.pathsep.join([str(SITE), str(tmp_path)])
    for variables in ({}, {"RANGEWATCH_AUTO_ATTACH": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", "import sys; print(sys.flags_of_site, 'torch' in sys.modules, len(sys.path))"],
            env=os.environ | {"PYTHONPATH": path} | variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.startswith("1 False "), "nothing is imported for its sake"
        assert done.stderr == ""


def test_what_cannot_be_started(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run.main(["--", "no-such-program-here"]) == 127
    assert capsys.readouterr().err == "rangewatch run: there is no program 'no-such-program-here'\n"
    script = tmp_path / "train.py"
    script.write_text("")
    assert run.main(["--", str(script)]) == 126
    assert f"give python before it: rangewatch run -- python {script}" in capsys.readouterr().err
    assert run.main([]) == 2
    assert "give a command after --" in capsys.readouterr().err


def test_the_command_gets_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *given: started.append(given))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), "/mine"]))
    run.main(["--run", "a", "--", "torchrun", "--nproc-per-node", "2", "train.py", "--run", "b", "--", "c"])
    ((program, arguments, environment),) = started
    assert program == "torchrun"
    assert arguments == ["torchrun", "--nproc-per-node", "2", "train.py", "--run", "b", "--", "c"]
    assert environment["PYTHONPATH"] == os.pathsep.join([str(SITE), "/mine"]), "once"
    assert environment["RANGEWATCH_RUN"] == "a" and environment["RANGEWATCH_AUTO_ATTACH"] == "1"


def test_the_variables_for_a_jobs_script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert run.main(["--print-env", "--run", "it's"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "export RANGEWATCH_AUTO_ATTACH=1",
        f"export PYTHONPATH={SITE}",
        """export RANGEWATCH_RUN='it'"'"'s'""",
    ]
