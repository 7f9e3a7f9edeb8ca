"""Intervals in which the floats of a graph lie, as far as the graph shows, and the nodes that may make NaN or infinity.

Some libraries have kernels that lose NaN and infinity. A plugin can examine a cluster's inputs before a call, but not what
arises between its nodes: a logarithm of 0, a quotient of two zeros. `Hazards` says where that may be. Ordinary models
should not pay for it, so it takes intervals: a mean square plus a small number has a root, and a clamped norm is not zero.

Rounding is not followed, and overflow only of exponentials.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import exp, inf, isfinite, log, sqrt
from typing import Any, NamedTuple

import torch
from torch import fx

from hub.plugin.table import argument, elements, operator_name, value_of

_TINY = torch.finfo(torch.float32).tiny
MAX_EXPONENT = log(torch.finfo(torch.float32).max)
"""Largest number whose exponential float32 represents: 88.7."""


class Interval(NamedTuple):
    """The numbers from `low` to `high`."""

    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Return whether zero is one of the numbers."""
        return self.low <= 0 <= self.high

    def mapped(self, function: Callable[[float], float]) -> Interval:
        """Return the interval of a growing function."""
        return Interval(function(self.low), function(self.high))

    def within(self, low: float, high: float) -> Interval:
        """Return the interval after a clamp to numbers."""
        return self.mapped(lambda number: min(max(number, low), high))

    def largest(self, other: Interval) -> Interval:
        """Return the interval of the larger of two numbers."""
        return Interval(max(self.low, other.low), max(self.high, other.high))

    def smallest(self, other: Interval) -> Interval:
        """Return the interval of the smaller of two numbers."""
        return Interval(min(self.low, other.low), min(self.high, other.high))


ANY = Interval(-inf, inf)
_NOT_NEGATIVE = Interval(0.0, inf)
_UNIT = Interval(0.0, 1.0)
_SYMMETRIC = Interval(-1.0, 1.0)

_RESULTS: Mapping[str, Interval] = {
    **dict.fromkeys(("sigmoid", "hardsigmoid", "softmax", "_softmax"), _UNIT),
    **dict.fromkeys(("tanh", "sin", "cos"), _SYMMETRIC),
    **dict.fromkeys(("var", "std", "linalg_vector_norm", "softplus"), _NOT_NEGATIVE),
    **dict.fromkeys(("log_softmax", "_log_softmax", "log_sigmoid"), Interval(-inf, 0.0)),
}
"""Operators with results that lie in an interval whatever the arguments are."""

MOVES = frozenset(
    f"aten.{name}"
    for name in [
        "view.default",
        "reshape.default",
        "_unsafe_view.default",
        "flatten.using_ints",
        "unflatten.int",
        "permute.default",
        "transpose.int",
        "t.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "expand.default",
        "slice.Tensor",
        "select.int",
        "repeat.default",
        "clone.default",
        "contiguous.default",
        "alias.default",
        "to.dtype",
        "to.dtype_layout",
        "to.device",
        "to.other",
        "_to_copy.default",
        "type_as.default",
    ]
)
"""Operators whose results are elements of their first argument, or casts of them."""

_KEEPING = frozenset({"mean", "amax", "amin", "index_select", "gather"})
"""Operators, beside those that move elements, whose results lie between the elements of their first argument."""


def _product(left: Interval, right: Interval) -> Interval:
    corners = [0.0 if 0 in (a, b) else a * b for a in left for b in right]
    return Interval(min(corners), max(corners))


def _sum(left: Interval, right: Interval) -> Interval:
    return Interval(left.low + right.low, left.high + right.high)


def _negative(value: Interval) -> Interval:
    return Interval(-value.high, -value.low)


def _inverse(value: Interval) -> Interval:
    if value.has_zero:
        return _NOT_NEGATIVE if value.low >= 0 else ANY
    return Interval(1 / value.high, 1 / value.low)


def _magnitude(value: Interval) -> Interval:
    largest = max(abs(value.low), abs(value.high))
    return Interval(0.0 if value.has_zero else min(abs(value.low), abs(value.high)), largest)


def _exponential(value: Interval) -> Interval:
    return value.mapped(lambda number: inf if number > MAX_EXPONENT else max(exp(number), _TINY))


def _logarithm(value: Interval) -> Interval:
    return value.mapped(lambda number: log(number) if 0 < number < inf else (inf if number > 0 else -inf))


def _root(value: Interval) -> Interval:
    return value.within(0.0, inf).mapped(sqrt)


_FUNCTIONS: Mapping[str, Callable[[Interval], Interval]] = {
    "neg": _negative,
    "abs": _magnitude,
    "square": lambda value: _power(value, 2),
    "exp": _exponential,
    "log": _logarithm,
    "sqrt": _root,
    "rsqrt": lambda value: _inverse(_root(value)),
    "reciprocal": _inverse,
    "relu": lambda value: value.within(0.0, inf),
    "relu6": lambda value: value.within(0.0, 6.0),
    "sum": lambda value: Interval(value.low if value.low >= 0 else -inf, value.high if value.high <= 0 else inf),
    "cumsum": lambda value: Interval(value.low if value.low >= 0 else -inf, value.high if value.high <= 0 else inf),
}
"""Intervals of operators of one argument."""


def _power(base: Interval, exponent: float) -> Interval:
    if exponent == int(exponent) and exponent >= 0 and int(exponent) % 2 == 0:
        base = _magnitude(base)
    if base.low < 0 or exponent < 0:
        return ANY if base.low <= 0 else _NOT_NEGATIVE
    return base.mapped(lambda number: _finite_power(number, exponent))


def _finite_power(number: float, exponent: float) -> float:
    try:
        return number**exponent
    except OverflowError:
        return inf


class Intervals:
    """The intervals of a graph's nodes, found in the order of the nodes."""

    def __init__(self, constants: Mapping[fx.Node, torch.Tensor]) -> None:
        """Take the graph's constants by their nodes; one is read when its interval matters."""
        self._constants = constants
        self._found: dict[fx.Node, Interval] = {}
        self._moved: dict[fx.Node, Any] = {}
        """For results that are elements of an argument, that argument: a weight is not read for being transposed."""

    def of(self, value: Any) -> Interval:
        """Return the interval of an argument: a number, a node, or None for no bound."""
        if isinstance(value, (int, float)) and isfinite(value):
            return Interval(float(value), float(value))
        while isinstance(value, fx.Node) and value in self._moved:
            value = self._moved[value]
        if not isinstance(value, fx.Node):
            return ANY
        if value not in self._found:
            constant = self._constants.get(value)
            self._found[value] = ANY if constant is None else _interval_of_constant(constant)
        return self._found[value]

    def add(self, node: fx.Node) -> None:
        """Find the interval of a node whose arguments were added before."""
        if operator_name(node) in MOVES or short_name(node) in _KEEPING:
            is_truncated = _is_float(node.args[0]) and not _is_float(node)
            self._moved[node] = None if is_truncated else node.args[0]
        else:
            self._found[node] = self._result(node)

    def _result(self, node: fx.Node) -> Interval:
        name = short_name(node)
        if name in _RESULTS:
            return _RESULTS[name]
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](self.of(node.args[0]))
        match name:
            case "add" | "sub" | "rsub":
                return self._of_sum(node, name)
            case "mul":
                left, right = argument(node, "self"), argument(node, "other")
                return _power(self.of(left), 2) if left is right else _product(self.of(left), self.of(right))
            case "div" if argument_or(node, "rounding_mode", None) is None:
                return _product(self.of(argument(node, "self")), _inverse(self.of(argument(node, "other"))))
            case "pow" if isinstance(exponent := argument(node, "exponent"), (int, float)):
                return _power(self.of(argument(node, "self")), exponent)
            case "clamp" | "clamp_min" | "clamp_max":
                return self._of_clamp(node)
            case "maximum" | "minimum" | "where":
                return self._of_choice(node, name)
            case "full" | "full_like":
                return self.of(argument(node, "fill_value"))
            case _:
                return ANY

    def _of_sum(self, node: fx.Node, name: str) -> Interval:
        left, right = argument(node, "self"), argument(node, "other")
        if argument(node, "alpha") != 1:
            return ANY
        if name == "sub" and is_largest_of(right, left):
            return Interval(-inf, 0.0)
        one, two = self.of(left), self.of(right)
        if name == "add":
            return _sum(one, two)
        return _sum(one, _negative(two)) if name == "sub" else _sum(two, _negative(one))

    def _of_choice(self, node: fx.Node, name: str) -> Interval:
        one, two = self.of(argument(node, "self")), self.of(argument(node, "other"))
        if name == "where":
            return Interval(min(one.low, two.low), max(one.high, two.high))
        return one.largest(two) if name == "maximum" else one.smallest(two)

    def _of_clamp(self, node: fx.Node) -> Interval:
        found = self.of(argument(node, "self"))
        if (least := argument_or(node, "min", None)) is not None:
            found = found.largest(self.of(least))
        return found if (most := argument_or(node, "max", None)) is None else found.smallest(self.of(most))


def is_largest_of(value: Any, whole: Any) -> bool:
    """Return whether an argument holds the largest elements of another: their difference has no positive element."""
    if isinstance(value, fx.Node) and value.target is operator.getitem and value.args[1] == 0:
        value = value.args[0]  # max.dim returns the positions, too
    return isinstance(value, fx.Node) and operator_name(value) in _LARGEST and value.args[0] is whole


_LARGEST = frozenset({"aten.amax.default", "aten.max.dim", "aten.max.default"})


def _interval_of_constant(value: torch.Tensor) -> Interval:
    if not value.numel() or not value.is_floating_point():
        return ANY
    low, high = (float(bound) for bound in value.detach().aminmax())
    return Interval(low, high) if low == low and high == high else ANY


def short_name(node: fx.Node) -> str:
    """Return the name of an ATen operator without its overload; empty for others."""
    name = operator_name(node)
    return name.split(".")[1] if name.startswith("aten.") else ""


def argument_or(node: fx.Node, name: str, default: Any) -> Any:
    """Return an argument by its name, or a default if the operator has none of that name."""
    try:
        return argument(node, name)
    except KeyError:
        return default


# --- What makes NaN or infinity ---------------------------------------------------------------------------------------

_CLEAN = frozenset({"nan_to_num", "zeros_like", "ones_like", "full_like", "empty_like"})
"""Operators whose results hold no NaN of their arguments."""


def constants_of(module: fx.GraphModule) -> Mapping[fx.Node, torch.Tensor]:
    """Return the constants of a graph by their nodes."""
    return {node: getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}


class Hazards:
    """The nodes of a graph whose results may hold NaN or infinity although no input does."""

    def __init__(self, constants: Mapping[fx.Node, torch.Tensor]) -> None:
        """Take the graph's constants by their nodes."""
        self._intervals = Intervals(constants)
        self._nan: set[fx.Node] = set()
        self._lowest: set[fx.Node] = set()

    def add(self, node: fx.Node) -> None:
        """Examine a node whose arguments were added before."""
        self._intervals.add(node)
        if not _is_float(node) or short_name(node) in _CLEAN:
            return
        sources = node.all_input_nodes
        if any(source in self._nan for source in sources) or self._makes_nan(node):
            self._nan.add(node)
        if node in self._nan or any(source in self._lowest for source in sources) or _writes_infinity(node):
            self._lowest.add(node)

    def end(self, node: fx.Node) -> None:
        """Note that an alarm sees to a node's NaN and infinities, so that the nodes after it need none."""
        self._nan.discard(node)
        self._lowest.discard(node)

    def may_hold_nan(self, value: Any) -> bool:
        """Return whether an argument may hold NaN or infinity."""
        return isinstance(value, fx.Node) and value in self._nan

    def may_hold_lowest(self, value: Any) -> bool:
        """Return whether an argument may hold negative infinity or NaN; also one that the graph itself writes."""
        return isinstance(value, fx.Node) and value in self._lowest

    def _makes_nan(self, node: fx.Node) -> bool:
        of = self._intervals.of
        name = short_name(node)
        if name not in _HAZARDOUS:
            return False
        first = of(node.args[0])
        match name:
            case "exp":
                return first.high > MAX_EXPONENT
            case "sinh" | "cosh":
                return _magnitude(first).high > MAX_EXPONENT
            case "log" | "log2" | "log10" | "rsqrt":
                return first.low <= 0
            case "log1p":
                return first.low <= -1
            case "sqrt":
                return first.low < 0
            case "reciprocal":
                return first.has_zero
            case "div" | "remainder":
                return of(argument(node, "other")).has_zero
            case "acos" | "asin":
                return _magnitude(first).high > 1
            case "atanh":
                return _magnitude(first).high >= 1
            case "acosh":
                return first.low < 1
            case "pow":
                return self._power_makes_nan(node)
            case _:
                return True

    def _power_makes_nan(self, node: fx.Node) -> bool:
        base, exponent = self._intervals.of(argument(node, "self")), argument(node, "exponent")
        if isinstance(exponent, fx.Node):
            return True
        if exponent < 0:
            return base.has_zero or base.low < 0
        return exponent != int(exponent) and base.low < 0


_HAZARDOUS = frozenset(
    {
        *("exp", "sinh", "cosh", "pow", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
        *("reciprocal", "div", "remainder", "addcdiv", "acos", "asin", "atanh", "acosh"),
    }
)
"""Operators that make NaN or infinity of some ordinary numbers."""


def _writes_infinity(node: fx.Node) -> bool:
    return any(isinstance(item, float) and not isfinite(item) for item in node.args)


def _is_float(node: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and item.is_floating_point() for item in elements(value_of(node)))
