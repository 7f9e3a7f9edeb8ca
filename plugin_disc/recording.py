"""Recordings for replay: a cluster with its weights in one file, its inputs in another.

Both are pickles: loading a recording runs the code that its author put there.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    RunError,
    ScalarSpec,
    dump_module,
    hint,
    load_module,
    output_arguments,
    spec_of,
)

from .compiler import NAME

CLUSTER_FILE = "cluster.bin"
INPUTS_FILE = "inputs.pt"
_NAMES = ("name", "node_names", "input_names", "output_names")


def write_cluster(folder: Path, cluster: Cluster) -> None:
    """Write a cluster's program, weights and name."""
    names = {name: getattr(cluster, name) for name in _NAMES}
    (folder / CLUSTER_FILE).write_bytes(pickle.dumps({"module": dump_module(cluster.module), **names}))


def write_inputs(folder: Path, inputs: Sequence[Any]) -> None:
    """Write the inputs of one call, each tensor with its strides."""
    values = [value.detach() if isinstance(value, torch.Tensor) else value for value in inputs]
    torch.save(values, folder / INPUTS_FILE)


def read_cluster(folder: Path) -> Cluster:
    """Return the recorded cluster. Raise RunError if there is none or it cannot be read."""
    try:
        facts = pickle.loads((folder / CLUSTER_FILE).read_bytes())
        module = load_module(facts.pop("module"))
        module.recompile()  # the pickle holds only the graph
        inputs = tuple(spec_of(node.meta["val"]) for node in module.graph.find_nodes(op="placeholder"))
        outputs: Any = tuple(spec_of(node.meta["val"]) for node in output_arguments(module))
        return Cluster(module=module, inputs=inputs, outputs=outputs, **facts)
    except Exception as error:
        hint_text = "give the folder of one cluster, as the hub's option debug_dir has it written"
        raise RunError(f"{folder} holds no recorded cluster: {error}", backend=NAME, hint=hint_text) from error


def read_inputs(folder: Path) -> tuple[Any, ...] | None:
    """Return the recorded inputs; None if no call was recorded. Raise RunError if the file cannot be read."""
    if not (folder / INPUTS_FILE).is_file():
        return None
    try:
        return tuple(torch.load(folder / INPUTS_FILE, weights_only=True))
    except Exception as error:
        raise RunError(f"{folder / INPUTS_FILE} cannot be read: {error}", backend=NAME) from error


def made_up_inputs(cluster: Cluster) -> tuple[Any, ...]:
    """Return generated inputs for a cluster, the same every time: normal floats, integers and bools of 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    return tuple(_made_up(spec, generator) for spec in cluster.inputs)


def _made_up(spec: Any, generator: torch.Generator) -> Any:
    if isinstance(spec, ScalarSpec):
        return hint(spec.value) if spec.kind == "int" else spec.value
    shape, strides = tuple(map(hint, spec.shape)), tuple(map(hint, spec.stride))
    reach = 0 if 0 in shape else 1 + sum(step * (size - 1) for size, step in zip(shape, strides, strict=True))
    is_float = spec.dtype.is_floating_point
    memory = torch.empty(reach, dtype=spec.dtype)  # filled as a whole: an expanded tensor cannot be written to
    filled = memory.normal_(generator=generator) if is_float else memory.random_(0, 2, generator=generator)
    return filled.as_strided(shape, strides)
