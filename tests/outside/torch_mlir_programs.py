"""Runs torch-mlir's end-to-end programs through `torch.compile(backend="hub")` with DISC forced, and counts what it ran.

    TORCH_MLIR=path/of/a/checkout python -m tests.outside.torch_mlir_programs [--filter REGEX] [--limit N] [--part K/N]
        [--dynamic]

The checkout needs no build: its registry of programs is plain Python. Stood in for are modules of C++ parts, of packages
that only the registry's runner uses, and of torchvision, whose programs then do not run. A file that cannot be imported all
the same is named and left out.
"""

# ruff: noqa: T201 - a script

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import operator
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hub
from hub.errors import text_of
from hub.frontend.ownership import graphs_of
from hub.process.environment import variables_set

VARIABLE = "TORCH_MLIR"
PACKAGE = "torch_mlir_e2e_test"
FOLDER = Path("projects/pt1/python")
ENDLESS = ("TimeOutModule_basic",)
"""Programs that run for ever, for torch-mlir's own runner to stop them."""


@dataclass(frozen=True)
class Suite:
    """The programs of a checkout."""

    programs: tuple[Any, ...]
    """torch-mlir's own records: `unique_name`, `program_factory()`, and `program_invoker(module, utilities)`."""
    utilities: Callable[[], Any]
    left_out: tuple[str, ...]
    """Files that cannot be imported, with the reason."""


@dataclass(frozen=True)
class Outcome:
    """What came of one program."""

    name: str
    verdict: str
    """"right", "differs", "raises" where only the compiled program does, "not run" where eager or tracing does, too."""
    nodes: int = 0
    """That do something, in all graphs that were captured."""
    by_disc: int = 0
    detail: str = ""

    def line(self) -> str:
        """Return the line that people read."""
        return f"{self.name:60} {self.verdict:8} {self.by_disc:4} of {self.nodes:4} nodes by disc  {self.detail}".rstrip()


def suite_in(checkout: Path) -> Suite:
    """Return the programs that a checkout registers. Raise ImportError if it contains no such registry."""
    root = checkout / FOLDER
    if not (root / PACKAGE / "registry.py").is_file():
        raise ImportError(f"{checkout} is no checkout of torch-mlir: {FOLDER / PACKAGE} is not there")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    _stand_in()
    left_out: list[str] = []
    for file in sorted((root / PACKAGE / "test_suite").glob("[a-z]*.py")):
        try:
            importlib.import_module(f"{PACKAGE}.test_suite.{file.stem}")
        except Exception as error:  # noqa: BLE001 - whatever a file needs and this machine has not
            left_out.append(f"{file.name}: {text_of(error).splitlines()[0]}")
    registry = importlib.import_module(f"{PACKAGE}.registry")
    framework = importlib.import_module(f"{PACKAGE}.framework")
    return Suite(tuple(registry.GLOBAL_TEST_REGISTRY), framework.TestUtils, tuple(left_out))


def _stand_in() -> None:
    """Make importable what the registry imports and no program needs."""
    sys.modules.setdefault("multiprocess", multiprocessing)
    try:
        importlib.import_module("torch_mlir._version")
    except ImportError:
        package = sys.modules.setdefault("torch_mlir", types.ModuleType("torch_mlir"))
        version = types.ModuleType("torch_mlir._version")
        version.version = version.torch_version_for_comparison = lambda: torch.__version__  # type: ignore[attr-defined]
        sys.modules["torch_mlir._version"] = package._version = version  # type: ignore[attr-defined]
    try:
        importlib.import_module("torchvision")
    except Exception:  # noqa: BLE001 - it cannot be imported with every build of PyTorch
        vision = sys.modules["torchvision"] = types.ModuleType("torchvision")
        for name in ("ops", "models"):
            module = sys.modules[f"torchvision.{name}"] = types.ModuleType(f"torchvision.{name}")
            setattr(vision, name, module)


class _Recorder:
    """A substitute for a module during a program's invocation: records calls of it and its methods, returns eager's."""

    def __init__(self, module: torch.nn.Module, calls: list[tuple[str, tuple[Any, ...]]], path: str = "") -> None:
        self._module = module
        self._calls = calls
        self._path = path

    def __call__(self, *arguments: Any) -> Any:
        self._calls.append((self._path, tuple(_copied(arguments))))
        return _called(self._module, self._path, arguments)

    def __getattr__(self, name: str) -> _Recorder:
        return _Recorder(self._module, self._calls, f"{self._path}.{name}" if self._path else name)


def examine(
    program: Any, utilities: Callable[[], Any], options: dict[str, Any], *, dynamic: bool | None = False
) -> Outcome:
    """Run one program in eager and compiled, on equal inputs and weights. Raise nothing."""
    name = program.unique_name
    try:
        calls: list[tuple[str, tuple[Any, ...]]] = []
        program.program_invoker(_Recorder(_made(program), calls), utilities())
        wanted = [_called(_made(program), path, arguments) for path, arguments in calls]
    except Exception as error:  # noqa: BLE001 - the program's own
        return Outcome(name, "not run", detail=text_of(error).splitlines()[0][:120])
    torch.compiler.reset()
    nodes = by_disc = 0
    problem = ""
    for (path, arguments), right in zip(calls, wanted, strict=True):
        try:
            bound = _bound(_made(program), path)
            compiled = torch.compile(bound, backend="hub", options=options, dynamic=dynamic)
            with torch.no_grad():
                found = compiled(*_copied(arguments))
        except Exception as error:  # noqa: BLE001 - counted
            verdict = "raises" if _is_traced(program, path, arguments, dynamic=dynamic) else "not run"
            return Outcome(name, verdict, nodes, by_disc, text_of(error).splitlines()[0][:120])
        if not graphs_of(compiled) and not _is_traced(program, path, arguments, dynamic=dynamic):
            return Outcome(name, "not run", nodes, by_disc, "it runs in eager, because PyTorch cannot capture it")
        counted, by = _counts(compiled)
        nodes, by_disc = nodes + counted, by_disc + by
        problem = problem or _difference(found, right)
    return Outcome(name, "differs" if problem else "right", nodes, by_disc, problem)


def _is_traced(program: Any, path: str, arguments: Sequence[Any], *, dynamic: bool | None) -> bool:
    """Return True if Dynamo can trace a call, regardless of what compiles it."""
    torch.compiler.reset()
    try:
        with torch.no_grad():
            torch.compile(_bound(_made(program), path), backend="eager", dynamic=dynamic)(*_copied(arguments))
    except Exception:  # noqa: BLE001 - whatever tracing does not do
        return False
    return True


def _made(program: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return program.program_factory().eval()


def _bound(module: torch.nn.Module, path: str) -> Callable[..., Any]:
    return operator.attrgetter(path)(module) if path else module


def _called(module: torch.nn.Module, path: str, arguments: Sequence[Any]) -> Any:
    with torch.no_grad():
        return _bound(module, path)(*_copied(arguments))


def _copied(arguments: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]


def _counts(compiled: Any) -> tuple[int, int]:
    """Return how many nodes the plans in use hold, and how many of them DISC really ran: not those that fell back."""
    whole = by_disc = 0
    for plan in hub.plans(compiled):
        fallen = {event.cluster for event in plan.events if event.kind == "fallback"}
        for cluster in plan.clusters:
            whole += len(cluster.nodes)
            by_disc += len(cluster.nodes) if cluster.backend == "disc" and cluster.name not in fallen else 0
    return whole, by_disc


def _difference(found: Any, right: Any) -> str:
    """Return how a result differs from eager's, "" if it does not beyond roundings."""
    try:
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=False)
    except (AssertionError, TypeError, ValueError) as error:
        return str(error).splitlines()[0][:120]
    return ""


def outcomes(
    suite: Suite, pattern: str, limit: int | None, *, dynamic: bool | None, part: tuple[int, int] = (1, 1)
) -> Iterator[Outcome]:
    """Yield the outcomes of the programs whose names match a regular expression, or of some of them, in order of names."""
    fitting = (each for each in suite.programs if re.search(pattern, each.unique_name))
    chosen = sorted(fitting, key=lambda each: each.unique_name)[:limit]
    options = {"backends": ["disc"], "tune": "off", "isolate": False}
    with tempfile.TemporaryDirectory(prefix="disc-outside-") as folder, variables_set({"HUB_CACHE_DIR": folder}):
        for program in chosen[part[0] - 1 :: part[1]]:
            if program.unique_name in ENDLESS:
                yield Outcome(program.unique_name, "not run", detail="runs for ever, on purpose")
            else:
                yield examine(program, suite.utilities, options, dynamic=dynamic)


def _part(text: str) -> tuple[int, int]:
    place, parts = map(int, text.split("/"))
    if not 1 <= place <= parts:
        raise ValueError(text)
    return place, parts


def main(arguments: Sequence[str]) -> int:
    """Print a line for each program, and a summary. Return 1 if a compiled program is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="every N-th program: for N processes")
    parser.add_argument("--dynamic", action="store_true", help="leave sizes symbolic")
    given = parser.parse_args(arguments)
    if not os.environ.get(VARIABLE):
        print(f"{VARIABLE} is not set: the path of a checkout of torch-mlir is expected there")
        return 2
    suite = suite_in(Path(os.environ[VARIABLE]))
    print(*(f"left out: {reason}" for reason in suite.left_out), sep="\n")
    found: list[Outcome] = []
    for outcome in outcomes(suite, given.filter, given.limit, dynamic=given.dynamic, part=given.part):
        print(outcome.line(), flush=True)
        found.append(outcome)
    kinds = {kind: sum(outcome.verdict == kind for outcome in found) for kind in ("right", "differs", "raises", "not run")}
    nodes, by_disc = sum(outcome.nodes for outcome in found), sum(outcome.by_disc for outcome in found)
    print(f"{len(found)} programs: {kinds}; {by_disc} of {nodes} nodes by disc")
    return 1 if kinds["differs"] or kinds["raises"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
