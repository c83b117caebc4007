"""A server's runs, and what one of them holds."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from rangewatch.client import slices
from rangewatch.client.connection import Connection, Query, ServerError
from rangewatch.client.slices import Slice
from rangewatch.core import optional_imports
from rangewatch.report import plotly_figures

Json = dict[str, Any]
Where = str | int | float | Sequence[str] | None


class Client:
    """A server. `url` default: RANGEWATCH_URL, or this machine's. `token` default: RANGEWATCH_TOKEN.

    Every method raises `ServerError` with the server's reason, and `Unavailable`, which is one, when nobody answers.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._connection = Connection(url, token)

    def runs(self) -> Iterator[Run]:
        """All runs, newest first; read as they are asked for."""
        before: int | None = None
        while True:
            page = self._connection.get("/api/v1/runs", {"before": before})
            yield from (Run(self._connection, line) for line in page["runs"])
            before, last = page.get("next"), before
            if before is None or (last is not None and before >= last):
                return

    def run(self, name: str | int | None = None) -> Run:
        """The run of that name or number; the newest without one. Raises `ServerError` when there is none."""
        known = []
        for run in self.runs():
            if name is None or name in (run.name, run.id):
                return run
            known.append(run.name)
        there = ", ".join(known[:5]) or "none yet"
        raise ServerError(f"no run {name!r} at {self._connection.url}; there are: {there}")

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"


class Run:
    """One run. `id` is its number, `name` what it was attached as; `line` how the list of runs shows it."""

    def __init__(self, connection: Connection, line: Json) -> None:
        self._connection = connection
        self.line = line
        self.id: int = line["id"]
        self.name: str = line["name"]

    def details(self) -> Json:
        """State, ranks, verdict, first overflow and so on, as they are now."""
        return self.answer("")

    def tensors(self, kind: str | None = None, q: str | None = None) -> list[Json]:
        """The tensors in call order: name, kind, shape, dtype, limits."""
        listed: list[Json] = self.answer("/tensors", {"kind": kind, "q": q})["tensors"]
        return listed

    def slice(self, statistic: str | Sequence[str] = "amax", axes: str = "step,tensor", **where: Where) -> Slice:
        """Two of step, tensor and rank. `where`: rank, tensor, kind, q, step, start, stop, columns (docs/api.md)."""
        return slices.of_answer(self.answer("/slice", {"axes": axes, "statistic": _listed(statistic), **where}))

    def frame(
        self, axes: str = "step,rank,tensor", statistic: str | Sequence[str] = "amax", library: str = "pandas",
        **where: Where,
    ) -> Any:  # fmt: skip
        """One row an observed cell, of any length, as a `pandas` or `polars` DataFrame. pandas needs pyarrow for it.

        Raises ValueError for another library, ImportError when it is missing.
        """
        if library not in ("pandas", "polars"):
            raise ValueError(f"library must be 'pandas' or 'polars', not {library!r}")
        read = optional_imports.polars().read_ipc_stream if library == "polars" else _to_pandas
        query = {"axes": axes, "statistic": _listed(statistic), "format": "arrow", **where}
        return read(io.BytesIO(self._connection.read(self._path("/slice"), query)))

    def exported(self, kind: str, where: Query) -> Iterator[bytes]:
        """A slice as a file (`csv`, `parquet` or `arrow`), piece by piece, of any length."""
        return self._connection.stream(self._path("/slice"), {**where, "format": kind})

    def figures(self) -> dict[str, str]:
        """The figures that the server draws, name -> what each shows."""
        return {each["name"]: each["help"] for each in self._connection.get("/api/v1/figures")["figures"]}

    def figure(self, name: str, **where: Where) -> Any:
        """A page's figure, one of `figures()`, as a `plotly` Figure.

        `where`: rank, kind, q, tensor, start, stop, columns, rows and so on (docs/api.md). Raises ImportError without
        plotly.
        """
        return plotly_figures.of_answer(self.figure_data(name, **where), f"{self.name}: {name}")

    def figure_data(self, name: str, **where: Where) -> Json:
        """The same as the server sends it: names and typed arrays, and what is known of them beside (docs/api.md)."""
        return self.answer(f"/figures/{name}", where)

    def step(self, step: int | None = None, rank: int | None = None) -> Json:
        """One step of one rank, its tensors in call order. Default: the last step, the lowest rank."""
        return self.answer("/step", {"step": step, "rank": rank})

    def mesh(self) -> Json:
        """The axes of the mesh, each rank's `coordinates` along them, how parameters lie, and stages (docs/mesh.md)."""
        return self.answer("/mesh")

    def replicas(self) -> Json:
        """When each parameter was last compared between the ranks that must hold the same of it (docs/mesh.md)."""
        return self.answer("/replicas")

    def diagnosis(self, stop: int | None = None) -> Json:
        """What is wrong, most important first; with `stop` as it was before that step."""
        return self.answer("/diagnosis", {"stop": stop})

    def alerts(self, state: str = "all") -> list[Json]:
        """Findings over time, newest first, at most 500. `state`: `open`, `over` or `all`."""
        listed: list[Json] = self.answer("/alerts", {"state": state, "limit": 500})["alerts"]
        return listed

    def loss_scale(self, start: int | None = None, stop: int | None = None) -> Json:
        """Steps that the loss scaler skipped, with their causes."""
        return self.answer("/loss_scale", {"start": start, "stop": stop})

    def collectives(self, start: int | None = None, stop: int | None = None) -> Json:
        """Collectives' times, who waits for whom, and the rank that lags."""
        return self.answer("/collectives", {"start": start, "stop": stop})

    def gpus(self) -> Json:
        """The newest sample of every GPU and host."""
        return self.answer("/gpus")

    def environment(self) -> Json:
        """What each rank's agent found of its machine."""
        return self.answer("/environment")

    def _path(self, rest: str) -> str:
        return f"/api/v1/runs/{self.id}{rest}"

    def answer(self, rest: str, query: Query | None = None) -> Json:
        """The answer of GET /api/v1/runs/{id} and `rest` (docs/api.md)."""
        answer: Json = self._connection.get(self._path(rest), query)
        return answer

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r}, {self.line['state']}, last step {self.line['last_step']}>"


def _listed(statistic: str | Sequence[str]) -> Sequence[str]:
    return [statistic] if isinstance(statistic, str) else list(statistic)


def _to_pandas(body: io.BytesIO) -> Any:
    optional_imports.pandas()  # named first: pyarrow's own error for it is no help
    return optional_imports.pyarrow_ipc().open_stream(body).read_pandas()
