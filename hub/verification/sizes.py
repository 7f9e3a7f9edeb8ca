"""Other sizes for a cluster with symbolic ones: all inputs that share a symbol change together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from hub.plugin.graph import Cluster, ScalarSpec, Spec, TensorSpec
from hub.plugin.table import argument, operator_name

_ATTENTION = "aten.scaled_dot_product_attention.default"
_TRUSTING = (["lstm"], ["gru"], ["rnn_tanh"], ["rnn_relu"], ["mkldnn_rnn_layer"])

Form = tuple[tuple[int, ...], tuple[int, ...]] | float
"""Shape and stride of a tensor, or a number."""


Change = Callable[[int, int], int]
"""Return the size that a symbol gets, from its place among the symbols and its value."""


def other_sizes(specs: Sequence[Spec], inputs: Sequence[Any], changes: Sequence[Change]) -> Iterator[tuple[Form, ...]]:
    """Return forms for all inputs in which symbolic sizes are changed, change by change.

    Sizes outside the range that capture found for a symbol are left out: the program is never called with them. (PyTorch
    compiles anew for sizes 0 and 1, except for those that depend on data.) Gives nothing where nothing can change.
    """
    now, environment = _values(specs, inputs), _environment(specs)
    if environment is None:
        return
    for change in changes:
        wanted = {symbol: change(place, value) for place, (symbol, value) in enumerate(now.items())}
        changed = now | {symbol: value for symbol, value in wanted.items() if _is_possible(symbol, value, environment)}
        forms = [_form(spec, value, changed) for spec, value in zip(specs, inputs, strict=True)]
        if changed == now or _breaks_guard(environment, changed):
            continue
        if all(form is not None for form in forms):
            yield tuple(form for form in forms if form is not None)


def is_well_shaped(cluster: Cluster, inputs: Sequence[Any]) -> bool:
    """Return whether a program takes inputs of these sizes, found out without their memory.

    Capture guards sizes with what the program needs of them, but its guards do not travel to worker processes. Recurrent
    layers are left out: eager's kernels, and their fake forms, trust callers and read beyond inputs that do not fit.
    Attention's kernels do so too; there it is known what has to fit.
    """
    if any(operator_name(node).split(".")[-2:-1] in _TRUSTING for node in cluster.nodes):
        return False
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    try:
        with mode, torch.no_grad():
            outputs = tuple(_Checked(cluster.module).run(*fakes))
    except Exception:  # noqa: BLE001 - whatever does not fit, or needs values, raises something of its own
        return False
    return is_announced(cluster.inputs, inputs, cluster.outputs, outputs)


class _Checked(fx.Interpreter):
    """Runs a program, and raises ValueError where attention gets sizes of which its kernels read too much."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and "scaled_dot_product" in (name := operator_name(n)):
            shapes = [self.env[argument(n, part)].shape for part in ("query", "key", "value")]
            if not _has_keys_for_values(*shapes, is_kernel=name != _ATTENTION):
                raise ValueError(f"{n.name}: attention of {', '.join(map(str, shapes))}")
        return super().run_node(n)


def _has_keys_for_values(query: torch.Size, key: torch.Size, value: torch.Size, *, is_kernel: bool) -> bool:
    """Return whether keys are as many as values; before a kernel, nothing but that has looked at batches and heads."""
    if not is_kernel:
        return key[-2] == value[-2]
    return key[:-1] == value[:-1] and query[:-3] == key[:-3] and key[-3] > 0 and query[-3] % key[-3] == 0


def is_announced(
    specs: Sequence[Spec], inputs: Sequence[Any], results: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> bool:
    """Return whether outputs have the sizes that capture foretold for these inputs, as far as it did.

    Else the inputs break a guard of the capture: a size of 7 gives another number of chunks than 6, say.
    """
    values = _values(specs, inputs)
    foretold = ([_evaluated(size, values) for size in result.shape] for result in results)
    return all(
        size is None or size == found
        for sizes, output in zip(foretold, outputs, strict=True)
        for size, found in zip(sizes, output.shape, strict=True)
    )


def _values(specs: Sequence[Spec], inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """Return the values that symbols have in these inputs, for those that stand alone as some size or number."""
    return {
        expression: int(value)
        for spec, given in zip(specs, inputs, strict=True)
        for expression, value in _pairs(spec, given)
        if isinstance(expression, sympy.Symbol)
    }


def _pairs(spec: Spec, given: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(spec, ScalarSpec):
        if spec.kind == "int":
            yield _expression(spec.value), given
    else:
        yield from zip(map(_expression, spec.shape), given.shape, strict=True)


def _expression(size: Any) -> Any:
    return cast("Any", size).node.expr if isinstance(size, torch.SymInt) else size


def _breaks_guard(environment: Any, values: Mapping[sympy.Symbol, int]) -> bool:
    numbers = {symbol: sympy.Integer(number) for symbol, number in values.items()}
    return any(guard.expr.xreplace(numbers) is sympy.false for guard in environment.guards)


def _is_possible(symbol: sympy.Symbol, value: int, environment: Any) -> bool:
    known = environment.var_to_range.get(symbol)
    return known is not None and bool(known.lower <= value) and bool(value <= known.upper)


def _environment(specs: Sequence[Spec]) -> Any:
    """The shape environment that the symbols belong to, or None where there are none."""
    sizes = (cast("Any", size) for spec in specs for size in _sizes(spec) if isinstance(size, torch.SymInt))
    return next((size.node.shape_env for size in sizes), None)


def _sizes(spec: Spec) -> tuple[Any, ...]:
    return (spec.value,) if isinstance(spec, ScalarSpec) else spec.shape


def _form(spec: Spec, given: Any, values: Mapping[sympy.Symbol, int]) -> Form | None:
    """Return one input's form; None where a symbol in it has no known value."""
    if isinstance(spec, ScalarSpec):
        return _evaluated(spec.value, values) if spec.kind == "int" else given
    shape, stride = (tuple(_evaluated(size, values) for size in sizes) for sizes in (spec.shape, _strides(spec, given)))
    if None in shape or None in stride:
        return None
    return tuple(size for size in shape if size is not None), tuple(step for step in stride if step is not None)


def _strides(spec: TensorSpec, given: torch.Tensor) -> tuple[Any, ...]:
    """The strides as captured; real ones where no size is symbolic."""
    return spec.stride if spec.is_dynamic else given.stride()


def _evaluated(size: Any, values: Mapping[sympy.Symbol, int]) -> int | None:
    expression = _expression(size)
    if not isinstance(expression, sympy.Basic):
        return int(expression)
    value = cast("Any", expression).xreplace({symbol: sympy.Integer(number) for symbol, number in values.items()})
    return int(value) if value.is_Integer else None
