"""torchMDLA's face: enable, disable, and the group as an operator of the graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import plugin_mdla
from hub.errors import OptionError, PluginLoadError
from hub.testing.single import capture
from plugin_mdla.backend import Mdla
from plugin_mdla.face import current_settings
from plugin_mdla.group import grouped
from plugin_mdla.settings import Settings

OPERATOR = torch.ops.mdla.CompilationGroup.default


class Branching(nn.Module):
    """A branch, a sum, two outputs, and a softmax that the device does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.relu(self.one(x))
        return torch.softmax(self.two(first) + first, 1), first * y


INPUTS = (torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8), torch.linspace(1, 2, 256).reshape(1, 4, 8, 8))


@pytest.fixture(autouse=True)
def _off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HUB_MDLA_SIMULATOR", "1")
    yield
    plugin_mdla.disable()


def groups_in(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """Count the groups that one call runs, in a profile."""
    with torch.no_grad(), torch.profiler.profile() as profile:
        model(*inputs)
    return sum(event.count for event in profile.key_averages() if event.key == "mdla::CompilationGroup")


def test_enable_sends_groups_to_the_device() -> None:
    """Between enable and disable, profiles show the group; results are fixed point's, near float's."""
    model = Branching().eval()
    wanted = model(*INPUTS)
    plugin_mdla.enable(clusters=2, options="mvbatch=1", debug="b")
    compiled = torch.compile(model, backend="mdla")
    with torch.no_grad():
        got = compiled(*INPUTS)
    for mine, eager in zip(got, wanted, strict=True):
        assert 0 < (mine - eager).abs().max() < 0.01 * eager.abs().max()
    assert groups_in(compiled, INPUTS) == 1
    settings = current_settings()
    assert settings is not None
    assert (settings.clusters, settings.flags) == (2, (("mvbatch", "1"), ("debug", "b")))
    plugin_mdla.disable()
    torch._dynamo.reset()
    assert groups_in(torch.compile(model, backend="mdla"), INPUTS) == 0
    assert current_settings() is None


def test_calls_that_do_not_fit_run_in_eager_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """NaN, or values beyond the formats: eager's results, and one line in the log for a group."""
    plugin_mdla.enable()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    compiled = torch.compile(model, backend="mdla")
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled(x)
        for bad in (x * torch.nan, x * 1000):
            assert torch.equal(compiled(bad), model(bad)) or bool(bad.isnan().all())
    assert caplog.text.count("runs in eager for such calls: fixed point cannot hold this call's values") == 1


def test_it_compiles_per_shape() -> None:
    """Another size is another program: both are the device's."""
    plugin_mdla.enable()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    compiled = torch.compile(model, backend="mdla")
    for size in (8, 12, 9, 8):
        x = torch.randn(2, 3, size, size)
        with torch.no_grad():
            assert (compiled(x) - model(x)).abs().max() < 0.01
        assert groups_in(compiled, (x,)) == 1


def test_a_changed_weight_counts() -> None:
    """After a step of training, the group computes with the new weights; training itself runs as it is."""
    plugin_mdla.enable()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    compiled = torch.compile(model, backend="mdla")
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled(x)
    compiled(x).sum().backward()
    assert model[0].weight.grad is not None
    with torch.no_grad():
        model[0].weight.mul_(-3)
        assert (compiled(x) - model(x)).abs().max() < 0.05


def test_the_group_stands_in_the_graph() -> None:
    """A program with groups exports: the operator has a fake kernel, and is one node for all of a group."""
    model = Branching().eval()
    captured = capture(model, INPUTS)
    program = grouped(captured.graph, captured.weights, Mdla(Settings(simulator=True)))
    order = [node.name for node in captured.graph.placeholders if node.name not in captured.weights]
    values = dict(zip((node.name for node in captured.graph.placeholders), captured.inputs, strict=True))
    inputs = tuple(values[name] for name in order)
    exported = torch.export.export(program, inputs)
    calls = [node for node in exported.graph.nodes if node.target is OPERATOR]
    assert len(calls) == 1
    assert not [node for node in exported.graph.nodes if "conv" in str(node.target)]
    for mine, eager in zip(exported.module()(*inputs), model(*INPUTS), strict=True):
        assert (mine - eager).abs().max() < 0.01 * eager.abs().max()
    torch.library.opcheck(OPERATOR, ([*inputs], calls[0].args[1]), test_utils=("test_schema", "test_faketensor"))


def test_an_unknown_group_says_so() -> None:
    """A graph from another process names a group that is not here: the message says what to do."""
    with pytest.raises(OptionError, match="no group 'gone' in this process"):
        OPERATOR([torch.ones(1)], "gone")


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that cannot be read, no clusters, or no device at all: an error, and nothing is enabled."""
    with pytest.raises(OptionError, match="'varfp' is not of the form"):
        plugin_mdla.enable(options="varfp")
    with pytest.raises(OptionError, match="clusters=0"):
        plugin_mdla.enable(clusters=0)
    monkeypatch.delenv("HUB_MDLA_SIMULATOR")
    with pytest.raises(PluginLoadError, match="cannot load"):
        plugin_mdla.enable()
    assert current_settings() is None
