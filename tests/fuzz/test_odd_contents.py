"""What may be stored can be shown: no route answers 5xx, whatever the details of an event or of samples hold."""

from __future__ import annotations

import os

import httpx
import msgspec

from tests.fuzz import odd_contents
from tests.server.process import Server

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
FIGURES = ("loss", "loss_scale", "step_time", "phases", "tensor", "exponents", "timeline", "layers", "ranks")
ROUTES = (
    "", "/step", "/hang", "/gpus", "/gpus/0?key=GPU-0", "/gpus/0", "/environment", "/collectives",
    "/collectives/step", "/commands", "/figures/waits", "/loss_scale",
)  # fmt: skip
VALUES = (
    "", "/step", "/locate", "/tensors", "/slice?statistic=*", "/slice?statistic=rms&statistic=floor_room_bits",
    *(f"/figures/{name}?tensor=0" for name in FIGURES),
)  # fmt: skip


# Of 2,843 oddities and 77 catalogues the quick run takes some: all of them are six minutes.
STEP, CATALOGUE_STEP = (1, 1) if SOAK else (53, 5)


def failed(server: Server, run: int, routes: tuple[str, ...]) -> list[str]:
    """Those of a run's routes that fail."""
    found = []
    for route in ("/api/v1/runs", *(f"/api/v1/runs/{run}{each}" for each in routes)):
        if server.client.get(route).status_code >= 500:
            found.append(route)
            server.client = httpx.Client(base_url=server.url, timeout=30)  # the server ends such a connection
    return found


def test_odd_details_and_samples(server: Server) -> None:
    assert server.post(odd_contents.opening()).status_code == 202
    found, taken, refused = {}, 0, 0
    for number, (name, message) in enumerate(odd_contents.batches()):
        if number % STEP:
            continue
        answer = server.post(msgspec.structs.replace(message, settled=message.sequence))
        assert answer.status_code in (202, 400, 413, 422), (name, answer.text)
        refused += answer.status_code != 202
        if answer.status_code == 202:
            taken += 1
            if bad := failed(server, 1, ROUTES):
                found[name] = bad
    print(f"{taken} taken, {refused} refused")
    assert not found and taken > refused


def test_odd_catalogues(server: Server) -> None:
    found, taken = {}, 0
    for name, *messages in list(odd_contents.openings())[::CATALOGUE_STEP]:
        answers = [server.post(each).status_code for each in messages]
        assert set(answers) <= {202, 400, 409, 413, 422}, name
        if answers[0] == 202:
            taken += 1
            if bad := failed(server, taken, VALUES):
                found[name] = bad
    print(f"{taken} taken")
    assert not found and taken
