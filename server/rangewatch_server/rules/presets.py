"""Thresholds by which other tools judge, as named sets: for those who are used to them.

They are absolute, or much lower than ours, and so less quiet: the rules' own defaults go by dtype and own history. What
a tool judges by numbers that are not recorded (SageMaker's DeadRelu counts units, ours is the share of zeros) is left
out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Preset(msgspec.Struct, frozen=True):
    """`thresholds`: rule -> threshold -> value, as `diagnosis.diagnose` takes them."""

    name: str
    title: str
    help: str
    thresholds: Mapping[str, Mapping[str, float]]


SAGEMAKER = Preset(
    "sagemaker",
    "SageMaker Debugger's built-in rules",
    "VanishingGradient: a gradient's mean magnitude below 1e-7 (here its root mean square, which is never less). "
    "WeightUpdateRatio: outside 1e-8 to 10. AllZero: zeros alone.",
    {
        "vanishing_gradient": {"least_rms": 1e-7},
        "update_ratio": {"most": 10.0, "least": 1e-8},
        "dead_activation": {"least_zeros": 1.0},
    },
)
MSPROBE = Preset(
    "msprobe",
    "msprobe's monitor (Ascend)",
    "AnomalyTurbulence with the threshold of its documentation, 0.5: more than 1.5 times the usual value. There of an "
    "exponential mean and in one step; here of the own history's 95 % quantile, and in five steps in a row.",
    {"exploding_gradient": {"factor": 1.5}},
)
MEGATRON = Preset(
    "megatron",
    "Megatron-LM's checks",
    "Large gradients and spiky losses: more than 10 times the usual value.",
    {"exploding_gradient": {"factor": 10.0}, "loss_spike": {"least_rise": 9.0}},
)

ALL: tuple[Preset, ...] = (SAGEMAKER, MSPROBE, MEGATRON)

BY_NAME = {preset.name: preset for preset in ALL}
