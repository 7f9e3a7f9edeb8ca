"""Compiles or loads one cluster: the edge at which a plugin's exceptions become the hub's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hub.backend import CompileSettings, Executable
from hub.cache.artifacts import Saved, save_artifact
from hub.compilation.verify import Verified, verify
from hub.dispatch.assemble import Loaded
from hub.dispatch.strides import restrided
from hub.errors import CompileError, PluginError, RunError
from hub.graph import Cluster
from hub.registry import registry


def build_cluster(
    cluster: Cluster, backend: str, settings: CompileSettings, *, inputs: Sequence[Any], folder: Path | None = None
) -> tuple[Loaded, Verified, Saved]:
    """Compiles and verifies a cluster on real inputs; saves it to `folder` where given and possible.

    Gives the cluster with its callable, the verification, and what came of saving. Raises PluginError with the cause.
    """
    executable = compile_cluster(cluster, backend, settings)
    verified = verify_cluster(cluster, backend, executable, inputs, settings.accuracy)
    is_wanted = folder is not None and registry().entries[backend].info.saveable
    saved = _save(executable, cluster, backend, folder) if is_wanted and folder is not None else Saved(is_done=False)
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


def _save(executable: Executable, cluster: Cluster, backend: str, folder: Path) -> Saved:
    def write(partial: Path) -> None:
        with plugin_edge(backend, None, "save"):
            executable.save(partial)

    operators = Counter(str(node.target) for node in cluster.nodes)
    about = {"operators": operators.most_common(), "inputs": list(map(str, cluster.inputs))}
    return save_artifact(folder, write, about)
