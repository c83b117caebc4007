"""Commands of the docs' shell blocks, and whether our own programs would take them: by their real parsers."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from rangewatch.core.commands import COMMANDS
from tests.docs.blocks import ROOT, Block

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
TAKEN_AS_THEY_ARE = {
    "#!/bin/bash", "cd", "chmod", "curl", "deepspeed", "docker", "eval", "export", "head=X", "kubectl", "man", "mkdir",
    "openssl", "python", "srun", "torchrun",
}  # fmt: skip
"""What begins a command that is not ours. A word of ours further on in the line is looked at all the same."""


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command: lines after `$ ` in a console, every line of a script."""
    joined = block.text.replace("\\\n", " ")
    for line in joined.splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        yield from _of_line(re.sub(r"\$\([^)]*\)", "X", line))


def _of_line(line: str) -> Iterator[list[str]]:
    """Each command of it, without variables that are set before it and without where its output goes."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    words.whitespace_split = True
    for _, group in itertools.groupby(words, lambda word: word[0] in "|;&"):
        found = list(itertools.takewhile(lambda word: not word.startswith(">"), group))
        while found and ASSIGNMENT.match(found[0]):
            found.pop(0)
        if found and found[0][0] not in "|;&":
            yield found


def check(words: list[str]) -> None:
    """Raises `AssertionError` for a command that would be refused."""
    if words[0] in ("pip", "make"):
        return {"pip": _check_pip, "make": _check_make}[words[0]](words[1:])
    assert words[0] == "rangewatch" or words[0] in TAKEN_AS_THEY_ARE, f"what is {words[0]}?"
    if words[0] == "torchrun":
        _check_torchrun(words[1:])
    if "rangewatch" in words and words[:2] not in (["docker", "build"], ["docker", "run"]):
        _check_ours(words[words.index("rangewatch") + 1 :])
    return None


def _check_ours(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-V", "--version", "COMMAND"):
        return
    assert arguments[0] in COMMANDS, f"rangewatch has no command {arguments[0]}"
    parser = importlib.import_module(COMMANDS[arguments[0]].module).parser()
    try:
        parser.parse_args(arguments[1:])
    except SystemExit as error:
        raise AssertionError(f"rangewatch {' '.join(arguments)} is refused") from error


def _check_torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    try:
        get_args_parser().parse_args(arguments)
    except SystemExit as error:
        raise AssertionError(f"torchrun {' '.join(arguments)} is refused") from error


def _check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = re.findall(r"^(\w+) = \[", _section("project.optional-dependencies"), re.MULTILINE)
    for each in arguments[1:]:
        if not each.startswith("-"):
            asked = Requirement(re.sub(r"^\.", "rangewatch", each))
            assert asked.name != "rangewatch" or asked.extras <= set(extras), f"{each}: there are {extras}"


def _check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):", makefile, re.MULTILINE)
    asked = {each for each in arguments if "=" not in each}
    assert asked <= set(targets), f"make {arguments}: there are {targets}"
    for variable in set(arguments) - asked:
        assert f"$({variable.partition('=')[0]})" in makefile, f"make {variable}: nothing reads it"


def _section(name: str) -> str:
    text = Path(ROOT / "pyproject.toml").read_text()
    return text.split(f"[{name}]", 1)[1].split("\n[", 1)[0]
