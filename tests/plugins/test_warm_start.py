"""What a backend saved is what the next process runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import torch
import hub
from hub import hookimpl
from hub.discovery.plugins import Plugin
from hub.discovery.registry import registry

class Watcher:
    compiled = []

    @hookimpl
    def hub_cluster_compiled(self, backend, cluster, compile_s):
        self.compiled.append(backend)

torch.manual_seed(0)
torch.set_num_threads(1)
known = registry()
known.plugins += (Plugin.of("watcher", Watcher()),)
x = torch.randn(2, 3, 8, 8)
found = {}
for backend in sys.argv[1:]:
    torch._dynamo.reset()
    Watcher.compiled = []
    convolution, linear = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(144, 5)
    model = torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.Flatten(), linear).eval()
    compiled = torch.compile(model, backend="hub", options={"backends": [backend]})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    plan = hub.plans(compiled)[-1]
    found[backend] = [plan.backends, [event.message for event in plan.events if event.stage != "verify"], Watcher.compiled]
print(json.dumps(found))
"""


BACKENDS = ("inductor", "onnxruntime", "openvino")


def process(cache: Path, compilers: Path) -> dict[str, list[list[str]]]:
    """Run a small model on each backend, in a new process; Inductor's own cache is at `compilers`.

    Return, for each, the backends of its plan, what did not go as planned, and how often each process compiled.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *BACKENDS],
        env={**os.environ, "HUB_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(compilers)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """The sealed artefact that one process saved loads in the next one, with nothing to say about it."""
    first, second = (process(tmp_path / "cache", tmp_path / f"compilers{turn}") for turn in range(2))
    assert first == {backend: [[backend], [], [backend]] for backend in BACKENDS}
    assert second == {backend: [[backend], [], []] for backend in BACKENDS}
