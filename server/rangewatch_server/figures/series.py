"""Any one series that was recorded, such as a learning rate that the program logs: the one that `q` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rangewatch_server.figures.base import Figure, Params
from rangewatch_server.figures.lines import logged

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `series` of docs/api.md."""
    found = logged(run, params, params.q)
    is_known = params.q in run.names().series
    return found | {"meta": found["meta"] | {"empty": None if is_known else "no series of this name was recorded"}}


FIGURE = Figure("series", "One series", "A series by its name in `q`, mean of the ranks; extremes are drawn.", build)
