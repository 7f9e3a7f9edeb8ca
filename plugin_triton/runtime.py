"""Executables: a file of kernels that is loaded, and how it is saved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hub.backend import Executable
from hub.errors import CompileError, HubError, InputRefused, RunError
from hub.graph import Cluster, TensorSpec
from hub.lowering.cluster import lower, weights_of

from .interpreter import interpreting, loaded
from .launch import with_launchers
from .source import Choose, by_rules, file_of

NAME = "triton"
KERNELS_FILE = "kernels.py"
FACTS_FILE = "kernels.json"


class TritonExecutable(Executable):
    """One cluster as Triton kernels."""

    def __init__(self, cluster: Cluster, text: str, device: torch.device) -> None:
        self._cluster = cluster
        self.text = text
        self._device = device
        self._weights = [weight.to(device) for weight in weights_of(cluster).values()]
        folder = tempfile.mkdtemp(prefix="hub-triton-")  # kept as long as the kernels: Triton reads their source again
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / KERNELS_FILE
        try:
            path.write_text(text)
            is_interpreted = device.type == "cpu"
            module = loaded(path, is_interpreted=is_interpreted)
            self._call = (module if is_interpreted else with_launchers(module)).call
        except OSError as error:
            raise CompileError(f"{path} cannot be written: {error}", backend=NAME, cluster=cluster.name) from error
        except Exception as error:
            message = f"Triton refused the kernels: {type(error).__name__}: {error}"
            raise CompileError(message, backend=NAME, cluster=cluster.name) from error

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Runs one call; new packed tensors, permuted where the cluster's specs say so."""
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
        """Gives an input of the kind that was compiled for. Raises InputRefused."""
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
        """Writes the kernels and their digest; Triton's own cache keeps what it compiled of them."""
        (folder / KERNELS_FILE).write_text(self.text)
        facts = {"digest": hashlib.sha256(self.text.encode()).hexdigest(), "device": self._device.type}
        (folder / FACTS_FILE).write_text(json.dumps(facts))

    def dump(self, folder: Path) -> None:
        """Writes the kernels."""
        self.save(folder)


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Has kernels launched on a GPU: Triton launches them on the current one, wherever the memory is."""
    return contextlib.nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def build(cluster: Cluster, choose: Choose = by_rules) -> TritonExecutable:
    """Lowers a cluster and loads its kernels. Raises CompileError."""
    device = device_of(cluster)
    return TritonExecutable(cluster, written(cluster, choose, is_interpreted=device.type == "cpu"), device)


def written(cluster: Cluster, choose: Choose = by_rules, *, is_interpreted: bool) -> str:
    """Gives the text of a cluster's kernels. Raises CompileError."""
    try:
        return file_of(cluster, lower(cluster), is_interpreted=is_interpreted, choose=choose).text
    except HubError:
        raise
    except Exception as error:
        message = f"cannot be lowered: {type(error).__name__}: {error}"
        raise CompileError(message, backend=NAME, cluster=cluster.name) from error


def device_of(cluster: Cluster) -> torch.device:
    """Gives the device that a cluster runs on: its outputs'."""
    return cluster.outputs[0].device


def restore(folder: Path, cluster: Cluster) -> TritonExecutable:
    """Loads saved kernels. Raises CompileError where a file is missing, damaged or for another device."""
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
    return TritonExecutable(cluster, text, device_of(cluster))
