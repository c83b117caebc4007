"""Weights that TransformerEngine holds in low precision, as parameters or in a module's workspaces: their stored
numbers and scales, without what kernels pad the scales with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rangewatch.wire.events import ScaledOperand

_DTYPES = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}

Codes = tuple[Tensor, Tensor, ScaledOperand]
"""Stored numbers (rows, columns), scales (rows, blocks) and how they are cast."""


def format_of(dtype: Any) -> str:
    """Of one of its own dtypes, such as `DType.kFloat8E4M3`."""
    text = str(dtype)
    return next((each for each in ("E4M3", "E5M2", "E2M1") if text.endswith(each)), "")


def read(module: nn.Module, gemm: int, kind: str) -> Codes | None:
    """Of the weight of a product of the module, by the kind of its recipe; None where it is held nowhere."""
    held = _held(module, gemm)
    codes, scale = getattr(held, "_rowwise_data", None), getattr(held, "_rowwise_scale_inv", None)
    if not isinstance(codes, Tensor) or not isinstance(scale, Tensor) or scale.dim() != 2:
        return None
    if getattr(held, "_with_gemm_swizzled_scales", False) or codes.dim() != 2:
        return None
    if kind == "mxfp8":
        return _mxfp8(held, codes, scale)
    if kind == "nvfp4":
        return _nvfp4(held, codes, scale)
    return _block(held, codes, scale) if kind == "block" else None


def unpacked(codes: Tensor) -> Tensor:
    """(rows, columns) float32 magnitudes of E2M1 that lie two in a byte, the first in the lower bits."""
    codes = codes.view(torch.uint8)
    numbers = torch.stack((codes & 7, codes >> 4 & 7), dim=-1).reshape(len(codes), -1)
    # Computed, and not looked up: a table of the host's would be copied, which waits for the device.
    exponent, half = (numbers >> 1).float(), (numbers & 1).float() / 2
    return torch.where(exponent > 0, (1 + half) * torch.exp2(exponent - 1), half)


def _held(module: nn.Module, gemm: int) -> Any:
    names = ("weight", "fc1_weight") if gemm == 0 else (f"fc{gemm + 1}_weight",)
    workspaces: Any = getattr(module, "_fp8_workspaces", None) or {}
    for name in (*names, f"weight{gemm}"):
        for held in (workspaces.get(name), getattr(module, name, None)):
            if held is not None and getattr(held, "_rowwise_data", None) is not None:
                return held
    return None


def _mxfp8(held: Any, codes: Tensor, scale: Tensor) -> Codes | None:
    format = format_of(getattr(held, "_fp8_dtype", None))
    rows, columns = codes.shape
    if format not in _DTYPES or columns % 32 or scale.dtype is not torch.uint8:
        return None
    powers = scale[:rows, : columns // 32].view(torch.float8_e8m0fnu).float()
    about = ScaledOperand("", "", 0, format, "block 1x32", "e8m0", "TransformerEngine", "MXFP8BlockScaling")
    return codes.view(_DTYPES[format]), powers, about


def _nvfp4(held: Any, codes: Tensor, scale: Tensor) -> Codes | None:
    amax = getattr(held, "_amax_rowwise", None)
    rows, columns = len(codes), 2 * codes.shape[1]
    if not isinstance(amax, Tensor) or amax.numel() != 1 or columns % 16 or scale.dtype is not torch.uint8:
        return None
    of_tensor = amax.float().reshape(1, 1) / (float(getattr(held, "_nvfp4_e4m3_max", 448)) * 6.0)
    blocks = scale[:rows, : columns // 16].view(torch.float8_e4m3fn).float() * of_tensor
    about = ScaledOperand("", "", 0, "E2M1", "block 1x16", "e4m3", "TransformerEngine", "NVFP4BlockScaling")
    return unpacked(codes), blocks, about


def _block(held: Any, codes: Tensor, scale: Tensor) -> Codes | None:
    """Of 128 by 128, where these fill the weight."""
    format = format_of(getattr(held, "_fp8_dtype", None))
    rows, columns = codes.shape
    if format not in _DTYPES or not getattr(held, "_is_2D_scaled", False) or rows % 128 or columns % 128:
        return None
    about = ScaledOperand("", "", 0, format, "block 128x128", "float32", "TransformerEngine", "Float8BlockScaling")
    return codes.view(_DTYPES[format]), scale[: rows // 128, : columns // 128].float(), about
