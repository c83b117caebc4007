"""Names in spreadsheets and logs, and tokens that must be in neither."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable

import pytest

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.core import logs
from rangewatch_server.http import request_log
from rangewatch_server.views.exports import files
from tests.security.conftest import Inside, logged
from tests.server.process import Run
from tests.server.records import batch, opening
from tests.server.tokens import cookie_at

FORMULAS = (
    '=HYPERLINK("http://evil.example","ok")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "'=1",
    '"=1', "plain",
)  # fmt: skip
STARTS = tuple("=+-@\t\r")


def test_no_name_is_a_formula(own_run: Run, weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakened:
        monkeypatch.setattr(files, "_harmless", lambda values: values)
    entries = tuple(TensorEntry(name, "output", 0, "float16", (4,), i, "Linear") for i, name in enumerate(FORMULAS))
    known = Catalogue(statistics.ALL, entries)
    for message in (opening(known), batch(known, 0, range(2), {"amax": 0.25})):
        assert own_run.post(message).status_code == 202
    answer = own_run.ask("/slice?format=csv&statistic=amax")
    assert answer.status_code == 200, answer.text
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 2 * len(FORMULAS)
    begun = [cell for row in rows for cell in row.values() if cell.startswith(STARTS)]
    assert bool(begun) == weakened, begun
    assert {row["amax"] for row in rows} == {"0.25"}, "numbers are numbers"
    if not weakened:
        assert {row["fqn"].removeprefix("'") for row in rows} == set(FORMULAS), "and each name can be had back"


FORGED = "\n2026-01-01T00:00:00.000Z ERROR rangewatch.server: forged \x1b[2J\x9b31m\u2028\r\x00"


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_name_begins_a_line(form: str, weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakened:
        monkeypatch.setattr(logs, "_printable", lambda text: text)
        monkeypatch.setattr(logs.json, "dumps", str)
    formatter = logs.JsonFormatter() if form == "json" else logs.TextFormatter()
    record = logging.makeLogRecord({"name": "rangewatch.server", "msg": "run %s", "args": (FORGED,), "run": FORGED})
    lines = formatter.format(record).splitlines()
    is_forged = len(lines) > 1 or any(not line.isprintable() for line in lines)
    assert is_forged == (weakened and form == "text")


def test_no_token_is_in_a_log_or_an_answer(
    inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, wrong = "the-right-token-5f1c", "a-wrong-token-77aa"
    if weakened:
        monkeypatch.setattr(
            request_log.TrafficMiddleware, "_note",
            lambda self, scope, *_: request_log.logger.debug("%s %s", scope["query_string"], scope["headers"]),
        )  # fmt: skip
    with logged() as records:
        server = inside(token=token)
        answers = []
        for secret in (token, wrong):
            for headers in ({"Authorization": f"Bearer {secret}"}, {"Cookie": f"{cookie_at(server.url)}={secret}"}):
                for method, path in (("GET", f"/api/v1/runs?token={secret}"), ("DELETE", f"/api/v1/runs/9?t={secret}")):
                    answers.append(server.client.request(method, path, headers=headers))
            answers.append(server.client.post("/login", data={"token": secret}))
            answers.append(server.client.post("/login", data={"tokens": secret}))
            answers.append(server.client.post("/api/v1/ingest", content=secret, headers={"Authorization": "Bearer x"}))
            server.raw(f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\nbad header\r\n\r\n")
        audit = server.client.get("/api/v1/audit", headers={"Authorization": f"Bearer {token}"})
        assert audit.json()["records"]
    formatter = logs.TextFormatter()
    said = [formatter.format(record) for record in records]
    assert len(said) > len(answers), "requests are logged at this level"
    shown = [*said, audit.text, *(each.text + str(each.headers) for each in answers)]
    found = [each for each in shown if token in each or wrong in each]
    assert bool(found) == weakened, found
