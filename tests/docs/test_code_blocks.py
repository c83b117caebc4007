"""Every code block of docs/ and README.md does what it says: Python runs, commands are taken by their parsers, files
are read by who would read them. Blocks that cannot run here are compiled, and their imports found.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rangewatch_server.alerts import config
from tests import forked
from tests.docs import blocks, shell
from tests.docs.blocks import Block
from tests.server.certificates import made
from tests.server.process import Server

RUN_BLOCKS = Path(__file__).with_name("run_blocks.py")
RUN_HERE = [block for block in blocks.of("python") if not block.no_run and not block.is_file]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PATIENCE_S = 280  # four trainers' libraries are imported
KNOWN = {
    "", "text", "caddyfile", "python", "console", "sh", "bash", "json", "yaml", "toml", "nginx", "dockerfile",
}  # fmt: skip


def by_place(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_python_runs(server: Server, tmp_path: Path) -> None:
    """Each Python block, in the order of the pages."""
    environment = {
        **os.environ, "RANGEWATCH_URL": server.url, "RANGEWATCH_SPOOL_DIR": str(tmp_path), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    reported = "".join(json.dumps([block.place, block.page, block.section, block.text]) + "\n" for block in RUN_HERE)
    done = forked.rank.run(RUN_BLOCKS, cwd=tmp_path, env=environment, typed=reported, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    problems = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert problems.keys() == {block.place for block in RUN_HERE}
    assert not any(problems.values()), "\n".join(f"{place}: {text}" for place, text in problems.items() if text)


@by_place(blocks.of("python"))
def test_python_compiles_and_its_imports_are_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rangewatch."):
            assert {each.name for each in node.names} <= names_of(node.module), ast.unparse(node)


def names_of(module: str) -> set[str]:
    """What a module of ours has at its top, without importing the trainers that it imports."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    found: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name for each in node.names}
    return found


@by_place(blocks.of("console", "sh", "bash"))
def test_commands_are_taken(block: Block) -> None:
    found = list(shell.commands(block))
    assert found, "a console block without a command ($ ...)"
    for words in found:
        shell.check(words)


@by_place(blocks.of("sh", "bash"))
def test_scripts_are_sound(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@by_place(blocks.of("json"))
def test_json_is_json(block: Block) -> None:
    """One value, or one a line."""
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@by_place(blocks.of("toml"))
def test_toml_is_a_file_of_alerts(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alerts.toml").write_text(block.text)
    monkeypatch.setenv("RANGEWATCH_SMTP_PASSWORD", "secret")
    assert config.read(str(tmp_path / "alerts.toml"))


@by_place(blocks.of("nginx"))
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_takes_it(block: Block, tmp_path: Path) -> None:
    pair = made(tmp_path, "chain")
    text = re.sub(r"listen \d+", "listen unix:listening.sock", block.text)
    text = text.replace("chain.pem", pair.cert).replace("key.pem", pair.key)
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}}}\n"
    (tmp_path / "nginx.conf").write_text(whole.replace("unix:listening", f"unix:{tmp_path}/listening"))
    done = subprocess.run(
        [str(NGINX), "-t", "-p", str(tmp_path), "-c", "nginx.conf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_language_is_known() -> None:
    """One that nobody checks would look as if somebody did."""
    assert {block.language for block in blocks.ALL} <= KNOWN
    said = [block for block in blocks.of("python") if block.no_run]
    assert all(len(block.no_run) > 10 for block in said), "no-run needs a reason"
