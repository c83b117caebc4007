"""What would be left of each tensor in smaller formats, of all what-if readings of some steps and ranks together, and
in which formats it survives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import formats
from rangewatch.statistics.formats import FORMATS, Format
from rangewatch_server.figures.base import Grid, grid, label
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

MOST_TENSORS = 5_000  # of one answer: 14 formats of each are some 2 kB
MOST_KEPT = 200  # modules of a format that are named
COLUMNS = 8  # into which the steps are merged as they are read
OF_PARAMETERS = {"grad", "reduced_grad", "weight", "update", "exp_avg", "exp_avg_sq", "momentum_buffer"}


class Limits(msgspec.Struct, frozen=True):
    """A tensor survives in a format within all three: shares of its elements, and dB of signal over error."""

    flushed_fraction: float
    saturated_fraction: float
    sqnr_db: float


def whatif(
    run: RunReader, ranks: Sequence[int], start: int, stop: int, kinds: Sequence[str], q: str, most: int, limits: Limits
) -> dict[str, Any]:
    """The answer of docs/api.md: tensors in call order, at most `most` of those that were read, and each format's
    account over these. Raises `ApiError` for a bad `q`.
    """
    tensors = run.names().tensors
    wanted = chosen(tensors, kinds, q)
    cut = grid(start, stop, COLUMNS)
    measured = _measured(run, ranks, cut, wanted)
    rows = np.sort(measured[:most])
    sums = _sums(run, ranks, cut, [each.name for each in formats.ALL], rows)
    places = {ordinal: place for place, ordinal in enumerate(rows.tolist())}
    listed = []
    for ordinal in measured[:most].tolist():
        entry = tensors.entries[ordinal]
        of_tensor = {name: float(values[places[ordinal]]) for name, values in sums.items()}
        listed.append({
            "tensor": ordinal, "label": label(entry), "fqn": entry.fqn, "kind": entry.kind, "dtype": entry.dtype,
            "elements": int(of_tensor[formats.COUNT]),
            "formats": {each.name: _of_format(each, of_tensor, limits) for each in FORMATS},
        })  # fmt: skip
    return {
        "run": run.name, "start": max(run.first_step or 0, cut.first * cut.per),
        "stop": min((run.last_step or 0) + 1, (cut.first + cut.width) * cut.per), "limits": msgspec.to_builtins(limits),
        "formats": [_account(each, listed) for each in FORMATS], "tensors": listed, "measured": len(measured),
        "of": len(wanted),
    }  # fmt: skip


def _measured(run: RunReader, ranks: Sequence[int], cut: Grid, wanted: Array) -> Array:
    """Those of `wanted` that were read, in the same order."""
    if formats.COUNT not in run.names().fill[RANGES] or not len(wanted) or cut.stop <= cut.start:
        return wanted[:0]
    counts = _sums(run, ranks, cut, [formats.COUNT], np.sort(wanted))[formats.COUNT]
    return wanted[counts[np.searchsorted(np.sort(wanted), wanted)] > 0]


def _sums(run: RunReader, ranks: Sequence[int], cut: Grid, names: Sequence[str], rows: Array) -> dict[str, Array]:
    """(rows,) of each statistic, over all steps of the grid."""
    if not len(rows):
        return {}
    block = run.stored(RANGES, ranks, cut.level, cut.start, cut.stop, names, rows)
    columns = to_grid(block, cut, run.names().rules[RANGES])
    return {name: np.asarray(columns[name], np.float64).sum(axis=1) for name in names}


def _of_format(each: Format, sums: dict[str, float], limits: Limits) -> dict[str, Any]:
    """`scale_log2`: mean of log2 of the scales; `scale_spread_bits`: their standard deviation. None where there is no
    scale, and `sqnr_db` where nothing is lost.
    """
    of = {what: sums.get(formats.column(each.name, what), 0.0) for what in (*formats.OF_EACH, *formats.OF_SCALED)}
    count, signal, scales = sums[formats.COUNT], sums[formats.SUM_SQ], of["scale_count"]
    flushed, saturated = of["flushed_count"] / count, of["saturated_count"] / count
    sqnr_db = 10 * math.log10(signal / of["error_sq"]) if of["error_sq"] > 0 and signal > 0 else None
    mean = of["scale_log2"] / scales if scales else None
    is_near = sqnr_db is None or sqnr_db >= limits.sqnr_db
    return {
        "survives": is_near and flushed <= limits.flushed_fraction and saturated <= limits.saturated_fraction,
        "flushed_fraction": flushed, "saturated_fraction": saturated, "sqnr_db": sqnr_db,
        "relative_error": of["relative_error"] / count,
        "scale_log2": None if mean is None else mean - formats.SCALE_BIAS,
        "scale_spread_bits": None if mean is None else math.sqrt(max(of["scale_log2_sq"] / scales - mean**2, 0.0)),
    }  # fmt: skip


def _account(each: Format, listed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many tensors survive in a format, and the modules of those that do not, in call order."""
    failing = [tensor for tensor in listed if not tensor["formats"][each.name]["survives"]]
    modules = list(dict.fromkeys(map(_module_of, failing)))
    ratios = [tensor["formats"][each.name]["sqnr_db"] for tensor in listed]
    least = min((ratio for ratio in ratios if ratio is not None), default=None)
    return {
        "name": each.name, "title": each.title, "scaling": each.scaling, "block": each.block or None,
        "survive": len(listed) - len(failing), "least_sqnr_db": least,
        "modules": modules[:MOST_KEPT], "module_count": len(modules), "code": _code(each, modules),
    }  # fmt: skip


def _module_of(tensor: dict[str, Any]) -> str:
    fqn: str = tensor["fqn"]
    return fqn.rpartition(".")[0] if tensor["kind"] in OF_PARAMETERS else fqn


def _code(each: Format, modules: Sequence[str]) -> str:
    """What leaves these modules as they are, with torchao; "" where nothing is to be left, or too much."""
    if not modules or len(modules) > MOST_KEPT or each.scaling == "none":
        return ""
    names = "".join(f"    {name!r},\n" for name in modules)
    converts = (
        "quantize_(model, config, filter_fn=lambda module, fqn: isinstance(module, nn.Linear) and fqn not in keep)"
        if each.scaling == "block"
        else "convert_to_float8_training(model, module_filter_fn=lambda module, fqn: fqn not in keep)"
    )
    return f"keep = {{\n{names}}}  # in bfloat16\n{converts}"
