"""What a GPU machine without a package index lacks: wheels in `gpu-wheels/`, collected beforehand, used where they lie.

    python3 bench/gpu/wheels.py        # `make gpu-wheels`, where there is a network

The machine's own python3 brings torch and numpy, which are never among them. Versions are those of constraints.txt.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "gpu-wheels"
PYTHON = (3, 12)
LIMIT_BYTES = 60 << 20
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)] + ["manylinux2014_x86_64"]

OWN = ("torch", "numpy")
"""Modules that only the machine itself can bring."""

AGENT = ("msgspec", "zstandard", "urllib3", "nvidia-ml-py")
SERVER = (
    "fastapi", "starlette", "pydantic", "pydantic_core", "annotated-types", "annotated-doc", "typing_extensions",
    "typing-inspection", "anyio", "idna", "uvicorn", "click", "h11", "platformdirs", "prometheus_client", "SQLAlchemy",
    "greenlet", "alembic", "Mako", "MarkupSafe", "psycopg", "psycopg-binary",
    "opentelemetry-api",
)  # fmt: skip
TESTS = (
    "pytest", "pytest-timeout", "iniconfig", "pluggy", "packaging", "Pygments", "hypothesis", "sortedcontainers",
    "httpx", "httpcore", "certifi", "attrs",
)  # fmt: skip

MODULES = {
    "msgspec": "msgspec", "zstandard": "zstandard", "urllib3": "urllib3", "pynvml": "nvidia-ml-py",
    "fastapi": "fastapi", "opentelemetry": "opentelemetry-api", "uvicorn": "uvicorn", "sqlalchemy": "SQLAlchemy",
    "alembic": "alembic", "prometheus_client": "prometheus_client", "platformdirs": "platformdirs",
    "psycopg": "psycopg",
    "pytest": "pytest", "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis", "httpx": "httpx",
}  # fmt: skip
"""What the parts import, and the distribution that has it."""


def collect() -> int:
    """Download the wheels of `PYTHON` on x86-64 Linux into an empty `FOLDER`."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    platforms = [f"--platform={each}" for each in PLATFORMS]
    version = ".".join(map(str, PYTHON))
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=cp",
    ]
    command += [f"--python-version={version}", *platforms, f"--dest={FOLDER}", *pinned()]
    done = subprocess.run(command, check=False)
    if done.returncode:
        return done.returncode
    nbytes = sum(each.stat().st_size for each in FOLDER.glob("*.whl"))
    print(f"{len(list(FOLDER.glob('*.whl')))} wheels, {nbytes / (1 << 20):.1f} MiB, for Python {version} in {FOLDER}")
    return int(nbytes > LIMIT_BYTES)


def pinned() -> list[str]:
    """`name==version` of each, by constraints.txt. Raises KeyError where it has no such line."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = {normal(name): line for line in lines if (name := line.partition("==")[0]) and "==" in line}
    return [versions[normal(name)] for name in (*AGENT, *SERVER, *TESTS)]


def normal(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unpack(target: Path) -> str:
    """Put the wheels into `target`, where this Python can use them; what came of it, in a few words."""
    wheels = sorted(FOLDER.glob("*.whl"))
    if not wheels:
        return "no wheels: the machine's own packages"
    if sys.version_info[:2] != PYTHON or platform.machine() != "x86_64" or sys.platform != "linux":
        return f"wheels are for Python {PYTHON[0]}.{PYTHON[1]} on x86-64 Linux, and not used"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:  # these have no scripts and no data that would lie elsewhere
            file.extractall(target)
    return f"{len(wheels)} wheels"


def missing() -> list[str]:
    """What to install, of what this process cannot import."""
    own = [name for name in OWN if importlib.util.find_spec(name) is None]
    return own + [name for module, name in MODULES.items() if importlib.util.find_spec(module) is None]


if __name__ == "__main__":
    sys.exit(collect())
