"""The page of what a plugin may import, made from the docstrings: `python -m tests.plugin_api` writes it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hub.plugin import SECTIONS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "plugin-api.md"
TOOLKIT = ROOT / "hub" / "toolkit"
START, END = "<!-- made by tests/plugin_api.py: begin -->", "<!-- made by tests/plugin_api.py: end -->"


def tables() -> str:
    """Return the part of the page that lists names: a table for each purpose, and one of the toolkit's modules."""
    lines: list[str] = []
    for title, homes in SECTIONS.items():
        lines += [f"### {title}", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in sorted(_described(homes))]
        lines.append("")
    lines += ["### The toolkit", "", "| module | what is in it |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in toolkit_modules().items()]
    return "\n".join(lines)


def toolkit_modules() -> Mapping[str, str]:
    """Return the modules of `hub.toolkit`, by name, with the first sentence of each."""
    paths = (path for path in sorted(TOOLKIT.rglob("*.py")) if path.name != "__init__.py" or path.parent != TOOLKIT)
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    return {name: _first_sentence(ast.get_docstring(ast.parse(path.read_text()))) for name, path in found.items()}


def _described(homes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for module, names in homes.items():
        for name in names.split():
            yield name, _first_sentence(documentation(module, name))


def documentation(module: str, name: str) -> str | None:
    """Return the docstring of a public name; for a constant, the string below it."""
    value: Any = getattr(importlib.import_module(module), name)
    if (inspect.isclass(value) or inspect.isfunction(value)) and value.__doc__:
        return value.__doc__
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for statement, below in pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = below.value if isinstance(below, ast.Expr) else None
            return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else None
    return None


def _first_sentence(text: str | None) -> str:
    words = " ".join((text or "").split())
    return re.split(r"(?<=[.]) (?=[A-Z`])", words)[0].replace("|", "\\|")


def page(text: str) -> str:
    """Return the page with its tables regenerated."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
