"""Finds the model that an optimizer trains, and attaches to it before its first forward.

Torch's optimizers and loss scalers say when they are made. The model is the outermost module that holds an optimizer's
parameters. It is attached when it is first called, as by then its wrappers and its scaler are there; or before
`torch.compile` has it, since hooks must be there before the graph is. Then every patch is taken back.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn

from rangewatch.core.guard import Guard, Guarded

MOST_MODELS = 4
"""A process that trains more of them, as a search over models does, is watched in its first ones."""

MOST_SEARCHES = 32
"""Optimizers whose model is looked for: a loop may make one for each batch."""

LAUNCHERS = ("torch.distributed", "torchrun", "accelerate", "deepspeed", "torch._inductor", "lightning_fabric")
"""Programs that start the ranks, or compile for them: they train nothing, and that is no news."""

_is_compiling = torch.compiler.is_compiling


class Patch(NamedTuple):
    """A function of torch's that was replaced."""

    owner: Any
    name: str
    own: Any
    ours: Any

    def undo(self) -> None:
        """Put torch's own back, unless somebody else has replaced ours since."""
        if getattr(self.owner, self.name, None) is self.ours:
            setattr(self.owner, self.name, self.own)


class Watch:
    """One process'. Called by whatever thread makes optimizers and calls models."""

    def __init__(self) -> None:
        self._guard = Guard()
        self._optimizers: list[ref[Any]] = []
        self._scalers: list[ref[Any]] = []
        self._patches: list[Patch] = []
        self._hooks: list[Any] = []
        self._attached: list[Any] = []
        self._said: set[str] = set()
        self._searches = 0
        self._is_busy = False

    def install(self) -> None:
        """From here on."""
        self._after(torch.optim.Optimizer, "__init__", lambda made, *_: self._made(made))
        self._after(torch.amp.GradScaler, "__init__", lambda made, *_: self._scalers.append(ref(made)))
        self._before(torch, "compile", self._compiles)
        self._before(nn.Module, "compile", self._compiles)
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Take back all that is still there."""
        while self._patches:
            self._patches.pop().undo()
        self._remove_hooks()
        atexit.unregister(self._at_exit)

    def _after(self, owner: Any, name: str, body: Callable[..., None]) -> None:
        own = getattr(owner, name)

        @functools.wraps(own)
        def ours(*args: Any, **options: Any) -> Any:
            result = own(*args, **options)
            self._guard.run("auto attach", lambda: body(*args))
            return result

        self._replace(owner, name, own, ours)

    def _before(self, owner: Any, name: str, body: Callable[[Any], None]) -> None:
        own = getattr(owner, name)

        @functools.wraps(own)
        def ours(*args: Any, **options: Any) -> Any:
            what = args[0] if args else options.get("model")
            self._guard.run("auto attach", lambda: body(what))
            return own(*args, **options)

        self._replace(owner, name, own, ours)

    def _replace(self, owner: Any, name: str, own: Any, ours: Any) -> None:
        setattr(owner, name, ours)
        self._patches.append(Patch(owner, name, own, ours))

    def _made(self, optimizer: Any) -> None:
        """An optimizer was made: wait for the first call of any module of what it trains."""
        self._optimizers.append(ref(optimizer))
        if len(self._attached) >= MOST_MODELS or self._searches >= MOST_SEARCHES:
            return
        self._searches += 1
        for model in _outermost(_parameters([optimizer])):
            hook = Guarded(self._guard, "auto attach", self._called)
            for module in _callable_parts(model):
                self._hooks.append(module.register_forward_pre_hook(hook))

    def _compiles(self, what: Any) -> None:
        """Something is compiled now; a function of the script's says nothing of when the model is ready."""
        if isinstance(what, nn.Module):
            self._attach()

    def _called(self, *args: Any) -> None:
        if not _is_compiling():
            self._attach()

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _attach(self) -> None:
        """To each model that has an optimizer by now, and is not attached yet."""
        optimizers = [each for each in (one() for one in self._optimizers) if each is not None]
        if self._is_busy or not optimizers:
            return
        self._is_busy = True
        try:
            self._remove_hooks()
            self._optimizers = []
            for model in _outermost(_parameters(optimizers)):
                self._attach_one(model, optimizers)
        finally:
            self._is_busy = False

    def _attach_one(self, model: nn.Module, optimizers: list[Any]) -> None:
        from rangewatch.api import attachment  # noqa: PLC0415 - only where there is something to attach to

        if any(each in attachment._attached for each in model.modules()):
            return  # the script does it itself
        own = {id(each) for each in model.parameters()}
        mine = [each for each in optimizers if own & set(_parameters([each]))]
        scalers = [each for each in (one() for one in self._scalers) if each is not None and each.is_enabled()]
        refused = ""
        for candidate in _uncompiled(model):
            try:
                handle = attachment.attach(candidate, mine, scaler=scalers or None)
            except (TypeError, ValueError) as error:
                refused = refused or str(error)
                continue
            self._attached.append(handle)
            if handle.is_active:
                parts = [type(candidate).__name__, *(type(each).__name__ for each in (*mine, *scalers))]
                self._say(f"rangewatch: attached to {parts[0]} with {' and '.join(parts[1:])}")
            return
        self._say(f"rangewatch: not attached to {type(model).__name__}: {refused}. The script runs as it is")

    def _say(self, line: str) -> None:
        if line not in self._said and os.environ.get("RANK", "0") == "0" and sys.stderr is not None:
            self._said.add(line)
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _at_exit(self) -> None:
        if self._attached or self._said or _is_launcher():
            return
        if sys.modules.get("rangewatch.api.attachment") is not None:
            return  # the script has attached itself
        what = (
            "the modules that hold its optimizers' parameters were never called"
            if self._optimizers
            else "it made no torch optimizer"
        )
        self._say(f"rangewatch: nothing was attached in process {os.getpid()}: {what}")


def _parameters(optimizers: Iterable[Any]) -> dict[int, Any]:
    """Those that the optimizers update, by id."""
    return {
        id(parameter): parameter
        for each in optimizers
        for group in getattr(each, "param_groups", ())
        for parameter in group["params"]
    }


def _outermost(parameters: dict[int, Any]) -> list[nn.Module]:
    """Modules that hold any of these parameters and are part of no other module that is called, as they come.

    A search of all objects, some 0.1 s with a million of them, once for each optimizer that is made.
    """
    holders = [each for each in _modules() if any(id(one) in parameters for one in each.parameters(recurse=True))]
    parts = {id(part) for each in holders for name, part in each.named_modules() if name}
    return [each for each in holders if id(each) not in parts]


def _modules() -> Iterator[nn.Module]:
    for each in gc.get_objects():
        # By its type: `isinstance` asks proxies for their `__class__`, which may do anything.
        if issubclass(type(each), nn.Module) and "_modules" in each.__dict__:
            yield each


def _callable_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Modules of it that are called outside compiled code: a hook inside would be traced."""
    if type(model).__name__ == "OptimizedModule":
        yield model
        return
    if getattr(model, "_compiled_call_impl", None) is None:
        yield model
    for each in model.children():
        yield from _callable_parts(each)


def _uncompiled(model: nn.Module) -> Iterator[nn.Module]:
    """What can be attached to: the model, or what was compiled inside it, which is compiled when it is first called."""
    inner = [getattr(each, "_orig_mod", None) for each in model.modules()]
    found = [each for each in inner if isinstance(each, nn.Module)]
    if type(model).__name__ != "OptimizedModule":
        yield model
    if len(found) == 1:  # blocks that are compiled one by one have no model around them
        yield found[0]
    if not found and type(model).__name__ == "OptimizedModule":
        yield model


def _is_launcher() -> bool:
    main: Any = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None) or os.path.basename(sys.argv[0] if sys.argv else "")  # noqa: PTH119
    return str(name).startswith(LAUNCHERS)


_watches: list[Watch] = []


def install() -> None:
    """Begin, once a process."""
    if not _watches:
        _watches.append(Watch())
        _watches[0].install()
