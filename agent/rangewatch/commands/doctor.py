"""`rangewatch doctor`: what is wrong with this machine's environment, why it matters, what to type. Needs no torch."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

import msgspec

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import Details, Finding, Severity
from rangewatch.client.connection import ServerError, default_url
from rangewatch.client.server_api import find_run, get, write_line
from rangewatch.core.command_parser import INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser


class RankFinding(TypedDict):
    """A finding as the server tells it: of one rank, or of what ranks have differently."""

    code: str
    severity: Severity
    what: str
    why: str
    do: str
    where: str


class Environment(TypedDict):
    """What is read of GET /api/v1/runs/{id}/environment (docs/doctor.md)."""

    findings: list[RankFinding]
    ranks: list[dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """Print details and findings; 0: no finding above info, 1: a warning or an error, 2: no answer."""
    options = parser().parse_args(argv)
    try:
        return _of_run(options) if options.run else _of_this_machine(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch doctor: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "doctor",
        "Check this machine's torch, CUDA, compilers, NCCL and network for problems, and say what to type. "
        "With --run: the problems of every rank of a run, and where ranks differ.",
        examples={
            "rangewatch doctor": "this machine",
            "rangewatch doctor --run my-run": "every rank of a run, and where they differ",
        },
        statuses={
            0: "no finding above info", 1: "a warning or an error was found", 2: "wrong arguments, or no server",
        }
        | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )  # fmt: skip
    add = made.add_argument
    add("--json", action="store_true", help="print details and findings as JSON")
    add("--quick", action="store_true", help="run no program and do not import torch: the checks of a rank in training")
    add("--run", help="name or number of a run, of a running server (default: this machine)")
    add("--url", default=default_url(), help="server of --run (default: %(default)s)")
    return made


def _of_this_machine(options: argparse.Namespace) -> int:
    if not (options.quick or options.json):
        write_line(sys.stderr, "checking: importing torch in a child process takes some seconds ...")
    details = environment(deep=not options.quick)
    findings = checks.findings(details)
    if options.json:
        _print_json({"facts": details, "findings": [asdict(each) for each in findings]})
    else:
        _print([*summary(details), *_reported(findings)])
    return _status(each.severity for each in findings)


def _of_run(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    answer = get(options.url, f"/api/v1/runs/{run['id']}/environment", Environment)
    if options.json:
        _print_json(answer)
    else:
        findings = [msgspec.convert(each, Finding) for each in answer["findings"]]
        _print([f"Run {run['name']}, {len(answer['ranks'])} ranks", *_reported(findings)])
    return _status(each["severity"] for each in answer["findings"])


def _reported(findings: list[Finding]) -> list[str]:
    if not findings:
        return ["", "No problem found."]
    lines = [""]
    for finding in findings:
        lines += _wrapped(f"{finding.severity.upper()}: {finding.what}", "  ")
        lines += [*_wrapped(f"  why: {finding.why}", " " * 7), f"  do:  {finding.do}", ""]
    counts = [f"{count} {name}{'s' * (count > 1)}" for name, count in _counts(findings).items()]
    return [*lines, ", ".join(counts)]


def _wrapped(line: str, indent: str) -> list[str]:
    """The line in pieces as wide as the terminal; in one where it goes to a file."""
    if not sys.stdout.isatty():
        return [line]
    return textwrap.wrap(line, max(60, shutil.get_terminal_size().columns), subsequent_indent=indent)


def _counts(findings: list[Finding]) -> dict[str, int]:
    severities = [finding.severity for finding in findings]
    return {severity: severities.count(severity) for severity in dict.fromkeys(severities)}


def _status(severities: Iterable[str]) -> int:
    return int(any(severity in ("error", "warning") for severity in severities))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(sys.stdout, line)


def _print_json(value: object) -> None:
    write_line(sys.stdout, json.dumps(value).replace("\x7f", "\\u007f"))


_WIDTH = 18
_MOST = 12  # of a list that may be long


def summary(details: Details) -> list[str]:
    """One line a fact, name first; what is not known is left out."""
    return [
        f"{name:<{_WIDTH}} {value}"
        for part in (_torch, _gpus, _building, _surroundings)
        for name, value in part(details)
    ]


def _torch(details: Details) -> Iterator[tuple[str, str]]:
    torch, python = details["torch"], details["python"]
    yield "Python", f"{python['version']} ({python['path']})"
    if not torch["version"]:
        yield (
            "torch",
            "cannot be imported" if torch["installed"] else "not installed" if details["deep"] else "not loaded",
        )
        return
    yield (
        "torch",
        f"{torch['version']}, CUDA {torch['cuda'] or 'not built in'}"
        + (f" ({torch['path']})" if torch["path"] else ""),
    )
    libraries = [f"{name} {torch[key]}" for key, name in (("nccl", "NCCL"), ("cudnn", "cuDNN")) if torch[key]]
    if libraries:
        yield "its libraries", ", ".join(libraries)
    if torch["arch_list"]:
        yield "built for", " ".join(torch["arch_list"])


def _gpus(details: Details) -> Iterator[tuple[str, str]]:
    gpu = details["gpu"]
    runs = f", runs CUDA {gpu['driver_cuda']} and older" if gpu["driver_cuda"] else ""
    yield "NVIDIA driver", f"{gpu['driver']}{runs}" if gpu["driver"] else "none"
    cards = details["torch"]["devices"] or gpu["cards"]
    kinds = dict.fromkeys((card["name"], card.get("capability")) for card in cards)
    for name, capability in kinds:
        count = sum(1 for card in cards if card["name"] == name)
        yield "GPU", f"{count} x {name}" + (f", sm_{capability.replace('.', '')}" if capability else "")


def _building(details: Details) -> Iterator[tuple[str, str]]:
    for toolkit in details["toolkits"][:_MOST]:
        yield (
            "CUDA toolkit",
            f"{toolkit['version'] or 'version unknown'} in {toolkit['path']} (by {', '.join(toolkit['found_by'])})",
        )
    if not details["toolkits"]:
        yield "CUDA toolkit", "none"
    if nvcc := details["nvcc"]:
        yield "nvcc on PATH", f"{nvcc['version'] or 'version unknown'} ({nvcc['path']})"
    if home := details["build_home"]:
        yield "torch builds with", f"{home['version'] or 'version unknown'} in {home['path']} (by {home['found_by']})"
    for use, name in (("cxx", "C++ compiler"), ("nvcc_host", "nvcc's compiler")):
        if compiler := details["compilers"].get(use):
            yield name, f"{compiler['kind']} {compiler['major'] or 'of unknown version'} ({compiler['path']})"
    if details["deepspeed"]["version"]:
        yield "DeepSpeed", details["deepspeed"]["version"] + _operators(details)


def _operators(details: Details) -> str:
    ops = details["deepspeed"]["ops"]
    built = [name for name, op in ops.items() if op["installed"]]
    when_used = [name for name, op in ops.items() if op["compatible"] and not op["installed"]]
    never = [name for name, op in ops.items() if not op["compatible"] and not op["installed"]]
    parts = (("built", built), ("built when used", when_used), ("cannot be built here", never))
    return "".join(f"; {name}: {', '.join(of_them)}" for name, of_them in parts if of_them)


def _surroundings(details: Details) -> Iterator[tuple[str, str]]:
    for port in details["infiniband"]["ports"][:_MOST]:
        yield (
            "InfiniBand",
            f"{port['device']} port {port['port']}: {port['state']}, {port['rate']}, {port['link_layer']}",
        )
    if not details["infiniband"]["ports"]:
        yield "InfiniBand", "none"
    yield (
        "interfaces",
        ", ".join(f"{name} {state}" for name, state in list(details["interfaces"].items())[:_MOST]) or "none",
    )
    host = details["host"]
    if "shm_bytes" in host:
        yield "shared memory", f"{host['shm_free_bytes'] >> 20} MiB free of {host['shm_bytes'] >> 20} MiB"
    yield "processors", str(host["cpus"])
    for name, value in details["variables"].items():
        if name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "CUDA_", "OMP_", "GLOO_")):
            yield name, value
    for path, settings in details["nccl_files"].items():
        for name, value in settings.items():
            yield name, f"{value} ({path})"
