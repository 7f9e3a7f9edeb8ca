"""Operators that users deny to DISC or allow: by name, or by name and occurrence in the graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

EVERYTHING = "*"
_ENTRY = re.compile(r"(\w+)(?:\.|::)(\w+)(?:\.(\w+))?(?:@(\d+))?")


def entries(value: Any) -> Any:
    """Return the entries of a list, or of comma-separated text. Raise ValueError if an entry names no operator."""
    found = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)
    for entry in found:
        if entry != EVERYTHING and not _ENTRY.fullmatch(entry):
            raise ValueError(f"{entry!r} names no operator; for example aten.add, aten.add.Tensor, aten::add or aten.add@0")
    return tuple(found)


def entry_for(node: fx.Node, listed: Sequence[str]) -> str:
    """Return the first entry that matches a node, "" if none does. Occurrences count from 0, in the order of the graph."""
    return next((entry for entry in listed if _fits(node, entry)), "")


def _fits(node: fx.Node, entry: str) -> bool:
    if entry == EVERYTHING:
        return True
    name, _, occurrence = entry.replace("::", ".").partition("@")
    if not _is_called(node, name):
        return False
    return not occurrence or _place(node, name) == int(occurrence)


def _is_called(node: fx.Node, name: str) -> bool:
    from hub.plugin import operator_name

    overload = operator_name(node)
    return overload == name or overload.rpartition(".")[0] == name


def _place(node: fx.Node, name: str) -> int:
    """Return the number of nodes before this one with such a name."""
    place = 0
    for other in node.graph.nodes:
        if other is node:
            break
        place += other.op == "call_function" and _is_called(other, name)
    return place
