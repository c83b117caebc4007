"""CVE-2023-1177, CVE-2024-1483, -1560, -1593, -7340 and their kin: a path that leads out of its folder, encoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from rangewatch_server.core.errors import ApiError
from rangewatch_server.http import static
from tests.security.conftest import Inside

SECRET = b"the-secret-beside-the-pages"
UP = (
    "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "%2e%2e%2fsecret.txt", "%252e%252e%252fsecret.txt",
    "a/../../secret.txt", "..;/secret.txt", "..%5csecret.txt", "..\\secret.txt", "..%00/secret.txt", "#/../secret.txt",
    "?/../secret.txt", "%23/../../secret.txt", ".%2e/secret.txt", "%c0%ae%c0%ae/secret.txt", "..%2f%2e/secret.txt",
    "%2fetc%2fpasswd", "/etc/passwd", "file:///etc/passwd", "a%3f/../../secret.txt", "secret.txt%00.js",
)  # fmt: skip


def naive(_: static.Site, path: str) -> static.Asset:
    """What there would be if nothing were listed: any path below the folder, decoded once more."""
    found = static.web_dir() / unquote(path)
    if "\0" in str(found) or not found.is_file():
        raise ApiError(404, "not_found", "no such file")
    asset = static._asset(found)
    assert asset is not None
    return asset


def test_no_path_leads_out_of_the_pages(
    inside: Callable[..., Inside], weakened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = tmp_path / "web"
    pages.mkdir()
    (pages / "index.html").write_text("the shell")
    (tmp_path / "secret.txt").write_bytes(SECRET)
    monkeypatch.setattr(static, "web_dir", lambda: pages)
    static._site_at.cache_clear()
    if weakened:
        monkeypatch.setattr(static.Site, "named", naive)
    server = inside()
    answers = {path: server.get_raw(f"/static/{path}") for path in UP}
    read = [path for path, answer in answers.items() if SECRET in answer or b"root:" in answer]
    if weakened:
        assert {"..%2fsecret.txt", "%252e%252e%252fsecret.txt"} <= set(read), "the attack works on a server that joins"
    else:
        assert read == []


def test_no_number_of_a_run_is_a_path(shared_inside: Inside) -> None:
    """Numbers are numbers: 404 or 422, and never a 5xx. `%39` is 9, decoded once, and there are not so many runs."""
    for made in ("../../x", "..%2f..%2fx", "1;x=2", "1%00", "1%2f..%2f2", "%39%39%39%39", "9999 ", "0x1", "1e0"):
        for path in (f"/api/v1/runs/{made}/tensors", f"/api/v1/runs/{made}", f"/api/v1/runs/9999/figures/{made}"):
            status = int(shared_inside.get_raw(path.replace(" ", "%20")).split(b" ", 2)[1])
            assert status in (404, 422), path
