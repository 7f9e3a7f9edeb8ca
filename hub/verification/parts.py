"""Complex numbers as pairs of real ones, so that floating-point code applies to both parts."""

from __future__ import annotations

import torch


def parts_of(value: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs of real ones, in a last dim of size 2, and all others unchanged."""
    return torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()


def whole_of(parts: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the tensor made of such parts: complex if `value` is complex."""
    return torch.view_as_complex(parts) if value.is_complex() else parts
