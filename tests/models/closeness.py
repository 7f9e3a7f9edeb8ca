"""Says whether a compiled model is as exact as float32 eager, by its error against a float64 run."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.models.builders import Built

FLOOR = 2e-6
"""max|error| / max|reference| that is free: sixteen roundings of float32, where eager happens to be exact."""


def check_as_exact_as_eager(built: Built, got: Any) -> None:
    """Raise AssertionError unless each output has eager's kind, and at most `built.error_factor` times its error."""
    eager = built.run(built.model)
    mine, structure = pytree.tree_flatten(got)
    wanted, wanted_structure = pytree.tree_flatten(eager)
    assert structure == wanted_structure
    for index, (left, right, exact) in enumerate(zip(mine, wanted, pytree.tree_leaves(in_float64(built)), strict=True)):
        if not isinstance(right, torch.Tensor):
            assert left == right
        else:
            _check(f"output {index}", left, right, exact, built.error_factor)


def in_float64(built: Built) -> Any:
    """Return what a float64 copy of the model returns for float64 copies of the inputs."""
    wide = pytree.tree_map_only(torch.Tensor, _widened, (built.args, dict(built.kwargs or {})))
    model = copy.deepcopy(built.model).double()
    return Built(model, *wide).run(model)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _check(where: str, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, factor: float) -> None:
    assert (got.shape, got.dtype, got.device) == (eager.shape, eager.dtype, eager.device), where
    if not eager.is_floating_point():
        assert torch.equal(got, eager), where
        return
    scale = float(exact.abs().max()) or 1.0
    mine, own = (float((value.double() - exact).abs().max()) / scale for value in (got, eager))
    assert mine <= factor * own + FLOOR, f"{where}: relative error {mine:.2e}, eager's own is {own:.2e}"
