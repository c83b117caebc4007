"""What may be stored can be shown: no route answers 5xx, whatever the details of an event or of samples hold."""

from __future__ import annotations

import itertools

import httpx
import msgspec
import pytest

from tests.fuzz import odd_contents
from tests.server.process import Server

FIGURES = ("loss", "loss_scale", "step_time", "phases", "tensor", "exponents", "timeline", "layers", "ranks")
ROUTES = (
    "", "/step", "/hang", "/gpus", "/gpus/0?key=GPU-0", "/gpus/0", "/environment", "/collectives",
    "/collectives/step", "/commands", "/figures/waits", "/loss_scale",
)  # fmt: skip
VALUES = (
    "", "/step", "/locate", "/tensors", "/slice?statistic=*", "/slice?statistic=rms&statistic=floor_room_bits",
    *(f"/figures/{name}?tensor=0" for name in FIGURES),
)  # fmt: skip


# Of 2,843 oddities and 77 catalogues each so many-th is taken: all of them are six minutes.
ALL = pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])


def failed(server: Server, run: int, routes: tuple[str, ...]) -> list[str]:
    """Those of a run's routes that fail."""
    found = []
    for route in ("/api/v1/runs", *(f"/api/v1/runs/{run}{each}" for each in routes)):
        if server.client.get(route).status_code >= 500:
            found.append(route)
            server.client = httpx.Client(base_url=server.url, timeout=30)  # the server ends such a connection
    return found


@pytest.mark.parametrize("each", [311, pytest.param(53, marks=pytest.mark.slow), ALL])
def test_odd_details_and_samples(server: Server, each: int) -> None:
    assert server.post(odd_contents.opening()).status_code == 202
    found, taken, refused = {}, 0, 0
    for name, message in odd_contents.batches(each):
        answer = server.post(msgspec.structs.replace(message, settled=message.sequence))
        assert answer.status_code in (202, 400, 413, 422), (name, answer.text)
        refused += answer.status_code != 202
        if answer.status_code == 202:
            taken += 1
            if bad := failed(server, 1, ROUTES):
                found[name] = bad
    print(f"{taken} taken, {refused} refused")
    assert not found and taken > refused


@pytest.mark.parametrize("each", [20, pytest.param(5, marks=pytest.mark.slow), ALL])
def test_odd_catalogues(server: Server, each: int) -> None:
    found, taken = {}, 0
    for name, *messages in itertools.islice(odd_contents.openings(), 0, None, each):
        answers = [server.post(message).status_code for message in messages]
        assert set(answers) <= {202, 400, 409, 413, 422}, name
        if answers[0] == 202:
            taken += 1
            if bad := failed(server, taken, VALUES):
                found[name] = bad
    print(f"{taken} taken")
    assert not found and taken
