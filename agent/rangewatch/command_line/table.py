"""Every command by name: the module that has its `main` and `parser`, what it needs installed, and what it is for."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command. `module` has `main(argv) -> exit status` and `parser() -> CommandParser`."""

    module: str
    extras: str
    """What `pip install 'rangewatch[...]'` must be asked for; empty: nothing."""

    summary: str


GROUPS = {
    "Watch a training": {
        "serve": Command("rangewatch_server.serve", "server", "start the dashboard server"),
        "demo": Command(
            "rangewatch.demo.launch", "agent,server", "a server and two ranks that really overflow, in a minute"
        ),
    },
    "Read a run": {
        "report": Command("rangewatch.report", "", "the classic text report of a run's first overflow, or of any step"),
        "diagnose": Command("rangewatch.diagnose", "", "what is wrong with a run, why, and what to try"),
        "export": Command("rangewatch.export", "", "a run as an HTML report, or its values as CSV, Parquet or Arrow"),
    },
    "Change what a live run records": {
        "trace": Command("rangewatch.trace", "", "record the next steps of a live run in full"),
        "level": Command("rangewatch.level", "", "record more, or less, of a live run"),
    },
    "Check machines": {
        "doctor": Command(
            "rangewatch.doctor.command", "", "what is wrong with this machine's torch, CUDA, NCCL and network"
        ),
        "linkcheck": Command(
            "rangewatch.linkcheck.command", "agent", "test every rank and link, and name the bad or slow one"
        ),
    },
    "Keep, move and remove runs": {
        "backup": Command("rangewatch.backup", "", "all runs as they are now in one file, while training goes on"),
        "restore": Command("rangewatch.restore", "", "add the runs of a backup"),
        "replay": Command(
            "rangewatch.replay", "", "send what ranks could not while the server was away, from their spools"
        ),
        "import": Command("rangewatch.importing.command", "", "what TensorBoard, W&B or trackio has recorded, as runs"),
        "prune": Command("rangewatch.prune", "", "remove detail by age and size, and show what would go"),
        "delete": Command("rangewatch.delete", "", "delete a run"),
    },
    "Say who may do what": {
        "token": Command("rangewatch_server.token_cli", "server", "make, list and revoke tokens of a server"),
        "audit": Command("rangewatch_server.audit_cli", "server", "who changed what on a server, and when"),
    },
    "Set up your shell": {
        "completion": Command("rangewatch.completion", "completion", "complete commands and options with the Tab key"),
        "man": Command("rangewatch.command_line.man", "", "this help as a manual page"),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
