"""Losses and their gradients. Elements are rounded before they are summed, as in eager: half precision overflows alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hub.toolkit.builders import FLOATS, broadcast, cast, fill, iota, pointwise, reshaped, select
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import (
    add,
    by,
    div,
    eq,
    exp,
    ge,
    le,
    log_sigmoid,
    lt,
    mul,
    ne,
    number,
    plus,
    sub,
    xlogy,
)
from hub.toolkit.rules.indexing import along, take
from hub.toolkit.rules.reductions import as_number, log_softmax, mean_of, total
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import Tensor

NONE, MEAN, SUM = 0, 1, 2
"""Values of `reduction`."""


def _sum(source: Tensor) -> Tensor:
    return reshaped(total(source, range(len(source.shape))), ())


def _over(call: Call, each: Tensor) -> Tensor:
    """Return a loss reduced as the call specifies."""
    each = cast(each, call.dtype)
    how, wide = call.raw("reduction"), computing(each)
    if how == NONE:
        return each
    found = reshaped(mean_of(wide, range(len(wide.shape))), ()) if how == MEAN else _sum(wide)
    return cast(found, call.dtype)


# --- Between numbers --------------------------------------------------------------------------------------------------


def _between(function: Callable[[Call, Tensor, Tensor], Tensor]) -> Rule:
    """Return the rule of an elementwise loss of an input and a target."""

    def rule(call: Call) -> Tensor:
        source, target = call.promoted("self", "target")
        return _over(call, function(call, source, target))

    return rule


def _apart(source: Tensor, target: Tensor) -> Tensor:
    return pointwise("abs", sub(source, target))


def _squared(_: Call, source: Tensor, target: Tensor) -> Tensor:
    away = sub(source, target)
    return mul(away, away)


def _smooth(call: Call, source: Tensor, target: Tensor) -> Tensor:
    away, beta = _apart(source, target), call.number("beta")
    near = div(mul(by(away, 0.5), away), number(beta, away))
    return select(lt(away, number(beta, away)), near, plus(away, -0.5 * beta))


def _huber(call: Call, source: Tensor, target: Tensor) -> Tensor:
    away, delta = _apart(source, target), call.number("delta")
    near = mul(by(away, 0.5), away)
    return select(le(away, number(delta, away)), near, by(plus(away, -0.5 * delta), delta))


def _divergence(call: Call, source: Tensor, target: Tensor) -> Tensor:
    if call.raw("log_target"):
        return mul(exp(target), sub(target, source))
    return sub(xlogy(target, target), mul(target, source))


def _with_logits(call: Call) -> Tensor:
    source, target = call.promoted("self", "target")
    shares = log_sigmoid(source)
    if call.has("pos_weight"):
        more = plus(cast(call.tensor("pos_weight"), source.dtype), -1.0)
        shares = mul(shares, plus(mul(more, target), 1.0))
    each = sub(mul(sub(number(1.0, target), target), source), shares)
    each = mul(each, cast(call.tensor("weight"), each.dtype)) if call.has("weight") else each
    return _over(call, each)


def _gradient(function: Callable[[Call, Tensor], Tensor]) -> Rule:
    """Return the rule of a loss's gradient, which is a function of the difference of input and target."""

    def rule(call: Call) -> Tensor:
        grad, source, target = call.promoted("grad_output", "self", "target")
        away = sub(source, target)
        if call.raw("reduction") == MEAN:
            grad = div(grad, as_number(product(away.shape), grad))
        return cast(broadcast(mul(grad, function(call, away)), call.shape), call.dtype)

    return rule


def _within(away: Tensor, limit: float, inside: Tensor, outside: float) -> Tensor:
    """Return `inside` between both limits, and beyond them a number with the sign of the limit."""
    above = select(ge(away, number(limit, away)), number(outside, away), inside)
    return select(le(away, number(-limit, away)), number(-outside, away), above)


def _smooth_gradient(call: Call, away: Tensor) -> Tensor:
    beta = call.number("beta")
    return _within(away, beta, div(away, number(beta, away)), 1.0)


def _huber_gradient(call: Call, away: Tensor) -> Tensor:
    delta = call.number("delta")
    return _within(away, delta, away, delta)


# --- Of classes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Classes:
    """The classes that the targets of a call select among those of its input: [C], or [N, C, ...]."""

    places: Tensor
    """The class of each row; 0 if it is ignored."""
    is_counted: Tensor
    share: Tensor
    """The weight of each row; 0 if it is ignored."""

    def picked(self, source: Tensor) -> Tensor:
        """Return the elements of the selected classes; reading them checks the indices, as in eager."""
        shape, dim = self.places.shape, _class_dim(source.shape)
        index = tuple(
            self.places if place == dim else along(shape, place - (place > dim)) for place in range(len(source.shape))
        )
        return take(source, shape, index)

    def loss(self, source: Tensor) -> Tensor:
        """Return the weighted negative element of each row's class; 0 if it is ignored."""
        each = mul(by(self.picked(source), -1.0), self.share)
        return select(self.is_counted, each, number(0.0, each))


def _class_dim(shape: Sequence[Size]) -> int:
    return min(1, len(shape) - 1)


def _classes(call: Call, kind: str) -> _Classes:
    target = cast(call.tensor("target"), "i64")
    is_counted = ne(target, number(call.number("ignore_index"), target))
    places = select(is_counted, target, fill(0, "i64"))
    if not call.has("weight"):
        return _Classes(places, is_counted, cast(is_counted, kind))
    weight = cast(take(call.tensor("weight"), places.shape, (places,)), kind)
    return _Classes(places, is_counted, select(is_counted, weight, number(0.0, weight)))


def _by_class(vector: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a tensor of classes, placed along the class dim of a shape."""
    dim = _class_dim(shape)
    return reshaped(vector, (vector.shape[0], *([1] * (len(shape) - 1 - dim))))


def _with_classes(rows: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a tensor of rows, with the class dim of a shape added."""
    dim = _class_dim(shape)
    return reshaped(rows, (*rows.shape[:dim], 1, *rows.shape[dim:]))


def _likelihood(call: Call, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reduced negative log likelihood of classes, and its divisor."""
    classes = _classes(call, source.dtype)
    each, how = classes.loss(source), call.raw("reduction")
    if how == NONE:
        is_one = len(source.shape) == 1
        return each, classes.share if is_one else number(0.0, each)  # eager's kernel counts a single row in any case
    found, count = _sum(each), _sum(classes.share)
    return (div(found, count) if how == MEAN else found), count


def _negative_log_likelihood(call: Call) -> Tensor:
    return cast(_likelihood(call, computing(call.tensor("self")))[0], call.dtype)


def _negative_log_likelihood_forward(call: Call) -> tuple[Tensor, Tensor]:
    loss, count = _likelihood(call, computing(call.tensor("self")))
    return cast(loss, call.result(0)[1]), cast(count, call.result(1)[1])


def _negative_log_likelihood_backward(call: Call) -> Tensor:
    shape = call.shape
    grad = computing(call.tensor("grad_output"))
    if call.raw("reduction") == MEAN:
        grad = div(grad, computing(call.tensor("total_weight")))
    grad = _with_classes(grad, shape) if grad.shape else grad
    if call.has("weight"):
        grad = mul(grad, computing(_by_class(call.tensor("weight"), shape)))
    target = _with_classes(cast(call.tensor("target"), "i64"), shape)
    is_counted = ne(target, number(call.number("ignore_index"), target))
    is_chosen = pointwise("and", eq(iota(shape, _class_dim(shape)), target), is_counted)
    found = select(is_chosen, broadcast(by(grad, -1.0), shape), number(0.0, grad))
    return cast(found, call.dtype)


def _cross_entropy(call: Call) -> Tensor:
    source = call.tensor("self")
    dim = _class_dim(source.shape)
    shares = computing(cast(log_softmax(computing(source), dim), source.dtype))
    if call.tensor("target").dtype in FLOATS:
        return _of_shares(call, shares, dim)
    loss, _ = _likelihood(call, shares)
    smoothing = call.number("label_smoothing")
    if smoothing:
        loss = add(by(loss, 1.0 - smoothing), by(_smoothed(call, shares, dim), smoothing))
    return cast(loss, call.dtype)


def _smoothed(call: Call, shares: Tensor, dim: int) -> Tensor:
    """Return the loss of a target in which all classes have equal probability."""
    weighted = mul(shares, computing(_by_class(call.tensor("weight"), shares.shape))) if call.has("weight") else shares
    classes = _classes(call, shares.dtype)
    over_classes = reshaped(by(total(weighted, (dim,)), -1.0), classes.places.shape)
    each = div(over_classes, as_number(shares.shape[dim], shares))
    each, how = select(classes.is_counted, each, number(0.0, each)), call.raw("reduction")
    if how == NONE:
        return each
    return div(_sum(each), _sum(classes.share)) if how == MEAN else _sum(each)


def _of_shares(call: Call, shares: Tensor, dim: int) -> Tensor:
    """Return the loss of a target that gives a probability for each class."""
    target, smoothing = computing(call.tensor("target")), call.number("label_smoothing")
    if smoothing:
        target = add(by(target, 1.0 - smoothing), div(number(smoothing, target), as_number(shares.shape[dim], target)))
    each = mul(shares, target)
    each = mul(each, computing(_by_class(call.tensor("weight"), shares.shape))) if call.has("weight") else each
    rows = by(total(each, (dim,)), -1.0)
    how = call.raw("reduction")
    if how == NONE:
        return cast(reshaped(rows, call.shape), call.dtype)
    found = _sum(rows)
    return cast(div(found, as_number(product(rows.shape), found)) if how == MEAN else found, call.dtype)


RULES: dict[str, Rule] = {
    "aten.mse_loss.default": _between(_squared),
    "aten.l1_loss.default": _between(lambda _, source, target: _apart(source, target)),
    "aten.smooth_l1_loss.default": _between(_smooth),
    "aten.huber_loss.default": _between(_huber),
    "aten.kl_div.default": _between(_divergence),
    "aten.binary_cross_entropy_with_logits.default": _with_logits,
    "aten.mse_loss_backward.default": _gradient(lambda _, away: by(away, 2.0)),
    "aten.smooth_l1_loss_backward.default": _gradient(_smooth_gradient),
    "aten.huber_loss_backward.default": _gradient(_huber_gradient),
    "aten.nll_loss_nd.default": _negative_log_likelihood,
    **{f"aten.{name}_forward.default": _negative_log_likelihood_forward for name in ("nll_loss", "nll_loss2d")},
    **{f"aten.{name}_backward.default": _negative_log_likelihood_backward for name in ("nll_loss", "nll_loss2d")},
    "aten.cross_entropy_loss.default": _cross_entropy,
}
