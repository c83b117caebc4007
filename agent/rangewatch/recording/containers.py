"""Finding the tensors in whatever a module returns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rangewatch.core.limits import CONTAINER_VISITS, FLATTEN_DEPTH, FLATTEN_TENSORS

_is_compiling = torch.compiler.is_dynamo_compiling


class Bounds(NamedTuple):
    """What is left of the visits and of the tensors."""

    visits: Iterator[bool]
    tensors: Iterator[bool]


def leaves(value: Any) -> list[Any]:
    """What nested tuples, lists, mappings and dataclasses (such as Transformers' ModelOutput) hold, in order.

    A tensor's position in this list is its `index`. At most `FLATTEN_TENSORS` tensors, to `FLATTEN_DEPTH` levels, among
    the first `CONTAINER_VISITS` objects; a container that comes again is looked into once (in eager mode).
    """
    if isinstance(value, Tensor):
        return [value]
    found: list[Any] = []
    _collect(
        value, found, {}, Bounds(itertools.repeat(True, CONTAINER_VISITS), itertools.repeat(True, FLATTEN_TENSORS)), 0
    )
    return found


def _collect(value: Any, found: list[Any], seen: dict[int, Any], bounds: Bounds, depth: int) -> None:
    if isinstance(value, Tensor):
        if next(bounds.tensors, False):
            found.append(value)
        return
    if depth == FLATTEN_DEPTH or not _is_container(value):
        found.append(value)
        return
    if not _is_compiling():  # the compiler would guard on the identity, and compile again at each call
        if id(value) in seen:
            return
        seen[id(value)] = value  # held, lest its id is given to a container that is made on the way
    for child, _ in zip(_children(value), bounds.visits, strict=False):
        _collect(child, found, seen, bounds, depth + 1)


def _is_container(value: Any) -> bool:
    if isinstance(value, (tuple, list, Mapping)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        return iter(value)
    if isinstance(value, Mapping):
        return iter(value.values())
    return (getattr(value, field.name, None) for field in dataclasses.fields(value))
