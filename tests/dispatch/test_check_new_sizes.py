"""A backend that serves symbolic sizes is checked at each new combination of them, until it has earned trust."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.dispatch import check_new_sizes
from hub.dispatch.check_new_sizes import N_TRUSTED, NewSizes
from hub.dispatch.shadow import Shadowed
from hub.errors import AccuracyError, HubWarning
from hub.frontend.ownership import graphs_of
from hub.verification.inputs import N_DRAWN, _size_drawn
from tests.functions import OneCluster

PLUGIN = """
from pathlib import Path
from hub import Backend, BackendInfo, Executable, Support, hookimpl

@hookimpl
def hub_backends():
    return [BackendInfo(name="stretchy", factory="hub_stretchy:Stretchy", summary="", dynamic_shapes=True)]

class Stretchy(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster.module)

class Run(Executable):
    def __init__(self, module):
        self.module = module

    def __call__(self, *inputs):
        outputs = [value + 0 for value in self.module(*inputs)]
        sizes = tuple(next(value for value in inputs if hasattr(value, "shape")).shape)
        with Path({diary!r}).open("a") as diary:
            diary.write(f"{{sizes}}\\n")
        if sizes == {bad}:
            {fault}
        return outputs
"""
BAD = (29, 8)
"""At no size that is a size of the first call changed as verification changes it."""


WAIT_S = 240.0


@pytest.fixture
def stretchy(install_plugin: Callable[[str, str], None], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that installs the plugin, wrong at one size, and returns the file in which it logs call sizes."""

    def place(fault: str = "outputs[0].view(-1)[0] += 0.01") -> Path:
        diary = tmp_path / "diary"
        install_plugin("stretchy", PLUGIN.format(diary=str(diary), bad=BAD, fault=fault))
        return diary

    return place


def compiled(model: nn.Module, **options: Any) -> Any:
    """Compile a model for the plugin in this process, for all sizes."""
    given = {"tune": "off", "backends": ["stretchy"], "isolate": False, **options}
    return torch.compile(model, backend="hub", dynamic=True, options=given)


def call(model: nn.Module, run: Any, rows: int) -> None:
    """Call the compiled model once; raise AssertionError unless the result has eager's exact bits."""
    x = torch.randn(rows, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        assert torch.equal(run(x), model(x))


@pytest.mark.parametrize("fault", ["outputs[0].view(-1)[0] += 0.01", "raise ValueError('of this size?')"])
def test_a_size_that_is_wrong_demotes_it(stretchy: Callable[..., Path], fault: str) -> None:
    """The user gets eager's numbers in that very call, with a warning, and eager from then on, in later captures too."""
    diary, model = stretchy(fault), OneCluster().eval()
    run = compiled(model)
    for rows in (5, 6, 17):
        call(model, run, rows)
    x = torch.randn(*BAD)
    with torch.no_grad(), pytest.warns(HubWarning, match="eager from now on"):
        torch.testing.assert_close(run(x), model(x), rtol=0, atol=0)
    n_calls = len(diary.read_text().splitlines())
    call(model, run, 24)
    assert len(diary.read_text().splitlines()) == n_calls
    assert [event.kind for event in hub.plans(run)[-1].events if event.kind != "note"] == ["fallback"]
    torch._dynamo.reset()
    run = compiled(model)
    call(model, run, 5)
    assert hub.plans(run)[-1].backends == ("eager",)


def test_strict_models_raise(stretchy: Callable[..., Path]) -> None:
    """With strict=True a wrong size is an error that names the sizes."""
    stretchy()
    model = OneCluster().eval()
    run = compiled(model, strict=True)
    with torch.no_grad():
        run(torch.randn(5, 8))
        with pytest.raises(AccuracyError, match=r"sizes that were not verified.*\[29, 8\]"):
            run(torch.randn(*BAD))


def runs_in_eager(model: nn.Module, run: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if a call of the compiled model also runs the program in eager, for comparison."""
    seen: list[int] = []
    with monkeypatch.context() as patch:
        real = check_new_sizes.Reference
        patch.setattr(check_new_sizes, "Reference", lambda *given: (seen.append(1), real(*given))[1])
        call(model, run, rows)
    return bool(seen)


def test_each_new_combination_is_checked_once(stretchy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A combination that was right is not run in eager again, nor is the one that was verified while planning."""
    stretchy()
    model = OneCluster().eval()
    run = compiled(model)
    assert not runs_in_eager(model, run, 5, monkeypatch)
    assert runs_in_eager(model, run, 6, monkeypatch)
    assert not runs_in_eager(model, run, 6, monkeypatch)
    assert hub.plans(run)[-1].backends == ("stretchy",)


def test_trust_is_earned(stretchy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """After enough combinations that were right, nothing is checked any more, and calls go straight to the executable."""
    stretchy()
    model = OneCluster().eval()
    run = compiled(model)
    for rows in range(30, 30 + N_TRUSTED):
        call(model, run, rows)
    assert not runs_in_eager(model, run, 77, monkeypatch)
    (graph,) = graphs_of(run)
    assert graph._bindings.current is not None
    assert not isinstance(graph._bindings.current.run.__globals__["c0"], NewSizes)


def served(model: nn.Module) -> Any:
    """Return the model for all sizes, called once, after all verification in the background is done."""
    run = compiled(model, isolate=True, background=True, start="wait")
    call(model, run, 5)
    assert hub.wait(run, WAIT_S)
    return run


def test_trust_is_earned_beside_the_model(stretchy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough combinations of sizes are tried in a worker: no call runs the program in eager, too, after that."""
    stretchy("pass")
    model = OneCluster().eval()
    run = served(model)
    assert not any(runs_in_eager(model, run, rows, monkeypatch) for rows in (6, 77, 1000))
    assert f"right at {N_TRUSTED} combinations of sizes" in "\n".join(event.message for event in hub.plans(run)[-1].events)


def test_a_size_that_is_wrong_is_found_beside_the_model(stretchy: Callable[..., Path]) -> None:
    """None of the user's calls has met it, and none will."""
    stretchy("pass\n        if sizes[0] in range(15, 23): outputs[0].view(-1)[0] += 0.01")
    model = OneCluster().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        run = served(model)
        for rows in (17, 5, 21):
            call(model, run, rows)
    assert [event.kind for event in hub.plans(run)[-1].events if event.kind != "note"][:1] == ["fallback"]


def test_sizes_that_are_refused_earn_no_trust(stretchy: Callable[..., Path]) -> None:
    """Only results that were compared count: the first call with a size that it takes is still checked."""
    refusal = "from hub.plugin import InputRefused; raise InputRefused('too small')"
    stretchy(f"pass\n        if 40 >= sizes[0] != 5: {refusal}\n        if sizes[0] > 40: outputs[0].view(-1)[0] += 0.01")
    model = OneCluster().eval()
    run = served(model)
    assert "combinations of sizes" not in "\n".join(event.message for event in hub.plans(run)[-1].events)
    for rows in (100, 101):
        call(model, run, rows)
    assert "fallback" in [event.kind for event in hub.plans(run)[-1].events]


def test_shadow_mode_leaves_no_size_unchecked(stretchy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new combination of sizes is compared, whatever share of the calls is; what is trusted is not."""
    stretchy()
    model = OneCluster().eval()
    run = compiled(model, shadow=1e-9)
    call(model, run, 5)
    assert runs_in_eager(model, run, 6, monkeypatch)
    call(model, run, BAD[0])
    assert "fallback" in [event.kind for event in hub.plans(run)[-1].events]
    torch._dynamo.reset()
    run = compiled(nn.Sequential(OneCluster(), nn.Tanh()).eval(), shadow=1e-9)
    with torch.no_grad():
        for rows in (5, *range(30, 30 + N_TRUSTED)):
            run(torch.randn(rows, 8))
    (graph,) = graphs_of(run)
    assert graph._bindings.current is not None
    watched = graph._bindings.current.run.__globals__["c0"]
    assert isinstance(watched, Shadowed)
    assert not isinstance(watched.executable, NewSizes)


def test_what_eager_raises_at_a_new_size_is_raised(install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """The call's own error, however the backend answers: an index that a library reads as zero, say."""
    lenient = "try:\n            outputs = [value + 0 for value in self.module(*inputs)]\n"
    lenient += "        except IndexError:\n            outputs = [self.module(*[value * 0 for value in inputs])[0] + 0]\n"
    source = PLUGIN.replace("outputs = [value + 0 for value in self.module(*inputs)]\n", lenient)
    source = source.replace("dynamic_shapes=True", 'dynamic_shapes=True, dtypes=("float32", "int64")')
    install_plugin("stretchy", source.format(diary=str(tmp_path / "diary"), bad=BAD, fault="pass"))
    run = compiled(nn.Embedding(10, 4).eval())
    with torch.no_grad(), pytest.raises(IndexError):
        run(torch.tensor([1, 2, 3]))
        run(torch.tensor([1, 2, 3, 10]))
    assert hub.plans(run)[-1].backends == ("stretchy",)


def test_another_threads_write_is_not_the_backends(stretchy: Callable[..., Path]) -> None:
    """It stays as it is, and nobody is blamed."""
    stretchy()
    run = compiled(OneCluster().eval())
    x = torch.randn(9, 8)
    with torch.no_grad():
        run(torch.randn(5, 8))
        (graph,) = graphs_of(run)
        assert graph._bindings.current is not None
        watched = graph._bindings.current.run.__globals__["c0"]
        real, was = watched._executable, x.clone()
        watched._executable = lambda *inputs: (real(*inputs), x.add_(1))[0]
        run(x)
    assert torch.equal(x, was + 1 + 1)  # one call for the answer, one on copies
    assert hub.plans(run)[-1].backends == ("stretchy",)


@pytest.mark.parametrize("size", [2, 5, 40, 1000])
def test_drawn_sizes_are_distinct_and_near(size: int) -> None:
    """They are what calls might bring: none is tried twice, and none is far beyond what was captured."""
    drawn = [_size_drawn(number)(0, size) for number in range(N_DRAWN)]
    assert len({*drawn}) == N_DRAWN >= N_TRUSTED
    assert 2 <= min(drawn) <= max(drawn) <= max(2 * size, 40)
    assert {value % 2 for value in drawn} == {0, 1}
    assert drawn != [_size_drawn(number)(1, size) for number in range(N_DRAWN)]
