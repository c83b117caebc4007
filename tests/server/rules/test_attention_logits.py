"""Attention logits that grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations.attention_logits import RULE
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(5)
GROWS = 2 ** (4 + 0.03 * np.arange(200) + NOISE.normal(0, 0.2, 200))
SOFTMAX = tensor("blocks.0.attn.softmax", "input", module="Softmax")


def test_growth_is_told(recording: Recording) -> None:
    recording.write([SOFTMAX], 200, {"amax": GROWS})
    assert recording.diagnose(RULE, stop=50).findings == ()
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.step) == ("blocks.0.attn.softmax", "input", 0, 199)
    assert 500 < found.facts["amax"] < 2_000


def test_a_module_that_is_named_for_them(recording: Recording) -> None:
    recording.write([tensor("layer.3.self_attention.scores", module="Scores")], 200, {"amax": GROWS})
    assert len(recording.diagnose(RULE).findings) == 1


@pytest.mark.parametrize(
    "amax",
    [
        np.full(200, 1e4),  # a mask of -1e4
        1e4 + GROWS,
        GROWS / 100,  # small
        np.minimum(GROWS, 100),  # they stop
        2 ** (7 + NOISE.normal(0, 1, 200)),
        np.where(np.arange(200) < 100, 16, 256),
        np.r_[GROWS[:150], 100 * GROWS[:50] / GROWS[0]],
    ],
    ids=["mask", "mask and logits", "small", "stops", "noise", "one step", "falls again"],
)
def test_others_are_quiet(recording: Recording, amax: np.ndarray) -> None:
    recording.write([SOFTMAX], 200, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_other_modules_are_quiet(recording: Recording) -> None:
    others = [tensor("head.softmax", "input", module="Softmax"), tensor("attn.out", module="Linear", call_index=1)]
    recording.write(others, 200, {"amax": GROWS})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    "name",
    ["h.0.attn.c_attn", "layers.1.self_attn.q_proj", "encoder.attention.self.key", "blocks.3.attn.qkv", "attn1.to_k"],
)
def test_where_no_module_gives_the_logits_queries_and_keys_are_looked_at(recording: Recording, name: str) -> None:
    recording.write(
        [tensor(name), tensor("attn.c_proj", call_index=1)], 200, {"amax": np.stack([GROWS, GROWS / GROWS])}
    )
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.severity, found.facts["are_seen"]) == (name, "info", False)
    assert "Lower the learning rate" in found.remedy[0].text


@pytest.mark.parametrize("name", ["attn.v_proj", "attn.out_proj", "attn.c_proj", "mlp.key", "attn.o"])
def test_what_gives_no_queries_and_no_keys_is_quiet(recording: Recording, name: str) -> None:
    recording.write([tensor(name)], 200, {"amax": GROWS})
    assert recording.diagnose(RULE).findings == ()


def test_logits_that_are_seen_speak_for_themselves(recording: Recording) -> None:
    both = [SOFTMAX, tensor("blocks.0.attn.q_proj", call_index=1)]
    recording.write(both, 200, {"amax": np.stack([GROWS, 10 * GROWS])})
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.severity) == ("blocks.0.attn.softmax", "warning")


class TestFused:
    """Of `scaled_dot_product_attention`: a tensor a head."""

    GROWS = 2.0 ** (4 + 0.03 * np.arange(200.0))

    def write(self, recording: Recording, name: str) -> Any:
        heads = [TensorEntry(f"blocks.0.attn {name}", "output", at, "float32", (4, 8), at, "Value") for at in range(3)]
        recording.write(heads, 200, {"amax": np.vstack([np.ones(200), self.GROWS, np.ones(200)])})
        (found,) = recording.diagnose(RULE).findings
        return found

    def test_the_head_is_named(self, recording: Recording) -> None:
        found = self.write(recording, "attention logits")
        assert "attention logits (blocks.0.attn, head 1) grow" in found.summary
        assert (found.severity, found.facts["seen"]) == ("warning", "logits")
        text = " ".join(each.text for each in found.remedy)
        assert all(each in text for each in ("Normalise queries and keys", "QK-clip", "cap the logits softly"))

    def test_a_bound_is_said_to_be_one(self, recording: Recording) -> None:
        found = self.write(recording, "attention logits bound")
        assert "the bound of its logits" in found.summary and found.severity == "info"
        assert "no logit is larger" in found.evidence[1]
