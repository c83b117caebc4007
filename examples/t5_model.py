"""What both fine-tuning examples train, and on what: a T5 with random weights, and Python's own documentation.

Nothing is downloaded. Tokens are ByT5's: 0 pads, 1 ends a sequence, byte b is b + 3, and 259 onwards are the sentinels
that stand for a missing span.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

PAD, END, FIRST_BYTE, FIRST_SENTINEL, VOCABULARY_SIZE = 0, 1, 3, 259, 384

# Layers, width, hidden, heads. `base291` has 291 modules: 15, 19 for each encoder layer and 27 for each decoder layer.
SIZES = {"tiny": (2, 64, 128, 4), "base291": (6, 512, 1024, 8)}


def build_model(size: str) -> T5ForConditionalGeneration:
    """A T5 v1.1 (gated GELU) with random weights in float32; as many decoder layers as encoder layers."""
    layers, width, hidden, heads = SIZES[size]
    config = T5Config(
        vocab_size=VOCABULARY_SIZE,
        d_model=width,
        d_kv=width // heads,
        d_ff=hidden,
        num_layers=layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=True,  # or the random output layer starts with a loss of 30
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
    )
    return T5ForConditionalGeneration(config)


class SpanCorruption:
    """T5's own task: spans are cut out of a window of text, and the decoder has to write them.

    Each quarter of a window loses one span of `span` bytes, so that every batch has the same shapes: int64 inputs
    [B, length - 4 * span + 5] and labels [B, 4 * (span + 1) + 1].
    """

    SPANS = 4

    def __init__(self, *, batch: int, length: int, span: int = 10, seed: int = 0) -> None:
        text = "\n".join(topics[name] for name in sorted(topics)).encode()
        self._ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long() + FIRST_BYTE
        self._batch, self._length, self._span = batch, length, span
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self) -> dict[str, Tensor]:
        """The next batch: `input_ids` and `labels`."""
        pairs = [self._corrupt(self._window()) for _ in range(self._batch)]
        inputs, labels = zip(*pairs, strict=True)
        return {"input_ids": torch.stack(inputs), "labels": torch.stack(labels)}

    def _window(self) -> Tensor:
        start = self._draw(len(self._ids) - self._length)
        return self._ids[start : start + self._length]

    def _corrupt(self, window: Tensor) -> tuple[Tensor, Tensor]:
        inputs, labels = [], []
        for number, quarter in enumerate(window.chunk(self.SPANS)):
            sentinel = torch.tensor([FIRST_SENTINEL + number])
            start = self._draw(len(quarter) - self._span)
            stop = start + self._span
            inputs += [quarter[:start], sentinel, quarter[stop:]]
            labels += [sentinel, quarter[start:stop]]
        end = torch.tensor([END])
        return torch.cat([*inputs, end]), torch.cat([*labels, end])

    def _draw(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self._generator))
