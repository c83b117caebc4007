"""The options of `attach`. Each is declared once: that makes the argument, the environment variable
`RANGEWATCH_<NAME>`, the check, and the row of docs/options.md (`python -m tools.docs_tables`).
"""

# ruff: noqa: RUF009 - the options are descriptors, one a class, and no values of instances
from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

from rangewatch.core import limits

OBSERVED_KINDS = (
    "output", "grad_output", "grad", "input", "weight", "reduced_grad", "update",
    "exp_avg", "exp_avg_sq", "momentum_buffer",
)  # fmt: skip
ROUNDED_KINDS = ("output", "grad_output", "input", "weight")
"""What products take in a smaller format."""

LEVELS = {"grads": OBSERVED_KINDS[2:3], "outputs": OBSERVED_KINDS[:3], "frames": OBSERVED_KINDS}
BACKENDS = ("auto", "device")
ON_OVERFLOW = ("record", "raise")
STEP_ENDS = ("all", "any", "first", "last", "handle")
ON_ALERT = ("record", "stop", "trace", "grads")
SHIP_EVERY = (1, 8, 64)
_AXIS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}

Given = TypeVar("Given")
Value = TypeVar("Value")
Check = Callable[[Any], bool]


def _is_whole(least: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def _one_of(*values: Any) -> Check:
    return lambda value: value in values and not isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 3600


def _is_percent(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30


def _is_count_or_measure(value: Any) -> bool:
    return _is_count(value) or value == "measure"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= limits.NAME_CHARACTERS and value.isprintable()


def _is_token(value: Any) -> bool:
    return _is_name(value) and value.isascii()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and Path(value).is_absolute()


def _is_spool_bytes(value: Any) -> bool:
    return value == 0 or _is_whole(1 << 20)(value)


def _is_on_alert(value: Any) -> bool:
    return callable(value) or value in ON_ALERT


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_url(url: Any) -> bool:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, TypeError, AttributeError):
        return False
    if is_valid and ("@" in parts.netloc or parts.query or parts.fragment):
        raise ValueError("rangewatch option url: must hold no user name, query or fragment; a token goes into `token`")
    return is_valid and url.isprintable() and " " not in url


def _are_steps(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= limits.TRACE_STEPS and all(map(_is_whole(0), value))


def _are_patterns(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) and each for each in value)


def _is_mesh(value: Any) -> bool:
    if not isinstance(value, tuple) or not 0 < len(value) <= limits.MESH_AXES:
        return False
    names = [each[0] for each in value if isinstance(each, tuple) and len(each) == 2]
    is_named = all(isinstance(name, str) and _AXIS.fullmatch(name) for name in names)
    return is_named and len(set(names)) == len(value) and all(map(_is_whole(1), (size for _, size in value)))


def _are_formats(value: Any) -> bool:
    pairs = [each for each in value if isinstance(each, tuple) and len(each) == 2] if isinstance(value, tuple) else []
    return len(pairs) == len(value) <= limits.DECLARED_FORMATS and all(
        isinstance(place, str)
        and len(place) <= limits.NAME_CHARACTERS
        and place.partition(":")[0] in ROUNDED_KINDS
        and isinstance(name, str)
        for place, name in pairs
    )


def _is_replicated(value: Any) -> bool:
    return _is_bool(value) or (isinstance(value, tuple) and bool(value) and _are_axes(value))


def _are_axes(value: tuple[Any, ...]) -> bool:
    return all(isinstance(each, str) and 0 < len(each) <= limits.AXIS_CHARACTERS for each in value)


def _are_kinds(value: Any) -> bool:
    return _are_patterns(value) and bool(value) and set(value) <= set(OBSERVED_KINDS)


class Option(Generic[Given, Value]):
    """One option: what may be given, and what it is then. None is "not given", and stands for the default.

    `help`: the row of the docs, in Markdown. `check` says whether a value can be, `must_be` what it should have been.
    `shown`: the default as the docs say it, where that is not the value itself.
    """

    given: ClassVar[str] = "str"
    """The type of the argument, as `inspect.signature` shows it."""

    def __init__(self, default: Value, help: str, *, check: Check, must_be: str, shown: str | None = None) -> None:
        self.default, self.help, self.check, self.must_be = default, help, check, must_be
        self.shown = f"`{default}`" if shown is None else shown

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Value:
        value: Value = self.default if instance is None else instance.__dict__[self.name]
        return value

    def __set__(self, instance: Any, value: Given | None) -> None:
        if self.name in instance.__dict__:
            raise AttributeError("options are not changed: see dataclasses.replace")
        taken = self.default if value is None else self.normal(value)
        if taken is not self.default and not self.check(taken):
            shown = "" if self.name == "token" else f"={taken!r}"
            raise ValueError(f"rangewatch option {self.name}{shown}: must be {self.must_be}")
        instance.__dict__[self.name] = taken

    def normal(self, value: Any) -> Any:
        """What was given, as it is checked and kept."""
        return value

    def parse(self, text: str) -> Any:
        """The environment variable's text as an argument. Raises `ValueError`."""
        return text


class Text(Option[str, str]):
    """One that has a value in any case."""


class OptionalText(Option[str, "str | None"]):
    """One that may be None."""


class Whole(Option[int, int]):
    """A whole number."""

    given = "int"

    def parse(self, text: str) -> int:
        """Decimal."""
        return int(text)


class OptionalWhole(Option[int, "int | None"]):
    """A whole number, or None."""

    given = "int"

    def parse(self, text: str) -> int:
        """Decimal."""
        return int(text)


class Number(Option[float, float]):
    """A number."""

    given = "float"

    def parse(self, text: str) -> float:
        """Decimal."""
        return float(text)


class OptionalNumber(Option[float, "float | None"]):
    """A number, or None."""

    given = "float"

    def parse(self, text: str) -> float:
        """Decimal."""
        return float(text)


class NumberOrMeasure(Option["float | str", "float | str | None"]):
    """A number, or the word `measure`."""

    given = "float | str"

    def parse(self, text: str) -> float | str:
        """Decimal."""
        return text if text == "measure" else float(text)


class Switch(Option[bool, bool]):
    """True or False."""

    given = "bool"

    def __init__(self, default: bool, help: str) -> None:
        super().__init__(default, help, check=_is_bool, must_be="True or False")

    def parse(self, text: str) -> bool:
        """0 or 1, or the like."""
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError("must be 0 or 1")


class _List(Option[Iterable[Given], Value]):
    """A list. In the environment its items are separated by commas."""

    def normal(self, value: Any) -> Any:
        """A tuple; one alone need not be in a list."""
        if isinstance(value, (str, int)):
            return (value,)
        return tuple(value) if isinstance(value, Iterable) else value


class _Words(_List[str, Value]):
    """Words."""

    given = "Iterable[str]"

    def parse(self, text: str) -> Any:
        """Words."""
        return tuple(part.strip() for part in text.split(",") if part.strip())


class Mesh(Option[Mapping[str, int], "tuple[tuple[str, int], ...]"]):
    """Names of axes and how many ranks each has, the outermost first."""

    given = "Mapping[str, int]"

    def normal(self, value: Any) -> Any:
        """Pairs, which can be neither changed nor mixed up."""
        return tuple(value.items()) if isinstance(value, Mapping) else value

    def parse(self, text: str) -> Any:
        """`dp=2,tp=2`."""
        pairs = [part.split("=") for part in text.split(",") if part.strip()]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("must be axes and their sizes, such as dp=2,tp=2")
        return tuple((name.strip(), int(size)) for name, size in pairs)


class Formats(Option[Mapping[str, str], "tuple[tuple[str, str], ...]"]):
    """Kinds of tensors, with a pattern of names behind a colon or without one, and the format of each."""

    given = "Mapping[str, str]"

    def normal(self, value: Any) -> Any:
        """Pairs."""
        return tuple(value.items()) if isinstance(value, Mapping) else value

    def parse(self, text: str) -> Any:
        """`input=mxfp8_e4m3,weight:*.norm*=mxfp8_e4m3`."""
        pairs = [part.split("=") for part in text.split(",") if part.strip()]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("must be kinds and formats, such as input=mxfp8_e4m3,grad_output=mxfp8_e4m3")
        return tuple((place.strip(), name.strip()) for place, name in pairs)


class Axes(Option["bool | str | Iterable[str]", "bool | tuple[str, ...]"]):
    """True or False, or names of axes."""

    given = "bool | str | Iterable[str]"

    def normal(self, value: Any) -> Any:
        """A tuple; one alone need not be in a list."""
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, Iterable) else value

    def parse(self, text: str) -> Any:
        """0 or 1, or names."""
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        return tuple(part.strip() for part in text.split(",") if part.strip())


class Several(_Words["tuple[str, ...]"]):
    """Words, or none of them."""


class OptionalSeveral(_Words["tuple[str, ...] | None"]):
    """Words, or None."""


class Steps(_List[int, "tuple[int, ...]"]):
    """Numbers of steps."""

    given = "Iterable[int]"

    def parse(self, text: str) -> Any:
        """Decimal."""
        return tuple(int(part) for part in text.split(",") if part.strip())


class OnAlert(Option["str | Callable[[Any], object]", Any]):
    """A word or a function."""

    given = "str | Callable[[Alert], object]"


@dataclasses.dataclass(kw_only=True, repr=False)
class Options:
    """What `attach` was asked for, checked. Raises `ValueError` with the option's name when a value cannot be."""

    url: Text = Text(
        "http://127.0.0.1:8642",
        "the server",
        check=_is_url,
        must_be="http://HOST:PORT or https://HOST:PORT",
    )
    run: OptionalText = OptionalText(
        None,
        "name of the run, shared by its ranks; a restart under the same name is a new incarnation of it, and two jobs "
        "that run under one name at once are warned of",
        check=_is_name,
        must_be=f"1 to {limits.NAME_CHARACTERS} printable characters",
        shown="script and time, agreed by the ranks",
    )
    token: OptionalText = OptionalText(
        None,
        "the server's token, if it has one",
        check=_is_token,
        must_be="printable ASCII",
        shown="none",
    )
    enabled: Switch = Switch(
        True,
        "`False` makes `attach` do nothing at all",
    )
    quiet: Switch = Switch(
        False,
        "whether `attach` prints no line on stderr with the run's name and where to see it (rank 0 does, once)",
    )
    ship_interval_s: Number = Number(
        0.5,
        "least seconds between two shipments; every step is in them",
        check=_is_seconds,
        must_be="seconds from 0 to 3600",
    )
    ship_every: Whole = Whole(
        1,
        "steps merged into one record before they are sent: 1, 8 or 64. No spike is lost, only which of these steps "
        "it was; steps with NaN or Inf are sent one by one",
        check=_one_of(*SHIP_EVERY),
        must_be="1, 8 or 64",
    )
    start_step: Whole = Whole(
        0,
        "number of the first step, for a restart from a checkpoint: where two incarnations of a rank have the same "
        "steps, the newer is shown",
        check=_is_whole(0),
        must_be="a whole number, 0 or more",
    )
    step_ends: Text = Text(
        "all",
        "what a step is where there are several optimizers, as in a GAN: it ends when `all` have stepped once (or one "
        "a second time; of two that hold the same parameters, as those of two stages do, each step ends one), at each "
        "step of `any`, or at those of the `first` or the `last` that `attach` was given. `handle`: where the loop "
        "calls `handle.step()`, and nowhere else",
        check=_one_of(*STEP_ENDS),
        must_be=f"one of {', '.join(STEP_ENDS)}",
    )
    spool_dir: OptionalText = OptionalText(
        None,
        "a folder on a disk of this machine where batches lie until the server has them: they outlive the process "
        "([spool.md](spool.md))",
        check=_is_path,
        must_be="an absolute path",
        shown="the temporary folder",
    )
    spool_bytes: Whole = Whole(
        limits.SPOOL_BYTES,
        "what a rank may take there; then the oldest batches are dropped and counted. `0` writes nothing to a disk",
        check=_is_spool_bytes,
        must_be="bytes, 1 MiB or more, or 0",
        shown="256 MiB",
    )
    watcher: Switch = Switch(
        True,
        "whether a small process beside the ranks sees how they end, and sends what they could not any more "
        "([crashes.md](crashes.md))",
    )
    stderr_tail: Switch = Switch(
        False,
        "whether the last lines of this process's stderr go to the server, without what looks like a secret, so that "
        "they are there when it has died ([stderr.md](stderr.md))",
    )
    queue_bytes: Whole = Whole(
        limits.QUEUE_BYTES,
        "encoded batches kept in memory where there is no spool, or no room on its disk; then the oldest are dropped "
        "and counted",
        check=_is_whole(1 << 20),
        must_be="bytes, 1 MiB or more",
        shown="256 MiB",
    )
    flush_timeout_s: Number = Number(
        limits.FLUSH_TIMEOUT_S,
        "seconds the end of a run waits for the queue to empty when the server answers",
        check=_is_seconds,
        must_be="seconds from 0 to 3600",
    )
    mirror: Several = Several(
        (),
        "experiment trackers that this process has open and that get the headline numbers too, with a link to the run "
        "and a row for each alert: `wandb`, `mlflow`, `trackio`, `tensorboard` or `tensorboard:DIR` "
        "([mirror.md](mirror.md))",
        check=_are_patterns,
        must_be="names of trackers: wandb, mlflow, trackio, tensorboard or tensorboard:DIR",
        shown="none",
    )
    level: OptionalText = OptionalText(
        None,
        "a name for a set of kinds: `grads` (`grad` alone, the cheapest), `outputs` (`output`, `grad_output`, "
        "`grad`), `frames` (all kinds)",
        check=_one_of(*LEVELS),
        must_be=f"one of {', '.join(LEVELS)}",
        shown="`outputs`, but what is compiled in bfloat16 or float16 is read only when asked for",
    )
    kinds: Several = Several(
        LEVELS["outputs"],
        "instead of a level: some of the kinds below",
        check=_are_kinds,
        must_be=f"some of {', '.join(OBSERVED_KINDS)}",
        shown="those of `outputs`",
    )
    include: Several = Several(
        (),
        "patterns of module names, such as `blocks.*.ff`: these modules and all in them",
        check=_are_patterns,
        must_be="patterns of module names",
        shown="all",
    )
    exclude: Several = Several(
        (),
        "patterns of modules that are not recorded, though `include` has them",
        check=_are_patterns,
        must_be="patterns of module names",
        shown="none",
    )
    routers: Several = Several(
        (),
        "patterns of modules that are routers of a mixture of experts, beside those that are known for it "
        "([experts.md](experts.md))",
        check=_are_patterns,
        must_be="patterns of module names",
        shown="none",
    )
    allow_inf: Several = Several(
        (),
        "patterns of tensors in which Inf is meant: module names, or `name:kind:index` (`*.attn:input:1`). NaN is "
        "counted as ever",
        check=_are_patterns,
        must_be="patterns of module names or name:kind:index",
        shown="none",
    )
    full_every: Whole = Whole(
        100,
        "steps between two full sets (amin, zeros, subnormals, rms) where they cost passes of their own: on a CPU",
        check=_is_whole(1),
        must_be="a whole number of steps, 1 or more",
    )
    weight_every: Whole = Whole(
        100,
        "steps between two readings of `weight` and `update`",
        check=_is_whole(1),
        must_be="a whole number of steps, 1 or more",
    )
    moment_every: Whole = Whole(
        100,
        "steps between two readings of an optimizer's `exp_avg`, `exp_avg_sq` and `momentum_buffer`, after its step. "
        "One costs two passes over them, and on a CPU the full set of both ([performance.md](performance.md))",
        check=_is_whole(1),
        must_be="a whole number of steps, 1 or more",
    )
    replica_every: Whole = Whole(
        100,
        "steps in which each parameter has its turn of being compared between the ranks, where all must hold the "
        "same: what DistributedDataParallel wraps and trains, what the loop itself reduces by `all_reduce`, and what a "
        "`DTensor` replicates ([mesh.md](mesh.md)). "
        "`1` compares all at every step and names the very step in which a rank has come to differ, `0` compares "
        "none. At a process's first update all are compared. Needs the kind `grad`; with `reduced_grad` the gradients "
        "are compared after their reduction too. Batches, dropout, gradient norms, tied weights and step counts are "
        "compared at three steps in so many. Where `ship_every` is more, that is the number of steps",
        check=_is_whole(0),
        must_be="a whole number of steps, or 0",
    )
    replicated: Axes = Axes(
        False,
        "whether all ranks hold the same parameters though neither DistributedDataParallel nor a `DTensor` says so, so "
        "that they are compared too; or the axes of the mesh along which they do, such as `tp` for norms that are "
        "plain tensors beside sharded layers ([mesh.md](mesh.md))",
        check=_is_replicated,
        must_be="True, False, or names of axes of the mesh",
    )
    mesh: Mesh = Mesh(
        (),
        "where ranks stand, if no `DeviceMesh`, Megatron or DeepSpeed says so: names of axes and their sizes, the "
        'outermost first, as `init_device_mesh` lays them out: `{"pp": 2, "dp": 2, "tp": 2}` ([mesh.md](mesh.md)). '
        "In the environment `pp=2,dp=2,tp=2`",
        check=_is_mesh,
        must_be=f"1 to {limits.MESH_AXES} axes, each a name of letters, digits and _ with a size of 1 or more",
        shown="as the ranks' process groups say",
    )
    histograms: Switch = Switch(
        False,
        "whether the full set has a histogram of exponents too",
    )
    whatif_every: Whole = Whole(
        0,
        "steps between two rounds in which every tensor in host memory is read for what would be left of it in smaller "
        "formats ([whatif.md](whatif.md)); `0` reads none but those that `rangewatch whatif` asks for. A round is "
        "spread over many steps, and takes no more than half a percent of the training's time on average",
        check=_is_whole(0),
        must_be="a whole number of steps, or 0",
    )
    sketch_every: Whole = Whole(
        0,
        "steps between two sketches of what `rangewatch diff` compares bit by bit: of all weights, the gradients that "
        "the optimizer gets, and what is recorded of activations where this process is alone or they are `DTensor`s "
        "([diff.md](diff.md#sketches)). At the steps whose number is a multiple; `0` takes none, `1` one at each step. "
        "It reads every element once more, on a CPU in 12 to 20 ns, however long that takes",
        check=_is_whole(0),
        must_be="a whole number of steps, or 0",
    )
    formats: Formats = Formats(
        (),
        "smaller formats that own code or kernels round tensors to, by kind, or by kind and a pattern of names: "
        '`{"input": "mxfp8_e4m3", "grad_output": "mxfp8_e4m3", "weight:*.norm*": "mxfp8_e4m3"}`, names as in '
        "[whatif.md](whatif.md). The tensors are then read again and again for what is left of them, in no more than "
        "2 % of the training's time, and the rule `format_in_use` judges it. Of tensors in host memory. Casts of "
        "torchao's are seen and need not be declared ([scales.md](scales.md#what-is-left-in-the-format)); what is "
        "declared wins. In the environment `input=mxfp8_e4m3,grad_output=mxfp8_e4m3`",
        check=_are_formats,
        must_be=f"kinds ({', '.join(ROUNDED_KINDS)}), with a pattern behind a colon or without, and names of formats",
        shown="not known",
    )
    scales: Text = Text(
        "auto",
        "which scales of low precision are read ([scales.md](scales.md)): `auto` those of the layers of torchao and "
        "TransformerEngine, and of `torch._scaled_mm` where the model holds tensors of 8 bits; `all` those of "
        "`torch._scaled_mm` in any case; `none` none",
        check=_one_of("auto", "all", "none"),
        must_be="auto, all or none",
    )
    scales_every: Whole = Whole(
        0,
        "steps between two readings of scales. `0`: as many as keep them at half a percent of the training's time on "
        "average, a power of two; the Scales page says how many ([scales.md](scales.md#how-often)). `1` reads at each "
        "step, whatever it costs",
        check=_is_whole(0),
        must_be="a whole number of steps, or 0",
    )
    cuda_graphs: Switch = Switch(
        False,
        "whether what a CUDA graph captures is read inside it, at each replay. Warm up before the capture, as torch "
        "asks anyway; otherwise such modules are not observed. Right on the one GPU that it was tried on; off unless "
        "asked for",
    )
    collect: OptionalSeveral = OptionalSeveral(
        None,
        "what is collected beside the tensors, on a thread of its own: some of the names in "
        "[collectors.md](collectors.md#collectors); `()` for none",
        check=_are_patterns,
        must_be="names of collectors, or none",
        shown="all",
    )
    flops_per_step: NumberOrMeasure = NumberOrMeasure(
        None,
        "floating-point operations of one step on this rank, forward and backward, for MFU: a number, or `measure` to "
        "have one step counted by torch's own formulas ([memory.md](memory.md#goodput-and-mfu))",
        check=_is_count_or_measure,
        must_be="a number above 0, or measure",
        shown="not known",
    )
    flops_per_token: OptionalNumber = OptionalNumber(
        None,
        "the same of one token, such as 6 times the number of parameters, where the loop logs `tokens`: how many the "
        "step had on this rank",
        check=_is_count,
        must_be="a number above 0",
        shown="not known",
    )
    peak_flops: OptionalNumber = OptionalNumber(
        None,
        "floating-point operations a second that this rank's device could do at most",
        check=_is_count,
        must_be="a number above 0",
        shown="of known GPUs, in 16 bits without sparsity",
    )
    trace_batch_nums: Steps = Steps(
        (),
        "steps that are recorded in full: every kind of every module, with the full set",
        check=_are_steps,
        must_be="numbers of steps, 0 or more",
        shown="none",
    )
    budget_percent: Number = Number(
        3.0,
        "percent of a step that the agent may take: of the training thread, or of the device where that is what the "
        "training waits for; above it, it records less and says so: no inputs, then outputs at one step in 3 to 61, "
        "then none. 100 lets it be",
        check=_is_percent,
        must_be="percent above 0 and to 100",
    )
    backend: Text = Text(
        "auto",
        "`device` reads every tensor in the way of an accelerator, for tests",
        check=_one_of(*BACKENDS),
        must_be=f"one of {', '.join(BACKENDS)}",
    )
    on_overflow: Text = Text(
        "record",
        "`raise` raises `rangewatch.NumericOverflow` at a NaN or Inf, before the weights are updated with it (after, "
        "where the optimizer is given a closure, as Lightning does, or none is given to `attach`); gradients do not "
        "count where a loss scaler skips such steps. On an accelerator it is known some steps later",
        check=_one_of(*ON_OVERFLOW),
        must_be=f"one of {', '.join(ON_OVERFLOW)}",
    )
    on_alert: OnAlert = OnAlert(
        "record",
        "what this rank does when the server raises an alert of the run: `stop` raises `rangewatch.TrainingStopped` "
        "after the step, `trace` records the next step in full, `grads` records the gradients alone. Or a function: "
        "it gets the `rangewatch.Alert` (`rule`, `severity`, `summary`, `run`, `rank`, `step`, `tensor`, `kind`) on "
        "the training thread, between steps, and may return one of these words; what it raises counts as a fault of "
        "ours. An alert comes some seconds after its step; silenced ones do not come",
        check=_is_on_alert,
        must_be=f"one of {', '.join(ON_ALERT)}, or a function",
    )
    abort_after_batch_num: OptionalWhole = OptionalWhole(
        None,
        "step after which `rangewatch.TrainingStopped` is raised where the step ends",
        check=_is_whole(0),
        must_be="a whole number, 0 or more",
        shown="never",
    )

    def __post_init__(self) -> None:
        if self.level is not None:
            vars(self)["kinds"] = LEVELS[self.level]

    @property
    def names_kinds(self) -> bool:
        """Whether `level` or `kinds` was given."""
        return self.level is not None or self.kinds is not OPTIONS["kinds"].default

    def public(self) -> dict[str, Any]:
        """The options as they may be shown: without the token."""
        shown = {name: getattr(self, name) for name in OPTIONS if name != "token"}
        shown["mesh"] = dict(self.mesh)
        if callable(self.on_alert):
            shown["on_alert"] = "a function"
        return shown

    def __repr__(self) -> str:
        return f"Options({self.public()})"


OPTIONS: Mapping[str, Option[Any, Any]] = {
    field.name: vars(Options)[field.name] for field in dataclasses.fields(Options)
}
"""By name, in the order of the docs."""

SECTIONS = {"url": "Where it goes", "level": "What is recorded", "on_overflow": "What stops training"}
"""Headings of the docs, by the first option of each."""


def resolve(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Options:
    """Options from arguments (None means not given), then the environment, then the defaults.

    Raises `ValueError` for a value that cannot be, and `TypeError` for an option that there is not.
    """
    check_names("rangewatch.attach", given, OPTIONS)
    if given.get("kinds") is not None and given.get("level") is not None:
        raise ValueError("rangewatch options kinds and level: give one of them")
    if given.get("kinds") is not None:
        environment = {name: value for name, value in environment.items() if name != "RANGEWATCH_LEVEL"}
    values: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        variable = f"RANGEWATCH_{name.upper()}"
        text = environment.get(variable, "").strip()
        if given.get(name) is not None:
            values[name] = given[name]
        elif text:
            try:
                values[name] = option.parse(text)
            except ValueError as error:
                raise ValueError(f"environment variable {variable}={text!r}: {error}") from None
    return Options(**values)


OTHER_NAMES = {"server": "url", "address": "url", "endpoint": "url", "host": "url", "name": "run", "run_name": "run"}
"""What others call an option, and what it is called here."""


def check_names(of: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for the first of `given` that is not `known`, with the nearest that is."""
    options = sorted(known)
    for name in given:
        if name not in options:
            near = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in options else []
            near = near or difflib.get_close_matches(name, options, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(options)}"
            raise TypeError(f"{of} has no option {name!r}; {hint}")
