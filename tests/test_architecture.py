"""The structure of the source: imports go one direction, the core knows no plugin, names tell what a module is about."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import hub.plugin
from hub.plugin import hooks as hookspecs
from tests import plugin_api, rooms
from tests.sources import CORE, PLUGINS, ROOT, SOURCES, imports_of, module_graph, room_graph, room_of

FOREIGN = ("onnxruntime", "onnx", "openvino", "tvm", "iree", "jax", "jaxlib", "torch_mlir")
"""Libraries under backends."""
EMPTY_NAMES = ("utils", "util", "helpers", "helper", "common", "misc")


def cycle_in(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the modules of one cycle, in order, the first one again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph[name]):
            if cycle := visit(target, [*path, name]):
                return cycle
        done.add(name)
        return []

    return next((cycle for name in sorted(graph) if (cycle := visit(name, []))), [])


def test_a_cycle_is_found() -> None:
    """The search finds a cycle if there is one, and none otherwise."""
    nowhere: frozenset[str] = frozenset()
    assert cycle_in({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}) == ["b", "c", "b"]
    assert cycle_in({"a": frozenset("bc"), "b": frozenset("c"), "c": nowhere}) == []


def test_imports_have_no_cycle() -> None:
    """No module imports itself through others."""
    cycle = cycle_in(module_graph())
    assert not cycle, " -> ".join(cycle)


@pytest.mark.parametrize("name", [name for name in SOURCES if name.split(".")[0] == "hub"])
def test_the_core_imports_no_plugin_and_no_library_under_one(name: str) -> None:
    """A module of the core imports neither a plugin nor a library that a backend is built on, not even in a function."""
    forbidden = {*FOREIGN, *(plugin.name for plugin in PLUGINS)}
    bad = [f"line {item.line}: {item.target}" for item in imports_of(name) if item.target.split(".")[0] in forbidden]
    assert not bad


@pytest.mark.parametrize("name", [name for name in SOURCES if name.split(".")[0] != "hub"])
def test_plugins_import_the_public_surface_only(name: str) -> None:
    """A plugin imports names of `hub.plugin`, modules of the toolkit and of testing, and no other plugin."""
    own = name.split(".")[0]
    others = {plugin.name for plugin in PLUGINS} - {own}
    for item in imports_of(name):
        top = item.target.split(".")[0]
        assert top not in others, f"line {item.line}: {item.target}"
        if top != "hub":
            continue
        where = f"line {item.line}: {item.target} {item.names}"
        assert not [part for part in (*item.target.split("."), *item.names) if part.startswith("_")], where
        is_listed = item.target == "hub.plugin" and item.names and {*item.names} <= {*hub.plugin.__all__}
        assert is_listed or room_of(f"{item.target}.") in ("hub.toolkit", "hub.testing"), where


def test_the_core_does_not_use_the_toolkit() -> None:
    """The toolkit is for plugins that write code; what the core needs of it would belong elsewhere."""
    users = {name for name in SOURCES if name.startswith("hub.") and room_of(name) not in ("hub.toolkit", "hub.testing")}
    found = {name: item.target for name in users for item in imports_of(name) if item.target.startswith("hub.toolkit")}
    assert not found


def test_the_public_list_says_three_times_the_same() -> None:
    """It says so to type checkers, to readers, and to importers of a name."""
    tree = ast.parse(Path(hub.plugin.__file__).read_text())
    checked = {
        (item.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for item in block.body
        if isinstance(item, ast.ImportFrom)
        for alias in item.names
    }
    homes = [
        (module, name) for part in hub.plugin.SECTIONS.values() for module, names in part.items() for name in names.split()
    ]
    assert checked == {*homes}
    assert sorted(name for _, name in homes) == sorted(hub.plugin.__all__)


def test_the_page_of_public_names_is_current() -> None:
    """Each name has a description there: `python -m tests.plugin_api` writes the page."""
    text = plugin_api.PAGE.read_text(encoding="utf-8")
    assert text == plugin_api.page(text)
    assert "|  |" not in text


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_hooks_import_nothing_heavy(plugin: Path) -> None:
    """Loading a plugin's hooks imports neither torch nor the library under its backend."""
    found = modules_after(f"import {plugin.name}.hooks")
    assert not found & {"torch", "numpy", *FOREIGN}


def test_importing_the_hub_imports_no_torch() -> None:
    """`import hub` leaves torch and every plugin unloaded."""
    assert not modules_after("import hub") & {"torch", "numpy", *FOREIGN, *(plugin.name for plugin in PLUGINS)}


def test_capturing_imports_no_solver() -> None:
    """What only decides is imported when something is decided: a first answer in eager does not wait for it."""
    assert "scipy" not in modules_after("import hub.frontend.dynamo")


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after running some code."""
    program = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("name", SOURCES)
def test_names_tell_what_a_module_is_about(name: str) -> None:
    """No module is called utils, helpers or common."""
    assert not set(name.split(".")) & set(EMPTY_NAMES)


def test_no_public_name_hides_a_module() -> None:
    """No public name of `hub` equals the name of one of its modules."""
    modules = {path.stem for path in CORE.glob("*.py")} | {path.name for path in CORE.iterdir() if path.is_dir()}
    assert not set(hub.__all__) & modules


@pytest.mark.parametrize("name", hub.__all__)
def test_public_names_exist(name: str) -> None:
    """Every public name of `hub` can be imported."""
    assert getattr(hub, name) is not None


def hooks() -> list[str]:
    """Return the names of the hooks, in order."""
    tree = ast.parse(Path(hookspecs.__file__).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if any("hookspec" in ast.unparse(item) for item in node.decorator_list)]


@pytest.mark.parametrize("hook", hooks())
def test_every_hook_is_documented(hook: str) -> None:
    """Each hook has a heading of its own in docs/reference/hooks.md."""
    text = (ROOT / "docs" / "reference" / "hooks.md").read_text()
    assert re.search(rf"^#+ .*\b{hook}\b", text, flags=re.MULTILINE)


@pytest.mark.parametrize("hook", hooks())
def test_every_hook_is_tested(hook: str) -> None:
    """Each hook has a test with its name."""
    pattern = re.compile(rf"^\s*def test_\w*{hook}\w*\(", flags=re.MULTILINE)
    assert any(pattern.search(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))


def test_rooms_have_no_cycle() -> None:
    """No package of the core depends on one that depends on it."""
    cycle = cycle_in(room_graph())
    assert not cycle, " -> ".join(cycle)


def test_few_modules_stand_outside_of_rooms() -> None:
    """Package names tell a newcomer where the next module belongs."""
    modules = {path.stem for path in CORE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {"errors", "plan", "plan_file", "torch_private"}


def test_the_picture_of_the_rooms_is_current() -> None:
    """It is drawn from the imports: `python -m tests.rooms` draws it, and the text names each package."""
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.drawn(room_graph())
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room in room_graph() if f"`{room.partition('.')[2]}/`" not in text] == []
