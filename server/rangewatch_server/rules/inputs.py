"""How large what the model is given is, by samples of its floating inputs; and advice where it was not normalised."""

from __future__ import annotations

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.rule import Remedy

INPUTS = ("input_rms", "input_rms_1", "input_rms_2")
"""Series of the size of what the model is given."""

LARGE_INPUT = 30.0
"""Root mean square from which on inputs were not normalised: usual is about 1, and of bytes as floats 150."""


def largest_input(evidence: Evidence, start: int, stop: int, rank: int | None = None) -> float:
    """The largest root mean square of what the model was given in [start, stop); 0 where it is not known."""
    sizes = [evidence.largest(name, start, stop, rank=rank) for name in INPUTS if evidence.has_series(name)]
    return max((float(each[np.isfinite(each)].max(initial=0.0)) for each in sizes), default=0.0)


def never_normalised(evidence: Evidence, step: int) -> list[Remedy]:
    """Advice where what the model was given before `step` was not normalised, which makes a usual rate too high; []
    where it was, or that is not known."""
    size = usual_input(evidence, evidence.start, max(step, evidence.start + 1))
    return [normalise(f"what the model is given is {size:.3g} in root mean square")] if size >= LARGE_INPUT else []


def usual_input(evidence: Evidence, start: int, stop: int, rank: int | None = None) -> float:
    """The median root mean square of the model's first floating input in [start, stop); 0 where it is not known."""
    if not evidence.has_series(INPUTS[0]):
        return 0.0
    values = evidence.largest(INPUTS[0], start, stop, rank=rank)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else 0.0


def input_growth(evidence: Evidence, start: int, stop: int) -> float:
    """Bits by which what the model is given has grown over the steps [start, stop), by the samples of its inputs: the
    most of any, between its first and its last eighth; 0 where nothing is known."""
    grown = [0.0]
    for name in (each for each in INPUTS if evidence.has_series(each)):
        values = evidence.series(name, max(start, evidence.start), stop)
        values = values[np.isfinite(values) & (values > 0)]
        few = max(1, len(values) // 8)
        if len(values) >= 2 * few:
            grown.append(float(np.log2(np.median(values[-few:]) / np.median(values[:few]))))
    return max(grown)


def normalises_first(evidence: Evidence) -> bool:
    """Whether the first output in call order is a normalisation's: what the model is given is of no size then."""
    entries, outputs = evidence.tensors.entries, tensors_of(evidence, "output")
    if not len(outputs):
        return False
    return "Norm" in entries[int(outputs[np.argmin(evidence.tensors.position[outputs])])].module


def normalise(because: str = "a sample of the inputs of the first steps", more: str = "bytes by 255") -> Remedy:
    """Advice. `more`: on other inputs than measurements."""
    return Remedy(
        "Normalise what the model is given: take off the mean and divide by the deviation, of each channel or column "
        f"over the training data; {more}. Not where the model does so itself, at its very beginning.",
        "def normalised(x, mean, deviation):  # of the training data\n"
        "    return (x - mean) / deviation.clamp(min=1e-6)",
        because,
    )
