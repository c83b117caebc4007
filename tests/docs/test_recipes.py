"""Each recipe's script is started by the command of its own page, and its run is on a real server, whole.

Those that want a package of their own are skipped where it is not installed: `make test-recipes` installs them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.docs import blocks
from tests.docs.blocks import Block
from tests.docs.shell import ASSIGNMENT
from tests.server.process import Server

SCRIPTS = [block for block in blocks.of("python") if block.is_file and not block.no_run]
PATIENCE_S = 280
pytestmark = pytest.mark.timeout(300)
# Lightning calls `training_step` of its module, whose own forward is not observed then; TRL multiplies by the weight.
NEVER_CALLED = {"docs/recipes/lightning.md": {""}, "docs/recipes/other_trainers.md": {"lm_head"}}
# A loaded machine takes longer to start Ray than Ray waits for.
VARIABLES = {"RAY_raylet_start_wait_time_s": "200", "RAY_USAGE_STATS_ENABLED": "0"}
Done = subprocess.CompletedProcess[str]


def start(block: Block, url: str, folder: Path) -> Done:
    """Write the script, and run what the page says runs it."""
    (folder / block.title).write_text(block.text)
    words = command(block)
    variables = dict(word.split("=", 1) for word in words if ASSIGNMENT.match(word))
    program, *arguments = words[len(variables) :]
    launch = {"python": [], "torchrun": ["-m", "torch.distributed.run", f"--master-port={free_port()}"]}[program]
    ours = {"RANGEWATCH_URL": url, "RANGEWATCH_SPOOL_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **variables, **ours, **(VARIABLES if block.needs == "ray" else {})}
    return forked.rank.run(*launch, *arguments, cwd=folder, env=environment, timeout=PATIENCE_S)


def command(block: Block) -> list[str]:
    """The words of the page's command that runs the file."""
    found = (line[2:] for each in blocks.of("console") if each.page == block.page for line in each.text.splitlines())
    return next(words for words in map(shlex.split, found) if block.title in words)


def test_the_recipes_are_found() -> None:
    assert {Path(block.page).stem for block in SCRIPTS} >= {
        "plain", "ddp", "fsdp2", "transformers", "lightning", "accelerate", "other_trainers",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS, ids=[f"{block.page}-{block.title}" for block in SCRIPTS])
def test_a_recipe(block: Block, server: Server, tmp_path: Path) -> None:
    if block.needs:
        pytest.importorskip(block.needs)
    result = start(block, server.url, tmp_path)
    assert result.returncode == 0, result.stderr
    words = " ".join(command(block))
    name = re.search(r'RANGEWATCH_RUN=(\S+)|run="([\w-]+)"', words + block.text)
    ranks = re.search(r"(?:--nproc-per-node |num_workers=)(\d+)", words + block.text)
    assert name is not None
    listed = {run["name"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}
    run = server.get(f"/api/v1/runs/{listed[name[1] or name[2]]}")
    assert (run["state"], run["world_size"]) == ("finished", int(ranks[1]) if ranks else 1)
    assert [rank["last_step"] for rank in run["ranks"]] == [run["last_step"]] * run["world_size"]
    assert run["last_step"] >= 5 and "loss" in run["series"]
    assert run["first_overflow"] is None and run["least_headroom"]["state"] in ("value", "saturated")
    assert not any(rank["faults"] or rank["dropped"] for rank in run["ranks"])
    hidden = {name for rank in run["ranks"] for name in rank["not_observed"]}
    assert hidden <= NEVER_CALLED.get(block.page, set())
