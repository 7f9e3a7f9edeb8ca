"""Samples: graphs on their way to worker processes, with whatever operators they hold."""

from __future__ import annotations

import importlib
import operator
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from hub.errors import WorkerError
from hub.process.family import is_running
from hub.testing.single import capture
from hub.workers.channel import Worker
from hub.workers.limits import Limits
from hub.workers.pool import POOL
from hub.workers.session import Session
from hub.workers.transfer import Sample, dump_module, homes_of_operators, load_module, write_sample

LIMITS = Limits(compile_s=60.0, memory_bytes=4_000_000_000, output_bytes=1_000_000)
OPERATORS = """
import torch

@torch.library.custom_op("hub_test_home::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3

@thrice.register_fake
def _(x):
    return torch.empty_like(x)
"""


class Calls(torch.nn.Module):
    """A module that calls one operator between two others."""

    def __init__(self, operator: object) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.operator(torch.tanh(x)))  # pyright: ignore


class Branches(torch.nn.Module):
    """A module that runs one of two programs."""

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda x: (x @ x).relu(), lambda x: (x - 1).sin(), (x,))


def test_custom_operators_of_a_module_are_known_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that reads a sample imports the modules whose custom operators are in it."""
    (tmp_path / "hub_test_operators.py").write_text(OPERATORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    captured = capture(Calls(importlib.import_module("hub_test_operators").thrice), (torch.ones(2, 3),))
    assert homes_of_operators(captured.graph) == ("hub_test_operators",)
    write_sample(tmp_path, Sample(captured.graph, captured.inputs))
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from hub.workers.transfer import read_sample\n"
        "sample = read_sample(Path(sys.argv[1]))\n"
        "print(float(torch.fx.Interpreter(sample.graph.module).run(*sample.values)[0].sum()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), *filter(None, sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(float(captured.graph.module(*captured.inputs)[0].sum()))


def test_pytorchs_own_modules_are_imported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them, such as that of `linear_cross_entropy`, register operators only when they are used first."""
    (tmp_path / "hub_test_operators.py").write_text(OPERATORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hub_test_operators", raising=False)
    operator = importlib.import_module("hub_test_operators").thrice
    monkeypatch.setattr(operator._init_fn, "__module__", "torch.nn.modules.late")
    captured = capture(Calls(operator), (torch.ones(2, 3),))
    assert homes_of_operators(captured.graph) == ("torch.nn.modules.late",)


def test_programs_that_operators_call_run_elsewhere_too() -> None:
    """A graph with branches, which are programs inside it, comes back whole."""
    w = torch.randn(3, 3)
    captured = capture(Branches(), (torch.tensor(True), w))
    module = load_module(dump_module(captured.graph.module))
    for flag in (True, False):
        inputs = (torch.tensor(flag), w)
        torch.testing.assert_close(torch.fx.Interpreter(module).run(*inputs), captured.graph.module(*inputs))


def test_an_unknown_operator_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that no worker can read fails with the operator's name, and later questions do not wait for workers again."""
    with torch.library._scoped_library("hub_test_own", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        captured = capture(Calls(torch.ops.hub_test_own.twice), (torch.ones(2, 3),))
        assert homes_of_operators(captured.graph) == ()
        with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
            session.crew.start(["one"])
            with pytest.raises(WorkerError, match="twice"):
                session.crew.await_start("one")
            monkeypatch.setattr(Worker, "result", lambda *_: pytest.fail("waited for an answer that nobody owes"))
            with pytest.raises(WorkerError, match="twice"):
                session.crew.await_start("one")


def test_a_worker_that_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have rested for too long; its end is not reported."""
    lent: list[Worker] = []
    lend = POOL.lend

    def lend_noted(*arguments: Any) -> Worker:
        lent.append(lend(*arguments))
        return lent[-1]

    monkeypatch.setattr(POOL, "lend", lend_noted)
    captured = capture(Calls(torch.sigmoid), (torch.ones(2, 3),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        session.crew.start(["one"])
        lent[0].kill()
        session.crew.await_start("one")
        dead, alive = lent
        assert alive is not dead
        assert session.crew.living("one") is alive
        assert is_running(alive.pid)


def test_workers_that_die_condemn_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an error from one that dies twice; another worker reads the same graph."""

    def lend_dead(*arguments: Any) -> Worker:
        worker = lend(*arguments)
        worker.kill()
        return worker

    lend = POOL.lend
    captured = capture(Calls(torch.sigmoid), (torch.ones(2, 3),))
    with Session(Sample(captured.graph, captured.inputs), 1, LIMITS) as session:
        with monkeypatch.context() as patch:
            patch.setattr(POOL, "lend", lend_dead)
            session.crew.start(["one"])
            with pytest.raises(WorkerError):
                session.crew.await_start("one")
        session.crew.start(["two"])
        session.crew.await_start("two")


class SlicesSeen(torch.nn.Module):
    """A module in whose attribute pickling can be observed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __getstate__(self) -> dict[str, Any]:
        self.seen.append(slice in pytree.SUPPORTED_NODES)
        return {}

    def __reduce__(self) -> Any:
        return dict, (self.__getstate__(),)


@pytest.mark.parametrize("make", [lambda: Calls(torch.sigmoid), Branches])
def test_a_program_that_is_sent_keeps_its_code(make: Any) -> None:
    """Another thread may run it meanwhile. PyTorch's pickler would generate its code, and that of its bodies, anew."""
    module = make()
    inputs = (torch.ones(3, 3),) if isinstance(module, Calls) else (torch.tensor(True), torch.ones(3, 3))
    captured = capture(module, inputs)
    program = captured.graph.module
    graphs = [one for one in program.modules() if isinstance(one, torch.fx.GraphModule)]
    texts = [one.code for one in graphs]
    before = [(type(one).forward, text) for one, text in zip(graphs, texts, strict=True)]
    load_module(dump_module(program))
    assert [(type(one).forward, one.code) for one in graphs] == before
    torch.testing.assert_close(program(*captured.inputs)[0], module(*inputs))


def test_a_program_that_is_sent_changes_nothing_for_other_threads() -> None:
    """PyTorch's pickler makes slices containers for everybody's pytrees, which few programs need."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("seen", (x,)))
    module = torch.fx.GraphModule(torch.nn.ModuleDict({"seen": (seen := SlicesSeen())}), graph)
    seen.seen.clear()
    dump_module(module)
    assert seen.seen and not any(seen.seen)


def test_slices_with_bounds_that_the_program_computes_can_be_sent() -> None:
    """They need that."""
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    graph.output(graph.call_function(operator.getitem, (x, slice(None, n))))
    again = load_module(dump_module(torch.fx.GraphModule({}, graph)))
    assert torch.equal(again(torch.arange(5), 2), torch.arange(2))
    assert slice not in pytree.SUPPORTED_NODES


def test_two_threads_can_send_one_program_that_a_third_runs() -> None:
    """Their generated code took names from each other: "cannot access local variable"."""
    layers = [layer for _ in range(40) for layer in (torch.nn.Linear(4, 4), torch.nn.ReLU())]
    x = torch.ones(2, 4)
    program = capture(torch.nn.Sequential(*layers), (x,)).graph.module
    assert program.code
    values = [torch.ones(tuple(node.meta["val"].shape)) for node in program.graph.find_nodes(op="placeholder")]
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(lambda: [dump_module(program) for _ in range(10)]) for _ in range(2)]
        while not all(item.done() for item in sent):
            program(*values)
        assert len({len(data) for item in sent for data in item.result()}) == 1
