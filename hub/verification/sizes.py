"""Other sizes for a cluster with symbolic ones: all inputs that share a symbol change together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
from torch import fx

from hub.plugin.graph import Cluster, ScalarSpec, Spec, TensorSpec
from hub.plugin.table import argument, operator_name
from hub.torch_private import FakeTensorMode

_ATTENTION = "aten.scaled_dot_product_attention.default"
_TRUSTING = (["lstm"], ["gru"], ["rnn_tanh"], ["rnn_relu"], ["mkldnn_rnn_layer"])

Form = tuple[tuple[int, ...], tuple[int, ...]] | float
"""Shape and stride of a tensor, or a number."""


Change = Callable[[int, int], int]
"""Function from a symbol's position among the symbols and its value to a new size."""


def other_sizes(specs: Sequence[Spec], inputs: Sequence[Any], changes: Sequence[Change]) -> Iterator[tuple[Form, ...]]:
    """Yield forms for all inputs with changed symbolic sizes.

    For each change there is one in which symbols change independently, and, if it differs, one in which sizes that are
    equal in these inputs stay equal: programs may need that without a guard, such as a mask that is indexed by the rows of
    another input. Sizes outside the range that capture found for a symbol are skipped: the program is never called with
    them. (PyTorch recompiles for sizes 0 and 1, except for those that depend on data.) Yields nothing if no size changes.
    """
    now, environment = _values(specs, inputs), _environment(specs)
    if environment is None:
        return
    for changed in _changed(now, changes, environment):
        forms = [_form(spec, value, changed) for spec, value in zip(specs, inputs, strict=True)]
        if all(form is not None for form in forms):
            yield tuple(form for form in forms if form is not None)


def _changed(
    now: dict[sympy.Symbol, int], changes: Sequence[Change], environment: Any
) -> Iterator[dict[sympy.Symbol, int]]:
    """Yield other values of the symbols that capture allows."""
    values = tuple(now.values())
    places = tuple(range(len(values))), tuple(map(values.index, values))
    for change in changes:
        earlier = [now]
        for place_of in places:
            wanted = {symbol: change(place, now[symbol]) for place, symbol in zip(place_of, now, strict=True)}
            found = now | {symbol: value for symbol, value in wanted.items() if _is_possible(symbol, value, environment)}
            if found not in earlier and not _breaks_guard(environment, found):
                yield found
            earlier.append(found)


def is_well_shaped(cluster: Cluster, inputs: Sequence[Any]) -> bool:
    """Return whether a program accepts inputs of these sizes, without allocating them.

    Capture guards the sizes that the program requires, but its guards are not sent to worker processes. Recurrent layers
    are rejected: eager's kernels, and their fake forms, trust their callers and read out of bounds if inputs do not match.
    Attention's kernels do so as well, but there the required sizes are known.
    """
    if any(operator_name(node).split(".")[-2:-1] in _TRUSTING for node in cluster.nodes):
        return False
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    try:
        with mode, torch.no_grad():
            outputs = tuple(_Checked(cluster.module).run(*fakes))
    except Exception:  # noqa: BLE001 - inputs that do not match, or operators that need values, may raise anything
        return False
    return is_announced(cluster.inputs, inputs, cluster.outputs, outputs)


class _Checked(fx.Interpreter):
    """Interpreter that raises ValueError if attention gets sizes with which its kernels read out of bounds."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and "scaled_dot_product" in (name := operator_name(n)):
            shapes = [self.env[argument(n, part)].shape for part in ("query", "key", "value")]
            if not _has_keys_for_values(*shapes, is_kernel=name != _ATTENTION):
                raise ValueError(f"{n.name}: attention of {', '.join(map(str, shapes))}")
        return super().run_node(n)


def _has_keys_for_values(query: torch.Size, key: torch.Size, value: torch.Size, *, is_kernel: bool) -> bool:
    """Return whether there are as many keys as values; for kernels, also check batches and heads.

    Nothing else checks those before a kernel runs.
    """
    if not is_kernel:
        return key[-2] == value[-2]
    return key[:-1] == value[:-1] and query[:-3] == key[:-3] and key[-3] > 0 and query[-3] % key[-3] == 0


def is_announced(
    specs: Sequence[Spec], inputs: Sequence[Any], results: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> bool:
    """Return whether outputs have the sizes that capture predicted for these inputs, as far as it did.

    If not, the inputs break a guard of the capture: for example, size 7 may give another number of chunks than 6.
    """
    values = _values(specs, inputs)
    foretold = ([_evaluated(size, values) for size in result.shape] for result in results)
    return all(
        size is None or size == found
        for sizes, output in zip(foretold, outputs, strict=True)
        for size, found in zip(sizes, output.shape, strict=True)
    )


def _values(specs: Sequence[Spec], inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """Return the values of symbols in these inputs, for symbols that are by themselves a size or number."""
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
    """Return the shape environment that the symbols belong to, or None if there are none."""
    sizes = (cast("Any", size) for spec in specs for size in _sizes(spec) if isinstance(size, torch.SymInt))
    return next((size.node.shape_env for size in sizes), None)


def _sizes(spec: Spec) -> tuple[Any, ...]:
    return (spec.value,) if isinstance(spec, ScalarSpec) else spec.shape


def _form(spec: Spec, given: Any, values: Mapping[sympy.Symbol, int]) -> Form | None:
    """Return one input's form; None if a symbol in it has no known value."""
    if isinstance(spec, ScalarSpec):
        return _evaluated(spec.value, values) if spec.kind == "int" else given
    shape, stride = (tuple(_evaluated(size, values) for size in sizes) for sizes in (spec.shape, _strides(spec, given)))
    if None in shape or None in stride:
        return None
    return tuple(size for size in shape if size is not None), tuple(step for step in stride if step is not None)


def _strides(spec: TensorSpec, given: torch.Tensor) -> tuple[Any, ...]:
    """Return the strides as captured, or the real ones if no size is symbolic."""
    return spec.stride if spec.is_dynamic else given.stride()


def _evaluated(size: Any, values: Mapping[sympy.Symbol, int]) -> int | None:
    expression = _expression(size)
    if not isinstance(expression, sympy.Basic):
        return int(expression)
    value = cast("Any", expression).xreplace({symbol: sympy.Integer(number) for symbol, number in values.items()})
    return int(value) if value.is_Integer else None
