"""Compares what a compiled model answers with what eager does: results with their types, or types of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

PLAIN = (bool, int, float, str, type(None))


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the result, or the type of error."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error)


def assert_same(found: Any, expected: Any, name: str = "") -> None:
    """Compare two outcomes."""
    if isinstance(expected, type):
        assert isinstance(found, type), name
        assert issubclass(found, expected), name
        return
    leaves, structure = pytree.tree_flatten(found)
    wanted, its_structure = pytree.tree_flatten(expected)
    assert structure == its_structure, f"{name}: {found}"
    for leaf, other in zip(leaves, wanted, strict=True):
        assert type(leaf) is type(other), f"{name}: {leaf}"
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
            torch.testing.assert_close(leaf, other, equal_nan=True, msg=lambda text: f"{name}: {text}")
        elif isinstance(leaf, PLAIN):
            assert leaf == other, name
