"""Nothing is decided by the wording of a message: what code branches on has a type of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("hub", "plugins", "plugin_disc", "plugin_mdla", "plugin_triton")
    for path in (ROOT / folder).rglob("*.py")
)
WORDS = frozenset({"message", "reason", "decided_by", "stage", "failure", "failure_kind", "verdict", "refusal"})
"""Attributes and variables that hold text for people, or an enum of that name."""


def compared(source: str) -> Iterator[int]:
    """Yield lines in which such a text is compared with a literal, searched for one, or tested for its beginning or end."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_words, sides)) and any(map(is_literal, sides)):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_search = node.func.attr in ("startswith", "endswith", "find", "index")
            if is_search and is_words(node.func.value):
                yield node.lineno


def is_words(node: ast.expr) -> bool:
    """Return True for `event.message`, `reason`, `str(error)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "str" and "error" in map(name_of, node.args)
    return name_of(node) in WORDS


def name_of(node: ast.expr) -> str:
    """Return the name of a variable or of an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_literal(node: ast.expr) -> bool:
    """Return True for a text that is not empty, and for a tuple or set of such."""
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(map(is_literal, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_decision_reads_a_message(path: Path) -> None:
    """No module compares a message, a reason, a stage or a decider with a literal."""
    assert list(compared(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        'if event.message == "x": pass',
        'if "died" in error.message: pass',
        'if plan.decided_by != "replayed": pass',
        'if reason.startswith("no answer"): pass',
        'if failure.stage in ("verify", "run"): pass',
        'if "memory" in str(error): pass',
    ],
)
def test_such_a_decision_is_found(line: str) -> None:
    """The check detects what it is there for."""
    assert list(compared(line)) == [1]


def test_empty_texts_and_enums_are_no_wording() -> None:
    """Code may test whether there is a reason, and compare members of enums."""
    assert not list(compared('if reason == "" or event.stage is Stage.LOAD or plan.decided_by in KEPT: pass'))
