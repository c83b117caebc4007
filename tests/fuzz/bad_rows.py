"""Messages whose columns, rows or catalogue cannot be."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import numpy as np

from tests.fuzz import template as t
from tests.fuzz.template import column

Made = Iterator[tuple[str, str, str, bytes]]
MOST, LEAST = 2**63 - 1, -(2**63)
TIMES = column([10, 20])


def columns() -> Made:
    three = column([1, 2, 3])
    for name, (code, description, block) in {
        "dtype_object": ("bad_header", ["O8", "shuffle", 3, 24], bytes(24)),
        "dtype_big_endian": ("bad_header", [">f8", "shuffle", 3, 24], bytes(24)),
        "dtype_empty": ("bad_header", ["", "shuffle", 3, 24], bytes(24)),
        "encoding_pickle": ("bad_header", ["f8", "pickle", 3, 24], bytes(24)),
        "a_byte_short": ("bad_header", ["f8", "shuffle", 3, 23], bytes(23)),
        "a_byte_long": ("bad_header", ["f8", "shuffle", 3, 25], bytes(25)),
        "const_of_two": ("bad_header", ["f8", "const", 3, 16], bytes(16)),
        "const_of_none": ("bad_header", ["f8", "const", 3, 0], b""),
        "range_of_floats": ("bad_header", ["f4", "range", 3, 16], bytes(16)),
        "range_stride_0": ("bad_header", ["i8", "range", 3, 16], struct.pack("<2q", 1, 0)),
        "range_stride_negative": ("bad_header", ["i8", "range", 3, 16], struct.pack("<2q", 1, -1)),
        "range_start_2_pow_62": ("bad_header", ["i8", "range", 3, 16], struct.pack("<2q", 2**62, 1)),
        "range_start_least": ("bad_header", ["i8", "range", 3, 16], struct.pack("<2q", LEAST, 1)),
        "count_negative": ("too_large", ["f8", "const", -1, 8], bytes(8)),
        "count_2_pow_40": ("too_large", ["f8", "const", 2**40, 8], bytes(8)),
        "count_2_pow_64": ("too_large", ["f8", "const", 2**64 - 1, 8], bytes(8)),
        "count_that_overflows": ("too_large", ["f8", "shuffle", 2**61 + 3, 24], bytes(24)),
        "bytes_negative": ("truncated", ["f8", "const", 3, -8], bytes(8)),
        "bytes_2_pow_64": ("truncated", ["f8", "shuffle", 3, 2**64 - 1], bytes(24)),
        "count_that_lies": ("shape_mismatch", ["f8", "const", 4, 8], bytes(8)),
        "description_short": ("bad_header", ["f8", "const", 3], bytes(8)),
        "description_a_map": ("bad_header", {"dtype": "f8"}, bytes(8)),
    }.items():
        yield (
            f"column_{name}",
            code,
            "a column whose description cannot be",
            t.packed(t.one_series(three, (description, block))),
        )


def rows() -> Made:
    values = column([0.5, 1.5])
    for name, steps in {
        "unsorted": column([2, 1]), "equal": (["i8", "const", 2, 8], bytes(8)), "negative": column([-5, 3]),
        "nan": column([np.nan, 1.5]), "of_floats": column([0.5, 1.5]), "that_wrap": column([MOST, LEAST]),
        "past_the_last": column([1, 10**12 + 1]), "2_pow_63": column([1, MOST]),
    }.items():  # fmt: skip
        yield f"steps_{name}", "bad_header", "steps that cannot be", t.packed(t.one_series(steps, values))
    spread = column(np.arange(200) * 1_000)
    yield (
        "steps_far_apart",
        "too_large",
        "steps in 200 spans",
        t.packed(t.one_series(spread, column(np.full(200, 0.5)))),
    )
    tensors, step = column([0, 1, 2]), column([7])
    many = (["i8", "range", 200_001, 16], struct.pack("<2q", 0, 1))
    yield "tensors_200_001", "too_large", "more tensors than a batch may have", t.packed(t.ranges(step, many, {}))
    yield (
        "tensors_that_wrap",
        "bad_header",
        "tensors 2^63 - 1 and -2^63",
        t.packed(t.ranges(step, column([MOST, LEAST]), {})),
    )
    yield "tensors_unsorted", "bad_header", "tensors not ascending", t.packed(t.ranges(step, column([2, 0, 1]), {}))
    yield "tensor_not_in_catalogue", "shape_mismatch", "tensor 3 of 3", t.packed(t.ranges(step, column([1, 3]), {}))
    yield (
        "column_not_in_catalogue",
        "shape_mismatch",
        "a statistic that the catalogue has not",
        (t.packed(t.ranges(step, tensors, {"median": column([1.0, 2.0, 2.5])}))),
    )
    yield (
        "columns_of_different_lengths",
        "shape_mismatch",
        "three cells and two",
        (t.packed(t.ranges(step, tensors, {"amax": column([1.0, 2.0, 2.5]), "nan_count": column([1.0, 0.0])}))),
    )
    for name, cells in {"nan": [np.nan, 1.0, 2.0], "negative": [-1.0, 1.0, 2.0], "inf": [np.inf, 1.0, 2.0]}.items():
        yield (
            f"amax_{name}",
            "invalid_value",
            "an amax that cannot be",
            t.packed(t.ranges(step, tensors, {"amax": column(cells)})),
        )
    for name, cells in {"half": [0.5, 1.0, 2.0], "2_pow_60": [2.0**60, 1.0, 2.0], "inf": [np.inf, 1.0, 2.0]}.items():
        yield (
            f"count_{name}",
            "invalid_value",
            "a count that cannot be",
            (t.packed(t.ranges(step, tensors, {"nan_count": column(cells)}))),
        )
    yield (
        "another_catalogue",
        "unknown_catalogue",
        "a catalogue that nobody has sent",
        t.packed(t.with_header(catalogue="0" * 32)),
    )
    yield "another_run", "unknown_run", "a run that nobody has opened", t.packed(t.with_header(run="nobody's"))
    yield (
        "another_incarnation",
        "unknown_run",
        "a process that has not said hello",
        t.packed(t.with_header(incarnation="b")),
    )
    power = {"power_w": column([1.5, 2.5])}
    for name, times in {
        "unsorted": column([20, 10]), "negative": column([-5, 3]), "that_wrap": column([MOST, LEAST]),
        "past_2116": column([1, 2**62]), "of_floats": column([0.5, 1.5]), "nan": column([np.nan, 1.5]),
    }.items():  # fmt: skip
        yield f"times_{name}", "bad_header", "times that cannot be", t.packed(t.samples(times, power))
    yield (
        "samples_of_different_lengths",
        "shape_mismatch",
        "three values for two times",
        (t.packed(t.samples(TIMES, {"power_w": column([1.5, 2.5, 3.5])}))),
    )
    for name, steps in {"nan": [np.nan, 1.0], "inf": [np.inf, 1.0], "half": [0.5, 1.0], "huge": [1e300, 1.0]}.items():
        yield (
            f"sample_steps_{name}",
            "invalid_value",
            "the step of a sample that cannot be",
            (t.packed(t.samples(TIMES, {"step": column(steps)}))),
        )


def openings() -> Made:
    for name, changes in {
        "run_empty": {"run": ""}, "run_nul": {"run": "a\0b"}, "incarnation_empty": {"incarnation": ""},
        "rank_negative": {"rank": -1}, "rank_huge": {"rank": 2**64 - 1}, "world_size_huge": {"world_size": 2**31},
        "local_rank_negative": {"local_rank": -1}, "pid_huge": {"pid": 2**63}, "started_negative": {"started_ns": -1},
        "started_huge": {"started_ns": 2**63}, "host_nul": {"host": "\0"}, "host_long": {"host": "x" * 5_000},
        "version_nul": {"versions": {"torch": "\0"}}, "version_a_number": {"versions": {"torch": 2}},
        "kind": {"tensors": [t.entry(kind="bias")]}, "index_negative": {"tensors": [t.entry(index=-1)]},
        "index_huge": {"tensors": [t.entry(index=2**63)]}, "call_index_huge": {"tensors": [t.entry(call_index=2**31)]},
        "shape_negative": {"tensors": [t.entry(shape=[-1])]},
        "shape_2_pow_64": {"tensors": [t.entry(shape=[2**64 - 1])]},
        "fqn_nul": {"tensors": [t.entry(fqn="a\0b")]}, "fqn_long": {"tensors": [t.entry(fqn="x" * 5_000)]},
        "no_statistics": {"statistics": []},
        "statistic_twice": {"statistics": [*map(msgspec.to_builtins, t.STATISTICS * 2)]},
        "merge_mean": {"statistics": [msgspec.to_builtins(t.STATISTICS[0]) | {"merge": "mean"}]},
        "tensors_a_map": {"tensors": {}},
    }.items():  # fmt: skip
        yield (
            f"opening_{name}",
            "bad_header",
            "an opening that cannot be",
            t.packed(t.opening(**{"run": "never"} | changes)),
        )
    yield (
        "opening_of_65_dimensions",
        "too_large",
        "a tensor of 65 dimensions",
        (t.packed(t.opening(run="never", tensors=[t.entry(shape=[1] * 65)]))),
    )
