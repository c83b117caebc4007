"""What follows from the declaration of an option: the docs, the signature of `attach`, and a name that was misspelt."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from torch import nn

import rangewatch
from rangewatch.core.options import OBSERVED_KINDS, OPTIONS, Options
from rangewatch.integrations.trainer_run import TrainerRun

TEXT = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, re.MULTILINE))


def test_every_option_with_its_default() -> None:
    for name, option in OPTIONS.items():
        shown, default = ROWS[name], option.default
        if shown.startswith("`") and name != "level":
            assert shown == f"`{default}`", name
    assert Options().kinds == Options(level="outputs").kinds and Options().queue_bytes == 256 << 20


def test_every_kind() -> None:
    assert set(OBSERVED_KINDS) <= set(ROWS)


def test_the_signature_has_every_option() -> None:
    parameters = inspect.signature(rangewatch.attach).parameters
    assert list(parameters) == ["model", "optimizer", "scaler", *OPTIONS]
    assert parameters["full_every"].annotation == "int | None" and parameters["full_every"].default is None
    assert parameters["url"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_misspelt_option_is_named_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="no option 'server'; did you mean 'url'"):
        rangewatch.attach(nn.Linear(1, 1), server="http://127.0.0.1:1")
    with pytest.raises(TypeError, match="no option 'urll'; did you mean 'url'"):
        rangewatch.attach(nn.Linear(1, 1), urll="http://127.0.0.1:1")
    with pytest.raises(TypeError, match="no option 'zzz'; it has abort_after"):
        rangewatch.attach(nn.Linear(1, 1), zzz=1)
    with pytest.raises(TypeError, match="RangewatchCallback has no option 'start_step'"):
        TrainerRun({"start_step": 3})


def test_options_are_not_changed() -> None:
    options = Options(full_every=3)
    with pytest.raises(AttributeError):
        options.full_every = 4
    assert dataclasses.replace(options, weight_every=7).full_every == 3
