"""torchtitan's recipe trains, with a CPU in the place of its GPU."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rangewatch.commands.demo.children import free_port
from tests.docs import blocks
from tests.server.process import Server

RECIPE = next(block for block in blocks.of("python") if block.page == "docs/recipes/torchtitan.md" and block.title)
ON_CPU = Path(__file__).with_name("torchtitan_on_cpu.py")
STEPS = 6


def assets(folder: Path) -> None:
    """A tokenizer of letters and rows of them, where torchtitan's debug model expects its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: index for index, word in enumerate(["<unk>", "<s>", "</s>", *"abcdefghij"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tests/assets/tokenizer").mkdir(parents=True)
    tokenizer.save(str(folder / "tests/assets/tokenizer/tokenizer.json"))
    special = '{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}'
    (folder / "tests/assets/tokenizer/tokenizer_config.json").write_text(special)
    pick = random.Random(0)
    rows = "".join(f'{{"text": "{" ".join(pick.choices("abcdefghij", k=100))}"}}\n' for _ in range(50))
    (folder / "tests/assets/c4_test").mkdir()
    (folder / "tests/assets/c4_test/data.json").write_text(rows)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recipe_trains_and_each_step_is_one(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    assets(tmp_path)
    (tmp_path / RECIPE.title).write_text(RECIPE.text)
    environment = {
        **os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "RANGEWATCH_URL": server.url,
        "RANGEWATCH_SPOOL_DIR": str(tmp_path), "PYTHONPATH": str(ON_CPU.parent), "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    chosen = ["--module", ON_CPU.stem, "--config", "debug_model", "--training.steps", str(STEPS)]
    done = subprocess.run(
        [sys.executable, str(ON_CPU), RECIPE.title, *chosen],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "which attach was not given" not in done.stderr
    listed = {run["name"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}
    run = server.get(f"/api/v1/runs/{listed['titan']}")
    assert (run["state"], run["last_step"]) == ("finished", STEPS - 1)
    (rank,) = run["ranks"]
    assert not rank["faults"] and not rank["dropped"] and not rank["not_observed"]
    assert {"loss", "lr", "clipped_norm"} <= set(run["series"])
    logged = [float(each) for each in re.findall(r"loss: +\S*?(\d+\.\d+)", done.stderr + done.stdout)]
    assert len(logged) == STEPS, "torchtitan's own log"
