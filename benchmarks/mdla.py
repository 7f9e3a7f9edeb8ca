"""How exact MDLA's fixed point is, how fast its software device is, and predicted device time next to published numbers.

Exactness does not depend on the machine; only the software device's seconds do. Run with `make bench-mdla`, or with `python
-m benchmarks.mdla --nets resnet18 --formats auto`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hub
from hub.bench.machine import this_machine
from hub.plugin.backend import CompileSettings
from hub.testing.single import capture, whole_cluster
from plugin_mdla.accuracy import measured
from plugin_mdla.backend import Mdla
from plugin_mdla.fixed import Q8_8
from plugin_mdla.gather import calibrated
from plugin_mdla.settings import FORMATS, Settings
from plugin_mdla.timing import device_s
from tests.plugin_mdla.nets import NETS, build, images, resnet18_at_224
from tests.plugin_mdla.test_timing import PUBLISHED

RESULTS = Path(__file__).parent / "results" / "mdla.json"
DRAWS, IMAGES, CALLS = 16, 256, 5


def convolution(kind: str) -> dict[str, float]:
    """Return mean and largest error of the SDK's convolution, in per cent of the largest value, with spread over draws.

    The spread is the range and the median.
    """
    backend = Mdla(Settings.model_validate({"simulator": True, "format": kind}))
    means: list[float] = []
    largest: list[float] = []
    for seed in range(DRAWS):
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType] - torch's
        cluster, inputs = whole_cluster(nn.Conv2d(256, 256, 3, padding=1), (torch.randn(1, 256, 16, 16),))
        (got,) = backend.compile(cluster, CompileSettings(threads=1))(*inputs)
        found = measured("y", "Conv", Q8_8, 0, got, cluster.module(*inputs)[0])
        means.append(100 * found.mean)
        largest.append(100 * found.largest)
    names = {"mean": means, "max": largest}
    ways = {"least": min, "median": statistics.median, "most": max}
    return {f"{what} {name}": of(values) for name, values in names.items() for what, of in ways.items()}


def agreement(name: str, kinds: Sequence[str], folder: Path) -> dict[str, float]:
    """Return, for each format, the share of images that a net in a plan of the hub classifies as float32 does.

    The net is calibrated on other images.
    """
    net, x = build(name), images(IMAGES, 7)
    with torch.no_grad():
        wanted = net(x).argmax(1)
    captured = capture(net, (x,))
    samples = folder / f"{name}.json"
    calibrated(captured.graph, captured.inputs, [(images(IMAGES, 8),)]).save(samples)
    found: dict[str, float] = {}
    for kind in kinds:
        torch.compiler.reset()
        own = {"simulator": True, "format": kind, "calibration": str(samples), "saturate": kind != "auto"}
        options: dict[str, Any] = {"backends": ["mdla"], "accuracy": 1.0, "tune": "off", "start": "wait", "mdla": own}
        compiled: Any = torch.compile(net, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
        with torch.no_grad():
            got = compiled(x).argmax(1)
        assert "mdla" in hub.plans(compiled)[0].backends, f"{name}, {kind}: the device was not part of the plan"
        found[kind] = float((got == wanted).float().mean())
    return found


def resnet18_s() -> float:
    """Return the median seconds of one call of ResNet-18 at 224 pixels on the software device."""
    cluster, inputs = whole_cluster(resnet18_at_224(), (images(1, 3, 224),))
    run = Mdla(Settings(simulator=True)).compile(cluster, CompileSettings(threads=torch.get_num_threads()))
    times: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        run(*inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS), help="names, with commas")
    parser.add_argument("--formats", default=",".join(FORMATS), help="names, with commas")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    kinds = given.formats.split(",")
    warnings.simplefilter("ignore")  # values out of range are part of the measurement
    convolutions = {kind: convolution(kind) for kind in kinds}
    for kind, row in convolutions.items():
        print(f"the SDK's convolution, {kind}: " + ", ".join(f"{what} {value:.4f} %" for what, value in row.items()))
    nets: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HUB_CACHE_DIR"] = f"{folder}/cache"
        for name in given.nets.split(","):
            nets[name] = agreement(name, kinds, Path(folder))
            print(f"{name}: " + ", ".join(f"{kind} {share:.1%}" for kind, share in nets[name].items()), flush=True)
    call_s = resnet18_s()
    print(f"ResNet-18 at 224 pixels on the software device: {call_s:.2f} s")
    rates = {
        name: {"predicted": 1 / device_s(net(), weight_loads=loads), "published": published}
        for name, (net, loads, published, _) in PUBLISHED.items()
    }
    for name, rate in rates.items():
        print(f"{name}: {rate['predicted']:.1f} frames/s predicted, {rate['published']:.1f} published")
    figures = {"convolution_percent": convolutions, "agreement": nets, "resnet18_s": call_s, "frames_per_s": rates}
    command = f"python -m benchmarks.mdla --nets {given.nets} --formats {given.formats}"
    machine = this_machine().model_dump(mode="json")
    given.output.write_text(json.dumps({"command": command, "machine": machine, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
