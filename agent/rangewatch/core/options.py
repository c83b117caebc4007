"""The options of `attach`: each is an argument, or an environment variable `RANGEWATCH_<NAME>`, or its default."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rangewatch.core import limits

OBSERVED_KINDS = ("output", "grad_output", "grad", "input", "weight", "reduced_grad", "update")
LEVELS = {"grads": OBSERVED_KINDS[2:3], "outputs": OBSERVED_KINDS[:3], "frames": OBSERVED_KINDS}
COLLECTED = ("collectives", "environment", "gpu", "host")
BACKENDS = ("auto", "device")
ON_OVERFLOW = ("record", "raise")
ON_ALERT = ("record", "stop", "trace", "grads")
SHIP_EVERY = (1, 8, 64)
_SEVERAL = ("kinds", "collect", "include", "exclude", "allow_inf", "trace_batch_nums")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What `attach` was asked for. Raises `ValueError` with the option's name when a value cannot be."""

    run: str | None = None
    """Name of the run, shared by its ranks. Default: agreed by the ranks, see `api.attachment.run_name`."""

    url: str = "http://127.0.0.1:8642"
    """Where `rangewatch serve` listens."""

    token: str | None = dataclasses.field(default=None, repr=False)
    """Sent as `Authorization: Bearer`, when the server wants one."""

    kinds: tuple[str, ...] = LEVELS["outputs"]
    """What is recorded: some of `output`, `grad_output`, `grad`, `input`, `weight`, `reduced_grad` and `update`.

    `grad` is a parameter's gradient as it accumulates on this rank, still loss-scaled; `reduced_grad` the same as the
    optimizer gets it, after reduction, unscaling and clipping; `update` what the optimizer added to the parameter. Here
    and below, several are separated by commas in the environment."""

    level: str | None = None
    """A name for a set of kinds: `grads` (`grad` alone, the cheapest), `outputs` (the default) or `frames` (all)."""

    include: tuple[str, ...] = ()
    """Patterns of module names, such as `blocks.*.ff`: these modules and all in them are recorded. Default: all."""

    exclude: tuple[str, ...] = ()
    """Patterns of modules that are not recorded, nor anything in them, though `include` has them."""

    allow_inf: tuple[str, ...] = ()
    """Patterns of tensors in which Inf is meant, such as masks: module names, or `name:kind:index` (`*.attn:input:1`).

    It is then not counted; an event `allowed_inf` says where it was first seen. NaN is counted as ever."""

    weight_every: int = 100
    """Steps between two readings of the weights and their updates, when `kinds` has them. Weights are read as the
    step's forward uses them; an update needs a copy of the parameters while the optimizer steps."""

    full_every: int = 100
    """Steps between two full sets (amin, zeros, subnormals, sum of squares) where they cost passes of their own."""

    replica_every: int = 100
    """Steps in which each parameter has its turn of being compared between the ranks, where all must hold the same:
    what DistributedDataParallel wraps, and is trained. 1 compares all at every step and so names the very step in which
    a rank has come to differ; 0 compares none. It needs the kind `grad`, whose rows have the checksums.

    Where `ship_every` is more, that is the number of steps."""

    replicated: bool = False
    """Whether all ranks hold the same parameters though no DistributedDataParallel wraps them: then they are compared
    too. The process group must be initialised."""

    ship_interval_s: float = 0.5
    """Least seconds between two shipments, and none while one is unanswered; 0 ships each step."""

    trace_batch_nums: tuple[int, ...] = ()
    """Steps that are recorded in full: every kind of every module, with the full set. A step may be several batches."""

    abort_after_batch_num: int | None = None
    """Step after which training is stopped, by raising `TrainingStopped` where the step ends. Default: never."""

    on_overflow: str = "record"
    """`raise` stops training at a NaN or Inf, by raising `NumericOverflow` before the weights are updated with it.

    In outputs, inputs and weights; in gradients too unless there is a loss scaler, which skips such steps itself. What
    an accelerator holds is known some steps later. The other ranks of a distributed run wait for this one in vain
    until their own time limit; a launcher such as torchrun ends them."""

    on_alert: Any = "record"
    """What is done when the server raises an alert of this run: nothing but to show it (`record`), `stop` the training
    by raising `TrainingStopped` after the step, `trace` the next step in full, or record the `grads` alone.

    Or a function, which is called with the `rangewatch.Alert` on the training thread, between steps, and may return one
    of these words. An alert comes some seconds after its step; a silenced one does not come."""

    budget_percent: float = 3.0
    """Percent of a step that the agent may take of the training thread; above it records less (frames, outputs, grads)
    and says so. 100 lets it take what it takes."""

    histograms: bool = False
    """Whether the full set has a histogram of exponents too: how many elements lie in each power of two."""

    collect: tuple[str, ...] = COLLECTED
    """What is collected beside the tensors, on a thread of its own: `collectives` (who waits for whom, and hangs),
    `environment` (versions and settings, once), `gpu` (its health, by NVML) and `host`."""

    ship_every: int = 1
    """Steps that are merged into one record before they are sent: 1, 8 or 64, as the server's pyramid has them.

    It merges and does not sample: no spike is lost, only which of these steps it was. Steps with NaN or Inf and traced
    ones are sent one by one, with their neighbours."""

    start_step: int = 0
    """Number of the first step, for a run that goes on from a checkpoint."""

    enabled: bool = True
    """False makes `attach` return a handle that does nothing."""

    spool_dir: str | None = None
    """Folder of a disk of this machine in which batches lie until the server has them, so that they outlive the
    process. Default: the temporary folder. In it, `rangewatch-<user id>` is made."""

    spool_bytes: int = limits.SPOOL_BYTES
    """Bytes that a rank may take there. When they are taken, steps are merged, the oldest first, and no spike is lost;
    only when nothing can be merged any more the oldest are dropped and counted. 0: nothing is written to a disk."""

    watcher: bool = True
    """Whether a small process beside this one sees how it ends, and sends what it could not any more. It needs the
    spool, and Linux; one serves all ranks of a job on a machine, and ends with them."""

    queue_bytes: int = limits.QUEUE_BYTES
    """Bytes of encoded batches kept in memory where there is no spool, or no room on its disk; then the oldest are
    dropped and counted."""

    flush_timeout_s: float = limits.FLUSH_TIMEOUT_S
    """Seconds the end of a run waits for the queue to empty when the server answers."""

    backend: str = "auto"
    """`auto` reads each tensor in the way that suits its device; `device` forces the accelerator's way everywhere."""

    def __post_init__(self) -> None:
        if isinstance(self.level, str) and self.level in LEVELS:
            object.__setattr__(self, "kinds", LEVELS[self.level])
        for name, is_valid, wanted in _CHECKS:
            if not is_valid(getattr(self, name)):
                shown = "" if name == "token" else f"={getattr(self, name)!r}"
                raise ValueError(f"rangewatch option {name}{shown}: must be {wanted}")
        _check_url(self.url)

    def public(self) -> dict[str, Any]:
        """The options as they may be shown: without the token."""
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del shown["token"]
        if callable(self.on_alert):
            shown["on_alert"] = "a function"
        return shown


def resolve(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Options:
    """Options from arguments (None means not given), then the environment, then the defaults. Raises `ValueError`."""
    values: dict[str, Any] = {}
    if given.get("kinds") is not None and given.get("level") is not None:
        raise ValueError("rangewatch options kinds and level: give one of them")
    if given.get("kinds") is not None:
        environment = {name: value for name, value in environment.items() if name != "RANGEWATCH_LEVEL"}
    for field in dataclasses.fields(Options):
        variable = f"RANGEWATCH_{field.name.upper()}"
        if given.get(field.name) is not None:
            values[field.name] = _normal(field.name, given[field.name])
        elif environment.get(variable, "").strip():
            values[field.name] = _parse(field.name, variable, environment[variable].strip())
    return Options(**values)


def _normal(name: str, value: Any) -> Any:
    if name in _SEVERAL:
        if isinstance(value, (str, int)):
            return (value,)
        return tuple(value) if isinstance(value, Iterable) else value
    return value


def _parse(name: str, variable: str, text: str) -> Any:
    try:
        return _PARSERS.get(name, str)(text)
    except ValueError as error:
        raise ValueError(f"environment variable {variable}={text!r}: {error}") from None


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError("must be 0 or 1")


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_SEVERAL, _several),
    "trace_batch_nums": lambda text: tuple(int(part) for part in _several(text)),
    "abort_after_batch_num": int,
    "budget_percent": float,
    "full_every": int,
    "weight_every": int,
    "replica_every": int,
    "replicated": _boolean,
    "ship_every": int,
    "ship_interval_s": float,
    "start_step": int,
    "enabled": _boolean,
    "histograms": _boolean,
    "spool_bytes": int,
    "watcher": _boolean,
    "queue_bytes": int,
    "flush_timeout_s": float,
}


def _is_whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 3600


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= limits.NAME_CHARACTERS and value.isprintable()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and Path(value).is_absolute()


def _is_percent(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100


def _are_steps(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= limits.TRACE_STEPS and all(map(_is_whole(0), value))


def _are_kinds(value: Any) -> bool:
    return _are_patterns(value) and bool(value) and set(value) <= set(OBSERVED_KINDS)


def _are_collected(value: Any) -> bool:
    return _are_patterns(value) and set(value) <= set(COLLECTED)


def _are_patterns(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) and each for each in value)


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("run", lambda value: value is None or _is_name(value), f"1 to {limits.NAME_CHARACTERS} printable characters"),
    ("token", lambda value: value is None or (_is_name(value) and value.isascii()), "printable ASCII"),
    (
        "kinds",
        _are_kinds,
        f"some of {', '.join(OBSERVED_KINDS)}",
    ),
    ("level", lambda value: value is None or value in LEVELS, f"one of {', '.join(LEVELS)}"),
    ("include", _are_patterns, "patterns of module names"),
    ("exclude", _are_patterns, "patterns of module names"),
    ("allow_inf", _are_patterns, "patterns of module names or name:kind:index"),
    ("trace_batch_nums", _are_steps, "numbers of steps, 0 or more"),
    ("abort_after_batch_num", lambda value: value is None or _is_whole(0)(value), "a whole number, 0 or more"),
    ("on_overflow", lambda value: value in ON_OVERFLOW, f"one of {', '.join(ON_OVERFLOW)}"),
    ("on_alert", lambda value: callable(value) or value in ON_ALERT, f"one of {', '.join(ON_ALERT)}, or a function"),
    ("budget_percent", _is_percent, "percent above 0 and to 100"),
    ("full_every", _is_whole(1), "a whole number of steps, 1 or more"),
    ("weight_every", _is_whole(1), "a whole number of steps, 1 or more"),
    ("replica_every", _is_whole(0), "a whole number of steps, or 0"),
    ("replicated", lambda value: isinstance(value, bool), "True or False"),
    ("ship_interval_s", _is_seconds, "seconds from 0 to 3600"),
    ("ship_every", lambda value: value in SHIP_EVERY and not isinstance(value, bool), "1, 8 or 64"),
    ("start_step", _is_whole(0), "a whole number, 0 or more"),
    ("enabled", lambda value: isinstance(value, bool), "True or False"),
    ("histograms", lambda value: isinstance(value, bool), "True or False"),
    ("collect", _are_collected, f"some of {', '.join(COLLECTED)}, or none"),
    ("spool_dir", lambda value: value is None or _is_path(value), "an absolute path"),
    (
        "spool_bytes",
        lambda value: value == 0 or _is_whole(1 << 20)(value),
        "bytes, 1 MiB or more, or 0",
    ),
    ("watcher", lambda value: isinstance(value, bool), "True or False"),
    ("queue_bytes", _is_whole(1 << 20), "bytes, 1 MiB or more"),
    ("flush_timeout_s", _is_seconds, "seconds from 0 to 3600"),
    ("backend", lambda value: value in BACKENDS, f"one of {', '.join(BACKENDS)}"),
)


def _check_url(url: Any) -> None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, TypeError, AttributeError):
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise ValueError(f"rangewatch option url={url!r}: must be http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("rangewatch option url: must hold no user name, query or fragment; a token goes into `token`")
