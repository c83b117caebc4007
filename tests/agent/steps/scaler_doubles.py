"""Optimizers of DeepSpeed and Megatron in small: the attributes and the order of calls of the real ones.

Mirrored: deepspeed 0.19.8 (runtime/fp16/fused_optimizer.py, runtime/fp16/loss_scaler.py, runtime/zero/stage_1_and_2.py)
and megatron-core 0.16.1 (core/optimizer/optimizer.py, core/optimizer/grad_scaler.py). They really scale, check, skip
and update; what they leave out is the flattening, the sharding and the clipping.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


def is_bad(parameters: list[nn.Parameter]) -> bool:
    return not all(bool(each.grad.isfinite().all()) for each in parameters if each.grad is not None)


class WithMasters:
    """Has float32 copies of the model's parameters, which the inner optimizer updates."""

    def __init__(self, model: nn.Module, groups: int = 1) -> None:
        self.model = model  # as `deepspeed` and `model_chunks` do, the optimizer holds the model
        self.parameters = list(model.parameters())
        self.masters = [nn.Parameter(each.detach().float().clone()) for each in self.parameters]
        self.optimizer = torch.optim.SGD(self.masters, lr=0.0)
        self.groups = groups

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        for each in self.parameters:
            each.grad = None

    def take_step(self, scale: float) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float() / scale
        for _ in range(self.groups):  # ZeRO calls it once for each parameter group
            self.optimizer.step()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.data.copy_(master.data)


class FP16_Optimizer(WithMasters):
    def __init__(self, model: nn.Module, scale: float, *, dynamic: bool = True) -> None:
        super().__init__(model)
        self.loss_scale_config = SimpleNamespace(
            use_grad_scaling=True, dynamic_loss_scale=dynamic, cur_scale=scale, scale_factor=2.0, cur_iter=0
        )
        self.custom_loss_scaler, self.external_loss_scale = False, None
        self.overflow = False

    @property
    def loss_scale(self) -> Any:
        return self.external_loss_scale if self.custom_loss_scaler else self.loss_scale_config.cur_scale

    def scaled(self, loss: Tensor) -> Tensor:
        return loss.float() * self.loss_scale

    def step(self, closure: Any = None) -> bool:
        self.overflow = is_bad(self.parameters)
        if self.overflow:
            self._update_scale(True)
            self.zero_grad()
            return self.overflow
        self._update_scale(False)
        self.take_step(self.loss_scale)
        return self.overflow

    def _update_scale(self, skip: bool) -> None:
        config = self.loss_scale_config
        if config.dynamic_loss_scale:
            config.cur_scale = config.cur_scale / 2 if skip else config.cur_scale * 2
        config.cur_iter += 1


class DynamicLossScaler:
    def __init__(self, scale: float, *, dynamic: bool = True) -> None:
        self.cur_scale, self.dynamic = scale, dynamic

    @property
    def loss_scale(self) -> float:
        return self.cur_scale

    def update_scale(self, overflow: bool) -> None:
        if self.dynamic:
            self.cur_scale = self.cur_scale / 2 if overflow else self.cur_scale * 2


class DeepSpeedZeroOptimizer(WithMasters):
    def __init__(self, model: nn.Module, scale: float, *, dynamic: bool = True) -> None:
        super().__init__(model, groups=3)
        self.loss_scaler = DynamicLossScaler(scale, dynamic=dynamic)
        self.dynamic_loss_scale = self.loss_scaler.dynamic
        self.custom_loss_scaler, self.external_loss_scale = False, None
        self.torch_autocast_gradscaler = None
        self.overflow = False

    @property
    def loss_scale(self) -> Any:
        return self.external_loss_scale if self.custom_loss_scaler else self.loss_scaler.cur_scale

    cur_scale = loss_scale

    def scaled(self, loss: Tensor) -> Tensor:
        return loss.float() * self.loss_scale

    def step(self, closure: Any = None) -> None:
        self.overflow = is_bad(self.parameters)
        before = self.loss_scale
        self.loss_scaler.update_scale(self.overflow)
        if self.overflow:
            self.zero_grad()
            return
        self.take_step(before)


class DeepSpeedEngine(nn.Module):
    """`step` is called at each microbatch and steps at every second."""

    def __init__(self, module: nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.module, self.optimizer, self.micro_steps = module, optimizer, 0

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class DynamicGradScaler:
    def __init__(self, scale: float) -> None:
        self._scale = torch.tensor([scale])

    @property
    def scale(self) -> Tensor:
        return self._scale

    def update(self, found_inf: bool) -> None:
        self._scale = self._scale / 2 if found_inf else self._scale * 2


class Float16OptimizerWithFloat16Params(WithMasters):
    def __init__(self, model: nn.Module, scale: float | None) -> None:
        super().__init__(model)
        self.grad_scaler = None if scale is None else DynamicGradScaler(scale)

    def get_loss_scale(self) -> Tensor:
        raise AssertionError("makes a tensor on the device where there is no scaler")

    def scaled(self, loss: Tensor) -> Tensor:
        return loss.float() * (1.0 if self.grad_scaler is None else self.grad_scaler.scale)

    def prepare_grads(self) -> bool:
        if self.grad_scaler is None:
            return False
        self.inv_scale = 1 / self.grad_scaler.scale.item()
        found_inf = is_bad(self.parameters)
        self.grad_scaler.update(found_inf)
        return found_inf

    def step_with_ready_grads(self) -> bool:
        self.take_step(1.0)
        return True

    def step(self) -> tuple[bool, float | None, int | None]:
        if self.prepare_grads():
            return False, None, None
        return self.step_with_ready_grads(), 1.0, 0


class ChainedOptimizer:
    """Several of them, which share the loss and so the first one's scale; it calls their parts, not their `step`."""

    def __init__(self, chained_optimizers: list[Float16OptimizerWithFloat16Params]) -> None:
        self.chained_optimizers = chained_optimizers

    @property
    def optimizer(self) -> Any:
        assert len(self.chained_optimizers) == 1, "has more than one"
        return self.chained_optimizers[0].optimizer

    def get_loss_scale(self) -> Tensor:
        raise AssertionError("makes a tensor on the device where there is no optimizer")

    def scaled(self, loss: Tensor) -> Tensor:
        return self.chained_optimizers[0].scaled(loss)

    def zero_grad(self) -> None:
        for each in self.chained_optimizers:
            each.zero_grad()

    def step(self) -> tuple[bool, float | None, int | None]:
        found = [each.prepare_grads() for each in self.chained_optimizers]
        if any(found):
            return False, None, None
        success = True
        for each in self.chained_optimizers:
            success &= each.step_with_ready_grads()
        return success, 1.0, 0
