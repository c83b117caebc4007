"""Values of a batch that cannot be are refused at the door."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.statistics import scales
from rangewatch.wire.errors import WireError
from rangewatch.wire.records import RangeRows
from rangewatch_server.store.batch_checks import MAX_COUNT, check_ranges


def rows(age: float) -> RangeRows:
    return RangeRows(np.arange(2), np.arange(1), {scales.AGE: np.array([[1.0, age]])})


@pytest.mark.parametrize("age", [0.5, 1e300, 2 * MAX_COUNT, -1.0, np.inf, np.nan])
def test_an_entry_of_a_history_is_a_whole_number(age: float) -> None:
    check_ranges(rows(16), scales.ALL, 1)
    with pytest.raises(WireError, match=scales.AGE):
        check_ranges(rows(age), scales.ALL, 1)
