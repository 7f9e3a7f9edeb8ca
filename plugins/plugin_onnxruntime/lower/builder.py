"""Builds one ONNX graph: nodes, constants, and the sizes of symbolic dims."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from hub.plugin import CompileError

OPSET = 20
"""Newest ONNX opset whose operators all of ORT's graph optimisers recognise. Reshape and Cast of opsets 21 and later hide
some fusions from them, and nothing newer is needed."""
MICROSOFT = "com.microsoft"
INLINE_BYTES = 1024
"""Constants larger than this stay outside the protobuf, which is limited to 2 GiB and slow to copy."""

ELEMENT = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}
"""ONNX element types of the dtypes that this backend supports."""


def expression(size: Any) -> Any:
    """Return the sympy expression of a symbolic size, or an int unchanged."""
    return int(size) if isinstance(size, int) else size.node.expr


class Builder:
    """An ONNX graph under construction. Values are names; every method that computes returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inline: list[TensorProto] = []
        self.weights: dict[str, torch.Tensor] = {}
        """Large constants, contiguous, by name."""
        self.origin = ""
        """Name of the FX node being lowered, the prefix of the ONNX nodes' names, so that ORT's messages refer to it."""
        self._count = 0
        self._cache: dict[Any, str] = {}
        self._sizes: dict[Any, tuple[str, int | None]] = {}

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return its name."""
        return self.ops(kind, *inputs, n_outputs=1, domain=domain, **attributes)[0]

    def ops(self, kind: str, *inputs: str, n_outputs: int, domain: str = "", **attributes: Any) -> tuple[str, ...]:
        """Add a node with `n_outputs` outputs, and return their names. Attributes that are None are omitted."""
        given = {name: value for name, value in attributes.items() if value is not None}
        outputs = tuple(self._fresh(kind) for _ in range(n_outputs))
        name = f"{self.origin}/{outputs[0]}"
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, domain=domain, **given))
        return outputs

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """Return a small constant from a number or a (nested) list; equal constants share one name."""
        key = ("constant", repr(value), dtype)
        if key not in self._cache:
            self._cache[key] = self.weight(torch.tensor(value, dtype=dtype))
        return self._cache[key]

    def ints(self, *values: int) -> str:
        """Return a 1-d int64 constant."""
        return self.constant(list(values), torch.int64)

    def weight(self, tensor: torch.Tensor, name: str = "") -> str:
        """Add a constant tensor; a large contiguous one by reference, without a copy."""
        name = name or self._fresh("constant")
        dense = tensor.detach().contiguous()
        if dense.nbytes > INLINE_BYTES:
            self.weights[name] = dense
        else:
            self.inline.append(
                helper.make_tensor(name, ELEMENT[dense.dtype], dense.shape, array_of(dense).tobytes(), raw=True)
            )
        return name

    def shared(self, key: Any, make: Callable[[], str]) -> str:
        """Return the result of the first call of `make` under this key."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def cast(self, value: str, source: torch.dtype, target: torch.dtype) -> str:
        """Return `value` as `target`; the value itself if it already has that dtype."""
        if source == target:
            return value
        key = ("cast", value, target)
        if key not in self._cache:
            self._cache[key] = self.op("Cast", value, to=ELEMENT[target])
        return self._cache[key]

    # --- Sizes --------------------------------------------------------------------------------------------------------

    def know_number(self, name: str, value: Any) -> None:
        """Declare a 0-d int64 value that holds a symbolic size."""
        self._sizes.setdefault(expression(value), (name, None))

    def know_shape(self, name: str, shape: Sequence[Any]) -> None:
        """Declare a tensor whose dims can serve as sources of symbolic sizes."""
        for dim, size in enumerate(shape):
            if not isinstance(size, int):
                self._sizes.setdefault(expression(size), (name, dim))

    def size(self, size: Any) -> str:
        """Return a size as a 1-d int64 value of one element. Raise CompileError if no source of it is known."""
        wanted = size if isinstance(size, int) or not hasattr(size, "node") else size.node.expr
        if isinstance(wanted, int) or getattr(wanted, "is_Integer", False):
            return self.ints(int(wanted))
        key = ("size", wanted)
        if key not in self._cache:
            self._cache[key] = self._find_size(wanted)
        return self._cache[key]

    def scalar_size(self, size: Any) -> str:
        """Return a size as a 0-d int64 value."""
        return self.op("Squeeze", self.size(size)) if not isinstance(size, int) else self.constant(size, torch.int64)

    def sizes(self, sizes: Iterable[Any]) -> str:
        """Return sizes as one 1-d int64 value, a constant if all are known."""
        sizes = tuple(sizes)
        if all(isinstance(size, int) for size in sizes):
            return self.ints(*sizes)
        return self.op("Concat", *(self.size(size) for size in sizes), axis=0)

    def _find_size(self, wanted: Any) -> str:
        if wanted in self._sizes:
            name, dim = self._sizes[wanted]
            if dim is None:
                return self.op("Reshape", name, self.ints(1))
            return self.op("Shape", name, start=dim, end=dim + 1)
        kind, parts = _ARITHMETIC.get(type(wanted).__name__), wanted.args
        if type(wanted).__name__ == "Pow" and getattr(parts[1], "is_Integer", False) and parts[1] > 0:
            kind, parts = "Mul", [parts[0]] * int(parts[1])
        if kind is None:
            raise CompileError(f"size {wanted} cannot be computed from the cluster's inputs", node=self.origin)
        result, *rest = (self.size(part) for part in parts)
        for part in rest:
            result = self.op(kind, result, part)
        return result

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"{kind}#{self._count}"


_ARITHMETIC: Mapping[str, str] = {
    "Add": "Add", "Mul": "Mul", "FloorDiv": "Div", "CleanDiv": "Div", "Mod": "Mod", "PythonMod": "Mod", "Max": "Max",
    "Min": "Min",
}  # fmt: skip
"""ONNX operators for arithmetic on sizes, by sympy class; sizes are never negative, so truncation equals floor."""


def is_float32(value: float) -> bool:
    """Return whether float32, the type of ONNX's attributes, represents a number."""
    return struct.unpack("f", struct.pack("f", value))[0] == value


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's memory as a NumPy array, without a copy."""
    return tensor.detach().numpy()
