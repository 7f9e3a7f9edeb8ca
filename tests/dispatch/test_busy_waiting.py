"""Spinning of OpenMP's idle threads is held back while a plan lives that shares the cores, and only then.

Each test has a process of its own: models of other tests that are still alive would hold busy-waiting back too.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import gc, sys, threading
import torch
from torch import nn
from hub.dispatch.busy_waiting import Calm

def is_held_back():
    return any(thread.name == "hub-calm" for thread in threading.enumerate())

def has_ended():
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "hub-calm":
            thread.join(5)
    return not is_held_back()

torch.set_num_threads(2)
"""


def run(code: str, *arguments: str) -> None:
    """Run code after the head in a new process, which must exit with 0 and print nothing."""
    command = [sys.executable, "-c", HEAD + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_lasts_as_long_as_the_last_holder() -> None:
    """Two holders share one sleeping team, which goes with the second of them and comes again with a third."""
    run("""
first, second = Calm(), Calm()
assert is_held_back()
del first
assert not has_ended()
del second
assert has_ended()
third = Calm()
assert is_held_back()
del third
assert has_ended()
""")


def test_one_thread_needs_nothing() -> None:
    """With one thread, no thread busy-waits, and no team is made."""
    run("torch.set_num_threads(1); holder = Calm(); assert not is_held_back()")


@pytest.mark.parametrize("is_mixed", [True, False])
def test_mixed_plans_hold_it_back(*, is_mixed: bool) -> None:
    """A plan of two backends holds busy-waiting back for as long as it lives; a plan of one cluster never does."""
    force = {"aten.linear": "onnxruntime", "aten.relu": "onnxruntime", "aten.softmax": "openvino"} if is_mixed else {}
    backends = ["onnxruntime", "openvino"] if is_mixed else ["onnxruntime"]
    options = {"tune": "off", "backends": backends, "force": force}
    run(f"""
import hub
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Softmax(-1)).eval()
compiled = torch.compile(model, backend="hub", options={options!r})
x = torch.randn(4, 32)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
assert hub.plans(compiled)[-1].busy_wait is {not is_mixed}
assert is_held_back() is {is_mixed}
del compiled, model
torch.compiler.reset()
assert has_ended()
""")


def test_parts_of_a_model_do_not_busy_wait() -> None:
    """Eager code and other graphs run between them, on the same cores: a graph break makes parts, and so does nesting."""
    run("""
import hub

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x)

class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.profiler.record_function("f") if x.sum() > 1e9 else torch.no_grad():
            return self.inner(x) + 1

options = {"tune": "off", "backends": ["onnxruntime"]}
def inner():
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

for model, is_part in ((Broken(), True), (Outer(inner()), True), (inner(), False)):
    compiled = torch.compile(model.eval(), backend="hub", options=options)
    x = torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    plans = [plan for plan in hub.plans(compiled) if "onnxruntime" in plan.backends]
    assert plans
    assert {plan.busy_wait for plan in plans} == {not is_part}, (type(model), plans)
    torch.compiler.reset()
""")


def test_a_process_that_holds_it_back_ends() -> None:
    """The sleeping team does not keep a process from ending, and nothing is printed at its end."""
    run("holder = Calm()")
