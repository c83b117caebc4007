"""The command `rangewatch` as it is typed: the same as `python -m rangewatch`, helpful, and short about mistakes."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rangewatch import __main__, __version__
from rangewatch.core.command_parser import CommandParser, installed_parsers
from rangewatch.core.commands import COMMANDS, GROUPS
from tests import forked

SCRIPT = str(Path(sys.executable).with_name("rangewatch"))
UNITS = re.compile(
    r"\b(seconds?|steps?|days|GB|MiB|bytes|columns|rounds|ranks?|records|modules|pages|connections|processes|port|times"
    r"|over the model's|number|percent|db)\b"
)
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def parsers() -> dict[str, CommandParser]:
    """Of each command."""
    return installed_parsers()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types words, in this process: the exit status, and what was said."""

    def type_words(*words: str, name: str = SCRIPT) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [name, *words])
        try:
            status = __main__.main()
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return type_words


def every(parser: CommandParser) -> list[argparse.Action]:
    """Its arguments and those of its subcommands, but for --help and the choice of a subcommand."""
    own = [each for _, actions in parser.groups() for each in actions]
    shown = [each for each in own if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)]
    return shown + [each for sub in parser.subcommands().values() for each in every(sub)]


def test_a_command_is_known_wherever_it_is_installed(parsers: dict[str, CommandParser]) -> None:
    assert sorted(parsers) == sorted(COMMANDS)
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))


def test_the_script_and_the_module_are_the_same(typed: Typed) -> None:
    """Whatever is typed says the same by whichever name it was started."""
    for name in ("", "help", "--version", "sevre", *COMMANDS):
        for rest in ("--help", "--no-such-option=1"):
            words = [name, rest] if name else [rest]
            said = typed(*words)
            assert said == typed(*words, name=__main__.__file__), words
            if name in COMMANDS:
                assert said[0] == (0 if rest == "--help" else 2), words


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "rangewatch"]], ids=["script", "module"])
def test_a_process_of_its_own(start: list[str]) -> None:
    for words, status, out, err in (
        (["--version"], 0, f"rangewatch {__version__}\n", ""),
        (["sevre"], 2, "", __main__._unknown("sevre")),
    ):
        ended = subprocess.run([*start, *words], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (status, out, err)


def test_help_loads_nothing_that_is_slow() -> None:
    script = "import sys; from rangewatch.__main__ import main; sys.argv[1:] = ['--help']; main(); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    loaded = {name.partition(".")[0] for name in ended.stdout.splitlines()[-1].split()}
    assert loaded & {"rangewatch", "difflib"} == {"rangewatch", "difflib"}
    assert not loaded & {"torch", "numpy", "argparse", "urllib3", "msgspec", "rangewatch_server", "asyncio"}


def test_no_command_loads_torch_for_its_help_but_what_needs_it_anyway() -> None:
    modules = [each.module for each in COMMANDS.values() if each.extras != "agent"]
    script = "import importlib, sys; [importlib.import_module(each).parser() for each in sys.argv[1:]]"
    script += "; print('torch' in sys.modules)"
    ended = forked.server.run("-c", script, *modules)  # of a process that has a server's modules, and no torch
    assert (ended.stdout, ended.stderr) == ("False\n", "")


def test_the_list_has_every_command_in_its_group(typed: Typed) -> None:
    status, said, _ = typed("--help")
    assert status == 0
    for title, commands in GROUPS.items():
        block = said.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(commands)
        assert all(command.summary in block for command in commands.values())
    assert typed() == (0, said, ""), "without a command there is the list"


def test_help_of_a_command_has_all_parts(parsers: dict[str, CommandParser]) -> None:
    for name, parser in parsers.items():
        said, summary = parser.format_help(), COMMANDS[name].summary
        assert f"\n\n{summary[0].upper()}{summary[1:]}.\n\n" in said, name
        assert said.startswith(f"usage: rangewatch {name} ")
        for line, what in parser.examples.items():
            assert line.split()[0] in ("rangewatch", "torchrun"), name
            assert " ".join(f"{line} {what}".split()) in " ".join(said.split()), name
        assert parser.examples, name
        assert {0, 2} <= parser.statuses.keys(), name
        assert "\nexamples:\n" in said and "\nexit status:\n" in said, name
        assert ("\nenvironment:\n" in said) == bool(parser.environment), name


def test_each_option_says_what_it_is_when_it_is_not_given(parsers: dict[str, CommandParser]) -> None:
    for name, parser in parsers.items():
        for action in every(parser):
            assert action.help, (name, action.dest)
            if action.option_strings and action.nargs != 0 and not action.required:
                assert "default" in parser.help_of(action), (name, action.option_strings)


def test_each_number_has_a_unit(parsers: dict[str, CommandParser]) -> None:
    for name, parser in parsers.items():
        for action in every(parser):
            is_number = isinstance(action.default, int | float) and not isinstance(action.default, bool)
            if action.nargs != 0 and (is_number or action.type in (int, float)):
                words = f"{parser.help_of(action)} {action.metavar or ''} {action.dest}".lower()
                has_unit = UNITS.search(words) or "GB" in str(action.help) or action.dest == "seed"
                assert has_unit, (name, action.option_strings)


def test_each_command_that_asks_a_server_says_which(parsers: dict[str, CommandParser]) -> None:
    for name, parser in parsers.items():
        if "--url" in {option for action in every(parser) for option in action.option_strings}:
            assert "RANGEWATCH_TOKEN" in parser.environment, name
            assert ("RANGEWATCH_URL" in parser.environment) == (parser.get_default("url") is not None), name


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sevre"], "rangewatch: there is no command 'sevre'; did you mean serve? (rangewatch --help lists"),
        (["diagnoze"], "did you mean diagnose?"),
        (["--versoin"], "rangewatch: there is no option '--versoin' (rangewatch --help"),
        (["xyzzy"], "rangewatch: there is no command 'xyzzy' (rangewatch --help"),
        (["help", "reprot"], "did you mean report?"),
        (["serve", "--prot", "1"], "rangewatch serve: there is no option '--prot'; did you mean --port? ("),
        (["diagnose", "a", "--server", "http://a"], "there is no option '--server'; did you mean --url? ("),
        (["report", "a", "--endpoint=http://a"], "there is no option '--endpoint=http://a'; did you mean --url? ("),
        (["report"], "rangewatch report: the following arguments are required: run ("),
        (["report", "a", "b"], "rangewatch report: 'b' is one argument too many ("),
        (["report", "a", "--step", "x"], "rangewatch report: argument --step: invalid int value: 'x' ("),
        (["export", "a", "b", "--format", "pdf"], "rangewatch export: argument --format: invalid choice: 'pdf' ("),
        (["token", "crate"], "rangewatch token: argument create|list|revoke: invalid choice: 'crate' ("),
        (["token", "list", "--dd", "x"], "there is no option '--dd'"),
        (["completion", "cmd"], "rangewatch completion: argument shell: invalid choice: 'cmd' ("),
        (["linkcheck", "--nproc", "0"], "rangewatch linkcheck: argument --nproc: '0' is not a whole number from 1"),
        (["demo", "--url", "http://a", "--port", "1"], "rangewatch demo: --url names a running server; "),
        (["replay", "--wait", "-1"], "rangewatch replay: "),
        (["level", "a"], "rangewatch level: the following arguments are required: "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(typed: Typed, words: list[str], says: str) -> None:
    status, out, err = typed(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_help_of_a_command_by_the_word_help(typed: Typed) -> None:
    assert typed("help", "prune") == typed("prune", "--help")
