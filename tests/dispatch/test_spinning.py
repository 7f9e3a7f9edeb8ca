"""Spinning of OpenMP's idle threads is held back while a plan lives that shares the cores, and only then."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.dispatch.spinning import Calm


def is_held_back() -> bool:
    """True where the sleeping team is there."""
    gc.collect()
    return any(thread.name == "hub-calm" and thread.is_alive() for thread in threading.enumerate())


def ended(seconds: float = 5.0) -> bool:
    """True once the sleeping team is gone."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "hub-calm":
            thread.join(seconds)
    return not is_held_back()


@pytest.fixture
def two_threads() -> Generator[None]:
    """OpenMP has a team only with more than one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_it_lasts_as_long_as_the_last_holder() -> None:
    """Two holders share one sleeping team, which goes with the second of them and comes again with a third."""
    first, second = Calm(), Calm()
    assert is_held_back()
    del first
    assert is_held_back()
    del second
    assert ended()
    third = Calm()
    assert is_held_back()
    del third
    assert ended()


def test_one_thread_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread nobody spins, and no team is made."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    holder = Calm()
    assert not is_held_back()
    del holder


class Half(nn.Module):
    """A product and a softmax, so that two backends can share it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)), -1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("force", "is_mixed"),
    [({"aten.linear": "onnxruntime", "aten.relu": "onnxruntime", "aten.softmax": "openvino"}, True), ({}, False)],
)
def test_mixed_plans_hold_it_back(tmp_path: Path, force: dict[str, str], *, is_mixed: bool) -> None:
    """A plan of two backends holds spinning back; a plan of one cluster does not."""
    backends = ["onnxruntime", "openvino"] if force else ["onnxruntime"]
    options: dict[str, Any] = {"tune": "off", "backends": backends, "force": force, "cache_dir": str(tmp_path)}
    torch.compiler.reset()
    assert ended()
    model = Half().eval()
    compiled: Any = torch.compile(model, backend="hub", options=options)
    x = torch.randn(4, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert hub.plans(compiled)[-1].spin is not is_mixed
    assert is_held_back() is is_mixed
    del compiled, model
    torch.compiler.reset()
    assert ended()


def test_a_process_that_holds_it_back_ends() -> None:
    """The sleeping team does not keep a process from ending, and nothing is printed at its end."""
    code = "import torch; torch.set_num_threads(2); from hub.dispatch.spinning import Calm; c = Calm()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
