"""`attach` and the handle it returns. Wrong arguments raise here and at once; afterwards nothing of ours does.

`rank_info` and `run_name` say who this process is: rank, world size, local rank, host, run and incarnation, without
running any collective.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import os
import platform
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import Parameter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize, ref

import msgspec
import torch
from torch import nn

from rangewatch import collectors
from rangewatch.api.agent import Agent, run_address
from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.collectors.collectives.exposed import ExposedSince
from rangewatch.core import limits
from rangewatch.core.guard import logger
from rangewatch.core.options import OPTIONS, Options, resolve
from rangewatch.core.selection import Selection
from rangewatch.core.version import VERSION
from rangewatch.hooks import model_hooks
from rangewatch.hooks.alike_rows import AlikeRows
from rangewatch.hooks.attention_logits import AttentionLogits
from rangewatch.hooks.compiled import CompiledCall
from rangewatch.hooks.mask_shares import MaskShares
from rangewatch.hooks.model_hooks import ModelHooks
from rangewatch.hooks.module_sources import module_sources
from rangewatch.hooks.optimizers.coverage import OptimizerCoverage
from rangewatch.hooks.optimizers.in_use import OptimizersInUse
from rangewatch.hooks.optimizers.kept_gradients import KeptGradients
from rangewatch.hooks.optimizers.moment_reads import MomentReads
from rangewatch.hooks.optimizers.reads import OptimizerReads, has_closure
from rangewatch.hooks.optimizers.state_loads import StateLoads
from rangewatch.hooks.optimizers.update_samples import UpdateSamples
from rangewatch.hooks.routers import RouterHooks
from rangewatch.hooks.scales.model_scales import ModelScales
from rangewatch.hooks.sequence_axes import SequenceAxesReads
from rangewatch.hooks.tied_parameters import TiedParameters
from rangewatch.recording.input_scale import InputScale
from rangewatch.recording.parallel.axes import check_declared
from rangewatch.recording.parallel.batch_checksum import BatchChecksums, RowsChecksum
from rangewatch.recording.parallel.bypass import WrapperBypass
from rangewatch.recording.parallel.dropouts import DropoutReads
from rangewatch.recording.parallel.gradient_sums import GradientSums
from rangewatch.recording.parallel.own_steps import OwnStepsReport
from rangewatch.recording.parallel.placements import Layout, inside_wrapper
from rangewatch.recording.parallel.replicas import MeshReport, ReplicaReads
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.recording.parallel.sketch_reads import SketchReads
from rangewatch.recording.parallel.tied_weights import TiedReads
from rangewatch.recording.tensor_names import clean_modules, is_container
from rangewatch.recording.weight_samples import WeightSamples
from rangewatch.recording.weights import Cadence, FiniteWeights, WeightReads
from rangewatch.statistics.formats import BY_NAME
from rangewatch.steps.boundary import StepBoundary, is_inner
from rangewatch.steps.compilations import Compilations
from rangewatch.steps.end_hooks import add_step_ends, as_list, check_optimizers, watch_step
from rangewatch.steps.flops import add_flops
from rangewatch.steps.loss.backward_loss import BackwardLoss
from rangewatch.steps.loss.loss_graph import LossGraphReads
from rangewatch.steps.loss.unregistered import UnregisteredParameters
from rangewatch.steps.loss_scale import check_scaler, is_loss_scaled
from rangewatch.steps.memory import MemoryUse
from rangewatch.steps.optimizers.clips import Clips
from rangewatch.steps.optimizers.learning_rate import GroupRates, LearningRate
from rangewatch.steps.optimizers.new_optimizers import NewOptimizers
from rangewatch.steps.optimizers.optimizer_steps import OptimizerSteps
from rangewatch.steps.phases import add_backward, add_optimizer_phase, add_phases
from rangewatch.steps.random_states import RandomStates
from rangewatch.steps.scalers.wrapped import stepping
from rangewatch.steps.unpassed_scaler import UnpassedScaler
from rangewatch.trackers.mirrors import chosen as trackers_chosen
from rangewatch.wire.records import RankInfo

_P = ParamSpec("_P")
_R = TypeVar("_R")

_RUN_KEY = "rangewatch/run"


def rank_info(
    run: str | None, device: torch.device, *, loss_scaled: bool, ship_every: int = 1, takes_alerts: bool = False
) -> RankInfo:
    """Describe this process; a new incarnation each time. `run` None: the ranks agree on one, see `run_name`."""
    rank, world_size, local_rank = ranks()
    return RankInfo(
        run=run or run_name(world_size),
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=_host(),
        incarnation=uuid.uuid4().hex,
        started_ns=time.time_ns(),
        pid=os.getpid(),
        device=_device_name(device),
        versions={"rangewatch": VERSION, "torch": str(torch.__version__), "python": platform.python_version()},
        loss_scaled=loss_scaled,
        ship_every=ship_every,
        takes_alerts=takes_alerts,
    )


def distinguished(info: RankInfo, model: str, taken: Collection[str]) -> RankInfo:
    """`info` with a run name that no other attached model of this process has: the server would take this one for it.

    All ranks come to the same name as long as they attach their models, of class `model`, in the same order.
    """
    if info.run not in taken:
        return info
    base = f"{info.run[: limits.NAME_CHARACTERS // 2]}/{model[: limits.NAME_CHARACTERS // 4]}"
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    run = next(name for name in names if name not in taken)
    logger.warning("rangewatch: run %r has another model of this process already; this one is run %r", info.run, run)
    return msgspec.structs.replace(info, run=run)


def ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Rank, world size and local rank: from torch.distributed when it runs, else torchrun's variables, else 0, 1, 0."""
    rank, world_size = _whole(environment, "RANK", 0), _whole(environment, "WORLD_SIZE", 1)
    local_rank = _whole(environment, "LOCAL_RANK", 0)
    if _is_distributed():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, max(world_size, rank + 1), local_rank


def run_name(world_size: int, environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of this job come to by themselves.

    The default store of torch.distributed keeps the first rank's proposal (one request, nobody waits for anybody). A
    proposal is the script's name and the job's id (torchrun's `--rdzv-id` or Slurm's), or the time where there is none.
    """
    job = _job_id(environment)
    proposal = f"{_script_stem()}-{job or time.strftime('%Y%m%d-%H%M%S')}"[: limits.NAME_CHARACTERS]
    agreed = _agree(proposal) if _is_distributed() else None
    if agreed is None and not job and world_size > 1:
        logger.warning(
            "rangewatch: each rank has named its own run; attach after torch.distributed.init_process_group, "
            "or set RANGEWATCH_RUN"
        )
    return agreed or proposal


def _agree(proposal: str) -> str | None:
    # A store without compare_set, or one whose server is gone, must not keep anybody from training.
    with contextlib.suppress(Exception):
        store = torch.distributed.distributed_c10d._get_default_store()
        return bytes(store.compare_set(_RUN_KEY, "", proposal)).decode()
    return None


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _job_id(environment: Mapping[str, str]) -> str:
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    if job in {"", "none"}:
        job = environment.get("SLURM_JOB_ID", "")
    if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", job):
        job = job[:8]  # torchrun --standalone makes a UUID: its first part tells runs apart and can be read
    return "".join(character for character in job if character.isprintable())


def _script_stem() -> str:
    script = Path(sys.argv[0]).stem if sys.argv else ""
    if script == "__main__":  # python -m package
        script = Path(sys.argv[0]).parent.name
    stem = "".join(character for character in script if character.isprintable())
    return stem if stem.strip("-") else "run"


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else default


def _host() -> str:
    with contextlib.suppress(OSError):  # a sandbox may forbid to ask
        return socket.gethostname()
    return "?"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        with contextlib.suppress(Exception):
            return str(torch.cuda.get_device_name(device))
    return device.type


_attached: WeakKeyDictionary[nn.Module, Handle] = WeakKeyDictionary()


@dataclasses.dataclass(repr=False)
class AttachArguments(Options):
    """The signature of `attach`, for editors and type checkers: its own arguments and all of `Options`."""

    model: nn.Module
    optimizer: Any = None
    scaler: Any = dataclasses.field(default=None, kw_only=True)


def _takes(arguments: Callable[_P, object]) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Give a function that takes `**options` the parameters of the dataclass `arguments`."""

    def give(function: Callable[..., _R]) -> Callable[_P, _R]:
        own = inspect.signature(function)
        options = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=f"{option.given} | None")
            for name, option in OPTIONS.items()
        ]
        parameters = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
        return function

    return give


@_takes(AttachArguments)
def attach(model: nn.Module, optimizer: Any = None, *, scaler: Any = None, **options: Any) -> Handle:
    """Watch the numeric ranges of `model` in training and send them to a Rangewatch server.

    `optimizer` is one or a list; the step ends when it steps, or at `scaler.update()` when a `scaler` is given that is
    enabled; without both, call `step()` on the handle. With several optimizers it ends when each has stepped, those of
    two stages that hold the same parameters apart, or as `step_ends` says. A new optimizer of the model's parameters is
    followed, and a warning says so. `scaler` is one or a list: a torch GradScaler, or a DeepSpeed or Megatron
    optimizer; left out, it is the one that the optimizer brings along, or the torch GradScaler that steps it. The other
    arguments are those of `core.options.Options` (docs/options.md); each can be an environment variable
    `RANGEWATCH_<NAME>` instead. Call it after the process group is initialised and before the model is compiled; before
    or after wrapping in DDP is the same.

    A process may attach several models. Each is a run of its own: where the name is taken by a model that is attached
    already, "/" and the model's class are added to it, with a number if need be, and a warning says so.

    Raises `TypeError` or `ValueError` for arguments that cannot be right. A server that cannot be reached is no error.
    """
    resolved = resolve_all(options)
    optimizers = as_list(optimizer)
    if not resolved.enabled:
        return Handle(None)
    _check_model(model)
    check_optimizers(optimizers, model)
    if scaler is not None:
        check_scaler(scaler)
    return _attach(model, optimizers, scaler, resolved)


def resolve_all(given: Mapping[str, Any]) -> Options:
    """What `attach` makes of its options; raises what it raises for them."""
    options = resolve(given)
    list(trackers_chosen(options.mirror))  # raises for what cannot be
    return dataclasses.replace(options, collect=collectors.chosen(options.collect))


def detach(model: nn.Module) -> None:
    """The same as `detach` of the handle that `attach` returned for this model. Raises `ValueError` when it is not."""
    handle = _attached.get(inside_wrapper(model))
    if handle is None:
        raise ValueError("rangewatch.detach: the model is not attached")
    handle.detach()


def batch(ids: Any = None, losses: Any = None) -> None:
    """The same as `Handle.batch` of the attached model, of each where several are; nothing where none is."""
    caller = _caller(sys._getframe(1))
    for handle in tuple(_attached.values()):
        handle._batch(ids, losses, caller)


class Handle:
    """An attached model. Use it as a context manager, or call `detach` at the end; the end of the process does too."""

    def __init__(self, agent: Agent | None, boundary: StepBoundary | None = None):
        self._agent, self._boundary = agent, boundary

    @property
    def run(self) -> str:
        """Name of the run; "" when disabled."""
        return self._agent.info.run if self._agent else ""

    @property
    def url(self) -> str:
        """Where the dashboard is; "" when disabled."""
        return self._agent.options.url if self._agent else ""

    @property
    def is_active(self) -> bool:
        """Whether it records: attached, not disabled, and not in a forked child."""
        return self._agent is not None and self._agent.observer.is_active

    def log(self, /, **values: Any) -> None:
        """Record named values for this step: numbers or tensors of one element, such as `loss=loss, lr=lr`.

        After the step has ended and before the next step's forward, a value belongs to the step that has just ended,
        also behind a forward of the model that no backward follows, to sample or to evaluate; but a line that was
        called before the first step stands at the top of the loop, and logs for the step to come. Of several values of
        one name the last before the step's end counts, and after it the first. The names of the
        agent's own series (`logged_values.OWN_SERIES`) are refused.
        """
        self._log(values, _caller(sys._getframe(1)))

    def log_ended(self, values: Mapping[str, Any]) -> None:
        """The same for trainers' callbacks: what is logged between two steps is always of the one that has ended."""
        self._log(values, None)

    def _log(self, values: Mapping[str, Any], caller: int | None) -> None:
        agent = self._agent
        if agent is not None and agent.observer.is_active:
            agent.guard.run("log", lambda: agent.log(values, caller))

    def batch(self, ids: Any = None, losses: Any = None) -> None:
        """Say which rows of the data this rank's step is made of, so that a bad batch can be named by them.

        `ids`: (n,) whole numbers or strings, as a list, array or tensor in host memory: row numbers or keys, of which
        the first 1,024 of a step are recorded, with 128 characters each. `losses`: (n,) floating tensor on any device,
        the loss of each row before it is reduced; nothing waits for it. Several calls in a step (microbatches) add up.
        After the step has ended and before the next forward it is of the step that has just ended, unless that has rows
        already. Raises nothing: what cannot be recorded is warned of once.
        """
        self._batch(ids, losses, _caller(sys._getframe(1)))

    def _batch(self, ids: Any, losses: Any, caller: int) -> None:
        agent = self._agent
        if agent is not None and agent.observer.is_active:
            agent.guard.run("batch", lambda: agent.batch(ids, losses, caller))

    def step(self) -> None:
        """End the step, in loops that gave no optimizer to `attach`, or `step_ends="handle"`; nothing in others."""
        agent, boundary = self._agent, self._boundary
        if agent is not None and boundary is not None:
            boundary.handle_stepped()
            agent.guard.run("step", agent.close_step)

    def detach(self) -> None:
        """Remove every hook, send what is left within `flush_timeout_s`, and end the thread. Later calls do nothing.

        In a `finally` or `except` clause the run ends as failed, or as interrupted, by what was raised.
        """
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.detached()

    def stats(self) -> dict[str, Any]:
        """`step`, `tensors`, `kinds`, `dropped`, `faults`, `not_observed` and `skipped` of this rank.

        Empty when disabled. `kinds` are those recorded now, which the server, a trace or the budget may have changed.
        """
        agent = self._agent
        if agent is None:
            return {}
        return {
            "step": agent.step,
            "tensors": len(agent.names),
            "kinds": sorted(agent.recording.kinds),
            "dropped": dict(agent.drops.counts),
            "faults": agent.faults(),
            "not_observed": dict(agent.observer.not_observed),
            "skipped": dict(agent.observer.skipped),
        }

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        agent = self._agent
        if agent is not None and error is not None:
            agent.fail(error)
        self.detach()


def _caller(frame: FrameType) -> int:
    """A number for the line that calls."""
    return hash((id(frame.f_code), frame.f_lasti))


def _attach(model: nn.Module, optimizers: list[Any], scaler: Any, options: Options) -> Handle:
    given, model = model, inside_wrapper(model)  # a wrapper may be let go of, and what it wraps be trained on
    selection = Selection(options)
    selection.check(clean_modules(model))
    _check_formats(options)
    device = next(model.parameters()).device
    info = rank_info(
        options.run,
        device,
        loss_scaled=is_loss_scaled(scaler, optimizers),
        ship_every=options.ship_every,
        takes_alerts=options.on_alert != "record" or bool(options.mirror),
    )
    taken = {handle.run for handle in _attached.values() if handle.is_active}
    info = distinguished(info, type(clean_modules(model)[""]).__name__, taken)
    layout = _layout(given, options, info)
    agent = Agent(options, info, optimizers)
    _warn_of_formats(agent, device)
    with contextlib.ExitStack() as failed:
        failed.callback(agent.remove)
        failed.callback(agent.runner.stop)
        forward = add_phases(agent, model, optimizers, scaler, agent.undo)
        in_use = OptimizersInUse(optimizers)
        agent.observer.step_readers.append(in_use)
        reads = _parallel_reads(agent, model, in_use, layout)
        axes = SequenceAxesReads(agent.events, agent.of_inputs)
        follow = _add_hooks(agent, model, in_use, selection, layout, reads, axes)
        sums = None if reads is None else reads.sums
        forward.begin_step(agent.step)
        boundary, scaling = add_step_ends(agent, optimizers, scaler, agent.undo, options.step_ends)
        graphs = LossGraphReads(agent.observer, agent.events, agent.nonfinite)
        unregistered = UnregisteredParameters(agent.events, agent.values, model, in_use)
        loss = BackwardLoss(agent, scaling, graphs, unregistered, axes)
        add_backward(agent, loss, agent.undo)
        agent.observer.step_readers.append(loss)
        agent.at_end.append(loss.flush)
        agent.in_forward.append(boundary)
        agent.observer.step_readers += [Clips(agent, model, scaling, sums, agent.undo), Compilations(agent)]
        agent.observer.step_readers.append(MemoryUse(agent, device))
        add_flops(agent, options, device, agent.undo)
        NewOptimizers(agent, model, optimizers, boundary, follow, agent.undo)
        if not scaling.watched:
            UnpassedScaler(agent, model, scaling, agent.undo)
        _watch_collectives(agent, given)
        agent.undo.callback(_forget, ref(model))
        agent.start()
        agent.guard.run("module sources", lambda: agent.events.add(module_sources(clean_modules(model))))
        failed.pop_all()
        agent.guard.run("address", lambda: _say_where(info, options))
        _keep_container(model, agent.undo)
        agent.parts = [ref(each) for each in model.children()]
        has_none = not optimizers and scaler is None
        handle = Handle(agent, boundary if has_none or options.step_ends == "handle" else None)
    finalize(handle, agent.let_go).atexit = False
    _attached[model] = handle
    return handle


def _say_where(info: RankInfo, options: Options) -> None:
    if info.rank == 0 and not options.quiet and sys.stderr is not None:
        sys.stderr.write(f"rangewatch: run {info.run} at {run_address(options.url, info.run)}\n")
        sys.stderr.flush()


class Container:
    """Holds a module that is never called, in each of its children, so that one made for `attach` alone lives as long
    as these do. Inert in a copy or a pickle of the child."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


_CONTAINER = "_range_container"


def _keep_container(model: nn.Module, undo: contextlib.ExitStack) -> None:
    """`attach(nn.ModuleDict({"g": g, "d": d}))`: nobody else has the dictionary."""
    if is_container(model):
        container = Container(model)
        for child in model.children():
            child.__dict__[_CONTAINER] = container
            undo.callback(_let_go, ref(child), ref(container))


def _let_go(reference: ref[nn.Module], container: ref[Container]) -> None:
    child = reference()
    if child is not None and child.__dict__.get(_CONTAINER) is container():
        del child.__dict__[_CONTAINER]


def _collectives(agent: Agent) -> Collectives | None:
    return next((each for each in agent.runner.collectors if isinstance(each, Collectives)), None)


def _watch_collectives(agent: Agent, model: nn.Module) -> None:
    collectives = _collectives(agent)
    if collectives is not None:
        collectives.watch(model, agent.open_step, agent.mirror)
        agent.phase_sources.append(ExposedSince(collectives, agent.open_step))


class ParallelReads(NamedTuple):
    """What is read at some steps of what must hold along the mesh: `before` an update, of those it is `steps`."""

    replicas: ReplicaReads
    own: OwnStepsReport
    sums: GradientSums
    tied: TiedReads
    steps: OptimizerSteps
    rates: GroupRates
    batch: BatchChecksums
    rows: RowsChecksum
    dropouts: DropoutReads

    def before_update(self) -> None:
        """An optimizer is about to update the parameters."""
        self.replicas.read_now()
        self.own.before_update()
        self.sums.before_update()
        self.tied.before_update()


def _parallel_reads(
    agent: Agent, model: nn.Module, optimizers: OptimizersInUse, layout: Layout
) -> ParallelReads | None:
    """None where nothing is to be compared between ranks."""
    options, observer, values = agent.options, agent.observer, agent.values
    if not options.replica_every:
        return None
    every = max(options.replica_every, options.ship_every)  # of steps that are merged one is read
    schedule = Schedule(every)
    reads = ParallelReads(
        ReplicaReads(observer, agent.names, layout, every, agent.in_forward, agent.events, agent.guard),
        OwnStepsReport(layout, agent.events, _collectives(agent)),
        GradientSums(observer, values, model, layout, schedule),
        TiedReads(observer, values, agent.events, model, layout, schedule),
        OptimizerSteps(observer, values, optimizers, schedule),
        GroupRates(values, optimizers, layout, schedule),
        BatchChecksums(observer, values, layout, schedule, agent.of_inputs),
        RowsChecksum(agent.batches, values, layout, schedule),
        DropoutReads(observer, values, agent.events, agent.guard, model, layout, schedule, agent.in_forward),
    )
    agent.undo.callback(reads.dropouts.forget)
    agent.undo.callback(layout.by_hand.forget)
    agent.at_end.append(reads.rows.flush)
    return reads


def _add_hooks(
    agent: Agent,
    model: nn.Module,
    optimizers: OptimizersInUse,
    selection: Selection,
    layout: Layout,
    parallel: ParallelReads | None,
    axes: SequenceAxesReads,
) -> Callable[[Any], None]:
    """Returns what adds those of an optimizer that comes later."""
    observer, recording, options = agent.observer, agent.recording, agent.options
    routers = RouterHooks(observer, agent.events, options.routers)
    routers.find(clean_modules(model), may_grow=True)
    agent.names.count_experts(routers.most_experts)
    scales = ModelScales(
        observer, agent.events, agent.guard, selection, recording, agent.fqns, agent.scale_schedule, options
    )
    agent.undo.callback(scales.remove)
    hooks = agent.hooks = ModelHooks(
        observer, agent.guard, model, selection, recording, agent.fqns, routers, scales, axes
    )
    agent.undo.callback(hooks.remove)
    agent.guard.run("scales", lambda: scales.find(clean_modules(model)))
    agent.undo.callback(AttentionLogits(observer, agent.guard, selection, recording, agent.fqns).remove)
    cadence = Cadence(recording, options.start_step, options.weight_every)
    weights = WeightReads(observer, model, selection, recording, cadence)
    updates = OptimizerReads(observer, model, selection, recording, cadence)
    moments = MomentReads(
        observer, model, selection, recording, Cadence(recording, options.start_step, options.moment_every)
    )
    routers.begin_step(agent.step)
    axes.begin_step(agent.step)
    observer.step_readers.append(axes)
    finite = FiniteWeights(model, agent.nonfinite, agent.values)
    observer.step_readers += [weights, updates, moments, routers, scales, hooks, finite]
    weights.begin_step(agent.step)
    moments.begin_step(agent.step)
    for each in parallel or ():
        observer.step_readers.append(each)
        each.begin_step(agent.step)
    sketches = None
    if options.sketch_every:
        sketches = SketchReads(observer, agent.names, agent.guard, model, selection, layout, options.sketch_every)
        observer.sketches = sketches
        observer.host.due_readers.append(sketches)
        observer.step_readers.append(sketches)
        sketches.begin_step(agent.step)
    mesh = MeshReport(layout, agent.events)
    observer.step_readers.append(mesh)
    agent.guard.run("mesh", mesh.report)
    samples = WeightSamples(observer, agent.values, agent.events, model, selection, agent.in_forward)
    samples.begin_step(agent.step)
    observer.step_readers.append(samples)
    given = InputScale(observer, agent.values, agent.of_inputs)
    given.begin_step(agent.step)
    observer.step_readers.append(given)
    states = RandomStates(agent.events, agent.of_inputs)
    states.begin_step(agent.step)
    observer.step_readers.append(states)
    masks = MaskShares(observer, agent.guard, agent.values, agent.of_inputs, agent.fqns)
    agent.undo.callback(masks.remove)
    masks.begin_step(agent.step)
    observer.step_readers.append(masks)
    taken = UpdateSamples(observer, agent.values, agent.names, model, selection, options.start_step)
    taken.begin_step(agent.step)
    observer.step_readers.append(taken)
    bypass = WrapperBypass(layout, observer, agent.events, agent.guard, agent.undo)
    observer.step_readers.append(bypass)
    kept = hooks.parameters.kept
    coverage = OptimizerCoverage(
        observer, agent.events, model, selection, optimizers, kept, lambda: hooks.structure
    )  # fmt: skip
    rate, tied = LearningRate(agent, optimizers), TiedParameters(agent.events, model, lambda: hooks.structure)
    observer.step_readers += [coverage, rate, tied, AlikeRows(agent.values, model, options.start_step)]
    agent.at_end.append(rate.flush)

    def add(optimizer: Any) -> None:
        readers = (optimizers, updates, moments)
        _add_optimizer_reads(agent, optimizer, weights, updates, readers, parallel, kept, taken, samples, sketches)

    for optimizer in optimizers.every():
        add(optimizer)

    def follow(optimizer: Any) -> None:
        add_optimizer_phase(agent, optimizer, agent.undo)
        agent.nonfinite.add_optimizer(optimizer)
        optimizers.add(optimizer)
        coverage.look_soon()
        add(optimizer)

    return follow


def _check_formats(options: Options) -> None:
    """Raises `ValueError` where a format that is declared is none of ours."""
    for _, name in options.formats:
        if name not in BY_NAME:
            raise ValueError(f"rangewatch option formats: {name!r} is none of {', '.join(BY_NAME)}")


def _warn_of_formats(agent: Agent, device: torch.device) -> None:
    """Say of which declared formats nothing will be read."""
    kinds = {place.partition(":")[0] for place, _ in agent.options.formats}
    missing = sorted(kind for kind in kinds if not agent.recording.has(kind))
    if kinds and device.type != "cpu":
        logger.warning(
            "rangewatch: formats are read of tensors in host memory alone: nothing of them is read on %s", device
        )
    elif missing:
        logger.warning(
            "rangewatch: formats are declared of kinds that are not recorded, of which nothing is read: %s. "
            "attach(level='frames') records them, or kinds=[...]",
            ", ".join(missing),
        )


def _layout(model: nn.Module, options: Options, info: RankInfo) -> Layout:
    """Raises `ValueError` where the mesh that is declared, or an axis that is named, cannot be."""
    check_declared(options.mesh, info.world_size)
    layout = Layout(model, options.mesh, options.replicated, info.rank)
    if isinstance(options.replicated, tuple):
        layout.parameters()
        known = [axis.name for axis in layout.axes]
        missing = [name for name in options.replicated if name not in known]
        if missing:
            unknown = "no mesh is known: declare it, as mesh={'dp': 2, 'tp': 2}"
            has = f"the mesh has {', '.join(known)}" if known else unknown
            raise ValueError(f"rangewatch option replicated: there is no axis {missing[0]!r}; {has}")
    return layout


class ReadsOptimizer(Protocol):
    """What hears of each step of each optimizer."""

    def after(self, optimizer: Any) -> None:
        """It has updated its parameters."""


def _add_optimizer_reads(
    agent: Agent, optimizer: Any, weights: WeightReads, reads: OptimizerReads, readers: Sequence[ReadsOptimizer],
    parallel: ParallelReads | None, kept: KeptGradients, taken: UpdateSamples, samples: WeightSamples,
    sketches: SketchReads | None,
) -> None:  # fmt: skip
    reference = ref(optimizer)  # DeepSpeed's optimizers hold their model
    updated = kept.of(optimizer)

    def before(*args: Any) -> None:
        if agent.observer.is_active and not is_inner(args):
            began_ns = time.perf_counter_ns()
            weights.read_now()
            if has_closure(args):  # the forward and the backward are yet to come, inside the step
                reads.before_closure(agent.step, reference())
            else:
                reads.before(agent.step, reference())
            if parallel is not None:
                parallel.before_update()
            if sketches is not None:
                has_gradients = not has_closure(args)
                agent.guard.run("sketch", partial(sketches.before_update, reference(), has_gradients=has_gradients))
            if args:  # inside a compiled step weights are written when it is over
                taken.before(reference())
                if not has_closure(args):
                    samples.before(reference())
            agent.cost.add(began_ns)
            agent.stop_at_overflow()

    def after(*args: Any) -> None:
        if agent.observer.is_active and not is_inner(args):
            began_ns = time.perf_counter_ns()
            updated()
            for each in (*readers, samples):
                each.after(reference())
            taken.after()
            agent.cost.add(began_ns)

    loads = StateLoads(agent.guard, agent.observer, agent.events)
    loads.watch(stepping(optimizer), agent.undo)
    before_hook = CompiledCall(agent.guard, "before the update", before)
    after_hook = CompiledCall(agent.guard, "after the update", after)
    watch_step(optimizer, before_hook, after_hook, agent.undo)


def _forget(reference: ref[nn.Module]) -> None:
    model = reference()
    if model is not None:
        _attached.pop(model, None)


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"rangewatch.attach needs a torch.nn.Module, not {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise ValueError("rangewatch.attach: the model has no parameters")
    for name, module in model.named_modules():
        if module in _attached and _attached[module].is_active:  # not so in a forked child, which may attach anew
            raise ValueError("rangewatch.attach: the model is attached already; call rangewatch.detach(model) first")
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(f"rangewatch.attach: {name or 'the model'} is compiled already; attach before compiling")
    if model_hooks.is_watched(clean_modules(model)[""]):
        raise ValueError("rangewatch.attach: the model is part of one that is attached; detach that first")
