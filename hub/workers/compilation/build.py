"""Compilation and loading of one cluster: the boundary where a plugin's exceptions become the hub's."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hub.cache.artifacts import Saved, check_size, renew_seal, save_artifact, seal_of
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.registry import Registry
from hub.dispatch.assemble import Loaded
from hub.dispatch.strides import restrided
from hub.errors import CompileError, ContractError, InputRefused, PluginError, RunError, text_of, type_of
from hub.plan import Stage
from hub.plugin.backend import CompileSettings, Executable, overrides
from hub.plugin.canonical import as_bytes, canonical_text
from hub.plugin.graph import Cluster
from hub.process.leftovers import MANY_LEFT, leftovers, more
from hub.process.phases import Phases, Work
from hub.process.state import kept_state
from hub.verification.compare import Judge
from hub.verification.endurance import Leisure
from hub.verification.fingerprint import Fingerprint
from hub.verification.finite import finite_only
from hub.verification.reference import Reference
from hub.verification.standing import Standing
from hub.verification.verify import Trial, Verified, recognized, verify, verify_thoroughly
from hub.workers.compilation.report import UNREPORTED, Report

VERIFY_SHARE = 0.1
"""Share of the compile time that may be spent on generated inputs."""
MIN_VERIFY_S = 0.2
_FINITE_ONLY = "finite_only"
_CHANGES = "changes"
_SURE = "is_sure_of_sizes"


@dataclass(frozen=True, slots=True)
class Built:
    """A cluster just compiled or loaded, and verified."""

    loaded: Loaded
    report: Report


def build_cluster(
    cluster: Cluster,
    backend: str,
    settings: CompileSettings,
    *,
    inputs: Sequence[Any],
    registry: Registry,
    folder: Path | None = None,
    known: Report | None = None,
    is_alone: bool = False,
    most_saved_bytes: int | None = None,
) -> Built:
    """Compile and verify a cluster; save it to `folder` if given and possible.

    It is verified on real and on generated inputs; if a worker already did so and its report is `known`, on real ones
    only. What was saved is loaded back and verified as well before other processes can see it, unless it exceeds
    `most_saved_bytes`. `is_alone` means that nothing else runs in this process, so anything left behind by running it is
    the plugin's. Raises PluginError.
    """
    phases = Phases()
    with given_kept(cluster, backend):
        start = time.perf_counter()
        with kept_state() as changed, phases.during(Work.COMPILE, backend):
            executable = compile_cluster(cluster, backend, settings, registry)
        compiled_s = time.perf_counter()
        budget_s = max(MIN_VERIFY_S, VERIFY_SHARE * (compiled_s - start)) if known is None else None
        saturates = registry.entries[backend].info.saturates
        before = leftovers()
        with phases.during(Work.VERIFY, backend):
            verified = verify_cluster(
                cluster, backend, executable, inputs, settings.accuracy, budget_s=budget_s, saturates=saturates
            )
        if is_alone and (left := more(before, MANY_LEFT)):
            raise ContractError(f"running it leaves {left} behind", backend=backend, cluster=cluster.name)
        verify_s = time.perf_counter() - compiled_s
    is_guarded = verified.is_finite_only if known is None else known.is_finite_only
    standing = Standing(verified.untried, verified.differs) if known is None else known.standing
    may_be_saved = overrides(registry.backend(backend), "load")

    again = UNREPORTED

    def check(saved: Path) -> None:
        nonlocal again
        check_size(saved, most_saved_bytes)
        again = load_and_verify(
            cluster, backend, settings, saved, inputs=inputs, registry=registry, reference=verified.reference
        ).report
        about[_CHANGES] = list(dict.fromkeys((*changed, *again.changed)))

    about: dict[str, Any] = {_FINITE_ONLY: is_guarded, _CHANGES: changed, **standing.facts}
    saved = Saved(is_done=False)
    if may_be_saved and folder is not None:
        with kept_state() as changed_by_saving, phases.during(Work.SAVE, backend):
            saved = _save(executable, cluster, backend, folder, check, about)
        changed = list(dict.fromkeys((*changed, *changed_by_saving, *again.changed)))
    loaded = _guarded(cluster, backend, executable, standing, is_finite_only=is_guarded)
    report = Report(
        compile_s=time.perf_counter() - start,
        verify_s=verify_s,
        may_be_saved=may_be_saved,
        is_saved=saved.is_done,
        problem=saved.problem,
        is_finite_only=is_guarded,
        notes=verified.notes,
        changed=tuple(changed),
        fingerprint=again.fingerprint,
        standing=standing,
        phases=(*phases.found, *again.phases),
    )
    return Built(_restrided(loaded, verified), report)


def load_cluster(cluster: Cluster, backend: str, settings: CompileSettings, folder: Path, registry: Registry) -> Loaded:
    """Load a saved cluster, without verification. Raises PluginError with the cause."""
    with plugin_edge(backend, cluster.name, "load"):
        executable = registry.backend(backend).load(folder, cluster, settings)
    about = seal_of(folder).get("about", {})
    return _guarded(cluster, backend, executable, Standing.of(about), is_finite_only=bool(about.get(_FINITE_ONLY)))


def changes_of(folder: Path) -> tuple[str, ...]:
    """Return what compiling or loading a saved cluster changed in the process of the worker that first did so."""
    return tuple(seal_of(folder).get("about", {}).get(_CHANGES, ()))


def load_and_verify(
    cluster: Cluster,
    backend: str,
    settings: CompileSettings,
    folder: Path,
    *,
    inputs: Sequence[Any],
    registry: Registry,
    reference: Reference | None = None,
    fingerprint: Fingerprint | None = None,
) -> Built:
    """Load a saved cluster and verify it on real inputs. Raises PluginError with the cause.

    `reference` is eager's result on these inputs, if this process computed it before it saved the cluster; the report then
    has a fingerprint. `fingerprint` is the executable's result on them in the process that saved it.
    """
    phases = Phases()
    with given_kept(cluster, backend):
        with kept_state() as changed, phases.during(Work.LOAD, backend):
            loaded = load_cluster(cluster, backend, settings, folder, registry)
        start = time.perf_counter()
        with phases.during(Work.VERIFY, backend):
            verified = verify_cluster(
                cluster, backend, loaded.executable, inputs, settings.accuracy, reference=reference, fingerprint=fingerprint
            )
        verify_s = time.perf_counter() - start
    report = Report(
        verify_s=verify_s,
        is_saved=True,
        is_finite_only=loaded.guard is not None,
        changed=tuple(changed),
        fingerprint=None if reference is None else verified.fingerprint,
        standing=loaded.standing,
        phases=phases.found,
    )
    return Built(_restrided(loaded, verified), report)


def compile_cluster(cluster: Cluster, backend: str, settings: CompileSettings, registry: Registry) -> Executable:
    """Compile a cluster. Raises PluginError with the cause."""
    with plugin_edge(backend, cluster.name, "compile"):
        executable = registry.backend(backend).compile(cluster, settings)
    if not callable(executable):
        raise CompileError(
            f"compile() returned {type_of(executable)}, which is not callable",
            backend=backend,
            cluster=cluster.name,
        )
    return executable


def verify_cluster(
    cluster: Cluster,
    backend: str,
    executable: Callable[..., Any],
    inputs: Sequence[Any],
    accuracy: float | None,
    *,
    budget_s: float | None = None,
    saturates: bool = False,
    reference: Reference | None = None,
    fingerprint: Fingerprint | None = None,
) -> Verified:
    """Verify an executable on real inputs, and with `budget_s` on generated ones too.

    With a `fingerprint`, its result on these inputs in an earlier process, eager runs only if it does not reproduce that.
    Raises RunError for anything that it raises while running, and ContractError if it changes process state. Raises
    InputRefused if eager raises on these inputs as well: they are at fault.
    """
    executable = _watched(executable, backend, cluster.name)
    with _at_fault(cluster, backend, inputs), running(backend, cluster.name):
        if fingerprint is not None and (known := recognized(cluster, backend, executable, inputs, fingerprint)):
            return known
        if budget_s is None:
            return verify(cluster, backend, executable, inputs, accuracy, reference=reference)
        return verify_thoroughly(cluster, backend, executable, inputs, accuracy, budget_s=budget_s, saturates=saturates)


@contextmanager
def _at_fault(cluster: Cluster, backend: str, inputs: Sequence[Any]) -> Generator[None]:
    """Turn RunError into InputRefused where eager raises on the same inputs."""
    try:
        yield
    except InputRefused:
        raise
    except RunError as error:
        try:
            cluster.module(*inputs)
        except Exception as own:  # noqa: BLE001 - whatever the program raises
            text = f"eager raises on these inputs, too: {text_of(own)}"
            raise InputRefused(text, backend=backend, cluster=cluster.name) from error
        raise


def leisure_of(
    cluster: Cluster,
    backend: str,
    settings: CompileSettings,
    folder: Path | None,
    inputs: Sequence[Any],
    registry: Registry,
) -> Leisure:
    """Return the verifier of an executable, saved or recompiled, for the time after the first answer. Raises PluginError.

    The executable runs without its guard. Even in the first call, a change of process state is an error.
    """
    with kept_state():  # its changes were reported when it was compiled or loaded for the first answer
        if folder is None:
            executable: Callable[..., Any] = compile_cluster(cluster, backend, settings, registry)
        else:
            with plugin_edge(backend, cluster.name, "load"):
                executable = registry.backend(backend).load(folder, cluster, settings)
    judge, watched = Judge.of(cluster, backend, settings.accuracy), _watched(executable, backend, cluster.name)
    saturates = registry.entries[backend].info.saturates
    return Leisure(Trial(judge, watched, tuple(inputs), saturates=saturates, may_guard=True))


def _watched(executable: Callable[..., Any], backend: str, cluster: str) -> Callable[..., Any]:
    """Return an executable that raises PluginError for whatever it raises.

    The state of the process is compared after the first call, since the changes of two calls may cancel out.
    """
    edge = running

    def call(*inputs: Any) -> Any:
        nonlocal edge
        kept, edge = edge, _raising
        with kept(backend, cluster):
            return executable(*inputs)

    return call


def _raising(backend: str, cluster: str) -> AbstractContextManager[None]:
    return plugin_edge(backend, cluster, "run")


@contextmanager
def running(backend: str, cluster: str) -> Generator[None]:
    """Turn what an executable raises into RunError. Raises ContractError if it changes process state."""
    with plugin_edge(backend, cluster, "run"), kept_state() as changed:
        yield
    if changed:
        raise ContractError(f"the executable changed {', '.join(changed)}", backend=backend, cluster=cluster)


@contextmanager
def given_kept(cluster: Cluster, backend: str) -> Generator[None]:
    """Raise ContractError if a plugin changed the program or the weights that it was given.

    Eager would run on the same ones: the comparison would find no difference, but the user's model would be changed.
    """
    program = canonical_text(cluster.module)
    weights = {name: _fingerprint(value) for name, value in cluster.constants.items()}
    failure: PluginError | None = None
    try:
        yield
    except PluginError as error:
        failure = error  # such as wrong numbers, which this change may have caused
    text = _what_changed(cluster, program, weights)
    if text:
        raise ContractError(text, backend=backend, cluster=cluster.name) from failure
    if failure is not None:
        raise failure


def _what_changed(cluster: Cluster, program: str, weights: Mapping[str, tuple[int, ...]]) -> str:
    if canonical_text(cluster.module) != program:
        return "the plugin changed the program that it was given"
    changed = (name for name, value in cluster.constants.items() if _fingerprint(value) != weights[name])
    name = next(changed, None)
    return "" if name is None else f"the plugin wrote to the weight {name}"


def _fingerprint(weight: torch.Tensor) -> tuple[int, ...]:
    """Return the version of a tensor and a checksum of its bytes, in which their order counts.

    On an accelerator these are sums of every seventh byte, which need no transfer.
    """
    version = 0 if weight.is_inference() else weight._version
    if weight.layout is not torch.strided:
        return (version,)
    data = as_bytes(weight.detach().resolve_neg().resolve_conj())
    if data.device.type == "cpu":
        return version, zlib.crc32(data.numpy().data)
    return version, *(int(data[start::7].sum(dtype=torch.int64)) for start in range(7))


@contextmanager
def plugin_edge(backend: str, cluster: str | None, stage: str) -> Generator[None]:
    """Turn anything a plugin raises in this context into a PluginError that names the plugin and the stage."""
    try:
        yield
    except PluginError as error:
        error.backend = error.backend or backend
        error.cluster = error.cluster or cluster
        raise
    except BaseException as error:
        if not is_plugins(error):
            raise
        kind = RunError if Stage(stage) is Stage.RUN else CompileError
        raise kind(f"{stage} failed: {text_of(error)}", backend=backend, cluster=cluster) from error


def _restrided(loaded: Loaded, verified: Verified) -> Loaded:
    return replace(loaded, executable=restrided(loaded.executable, verified.outputs, verified.strides))


def _guarded(
    cluster: Cluster, backend: str, executable: Callable[..., Any], standing: Standing, *, is_finite_only: bool
) -> Loaded:
    if not is_finite_only:
        return Loaded(cluster, backend, executable, standing)
    guard = finite_only(executable, cluster.inputs)
    return Loaded(cluster, backend, guard, standing, guard)


def note_later(folder: Path, standing: Standing, *, is_finite_only: bool) -> None:
    """Write what was found after the first answer into a saved executable's seal. Raises nothing."""
    facts = {name: value for name, value in standing.facts.items() if name != _SURE}
    renew_seal(folder, {**facts, _FINITE_ONLY: is_finite_only})


def note_sure_of_sizes(folder: Path) -> None:
    """Write into a saved executable's seal that it was right at enough sizes to be trusted. Raises nothing."""
    renew_seal(folder, {_SURE: True})


def _save(
    executable: Executable,
    cluster: Cluster,
    backend: str,
    folder: Path,
    check: Callable[[Path], None],
    about: dict[str, Any],
) -> Saved:
    """Save an executable and check it. `about` is sealed with it; `check` may add to it."""

    def write(partial: Path) -> None:
        with plugin_edge(backend, None, "save"):
            executable.save(partial)
        check(partial)

    operators = Counter(str(node.target) for node in cluster.nodes)
    about |= {"operators": operators.most_common(), "inputs": list(map(str, cluster.inputs))}
    return save_artifact(folder, write, about)
