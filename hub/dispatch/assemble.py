"""Combines generated code and executables into the callable that runs a plan."""

from __future__ import annotations

import linecache
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hub.discovery.plugin_fault import is_plugins
from hub.dispatch.check_new_sizes import NewSizes, has_sizes
from hub.dispatch.codegen import Step, generate, local_name
from hub.dispatch.shadow import ReportDrift, Shadowed
from hub.errors import AccuracyError, ContractError, InputRefused, RunError, text_of
from hub.plugin.graph import Cluster, Graph, TensorSpec
from hub.process.accelerators import wait_for
from hub.process.heap import is_lack_of_memory
from hub.process.threads import release_openmp
from hub.verification.finite import FiniteOnly
from hub.verification.standing import UNKNOWN, Standing

Run = Callable[[Sequence[Any]], tuple[Any, ...]]


class Report(Protocol):
    """Callback for an executable's failure, when eager takes over: permanently if `is_final`, else for one call."""

    def __call__(self, backend: str, cluster: str, error: BaseException, /, *, is_final: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A cluster with the callable that runs it."""

    cluster: Cluster
    backend: str
    executable: Callable[..., Sequence[Any]]
    standing: Standing = UNKNOWN
    """Extent of its verification, in this or an earlier process."""
    guard: FiniteOnly | None = None
    """Guard that keeps unusual inputs from it, if it has one."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """Settings for checking the clusters of a plan in shadow mode."""

    share: float
    """Share of live calls to check, from 0 to 1; the first call is always checked."""
    accuracy: float | None = None
    report: ReportDrift | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Settings for checking calls with new combinations of sizes."""

    accuracy: float | None = None
    trusted: Callable[[str], None] | None = None
    """Callback with the name of a cluster that has become trusted."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A runnable plan."""

    run: Run
    source: str
    laps: list[float] = field(default_factory=list)
    """Seconds spent in each step so far; stays empty unless timed."""


def assemble(
    graph: Graph,
    steps: Sequence[Step],
    loaded: Mapping[str, Loaded],
    *,
    original: Callable[..., Any] | None = None,
    report: Report | None = None,
    strict: bool = False,
    timed: bool = False,
    busy_wait: bool = True,
    shadow: Shadow | None = None,
    sizes: Sizes | None = None,
    bodies: Mapping[str, Callable[..., Any]] | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    takes: bool = False,
) -> Assembled:
    """Return the callable for a schedule. `loaded` holds an entry for each step that is not eager.

    Without `busy_wait`, PyTorch's own idle threads are ended before each cluster that computes with others.

    With `shadow`, a share of each cluster's calls is compared with eager; with `sizes`, those with new combinations of
    symbolic sizes are, until the executable is trusted.

    `bodies`, by the attribute that holds each, are called in place of programs that eager operators of the graph call.

    `weights`, by placeholder, are what eager steps read in place of that argument, as clusters do. With `takes`, the
    callable empties a list of arguments, to free each after its last use.

    `original` runs the whole program in eager if inputs overlap in memory in a way that the graph was not captured for.
    """
    released = () if busy_wait else [name for name, item in loaded.items() if not uses_openmp(item.executable)]
    program = generate(graph, steps, timed=timed, weights=weights, takes=takes, released=released)
    laps = [0.0] * len(steps) if timed else []
    namespace: dict[str, Any] = {**program.namespace, "laps": laps, "now": time.perf_counter, "wait_for": wait_for}
    namespace["counts_writes"], namespace["release_openmp"] = _counts_writes, release_openmp
    for node in graph.module.graph.find_nodes(op="get_attr"):
        if bodies and str(node.target) in bodies:
            namespace[local_name(node.name)] = bodies[str(node.target)]
    if graph.mutated:
        namespace |= {"overlaps": _overlap_check(graph), "original": original or graph.module}
    for name, item in loaded.items():
        namespace[name] = _watched(namespace, item, shadow, sizes)
        namespace[f"{name}_failed"] = _fallback(item, report, strict=strict)
    filename = f"<hub {graph.name} {id(namespace):x}>"
    linecache.cache[filename] = (len(program.source), None, program.source.splitlines(keepends=True), filename)
    exec(compile(program.source, filename, "exec"), namespace)
    # The rest of the namespace does not hold `run`, except for checks of new sizes while they last. A plan that is no
    # longer held is therefore freed at once, and not by a later garbage collection.
    run = namespace.pop("run")
    weakref.finalize(run, linecache.cache.pop, filename, None).atexit = False
    return Assembled(run, program.source, laps)


def uses_openmp(executable: Callable[..., Any]) -> bool:
    """Return whether an executable computes with OpenMP's threads; see `Executable`."""
    return bool(getattr(executable, "uses_openmp", False))


def _watched(
    namespace: dict[str, Any], item: Loaded, shadow: Shadow | None, sizes: Sizes | None
) -> Callable[..., Sequence[Any]]:
    executable = _sized(namespace, item, sizes)
    return executable if shadow is None else _shadowed(item, executable, shadow)


def _sized(namespace: dict[str, Any], item: Loaded, sizes: Sizes | None) -> Callable[..., Sequence[Any]]:
    if sizes is None or item.standing.is_sure_of_sizes or not has_sizes(item.cluster):
        return item.executable
    name = item.cluster.name

    def trusted() -> None:
        callee = namespace[name]
        if callee is watched:
            namespace[name] = item.executable
        elif isinstance(callee, Shadowed) and callee.executable is watched:
            callee.executable = item.executable
        else:  # it failed
            return
        if sizes.trusted is not None:
            sizes.trusted(name)

    watched = NewSizes(item.cluster, item.backend, item.executable, accuracy=sizes.accuracy, trusted=trusted)
    return watched


def fail_from_now_on(run: Run, name: str, error: BaseException) -> None:
    """Make the next call of a running plan's cluster raise an error, handled like any failure while the model runs."""

    def failing(*_: Any) -> Sequence[Any]:
        raise error

    run.__globals__[name] = failing


def lift_guard(run: Run | None, name: str, guard: FiniteOnly) -> None:
    """Let a running plan's executable take unusual inputs: it was found right on them elsewhere."""
    guard.lift()
    if run is not None and run.__globals__.get(name) is guard:
        run.__globals__[name] = guard.executable  # spares each call a frame


def trust_sizes(run: Run, name: str) -> None:
    """Let a running plan's executable run all sizes: enough combinations of them were right elsewhere."""
    callee = run.__globals__.get(name)
    watched = callee.executable if isinstance(callee, Shadowed) else callee
    if isinstance(watched, NewSizes):
        watched.trust()


def _shadowed(item: Loaded, executable: Callable[..., Sequence[Any]], shadow: Shadow) -> Shadowed:
    return Shadowed(
        item.cluster,
        item.backend,
        executable,
        share=shadow.share,
        accuracy=shadow.accuracy,
        report=shadow.report,
    )


def _fallback(item: Loaded, report: Report | None, *, strict: bool) -> Callable[..., Sequence[Any]]:
    name = item.cluster.name

    def failed(
        namespace: dict[str, Any], error: BaseException, versions: tuple[int, ...] | bool, *inputs: Any
    ) -> Sequence[Any]:
        if _is_recording() and not isinstance(error, InputRefused):
            raise error  # the backend is not at fault for what a CUDA graph cannot hold, and eager could not go on either
        if _has_no_versions(error):
            # Tensors made in inference mode came from outside of it. Do not read versions again: each read would raise.
            namespace["counts_writes"] = lambda: False
            versions = False
            try:
                return namespace[name](*inputs)
            except BaseException as raised:  # noqa: BLE001 - handled as if the generated code had raised it
                error = raised
        if not is_plugins(error):
            raise error
        if written := _written(item.cluster, versions, inputs):
            error = _spoilt(item, written, error)
        outputs = () if written else item.cluster.module(*inputs)  # if eager raises too, the error is the call's own
        if strict and isinstance(error, (AccuracyError, ContractError)):
            raise error
        if strict:
            raise RunError(
                f"the executable failed: {text_of(error)}",
                backend=item.backend,
                cluster=name,
                hint="without strict=True the cluster runs in eager",
            ) from error
        is_final = bool(written) or not _is_about_one_call(item.cluster, error, inputs)
        if is_final:
            namespace[name] = item.cluster.module
        if report is not None:
            report(item.backend, name, error, is_final=is_final)
        if written:
            raise error  # eager's result would be wrong
        return outputs

    return failed


def _is_recording() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _counts_writes() -> bool:
    """Return whether PyTorch counts writes to new tensors, `tensor._version`: not in inference mode."""
    return not torch.is_inference_mode_enabled()


def _has_no_versions(error: BaseException) -> bool:
    """Return True for the error from reading the version of a tensor that was made in inference mode."""
    return isinstance(error, RuntimeError) and "do not track version counter" in text_of(error)


def _written(cluster: Cluster, versions: tuple[int, ...] | bool, inputs: Sequence[Any]) -> str:
    """Return the first input that was written to since its version was read; "" if there is none or no version was read.

    Writes that bypass PyTorch, directly to memory, are not counted.
    """
    tensors = [(name, value) for name, value in zip(cluster.input_names, inputs, strict=True) if _is_counted(value)]
    if isinstance(versions, bool) or len(versions) != len(tensors):
        return ""
    return next((name for (name, value), was in zip(tensors, versions, strict=True) if value._version != was), "")


def _is_counted(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _spoilt(item: Loaded, name: str, error: BaseException) -> ContractError:
    """Return the error of a call that eager cannot repeat, because its inputs have changed."""
    spoilt = ContractError(
        f"the executable wrote to its input {name} before it failed, and eager cannot repeat the call: {text_of(error)}",
        backend=item.backend,
        cluster=item.cluster.name,
        hint="repeat the call with fresh inputs: the cluster runs in eager from now on",
    )
    spoilt.__cause__ = error
    return spoilt


def _is_about_one_call(cluster: Cluster, error: BaseException, inputs: Sequence[Any]) -> bool:
    """Return whether an executable is still good: it refused these values, was not made for them, or there was no memory.

    Some of eager's kernels return other dtypes than fake tensors announce, and no executable is at fault for these.

    Memory is shared with the rest of the machine, and a verdict would disable the backend because of another program's
    peak. An executable that always needs too much costs time in every call, but no result. A plugin may also raise its own
    error from the cause.
    """
    if isinstance(error, InputRefused) or any(map(is_lack_of_memory, (error, error.__cause__))):
        return True
    given = zip(cluster.inputs, inputs, strict=True)
    return any(isinstance(spec, TensorSpec) and value.dtype != spec.dtype for spec, value in given)


def _overlap_check(graph: Graph) -> Callable[[Sequence[Any]], bool]:
    """Return a function that checks whether an input that is written to shares memory with another input."""
    position_of = {node.name: position for position, node in enumerate(graph.placeholders)}
    written = tuple(position_of[name] for name in graph.mutated)

    def overlaps(args: Sequence[Any]) -> bool:
        storages = [
            value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and value.numel() else None
            for value in args
        ]
        for position in written:
            if storages[position] is not None and storages.count(storages[position]) > 1:
                same = (at for at, storage in enumerate(storages) if storage == storages[position] and at != position)
                if any(_meet(args[position], args[at]) for at in same):
                    return True
        return False

    return overlaps


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one storage may share elements: whether the ranges of their bytes do.

    Two caches are often halves of one allocation. Tensors that alternate in memory (columns) count as sharing.
    """
    return one.data_ptr() < _end(other) and other.data_ptr() < _end(one)


def _end(value: torch.Tensor) -> int:
    """Return the address after the last element of a tensor that has elements."""
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr() + (reach + 1) * value.element_size()
