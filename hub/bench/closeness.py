"""Measures of how far one result is from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from hub.errors import AccuracyError
from hub.torch_private import pytree


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference from a reference, over all outputs."""

    absolute: float
    """max|error|."""
    relative: float
    """max|error| / max|reference|, for the output for which it is largest."""


def difference(found: Any, reference: Any) -> Difference:
    """Compare two results, nested in any containers, tensor by tensor.

    Raise AccuracyError if their number, a shape, or the positions of NaN and infinity differ.
    """
    ours, theirs = tensors_in(found), tensors_in(reference)
    if len(ours) != len(theirs):
        raise AccuracyError(f"{len(ours)} outputs instead of {len(theirs)}")
    apart = [_difference(*pair) for pair in zip(ours, theirs, strict=True)]
    return Difference(
        max((item.absolute for item in apart), default=0.0), max((item.relative for item in apart), default=0.0)
    )


LEAST, MOST = -10, 1
"""Range of tolerances t that are tried: GraphNet's below 1, from where its score forgives errors of this kind."""

_EXPONENTS = {
    torch.float16: (1.0, 3.0 / 5),
    torch.bfloat16: (1.0, 1.796 / 5),
    torch.float32: (1.0, 5.886 / 5),
    torch.float64: (7.0 / 5, 7.0 / 5),
}
"""Powers of 10^t that give the absolute and the relative tolerance: at t = -5 they are those of `torch.testing`.

Source: GraphNet, graph_net/config/datatype_tolerance_config.py. Values of other dtypes must be equal.
"""


def least_tolerance(found: Any, reference: Any) -> int | None:
    """Return the least integer t from -10 to 1 at which every tensor is close; None if there is none.

    Close means |found - reference| <= atol + rtol |reference|, with atol and rtol for t and the reference's dtype. The
    tensors are those of `difference`, which has to be called first: it detects different shapes and numbers of outputs.
    """
    pairs = list(zip(tensors_in(found), tensors_in(reference), strict=True))
    return next((t for t in range(LEAST, MOST + 1) if all(_is_close(*pair, t) for pair in pairs)), None)


def _is_close(found: torch.Tensor, reference: torch.Tensor, t: int) -> bool:
    ours, theirs = found.detach().to("cpu", torch.float64), reference.detach().to("cpu", torch.float64)
    if reference.dtype not in _EXPONENTS:
        return torch.equal(ours, theirs)
    absolute, relative = (10.0 ** (t * exponent) for exponent in _EXPONENTS[reference.dtype])
    return torch.allclose(ours, theirs, rtol=relative, atol=absolute, equal_nan=True)


def tensors_in(result: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a result, in order; arrays and numbers of other libraries become tensors."""
    if isinstance(result, Mapping) and not isinstance(result, dict):  # OpenVINO's results are not a pytree
        result = list(cast("Mapping[Any, Any]", result).values())
    return tuple(torch.as_tensor(leaf) for leaf in pytree.tree_leaves(result) if leaf is not None)


def _difference(found: torch.Tensor, reference: torch.Tensor) -> Difference:
    if found.shape != reference.shape:
        raise AccuracyError(f"shape {list(found.shape)} instead of {list(reference.shape)}")
    ours, theirs = (value.detach().to("cpu", torch.float64) for value in (found, reference))
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        raise AccuracyError("NaN or infinity in other places than the reference")
    error = (ours - theirs).nan_to_num(0.0, 0.0, 0.0).abs()
    absolute = float(error.max()) if error.numel() else 0.0
    largest = float(theirs.nan_to_num(0.0, 0.0, 0.0).abs().max()) if theirs.numel() else 0.0
    return Difference(absolute, absolute / largest if largest else absolute)
