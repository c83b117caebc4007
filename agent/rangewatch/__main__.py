"""The command `rangewatch`: finds a command's module by name, so that none is imported that is not needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from rangewatch import __version__

# name -> (module with main(argv) -> exit status, extras that it needs ("": none), help)
COMMANDS = {
    "serve": ("rangewatch_server.serve", "server", "start the dashboard server"),
    "report": ("rangewatch.report", "", "the classic text report of a run's first overflow, or of any step"),
    "trace": ("rangewatch.trace", "", "record the next steps of a live run in full"),
    "level": ("rangewatch.level", "", "record more, or less, of a live run"),
    "doctor": ("rangewatch.doctor.command", "", "what is wrong with this machine's torch, CUDA, NCCL and network"),
    "linkcheck": ("rangewatch.linkcheck.command", "agent", "tests every rank and link, and names the bad or slow one"),
    "backup": ("rangewatch.backup", "", "all runs as they are now in one file, while training goes on"),
    "restore": ("rangewatch.restore", "", "add the runs of a backup"),
    "prune": ("rangewatch.prune", "", "remove detail by age and size, and show what would go"),
    "delete": ("rangewatch.delete", "", "delete a run"),
    "demo": ("rangewatch.demo.launch", "agent,server", "a server and two ranks that really overflow, in a minute"),
}


def main() -> int:
    """Run the command named by the first argument; its exit status."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"rangewatch {__version__}\n")
        return 0
    if arguments[0] not in COMMANDS:
        sys.stderr.write(f"rangewatch: no command {arguments[0]!r}\n\n{_usage()}")
        return 2
    return _run(arguments[0], arguments[1:])


def _run(name: str, arguments: list[str]) -> int:
    module, extras, _ = COMMANDS[name]
    try:
        command: Callable[[list[str]], int] = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rangewatch"):
            raise
        needed = f"'rangewatch[{extras}]'" if extras else "rangewatch"
        sys.stderr.write(f"rangewatch {name}: {error.name} is not installed; pip install {needed}\n")
        return 2
    return command(arguments)


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, (_, _, text) in COMMANDS.items()]
    return "usage: rangewatch COMMAND [options]\n\n" + "\n".join(lines) + "\n\nrangewatch COMMAND --help tells more.\n"


if __name__ == "__main__":
    sys.exit(main())
