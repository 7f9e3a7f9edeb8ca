"""Where the source uses private names of PyTorch; and the page of them: `python -m tests.private_names` writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hub.torch_private import ATTRIBUTES, NAMES, SECTIONS, TRIED, PrivateName
from tests.sources import PLUGINS, ROOT

PAGE = ROOT / "docs" / "reference" / "private-pytorch.md"
START, END = "<!-- made by tests/private_names.py: begin -->", "<!-- made by tests/private_names.py: end -->"
HOME = "torch_private"
"""Name of the modules that import private names: the core's, and one of each plugin that needs others."""
PLUGIN_HOMES = tuple(path for plugin in PLUGINS if (path := plugin / f"{HOME}.py").exists())
FOLDERS = (ROOT / "hub", ROOT / "benchmarks", ROOT / "examples", *PLUGINS)
_TEXT = re.compile(r"torch(\.\w+)*\._\w+(\.\w+)*")


@dataclass(frozen=True, slots=True)
class Use:
    """One place that names something of PyTorch's, or something that the core's home offers."""

    path: str
    """"torch._ops.OpOverload", or "hub.torch_private.pytree.tree_leaves"."""
    line: int

    @property
    def is_private(self) -> bool:
        """Whether a part of the path is private. Names of operators (`torch.ops`) are no names of Python."""
        top, *parts = self.path.split(".")
        return top == "torch" and parts[:1] != ["ops"] and any(re.match(r"_(?!_)", part) for part in parts)


def sources() -> Iterator[Path]:
    """Yield the modules that must import private names from a home."""
    found = chain.from_iterable(folder.rglob("*.py") for folder in FOLDERS)
    yield from sorted(path for path in found if path.stem != HOME)


def uses(code: str) -> list[Use]:
    """Return what a module uses of PyTorch and of the core's home: imports, attributes, `getattr`, and names in strings."""
    tree = ast.parse(code)
    names = dict(_bound(tree))
    found = [Use(path, line) for _, path, line in _imported(tree)]
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node not in inside and (path := _dotted(node, names)) is not None and not isinstance(node, ast.Name):
            found.append(Use(path, getattr(node, "lineno", 0)))
            inside |= {*ast.walk(node)} - {node}
    return found + list(_in_strings(tree))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the name that each import binds, what it stands for, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname or top, alias.name if alias.asname else top, node.lineno)
                yield ("", alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names with the paths that they stand for: imports, and other names that are assigned such a path."""
    ours = ("torch.", f"hub.{HOME}.")
    names = {name: path for name, path, _ in _imported(tree) if f"{path}.".startswith(ours)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            path = _dotted(node.value, names)
            names |= {target.id: path for target in targets if isinstance(target, ast.Name) and path is not None}
    yield from names.items()


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    """Return the path of an expression that leads from an imported name through attributes; None for others."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=inner, attr=attribute):
            base = _dotted(inner, names)
            return base and f"{base}.{attribute}"
        case ast.Call(func=ast.Name(id="cast"), args=[_, inner]):
            return _dotted(inner, names)
        case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[inner, ast.Constant(value=str(attribute)), *_]):
            base = _dotted(inner, names)
            return base and f"{base}.{attribute}"
        case _:
            return None


def _in_strings(tree: ast.AST) -> Iterator[Use]:
    """Yield private names that a call or a subscript is given as text."""
    for node in ast.walk(tree):
        given = node.args if isinstance(node, ast.Call) else [node.slice] if isinstance(node, ast.Subscript) else []
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and _TEXT.fullmatch(value.value):
                yield Use(value.value, node.lineno)


def tables() -> str:
    """Return the part of the page that lists names: a table for each purpose, the attributes, and the plugins' own."""
    lines = [f"Each of these {len(NAMES)} names was found in PyTorch {', '.join(TRIED)}."]
    for title, names in SECTIONS.items():
        lines += [f"\n### {title}\n", "| name in PyTorch | in the hub | why |", "|---|---|---|"]
        lines += [f"| {_shown(private)} | `{name}` | {private.reason} |" for name, private in names.items()]
    lines += ["\n### Attributes of objects\n", "| attribute | why |", "|---|---|"]
    lines += [f"| `{path.replace(':', '.')}` | {reason} |" for path, reason in ATTRIBUTES.items()]
    lines += ["\n### Names that one plugin uses\n", "| plugin | names |", "|---|---|"]
    for home in PLUGIN_HOMES:
        link = f"[{home.parent.name}](../../{home.relative_to(ROOT)})"
        lines.append(f"| {link} | {', '.join(f'`{name}`' for name in names_of(home))} |")
    return "\n".join(lines)


def _shown(private: PrivateName) -> str:
    through = "".join(f" `.{attribute}`" for attribute in private.attributes.split())
    return f"`{private.dotted}`{':' + through if through else ''}"


def names_of(home: Path) -> Iterable[str]:
    """Return the private names that a plugin's home imports or reads."""
    found = uses(home.read_text(encoding="utf-8"))
    return dict.fromkeys(use.path for use in sorted(found, key=lambda use: use.path) if use.is_private)


def page(text: str) -> str:
    """Return the page with its tables regenerated."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
