"""PyTorch's private names are imported in one place, and exist; the error for a missing one says what to do."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hub import torch_private
from hub.errors import PrivateNameError
from hub.torch_private import ATTRIBUTES, NAMES, SECTIONS, TRIED, Kind
from tests import private_names
from tests.sources import ROOT

IS_OF: Mapping[Kind, Callable[[Any], bool]] = {
    Kind.CLASS: inspect.isclass,
    Kind.FUNCTION: lambda found: callable(found) and not inspect.isclass(found),
    Kind.MODULE: inspect.ismodule,
    Kind.VALUE: lambda found: not inspect.isclass(found) and not inspect.ismodule(found),
}
SOURCES = {str(path.relative_to(ROOT)): path for path in private_names.sources()}
IN_TORCH = f"this PyTorch, {torch.__version__}"


@pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")  # Inductor uses it
@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_exists(name: str) -> None:
    """In this PyTorch, of the kind that the table says, with each attribute that is read through it."""
    private = NAMES[name]
    found = getattr(torch_private, name)
    assert IS_OF[private.kind](found), f"{private.dotted} is no {private.kind.value} in {IN_TORCH}, but {found!r}"
    lost = [attribute for attribute in private.attributes.split() if not hasattr(found, attribute)]
    assert not lost, f"{private.dotted} has no {', '.join(lost)} in {IN_TORCH}: {private.reason}"


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return twice a tensor."""
    return x + x


def custom_operator() -> object:
    """Return the definition of a custom operator."""
    return torch.library.custom_op("hub_private::clone", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor")


def compiled_module() -> Any:
    """Return a compiled module, which has captured nothing."""
    return torch.compile(nn.Identity(), backend="eager")


OWNERS: Mapping[str, Callable[[], Any]] = {
    "torch:Tensor": lambda: torch.empty(1),
    "torch:UntypedStorage": lambda: torch.empty(1).untyped_storage(),
    "torch._ops:OpOverload": lambda: torch.ops.aten.add.Tensor,
    "torch._dynamo.eval_frame:OptimizedModule": compiled_module,
    "torch.nn:Module": nn.Identity,
    "torch.library:custom_op": custom_operator,
    "torch:compile": lambda: torch.compile(doubled, backend="eager"),
    "torch.compiler:disable": lambda: torch.compiler.disable(doubled, reason="of a test"),
    "torch._dynamo:OptimizedModule.dynamo_ctx.callback": lambda: compiled_module().dynamo_ctx.callback,
}
"""Functions that return an object with the attributes that the table lists for it."""


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_a_private_attribute_exists(path: str) -> None:
    """An object of the class, or one that the function returns, has it in this PyTorch."""
    owner, _, attribute = path.rpartition(".")
    assert hasattr(OWNERS[owner](), attribute), f"{path} does not exist in {IN_TORCH}: {ATTRIBUTES[path]}"


@pytest.mark.parametrize("home", private_names.PLUGIN_HOMES, ids=lambda path: path.parent.name)
def test_private_names_of_a_plugin_exist(home: Path) -> None:
    """Importing a plugin's own list fails if this PyTorch does not have one of them."""
    import_module(f"{home.parent.name}.torch_private")


def test_optional_names_of_disc_exist() -> None:
    """DISC works without them, and is slower, so only this test would notice."""
    disc = import_module("plugin_disc.torch_private")
    assert None not in (disc.storage_use_count, disc.TensorGuards)


@pytest.mark.parametrize("name", SOURCES)
def test_private_names_are_imported_from_the_home(name: str) -> None:
    """No other module of the core, the plugins, the benchmarks or the examples names one."""
    known = tuple(path.replace(":", ".") for path in ATTRIBUTES)
    found = [use for use in private_names.uses(SOURCES[name].read_text(encoding="utf-8")) if use.is_private]
    bad = [f"line {use.line}: {use.path}" for use in found if not use.path.startswith(known)]
    assert not bad, f"add it to hub/torch_private.py, or to the plugin's torch_private.py, and import it from there: {bad}"


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "import torch.fx._lazy_graph_module as lazy",
        "from torch import _inductor",
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree as pytree",
        "def later():\n    from torch._dynamo import config",
        "import torch\ntorch._dynamo.reset()",
        "import torch\ntorch.compiler._is_compiling_flag = True",
        "import torch as t\nx = t._C",
        "import torch\nfrom typing import cast\nx = cast('Any', torch)._C",
        "import torch\nC = torch\nC._C",
        "from torch import fx\nfx._symbolic_trace",
        "import torch\ngetattr(torch, '_C')",
        "import sys\nsys.modules['torch._dynamo']",
        "import importlib\nimportlib.import_module('torch.utils._pytree')",
    ],
)
def test_private_names_are_found(code: str) -> None:
    """However they are imported or read."""
    assert any(use.is_private for use in private_names.uses(code))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.ops.aten._to_copy.default",
        "import torch\ntorch.__version__",
        "class Own:\n    def run(self):\n        return self._torch",
        "from hub.torch_private import OpOverload",
        "raise ValueError(hint) if (hint := 'set torch._dynamo.config.allow_rnn = True') else None",
    ],
)
def test_other_names_are_no_private_ones(code: str) -> None:
    """Operators, dunder names, own attributes, names from the home, and advice to users."""
    assert not any(use.is_private for use in private_names.uses(code))


def test_every_name_is_used() -> None:
    """A name that no module needs any more leaves the table."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES.values()]
    imported = {use.path.split(".")[2] for text in texts for use in private_names.uses(text) if _is_from_home(use.path)}
    by_name = {name for text in texts for name in re.findall(r'\b(?:optional\(|NAMES\[)"(\w+)"', text)}
    assert {*NAMES} - imported - by_name == set()


def test_attributes_read_through_a_name_are_in_the_table() -> None:
    """Each attribute of a module or class that the code reads is listed, and so is tested above."""
    unlisted = set[str]()
    for path in SOURCES.values():
        for use in private_names.uses(path.read_text(encoding="utf-8")):
            _, _, name, attribute, *_ = (*use.path.split("."), "", "", "", "")
            private = NAMES.get(name) if _is_from_home(use.path) and attribute else None
            if private is not None and private.kind in (Kind.CLASS, Kind.MODULE):
                unlisted |= {f"{name}.{attribute}"} - {f"{name}.{known}" for known in private.attributes.split()}
    assert unlisted == set()


def _is_from_home(path: str) -> bool:
    return path.startswith("hub.torch_private.")


def test_type_checkers_see_the_same_names() -> None:
    """What the table imports at run time is what is imported, or declared, for type checkers."""
    tree = ast.parse(Path(torch_private.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    seen = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    declared = {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}
    assert {*seen} | declared == {*NAMES}
    assert {name: path for name, path in seen.items() if path != NAMES[name].dotted} == {}


def test_no_name_is_in_two_sections() -> None:
    """One name stands for one thing."""
    assert sum(map(len, SECTIONS.values())) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "remove"),
    [
        ("counters", lambda patch: patch.delattr("torch._dynamo.utils.counters")),
        ("get_sdp_priority_order", lambda patch: patch.delattr("torch._C._get_sdp_priority_order")),
        ("GraphPickler", lambda patch: patch.setitem(sys.modules, "torch.fx._graph_pickler", None)),
    ],
)
def test_a_missing_name_says_so(name: str, remove: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The error has the name, this PyTorch, the versions that have it, why it is needed, and the next step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(vars(torch_private), name, raising=False)
        remove(patch)
        with pytest.raises(PrivateNameError) as caught:
            getattr(torch_private, name)
        assert torch_private.optional(name) is None
    for part in (NAMES[name].dotted, f"PyTorch {torch.__version__} ", *TRIED, NAMES[name].reason, "install one of these"):
        assert part in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert getattr(torch_private, name) is torch_private.optional(name) is not None


def test_a_name_outside_the_table_is_an_ordinary_mistake() -> None:
    """A misspelt name is not reported as PyTorch's."""
    with pytest.raises(AttributeError, match="has no attribute 'OpOverloads'"):
        torch_private.OpOverloads  # noqa: B018


def in_a_new_process(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_table_imports_no_torch() -> None:
    """It can be read in processes that never need PyTorch."""
    assert in_a_new_process("import sys, hub.torch_private\nprint('torch' in sys.modules)") == "False"


def test_a_name_imports_its_own_module_only() -> None:
    """And is then an attribute of the home, so that another import of it finds it there."""
    code = """
import sys
from hub.torch_private import OpOverload
print("OpOverload" in vars(sys.modules["hub.torch_private"]), "torch._inductor.compile_fx" in sys.modules)
"""
    assert in_a_new_process(code) == "True False"


def test_without_torch_the_error_is_about_torch() -> None:
    """A missing installation is not taken for a missing name."""
    code = """
import sys
from hub import torch_private
class Without:
    def find_spec(name, *_):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)
sys.meta_path.insert(0, Without)
try:
    torch_private.OpOverload
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert in_a_new_process(code) == "torch"


def test_the_version_that_tests_run_was_tried() -> None:
    """The table claims versions; one of them is checked each time."""
    (pinned,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned in TRIED


def test_the_page_of_private_names_is_current() -> None:
    """It is written by `python -m tests.private_names`."""
    text = private_names.PAGE.read_text(encoding="utf-8")
    assert text == private_names.page(text)
    assert all(f"PyTorch {', '.join(TRIED)}" in text and private.reason in text for private in NAMES.values())
