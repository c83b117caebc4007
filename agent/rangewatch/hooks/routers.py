"""Routers of a mixture of experts: which modules they are, and what each call of one has decided.

They are known by their name (`router`, `gate`, ...) or class, where the module or the one that holds it says how many
experts there are; `attach(routers=[...])` names others. What they return is read where their outputs are
(`module_hook`): the counts are in the row of the first floating tensor of a router's output, where that is recorded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.recording.events import Events
from rangewatch.recording.observer import Observer, StepReader, local_part
from rangewatch.statistics import experts as columns
from rangewatch.statistics import routing
from rangewatch.statistics.routing import Choice
from rangewatch.statistics.sparse import EXPERTS
from rangewatch.wire.events import Router, Routers

_NAME = re.compile(r"(^|\.)(router|gate|wg|gating)$")
_CLASS = re.compile(r"(Router|TopK\w*Gate|Top\d\w*Gate)$", re.IGNORECASE)
_TOP = re.compile(r"[Tt]op_?(\d+)")
_EXPERTS = (
    "num_experts", "n_routed_experts", "num_local_experts", "num_routed_experts", "n_experts", "num_moe_experts",
    "moe_num_experts", "num_total_experts",
)  # fmt: skip
_TOP_K = (
    "top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_router_topk",
    "moe_top_k", "moe_topk", "n_activated_experts", "k",
)  # fmt: skip
"""What libraries call these, on a router, on the module that holds it, or on their `config`."""

_ROUTED, _SAMPLED, _ENTROPY = (slice(EXPERTS.start + at, EXPERTS.start + at + 1) for at in range(3))
_COUNTED = EXPERTS.start + columns.OF_ROUTER - 1

CANNOT_READ = "experts: who goes where is not in what the router returns (places, a mask, or logits with a top_k)"
COMPILED = "experts: compiled, where no choice of a router is read"
TOO_MANY = f"experts: more than {columns.MOST}"
LATE = "experts: more than any router had at attach"


class KnownRouter:
    """One router, by the clean name of its module, and its `logits`: the name of the layer inside that gives them."""

    __slots__ = ("choice", "experts", "fqn", "index", "is_linear", "logits", "sample_logits", "shapes", "top_k")

    def __init__(self, fqn: str, experts: int, top_k: int, *, is_linear: bool, logits: str) -> None:
        self.fqn, self.experts, self.top_k, self.is_linear, self.logits = fqn, experts, top_k, is_linear, logits
        self.choice: Choice | None = None
        self.index = -1
        """Of the tensor that has the sums, in what it returns."""
        self.shapes: tuple[Any, ...] = ()
        """Dtypes and dimensions of what it returned when `choice` was made."""


class RouterReads:
    """Called after a module's outputs were read: a router, or (`is_logits`) the layer of one that gives its logits."""

    __slots__ = ("_of", "_routers", "is_logits")

    def __init__(self, routers: RouterHooks, of: KnownRouter, *, is_logits: bool) -> None:
        self._routers, self._of, self.is_logits = routers, of, is_logits

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """`leaves` were returned, of which those that are recorded have `numbers`, -1 for the others."""
        if self.is_logits:
            self._routers.read_logits(leaves[0], numbers[0])
        else:
            self._routers.read(self._of, leaves, numbers)

    def compiled(self) -> None:
        """It runs inside a compiled graph."""
        if not self.is_logits:
            self._routers.note(self._of, COMPILED)


class RouterHooks(StepReader):
    """The routers of one attached model. `names`: patterns of modules that are routers too."""

    def __init__(self, observer: Observer, events: Events, names: tuple[str, ...]) -> None:
        self._observer, self._events, self._names = observer, events, names
        self._reads: WeakKeyDictionary[nn.Module, RouterReads] = WeakKeyDictionary()
        self._known: dict[str, KnownRouter] = {}
        self._takes_entropy = self._is_changed = False
        self.most_experts = 0
        """Of any router: as many as the catalogue has columns for, once training has begun."""

    def find(self, modules: Mapping[str, nn.Module], *, may_grow: bool = False) -> None:
        """Look for routers among modules by their clean names. `may_grow`: nothing is shipped yet.

        Raises `ValueError` for a name that no module has.
        """
        for pattern in self._names:
            if may_grow and not any(fnmatchcase(fqn, pattern) for fqn in modules):
                raise ValueError(f"rangewatch option routers: {pattern!r} matches no module of the model")
        for fqn, module in modules.items():
            if module not in self._reads:
                holder = modules.get(fqn.rpartition(".")[0]) if fqn else None
                self._add(fqn, module, holder, may_grow=may_grow)

    def of(self, module: nn.Module) -> RouterReads | None:
        """What reads the module; None for most."""
        return self._reads.get(module) if self._reads else None

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._takes_entropy = step % limits.ENTROPY_EVERY == 0

    def end_step(self) -> None:
        """Say which routers there are, once they have been called."""
        if self._is_changed:
            self._is_changed = False
            self._events.add(Routers(tuple(_details(each) for each in self._known.values() if each.choice)))

    def note(self, router: KnownRouter, reason: str) -> None:
        """It is not observed."""
        self._observer.note_not_observed(router.fqn, reason)

    def read(self, router: KnownRouter, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """Count the tokens of each expert, in the row of the first tensor that has a number."""
        index = next((at for at, number in enumerate(numbers) if number >= 0), -1)
        leaves = [local_part(each) if isinstance(each, Tensor) else each for each in leaves]
        choice = self._choice(router, leaves)
        if choice is None or index < 0:
            return
        if not self._observer.can_read(leaves[index]):
            return
        if index != router.index:
            router.index, self._is_changed = index, True
        number = numbers[index]
        counted = slice(_COUNTED, _COUNTED + 1 + choice.experts)
        self._observer.add_sums(number, _ROUTED, _number(routing.tokens(leaves, choice)))
        self._observer.add_sums(number, counted, routing.counts(leaves, choice))
        if choice.logits >= 0 and not router.logits:
            self.read_logits(leaves[choice.logits], number)

    def read_logits(self, logits: Any, number: int) -> None:
        """Take the entropy of router logits, in the row of `number`."""
        if not self._takes_entropy or number < 0 or not isinstance(logits, Tensor):
            return
        logits = local_part(logits)
        if logits.dim() and logits.numel() and self._observer.can_read(logits):
            rows = routing.sampled(logits)
            self._observer.add_sums(number, _SAMPLED, _number(len(rows)))
            self._observer.add_sums(number, _ENTROPY, routing.entropy_millibits(rows))

    def _choice(self, router: KnownRouter, leaves: Sequence[Any]) -> Choice | None:
        shapes = tuple((each.dtype, each.shape[1:]) if isinstance(each, Tensor) else None for each in leaves)
        if shapes != router.shapes:
            router.shapes = shapes
            choice = routing.interpret(leaves, router.experts, router.top_k, is_linear=router.is_linear)
            if choice is not None and choice.experts > self.most_experts:
                self.note(router, TOO_MANY if choice.experts > columns.MOST else LATE)
                choice = None
            elif choice is None:
                self.note(router, CANNOT_READ)
            if choice != router.choice:
                router.choice, self._is_changed = choice, True
        return router.choice

    def _add(self, fqn: str, module: nn.Module, holder: nn.Module | None, *, may_grow: bool) -> None:
        is_named = any(fnmatchcase(fqn, pattern) for pattern in self._names)
        is_router = bool(_CLASS.search(type(module).__name__))
        if not is_named and not is_router and not _NAME.search(fqn):
            return
        layers = [(name, each) for name, each in module.named_modules() if isinstance(each, nn.Linear)]
        experts = _whole(_EXPERTS, module, holder, has_config=is_named or is_router)
        if is_named and not experts and layers:
            experts = layers[-1][1].out_features
        if experts < 2 and not is_named:
            return
        is_linear = isinstance(module, nn.Linear)
        if not is_named and is_linear and getattr(module, "out_features", 0) != experts:
            return
        of_class = _TOP.search(type(module).__name__)
        top_k = int(of_class[1]) if of_class else _whole(_TOP_K, module, holder, has_config=True)
        if may_grow:
            self.most_experts = max(self.most_experts, min(experts, columns.MOST) if experts else columns.MOST)
        inside = [(name, each) for name, each in layers if name and each.out_features == experts]
        logits = f"{fqn}.{inside[0][0]}" if fqn and len(inside) == 1 else inside[0][0] if len(inside) == 1 else ""
        known = self._known[fqn] = KnownRouter(fqn, experts, top_k, is_linear=is_linear, logits=logits)
        self._reads[module] = RouterReads(self, known, is_logits=False)
        if logits:
            self._reads[inside[0][1]] = RouterReads(self, known, is_logits=True)


def _whole(names: Sequence[str], module: nn.Module, holder: nn.Module | None, *, has_config: bool) -> int:
    """The first of these attributes that is a whole number from 1: of the router, of what holds it, of their config.

    `has_config` False leaves the configs out: that of a model of experts is on all its modules.
    """
    for of in (module, holder):
        for each in (of, _value(of, "config") if has_config else None):
            for name in names:
                value = _value(each, name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return 0


def _value(of: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # a property of the user's may raise anything
        return getattr(of, name, None)
    return None


def _number(value: int) -> Tensor:
    return torch.tensor([float(value)], dtype=torch.float64)


def _details(router: KnownRouter) -> Router:
    choice = router.choice
    assert choice is not None
    logits = router.logits or (router.fqn if choice.logits >= 0 else "")
    index = 0 if router.logits else max(choice.logits, 0)
    return Router(router.fqn, choice.experts, choice.top_k, max(router.index, 0), logits, index, choice.sees_drops)
