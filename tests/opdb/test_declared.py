"""Runs of what a backend declares: nothing of it is left out, and what it does not declare is."""

from __future__ import annotations

from hub.discovery.registry import registry
from tests.opdb.calls import cells_of
from tests.opdb.declared import declared_cells, names_of, packets_in


def cases(*operators: str, backend: str) -> set[str]:
    """Return which operators' calls would be tried, with the modes."""
    cells = [cell for operator in operators for cell in cells_of(operator)]
    return {f"{cell.operator}-{cell.mode}" for cell in declared_cells(cells, (backend,))}


def test_what_no_table_declares_is_left_out() -> None:
    """Eager would be compared with itself; gradients count where the backend takes graphs of training."""
    assert cases("exp", "linalg.svd", backend="xla") == {"exp-inference"}
    assert cases("exp", backend="inductor") == {"exp-inference", "exp-training"}  # it has no table


def test_names_in_graphs_are_found() -> None:
    """Also of functions of modules, of numbers on the left, of aliases, and of what is written otherwise."""
    assert "gelu" in names_of("nn.functional.gelu")
    assert "linalg_vector_norm" in names_of("linalg.vector_norm")
    assert {"add", "rsub"} <= names_of("__radd__") | names_of("rsub")
    assert "__and__" in names_of("__rand__")
    assert "index" in names_of("__getitem__")
    assert "concat" in names_of("cat")


def test_tables_are_read_without_overloads() -> None:
    """A backend without a table takes anything."""
    table = packets_in(registry().entries["tvm"].info.operators)
    assert table is not None
    assert {"exp", "add", "max"} <= table
    assert packets_in("") is None
