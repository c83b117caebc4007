"""What the agent tells of the surroundings of a first NaN or Inf: its event `nonfinite`, docs/wire.md."""

from __future__ import annotations

import msgspec

from rangewatch_server.rules.nonfinite.tensor_phrases import headroom


class TensorDetails(msgspec.Struct, frozen=True):
    """A tensor as the agent saw it beside the first bad output, or as its row tells of it: docs/wire.md."""

    name: str
    dtype: str
    numel: int
    amax: float
    nan_count: int
    inf_count: int
    zero_count: int = 0
    negative_count: int = 0
    negative_inf_count: int = 0
    masked_rows: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether it held NaN or Inf."""
        return self.nan_count > 0 or self.inf_count > 0

    @property
    def is_mask(self) -> bool:
        """Whether all that is not finite in it is -Inf, as in masks that are added to attention scores."""
        return not self.nan_count and 0 < self.inf_count == self.negative_inf_count

    @property
    def headroom(self) -> float:
        """Bits below the limit of its dtype; Inf when all was zero, NaN for a dtype that is not known."""
        return headroom(self.dtype, self.amax)


class Optimizer(msgspec.Struct, frozen=True):
    """The optimizer of `parameter`: its settings, and the tensors of its state."""

    name: str = msgspec.field(name="class")
    parameter: str = ""
    lr: float | None = None
    eps: float | None = None
    state: tuple[TensorDetails, ...] = ()


class Context(msgspec.Struct, frozen=True):
    """The agent's event `nonfinite`; None for what it could not see."""

    fqn: str
    kind: str
    index: int
    inputs: tuple[TensorDetails, ...] | None = None
    model_inputs: tuple[TensorDetails, ...] | None = None
    weights: tuple[TensorDetails, ...] | None = None
    autocast: str | None = None
    eps: float | None = None
    optimizer: Optimizer | None = None
