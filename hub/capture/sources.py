"""Find the inputs of a Dynamo graph that are parameters and buffers of modules, or made of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from hub.torch_private import is_from_unspecialized_param_buffer_source


def weight_positions(module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of the inputs that are parameters or buffers, and so change rarely."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return tuple(
        position
        for position, (node, value) in enumerate(zip(placeholders, inputs, strict=True))
        if isinstance(value, torch.Tensor) and (isinstance(value, torch.nn.Parameter) or _is_module_state(node))
    )


def number_positions(module: fx.GraphModule) -> tuple[int, ...]:
    """Return the positions of the inputs that Dynamo makes of numbers, as of a Python float once it has changed."""
    found = [node.meta.get("grapharg") for node in module.graph.find_nodes(op="placeholder")]
    return tuple(
        position
        for position, one in enumerate(found)
        if getattr(one, "pass_arg_as_tensor", False) and not getattr(one, "is_tensor", True)
    )


def _is_module_state(node: fx.Node) -> bool:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return source is not None and is_from_unspecialized_param_buffer_source(source)
