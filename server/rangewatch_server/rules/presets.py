"""Thresholds by which other tools judge, as named sets; the values are in the files of the rules.

They are absolute, or much lower than ours, and so less quiet: the rules' own defaults go by dtype and own history. What
a tool judges by numbers that are not recorded (SageMaker's DeadRelu counts units, ours is the share of zeros) is left
out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rangewatch_server import rules


class Preset(msgspec.Struct, frozen=True):
    """`thresholds`: rule -> threshold -> value, as `diagnosis.diagnose` takes them."""

    name: str
    title: str
    help: str
    thresholds: Mapping[str, Mapping[str, float]]


def _preset(name: str, title: str, help_text: str) -> Preset:
    def values(rule: rules.Rule) -> dict[str, float]:
        return {each.name: value for each in rule.thresholds for preset, value in each.presets if preset == name}

    return Preset(name, title, help_text, {rule.name: thresholds for rule in rules.ALL if (thresholds := values(rule))})


ALL: tuple[Preset, ...] = (
    _preset(
        "sagemaker",
        "SageMaker Debugger's built-in rules",
        "VanishingGradient: a gradient's mean magnitude below 1e-7 (here its root mean square, which is never less). "
        "WeightUpdateRatio: outside 1e-8 to 10. AllZero: zeros alone.",
    ),
    _preset(
        "msprobe",
        "msprobe's monitor (Ascend)",
        "AnomalyTurbulence with the threshold of its documentation, 0.5: more than 1.5 times the usual value. There of "
        "an exponential mean and in one step; here of the own history's 95 % quantile, and in five steps in a row.",
    ),
    _preset(
        "megatron",
        "Megatron-LM's checks",
        "Large gradients and spiky losses: more than 10 times the usual value.",
    ),
)

BY_NAME = {preset.name: preset for preset in ALL}
