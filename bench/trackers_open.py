"""Experiment trackers that `mirror.py` opens, puts in trouble and kills."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from rangewatch import trackers
from rangewatch.trackers.mirror import THREAD

SLOW_S = 2.0


class Opened:
    """One open run of a tracker, in a folder of its own. Use with `with`."""

    package = option = ""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder

    @classmethod
    def is_installed(cls) -> bool:
        """Whether its package can be imported here."""
        return importlib.util.find_spec(cls.package) is not None

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        """As when its server or its disk is gone."""
        shutil.rmtree(self.folder)

    @contextmanager
    def in_trouble(self, mode: str) -> Iterator[None]:
        """Have each call take longer, or raise."""
        name = self.option.partition(":")[0]
        real = trackers.BY_NAME[name]

        def find(where: str, info: Any) -> Any:
            sink = real.find(where, info)
            return None if sink is None else _Trouble(sink, mode)

        if mode in ("slow", "refusing"):
            trackers.BY_NAME[name] = real._replace(find=find)  # type: ignore[index]
        try:
            yield
        finally:
            trackers.BY_NAME[name] = real  # type: ignore[index]


def threads_cpu_s() -> float:
    """Processor seconds so far of the mirrors' threads and of those that run a tracker's code; Python's own threads."""
    total_s = 0.0
    for thread in threading.enumerate():
        ran = (getattr(thread, "_target", None), type(thread))
        packages = {(getattr(each, "__module__", None) or "").partition(".")[0] for each in ran}
        if thread.name.startswith(THREAD) or packages & OPENED.keys():
            with contextlib.suppress(OSError):  # it has just ended
                total_s += time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    return total_s


class _Trouble:
    def __init__(self, sink: Any, mode: str) -> None:
        self._sink, self._mode = sink, mode

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            if self._mode == "refusing" and name != "close":
                raise ConnectionError("planted")
            if self._mode == "slow":
                time.sleep(SLOW_S)
            getattr(self._sink, name)(*args)

        return call


class _TensorBoard(Opened):
    package = "tensorboard"

    @property
    def option(self) -> str:  # type: ignore[override]
        return f"tensorboard:{self.folder}"


class _Wandb(Opened):
    package = option = "wandb"

    def __enter__(self) -> Opened:
        os.environ["WANDB_SILENT"] = "true"
        self._wandb: Any = importlib.import_module("wandb")
        settings = self._wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
        self._wandb.init(project="bench-mirror", mode="offline", dir=self.folder, settings=settings)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._wandb.finish()
        with contextlib.suppress(Exception):
            self._wandb.teardown()

    def kill(self) -> None:
        for each in psutil.Process().children(recursive=True):
            if "wandb" in each.name():
                each.kill()


class _Mlflow(Opened):
    package = option = "mlflow"

    def __enter__(self) -> Opened:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._mlflow.set_tracking_uri(f"sqlite:///{self.folder}/mlflow.db")
        place = (self.folder / "artifacts").absolute().as_uri()  # else of the working directory
        self._mlflow.start_run(experiment_id=self._mlflow.create_experiment("bench-mirror", artifact_location=place))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._mlflow.end_run()


class _Trackio(Opened):
    package = option = "trackio"

    def __enter__(self) -> Opened:
        os.environ["TRACKIO_DIR"] = str(self.folder)
        self._trackio: Any = importlib.import_module("trackio")
        self._trackio.init(project="bench-mirror", embed=False)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._trackio.finish()


OPENED: dict[str, type[Opened]] = {
    "tensorboard": _TensorBoard, "wandb": _Wandb, "mlflow": _Mlflow, "trackio": _Trackio,
}  # fmt: skip
