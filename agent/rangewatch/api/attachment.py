"""`attach` and the handle it returns. Wrong arguments raise here and at once; afterwards nothing of ours does.

`rank_info` and `run_name` say who this process is: rank, world size, local rank, host, run and incarnation, without
running any collective.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

import msgspec
import torch
from torch import nn

from rangewatch.api.agent import Agent
from rangewatch.api.on_alert import OnAlert
from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.collectors.collectives.exposed import ExposedSince
from rangewatch.core import limits
from rangewatch.core.guard import logger
from rangewatch.core.options import Options, resolve
from rangewatch.core.selection import Selection
from rangewatch.core.version import VERSION
from rangewatch.hooks import model_hooks
from rangewatch.hooks.compiled import CompiledCall
from rangewatch.hooks.model_hooks import ModelHooks
from rangewatch.hooks.module_sources import module_sources
from rangewatch.hooks.optimizer_hooks import OptimizerReads, has_closure
from rangewatch.recording.nonfinite_context import NonfiniteContext
from rangewatch.recording.replicas import ReplicaReads, Replicated
from rangewatch.recording.tensor_names import clean_modules
from rangewatch.recording.weights import Cadence, WeightReads, are_finite
from rangewatch.steps.boundary import is_inner
from rangewatch.steps.end_hooks import add_step_ends, as_list, check_optimizers, watch_step
from rangewatch.steps.loss_scale import check_scaler, is_loss_scaled
from rangewatch.steps.phases import add_phases
from rangewatch.wire.records import RankInfo

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


def attach(
    model: nn.Module,
    optimizer: Any = None,
    *,
    scaler: Any = None,
    run: str | None = None,
    url: str | None = None,
    token: str | None = None,
    kinds: Iterable[str] | None = None,
    level: str | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    allow_inf: Iterable[str] | None = None,
    full_every: int | None = None,
    weight_every: int | None = None,
    replica_every: int | None = None,
    replicated: bool | None = None,
    trace_batch_nums: Iterable[int] | None = None,
    abort_after_batch_num: int | None = None,
    on_overflow: str | None = None,
    on_alert: OnAlert | None = None,
    budget_percent: float | None = None,
    histograms: bool | None = None,
    collect: Iterable[str] | None = None,
    ship_every: int | None = None,
    ship_interval_s: float | None = None,
    start_step: int | None = None,
    enabled: bool | None = None,
    spool_dir: str | None = None,
    spool_bytes: int | None = None,
    watcher: bool | None = None,
    queue_bytes: int | None = None,
    flush_timeout_s: float | None = None,
    backend: str | None = None,
) -> Handle:
    """Watch the numeric ranges of `model` in training and send them to a Rangewatch server.

    `optimizer` is one or a list; the step ends when it steps, or at `scaler.update()` when a `scaler` is given that is
    enabled; without both, call `step()` on the handle. `scaler` is one or a list: a torch GradScaler, or a DeepSpeed or
    Megatron optimizer; left out, it is the one that the optimizer brings along. The other arguments are described in
    `options.Options`; each can be an environment variable `RANGEWATCH_<NAME>` instead. Call it after the process group
    is initialised and before the model is compiled; before or after wrapping in DDP is the same.

    A process may attach several models. Each is a run of its own: where the name is taken by a model that is attached
    already, "/" and the model's class are added to it, with a number if need be, and a warning says so.

    Raises `TypeError` or `ValueError` for arguments that cannot be right. A server that cannot be reached is no error.
    """
    options = resolve(
        {
            "run": run, "url": url, "token": token, "kinds": kinds, "level": level, "include": include,
            "exclude": exclude, "allow_inf": allow_inf, "full_every": full_every, "weight_every": weight_every,
            "replica_every": replica_every, "replicated": replicated,
            "trace_batch_nums": trace_batch_nums, "abort_after_batch_num": abort_after_batch_num,
            "on_overflow": on_overflow, "on_alert": on_alert, "budget_percent": budget_percent,
            "histograms": histograms, "collect": collect, "ship_every": ship_every, "ship_interval_s": ship_interval_s,
            "start_step": start_step, "enabled": enabled,
            "spool_dir": spool_dir, "spool_bytes": spool_bytes, "watcher": watcher,
            "queue_bytes": queue_bytes, "flush_timeout_s": flush_timeout_s, "backend": backend,
        }
    )  # fmt: skip
    optimizers = as_list(optimizer)
    if not options.enabled:
        return Handle(None)
    _check_model(model)
    check_optimizers(optimizers, model)
    if scaler is not None:
        check_scaler(scaler)
    return _attach(model, optimizers, scaler, options)


def detach(model: nn.Module) -> None:
    """The same as `detach` of the handle that `attach` returned for this model. Raises `ValueError` when it is not."""
    handle = _attached.get(model)
    if handle is None:
        raise ValueError("rangewatch.detach: the model is not attached")
    handle.detach()


class Handle:
    """An attached model. Use it as a context manager, or call `detach` at the end; the end of the process does too."""

    def __init__(self, agent: Agent | None, remove: Callable[[], None] = lambda: None, *, steps_alone: bool = False):
        self._agent, self._remove, self._steps_alone = agent, remove, steps_alone

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

        After the step has ended and before the next forward, a value belongs to the step that has just ended, unless
        one of this name was logged for that already. The names of the agent's own series
        (`logged_values.OWN_SERIES`) are refused.
        """
        agent = self._agent
        if agent is not None and agent.observer.is_active:
            agent.guard.run("log", lambda: agent.log(values))

    def step(self) -> None:
        """End the step, in loops that gave no optimizer to `attach`; does nothing in others."""
        agent = self._agent
        if agent is not None and self._steps_alone:
            agent.guard.run("step", agent.close_step)

    def detach(self) -> None:
        """Remove every hook, send what is left within `flush_timeout_s`, and end the thread. Later calls do nothing."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.guard.run("detach", self._remove)
            agent.finish()

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


def _attach(model: nn.Module, optimizers: list[Any], scaler: Any, options: Options) -> Handle:
    selection = Selection(options)
    selection.check(clean_modules(model))
    device = next(model.parameters()).device
    info = rank_info(
        options.run,
        device,
        loss_scaled=is_loss_scaled(scaler, optimizers),
        ship_every=options.ship_every,
        takes_alerts=options.on_alert != "record",
    )
    taken = {handle.run for handle in _attached.values() if handle.is_active}
    agent = Agent(options, distinguished(info, type(clean_modules(model)[""]).__name__, taken))
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as failed:
        failed.callback(agent.runner.stop)
        add_phases(agent, model, optimizers, scaler, undo)
        _add_hooks(agent, model, optimizers, selection, undo)
        add_step_ends(agent, optimizers, scaler, undo)
        _watch_collectives(agent, model)
        undo.callback(_forget, ref(model))
        agent.start()
        agent.guard.run("module sources", lambda: agent.add_event("modules", data=module_sources(clean_modules(model))))
        agent.remove = undo.pop_all().close
        failed.pop_all()
        handle = Handle(agent, agent.remove, steps_alone=not optimizers and scaler is None)
    finalize(handle, agent.let_go).atexit = False
    _attached[model] = handle
    return handle


def _watch_collectives(agent: Agent, model: nn.Module) -> None:
    for each in agent.runner.collectors:
        if isinstance(each, Collectives):
            each.open_step = lambda: agent.step
            each.recorder.shared_state = agent.shared_state
            each.watch(model)
            agent.phase_sources.append(ExposedSince(each, lambda: agent.step))


def _add_hooks(
    agent: Agent, model: nn.Module, optimizers: list[Any], selection: Selection, undo: contextlib.ExitStack
) -> None:
    observer, recording, options = agent.observer, agent.recording, agent.options
    hooks = ModelHooks(observer, agent.guard, model, selection, recording.wanted)
    undo.callback(hooks.remove)
    agent.update_hooks, agent.control.fqns = hooks.record, lambda: hooks.fqns.values()
    cadence = Cadence(recording, options.start_step, options.weight_every)
    weights = WeightReads(observer, model, selection, recording, cadence)
    updates = OptimizerReads(observer, model, selection, recording, cadence)
    observer.after_opening.append(weights.begin_step)
    observer.before_closing += [weights.read_now, updates.end_step, hooks.end_step]
    weights.begin_step(agent.step)
    _emit_nonfinite(agent, model, hooks, optimizers)
    replicas = _replica_reads(agent, model)
    for optimizer in optimizers:
        _add_optimizer_reads(agent, optimizer, weights, updates, replicas, undo)


def _replica_reads(agent: Agent, model: nn.Module) -> ReplicaReads | None:
    options, observer = agent.options, agent.observer
    if not options.replica_every:
        return None
    every = max(options.replica_every, options.ship_every)  # of steps that are merged one is read
    replicated = Replicated(model, is_reported=options.replicated)
    reads = ReplicaReads(observer, agent.names, replicated, every, agent.in_forward)
    observer.after_opening.append(reads.begin_step)
    observer.before_closing.append(reads.read_now)
    reads.begin_step(agent.step)
    return reads


def _emit_nonfinite(agent: Agent, model: nn.Module, hooks: ModelHooks, optimizers: list[Any]) -> None:
    context = NonfiniteContext(agent.names, agent.guard, agent.options.allow_inf, hooks.fqns, optimizers)
    context.open_step, context.emit = lambda: agent.step, agent.add_event
    agent.observer.host.nonfinite_seen = context.seen
    agent.batched.append(context.look_at)
    reference = ref(model)

    def begin_step(step: int) -> None:
        model = reference() if context.wants_weights else None
        if model is not None:
            context.wants_weights = False
            if (value := are_finite(model)) is not None:
                agent.record({"weights_finite": value})

    agent.observer.after_opening.append(begin_step)


def _add_optimizer_reads(
    agent: Agent, optimizer: Any, weights: WeightReads, reads: OptimizerReads, replicas: ReplicaReads | None,
    undo: contextlib.ExitStack,
) -> None:  # fmt: skip
    reference = ref(optimizer)  # DeepSpeed's optimizers hold their model

    def before(*args: Any) -> None:
        if agent.observer.is_active and not is_inner(args):
            began_ns = time.perf_counter_ns()
            weights.read_now()
            if has_closure(args):  # the forward and the backward are yet to come, inside the step
                reads.before_closure(agent.step, reference())
            else:
                reads.before(agent.step, reference())
            if replicas is not None:
                replicas.read_now()
            agent.cost.add(began_ns)
            agent.stop_at_overflow()

    def after(*args: Any) -> None:
        if agent.observer.is_active and not is_inner(args):
            began_ns = time.perf_counter_ns()
            reads.after(reference())
            agent.cost.add(began_ns)

    before_hook = CompiledCall(agent.guard, "before the update", before)
    after_hook = CompiledCall(agent.guard, "after the update", after)
    watch_step(optimizer, before_hook, after_hook, undo)


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
