"""Plotly.js for the pages, of the version that the plotly package has: `make vendor`, with npm.

The package's own file has maps, 3D and chemistry in it and takes a browser 1.2 s of processor time before the first
figure; the partial bundle of the plots that have two axes takes 0.45 s. npm checks what it fetches by its digest.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "web" / "vendor"
BUNDLE = "plotly-cartesian.min.js.gz"
PACKAGE = "plotly.js-cartesian-dist-min"
BANNER = re.compile(r"plotly\.js(?: \([\w -]+\))? v(\d+\.\d+\.\d+)")


def version_in(source: str) -> str:
    """Which Plotly.js this is. Raises ValueError for a file that does not say it."""
    if not (found := BANNER.search(source[:1_000])):
        raise ValueError("no version of Plotly.js in its first lines")
    return found[1]


def installed_version() -> str:
    """Of the Plotly.js that the plotly package brings to notebooks and reports."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return version_in((Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked = ["npm", "pack", "--silent", f"{PACKAGE}@{installed_version()}"]
        name = subprocess.check_output(asked, cwd=folder, text=True).strip()  # noqa: S603  # a version, no input
        with tarfile.open(Path(folder) / name) as archive:
            source, words = (_content(archive, each) for each in ("plotly-cartesian.min.js", "LICENSE"))
    VENDOR.mkdir(exist_ok=True)
    (VENDOR / BUNDLE).write_bytes(gzip.compress(source, 9, mtime=0))
    (VENDOR / "LICENSE-plotly").write_bytes(words)
    (VENDOR / "SHA256SUMS").write_text(f"{digest()}  {BUNDLE}\n", encoding="ascii")


def digest() -> str:
    """SHA-256 of the bundle, in hexadecimal, as `sha256sum --check` in its folder has it."""
    return hashlib.sha256((VENDOR / BUNDLE).read_bytes()).hexdigest()


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(f"package/{name}")
    assert found is not None
    return found.read()


if __name__ == "__main__":
    main()
