"""OpenMP's threads end where a plan of several backends leaves them, and stay in a plan of one.

Each test has a process of its own: how many threads there are is the process's.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import os
import torch
from torch import nn
from hub.process.threads import release_openmp

def n_threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
"""


def run(code: str, *arguments: str) -> None:
    """Run code after the head in a new process, which must exit with 0 and print nothing."""
    command = [sys.executable, "-c", HEAD + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted as Linux lists them")
def test_the_team_ends_and_comes_again() -> None:
    """What computes next has new threads and the same results; without a team nothing happens."""
    run("""
x = torch.randn(1 << 20)
before = n_threads()
release_openmp()
assert n_threads() == before
expected = x.exp()
assert n_threads() == before + 1
for _ in range(100):
    release_openmp()
    assert torch.equal(x.exp(), expected)
release_openmp()
release_openmp()
for _ in range(1000):
    if n_threads() == before:
        break
assert n_threads() == before
assert torch.get_num_threads() == 2
""")


@pytest.mark.parametrize("is_mixed", [True, False])
def test_mixed_plans_end_it(*, is_mixed: bool) -> None:
    """A plan of two backends ends the team before each that has threads of its own; a plan of one cluster never does."""
    force = {"aten.linear": "onnxruntime", "aten.relu": "inductor", "aten.softmax": "openvino"} if is_mixed else {}
    backends = ["onnxruntime", "openvino", "inductor"] if is_mixed else ["onnxruntime"]
    options = {"tune": "off", "backends": backends, "force": force, "start": "wait"}
    run(f"""
import hub
from hub.dispatch import assemble

sources = []
generate = assemble.generate

def generated(*args, **kwargs):
    program = generate(*args, **kwargs)
    sources.append(program.source)
    return program

assemble.generate = generated
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Softmax(-1)).eval()
compiled = torch.compile(model, backend="hub", options={options!r})
x = torch.randn(4, 32)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
assert hub.plans(compiled)[-1].busy_wait is {not is_mixed}
lines = sources[-1].splitlines()
released = [after.split()[3] for line, after in zip(lines, lines[1:]) if "release_openmp()" in line]
assert released == {["onnxruntime,", "openvino,"] if is_mixed else []}, sources[-1]
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
