"""ONNX Runtime by itself, for `hub bench`: the library's own best path from a PyTorch module, without hub code."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .library import onnxruntime
from .torch_private import tree_leaves


def whole(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], list[torch.Tensor]]:
    """Export `module`, open a session with default options except for threads, and return a callable that runs it once.

    Inputs and outputs are bound in place. Exceptions of the exporter and of ONNX Runtime propagate.
    """
    with torch.no_grad():
        expected = _tensors(module(*inputs))
        exporter: Any = torch.onnx  # its annotations leave types open
        exported = exporter.export(module.eval(), tuple(inputs), dynamo=True, optimize=True, verbose=False)
    assert exported is not None
    model = io.BytesIO()
    exported.save(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.getvalue(), options, providers=["CPUExecutionProvider"])
    return _bound(session, _tensors(inputs), expected)


def _bound(session: Any, inputs: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    binding = session.io_binding()
    kept = [value.contiguous() for value in inputs]
    for described, value in zip(session.get_inputs(), kept, strict=True):
        binding.bind_input(described.name, "cpu", 0, _numpy_type(value), tuple(value.shape), value.data_ptr())
    outputs = [torch.empty(value.shape, dtype=value.dtype) for value in like]
    for described, value in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_output(described.name, "cpu", 0, _numpy_type(value), tuple(value.shape), value.data_ptr())

    def run() -> list[torch.Tensor]:
        session.run_with_iobinding(binding)
        return outputs

    run.keeps = kept  # pyright: ignore[reportFunctionMemberAccess] - bound memory lives as long as the callable
    return run


def _numpy_type(value: torch.Tensor) -> Any:
    return torch.empty(0, dtype=value.dtype).numpy().dtype.type


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors of nested outputs, in order."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
