"""Every command by name: the module that has its `main` and `parser`, what it needs installed, and what it is for.

No import that takes time: help and completion read this alone.
"""

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
        "run": Command("rangewatch.commands.run", "", "start a training script that nobody edits, and attach to it"),
        "serve": Command("rangewatch_server.http.serve", "server", "start the dashboard server"),
        "demo": Command(
            "rangewatch.commands.demo.launch",
            "agent,server",
            "a server and two ranks that really overflow, in a minute",
        ),
    },
    "Read a run": {
        "report": Command(
            "rangewatch.commands.report", "", "the classic text report of a run's first overflow, or of any step"
        ),
        "diagnose": Command("rangewatch.commands.diagnose", "", "what is wrong with a run, why, and what to try"),
        "whatif": Command(
            "rangewatch.commands.whatif",
            "",
            "which tensors of a run would survive in FP8, MXFP8, MXFP6 or FP4",
        ),
        "diff": Command("rangewatch.commands.diff", "", "the first step and tensor at which two runs part"),
        "logs": Command("rangewatch.commands.logs", "", "the last lines of a rank's stderr, where they were recorded"),
        "export": Command(
            "rangewatch.commands.export", "", "a run as an HTML report, or its values as CSV, Parquet or Arrow"
        ),
    },
    "Change what a live run records": {
        "trace": Command("rangewatch.commands.live.trace", "", "record the next steps of a live run in full"),
        "level": Command("rangewatch.commands.live.level", "", "record more, or less, of a live run"),
    },
    "Check machines": {
        "doctor": Command(
            "rangewatch.commands.doctor", "", "what is wrong with this machine's torch, CUDA, NCCL and network"
        ),
        "linkcheck": Command(
            "rangewatch.commands.linkcheck", "agent", "test every rank and link, and name the bad or slow one"
        ),
    },
    "Keep, move and remove runs": {
        "backup": Command(
            "rangewatch.commands.maintenance.backup", "", "all runs as they are now in one file, while training goes on"
        ),
        "restore": Command("rangewatch.commands.maintenance.restore", "", "add the runs of a backup"),
        "replay": Command(
            "rangewatch.commands.replay", "", "send what ranks could not while the server was away, from their spools"
        ),
        "import": Command(
            "rangewatch.commands.importing.command", "", "scalars of TensorBoard or of a CSV file, as runs"
        ),
        "prune": Command(
            "rangewatch.commands.maintenance.prune", "", "remove detail by age and size, and show what would go"
        ),
        "delete": Command("rangewatch.commands.maintenance.delete", "", "delete a run"),
    },
    "Say who may do what": {
        "token": Command("rangewatch_server.access.token_cli", "server", "make, list and revoke tokens of a server"),
        "audit": Command("rangewatch_server.access.audit_cli", "server", "who changed what on a server, and when"),
    },
    "Set up your shell": {
        "completion": Command(
            "rangewatch.commands.completion", "completion", "complete commands and options with the Tab key"
        ),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
