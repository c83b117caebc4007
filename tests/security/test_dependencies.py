"""What the server is made of: each file by its hash, one version everywhere, and an audit that says what it did."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import audit_dependencies, sbom_vendored, vendor_plotly

ROOT = Path(__file__).parents[2]
HOLE = {"id": "CVE-1", "fix_versions": ["2"]}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def pins(file: str) -> dict[str, str]:
    found = map(PIN.match, (ROOT / file).read_text().splitlines())
    return {name_of(each[1]): each[2] for each in found if each}


@pytest.mark.parametrize("file", ["requirements-server.txt", "requirements-build.txt"])
def test_each_package_has_hashes(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=[a-z])", "\n".join(lines))
    assert len(entries) >= len(pins(file)) > 3
    for entry in entries:
        assert PIN.match(entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_the_lock_has_the_versions_that_the_tests_ran_with() -> None:
    locked, tested = pins("requirements-server.txt"), pins("constraints.txt")
    only_elsewhere = {"tzdata"}  # Windows
    assert {name: tested.get(name) for name in locked.keys() - only_elsewhere} == {
        name: version for name, version in locked.items() if name not in only_elsewhere
    }


def test_the_lock_has_all_that_the_server_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    lists = [
        re.search(rf"^{name} = \[(.*?)\](?:  #.*)?\n", text, re.M | re.S) for name in ("dependencies", "server", "otlp")
    ]
    wanted = [each for found in lists if found for each in re.findall(r'"([A-Za-z0-9-]+)([^"]*)"', found[1])]
    assert all(lists)
    older = "python_version < '3.11'"  # the lock is for 3.11 and newer
    asked = {name_of(name) for name, rest in wanted if older not in rest}
    assert {"fastapi", "uvicorn", "msgspec", "alembic", "opentelemetry-sdk"} <= asked
    assert asked <= pins("requirements-server.txt").keys()


@pytest.mark.parametrize(("found", "status", "says"), [
    ([{"name": "a", "version": "1", "vulns": []}], 0, "1 of 1 packages looked up, 0 known"),
    ([{"name": "a", "version": "1", "skip_reason": "?"}], 0, "NOT DONE"),
    ([], 0, "NOT DONE"),
    ([{"name": "a", "version": "1", "vulns": [HOLE]}, {"name": "b", "skip_reason": "?"}], 1, "a 1: CVE-1, mended in 2"),
])  # fmt: skip
def test_the_audit_fails_for_what_is_known_only(
    found: list[dict[str, Any]], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_dependencies.reported(found) == status
    assert says in capsys.readouterr().out


def test_an_audit_that_could_not_be_done_is_loud_and_may_be_required(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit_dependencies.skipped("no network") == 0
    said = capsys.readouterr().out
    assert "NOT DONE: no network" in said and "nothing is known of the dependencies" in said and "!" * 50 in said
    monkeypatch.setenv("AUDIT", "required")
    assert audit_dependencies.skipped("no network") == 1


def test_the_vendored_bundle_is_the_one_that_was_recorded() -> None:
    recorded = (ROOT / "web/vendor/SHA256SUMS").read_text().split()
    assert recorded == [vendor_plotly.digest(), vendor_plotly.BUNDLE]


def test_the_image_has_the_extras_that_were_locked() -> None:
    locked = re.findall(r"--extra (\w+)", (ROOT / "tools/lock.sh").read_text())
    installed = re.search(r"'rangewatch\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert installed is not None and installed[1].split(",") == locked == ["server", "otlp"]


def test_the_bill_of_materials_has_the_vendored_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"bomFormat": "CycloneDX", "components": [{"bom-ref": "a", "name": "a"}]}
    document = sbom_vendored.with_vendored(sbom_vendored.with_vendored(given))
    other, bundle = document["components"]
    assert other["name"] == "a" and bundle["hashes"] == [{"alg": "SHA-256", "content": vendor_plotly.digest()}]
    assert bundle["name"] == vendor_plotly.PACKAGE and bundle["version"] == vendor_plotly.installed_version()
    for each in (ROOT / "web/vendor").iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    (tmp_path / vendor_plotly.BUNDLE).write_bytes(b"another")
    monkeypatch.setattr(sbom_vendored, "VENDOR", tmp_path)
    with pytest.raises(ValueError, match="is not the file whose digest was recorded"):
        sbom_vendored.with_vendored(given)


def test_notices_name_what_is_under_other_licences() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for name, licence in (("psycopg", "LGPL-3.0-only"), ("shtab", "MPL-2.0")):
        about = importlib.metadata.metadata(name)
        assert licence in (about.get("License-Expression") or about["License"])
        assert re.search(rf"- {name}\b.*{licence}", notice.replace("\n  ", " "))


def test_the_database_is_hardened_as_the_server_is_and_secrets_are_files() -> None:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert set(composed["secrets"]) == {"rangewatch_token", "postgres_password"}
    for name, service in composed["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"], name
        assert service["pids_limit"] and service["security_opt"] == ["no-new-privileges:true"], name
        values = " ".join(map(str, service["environment"].values()))
        assert "PASSWORD:?" not in values and "TOKEN:?" not in values, name
