"""Which operators of the database some backends declare: the others would be run by eager and compared with itself."""

from __future__ import annotations

from collections.abc import Iterable

from hub.discovery.registry import load_attribute, registry
from tests.opdb.calls import Cell, operators

SPOKEN = {
    "__getitem__": "index",
    "nn.functional.upsample_nearest": "upsample_nearest2d",
    "nn.functional.interpolate": "upsample_nearest2d",
}
"""Operators of the database whose names say nothing of the one that a graph holds."""


def declared_cells(cells: Iterable[Cell], backends: Iterable[str]) -> list[Cell]:
    """Return the cells of operators in the tables of some backends; with gradients, of those that support training graphs.

    A backend without a table takes any operator.
    """
    infos = [registry().entries[name].info for name in backends]
    tables = [(packets_in(info.operators), info.training) for info in infos]
    return [
        cell
        for cell in cells
        if any(
            (packets is None or packets & names_of(cell.operator)) and (is_trained or cell.mode == "inference")
            for packets, is_trained in tables
        )
    ]


def packets_in(table: str) -> frozenset[str] | None:
    """Return the names in a table, without their overloads; None for no table ("")."""
    if not table:
        return None
    return frozenset(name.split(".")[1] for name in load_attribute(table).rows if name.startswith("aten."))


def names_of(operator: str) -> frozenset[str]:
    """Return the names under which an operator of the database may appear in a graph."""
    info = operators()[operator]
    last = info.name.split(".")[-1]
    turned = last.strip("_").removeprefix("r") if last.startswith("__r") else ""  # `__radd__`: a number comes first
    others = (alias.name for alias in info.aliases)
    found = {info.aten_name, last, info.name.replace(".", "_"), SPOKEN.get(info.name, ""), *others}
    return frozenset(filter(None, {*found, turned, turned and f"__{turned}__"}))
