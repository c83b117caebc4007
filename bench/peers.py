"""The same statistics into trackio, MLflow and TensorBoard from PyPI, each the fastest way its documentation shows.

    python bench/peers.py [--tensors 300] [--seconds 10]

They are installed into a virtual environment of their own, some 1 GB, and write to this machine's disk with no HTTP in
between. One process and then one a core write for so many seconds, each as a rank with a run of its own; the better
counts. What a metric is to them is a value to us: one statistic of one tensor at one step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

from load.traffic import EVERY_STEP, Rank
from servers.process import cores

VERSIONS = {"trackio": "trackio==0.43.0", "mlflow": "mlflow==3.17.2", "tensorboard": "tensorboardX==2.6.5"}
WAYS = {
    "trackio": "trackio.log of all metrics of a step at once, its local SQLite",
    "mlflow": "MlflowClient.log_batch of 1,000 metrics, its SQLite store",
    "tensorboard": "SummaryWriter.add_scalar with a queue of 1,000 events",
}
ENVIRONMENT = Path(__file__).parent.parent / ".venv" / "peers"
STEPS = 200  # of data, which the peers go through again and again
INSTALL_S = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="made when it is not there")
    options = parser.parse_args()
    found = measure_all(options.tensors, options.seconds, options.environment)
    for peer in found:
        print(row(peer))
    print(json.dumps({"benchmark": "peers", "peers": found}))


def measure_all(tensors: int, seconds: float, environment: Path = ENVIRONMENT) -> list[dict[str, Any]]:
    """One dict for each peer: values_per_s, bytes_per_value and processes, or `error`."""
    with tempfile.TemporaryDirectory(prefix="rangewatch-peers-") as folder:
        write_data(Path(folder) / "data.npz", tensors)
        return [measure(name, Path(folder), seconds, environment) for name in VERSIONS]


def write_data(path: Path, tensors: int) -> None:
    """`names`: (metrics,) text; `values`: (STEPS, metrics) float64, what a rank of `traffic` sends each step."""
    rank = Rank("peers", 0, 1, tensors)
    rows = rank.record(STEPS).ranges
    assert rows is not None
    entries = rank.table.known.tensors
    names = [f"{each.fqn}.{number}/{each.kind}/{name}" for name in EVERY_STEP for number, each in enumerate(entries)]
    np.savez(path, names=names, values=np.concatenate([rows.columns[name] for name in EVERY_STEP]).T)


def measure(name: str, folder: Path, seconds: float, environment: Path) -> dict[str, Any]:
    about = {"name": name, "version": VERSIONS[name], "way": WAYS[name]}
    try:
        python = installed(VERSIONS[name], environment)
        runs = [together(python, name, folder, seconds, processes) for processes in sorted({1, cores()})]
        return about | max(runs, key=lambda each: each["values_per_s"])
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return about | {"error": last_line(error)}


def installed(requirement: str, environment: Path) -> Path:
    """The interpreter of an environment that has the package in that version."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    # pip answers within a second when it is there already
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    return python


def together(python: Path, name: str, folder: Path, seconds: float, processes: int) -> dict[str, Any]:
    """So many at once, all into one store. Raises when one of them fails."""
    place = folder / f"{name}-{processes}"
    place.mkdir()
    script, data = Path(__file__).parent / "load" / "peer_load.py", folder / "data.npz"
    command = [str(each) for each in (python, script, name, data, place, seconds)]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place)
        for rank in range(processes)
    ]
    outputs = [each.communicate(timeout=20 * seconds + 120) for each in started]
    for each, (_, errors) in zip(started, outputs, strict=True):
        if each.returncode:
            raise subprocess.CalledProcessError(each.returncode, name, stderr=errors)
    reported = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    values = sum(each["values"] for each in reported)
    stored = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return {
        "processes": processes, "values_per_s": sum(each["values"] / each["seconds"] for each in reported),
        "bytes_per_value": stored / values,
    }  # fmt: skip


def last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return text.strip().splitlines()[-1][:200] if text.strip() else type(error).__name__


def row(peer: dict[str, Any], our_values_per_s: float = 0.0, our_bytes: float = 0.0) -> str:
    """One line; with our figures also how many times faster and smaller we are."""
    if "error" in peer:
        return f"{peer['name']:<12} not measured: {peer['error']}"
    line = (
        f"{peer['name']:<12} {peer['values_per_s']:>12,.0f} values/s ({peer['processes']} processes)  "
        f"{peer['bytes_per_value']:6.1f} bytes a value  {peer['version']}: {peer['way']}"
    )
    if our_values_per_s:
        faster, smaller = our_values_per_s / peer["values_per_s"], peer["bytes_per_value"] / our_bytes
        line += f"  -> rangewatch: {faster:,.0f} x the rate, 1/{smaller:,.0f} of the bytes"
    return line


if __name__ == "__main__":
    main()
