"""The Triton backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import fx

from hub.plugin import (
    Backend,
    Cluster,
    CompileError,
    CompileSettings,
    Cost,
    Executable,
    HubError,
    Measurements,
    Support,
    refused,
    run_addition,
)

from .chosen import chosen_by, gpu_of
from .machine import limits_of
from .precision import precision_of
from .runtime import NAME, build, device_of, restore
from .settings import REFERENCE, Settings
from .source import Choose, by_rules
from .support import INTERPRETED, OPERATORS, capability_of, too_old
from .tuning import Tuner

INTERPRETED_S = 0.05
"""Approximate seconds of a node in the interpreter. Plans do not depend on them: see `Settings.reference_on`."""


class Triton(Backend):
    """Backend that writes kernels in Triton's language, one file for each cluster."""

    def __init__(self, own: Settings) -> None:
        self._own = own
        self._kept: Measurements | None = None

    def probe(self) -> Support:
        """Compile and run one addition on the GPU, or in the interpreter if the settings select it."""
        if not torch.cuda.is_available() and not self._own.interpret:
            return refused("no CUDA device here; HUB_TRITON_INTERPRET=1 interprets kernels on the CPU, for reference")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        device = torch.empty(0, device=device).device  # cuda:0, not cuda
        if reason := too_old(capability_of(device)):
            return refused(reason)
        found = run_addition(self, device)
        is_reference = found.accepted and device.type != "cuda"
        return Support(accepted=True, reason=REFERENCE) if is_reference else found

    def supports(self, node: fx.Node) -> Support:
        """Look up the node in the operator table of GPUs, or else in that of the interpreter if the settings select it."""
        found = OPERATORS.supports(node)
        return found if found.accepted or not self._own.interpret else INTERPRETED.supports(node)

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost | None:  # noqa: ARG002 - the same with any
        """Estimate one warm call of the interpreter by the number of nodes; None for a GPU: the hub's roofline applies."""
        is_interpreted = device_of(cluster).type == "cpu"
        return Cost(INTERPRETED_S * len(cluster.nodes), detail=REFERENCE) if is_interpreted else None

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Write, compile and load kernels, with the blocks that tuning found. Raise CompileError if that fails."""
        device = device_of(cluster)
        precision = precision_of(device, settings.accuracy)
        try:
            return build(cluster, self._choose(device), precision=precision, targets=self._own.targets)
        except HubError as error:
            error.backend, error.cluster = NAME, cluster.name
            raise

    def _choose(self, device: torch.device) -> Choose:
        """Return how blocks are chosen: from timings on a GPU; by rules in the interpreter, whose time means nothing.

        Raise CompileError for a GPU that is too old.
        """
        if reason := too_old(capability_of(device)):
            raise CompileError(reason)
        if device.type == "cpu" or not self._own.state:
            return by_rules
        if self._kept is None:
            self._kept, _ = Measurements.open(self._own.cache_folder)
        return chosen_by(self._kept, gpu_of(device))

    def tune(
        self,
        clusters: Sequence[Cluster],
        settings: CompileSettings,
        budget_s: float,
        say: Callable[[str], None],
    ) -> str:
        """Time the kernels of a model with several block sizes; the best ones of each kernel are kept immediately."""
        devices = {device_of(cluster) for cluster in clusters}
        if not clusters or torch.device("cpu") in devices:
            return "nothing to time: the interpreter is not a GPU" if clusters else "nothing to time"
        kept, note = Measurements.open(self._own.cache_folder)
        device = device_of(clusters[0])
        precision = precision_of(device, settings.accuracy)
        tuner = Tuner(kept, limits_of(device), say, time.monotonic() + budget_s, precision=precision)
        try:
            for cluster in clusters:
                tuner.tune(cluster)
        finally:
            kept.close()
        return f"{tuner.summary()}{f'; {note}' if note else ''}"

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Load saved kernels."""
        precision = precision_of(device_of(cluster), settings.accuracy)
        return restore(folder, cluster, precision=precision, targets=self._own.targets)


def create(own: Settings | None = None) -> Triton:
    """Return the backend."""
    return Triton(Settings() if own is None else own)
