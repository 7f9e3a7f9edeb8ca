"""Contenders for `hub bench`: Inductor through its own APIs, without the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from plugin_inductor.torch_private import config, inductor

_compile: Any = torch.compile  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def default(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Return a callable that runs `torch.compile(module)` once without gradients. Compile immediately."""
    return _compiled(_compile(module), inputs)


def max_autotune(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Return the strongest form: mode "max-autotune" with frozen weights. Compile immediately, which may take minutes."""
    with config.patch(freezing=True):
        return _compiled(_compile(module, mode="max-autotune"), inputs)


def exported(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Return the exported model, compiled by Inductor with frozen weights and no guards. Compile immediately."""
    with torch.no_grad(), config.patch(freezing=True):
        program = torch.export.export(module, tuple(inputs)).module()
        return _compiled(inductor.compile(program, list(inputs)), inputs)


def ahead_of_time(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Return AOTInductor's package with frozen weights, loaded again: calls run no Python. Compile immediately."""
    with torch.no_grad(), config.patch(freezing=True), tempfile.TemporaryDirectory() as folder:
        program = torch.export.export(module, tuple(inputs))
        package = inductor.aoti_compile_and_package(program, package_path=str(Path(folder) / "model.pt2"))
        return _compiled(inductor.aoti_load_package(package), inputs)


def _compiled(compiled: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    run()
    return run
