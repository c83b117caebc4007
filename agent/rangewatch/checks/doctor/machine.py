"""The machine that is looked at: its variables, its files and its programs. Tests plant one as a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE_BYTES = 64 << 10  # of a file that is read: what we look for stands near its beginning
FOLDERS = 200  # of one variable: each is looked into, which takes a while on a network disk
OUTPUT_CHARACTERS = 64 << 10  # of a program's output


@dataclass(frozen=True)
class Machine:
    """Paths are absolute and as the machine itself would write them; `root` is where its `/` is."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    python: str = sys.executable

    def at(self, path: str) -> Path:
        """Where a path of the machine's really is."""
        return self.root / path.lstrip("/")

    def resolved(self, path: str) -> str:
        """The path with its links followed, as the machine would write it."""
        real = os.path.realpath(self.at(path))
        root = os.path.realpath(self.root).rstrip("/")
        return real.removeprefix(root) or "/"

    def text(self, path: str) -> str:
        """The first 64 KiB of a file; empty where it cannot be read. A pipe is not opened: it may never answer."""
        file = self.at(path)
        with contextlib.suppress(OSError, ValueError):
            if file.is_file():
                with file.open("rb") as opened:
                    return opened.read(FILE_BYTES).decode(errors="replace")
        return ""

    def names(self, folder: str, pattern: str = "*") -> list[str]:
        """Names in a folder, sorted; none where it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return sorted(path.name for path in self.at(folder).glob(pattern))
        return []

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder; one that may not be looked into counts as there."""
        try:
            return self.at(path).is_dir()
        except (OSError, ValueError):
            return True

    def exists(self, path: str) -> bool:
        """Whether there is anything at `path`."""
        with contextlib.suppress(OSError, ValueError):
            return self.at(path).exists()
        return False

    def which(self, program: str) -> str | None:
        """Where a program is that the shell would run by this name."""
        if "/" in program:
            return program if self._is_program(program) else None
        return next((path for each in self.entries("PATH") if self._is_program(path := f"{each}/{program}")), None)

    def entries(self, variable: str) -> list[str]:
        """The folders of a variable such as PATH, each once, without the relative ones; at most 200."""
        folders = self.environ.get(variable, "").split(":")
        return list(dict.fromkeys(each.rstrip("/") or "/" for each in folders if each.startswith("/")))[:FOLDERS]

    def run(self, command: Sequence[str], timeout_s: float) -> str:
        """What a program prints, stderr after stdout; empty where it cannot run or takes too long. Not in training."""
        program, *arguments = command
        real = program if program == self.python else str(self.at(program))
        with contextlib.suppress(OSError, ValueError):
            process = subprocess.Popen(  # noqa: S603  # no shell, and a program that we found
                [real, *arguments],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            return _output(process, timeout_s)
        return ""

    def _is_program(self, path: str) -> bool:
        with contextlib.suppress(OSError, ValueError):
            real = self.at(path)
            return real.is_file() and os.access(real, os.X_OK)
        return False


def _output(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:  # Ctrl-C too: it does not reach another session
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # a compiler's driver has children that hold the pipe open
            if isinstance(error, subprocess.TimeoutExpired):
                return ""
            raise
    return (out[:OUTPUT_CHARACTERS] + b"\n" + err[:OUTPUT_CHARACTERS]).decode(errors="replace").strip()
