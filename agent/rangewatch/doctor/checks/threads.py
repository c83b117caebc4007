"""How many threads the CPU part of each rank has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rangewatch.doctor.checks.settings import ranks_here
from rangewatch.doctor.findings import Facts, Finding

_NAME = "OMP_NUM_THREADS"


def thread_count(facts: Facts) -> Iterator[Finding]:
    """OMP_NUM_THREADS that is no number, or more threads than processors. 1 is what torchrun sets, and no fault."""
    value = facts["variables"].get(_NAME)
    if value is None:
        return
    cpus, ranks = facts["host"]["cpus"], ranks_here(facts)
    best = max(1, cpus // ranks)
    if not re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", value):
        yield Finding(
            "thread_count",
            "warning",
            f"{_NAME}={value!r} is no number of threads",
            "OpenMP ignores it: each rank then takes all processors, and ranks hold each other up.",
            f"export {_NAME}={best}",
            _NAME,
        )
    elif (threads := int(value.split(",")[0])) > 1 and threads * ranks > cpus:
        yield Finding(
            "thread_count",
            "warning",
            f"{_NAME}={value} and {ranks} rank{'s' * (ranks > 1)} here: {threads * ranks} threads on {cpus} processors",
            "Threads wait for each other: data loading and CPU optimizers get slower, not faster.",
            f"export {_NAME}={best}",
            _NAME,
        )
