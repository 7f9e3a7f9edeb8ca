"""Time kernels with several block sizes on the GPU that runs them, and keep the fastest sizes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch

from hub.plugin import (
    Choice,
    Cluster,
    Measurements,
    ScalarSpec,
    Spec,
    count,
    duration,
    hint,
    priced_size,
)
from hub.toolkit.cluster import Lowered, lower, weights_of

from .blocks import Blocks
from .choices import Limits, choices_of
from .chosen import gpu_of, key_of
from .interpreter import loaded
from .kernel import IEEE, Kernel
from .source import File, file_of

NAME = "triton"
Bench = Callable[[Callable[[], Any]], float]
"""A function that returns the seconds of one launch."""
_ABOUT = 60
"""Number of characters of a kernel's nodes that are shown."""


def bench(launch: Callable[[], Any]) -> float:
    """Return the median seconds of a launch on the GPU, whose cache is emptied before each launch."""
    from triton import testing

    return float(cast("Any", testing).do_bench(launch, warmup=10, rep=40, return_mode="median")) / 1e3


@dataclass
class Tuner:
    """One search over the kernels of some clusters, until a deadline."""

    kept: Measurements
    limits: Limits
    say: Callable[[str], None]
    end_s: float
    bench: Bench = bench
    clock: Callable[[], float] = time.monotonic
    gains: list[float] = field(default_factory=list[float])
    """Ratio for each timed kernel: its seconds with blocks by rules, divided by its seconds with the best blocks."""
    left: int = 0
    """Number of kernels that no time was left for."""
    precision: str = IEEE

    def tune(self, cluster: Cluster) -> None:
        """Time every kernel of a cluster that was never timed on this GPU. Raise any error of lowering."""
        subject = _Subject(cluster, lower(cluster), tuple(map(_example, cluster.inputs)), self.precision)
        file = subject.file({})
        keys = {kernel.name: key_of(kernel, file.dtypes, gpu_of(subject.device)) for kernel in file.kernels}
        known = self.kept.find_choices(keys.values())
        for kernel in file.kernels:
            if keys[kernel.name] in known:
                continue
            if self.clock() >= self.end_s:
                self.left += 1
            else:
                self._tune_kernel(subject, kernel, keys[kernel.name])

    def _tune_kernel(self, subject: _Subject, kernel: Kernel, key: str) -> None:
        default, *others = choices_of(kernel.blocks, kernel.tiling, self.limits)
        times = {default.to_json(): self._timed(subject, kernel, default)}
        rules_s = times[default.to_json()]
        if rules_s is None:  # compiling the cluster reports why it does not run
            return
        for blocks in others:
            if self.clock() >= self.end_s:
                break
            times[blocks.to_json()] = self._timed(subject, kernel, blocks)
        ran = {blocks: run_s for blocks, run_s in times.items() if run_s is not None}
        best = min(ran, key=ran.__getitem__)
        about = ", ".join(kernel.nodes)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        self.kept.keep_choice(Choice(key, about, NAME, best, ran[best], made))
        self.gains.append(rules_s / ran[best])
        told = f"{duration(ran[best])}, by rules {duration(rules_s)}, of {count(len(ran), 'choice')}"
        self.say(f"{about[:_ABOUT]}: {told}")

    def _timed(self, subject: _Subject, kernel: Kernel, blocks: Blocks) -> float | None:
        """Return the seconds of a launch; None if it cannot be compiled, or needs more than the GPU has."""
        try:
            with tempfile.TemporaryDirectory(prefix="hub-triton-") as folder:
                return self.bench(subject.launch(kernel.name, blocks, Path(folder)))
        except Exception:  # noqa: BLE001 - Triton raises any type; these blocks are then no choice
            return None

    def summary(self) -> str:
        """Return a summary of the search."""
        found = "no kernel was new"
        if self.gains:
            mean = statistics.geometric_mean(self.gains)
            found = f"{count(len(self.gains), 'kernel')} timed; with blocks by rules they take {mean:.2f} times as long"
        return found if not self.left else f"{found}; no time was left for {count(self.left, 'kernel')}"


@dataclass(frozen=True)
class _Subject:
    """A cluster whose kernels are timed, and the inputs that they are timed on."""

    cluster: Cluster
    lowered: Lowered
    inputs: tuple[Any, ...]
    precision: str

    @property
    def device(self) -> torch.device:
        return self.cluster.outputs[0].device

    @property
    def is_interpreted(self) -> bool:
        return self.device.type == "cpu"

    def file(self, chosen: Mapping[str, Blocks]) -> File:
        """Return the cluster's file, with other blocks for some kernels."""
        return file_of(
            self.cluster,
            self.lowered,
            is_interpreted=self.is_interpreted,
            choose=lambda kernel, _: chosen.get(kernel.name),
            precision=self.precision,
        )

    def launch(self, name: str, blocks: Blocks, folder: Path) -> Callable[[], Any]:
        """Run a call of the cluster, and return a function that repeats its launch of one kernel. Raise Triton's errors."""
        path = folder / "kernels.py"
        path.write_text(self.file({name: blocks}).text)
        module = loaded(path, is_interpreted=self.is_interpreted)
        recorder = _Recorder(getattr(module, name))
        setattr(module, name, recorder)
        module.call(*self.inputs, *(weight.to(self.device) for weight in weights_of(self.cluster).values()), self.device)
        return recorder.launch


class _Recorder:
    """A stand-in for a kernel that records its launch."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.launch: Callable[[], Any] = lambda: None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self.launch = lambda: self._function[grid](*arguments, **named)
            return self.launch()

        return run


def _example(spec: Spec) -> Any:
    """Return an input for a spec: random numbers, or 0 for integer tensors, which is always a valid index."""
    if isinstance(spec, ScalarSpec):
        return hint(spec.value) if spec.kind == "int" else spec.value
    shape, stride = (tuple(map(priced_size, each)) for each in (spec.shape, spec.stride))
    value = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).zero_()
    return value.normal_() if spec.dtype.is_floating_point else value
