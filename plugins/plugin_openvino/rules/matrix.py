"""Rules for products of matrices and for attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from openvino import Output

from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output, size_of
from plugin_openvino.rules.elementwise import Rule

_F32 = torch.float32
_BOTTOM = float("-inf")


def _linear(call: Call) -> Any:
    product = ops.matmul(call.tensor("input"), call.tensor("weight"), False, True)
    bias = call.optional("bias")
    return product if bias is None else ops.add(product, bias)


def product(left: str, right: str) -> Rule:
    """Return a rule for a matrix product of two arguments, batched and broadcast as in NumPy."""
    return lambda call: ops.matmul(*_equal_ranks(call.tensor(left), call.tensor(right)), False, False)


def _equal_ranks(left: Output, right: Output) -> tuple[Output, Output]:
    """Add leading dims to the matrix of lower rank; the CPU plugin does not for dynamic shapes. Vectors are unchanged."""
    ranks = [value.get_partial_shape().rank.get_length() for value in (left, right)]
    if min(ranks) < 2 or ranks[0] == ranks[1]:
        return left, right
    missing = indices(range(abs(ranks[0] - ranks[1])))
    if ranks[0] < ranks[1]:
        return output(ops.unsqueeze(left, missing)), right
    return left, output(ops.unsqueeze(right, missing))


def _outer(call: Call) -> Any:
    return ops.multiply(ops.unsqueeze(call.tensor("self"), indices([1])), call.tensor("vec2"))


def _scaled(call: Call, value: Any, name: str) -> Any:
    return value if call.raw(name) == 1 else ops.multiply(value, call.tensor(name, _F32))


def product_plus(left: str, right: str) -> Rule:
    """Return a rule for `beta * self + alpha * (left @ right)`."""

    def rule(call: Call) -> Any:
        result = _scaled(call, ops.matmul(call.tensor(left), call.tensor(right), False, False), "alpha")
        if call.raw("beta") == 0:  # then NaN in `self` has no effect
            return result
        return ops.add(result, _scaled(call, call.tensor("self"), "beta"))

    return rule


def _attention(call: Call) -> Any:
    return _attend(call, is_grouped=bool(call.raw("enable_gqa")))


def _attend(call: Call, *, is_grouped: bool) -> Any:
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    if is_grouped:
        key, value = _as_many_heads(call, "key", key), _as_many_heads(call, "value", value)
    mask = call.optional("attn_mask")
    scale = None if call.raw("scale") is None else call.tensor("scale", _F32)
    is_causal = bool(call.raw("is_causal"))
    result = ops.scaled_dot_product_attention(query, key, value, mask, scale, is_causal)
    return result if mask is None else _without_masked_rows(output(result), mask)


def _without_masked_rows(result: Output, mask: Output) -> Any:
    """Return 0 for fully masked queries, as in PyTorch; OpenVINO's softmax over nothing returns NaN."""
    is_bool = mask.get_element_type().get_type_name() == "boolean"
    allowed = mask if is_bool else output(ops.greater(mask, constant(_BOTTOM, _F32)))
    return ops.select(ops.reduce_logical_or(allowed, indices([-1]), True), result, constant(0, _F32))


def _as_many_heads(call: Call, name: str, value: Output) -> Output:
    """Return keys or values with as many heads as the queries have."""
    wanted, heads = (call.fake(each).shape[-3] for each in ("query", name))
    return value if str(wanted) == str(heads) else _repeated_heads(value, int(wanted) // int(heads))


def _repeated_heads(value: Output, groups: int) -> Output:
    """Repeat each head [.., H, S, E] -> [.., H * groups, S, E], with equal heads adjacent."""
    rank = value.get_partial_shape().rank.get_length()
    wide = ops.unsqueeze(value, indices([rank - 2]))
    spread = ops.broadcast(wide, indices([groups, 1, 1]), broadcast_spec="BIDIRECTIONAL")
    sizes = [size_of(value, dim) for dim in range(rank)]
    sizes[rank - 3] = indices([-1])
    return output(ops.reshape(spread, ops.concat(sizes, 0), False))


def _flash_attention(call: Call) -> Any:
    """Lower the post-dispatch form, which groups heads by their numbers.

    The second result (logsumexp) is only read by the backward pass, which the table refuses.
    """
    return output(_attend(call, is_grouped=True)), None


RULES: Mapping[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.matmul.default": product("self", "other"),
    "aten.mm.default": product("self", "mat2"),
    "aten.mv.default": product("self", "vec"),
    "aten.dot.default": product("self", "tensor"),
    "aten.outer.default": _outer,
    "aten.bmm.default": product("self", "mat2"),
    "aten.addmm.default": product_plus("mat1", "mat2"),
    "aten.baddbmm.default": product_plus("batch1", "batch2"),
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_attention,
}
