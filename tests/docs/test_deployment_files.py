"""The files of the recipes (compose, Kubernetes, Dockerfile) have keys that exist, paths that the server answers, and
variables that somebody reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest
import yaml

from rangewatch.core.options import Options
from tests.docs import blocks
from tests.docs.blocks import PAGES, ROOT, Block
from tests.server.process import Server

SERVICE_KEYS = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "init", "ports", "profiles",
    "mem_limit", "pids_limit", "read_only", "restart", "secrets", "security_opt", "stop_grace_period", "tmpfs", "user",
    "volumes",
}  # fmt: skip
CONTAINER_KEYS = {
    "args", "command", "env", "image", "livenessProbe", "name", "ports", "readinessProbe", "resources",
    "securityContext", "volumeMounts",
}  # fmt: skip
KINDS = {
    "Secret": "v1", "Service": "v1", "PersistentVolumeClaim": "v1", "ConfigMap": "v1", "Deployment": "apps/v1",
    "Job": "batch/v1",
}  # fmt: skip
INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "VOLUME",
    "WORKDIR",
}  # fmt: skip
DOCUMENTS = [(block, each) for block in blocks.of("yaml") for each in yaml.safe_load_all(block.text)]


@pytest.mark.parametrize(("block", "found"), DOCUMENTS, ids=[block.place for block, _ in DOCUMENTS])
def test_yaml_has_known_keys(block: Block, found: dict[str, Any]) -> None:
    if "services" in found:
        assert set(found) <= {"secrets", "services", "volumes"}
        assert all(set(service) <= SERVICE_KEYS for service in found["services"].values())
        assert {name for each in found["services"].values() for name in _named_volumes(each)} <= set(found["volumes"])
    elif "apiVersion" in found:
        assert found["apiVersion"] == KINDS[found["kind"]] and found["metadata"]["name"]
    else:
        assert set(found) <= {"scrape_configs", "containers", "volumes"}, block.place


def test_containers_mount_what_is_there() -> None:
    pods = [found for _, document in DOCUMENTS for found in _with(document, "containers")]
    assert len(pods) >= 2
    for pod in pods:
        volumes = {each["name"] for each in pod["volumes"]}
        for container in pod["containers"]:
            assert set(container) <= CONTAINER_KEYS
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_probes_ask_what_the_server_answers(served: Server) -> None:
    paths = {probe["path"] for _, document in DOCUMENTS for probe in _values(document, "httpGet")}
    assert paths == {"/healthz", "/readyz"}
    for path in paths:
        assert httpx.get(served.url + path).status_code == 200


@pytest.mark.parametrize("block", blocks.of("dockerfile"), ids=lambda block: block.place)
def test_a_dockerfile_has_known_instructions(block: Block) -> None:
    lines = [line for line in block.text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM ") and {line.split()[0] for line in lines} <= INSTRUCTIONS


def test_images_of_the_repository_are_pinned_by_digest() -> None:
    """By tag as well, so that a person can read which one it is."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    images = [service["image"] for service in services if "image" in service]
    images += re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 3
    assert [image for image in images if not re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image)] == []


def test_no_page_installs_what_is_not_released() -> None:
    """An index has no `rangewatch` so far, or another one. An extra, as `rangewatch[gpu]`, comes to what is there."""
    for path in PAGES:
        assert not re.search(r"pip install (?:-\S+ )*'?rangewatch(?!\[)", path.read_text()), path.name


def test_every_variable_of_ours_is_read() -> None:
    """Options of `attach`, and what the sources name in full or, in the texts of options, without its beginning."""
    files = [path for folder in ("agent", "server", "tests") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in files for name in re.findall(r"RANGEWATCH_[A-Z_]+", path.read_text())}
    read |= {f"RANGEWATCH_{field.name.upper()}" for field in fields(Options)} | {"RANGEWATCH_NAME"}
    for path in PAGES:
        assert set(re.findall(r"\bRANGEWATCH_[A-Z_]*[A-Z]\b", path.read_text())) <= read, path.name


def _named_volumes(service: dict[str, Any]) -> Iterator[str]:
    yield from (each.split(":")[0] for each in service.get("volumes", []) if not each.startswith((".", "/")))


def _with(found: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping in it that has `key`."""
    if isinstance(found, dict):
        if key in found:
            yield found
        for each in found.values():
            yield from _with(each, key)
    elif isinstance(found, list):
        for each in found:
            yield from _with(each, key)


def _values(found: Any, key: str) -> Iterator[Any]:
    yield from (each[key] for each in _with(found, key))
