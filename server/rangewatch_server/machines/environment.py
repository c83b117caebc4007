"""What the ranks said of their environments, which of them are odd, and the last linkcheck.

Which rank has another environment than the others: by key, against the majority.

The details are what agents ship in events of kind "environment" (made by agent/rangewatch/checks/doctor/details.py).
They come over the wire, so nothing of their shape is taken for granted.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rangewatch.wire.events import Environment
from rangewatch_server.core.text import ranks_text
from rangewatch_server.query.reader import RunReader

Details = Mapping[str, Any]

MOST = 100  # differences that are reported
VALUE_CHARACTERS = 120  # of a value in a sentence
NOT_SET = "not set"

_SEVERITIES = ("error", "warning", "info")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OF_EACH_RANK = re.compile(
    r"(RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|TORCHELASTIC_\w+)$"
)
_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")


@dataclass(frozen=True)
class Difference:
    """Ranks that have one key otherwise than the majority; all that differ where there is none."""

    code: str
    """`odd_rank`, or `ranks_differ` where no value has more than half of the ranks."""
    severity: str
    """As of the agent's findings: error, warning, info."""
    what: str
    why: str
    do: str
    where: str
    """The key, such as `torch.nccl` or `NCCL_BUFFSIZE`."""
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Key:
    severity: str
    why: str
    do: str
    """How to make it equal; `{value}` is the majority's."""


_LIBRARY = "Ranks with different versions compute differently, and collectives between them may hang or crash."
_KEYS = {
    "torch.version": _Key("error", _LIBRARY, "pip install torch=={value}"),
    "torch.git": _Key("warning", "Two builds of one version of torch may compute differently.", "install one torch"),
    "torch.cuda": _Key("error", _LIBRARY, "install torch for CUDA {value}"),
    "torch.nccl": _Key(
        "error", "NCCL of different versions may hang or fail when it connects.", "install NCCL {value}"
    ),
    "torch.cudnn": _Key(
        "warning", "Kernels differ, and so do speed and the last bits of results.", "install one cuDNN"
    ),
    "python.version": _Key("info", "Packages may differ with it.", "use Python {value}"),
    "gpu.driver": _Key(
        "warning", "Speed and features differ by driver, and so do its faults.", "install driver {value}"
    ),
    "gpu.names": _Key("warning", "Every step takes as long as on the slowest card.", "leave that machine out"),
    "build_home.version": _Key("warning", "Extensions are built differently.", "install the CUDA toolkit {value}"),
    "platform.release": _Key("info", "Drivers and networks differ with the kernel.", "update the machine's kernel"),
    "infiniband": _Key(
        "warning", "The slowest network of a ring sets the pace of all.", "ibstat; mend the port or cable"
    ),
    "host.cpus": _Key("info", "Data loading has another pace there.", "give all machines the same processors"),
    "host.memlock_bytes": _Key("info", "InfiniBand may fail on that machine alone.", "ulimit -l unlimited"),
}
_PACKAGE = _Key("warning", "Ranks run different code.", "pip install {name}=={value}")
_SETTING = _Key(
    "warning", "Ranks that are set otherwise choose other algorithms or ways: hangs, or all wait for them.", ""
)
_OTHER = _Key("info", "It is set otherwise than on the other ranks.", "")


def odd_ranks(details_by_rank: Mapping[int, Details]) -> list[Difference]:
    """Each rank out against the majority, the worst first; at most 100.

    What differs between ranks by its nature is no difference: their numbers, devices given out one by one, paths with
    the rank or the host in them. A section that a rank did not send is not compared for that rank.
    """
    values: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, details in details_by_rank.items():
        for key, value in _flat(details):
            values[key][rank] = value
    for key, of_ranks in _variables(details_by_rank).items():
        values[key] = of_ranks
    differences = [each for key, of_ranks in values.items() if (each := _difference(key, of_ranks, details_by_rank))]
    return sorted(differences, key=lambda each: (_SEVERITIES.index(each.severity), each.where))[:MOST]


def _difference(key: str, values: Mapping[int, str], details_by_rank: Mapping[int, Details]) -> Difference | None:
    counts = Counter(values.values())
    if len(counts) < 2:
        return None
    about = _about(key)
    usual, count = counts.most_common(1)[0]
    if count * 2 <= len(values):
        by_value = "; ".join(f"{_cut(value)} on {_ranks(values, value)}" for value, _ in counts.most_common(4))
        text = f"{key} differs: {by_value}" + (f"; {len(counts) - 4} more values" if len(counts) > 4 else "")
        do = "make it the same on all ranks"
        return Difference("ranks_differ", about.severity, text, about.why, do, key, tuple(sorted(values)))
    odd = tuple(sorted(rank for rank, value in values.items() if value != usual))
    theirs = " or ".join(_cut(value) for value in dict.fromkeys(values[rank] for rank in odd[:3]))
    text = f"{_named(odd, details_by_rank)}: {key} is {theirs}, and {_cut(usual)} on the other {count}"
    return Difference("odd_rank", about.severity, text, about.why, _to_type(key, usual, about), key, odd)


def _about(key: str) -> _Key:
    if key in _KEYS:
        return _KEYS[key]
    if key.startswith("packages."):
        return _PACKAGE
    is_setting = key.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_")) or key in (*_LAUNCH, *_VISIBLE)
    return _SETTING if is_setting else _OTHER


def _to_type(key: str, usual: str, about: _Key) -> str:
    if about.do:
        return about.do.format(value=usual, name=key.partition(".")[2])
    return f"unset {key}" if usual == NOT_SET else f"export {key}={_cut(usual)}"


def _flat(details: Details) -> Iterator[tuple[str, str]]:
    """What is compared, by key; what this rank does not know is left out."""
    for key in _KEYS:
        section, _, name = key.partition(".")
        value = _section(details, section).get(name, "")
        if value is None and key == "host.memlock_bytes":
            value = "unlimited"
        if isinstance(value, (str, int, float)) and value != "":
            yield key, str(value)
    names = sorted(_names(_section(details, "torch").get("devices")) or _names(_section(details, "gpu").get("cards")))
    if names:
        yield "gpu.names", ", ".join(dict.fromkeys(names))
    if isinstance(details.get("infiniband"), Mapping):
        yield "infiniband", _ports(_section(details, "infiniband").get("ports"))
    for name, value in _section(details, "packages").items():
        if isinstance(value, str):
            yield f"packages.{name}", value


def _ports(ports: object) -> str:
    active = [port for port in _mappings(ports) if port.get("state") == "ACTIVE"]
    rates = ", ".join(sorted({str(port.get("rate")) for port in active}))
    return f"{len(active)} ports up" + (f" at {rates}" if rates else "")


def _variables(details_by_rank: Mapping[int, Details]) -> dict[str, dict[int, str]]:
    """Each variable that any rank has set, on every rank that sent its variables at all."""
    of_ranks = {rank: _settings(details) for rank, details in details_by_rank.items() if "variables" in details}
    names = {name for settings in of_ranks.values() for name in settings if not _OF_EACH_RANK.match(name)}
    by_name = {}
    for name in sorted(names):
        values = {rank: settings.get(name, NOT_SET) for rank, settings in of_ranks.items()}
        by_name[name] = _comparable(name, values, details_by_rank)
    return by_name


def _settings(details: Details) -> dict[str, str]:
    """The variables as NCCL and torch get them: NCCL's files, the stronger last, then the process's own."""
    variables: dict[str, Any] = {}
    for settings in reversed(list(_section(details, "nccl_files").values())):
        variables |= settings if isinstance(settings, Mapping) else {}
    variables |= _section(details, "variables")
    return {str(name): value for name, value in variables.items() if isinstance(value, str)}


def _comparable(name: str, values: Mapping[int, str], details_by_rank: Mapping[int, Details]) -> dict[int, str]:
    """The values without what is each rank's own in them."""
    hosts = {rank: _host(details_by_rank[rank]) for rank in values}
    if name in _VISIBLE:
        return _devices(values, hosts)
    named = {rank: _without_host(value, hosts[rank]) for rank, value in values.items()}
    if not any("/" in value for value in named.values()):
        return named
    alike = _without_own_numbers(named, {rank: _own_numbers(rank, details_by_rank[rank]) for rank in named})
    # a path that no two ranks share, such as one with the process id in it, is each rank's own too
    return {} if len(set(alike.values())) == len(alike) > 2 else alike


def _devices(values: Mapping[int, str], hosts: Mapping[int, str]) -> dict[int, str]:
    """How many devices, where no two ranks of a machine have one in common: each was given its own."""
    given = Counter((hosts[rank], device) for rank, value in values.items() for device in value.split(","))
    if any(count > 1 for count in given.values()):
        return dict(values)
    return {rank: value if value == NOT_SET else f"{value.count(',') + 1} of its own" for rank, value in values.items()}


def _without_own_numbers(values: Mapping[int, str], own: Mapping[int, set[str]]) -> dict[int, str]:
    """Paths that are alike but for numbers: a number that on every rank is its own becomes `#`."""
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        alike[re.sub(r"\d+", "#", value)].append(rank)
    result = dict(values)
    for ranks in alike.values():
        parts = {rank: re.split(r"(\d+)", values[rank]) for rank in ranks}
        for place in range(1, len(parts[ranks[0]]), 2):
            numbers = {rank: parts[rank][place] for rank in ranks}
            if len(set(numbers.values())) > 1 and all(number in own[rank] for rank, number in numbers.items()):
                for rank in ranks:
                    parts[rank][place] = "#"
        result |= {rank: "".join(parts[rank]) for rank in ranks}
    return result


def _own_numbers(rank: int, details: Details) -> set[str]:
    variables = _section(details, "variables")
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    return {str(rank)} | {str(variables[name]) for name in names if name in variables}


def _without_host(value: str, host: str) -> str:
    return value.replace(host, "<host>") if len(host) > 2 else value


def _host(details: Details) -> str:
    name = _section(details, "host").get("name")
    return name if isinstance(name, str) else ""


def _section(details: Details, name: str) -> Mapping[str, Any]:
    section = details.get(name)
    return section if isinstance(section, Mapping) else {}


def _mappings(values: object) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []


def _names(cards: object) -> list[str]:
    return [name for card in _mappings(cards) if isinstance(name := card.get("name"), str)]


def _named(ranks: tuple[int, ...], details_by_rank: Mapping[int, Details]) -> str:
    hosts = list(dict.fromkeys(host for rank in ranks if (host := _host(details_by_rank[rank]))))
    on = f" on {', '.join(hosts[:3])}{' ...' if len(hosts) > 3 else ''}" if hosts else ""
    return f"{ranks_text(ranks).capitalize()}{on}"


def _ranks(values: Mapping[int, str], value: str) -> str:
    return ranks_text(rank for rank, each in values.items() if each == value)


def _cut(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS else value[: VALUE_CHARACTERS - 3] + "..."


SEVERITIES = ("error", "warning", "info")


def environment(run: RunReader) -> dict[str, Any]:
    """By rank: details and findings; then who is out against the majority."""
    newest = run.newest_events([Environment.KIND])
    reported = {event.rank: event.read(Environment) or Environment() for event in newest}
    ranks = [
        {"rank": rank, "host": run.ranks[rank].info.host, **msgspec.to_builtins(each)}
        for rank, each in reported.items()
    ]
    odd = _odd(run, reported)
    return {"ranks": ranks, "odd": odd, "findings": [*odd, *_merged(ranks)], "linkcheck": linkcheck(run)}


def _odd(run: RunReader, reported: dict[int, Environment]) -> list[dict[str, Any]]:
    """Kept while nobody says anything else: 1,024 ranks with 100 variables each are compared in a second."""
    digest = hashlib.blake2b(
        msgspec.json.encode(sorted(reported.items(), key=lambda each: each[0])), digest_size=16
    ).digest()
    key = (run.id, "odd ranks", digest)
    differences: list[dict[str, Any]] | None = run.reader.cache.get(key)
    if differences is None:
        differences = [
            msgspec.to_builtins(each) for each in odd_ranks({rank: each.facts for rank, each in reported.items()})
        ]
        run.reader.cache.put(key, differences, 4_096 * (1 + len(differences)))
    return differences


def _merged(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ranks found themselves, once each, with the `ranks` that did; the worst first."""
    ranks_of: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for each in ranks:
        for finding in each["findings"]:
            ranks_of.setdefault(tuple(finding.items()), []).append(each["rank"])
    merged = [dict(fields) | {"ranks": those} for fields, those in ranks_of.items()]
    return sorted(merged, key=lambda each: SEVERITIES.index(each["severity"]) if each["severity"] in SEVERITIES else 9)


def linkcheck(run: RunReader) -> dict[str, Any] | None:
    """The newest result that was posted to the run, with `time_ns`; None when there is none."""
    newest = next(iter(run.events("linkcheck", 1)), None)
    return None if newest is None else msgspec.json.decode(newest.data) | {"time_ns": newest.time_ns}
