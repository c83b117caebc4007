"""Fresh environments: the wheel of this checkout installed as a user installs it, never the checkout itself."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
INSTALL_S = 1_200


class Environment(NamedTuple):
    """A virtual environment."""

    folder: Path

    def program(self, name: str) -> str:
        """One of its programs, such as `python`."""
        return str(self.folder / "bin" / name)

    def variables(self, **added: str) -> dict[str, str]:
        """Of a user who has set nothing: none of ours, none of Python's, and its own programs first."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANGEWATCH_", "PYTHON"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "VIRTUAL_ENV": str(self.folder), "OMP_NUM_THREADS": "1"} | added


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def beside_ours(folder: Path, wheel: Path) -> Environment:
    """Rangewatch from the wheel; all else, torch and the trainers, is seen in the environment that the tests run in.

    Seconds instead of minutes. That environment's own link to the checkout is not seen: a path that a .pth file names
    is not searched for further .pth files.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    _pip(folder, "--no-deps", "--no-index", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(folder)


def separate(folder: Path, wheel: Path, libraries: Sequence[str]) -> Environment:
    """Nothing but what pip installs: the wheel with the server, torch, and a trainer's libraries."""
    venv.create(folder, with_pip=False, symlinks=True)
    torch = f"torch=={version('torch').partition('+')[0]}"  # without `+cpu`, which not every index has
    _pip(folder, torch)
    _pip(folder, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[server]", *libraries)
    return Environment(folder)


def _pip(folder: Path, *arguments: str) -> None:
    """Ours, for that environment: one of its own takes seconds to make."""
    python = str(folder / "bin" / "python")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments)


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
