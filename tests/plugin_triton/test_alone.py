"""A file of kernels runs alone: on a GPU, and without one in Triton's own interpreter; and it reads well."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.formatting import WIDTH, bare, broken, tuple_text
from plugin_triton.source import file_of
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of
from tests.plugin_triton.cases import CASES, HALF

ALONE: Mapping[str, tuple[str, torch.dtype]] = {
    **{f"{name} in float32": (name, torch.float32) for name in ("pointwise", "attention", "embedding")},
    **{f"{name} in bfloat16": (name, torch.bfloat16) for name in ("product", "layer norm")},
}
"""With functions of libdevice, products, reductions, an index that may be out of range, and bfloat16."""
CHILD = """
import importlib.util, pathlib, sys, torch
for folder in map(pathlib.Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(folder.name, folder / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = module
    spec.loader.exec_module(module)
    given = torch.load(folder / "inputs.pt")
    torch.save([value.clone() for value in module.call(*given, torch.device("cpu"))], folder / "outputs.pt")
assert "hub" not in sys.modules and "plugin_triton" not in sys.modules
"""


def cluster_of(name: str, dtype: torch.dtype) -> tuple[Cluster, Any]:
    """Return a case as one cluster."""
    function, inputs = (CASES if dtype is torch.float32 else HALF)[name]
    values = tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs(33))
    return whole_cluster(Wrapped(function), values)


def text_of(cluster: Cluster) -> str:
    """Return the file that a GPU would get."""
    return file_of(cluster, lower(cluster), is_interpreted=False).text


def run_alone(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python where neither the hub nor its plugins are found, with Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HUB_TRITON_INTERPRET")}
    environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_files_give_what_eager_gives_in_a_process_without_the_hub(tmp_path: Path) -> None:
    """With blocks for GPUs, interpreted by nothing but Triton."""
    clusters = {name: cluster_of(*about) for name, about in ALONE.items()}
    for name, (cluster, inputs) in clusters.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        (folder / "kernels.py").write_text(text_of(cluster))
        torch.save(list(inputs), folder / "inputs.pt")
    folders = [str(tmp_path / name.replace(" ", "_")) for name in clusters]
    done = run_alone("-c", CHILD, *folders, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, (cluster, inputs) in clusters.items():
        found = torch.load(tmp_path / name.replace(" ", "_") / "outputs.pt")
        assert value_problem(found, eager(cluster, inputs), exact(cluster, inputs)) == "", name


def test_a_file_is_a_program(tmp_path: Path) -> None:
    """It makes inputs and weights of the shapes that it was captured with, and prints what it computed."""
    cluster, _ = whole_cluster(torch.nn.Sequential(torch.nn.LayerNorm(24), torch.nn.Linear(24, 5)), (torch.randn(3, 24),))
    (tmp_path / "kernels.py").write_text(text_of(cluster))
    done = run_alone("kernels.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    kind, rows, columns, total = done.stdout.replace("(", "").replace(",", "").replace(")", "").split()
    assert (kind, rows, columns) == ("torch.float32", "3", "5")
    assert float(total) != 0


# --- How it reads -----------------------------------------------------------------------------------------------------


def test_files_are_formatted_as_ruff_formats(tmp_path: Path) -> None:
    """Lines of 120 characters at most, in every template, and of several programs at once."""
    for place, (function, inputs) in enumerate((*CASES.values(), HALF["wide attention"], HALF["product"])):
        cluster, _ = whole_cluster(Wrapped(function), inputs(9))
        (tmp_path / f"case{place}.py").write_text(text_of(cluster))
    for name in ("mamba_step", "batch_norm_pool", "dense_block"):
        cluster, _ = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 6, 24))
        (tmp_path / f"{name}.py").write_text(text_of(cluster))
    cluster, _ = whole_cluster(Wrapped(PROGRAMS["residual_norm"]), inputs_of("residual_norm", 6, 24), dynamic=True)
    (tmp_path / "dynamic.py").write_text(text_of(cluster))
    for path in tmp_path.glob("*.py"):
        assert max(map(len, path.read_text().splitlines())) <= WIDTH, path
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--isolated", "--no-cache", "--diff", "--line-length", str(WIDTH), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    [
        f"    value = function({', '.join(f'argument{place}' for place in range(11))})",
        f"    value = function({', '.join(f'argument{place}' for place in range(30))})",
        f"    kernel[(call(1, 2), 3)]({', '.join(f'name{place}=tl.call(1, {place})' for place in range(20))})  # of it",
        f"def function({', '.join(f'argument{place}' for place in range(30))}):",
        f"    return ({', '.join(f'call(argument{place}, (1, 2))' for place in range(9))})",
    ],
)
def test_long_lines_are_broken_and_mean_the_same(line: str) -> None:
    """At the last brackets."""
    parts = broken(line)
    assert len(parts) > 1
    assert max(map(len, parts)) <= WIDTH
    margin = "def outer():\n" if line.startswith(" ") else ""
    end = "\n    pass" if line.startswith("def") else ""
    assert ast.dump(ast.parse(margin + "\n".join(parts) + end)) == ast.dump(ast.parse(margin + line + end))


def test_what_cannot_be_broken_stays() -> None:
    """As a long text, or a sum without brackets."""
    assert broken("x = " + "1 + " * 50 + "1") == ["x = " + "1 + " * 50 + "1"]
    assert broken("short(1, 2)") == ["short(1, 2)"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("(a + b)", "a + b"), ("(a) + (b)", "(a) + (b)"), ("(a, b)", "(a, b)"), ("a + b", "a + b"), ("(f(a, b))", "f(a, b)")],
)
def test_brackets_around_everything_are_left_out(text: str, found: str) -> None:
    """Where they mean nothing."""
    assert bare(text) == found


def test_tuples() -> None:
    """Of any length."""
    assert [tuple_text(["a"] * length) for length in range(3)] == ["()", "(a,)", "(a, a)"]
