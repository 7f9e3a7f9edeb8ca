"""How far fixed point is from float32: the SDK's convolution, and nets of the well-known shapes in mixed plans."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hub.partition.extract import extract
from hub.partition.group import EAGER, group
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import capture, run, whole_cluster
from plugin_mdla.accuracy import accuracies, measured
from plugin_mdla.backend import Mdla
from plugin_mdla.fixed import Q8_8
from plugin_mdla.gather import calibrated
from plugin_mdla.settings import FORMATS, Settings
from plugin_mdla.simulator.device import Simulator
from tests.plugin_mdla.nets import NETS, build, images, resnet18_at_224

ONE = CompileSettings(threads=1)


SEEDS = range(4)


@pytest.fixture(scope="module")
def convolutions() -> list[tuple[Cluster, tuple[torch.Tensor, ...]]]:
    """Return the SDK's example: 256 to 256 channels, 3x3, 16x16 pixels; PyTorch's default weights, standard normal data."""

    def drawn(seed: int) -> tuple[Cluster, tuple[torch.Tensor, ...]]:
        torch.manual_seed(seed)
        return whole_cluster(nn.Conv2d(256, 256, 3, padding=1), (torch.randn(1, 256, 16, 16),))

    return list(map(drawn, SEEDS))


def errors(backend: Mdla, convolutions: list) -> tuple[float, float, float]:
    """Return mean and max |error| over max |reference|, in per cent: medians over the draws; and the largest of all."""
    means, most = [], []
    for cluster, inputs in convolutions:
        (got,) = backend.compile(cluster, ONE)(*inputs)
        found = measured("y", "Conv", Q8_8, 0, got, cluster.module(*inputs)[0])
        means.append(100 * found.mean)
        most.append(100 * found.largest)
    return statistics.median(means), statistics.median(most), max(most)


def test_the_sdks_convolution_in_q8_8(simulated: Callable[..., Mdla], convolutions: list) -> None:
    """Mean error at most 1.7 %, largest at most 9.1 %, as the SDK shows (1.636 and 9.055): medians of four draws."""
    mean, largest, _ = errors(simulated(format="q8.8"), convolutions)
    assert 1.0 < mean <= 1.7
    assert 5.0 < largest <= 9.1


def test_the_sdks_convolution_calibrated(simulated: Callable[..., Mdla], convolutions: list) -> None:
    """With formats by tensor the errors are at most a quarter of that."""
    mean, largest, _ = errors(simulated(format="auto"), convolutions)
    assert mean <= 1.7 / 4
    assert largest <= 9.1 / 4


@pytest.mark.parametrize("form", FORMATS)
def test_the_declared_error_holds(form: str, simulated: Callable[..., Mdla], convolutions: list) -> None:
    """Every format stays within the error class that it declares, on every draw."""
    backend = simulated(format=form)
    assert errors(backend, convolutions)[2] <= 100 * backend.settings.max_relative_error


@pytest.mark.parametrize("name", NETS)
def test_nets_agree_with_float32(name: str, simulated: Callable[..., Mdla], tmp_path: Path) -> None:
    """The net but for its head runs on the device, calibrated on other images, and gives the same class of 95 % of 256."""
    net = build(name)
    wanted = net(images(256, 7)).argmax(1)
    captured = capture(net, (images(256, 7),))
    calibration = tmp_path / "calib.json"
    calibrated(captured.graph, captured.inputs, [(images(256, 8),)]).save(calibration)
    backend = simulated(calibration=str(calibration))
    backend_of = {node.name: "mdla" if backend.supports(node).accepted else EAGER for node in captured.graph.nodes}
    groups = group(captured.graph, backend_of)
    assert [item.backend for item in groups].count("mdla") <= 2, "the net falls to pieces"
    values = dict(zip((node.name for node in captured.graph.placeholders), captured.inputs, strict=True))
    for item in groups:
        cluster = extract(captured.graph, item.nodes, "c", captured.weights)
        inputs = [values[name] for name in cluster.input_names]
        function = cluster.module if item.backend == EAGER else backend.compile(cluster, ONE)
        outputs = function(*inputs)
        values.update(zip(cluster.output_names, outputs, strict=True))
    (result,) = captured.graph.outputs
    assert (values[result.name].argmax(1) == wanted).float().mean() >= 0.95
    assert len(wanted.unique()) >= 4, "a net that always says the same proves nothing"


@pytest.mark.slow
def test_resnet_18_at_224_runs_whole() -> None:
    """ResNet-18 at 224 pixels gives the same bits with one thread and two. Its time is in the README."""
    check_bits(resnet18_at_224(), images(1, 3, 224))


def check_bits(net: nn.Module, x: torch.Tensor) -> None:
    cluster, inputs = whole_cluster(net, (x,))
    executable = Mdla(Settings(simulator=True)).compile(cluster, ONE)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            results.append(run(executable, cluster, inputs)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["resnet18", "unet", "mobilenetv2"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    """One thread, two threads and again one give the same bits."""
    net = build(name)
    body = net if name == "unet" else net[:-1]
    if name == "unet":
        net.head = nn.Identity()
    check_bits(body.eval(), images(2, 3))


def test_the_report_tells_saturation_and_error(simulated: Callable[..., Mdla]) -> None:
    """By layer: format, saturated elements, mean and max error, signal to noise; a saturated layer stands out."""
    cluster, inputs = whole_cluster(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(1, 3, 8, 8),))
    executable = simulated().compile(cluster, ONE)
    executable(*inputs)
    assert executable.formats is not None
    fine = {item.kind: item for item in accuracies(executable.program, executable.formats, inputs)}
    assert fine["Conv"].saturated == 0 and fine["Conv"].noise_db > 60
    broken = {item.kind: item for item in accuracies(executable.program, executable.formats, [inputs[0] * 8])}
    assert broken["Conv"].saturated > 0 and broken["Conv"].noise_db < 40
    call = Simulator(executable.program, executable.formats).run([inputs[0] * 8])
    assert call.saturated[executable.program.layers[0].name] == broken["Conv"].saturated
