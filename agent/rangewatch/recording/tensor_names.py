"""Module names free of wrappers' prefixes, and the catalogue that gives each tensor its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from rangewatch import statistics
from rangewatch.statistics import exponents
from rangewatch.wire.records import Catalogue, TensorEntry

# Names by which wrappers hold the module they wrap. The underscored ones are used by nobody else; `module` is a name
# that people give their own children too, so it is a wrapper's only under these classes.
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_MODULE_WRAPPERS = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "DistributedDataParallelCPU"}


def clean_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Each module once by its clean name, the root's being "". Wrappers are left out: what they wrap has the name."""
    return dict(_named(model))  # what is wrapped comes after its wrapper, and takes its place


def clean_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once with its clean name."""
    seen: set[int] = set()
    for fqn, module in _named(model):
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{fqn}.{name}" if fqn else name, parameter


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    names: dict[str, str] = {}
    modules: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        parent_path, _, attribute = path.rpartition(".")
        modules[path], names[path] = module, attribute
        if path:
            parent = names[parent_path]
            is_wrapped = _is_wrapped(modules[parent_path], attribute)
            names[path] = parent if is_wrapped else f"{parent}.{attribute}" if parent else attribute
        yield names[path], module


def _is_wrapped(parent: nn.Module, attribute: str) -> bool:
    if attribute in _WRAPPED:
        return True
    return attribute == "module" and any(base.__name__ in _MODULE_WRAPPERS for base in type(parent).__mro__)


class TensorNames:
    """The catalogue of one rank while it grows: (fqn, kind, index, dtype) -> number. Entries are never changed.

    `histograms`: its statistics have the bins of exponents.
    """

    def __init__(self, *, histograms: bool = False) -> None:
        self._statistics = statistics.ALL + (exponents.ALL if histograms else ())
        self.entries: list[TensorEntry] = []
        self.added: Callable[[int, TensorEntry], None] = lambda number, entry: None
        """Told of each that joins."""
        self._numbers: dict[tuple[str, str, int, str], int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, fqn: str, kind: str, index: int, dtype: str) -> int | None:
        """The number of this tensor; None when it is new."""
        return self._numbers.get((fqn, kind, index, dtype))

    def add(self, entry: TensorEntry) -> int:
        """The number of a new tensor, which joins the catalogue."""
        number = self._numbers[entry.fqn, entry.kind, entry.index, entry.dtype] = len(self.entries)
        self.entries.append(entry)
        self.added(number, entry)
        return number

    def catalogue(self, count: int) -> Catalogue:
        """The catalogue as it was when it had `count` tensors."""
        return Catalogue(self._statistics, tuple(self.entries[:count]))
