"""Collectives as torch's dispatcher sees them: every one, DDP's C++ reducer's too, on any backend, from torch 2.4 on.

Each method of a process group calls an operator of the `c10d` library. A kernel of ours at the key ADInplaceOrView,
where torch has none for them, notes the call, and calls the operator again below that key: the same tensors, the same
backend, the same `Work`. So nothing about DDP changes, neither its arithmetic nor whose communication hook it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from rangewatch.collectors.collectives.ops import OPERATORS, Kind, flat
from rangewatch.collectors.collectives.process_groups import Record
from rangewatch.collectors.collectives.recorder import ActiveRecorder, Call

_KEY = "ADInplaceOrView"
"""Below autograd, which compiled graphs leave out, and above everything that does something. Tensors that were made
under `inference_mode` do not have it: their collectives are not seen."""

_INPUTS = ("tensors", "input_tensors", "input_tensor", "inputs", "input", "input_list", "tensor")
_OUTPUTS = ("output_tensors", "output_tensor", "outputs", "output", "output_lists")


class NotWrapped(Exception):
    """The operators cannot be wrapped here; the message says why."""


_installed: list[Any] = []
"""The library of our kernels. It stays until the process ends: torch takes no kernel away safely while another thread
may be calling it. To add one is safe: the dispatcher looks for it only once it is there."""
_lock = threading.Lock()


def wrap() -> None:
    """Tell the recorder that `ActiveRecorder` holds of every collective from now on. Raises `NotWrapped`."""
    with _lock:
        if not _installed:
            _installed.append(_install())


def _install() -> Any:
    needed = (getattr(dist, "ProcessGroup", None), "unbox"), (getattr(dist, "Work", None), "unbox")
    lacking = [f"{kind}.{name}" for kind, name in needed if not hasattr(kind, name)]
    if lacking or not hasattr(torch._C, "_after_ADInplaceOrView_keyset"):
        raise NotWrapped(f"torch {torch.__version__} lacks {', '.join(lacking) or '_after_ADInplaceOrView_keyset'}")
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name, kind in OPERATORS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                library.impl(name, _kernel(packet.default, kind), _KEY, with_keyset=True)
    except RuntimeError as error:
        library._destroy()
        raise NotWrapped(str(error)) from error
    return library


def _kernel(operator: Any, kind: Kind) -> Callable[..., Any]:
    arguments = operator._schema.arguments
    names = [argument.name for argument in arguments]
    places = _Places(names, async_by_default=_default(arguments, "async_op", True))
    below, redispatch = torch._C._after_ADInplaceOrView_keyset, operator.redispatch
    unbox_group, unbox_work = dist.ProcessGroup.unbox, dist.Work.unbox

    def read(args: tuple[Any, ...]) -> Call:
        return (unbox_group(args[places.group]), *places.of(args))

    def work_of(result: Any) -> Any:
        boxed = result[-1] if isinstance(result, tuple) else result
        return None if boxed is None else unbox_work(boxed)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, record = ActiveRecorder.recorder, Record()
        if recorder is not None:
            recorder.begin(record, kind, read, args)
        try:
            result = redispatch(keys & below, *args, **kwargs)
        except BaseException:
            if recorder is not None:
                recorder.failed(record)
            raise
        if recorder is not None and record.group is not None:
            recorder.issued(record, work_of, result)
        return result

    return kernel


class _Places:
    """Where in an operator's arguments the tensors and the group are."""

    def __init__(self, names: list[str], *, async_by_default: bool) -> None:
        self.group = names.index("process_group")
        self._input = next((names.index(name) for name in _INPUTS if name in names), None)
        self._output = next((names.index(name) for name in _OUTPUTS if name in names), None)
        self._async = names.index("async_op") if "async_op" in names else len(names)
        self._async_by_default = async_by_default

    def of(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], bool]:
        """Tensors that go in, tensors that come out, and whether the caller goes on meanwhile."""
        inputs = flat(args[self._input]) if self._input is not None else []
        outputs = flat(args[self._output]) if self._output is not None else []
        is_async = bool(args[self._async]) if self._async < len(args) else self._async_by_default
        return inputs, outputs, is_async


def _default(arguments: Any, name: str, otherwise: bool) -> bool:
    defaults = [
        argument.default_value for argument in arguments if argument.name == name and argument.has_default_value()
    ]
    return bool(defaults[0]) if defaults else otherwise
