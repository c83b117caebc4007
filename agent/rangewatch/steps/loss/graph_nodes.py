"""Operations of a loss's graph: what each is called, the shape of its result, and what it keeps for its backward, where
to read it is all that reading does.

Activation checkpointing and offloading pack such values away by hooks: to unpack one computes the user's forward a
second time, copies from the host, or may be done only once. What is packed is not read.
"""

from __future__ import annotations

from typing import Any


def node_name(node: Any) -> str:
    """Such as "MseLossBackward0". Its method `name` may be an attribute of the user's own: a custom Function that sets
    `ctx.name`."""
    return type(node).__name__


def node_shape(node: Any, output: int = 0) -> tuple[int, ...] | None:
    """Of what an operation gave; None where this torch does not say."""
    try:
        return tuple(int(each) for each in node._input_metadata[output].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def kept_value(node: Any, name: str) -> Any:
    """What `node` keeps as `name`, such as "other" of a multiplication; None where it keeps none, has packed it, or has
    been used up by a backward before."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if getattr(raw, "unpack_hook", None) is not None:  # not known before torch 2.8
        return None
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
