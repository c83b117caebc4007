"""Short trainings of the layouts: each yields the loss of a step after its update, for `bench/low_precision.py` to
attach to and to compare with an unquantized twin of the same seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from low_precision_trainings.models import BATCH, LENGTH, VOCABULARY, Plain, Residual, Transformer, Tuned
from low_precision_trainings.quantize import Recipe, operands_of

Hook = Callable[[int, nn.Module], None]


class Training(ABC):
    """A model, its optimizer, and `step`, which gives the loss. `before` changes something before a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, model: nn.Module, lr: float, before: Hook | None, optimizer: str = "adam") -> None:
        self.model, self.before = model, before
        trained = [each for each in model.parameters() if each.requires_grad]
        if optimizer == "adam":
            self.optimizer = torch.optim.Adam(trained, lr)
        else:
            self.optimizer = torch.optim.SGD(trained, lr, momentum=0.9)

    @abstractmethod
    def loss(self) -> Tensor:
        """Of this step's batch."""

    def losses(self, steps: int) -> Iterator[float]:
        """That of each step, after its update."""
        for step in range(steps):
            if self.before is not None:
                self.before(step, self.model)
            loss = self.loss()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()


class Taught(Training):
    """All of a small data set in each step, labelled by a teacher of the same kind: the loss falls by magnitudes."""

    def __init__(
        self, seed: int, recipe: Recipe, lr: float, before: Hook | None, optimizer: str,
        kind: type[Plain] | type[Residual], layers: int,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        teacher, model = (kind(each, layers=layers).requires_grad_() for each in (Recipe(), recipe))
        super().__init__(model, lr, before, optimizer)
        self.rows = torch.randn(64, 64)
        with torch.no_grad():
            if isinstance(teacher, Residual):
                for norm in teacher.norms:
                    norm.weight.mul_(1 + 0.1 * torch.randn(norm.weight.shape))
            self.labels = teacher(self.rows)

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.rows), self.labels)


class Learnt(Training):
    """One batch of tokens, learnt by heart."""

    def __init__(
        self, seed: int, recipe: Recipe, lr: float, before: Hook | None, *, layers: int = 2, is_glu: bool = False
    ) -> None:
        torch.manual_seed(seed)
        super().__init__(Transformer(recipe, layers=layers, is_glu=is_glu), lr, before)
        self.tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))

    def loss(self) -> Tensor:
        logits = self.model(self.tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())


class Adapted(Training):
    """A token-wise model with adapters. From step `padded_from` on some rows end in padding, which has no loss; or with
    `is_prompt` begin with a prompt, which has none either."""

    def __init__(
        self, seed: int, recipe: Recipe, lr: float, before: Hook | None, padded_from: int, *, is_prompt: bool = False
    ) -> None:
        torch.manual_seed(seed)
        super().__init__(Tuned(recipe), lr, before)
        self.generator = torch.Generator().manual_seed(seed)
        self.successor = torch.randint(1, VOCABULARY, (VOCABULARY,), generator=self.generator)
        self.padded_from, self.is_prompt, self.step = padded_from, is_prompt, 0

    def loss(self) -> Tensor:
        tokens = torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=self.generator)
        labels = self.successor[tokens]
        if self.step >= self.padded_from:
            if self.is_prompt:
                labels[:2, :6] = 0
            else:
                tokens[:2, -6:] = labels[:2, -6:] = 0
        self.step += 1
        logits = self.model(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)


def norms_at(value: float, spread: float = 0.01) -> Hook:
    """Affine weights as a checkpoint has them: close to one value."""

    def before(step: int, model: nn.Module) -> None:
        if step == 0:
            generator = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for module in model.modules():
                    if isinstance(module, nn.LayerNorm):
                        weight = module.weight
                        weight.copy_(value * (1 + spread * torch.randn(weight.shape, generator=generator)))

    return before


def channel_grows(factor: float, since: int = 10, channel: int = 3, block: int = 1) -> Hook:
    """One channel of a GLU grows in front of a projection that takes it back, and is not trained: an outlier of which
    nothing is seen without rounding."""

    def but_channel(dim: int) -> Callable[[Tensor], Tensor]:
        return lambda gradient: gradient.index_fill(dim, torch.tensor([channel]), 0.0)

    def before(step: int, model: nn.Module) -> None:
        part = model.blocks[block]  # type: ignore[index]
        if step == 0:
            part.up.weight.register_hook(but_channel(0))
            part.down.weight.register_hook(but_channel(1))
        if step >= since:
            with torch.no_grad():
                part.up.weight[channel] *= factor
                part.down.weight[:, channel] /= factor

    return before


def rounds_since(step: int) -> Hook:
    """The first steps are left as they are, as recipes do that begin in bfloat16."""

    def before(at: int, model: nn.Module) -> None:
        for operand in operands_of(model):
            operand.is_on = at >= step

    return before
