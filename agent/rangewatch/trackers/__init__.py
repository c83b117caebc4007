"""Headline numbers into the experiment tracker that the user's own process has open: `attach(mirror="wandb")`.

In: blocks on their way to the server, alerts and the run's health as the server answers them. Out: at most one row a
second into a run of W&B, MLflow, trackio or TensorBoard, on a thread of its own. Never: a run that nobody opened, a
step that waits, or a number that was not measured.
"""

from __future__ import annotations

from rangewatch.trackers import mlflow_run, tensorboard_events, trackio_run, wandb_run
from rangewatch.trackers.base import Tracker

ALL: tuple[Tracker, ...] = (
    wandb_run.TRACKER,
    mlflow_run.TRACKER,
    tensorboard_events.TRACKER,
    trackio_run.TRACKER,
)
BY_NAME = {each.name: each for each in ALL}
