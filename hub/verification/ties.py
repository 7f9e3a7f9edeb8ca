"""Ties: operators whose order of equal elements PyTorch leaves undefined, although eager always picks one.

Any result computed from indices in such an order depends on it, so only eager's own order is right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hub.plugin.table import Support, argument, operator_name, refused

if TYPE_CHECKING:
    from torch import fx

    from hub.plugin.backend import Backend

Outputs = Callable[["fx.Node"], tuple[int, ...]]
"""Function that returns the positions of a node's outputs that depend on the order of equal elements."""


def _always(*positions: int) -> Outputs:
    return lambda _: positions


def _unless(name: str, *positions: int, otherwise: tuple[int, ...] = ()) -> Outputs:
    """Return the positions, or only `otherwise` if the argument `name` is True, which fixes the order."""
    return lambda node: otherwise if argument(node, name) is True else positions


_OPEN: Mapping[str, Outputs] = {
    "aten.topk.default": _unless("sorted", 0, 1, otherwise=(1,)),
    "aten.sort.default": _always(1),
    "aten.sort.stable": _unless("stable", 1),
    "aten.argsort.default": _always(0),
    "aten.argsort.stable": _unless("stable", 0),
    "aten.kthvalue.default": _always(1),
    "aten.median.dim": _always(1),
    "aten.nanmedian.dim": _always(1),
    "aten.mode.default": _always(0, 1),  # which of several equally frequent values
    "aten.cummax.default": _always(1),
    "aten.cummin.default": _always(1),
    "aten._unique2.default": _unless("sorted", 0, 1, 2),
    **{f"aten.max_pool{space}d_with_indices.default": _always(1) for space in (2, 3)},
    **{f"aten.adaptive_max_pool{space}d.default": _always(1) for space in (2, 3)},
    **{f"aten.fractional_max_pool{space}d.default": _always(1) for space in (2, 3)},
}
"""Operators that leave an order undefined, with the outputs that depend on it."""

_FIRST = frozenset(f"aten.{name}" for name in ("argmax.default", "argmin.default", "max.dim", "min.dim"))
"""Operators that take the first of equal elements, as PyTorch documents, so other implementations do so, too."""


def has_ties(node: fx.Node) -> bool:
    """Return whether equal elements make a difference to an operator because it orders them."""
    return operator_name(node) in _FIRST or operator_name(node) in _OPEN


def reads_order(node: fx.Node) -> bool:
    """Return whether a result that depends on an undefined order of equal elements is read."""
    outputs = _OPEN.get(operator_name(node))
    if outputs is None:
        return False
    positions = outputs(node)
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return bool(positions) and bool(node.users)
    return any(_is_read(user, positions) for user in node.users)


def _is_read(user: fx.Node, positions: tuple[int, ...]) -> bool:
    """Return whether a user reads one of these positions; outputs that nothing reads do not count."""
    return user.target is not operator.getitem or (user.args[1] in positions and bool(user.users))


def verdict(backend: Backend, node: fx.Node) -> Support:
    """Return a backend's verdict on a node: a refusal if an order of equal elements is read that it may change.

    Exceptions of the backend pass through.
    """
    return order_checked(backend, node, backend.supports(node))


def order_checked(backend: Backend, node: fx.Node, answer: Any) -> Any:
    """Return a backend's own answer about a node, or a refusal for the order of equal elements, as `verdict` does."""
    if isinstance(answer, Support) and answer.accepted and reads_order(node) and backend.keeps_order(node) is not True:
        return refused(f"{operator_name(node)}: its order of equal elements need not be eager's, and something reads it")
    return answer
