"""DNS rebinding and requests of other sites (MLflow before 3.5, ClearML): loopback was never a protection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rangewatch_server.access import middleware
from rangewatch_server.store.tokens import digest_of
from tests.security.conftest import Inside
from tests.server.process import Run
from tests.server.records import catalogue, opening

KNOWN = catalogue(1)


def test_a_rebound_name_reads_nothing(
    own_run: Run, shared_inside: Inside, weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if weakened:
        monkeypatch.setattr(middleware, "is_our_host", lambda host, principals: True)
    assert own_run.post(opening(KNOWN)).status_code == 202
    answer = shared_inside.get_raw("/api/v1/runs", host="rebound.example")
    assert (own_run.name.encode() in answer) == weakened


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page_deletes_nothing(
    own_run: Run, weakened: bool, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if weakened:
        monkeypatch.setattr(middleware, "_check_site", lambda *_: None)
    assert own_run.post(opening(KNOWN)).status_code == 202
    assert own_run.ask(method="DELETE", headers=headers).status_code == (200 if weakened else 403)
    assert own_run.ask().status_code == (404 if weakened else 200)


def test_a_token_for_looking_deletes_nothing(
    inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2024-6829 and kin: routes that nobody had thought of as changing something."""
    if weakened:
        monkeypatch.setattr(
            middleware, "needed_role", lambda method, path: "view" if path.startswith("/api/") else None
        )
    server = inside(token="all-of-it")
    principals = server.app.state.principals
    principals.store.create("viewer", digest_of("looks"), ["view"])
    principals.load()
    looks = {"Authorization": "Bearer looks"}
    status = server.client.delete("/api/v1/runs/1", headers=looks).status_code
    assert (status != 403) == weakened
