"""Pickle (CVE-2024-24590, -37052), filters that are evaluated (CVE-2024-2195, CVE-2025-5321), tar (CVE-2024-6396)."""

from __future__ import annotations

import ast
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rangewatch_server.routes import ingest, runs
from tests.security.conftest import Inside
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

ROOT = Path(__file__).parents[2]
KNOWN = catalogue(2)
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "tarfile", "zipfile"}
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "unpack_archive", "extractall"}


class Creates:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_bytes_that_are_no_message(
    inside: Callable[..., Inside], weakened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if weakened:
        monkeypatch.setattr(ingest, "decode", pickle.loads)
    inside().post(pickle.dumps(Creates(tmp_path / "made")))
    assert (tmp_path / "made").exists() == weakened


def test_a_filter_is_text(own_run: Run, weakened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakened:
        monkeypatch.setattr(runs, "chosen", lambda tensors, kinds, q: np.array([eval(q)] if q else []))
    for message in (opening(KNOWN), batch(KNOWN, 0, range(4))):
        assert own_run.post(message).status_code == 202
    code = f"__import__('os').mkdir({str(tmp_path / 'made')!r}) or 0"
    own_run.ask("/tensors", params={"q": code})
    assert (tmp_path / "made").exists() == weakened


def test_an_archive_is_no_backup(
    inside: Callable[..., Inside], weakened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rangewatch_server.routes import maintenance

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        member = tarfile.TarInfo("../escaped")
        file.addfile(member, io.BytesIO())

    def extract(path: Path) -> Any:
        (path.parent / "inner").mkdir()
        with tarfile.open(path) as opened:
            opened.extractall(path.parent / "inner", filter="fully_trusted")
        raise OSError("that was all")

    if weakened:
        monkeypatch.setattr(maintenance, "open_backup", extract)
        monkeypatch.setattr(maintenance, "_folder", lambda url: _Kept(tmp_path / "kept"))
    server = inside()
    lines = server.client.put("/api/v1/restore", content=archive.getvalue()).text
    assert ("bad_backup" in lines) != weakened
    assert bool(list(tmp_path.rglob("escaped"))) == weakened


class _Kept:
    """A folder that stays, to be looked at."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.name = str(path)

    def cleanup(self) -> None:
        pass

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        pass


def dangers(source: str) -> list[str]:
    """What runs code that it is given, or writes files by names that it is given."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.partition(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            is_method = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("re", "torch")
            found += [name] if name in CALLS and not is_method else []
            found += [word.arg for word in node.keywords if word.arg in ("allow_pickle", "shell") and _is_true(word)]
    return found


def _is_true(word: ast.keyword) -> bool:
    return not (isinstance(word.value, ast.Constant) and not word.value.value)


def test_the_server_and_the_wire_hold_none_of_these() -> None:
    files = [*(ROOT / "server").rglob("*.py"), *(ROOT / "agent/rangewatch/wire").rglob("*.py")]
    assert len(files) > 80
    found = {str(file.relative_to(ROOT)): dangers(file.read_text()) for file in files}
    assert {file: each for file, each in found.items() if each} == {}


def test_each_of_these_would_be_found() -> None:
    for source in (
        "import pickle", "from pickle import loads", "import numpy as np\nnp.load(f, allow_pickle=True)", "eval(q)",
        "os.system(q)", "import tarfile", "subprocess.run(q, shell=True)", "shutil.unpack_archive(f)", "import dill.x",
    ):  # fmt: skip
        assert dangers(source), source
