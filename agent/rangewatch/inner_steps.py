"""A step inside a step: an optimizer whose `step` calls its parent class's is hooked twice by torch.

Torch wraps the `step` of each class of which there is an instance, so its hooks are called for the inner call and again
for the outer one, if the parent class was instantiated too.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from torch.optim import Optimizer


def is_inner(arguments: tuple[Any, ...]) -> bool:
    """Whether the step hook that was called with `arguments` belongs to a step inside a step of the same optimizer.

    The stack tells, which no exception in a step leaves in disorder as it would a counter. It is looked at only where
    it can happen. In compiled code, where a hook gets no arguments, it is not known.
    """
    if not arguments or _CODE is None or not _is_wrapped_twice(type(arguments[0])):
        return False
    frame: FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None and found < 2:
        found += frame.f_code is _CODE and frame.f_locals.get("self") is arguments[0]
        frame = frame.f_back
    return found > 1


def _is_wrapped_twice(kind: type) -> bool:
    return sum(getattr(vars(base).get("step"), "hooked", False) is True for base in kind.__mro__) > 1


def _wrappers_code() -> CodeType | None:
    wrap: Any = getattr(Optimizer, "profile_hook_step", None)
    return None if wrap is None else wrap(lambda optimizer: None).__code__


_CODE = _wrappers_code()
"""Of what torch wraps around every `step`; it names the optimizer `self`."""
