"""Compiles or loads one cluster: the edge at which a plugin's exceptions become the hub's."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hub.backend import CompileSettings, Executable
from hub.cache.store import seal
from hub.compilation.state import kept_state
from hub.compilation.verify import Verified, verify
from hub.dispatch.assemble import Loaded
from hub.dispatch.strides import restrided
from hub.errors import CacheError, CompileError, ContractError, PluginError, RunError, text_of
from hub.graph import Cluster, canonical_text
from hub.plugin_fault import is_plugins
from hub.registry import registry


@dataclass(frozen=True, slots=True)
class Saved:
    """Whether an executable is in the cache now."""

    is_done: bool
    problem: str = ""
    """Why it could not be saved; empty where nobody tried."""


@dataclass(frozen=True, slots=True)
class Built:
    """A cluster that was compiled, or loaded, and verified just now."""

    loaded: Loaded
    verified: Verified
    saved: Saved
    verify_s: float
    """Seconds in which it was compared with eager."""
    changed: tuple[str, ...] = ()
    """What the plugin changed in this process while it compiled or loaded, and what was restored."""


def build_cluster(
    cluster: Cluster, backend: str, settings: CompileSettings, *, inputs: Sequence[Any], folder: Path | None = None
) -> Built:
    """Compiles and verifies a cluster on real inputs; saves it to `folder` where given and possible.

    What was saved is loaded back and verified as well before anybody else can see it. Raises PluginError with the cause.
    """
    with given_kept(cluster, backend):
        with kept_state() as changed:
            executable = compile_cluster(cluster, backend, settings)
        start = time.perf_counter()
        verified = verify_cluster(cluster, backend, executable, inputs, settings.accuracy)
        verify_s = time.perf_counter() - start
    is_wanted = folder is not None and registry().entries[backend].info.saveable

    def check(saved: Path) -> None:
        load_and_verify(cluster, backend, settings, saved, inputs=inputs)

    saved = _save(executable, backend, folder, check) if is_wanted and folder is not None else Saved(is_done=False)
    return Built(_loaded(cluster, backend, executable, verified), verified, saved, verify_s, tuple(changed))


def load_cluster(cluster: Cluster, backend: str, settings: CompileSettings, folder: Path) -> Loaded:
    """Loads a saved cluster, without verification. Raises PluginError with the cause."""
    with plugin_edge(backend, cluster.name, "load"):
        executable = registry().backend(backend).load(folder, cluster, settings)
    return Loaded(cluster, backend, executable)


def load_and_verify(
    cluster: Cluster, backend: str, settings: CompileSettings, folder: Path, *, inputs: Sequence[Any]
) -> Built:
    """Loads a saved cluster and verifies it on real inputs. Raises PluginError with the cause."""
    with given_kept(cluster, backend):
        with kept_state() as changed:
            loaded = load_cluster(cluster, backend, settings, folder)
        start = time.perf_counter()
        verified = verify_cluster(cluster, backend, loaded.executable, inputs, settings.accuracy)
        verify_s = time.perf_counter() - start
    restored = _loaded(cluster, backend, loaded.executable, verified)
    return Built(restored, verified, Saved(is_done=True), verify_s, tuple(changed))


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
    """Verifies an executable. What it raises becomes RunError, what it changes in the process ContractError."""
    with plugin_edge(backend, cluster.name, "run"), kept_state() as changed:
        verified = verify(cluster, backend, executable, inputs, accuracy)
    if changed:
        text = f"the executable changed {', '.join(changed)}"
        raise ContractError(text, backend=backend, cluster=cluster.name)
    return verified


@contextmanager
def given_kept(cluster: Cluster, backend: str) -> Generator[None]:
    """Raises ContractError where a plugin has changed the program or the weights that it was given.

    Eager would be run on the same ones: the comparison would find no difference, and the user's model would be another.
    """
    program = canonical_text(cluster.module)
    weights = {name: _fingerprint(value) for name, value in cluster.constants.items()}
    yield
    if canonical_text(cluster.module) != program:
        raise ContractError("the plugin changed the program that it was given", backend=backend, cluster=cluster.name)
    for name, value in cluster.constants.items():
        if _fingerprint(value) != weights[name]:
            raise ContractError(f"the plugin wrote to the weight {name}", backend=backend, cluster=cluster.name)


def _fingerprint(weight: torch.Tensor) -> tuple[int, int]:
    """Gives the version of a tensor, and the sum of its words: digests would take ten times as long."""
    version = 0 if weight.is_inference() else weight._version
    if weight.layout is not torch.strided:
        return version, 0
    words = weight.detach().contiguous().view(-1).view(_WORDS.get(weight.element_size(), torch.int64))
    return version, int(words.sum(dtype=torch.int64))


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@contextmanager
def plugin_edge(backend: str, cluster: str | None, stage: str) -> Generator[None]:
    """Turns whatever a plugin raises in here into a PluginError that names it and the stage."""
    try:
        yield
    except PluginError as error:
        error.backend = error.backend or backend
        error.cluster = error.cluster or cluster
        raise
    except BaseException as error:
        if not is_plugins(error):
            raise
        kind = RunError if stage == "run" else CompileError
        raise kind(f"{stage} failed: {text_of(error)}", backend=backend, cluster=cluster) from error


def _loaded(cluster: Cluster, backend: str, executable: Callable[..., Any], verified: Verified) -> Loaded:
    return Loaded(cluster, backend, restrided(executable, cluster.outputs, verified.outputs))


def _save(executable: Executable, backend: str, folder: Path, check: Callable[[Path], None]) -> Saved:
    """Saves into a folder that appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        with plugin_edge(backend, None, "save"):
            executable.save(partial)
        check(partial)
        seal(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except (PluginError, CacheError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        return Saved(is_done=False, problem=str(error).splitlines()[0])
    shutil.rmtree(partial, ignore_errors=True)
    return Saved(is_done=True)
