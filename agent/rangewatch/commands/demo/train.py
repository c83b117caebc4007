"""The demo's training: a small transformer that really overflows fp16, because one layer's learning rate is too high.

The story is an ordinary one. Block 3's feed-forward was put in fresh, so somebody gave it a parameter group of its own,
"it has to catch up", with many times the model's learning rate and no weight decay. The loss does not mind: all that
reads the residual stream takes its RMSNorm first, so only the direction of that layer's output counts, not its size.
Nothing therefore holds the weights back, Adam moves each of them by about the learning rate a step, and the output,
of third order in the layer's three matrices, climbs through hundreds of healthy steps while the loss goes down.

Then one unlucky batch passes 65504 in `blocks.3.ff.wo`. The Inf becomes NaN in the next norm and every gradient is NaN,
on every rank after the all-reduce; GradScaler skips the step and halves the loss scale. That cannot help, because the
overflow is in the forward pass, which the loss scale does not touch. So it comes again, and the scale keeps falling.

Nothing plants an Inf or multiplies an activation, and time plays no part: the same seed gives the same steps.

The model is a small T5-style decoder: RMSNorm before each sublayer, attention, and the gated-GELU feed-forward.
Shapes: B windows a batch, T bytes a window, D `width`, F `hidden`, V 256 byte values. Parameters are float32; under
fp16 autocast the linear layers and what they feed run in float16.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.util
import json
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from rangewatch.commands.demo.options import DEFAULT_LR_FACTOR, DEFAULT_STEPS

VOCABULARY_SIZE = 256
"""One token a byte value."""

_LEAST_BYTES = 200_000
_MOST_BYTES = 1_000_000


def python_text() -> bytes:
    """The language reference that this Python ships for `help()`; its library's sources where it ships without.

    The same bytes for every process on one machine. Another Python version has slightly other text.
    """
    text = _help_topics()
    if len(text) < _LEAST_BYTES:
        text += _library_sources(_MOST_BYTES - len(text))
    return text[:_MOST_BYTES]


def _help_topics() -> bytes:
    if importlib.util.find_spec("pydoc_data") is None:
        return b""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _library_sources(most_bytes: int) -> bytes:
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(text) >= most_bytes:
            break
        text += path.read_bytes()
    return text


class Batches:
    """Windows of text drawn at random places; each rank draws its own, the same ones for the same seed.

    Calling it gives int64 tokens of shape [batch, length + 1]: input is all but the last, target all but the first.
    """

    def __init__(self, *, batch: int, length: int, seed: int, rank: int) -> None:
        self._bytes = torch.frombuffer(bytearray(python_text()), dtype=torch.uint8)
        self._generator = torch.Generator().manual_seed(seed * 1009 + rank)
        self._batch, self._length = batch, length

    def __call__(self) -> Tensor:
        last_start = len(self._bytes) - self._length - 1
        starts = torch.randint(last_start, (self._batch, 1), generator=self._generator)
        return self._bytes[starts + torch.arange(self._length + 1)].long()


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the demo model, chosen so that a step takes some 50 ms on one CPU core without fp16 instructions."""

    blocks: int = 6
    width: int = 64
    heads: int = 4
    hidden: int = 128
    length: int = 48
    dropout: float = 0.05


class RMSNorm(nn.Module):
    """Scales [B, T, D] to root mean square 1 over D, then by a learned weight [D]; no mean is taken away, as in T5.

    The mean is taken in float32: the square of an fp16 value above 255 is already Inf.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] in any float dtype -> [B, T, D] float32."""
        wide = states.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class CausalSelfAttention(nn.Module):
    """Multi-head attention over the bytes so far; [B, T, D] -> [B, T, D], no biases."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        batch, length, width = states.shape
        split = self.qkv(states).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class DenseGatedGelu(nn.Module):
    """T5 v1.1's feed-forward, `wo(dropout(gelu(wi_0 x) * wi_1 x))`: [B, T, D] -> [B, T, F] -> [B, T, D], no biases.

    The product of two projections grows with the square of their weights, which is why fp16 overflows start here.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.wi_1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.act = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(shape.dropout)
        self.wo = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        gated = self.act(self.wi_0(states)) * self.wi_1(states)
        return self.wo(self.dropout(gated))


class Block(nn.Module):
    """Attention then feed-forward, each after a norm and added to the residual stream [B, T, D]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attn_norm, self.attn = RMSNorm(shape.width), CausalSelfAttention(shape)
        self.ff_norm, self.ff = RMSNorm(shape.width), DenseGatedGelu(shape)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] float32 -> [B, T, D] float32."""
        states = states + self.attn(self.attn_norm(states))
        return states + self.ff(self.ff_norm(states))


class ByteTransformer(nn.Module):
    """Predicts the next byte: int64 tokens [B, T] -> logits [B, T, V]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY_SIZE, shape.width)
        self.position = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.final_norm = RMSNorm(shape.width)
        self.lm_head = nn.Linear(shape.width, VOCABULARY_SIZE, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 [B, T] -> logits [B, T, V], float16 under autocast."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.embed(tokens) + self.position(places)
        for block in self.blocks:
            states = block(states)
        return self.lm_head(self.final_norm(states))


LEARNING_RATE = 2e-3
FRESH_LAYER = "blocks.3.ff."
WARMUP_STEPS = 50


@dataclass(frozen=True)
class TrainOptions:
    """What a run of the demo may choose; the defaults are the demo."""

    steps: int = DEFAULT_STEPS
    seed: int = 0
    batch: int = 2
    """Windows of text a rank and step."""
    fresh_lr_factor: float = DEFAULT_LR_FACTOR
    """The fresh layer's learning rate over the model's: the misconfiguration. More makes the overflow come sooner."""
    init_scale: float = 2.0**14
    growth_interval: int = 200
    """Clean steps before the loss scale doubles; GradScaler's own default of 2000 would outlast the demo."""
    threads: int = 1
    watch: bool = True
    """False trains the same without Rangewatch."""


@dataclass(frozen=True)
class StepReport:
    """One finished step as this rank saw it: loss in nats a byte, and the loss scale which the step used."""

    step: int
    loss: float
    loss_scale: float


def train(
    options: TrainOptions,
    *,
    on_ready: Callable[[nn.Module], object] = lambda model: None,
    on_step: Callable[[StepReport], object] = lambda report: None,
) -> None:
    """Trains for `options.steps` steps, as one of WORLD_SIZE gloo ranks where the environment says so.

    `on_ready` gets the bare model before the first step, `on_step` each step's outcome.
    """
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    bare = ByteTransformer(ModelShape())
    on_ready(bare)
    with process_group() as rank:
        _train_on(DistributedDataParallel(bare) if dist.is_initialized() else bare, options, rank, on_step)
        # DDP lies in reference cycles. If it is freed after the process group, it ends gloo's threads and holds the GIL
        # that they wait for meanwhile (pytorch/pytorch#56297): one of 90 ranks hung so, on two busy cores.
        gc.collect()


def _train_on(model: nn.Module, options: TrainOptions, rank: int, on_step: Callable[[StepReport], object]) -> None:
    shape = ModelShape()
    batches = Batches(batch=options.batch, length=shape.length, seed=options.seed, rank=rank)
    # From here each rank draws its own dropout; the weights above had to be the same on all.
    torch.manual_seed(options.seed * 1009 + rank)
    optimizer = build_optimizer(model, options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_scale)
    scaler = torch.amp.GradScaler("cpu", init_scale=options.init_scale, growth_interval=options.growth_interval)
    # A model this small costs the agent more than the default budget of 3 % of a step.
    attach = functools.partial(rangewatch.attach, budget_percent=100)
    with attach(model, optimizer, scaler=scaler) if options.watch else nullcontext() as handle:
        for step in range(options.steps):
            loss_scale = scaler.get_scale()
            loss = train_step(model, batches(), optimizer, scaler)
            schedule.step()
            if handle is not None:
                handle.log(loss=loss)
            on_step(StepReport(step, loss, loss_scale))


def train_step(
    model: nn.Module, tokens: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> float:
    """One step on int64 tokens [B, T + 1] in fp16 autocast; gives the loss in nats a byte, NaN after an overflow."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    return float(loss.item())


def build_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW with two groups: the model, and the fresh layer with its far too high learning rate."""
    named = list(model.named_parameters())
    fresh = [parameter for name, parameter in named if FRESH_LAYER in name]
    rest = [parameter for name, parameter in named if FRESH_LAYER not in name]
    fresh_group: dict[str, Any] = {"params": fresh, "lr": LEARNING_RATE * options.fresh_lr_factor, "weight_decay": 0.0}
    return torch.optim.AdamW([{"params": rest}, fresh_group], lr=LEARNING_RATE, betas=(0.9, 0.95))


def learning_rate_scale(step: int) -> float:
    """T5's schedule, the inverse square root of the step, after a linear warm-up; 1 at the end of the warm-up."""
    return min((step + 1) / WARMUP_STEPS, math.sqrt(WARMUP_STEPS / (step + 1)))


@contextmanager
def process_group() -> Iterator[int]:
    """Joins torchrun's process group over gloo where WORLD_SIZE is above 1; gives this process's rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
        dist.barrier()  # a rank that leaves while its peer is still in the last all-reduce breaks it
    finally:
        dist.destroy_process_group()


def main(argv: list[str] | None = None) -> int:
    """One rank of the demo as a process: writes each step as a line of JSON to standard output."""
    options = parse_options(argv)

    def write(report: StepReport) -> None:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()

    train(options, on_step=write)
    return 0


def parse_options(argv: list[str] | None) -> TrainOptions:
    """TrainOptions from `--steps N --seed N ...`."""
    defaults = TrainOptions()
    parser = argparse.ArgumentParser(prog="python -m rangewatch.commands.demo.train", description=TrainOptions.__doc__)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--fresh-lr-factor", type=float, default=defaults.fresh_lr_factor)
    parser.add_argument("--no-watch", dest="watch", action="store_false")
    return TrainOptions(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
