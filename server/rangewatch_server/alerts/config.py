"""The file of `--alerts`: thresholds, rules that are off, and where alerts are sent. TOML; docs/alerts.md has it."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rangewatch_server import rules
from rangewatch_server.alerts.safe_http import Network, SafeHttpError, parse
from rangewatch_server.core import otlp
from rangewatch_server.rules import presets

MAX_BYTES = 1 << 20
ADDRESS = re.compile(r"[!-?A-~]+@[!-?A-~]+")
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Severity = Literal["critical", "warning", "info"]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]
RuleTable = dict[str, bool | int | float]
"""Of a rule: its thresholds, and `enabled`."""


class ConfigError(ValueError):
    """What is wrong with the file, in one line."""


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A URL that gets a POST for each alert. `format`: our own JSON, or what Slack and those like it take."""

    name: Name
    url: str
    format: Literal["json", "slack"] = "json"
    severity: Severity = "warning"
    resolved: bool = True
    headers: dict[str, Text] = {}


class Email(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mail server that takes messages for some people. The password is in an environment variable, not here."""

    name: Name
    host: Text
    sender: Text
    to: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=50)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: Text = ""
    password_env: Text = ""
    severity: Severity = "warning"
    resolved: bool = True


class Otlp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An OpenTelemetry collector that gets an event for each alert, by OTLP over HTTP: `endpoint`/v1/logs."""

    name: Name
    endpoint: str
    severity: Severity = "warning"
    resolved: bool = True


Target = Webhook | Email | Otlp


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of the runs whose name fits. `preset`: another tool's thresholds, which `rules` go over."""

    preset: Text = ""
    rules: dict[str, RuleTable] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `preset`: another tool's thresholds, which `rules` go over. `runs`: a pattern of names -> what is
    otherwise there; the later of several that fit wins.
    """

    preset: Text = ""
    rules: dict[str, RuleTable] = {}
    runs: dict[str, Run] = {}
    webhook: tuple[Webhook, ...] = ()
    email: tuple[Email, ...] = ()
    otlp: tuple[Otlp, ...] = ()
    allow_networks: tuple[str, ...] = ()
    """Networks that webhooks and mail servers may be in though they are not public, such as `10.0.0.0/8`."""
    page_url: Text = ""
    """Where people open the dashboard, for the links in what is sent. Default: the server's own address."""

    def given(self, run: str) -> dict[str, RuleTable]:
        """What the file says for a run of this name, by rule."""
        tables: dict[str, RuleTable] = {}
        fitting = [each for pattern, each in self.runs.items() if fnmatch.fnmatchcase(run, pattern)]
        parts: list[Config | Run] = [self, *fitting]
        for part in parts:
            if part.preset:
                merge(tables, presets.BY_NAME[part.preset].thresholds)
            merge(tables, part.rules)
        return tables

    @property
    def targets(self) -> tuple[Target, ...]:
        """All that are sent to."""
        return self.webhook + self.email + self.otlp

    @property
    def networks(self) -> tuple[Network, ...]:
        """`allow_networks`, read."""
        return tuple(ipaddress.ip_network(each, strict=False) for each in self.allow_networks)


def merge(tables: dict[str, RuleTable], more: Mapping[str, Mapping[str, bool | int | float]]) -> None:
    """Put `more` over what is there."""
    for name, values in more.items():
        tables[name] = {**tables.get(name, {}), **values}


def read(path: str) -> Config:
    """The file, checked. Raises `ConfigError`."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES >> 20} MiB")
    try:
        config = msgspec.toml.decode(text, type=Config)
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or not of that shape
        raise ConfigError(f"{path}: {error}") from None
    for problem in _problems(config):
        raise ConfigError(f"{path}: {problem}")
    return config


def _problems(config: Config) -> Iterator[str]:
    yield from _part_problems(config)
    for pattern, each in config.runs.items():
        yield from (f"runs.{pattern}: {problem}" for problem in _part_problems(each))
    names = [each.name for each in config.targets]
    yield from (f"two targets are named {name!r}" for name in sorted(set(names)) if names.count(name) > 1)
    for hook in config.webhook:
        yield from (f"webhook {hook.name}: {problem}" for problem in _webhook_problems(hook))
    for mail in config.email:
        wrong = [each for each in (mail.sender, *mail.to) if not ADDRESS.fullmatch(each)]
        yield from (f"email {mail.name}: {each!r} is no address" for each in wrong)
    for collector in config.otlp:
        if wrong_url := otlp.problem(collector.endpoint):
            yield f"otlp {collector.name}: {wrong_url}"
    for network in config.allow_networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            yield f"allow_networks: {network!r} is no network"


def _part_problems(part: Config | Run) -> Iterator[str]:
    if part.preset and part.preset not in presets.BY_NAME:
        yield f"there is no preset {part.preset[:60]!r}; there are {', '.join(presets.BY_NAME)}"
    yield from table_problems(part.rules)


def _webhook_problems(hook: Webhook) -> Iterator[str]:
    try:
        parse(hook.url)
    except SafeHttpError as error:
        yield str(error)
    for name, value in hook.headers.items():
        if not (HEADER.fullmatch(name) and value.isascii() and value.isprintable()):
            yield f"the header {name[:60]!r} cannot be sent"


def table_problems(given: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What is wrong with thresholds, of a file or of the page: rules and names that are not there, and no numbers."""
    for name, values in given.items():
        rule = rules.BY_NAME.get(name)
        if rule is None:
            yield f"there is no rule {name[:60]!r}; there are {', '.join(rules.BY_NAME)}"
            continue
        known = {each.name for each in rule.thresholds}
        for threshold, value in values.items():
            if threshold == "enabled":
                if not isinstance(value, bool):
                    yield f"{name}.enabled must be true or false"
            elif threshold not in known:
                yield f"{name} has no threshold {threshold[:60]!r}; it has {', '.join(sorted(known)) or 'none'}"
            elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
                yield f"{name}.{threshold} must be a number"
