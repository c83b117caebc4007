"""Adds to a CycloneDX document what the wheel has in it and no list of packages names: the vendored Plotly.js.

Usage: sbom_vendored.py FILE
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "web" / "vendor"
PACKAGE = "plotly.js-cartesian-dist-min"


def main() -> int:
    """Exit status 1 where the bundle is not the one that was recorded."""
    path = Path(sys.argv[1])
    try:
        document = with_vendored(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        sys.stderr.write(f"sbom: {error}\n")
        return 1
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def with_vendored(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the bundle as a component, by its digest. Raises `ValueError` where that is not the one in
    web/vendor/SHA256SUMS.
    """
    recorded, name = (VENDOR / "SHA256SUMS").read_text(encoding="ascii").split()
    packed = (VENDOR / name).read_bytes()
    if hashlib.sha256(packed).hexdigest() != recorded:
        raise ValueError(f"web/vendor/{name} is not the file whose digest was recorded: make vendor")
    found = re.search(rb"plotly\.js[^\n]{0,40} v(\d+\.\d+\.\d+)", gzip.decompress(packed)[:1_000])
    if found is None:
        raise ValueError(f"web/vendor/{name} does not say its version")
    version = found[1].decode()
    purl = f"pkg:npm/{PACKAGE}@{version}"
    component = {
        "type": "library", "bom-ref": purl, "purl": purl, "name": PACKAGE, "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": [{"alg": "SHA-256", "content": recorded}],
        "properties": [{"name": "rangewatch:file", "value": f"web/vendor/{name}"}],
    }  # fmt: skip
    others = [each for each in document.get("components", []) if each.get("bom-ref") != purl]
    return document | {"components": [*others, component]}


if __name__ == "__main__":
    sys.exit(main())
