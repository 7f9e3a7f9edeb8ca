"""Plans across processes, with real backends: the same knowledge gives the same plan, and nothing is timed twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hub.cache.measurements import Measurements, machine_digest
from hub.pricing.profile import Profile

SCRIPT = """
import json, sys
import torch
import hub
from hub.workers.crew import Crew
from hub.workers.session import Session

rounds = []
compile_all = Session.compile_all
Session.compile_all = lambda self, *rest, **named: rounds.append(1) or compile_all(self, *rest, **named)
workers = []
start = Crew.start
Crew.start = lambda self, names: workers.append(1) or start(self, names)

torch.manual_seed(0)
torch.set_num_threads(1)
block = [lambda: torch.nn.Linear(64, 128), torch.nn.GELU, lambda: torch.nn.Linear(128, 64), lambda: torch.nn.LayerNorm(64)]
model = torch.nn.Sequential(*(make() for _ in range(3) for make in block)).eval()
x = torch.randn(16, 64)
options = {"backends": ["onnxruntime", "openvino"], "threads": 1, "budget_s": 6.0}
if sys.argv[1] == "explain":
    (plan,) = hub.explain(model, x, options=options)
else:
    compiled = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    (plan,) = hub.plans(compiled)
settled = plan.model_copy(update={"plan_s": 0.0, "verify_s": 0.0}).model_dump(mode="json")
print(json.dumps({"rounds": len(rounds), "workers": len(workers), "plan": settled}))
"""


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a cache that one process has filled by measuring, and what that process planned."""
    cache = tmp_path_factory.mktemp("warm")
    return cache, process("compile", cache)


def process(what: str, cache: Path) -> dict[str, Any]:
    """Plan a small model in a new process. Return the plan, rounds of compiling, and how often workers started."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, what],
        env={**os.environ, "HUB_CACHE_DIR": str(cache), "HUB_PROGRESS": "off", "HUB_START": "wait"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_estimates_give_the_same_plan(tmp_path: Path) -> None:
    """Two processes that know the same about the machine predict the same plan, to the last digit, and time nothing."""
    measurements, _ = Measurements.open(tmp_path)
    calls = {"onnxruntime": 6e-6, "openvino": 50e-6}
    profile = Profile(1, 80e9, 10e9, calls, 10e9, 10e9, {"onnxruntime+openvino": 30e-6}, "2026-11-01T00:00:00+00:00")
    measurements.keep_profile(machine_digest(), 1, profile.to_json())
    measurements.close()
    first, second = process("explain", tmp_path), process("explain", tmp_path)
    assert first == second
    assert first["rounds"] == 0
    assert first["plan"]["clusters"]


def test_measuring_proves_real_backends(warm_cache: tuple[Path, dict[str, Any]]) -> None:
    """A first process measures whole plans: each backend alone and eager are contenders, or known to be far behind."""
    _, first = warm_cache
    plan = first["plan"]
    assert first["rounds"] > 0
    assert plan["decided_by"] == "measured whole plans"
    assert len(plan["contenders"]) >= 2
    assert sum(item["won"] for item in plan["contenders"]) == 1
    assert not [event for event in plan["events"] if event["kind"] == "failed"]


def test_second_process_replays(warm_cache: tuple[Path, dict[str, Any]]) -> None:
    """A second process with the same cache plans without timing, and its plan is the first one's."""
    cache, first = warm_cache
    second = process("compile", cache)
    assert second["rounds"] == second["workers"] == 0
    assert second["plan"]["decided_by"] == "replayed"
    assert second["plan"]["clusters"] == first["plan"]["clusters"]
    assert second["plan"]["contenders"] == first["plan"]["contenders"]


def test_explain_gives_the_kept_plan(warm_cache: tuple[Path, dict[str, Any]]) -> None:
    """`hub.explain` returns what an earlier process proved."""
    cache, first = warm_cache
    assert process("explain", cache)["plan"]["clusters"] == first["plan"]["clusters"]


OF_ITS_OWN = """
import json, sys
import torch
import hub

library = torch.library.Library("hub_of_main", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.second(torch.relu(torch.ops.hub_of_main.twice(self.first(x))))

model, x = Net().eval(), torch.randn(8, 64)
compiled = torch.compile(model, backend="hub", options={"tune": sys.argv[1], "background": False})
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
(plan,) = hub.plans(compiled)
print(json.dumps([plan.backends, [event.message for event in plan.events]]))
"""


@pytest.mark.parametrize(("tune", "unmeasured"), [("off", "eager could not be timed"), ("fast", "could not measure")])
def test_a_program_with_operators_of_its_own_is_planned_by_prices(tune: str, unmeasured: str, tmp_path: Path) -> None:
    """No worker knows the operators of `__main__`, so nothing can be timed. The plan says so, and has backends."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OF_ITS_OWN, tune],
        env={**os.environ, "HUB_CACHE_DIR": str(tmp_path), "HUB_PROGRESS": "off", "HUB_START": "wait"},
        capture_output=True,
        text=True,
        check=True,
    )
    backends, messages = json.loads(done.stdout)
    assert set(backends) > {"eager"}
    (reason,) = [message for message in messages if message.startswith(unmeasured)]
    assert "twice" in reason
