"""Event `optimizers`: which trainable parameters no optimizer has, and which of an optimizer's no backward reaches; and
whether all learning rates are 0, or gradients are kept from one update to the next.

Looked at at the ends of the 2nd, 4th, 8th step and so on, and when the model has other parameters or modules; sent when
it is another than before: layers may be unfrozen and optimizers made anew, and an expert may wait long for its first
token. Learning rates are looked at at the end of each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.parameter import is_lazy

from rangewatch.core import limits
from rangewatch.core.selection import Selection
from rangewatch.hooks.optimizers.in_use import OptimizersInUse, parameters_held
from rangewatch.hooks.optimizers.kept_gradients import KeptGradients
from rangewatch.hooks.parameter_hooks import flat_parameters
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.wire.events import Optimizers

ZERO_RATE_STEPS = 64
"""Steps in a row with learning rates of 0 that are reported: a warm-up may begin with one, and a schedule end so."""


KEPT_STEPS = 12
"""Updates in a row by gradients that were not zeroed before that are reported: nobody means to sum so many, and at a
usual rate a training by SGD is lost within 30 of them."""


DECAYED, DECOUPLED = 0.1, ("SGD", "AdamW")
"""Part of each weight that the decay takes with one update, from which on it is reported; and torch's optimizers that
take the learning rate times the decay of a weight."""

USUAL_DECAY = 1.0
"""A decay below it is not too large: where it takes so much the learning rate is, and that has its own rules."""


class OptimizerCoverage(StepReader):
    """Called by the training thread, between steps. It reads no tensor. `structure()`: another number when the model
    has other parameters or modules.

    Of optimizers that hold copies of the parameters (DeepSpeed's, Megatron's) and of FSDP1's flat parameters nothing is
    said: which parameter belongs to which is not known.
    """

    def __init__(
        self, observer: Observer, events: Events, model: nn.Module, selection: Selection,
        optimizers: OptimizersInUse, kept: KeptGradients, structure: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self._kept, self._was_kept, self._is_runaway, self._is_decayed = kept, False, False, False
        self._observer, self._events, self._model, self._selection = observer, events, ref(model), selection
        self._optimizers, self._was_resting = optimizers, optimizers.resting
        self._step_count = self._zero_rate_steps = 0
        self._ever_reached: set[str] = set()
        """Names of parameters of which one has had a gradient."""
        self._reported = Optimizers()
        self._structure, self._known_structure = structure, structure()
        self._held: dict[str, int] = {}
        """`id` of the parameter that had a name and was an optimizer's, as it was last."""

    def look_soon(self) -> None:
        """Another optimizer trains the model too: read anew when the open step ends."""
        self._step_count = 1

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._step_count += 1
        was_zero = self._zero_rate_steps >= ZERO_RATE_STEPS
        self._zero_rate_steps = self._zero_rate_steps + 1 if self._are_rates_zero() else 0
        is_zero = self._zero_rate_steps >= ZERO_RATE_STEPS
        was_kept, self._was_kept = self._was_kept, self._kept.step_count >= KEPT_STEPS
        optimizers = list(self._optimizers.in_use())
        was_runaway, self._is_runaway = self._is_runaway, _momentum(optimizers)[0] >= 1
        is_due = self._step_count >= 2 and not self._step_count & (self._step_count - 1)
        was_structure, self._known_structure = self._known_structure, self._structure()
        if self._known_structure != was_structure:
            is_due, self._step_count = True, 1  # what is new has had no backward yet: it is looked at soon again
        was_decayed, self._is_decayed = self._is_decayed, _is_reported(_decay(optimizers)[0])
        is_same = was_zero == is_zero and was_kept == self._was_kept and was_runaway == self._is_runaway
        was_resting, self._was_resting = self._was_resting, self._optimizers.resting
        is_same = is_same and was_decayed == self._is_decayed and was_resting == self._was_resting
        if not is_due and is_same:
            return
        read = self._read()
        if read is not None and read != self._reported:
            self._reported = read
            self._events.add(read)

    def _are_rates_zero(self) -> bool:
        """Whether each parameter group of those in use has a learning rate of exactly 0. One that lies on a device is
        not read: that would wait for it."""
        rates = [group.get("lr") for each in self._optimizers.in_use() for group in getattr(each, "param_groups", ())]
        return bool(rates) and all(isinstance(rate, (int, float)) and rate == 0 for rate in rates)

    def _read(self) -> Optimizers | None:
        model = self._model()
        optimizers = list(self._optimizers.every())
        if model is None or not optimizers or flat_parameters(model):
            return None
        named = [(fqn, each) for fqn, each in clean_parameters(model) if not is_lazy(each)]
        own = {id(each) for _, each in named}.union(self._held.values())
        taken: set[int] = set()
        for optimizer in optimizers:
            held = parameters_held(optimizer)
            if not held & own:
                return None
            taken |= held
        trainable = [(fqn, each) for fqn, each in named if each.requires_grad and self._selection.has(fqn)]
        silent = {fqn for fqn, hook in list(self._observer.unreached.items()) if not hook.has_run()}
        is_reached = any(fqn not in silent for fqn, _ in trainable)
        left_out = [fqn for fqn, each in trainable if id(each) not in taken]
        present = {id(each) for _, each in named}
        # An optimizer keeps its parameters alive: no other object has such an id meanwhile.
        replaced = [fqn for fqn in left_out if (was := self._held.get(fqn)) in taken and was not in present]
        renewed = [fqn for fqn, each in named if id(each) in taken and self._held.get(fqn, id(each)) != id(each)]
        self._held.update({fqn: id(each) for fqn, each in named if id(each) in taken})
        orphans = _without_gradient(optimizers, present) if left_out else 0
        # A parameter that took another's place has a hook of its own, which has not run yet: the name was reached.
        self._ever_reached.update(fqn for fqn, _ in trainable if fqn not in silent)
        never = silent - self._ever_reached
        unreached = [fqn for fqn, each in trainable if id(each) in taken and fqn in never] if is_reached else []
        switched, switched_to = _switched(named, model, taken)
        in_use = list(self._optimizers.in_use())
        part, decayed = _decay(in_use)
        return Optimizers(
            classes=tuple(type(each).__name__ for each in in_use[: limits.CONTEXT_TENSORS]),
            left_out=tuple(left_out[: limits.ACCOUNT_NAMES]),
            left_out_count=len(left_out),
            unreached=tuple(unreached[: limits.ACCOUNT_NAMES]),
            unreached_count=len(unreached),
            trainable_count=len(trainable),
            zero_rate_steps=self._zero_rate_steps if self._zero_rate_steps >= ZERO_RATE_STEPS else 0,
            kept_gradient_steps=self._kept.step_count if self._was_kept else 0,
            groups=_group_names(optimizers, {id(each): fqn for fqn, each in named}),
            replaced=tuple(replaced[: limits.ACCOUNT_NAMES]),
            renewed=tuple(renewed[: limits.ACCOUNT_NAMES]),
            orphan_count=orphans,
            frozen_count=sum(not each.requires_grad for fqn, each in named if self._selection.has(fqn)),
            initial_lr=next(iter(rates)) if len(rates := set(_numbers(in_use, "initial_lr"))) == 1 else 0.0,
            weight_decay=max(_numbers(in_use, "weight_decay"), default=0.0),
            is_decoupled=any(
                group.get("decoupled_weight_decay") for each in in_use for group in getattr(each, "param_groups", ())
            ),
            momentum=(moving := _momentum(in_use))[0],
            maximizes=bool(groups := [group for each in in_use for group in getattr(each, "param_groups", ())])
            and all(group.get("maximize") is True for group in groups),
            second_beta=moving[1],
            switched=switched,
            switched_to=switched_to,
            cut_in=_cut_in(unreached, self._observer.graphs),
            decay_part=part if _is_reported(part) else 0.0,
            decay_of=next((fqn for fqn, each in named if id(each) == decayed), "") if _is_reported(part) else "",
        )


def _cut_in(unreached: Sequence[str], graphs: Mapping[str, bool]) -> tuple[str, ...]:
    """The innermost module around each of these parameters that gives what has no graph, where a module in it that is
    around the parameter too gives what has one: the graph is cut between them, in the code of the outer one."""
    found: dict[str, None] = {}
    for fqn in unreached:
        module, has_graph = fqn.rpartition(".")[0], False
        while module:
            known = graphs.get(module)
            if known is False and has_graph:
                found[module] = None
                break
            has_graph = has_graph or known is True
            module = module.rpartition(".")[0]
    return tuple(found)[: limits.ACCOUNT_NAMES]


def _switched(
    named: Sequence[tuple[str, nn.Parameter]], model: nn.Module, taken: Container[int]
) -> tuple[tuple[str, ...], bool]:
    """Names of modules whose attribute requires_grad, which is the loop's own, is the opposite of what all their
    parameters have; and its value, of the first. Of those that were to be frozen such as an optimizer trains. The names
    are those of the parameters in them, which are without a wrapper's part."""
    fqns = {id(each): fqn for fqn, each in named}
    found = []
    for module in model.modules():
        wanted = vars(module).get("requires_grad")
        if not isinstance(wanted, bool):
            continue
        own = [each for each in module.parameters() if id(each) in fqns]
        is_trained = any(id(each) in taken for each in own)
        if own and {each.requires_grad for each in own} == {not wanted} and (wanted or is_trained):
            found.append((_common([fqns[id(each)] for each in own]), wanted))
    value = found[0][1] if found else False
    same = [sendable(name)[: limits.NAME_CHARACTERS] for name, wanted in found if wanted == value]
    return tuple(same[: limits.ACCOUNT_NAMES]), value


def _common(names: Sequence[str]) -> str:
    """The innermost module that holds all of these parameters; "" where that is the model."""
    parts = [each.split(".")[:-1] for each in names]
    return ".".join(part[0] for part in takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False)))


def _without_gradient(optimizers: Iterable[Any], present: Container[int]) -> int:
    """How many of their parameters are none of the model's and have no gradient, where one of the model's has."""
    held = [each for one in optimizers for group in getattr(one, "param_groups", ()) for each in group["params"]]
    if not any(id(each) in present and getattr(each, "grad", None) is not None for each in held):
        return 0
    return sum(id(each) not in present and getattr(each, "grad", None) is None for each in held)


def _group_names(optimizers: Iterable[Any], names: Mapping[int, str]) -> tuple[str, ...]:
    """`names`: `id` of a parameter -> its FQN. () where there is one group alone."""
    groups = [group for each in optimizers for group in getattr(each, "param_groups", ())]
    if len(groups) < 2:
        return ()
    own = (group.get("name") for group in groups)
    first = (next((names[id(each)] for each in group["params"] if id(each) in names), "") for group in groups)
    chosen = (name if isinstance(name, str) and name else fqn for name, fqn in zip(own, first, strict=True))
    return tuple(sendable(each)[: limits.NAME_CHARACTERS] for each in islice(chosen, limits.RATE_GROUPS))


def _momentum(optimizers: Iterable[Any]) -> tuple[float, float]:
    """The largest of any parameter group, and the second beta beside it; 0 where there is none, or not on the host."""
    found = [(0.0, 0.0)]
    for group in (group for each in optimizers for group in getattr(each, "param_groups", ())):
        given = group.get("betas", (group.get("momentum"), 0.0))
        if isinstance(given, (tuple, list)) and len(given) > 1:
            first, second = (float(each) if isinstance(each, (int, float)) else 0.0 for each in given[:2])
            found.append((first, second))
    return max((each for each in found if all(map(math.isfinite, each))), default=(0.0, 0.0))


def _decay(optimizers: Iterable[Any]) -> tuple[float, int]:
    """The largest learning rate times weight decay of any parameter group where that is the part which an update takes
    of each weight, and the `id` of its first parameter; 0 where there is none, or not on the host. A decay below 0,
    which adds to each weight, counts before all others. An Adam without a state has taken no step yet, as one that is
    made for a later stage: what is set may be changed until then."""
    found = [(0.0, 0)]
    for optimizer in optimizers:
        if type(optimizer).__name__ != "SGD" and not getattr(optimizer, "state", True):
            continue
        for group in getattr(optimizer, "param_groups", ()):
            if type(optimizer).__name__ not in DECOUPLED and not group.get("decoupled_weight_decay"):
                continue
            rate, decay = group.get("lr"), group.get("weight_decay")
            is_known = all(isinstance(each, (int, float)) and math.isfinite(each) for each in (rate, decay))
            if is_known and (decay >= USUAL_DECAY or decay < 0 < rate):  # a rate below 0 is no matter of the decay
                found.append((float(rate * decay), id(group["params"][0]) if group["params"] else 0))
    return min(found) if min(found)[0] < 0 else max(found)


def _is_reported(part: float) -> bool:
    return part >= DECAYED or part < 0


def _numbers(optimizers: Iterable[Any], name: str) -> Iterator[float]:
    """Of each parameter group, where it is a finite number on the host, and 0 where there is none."""
    groups = (group for each in optimizers for group in getattr(each, "param_groups", ()))
    values = (group.get(name) for group in groups)
    return (float(each) if isinstance(each, (int, float)) and math.isfinite(each) else 0.0 for each in values)
