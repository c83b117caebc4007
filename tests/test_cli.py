"""The command `rangewatch` as it is typed: the same as `python -m rangewatch`, helpful, and short about mistakes."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rangewatch import __main__, __version__
from rangewatch.command_line.pages import installed_parsers
from rangewatch.command_line.parser import CommandParser
from rangewatch.command_line.table import COMMANDS, GROUPS
from tests import forked

SCRIPT = str(Path(sys.executable).with_name("rangewatch"))
UNITS = re.compile(
    r"\b(seconds?|steps?|days|GB|MiB|bytes|columns|rounds|ranks?|records|modules|pages|connections|processes|port|times"
    r"|over the model's|number)\b"
)


@pytest.fixture(params=COMMANDS)
def parser(request: pytest.FixtureRequest) -> CommandParser:
    """Of each command."""
    return installed_parsers()[request.param]


def every(parser: CommandParser) -> list[argparse.Action]:
    """Its arguments and those of its subcommands, but for --help and the choice of a subcommand."""
    own = [each for _, actions in parser.groups() for each in actions]
    shown = [each for each in own if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)]
    return shown + [each for sub in parser.subcommands().values() for each in every(sub)]


def typed(*words: str) -> tuple[int, str, str]:
    ended = forked.server.run(*words)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_command_is_known_wherever_it_is_installed() -> None:
    assert sorted(installed_parsers()) == sorted(COMMANDS)
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))


@pytest.mark.parametrize("name", ["", "help", "--version", "sevre", *COMMANDS])
@pytest.mark.parametrize("rest", ["--help", "--no-such-option=1"])
def test_the_script_and_the_module_are_the_same(name: str, rest: str) -> None:
    words = [name, rest] if name else [rest]
    as_script, as_module = typed(SCRIPT, *words), typed("-m", "rangewatch", *words)
    assert as_script == as_module
    if name in COMMANDS:
        assert as_script[0] == (0 if rest == "--help" else 2)


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "rangewatch"]], ids=["script", "module"])
def test_the_version_of_a_process_of_its_own(start: list[str]) -> None:
    ended = subprocess.run([*start, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"rangewatch {__version__}\n", "")


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
    command = [sys.executable, "-c", script, *modules]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("False\n", "")


def test_the_list_has_every_command_in_its_group() -> None:
    status, said, _ = typed("-m", "rangewatch", "--help")
    assert status == 0
    for title, commands in GROUPS.items():
        block = said.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(commands)
        assert all(command.summary in block for command in commands.values())


def test_help_of_a_command_has_all_parts(parser: CommandParser) -> None:
    said = parser.format_help()
    summary = COMMANDS[parser.prog.split()[1]].summary
    assert f"\n\n{summary[0].upper()}{summary[1:]}.\n\n" in said
    assert said.startswith(f"usage: {parser.prog} ")
    for line, what in parser.examples.items():
        assert line.split()[0] in ("rangewatch", "torchrun")
        assert " ".join(f"{line} {what}".split()) in " ".join(said.split())
    assert parser.examples
    assert {0, 2} <= parser.statuses.keys()
    assert "\nexamples:\n" in said and "\nexit status:\n" in said
    assert ("\nenvironment:\n" in said) == bool(parser.environment)


def test_each_option_says_what_it_is_when_it_is_not_given(parser: CommandParser) -> None:
    for action in every(parser):
        assert action.help, action.dest
        if action.option_strings and action.nargs != 0 and not action.required:
            assert "default" in parser.help_of(action), action.option_strings


def test_each_number_has_a_unit(parser: CommandParser) -> None:
    for action in every(parser):
        is_number = isinstance(action.default, int | float) and not isinstance(action.default, bool)
        if action.nargs != 0 and (is_number or action.type in (int, float)):
            words = f"{parser.help_of(action)} {action.metavar or ''} {action.dest}".lower()
            assert UNITS.search(words) or "GB" in str(action.help) or action.dest == "seed", action.option_strings


def test_each_command_that_asks_a_server_says_which(parser: CommandParser) -> None:
    options = {option for action in every(parser) for option in action.option_strings}
    if "--url" in options:
        assert "RANGEWATCH_TOKEN" in parser.environment
        default = parser.get_default("url")
        assert ("RANGEWATCH_URL" in parser.environment) == (default is not None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sevre"], "rangewatch: there is no command 'sevre'; did you mean serve? (rangewatch --help lists"),
        (["diagnoze"], "did you mean diagnose?"),
        (["--versoin"], "rangewatch: there is no option '--versoin' (rangewatch --help"),
        (["xyzzy"], "rangewatch: there is no command 'xyzzy' (rangewatch --help"),
        (["help", "reprot"], "did you mean report?"),
        (["serve", "--prot", "1"], "rangewatch serve: there is no option '--prot'; did you mean --port? ("),
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
def test_a_mistake_is_told_in_one_line(words: list[str], says: str) -> None:
    status, out, err = typed("-m", "rangewatch", *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_help_of_a_command_by_the_word_help() -> None:
    assert typed("-m", "rangewatch", "help", "prune") == typed("-m", "rangewatch", "prune", "--help")


def test_without_a_command_there_is_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rangewatch"])
    assert __main__.main() == 0
    assert capsys.readouterr().out.startswith("usage: rangewatch COMMAND")
