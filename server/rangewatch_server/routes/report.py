"""A run as one HTML file, of the answers that its pages have: docs/api.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from rangewatch.report import Refused, page
from rangewatch_server.core.errors import ApiError, answers
from rangewatch_server.routes import collectives, diagnosis, figures, loss_scale, machines, runs, slices
from rangewatch_server.routes.dependencies import RunId, reading_run
from rangewatch_server.routes.downloads import Download, cut_up

router = APIRouter()

HTML = "text/html; charset=utf-8"
MOST_LETTERS = 80  # of the run's name in the file's
GATHER_BYTES = 64 << 10  # sent together: a report has some thousand pieces of a line


@router.get("/api/v1/runs/{run_id}/report", responses=answers(200, "An HTML file.", HTML), response_class=Response)
def show_report(run_id: RunId, request: Request) -> Response:
    """The file that `rangewatch export` writes."""
    with reading_run(request, run_id) as run:
        name = run.name
    return Download(_gathered(page(_Answers(request, run_id, name))), file_name(name, run_id), HTML)


def file_name(run: str, run_id: int) -> str:
    """Such as `rangewatch-t5-base-run-7.html`: letters that every system takes, and that no header ends at."""
    safe = re.sub(r"[^A-Za-z0-9]+", "-", run).strip("-")[:MOST_LETTERS]
    return "-".join(filter(None, ("rangewatch", safe, "run", str(run_id)))) + ".html"


def _gathered(pieces: Iterator[str]) -> Iterator[bytes]:
    """The file as it is sent: what is short together, what is long in parts."""
    waiting: list[bytes] = []
    for piece in pieces:
        waiting.append(piece.encode("utf-8", "replace"))  # half a surrogate, which a name may hold
        if sum(map(len, waiting)) >= GATHER_BYTES:
            yield from cut_up(b"".join(waiting))
            waiting = []
    yield b"".join(waiting)


class _Answers:
    """What the routes answer about a run, each in a transaction of its own: what a slow client holds is no reader."""

    def __init__(self, request: Request, run_id: int, name: str) -> None:
        self.name = name
        self._ask: dict[str, Callable[[Mapping[str, Any]], Response]] = {
            "": lambda _: runs.show_run(run_id, request),
            "/diagnosis": lambda _: diagnosis.show_diagnosis(run_id, request),
            "/slice": lambda query: slices.show_slice(
                run_id, request, statistic=list(query["statistic"]), columns=query["columns"]
            ),
            "/loss_scale": lambda _: loss_scale.show_loss_scale(run_id, request),
            "/collectives": lambda _: collectives.show_collectives(run_id, request),
            "/gpus": lambda _: machines.list_gpus(run_id, request),
            "/environment": lambda _: machines.show_environment(run_id, request),
        }
        self._request, self._run_id = request, run_id

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """As over HTTP. Raises `Refused`, and `ApiError` for a run that is gone: of that there is no report."""
        figure = path.partition("/figures/")[2]
        try:
            answer = self._figure(figure, query or {}) if figure else self._ask[path](query or {})
        except ApiError as error:
            if error.code == "unknown_run":
                raise ApiError(404, error.code, "the run was deleted while its report was made") from None
            raise Refused(str(error)) from None
        return msgspec.json.decode(answer.body)

    def _figure(self, name: str, query: Mapping[str, Any]) -> Response:
        return figures.show_figure(self._run_id, name, self._request, figures.Asked(**query))
