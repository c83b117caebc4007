"""`attach` and the handle it returns. Wrong arguments raise here and at once; afterwards nothing of ours does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from torch import nn

from rangewatch import forward_hook, identity
from rangewatch.collectors.collectives import Collectives
from rangewatch.collectors.exposed import ExposedSince
from rangewatch.compiled import CompiledCall
from rangewatch.inner_steps import is_inner
from rangewatch.loss_scale import check_scaler, is_loss_scaled
from rangewatch.model_hooks import ModelHooks
from rangewatch.module_sources import module_sources
from rangewatch.nonfinite_context import NonfiniteContext
from rangewatch.on_alert import OnAlert
from rangewatch.optimizer_reads import OptimizerReads, has_closure
from rangewatch.options import Options, resolve
from rangewatch.replicas import ReplicaReads
from rangewatch.replicated import Replicated
from rangewatch.selection import Selection
from rangewatch.step_ends import add_step_ends, as_list, check_optimizers, watch_step
from rangewatch.step_phases import add_phases
from rangewatch.tensor_names import clean_modules
from rangewatch.weights import Cadence, WeightReads, are_finite
from rangewatch.worker import Agent

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
    info = identity.rank_info(
        options.run,
        device,
        loss_scaled=is_loss_scaled(scaler, optimizers),
        ship_every=options.ship_every,
        takes_alerts=options.on_alert != "record",
    )
    taken = {handle.run for handle in _attached.values() if handle.is_active}
    agent = Agent(options, identity.told_apart(info, type(clean_modules(model)[""]).__name__, taken))
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
            each.ledger.scene = agent.kept
            each.watch(model)
            agent.phase_sources.append(ExposedSince(each, lambda: agent.step))


def _add_hooks(
    agent: Agent, model: nn.Module, optimizers: list[Any], selection: Selection, undo: contextlib.ExitStack
) -> None:
    observer, recording, options = agent.observer, agent.recording, agent.options
    hooks = ModelHooks(observer, agent.guard, model, selection, recording.wanted)
    undo.callback(hooks.remove)
    agent.tell_hooks, agent.control.fqns = hooks.record, lambda: hooks.fqns.values()
    cadence = Cadence(recording, options.start_step, options.weight_every)
    weights = WeightReads(observer, model, selection, recording, cadence)
    updates = OptimizerReads(observer, model, selection, recording, cadence)
    observer.after_opening.append(weights.begin_step)
    observer.before_closing += [weights.read_now, updates.end_step, hooks.end_step]
    weights.begin_step(agent.step)
    _tell_of_nonfinite(agent, model, hooks, optimizers)
    replicas = _replica_reads(agent, model)
    for optimizer in optimizers:
        _add_optimizer_reads(agent, optimizer, weights, updates, replicas, undo)


def _replica_reads(agent: Agent, model: nn.Module) -> ReplicaReads | None:
    options, observer = agent.options, agent.observer
    if not options.replica_every:
        return None
    every = max(options.replica_every, options.ship_every)  # of steps that are merged one is read
    replicated = Replicated(model, is_told=options.replicated)
    reads = ReplicaReads(observer, agent.names, replicated, every, agent.in_forward)
    observer.after_opening.append(reads.begin_step)
    observer.before_closing.append(reads.read_now)
    reads.begin_step(agent.step)
    return reads


def _tell_of_nonfinite(agent: Agent, model: nn.Module, hooks: ModelHooks, optimizers: list[Any]) -> None:
    context = NonfiniteContext(agent.names, agent.guard, agent.options.allow_inf, hooks.fqns, optimizers)
    context.open_step, context.tell = lambda: agent.step, agent.add_event
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
    if forward_hook.is_watched(clean_modules(model)[""]):
        raise ValueError("rangewatch.attach: the model is part of one that is attached; detach that first")
