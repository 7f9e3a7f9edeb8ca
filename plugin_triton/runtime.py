"""Executables: the loaded file of kernels, and how it is saved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    CompileError,
    Executable,
    HubError,
    InputRefused,
    RunError,
    TensorSpec,
)
from hub.toolkit.cluster import lower, weights_of

from .ahead import fitting
from .interpreter import interpreting, loaded
from .kernel import IEEE
from .launch import Launcher, with_launchers
from .machine import machine_of
from .source import Choose, File, by_rules, file_of
from .targets import Target, compiled, write_stages
from .texts import program_text, schedule_text

NAME = "triton"
KERNELS_FILE = "kernels.py"
FACTS_FILE = "kernels.json"
_ANYWHERE = ("cuda:90",)
"""Targets that a dump compiles kernels for if there is no GPU here."""


class TritonExecutable(Executable):
    """One cluster as Triton kernels."""

    def __init__(
        self, cluster: Cluster, text: str, device: torch.device, *, targets: tuple[str, ...] = (), precision: str = IEEE
    ) -> None:
        self._cluster = cluster
        self.text = text
        self._device = device
        self._targets = targets
        self._precision = precision
        self._weights = [weight.to(device) for weight in weights_of(cluster).values()]
        folder = tempfile.mkdtemp(prefix="hub-triton-")  # kept with the kernels: Triton rereads their source
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / KERNELS_FILE
        try:
            path.write_text(text)
            is_interpreted = device.type == "cpu"
            module = loaded(path, is_interpreted=is_interpreted)
            self._module = module if is_interpreted else with_launchers(module)
            self._call = self._module.call
        except OSError as error:
            raise CompileError(f"{path} cannot be written: {error}", backend=NAME, cluster=cluster.name) from error
        except Exception as error:
            message = f"Triton refused the kernels: {type(error).__name__}: {error}"
            raise CompileError(message, backend=NAME, cluster=cluster.name) from error

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call, and return new packed tensors, permuted if the cluster's specs require it."""
        checked = [self._checked(place, value) for place, value in enumerate(inputs)]
        try:
            with interpreting() if self._device.type == "cpu" else _on(self._device):
                return self._call(*checked, *self._weights, self._device)
        except HubError:
            raise
        except IndexError as error:
            raise InputRefused(str(error), backend=NAME, cluster=self._cluster.name) from error
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def _checked(self, place: int, value: Any) -> Any:
        """Return an input. Raise InputRefused if its dtype, device or rank is not the one that was compiled."""
        spec = self._cluster.inputs[place]
        if not isinstance(spec, TensorSpec):
            return value
        if value.dtype is not spec.dtype or value.device != self._device or len(value.shape) != len(spec.shape):
            found = f"{value.dtype}{list(value.shape)} on {value.device}"
            name = self._cluster.input_names[place]
            message = f"input {name} is {found}, {spec} on {self._device} was compiled"
            raise InputRefused(message, backend=NAME, cluster=self._cluster.name)
        return value.resolve_conj().resolve_neg()

    def save(self, folder: Path) -> None:
        """Write the kernels and their digest; Triton's own cache keeps their compiled code."""
        (folder / KERNELS_FILE).write_text(self.text)
        facts = {"digest": hashlib.sha256(self.text.encode()).hexdigest(), "device": self._device.type}
        (folder / FACTS_FILE).write_text(json.dumps(facts))

    def dump(self, folder: Path) -> None:
        """Write the kernels, the program before and after fusion, and every stage of each kernel down to the binary.

        On a GPU the stages are those of the launched kernels; other targets are compiled now. Each GPU has its folder.
        """
        self.save(folder)
        file = self._file()
        (folder / "ir_pre_fusion.txt").write_text(program_text(file.program.outputs, file.program.origins))
        after = schedule_text(file.program.outputs, file.stages, file.program.origins)
        (folder / "ir_post_fusion.txt").write_text(after)
        launched = _launched(self._module)
        for target, handles in launched.items():
            for name, stages in handles.items():
                write_stages(folder / target.folder, name, stages)
        wanted = self._targets or (() if launched else _ANYWHERE)
        for target in {Target.parse(each) for each in wanted} - launched.keys():
            into = folder / target.folder
            for each in compiled(file, target):
                each.write(into)
            (into / KERNELS_FILE).write_text(file.text)

    def _file(self) -> File:
        """Return the file for a GPU, with the blocks that rules choose."""
        return file_of(self._cluster, lower(self._cluster), is_interpreted=False, precision=self._precision)


def _launched(module: ModuleType) -> Mapping[Target, Mapping[str, Mapping[str, Any]]]:
    """Return the stages of each launched kernel by name, by GPU: k0, and k0_1 if compiled for another kind of arguments."""
    found: dict[Target, dict[str, Mapping[str, Any]]] = {}
    for name, value in vars(module).items():
        for place, handle in enumerate(value.handles if isinstance(value, Launcher) else ()):
            target = handle.metadata.target
            named = found.setdefault(Target(target.backend, str(target.arch)), {})
            named[f"{name}_{place}" if place else name] = handle.asm
    return found


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Make a device current: Triton launches kernels on the current device, regardless of where the memory is."""
    return contextlib.nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def build(
    cluster: Cluster, choose: Choose = by_rules, *, precision: str = IEEE, targets: tuple[str, ...] = ()
) -> TritonExecutable:
    """Lower a cluster and load its kernels, already compiled if they are for a GPU. Raise CompileError if that fails."""
    device = device_of(cluster)
    is_interpreted = device.type == "cpu"
    try:
        lowered = lower(cluster)

        def write(choose: Choose) -> File:
            return file_of(cluster, lowered, is_interpreted=is_interpreted, choose=choose, precision=precision)

        file = write(choose) if is_interpreted else fitting(write, choose, machine_of(device))
    except HubError:
        raise
    except Exception as error:
        message = f"cannot be lowered or compiled: {type(error).__name__}: {error}"
        raise CompileError(message, backend=NAME, cluster=cluster.name) from error
    return TritonExecutable(cluster, file.text, device, targets=targets, precision=precision)


def device_of(cluster: Cluster) -> torch.device:
    """Return the device that a cluster runs on: that of its outputs."""
    return cluster.outputs[0].device


def restore(folder: Path, cluster: Cluster, *, precision: str = IEEE, targets: tuple[str, ...] = ()) -> TritonExecutable:
    """Load saved kernels. Raise CompileError if a file is missing, corrupt or for another device."""
    try:
        text = (folder / KERNELS_FILE).read_text()
        facts = json.loads((folder / FACTS_FILE).read_text())
        digest, device = facts["digest"], facts["device"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{folder} holds no saved kernels: {error}", backend=NAME, cluster=cluster.name) from error
    if digest != hashlib.sha256(text.encode()).hexdigest():
        raise CompileError(f"{folder / KERNELS_FILE} is not what was saved", backend=NAME, cluster=cluster.name)
    if device != device_of(cluster).type:
        raise CompileError(f"saved for {device}, not for {device_of(cluster)}", backend=NAME, cluster=cluster.name)
    return TritonExecutable(cluster, text, device_of(cluster), targets=targets, precision=precision)
