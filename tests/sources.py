"""The modules of the core and of the plugins, and what each imports, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = ROOT / "hub"
PLUGINS = tuple(
    path for path in sorted([*(ROOT / "plugins").iterdir(), *ROOT.glob("plugin_*")]) if (path / "__init__.py").exists()
)


@dataclass(frozen=True)
class Import:
    """One import of one module, as resolved from the source."""

    target: str
    """The module; for `from a import b` where b is a module, that one."""
    names: tuple[str, ...]
    """The names imported from it; empty for the module itself."""
    at_module_level: bool
    line: int


def module_name(path: Path, root: Path) -> str:
    """Return a file's dotted module name, "hub.plugin.graph" for hub/plugin/graph.py."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> Mapping[str, Path]:
    """Return every module of the core and of the plugins, by name."""
    found = {module_name(path, ROOT): path for path in sorted(CORE.rglob("*.py"))}
    for plugin in PLUGINS:
        found |= {module_name(path, plugin.parent): path for path in sorted(plugin.rglob("*.py"))}
    return found


SOURCES = sources()


def imports_of(name: str) -> Iterator[Import]:
    """Yield a module's imports at run time; imports under `if TYPE_CHECKING` are left out."""
    tree = ast.parse(SOURCES[name].read_text(), filename=str(SOURCES[name]))
    yield from _imports_in(tree.body, name, at_module_level=True)


def _imports_in(body: list[ast.stmt], module: str, *, at_module_level: bool) -> Iterator[Import]:
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (Import(alias.name, (), at_module_level, statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield from _from_import(statement, module, at_module_level)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _imports_in(statement.orelse, module, at_module_level=at_module_level)
        else:
            inner = at_module_level and not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
            for block in _blocks_of(statement):
                yield from _imports_in(block, module, at_module_level=inner)


def _blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field, None):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
    for case in getattr(statement, "cases", ()):
        yield case.body


def _from_import(statement: ast.ImportFrom, module: str, at_module_level: bool) -> Iterator[Import]:
    base = _absolute(statement, module)
    for alias in statement.names:
        submodule = f"{base}.{alias.name}"
        if submodule in SOURCES:
            yield Import(submodule, (), at_module_level, statement.lineno)
        else:
            yield Import(base, (alias.name,), at_module_level, statement.lineno)


def _absolute(statement: ast.ImportFrom, module: str) -> str:
    if not statement.level:
        return statement.module or ""
    is_package = SOURCES[module].name == "__init__.py"
    package = module.split(".")[: len(module.split(".")) - statement.level + is_package]
    return ".".join((*package, statement.module) if statement.module else package)


def module_graph() -> Mapping[str, frozenset[str]]:
    """Return, for each module, the own modules that importing it imports."""
    return {
        name: frozenset(item.target for item in imports_of(name) if item.at_module_level and item.target in SOURCES)
        - {name}
        for name in SOURCES
    }


def room_of(name: str) -> str:
    """Return the folder of a core module, "hub.planning"; "" for a module at the top."""
    return ".".join(name.split(".")[:2]) if name.count(".") > 1 else ""


def room_graph() -> Mapping[str, frozenset[str]]:
    """Return, for each package of the core, the others that its modules import when they are imported."""
    rooms: dict[str, set[str]] = {}
    for name, targets in module_graph().items():
        if (room := room_of(name)) and name.split(".")[0] == "hub":
            rooms.setdefault(room, set()).update(filter(None, map(room_of, targets)))
    return {name: frozenset(targets & rooms.keys()) - {name} for name, targets in rooms.items()}
