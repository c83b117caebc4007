"""Bad input over real HTTP: each its own status and one line, nothing stored in part, nothing stored twice."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
import pytest
import zstandard

from rangewatch import wire
from rangewatch.wire.messages import MAGIC, PREFIX
from rangewatch.wire.records import Batch, StreamHeader
from tests import forked
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def raw(message: StreamHeader | Batch) -> bytes:
    return zstandard.decompress(wire.encode(message))


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def renamed(column: str) -> Batch:
    good = batch(KNOWN, 0, range(4))
    columns = {column if name == "nan_count" else name: v for name, v in good.ranges.columns.items()}
    return msgspec.structs.replace(good, ranges=msgspec.structs.replace(good.ranges, columns=columns))


def with_tensor_past_the_end() -> Batch:
    good = batch(KNOWN, 0, range(4))
    return msgspec.structs.replace(good, ranges=msgspec.structs.replace(good.ranges, tensors=np.array([0, 1, 3])))


def with_short_column() -> Batch:
    good = batch(KNOWN, 0, range(4))
    columns = good.ranges.columns | {"amax": np.ones((3, 3))}
    return msgspec.structs.replace(good, ranges=msgspec.structs.replace(good.ranges, columns=columns))


def with_falling_steps() -> bytes:
    good = batch(KNOWN, 0, range(4))
    return wire.encode(
        msgspec.structs.replace(good, ranges=msgspec.structs.replace(good.ranges, steps=np.array([3, 2, 1, 0])))
    )


def wrong_version() -> bytes:
    data = raw(batch(KNOWN, 0, range(4)))
    return packed(MAGIC + struct.pack("<H", 99) + data[6:])


def bomb() -> bytes:
    return packed(b"\0" * (wire.MAX_DECOMPRESSED_BYTES + 1))


def lying_bomb() -> bytes:
    """A frame that states a small content size and holds much more."""
    honest = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(b"\0" * 5_000_000))
    small = zstandard.ZstdCompressor(write_content_size=True).compress(b"\0" * 70_000)
    header = zstandard.frame_header_size(bytes(small))
    return bytes(small[:header]) + bytes(honest[zstandard.frame_header_size(bytes(honest)) :])


def huge_constant() -> bytes:
    """Few bytes that stand for very many values."""
    header = {
        "message": "batch", "run": "run", "rank": 0, "incarnation": "a", "sequence": 0, "catalogue": "x",
        "series": [], "events": [],
        "ranges": {"steps": ["i8", "range", 2**31 - 1, 16], "tensors": ["i8", "const", 1, 8], "columns": {}},
    }  # fmt: skip
    encoded = msgspec.msgpack.encode(header)
    return packed(PREFIX.pack(MAGIC, 1, len(encoded)) + encoded + struct.pack("<qq", 0, 1) + bytes(8))


def bad(run: str) -> dict[str, tuple[Batch | bytes, int, str]]:
    """Messages of that run, and of others."""
    found: dict[str, tuple[Batch | bytes, int, str]] = {
        "not zstd": (b"hello", 400, "not_zstd"),
        "empty": (b"", 400, "not_zstd"),
        "truncated frame": (wire.encode(batch(KNOWN, 0, range(4)))[:-9], 400, "truncated"),
        "followed by bytes": (wire.encode(batch(KNOWN, 0, range(4))) + b"x", 400, "truncated"),
        "truncated message": (packed(raw(batch(KNOWN, 0, range(4)))[:-5]), 400, "truncated"),
        "not ours": (packed(b"GET / HTTP/1.1 and more"), 400, "bad_header"),
        "header is not msgpack": (packed(PREFIX.pack(MAGIC, 1, 4) + b"\xc1\xc1\xc1\xc1"), 400, "bad_header"),
        "wrong version": (wrong_version(), 400, "unsupported_version"),
        "too large packed": (b"\0" * (wire.MAX_COMPRESSED_BYTES + 1), 413, "too_large"),
        "too large unpacked": (bomb(), 413, "too_large"),
        "lies about its size": (lying_bomb(), 400, "truncated"),
        "constants without end": (huge_constant(), 413, "too_large"),
        "steps fall": (with_falling_steps(), 400, "bad_header"),
        "column of another shape": (with_short_column(), 422, "shape_mismatch"),
        "column not in the catalogue": (renamed("no_such"), 422, "shape_mismatch"),
        "tensor not in the catalogue": (with_tensor_past_the_end(), 422, "shape_mismatch"),
        "NaN where a count belongs": (batch(KNOWN, 0, range(4), {"nan_count": np.nan}), 422, "invalid_value"),
        "half a NaN": (batch(KNOWN, 0, range(4), {"nan_count": 0.5}), 422, "invalid_value"),
        "negative count": (batch(KNOWN, 0, range(4), {"numel": -1.0}), 422, "invalid_value"),
        "infinite amax": (batch(KNOWN, 0, range(4), {"amax": np.inf}), 422, "invalid_value"),
        "name with NUL": (batch(KNOWN, 0, range(4), series={"a\0b": 1.0}), 400, "bad_header"),
        "name of 5 KiB": (batch(KNOWN, 0, range(4), series={"n" * 5_000: 1.0}), 400, "bad_header"),
        "unknown run": (batch(KNOWN, 0, range(4), run="no such run"), 409, "unknown_run"),
        "unknown rank": (batch(KNOWN, 0, range(4), rank=7), 409, "unknown_run"),
        "unknown catalogue": (batch(catalogue(9), 0, range(4)), 409, "unknown_catalogue"),
    }
    return {
        name: (msgspec.structs.replace(message, run=run) if has_run(message) else message, status, code)
        for name, (message, status, code) in found.items()
    }


def has_run(message: Batch | bytes) -> bool:
    return isinstance(message, Batch) and message.run == "run"


def test_bad_input_has_its_status_and_stores_nothing(run: Run) -> None:
    run.post(opening(KNOWN))
    for name, (message, status, code) in bad(run.name).items():
        answer = run.server.post(message)
        assert (answer.status_code, answer.json()["code"]) == (status, code), name
        assert 0 < len(answer.json()["error"].splitlines()) == 1, name
        assert run.get()["last_step"] is None, name
    assert answer_of(run, batch(KNOWN, 0, range(4))) == {"contiguous": 0, "duplicate": False, "commands": []}
    assert run.get()["last_step"] == 3


def answer_of(run: Run, message: Batch) -> dict[str, Any]:
    """Of a batch that was taken, without the pace that is asked for: that goes by what else the server has to do."""
    answer = run.post(message).json()
    assert answer.pop("send_every_s") > 0  # how many ranks other tests have on this server decides
    return answer


def test_replayed_and_out_of_order_sequences(run: Run) -> None:
    run.post(opening(KNOWN))
    first, second, third = (batch(KNOWN, n, range(n * 4, n * 4 + 4)) for n in range(3))
    assert answer_of(run, third) == {"contiguous": -1, "duplicate": False, "commands": []}
    assert run.post(first).json()["contiguous"] == 0
    assert answer_of(run, third) == {"contiguous": 0, "duplicate": True, "commands": []}
    assert run.post(second).json()["contiguous"] == 2
    assert answer_of(run, first) == {"contiguous": 2, "duplicate": True, "commands": []}
    frames = run.get("/step?step=9&rank=0")["frames"]
    assert [frame["call_count"] for frame in frames] == [1, 1, 1], "stored once"


def test_the_gap_is_bounded(run: Run) -> None:
    run.post(opening(KNOWN))
    answer = run.post(batch(KNOWN, 100_000, range(4)))
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "too_far_ahead", "1")


def test_a_slow_body_holds_up_nobody(run: Run) -> None:
    """One byte and then silence: others are served meanwhile."""
    run.post(opening(KNOWN))
    where = urlsplit(run.server.url)
    with socket.create_connection((where.hostname, where.port)) as slow:
        slow.sendall(b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx")
        # The slow body is never finished: were this one to wait for it, pytest's own limit would end the test.
        assert run.post(batch(KNOWN, 0, range(4))).status_code == 202


def test_the_token_is_asked_for(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret")
    for wrong in (
        {},
        {"Authorization": "Bearer nope"},
        {"Authorization": "Basic s3cret"},
        {"Cookie": "rangewatch_session=x"},
    ):
        assert server.post(opening(KNOWN), **wrong).status_code == 401
        assert server.client.get("/api/v1/runs", headers=wrong).json()["code"] == "unauthorized"
    assert server.post(opening(KNOWN), Authorization="Bearer s3cret").status_code == 202
    assert server.client.get("/healthz").status_code == 200
    assert server.client.get("/").status_code == 200, "the shell holds no data and shows the login form"
    assert server.client.post("/login", data={"token": "wrong"}).status_code == 401
    entered = server.client.post("/login", data={"token": "s3cret"})
    assert entered.status_code == 204
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "samesite=strict" in entered.headers["set-cookie"].lower()
    assert "s3cret" not in entered.headers["set-cookie"]
    assert server.client.get("/api/v1/runs").status_code == 200, "the cookie lets the page in"


def test_with_a_token_any_name_will_do_unless_names_are_given(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    headers = {"Host": "dashboard.example:8642", "Authorization": "Bearer s3cret"}
    assert start_server("--token", "s3cret").client.get("/api/v1/runs", headers=headers).status_code == 200
    named = start_server("--token", "s3cret", "--allow-host", "other.example", db=str(tmp_path / "b.db"))
    assert named.client.get("/api/v1/runs", headers=headers).json()["code"] == "unknown_host"


def test_other_names_and_other_sites_are_refused(served: Server) -> None:
    assert served.client.get("/api/v1/runs", headers={"Host": "evil.example"}).json()["code"] == "unknown_host"
    assert served.client.get("/api/v1/runs", headers={"Host": "localhost:1"}).status_code == 200
    foreign = served.post(opening(KNOWN), Origin="https://evil.example")
    assert (foreign.status_code, foreign.json()["code"]) == (403, "wrong_origin")
    page = served.client.get("/")
    assert "script-src" not in page.headers["content-security-policy"]
    assert page.headers["content-security-policy"].startswith("default-src 'self'")


def test_no_path_leaves_the_web_folder(served: Server) -> None:
    where = urlsplit(served.url)
    for path in (
        "/static/../pyproject.toml", "/static/%2e%2e/%2e%2e/etc/passwd", "/static/..%2f..%2fetc/passwd",
        "/static//etc/passwd", "/static/%252e%252e/x", "/static/vendor/../../api",
    ):  # fmt: skip
        with socket.create_connection((where.hostname, where.port)) as plain:  # httpx would tidy the path
            plain.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda connection=plain: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 "), path
        assert b"root:" not in answer, path
        assert b"[project]" not in answer, path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without a token"),
        (["--port", "abc"], "must be a number"),
        (["--port", "70000"], "must be 0 to 65535"),
        (["--db", "/proc/nowhere/a.db"], "cannot open"),
        (["--db", "postgresql://nobody@127.0.0.1:1/x"], "cannot open"),
        (["--db", "oracle://x"], "cannot open"),
    ],
)
def test_serve_says_what_is_wrong(arguments: list[str], said: str) -> None:
    done = forked.server.run("-m", "rangewatch", "serve", "--port", "0", *arguments, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_said(served: Server) -> None:
    port = str(urlsplit(served.url).port)
    done = forked.server.run("-m", "rangewatch", "serve", "--port", port, timeout=30)
    assert done.returncode == 2
    assert "it is in use; give another --port" in done.stderr


def test_live_tells_that_a_run_changed(run: Run) -> None:
    with httpx.stream("GET", f"{run.server.url}/api/v1/live", timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": connected"
        run.post(opening(KNOWN), batch(KNOWN, 0, range(4)))
        reported = (msgspec.json.decode(line.removeprefix("data:")) for line in lines if line.startswith("data:"))
        assert any((each["run"], each["last_step"]) == (run.id, 3) for each in reported)
