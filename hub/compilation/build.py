"""Compiles or loads one cluster: the edge at which a plugin's exceptions become the hub's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.backend import CompileSettings, Executable
from hub.cache.store import seal
from hub.dispatch.assemble import Loaded
from hub.dispatch.strides import restrided
from hub.errors import CacheError, CompileError, PluginError, RunError
from hub.graph import Cluster
from hub.registry import registry
from hub.verification.verify import Verified, verify


@dataclass(frozen=True, slots=True)
class Saved:
    """Whether an executable is in the cache now."""

    is_done: bool
    problem: str = ""
    """Why it could not be saved; empty where nobody tried."""


def build_cluster(
    cluster: Cluster, backend: str, settings: CompileSettings, *, inputs: Sequence[Any], folder: Path | None = None
) -> tuple[Loaded, Verified, Saved]:
    """Compiles and verifies a cluster on real inputs; saves it to `folder` where given and possible.

    Gives the cluster with its callable, the verification, and what came of saving. Raises PluginError with the cause.
    """
    executable = compile_cluster(cluster, backend, settings)
    verified = verify_cluster(cluster, backend, executable, inputs, settings.accuracy)
    is_wanted = folder is not None and registry().entries[backend].info.saveable
    saved = _save(executable, backend, folder) if is_wanted and folder is not None else Saved(is_done=False)
    return _loaded(cluster, backend, executable, verified), verified, saved


def load_cluster(cluster: Cluster, backend: str, settings: CompileSettings, folder: Path) -> Loaded:
    """Loads a saved cluster, without verification. Raises PluginError with the cause."""
    with plugin_edge(backend, cluster.name, "load"):
        executable = registry().backend(backend).load(folder, cluster, settings)
    return Loaded(cluster, backend, executable)


def load_and_verify(
    cluster: Cluster, backend: str, settings: CompileSettings, folder: Path, *, inputs: Sequence[Any]
) -> tuple[Loaded, Verified]:
    """Loads a saved cluster and verifies it on real inputs. Raises PluginError with the cause."""
    loaded = load_cluster(cluster, backend, settings, folder)
    verified = verify_cluster(cluster, backend, loaded.executable, inputs, settings.accuracy)
    return _loaded(cluster, backend, loaded.executable, verified), verified


def compile_cluster(cluster: Cluster, backend: str, settings: CompileSettings) -> Executable:
    """Compiles a cluster. Raises PluginError with the cause."""
    with plugin_edge(backend, cluster.name, "compile"):
        executable = registry().backend(backend).compile(cluster, settings)
    if not callable(executable):
        raise CompileError(
            f"compile() gave a {type(executable).__name__}, nothing callable", backend=backend, cluster=cluster.name
        )
    return executable


def verify_cluster(
    cluster: Cluster, backend: str, executable: Callable[..., Any], inputs: Sequence[Any], accuracy: float | None
) -> Verified:
    """Verifies an executable; what it raises while running becomes RunError."""
    with plugin_edge(backend, cluster.name, "run"):
        return verify(cluster, backend, executable, inputs, accuracy)


@contextmanager
def plugin_edge(backend: str, cluster: str | None, stage: str) -> Generator[None]:
    """Turns whatever a plugin raises in here into a PluginError that names it and the stage."""
    try:
        yield
    except PluginError as error:
        error.backend = error.backend or backend
        error.cluster = error.cluster or cluster
        raise
    except Exception as error:
        kind = RunError if stage == "run" else CompileError
        text = f"{stage} failed: {type(error).__name__}: {error}"
        raise kind(text, backend=backend, cluster=cluster) from error


def _loaded(cluster: Cluster, backend: str, executable: Callable[..., Any], verified: Verified) -> Loaded:
    return Loaded(cluster, backend, restrided(executable, cluster.outputs, verified.outputs))


def _save(executable: Executable, backend: str, folder: Path) -> Saved:
    """Saves into a folder that appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        with plugin_edge(backend, None, "save"):
            executable.save(partial)
        seal(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except (PluginError, CacheError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        return Saved(is_done=False, problem=str(error).splitlines()[0])
    shutil.rmtree(partial, ignore_errors=True)
    return Saved(is_done=True)
