"""The contract every plugin fulfils: `BackendInfo` announces, `Backend` decides and compiles, `Executable` runs.

Subclass `Backend` and `Executable`: methods with a body here are optional. A plugin is not trusted: each call below is
guarded, and an exception costs the backend the current cluster and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hub.errors import CompileError
from hub.plugin.table import OperatorTable, Support

if TYPE_CHECKING:
    import torch
    from torch import fx

    from hub.plugin.cost import Cost
    from hub.plugin.graph import Cluster, Graph

OUTSIDE = "outside the clusters that its partitioner chose"
"""Reason for refusing a node that a backend which partitions graphs itself left out."""
API_VERSION = (2, 0)
"""Version of this contract. A plugin built for another major version is refused by name, with both versions."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A plugin's description of a backend at registration, before anything heavy is imported."""

    name: str
    """Short lower-case name, as users write it in options; equals the last word of the plugin's package."""
    factory: str
    """"package.module:callable". Called once without arguments, when the backend is first needed; returns a `Backend`."""
    summary: str
    requires: tuple[str, ...] = ()
    """Required distributions of the library that it uses ("onnxruntime>=1.20"); the first one's version is reported."""
    install: str = ""
    """The pip command that installs a missing requirement."""
    devices: tuple[str, ...] = ("cpu",)
    never_ran_on: tuple[str, ...] = ()
    """Devices that it supports by its code alone, in words for users ("a CUDA GPU"): it has never run on one."""
    dtypes: tuple[str, ...] = ("float32",)
    operators: str = ""
    """"package.module:TABLE", an `OperatorTable` importable without torch; empty means any ATen operator."""
    dynamic_shapes: bool = False
    training: bool = False
    settings: str = ""
    """"package.module:Settings", a `BackendSettings` importable without torch. The factory is then called with an instance
    of it, once for each distinct instance. Empty means that the backend has no settings."""
    max_relative_error: float = 0.0
    """Largest max|error| / max|reference| that it may add to float32 eager's own; 0 means as exact as float32."""
    saturates: bool = False
    """True if the user accepts that values beyond the range of its numbers are clipped, and infinities and NaN made finite.
    Its results are then checked on real inputs only, because generated inputs may lie outside that range."""
    peers: Mapping[str, str] = field(default_factory=dict[str, str])
    """For `hub bench`: name -> "package.module:callable". The callable takes (module, inputs) and returns a callable of no
    arguments that runs the model once through the library's own API, not through the hub."""
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes that a plugin wants as one cluster. It is priced like any other candidate."""

    backend: str
    nodes: tuple[str, ...]
    """Names in the graph, in any order; a tuple's elements are included with the node that makes the tuple."""
    name: str = ""
    """Short description for messages: "fused attention"."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """The hub's settings for one compilation."""

    threads: int
    """Threads the executable may use in one call."""
    busy_wait: bool = False
    """True if its thread pool may busy-wait between calls, which only an executable that is the whole plan may do."""
    accuracy: float | None = None
    """Largest allowed max|error| / max|reference|; None means as exact as float32 eager: no bf16, tf32 or fast math."""
    effort: str = "fast"
    """"fast" or "full": how long the compiler may search for a better program."""


def compile_failure(backend: str, cluster: Cluster, what: str, error: Exception | str) -> CompileError:
    """Return the error of a cluster that could not be compiled or loaded: "XLA cannot compile it: ValueError: ..."

    `what` is the beginning, "XLA cannot compile it". An exception's text is cut at 2,000 characters; a str stands as it is.
    """
    said = error if isinstance(error, str) else f"{type(error).__name__}: {str(error)[:2000]}"
    return CompileError(
        f"{what}: {said}",
        backend=backend,
        cluster=cluster.name,
        hint="`debug_dir` keeps the cluster's program",
    )


class Executable(ABC):
    """A compiled cluster. May be called from several threads at once."""

    uses_openmp: ClassVar[bool] = False
    """True if it computes with the OpenMP threads of the calling thread, as eager does.

    In a plan of several backends these are released before an executable that does not: they would busy-wait on its cores.
    """

    @abstractmethod
    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. This is the hot path.

        `inputs` follow `cluster.inputs`: tensors of any stride, which must not be written to, or plain ints, floats and
        bools. Return new tensors in the order of `cluster.outputs`, with their shape, dtype and device. They must alias
        neither the inputs nor memory that a later call writes. Raise InputRefused for values that it cannot compute
        faithfully: eager runs that call, and the executable gets the next one again. Any other exception disables the
        executable, unless an input has another dtype than `cluster.inputs` say, as after some of eager's kernels.
        """
        ...

    def save(self, folder: Path) -> None:  # noqa: ARG002 - for overriding methods
        """Write files from which `Backend.load` restores the executable. Called at most once, in the compiling process."""
        raise CompileError("this executable cannot be saved")

    def dump(self, folder: Path) -> None:  # noqa: B027 - optional
        """Write files for debugging: the program received, the program lowered to, sources, logs."""


class Backend(ABC):
    """A compiler or runtime that can execute clusters. Created once per process; methods may be called from any thread."""

    operators: OperatorTable | None = None
    """The table that `supports` looks nodes up in; by default, the one that `BackendInfo.operators` names."""

    def probe(self) -> Support:
        """Run a real one-operator program and return whether the backend works here. Called in a child process.

        A reason given with an acceptance is shown to the user as a note. By default x + x is compiled and run on the CPU,
        if the backend supports that.
        """
        from hub.plugin.probing import run_addition  # it imports torch, and listing backends does without

        return run_addition(self)

    def supports(self, node: fx.Node) -> Support:
        """Return whether it supports a call_function node: its `node.target`, arguments and `meta["val"]` of its inputs.

        Called once for each node while planning; must not touch the device. By default the table `operators` answers.
        """
        if self.operators is None:
            raise NotImplementedError(f"{type(self).__name__} has neither a table `operators` nor a method `supports`")
        return self.operators.supports(node)

    def partition(self, graph: Graph) -> Iterable[Sequence[str]] | None:  # noqa: ARG002 - for overriding methods
        """Return the clusters of a graph that it would compile, each as names of nodes; None to be asked node by node.

        For compilers with a partitioner of their own, which know only of whole clusters what they can compile. Called once
        for each graph while planning; must neither change `graph` nor touch the device. Each cluster is a candidate that is
        neither split nor merged, and that competes by its price. All other nodes are refused. A cluster that cannot be used
        is dropped, with the reason in the plan's events: one that shares nodes with an earlier one, that a path leaves and
        comes back to, or that has nodes that only eager may run (`graph.pinned`). By default, None.
        """
        return None

    def keeps_order(self, node: fx.Node) -> bool:  # noqa: ARG002 - for overriding methods
        """Return whether a node that it supports orders equal elements exactly as eager does, on any finite input.

        Called for operators whose order of equal elements PyTorch leaves undefined (`topk`, `sort`, indices of a pool), if
        the graph reads that order; see `hub.verification.ties`. With False, the default, the node goes to another backend
        or to eager. Must not touch the device.
        """
        return False

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost | None:  # noqa: ARG002 - for overriding methods
        """Predict the cost of one warm call, without compiling.

        None means "unknown": the hub then uses its own roofline.
        """
        return None

    def explain(self, cluster: Cluster, settings: CompileSettings, inputs: Sequence[Any]) -> str:  # noqa: ARG002 - as above
        """Return lines on a planned cluster that only the backend can provide, or "" if there are none.

        Called only by `hub explain`, once for each such cluster, on the cluster's real inputs. May use the device.
        """
        return ""

    def tune(
        self,
        clusters: Sequence[Cluster],  # noqa: ARG002 - for overriding methods
        settings: CompileSettings,  # noqa: ARG002 - as above
        budget_s: float,  # noqa: ARG002 - as above
        say: Callable[[str], None],  # noqa: ARG002 - as above
    ) -> str:
        """Search for faster code for clusters of one model, for about `budget_s`, and return a one-line summary.

        Called only by `hub tune`, before it plans. Keep each result as soon as it is found, where `compile` looks for it
        and `BackendSettings.state` reflects it: Ctrl-C may end the call at any time, and the next call continues from
        there. Call `say` at each step, with the best result so far. May use the device.
        """
        return ""

    @abstractmethod
    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Compile a cluster all of whose nodes it supports. Raise CompileError with the reason if it cannot."""
        ...

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:  # noqa: ARG002 - as above
        """Restore what `Executable.save` wrote, for an equal cluster and equal settings.

        A backend that overrides it has executables that cross processes and are cached; without it, none is saved. An
        executable that cannot be saved nevertheless raises CompileError when asked to.
        """
        raise CompileError("this backend cannot load saved executables")


def overrides(backend: object, method: str) -> bool:
    """Return whether a backend's class has an optional method of its own: what it can do follows from that alone."""
    own = getattr(type(backend), method, None)
    return own is not None and own is not getattr(Backend, method)


def abilities(backend: object) -> frozenset[str]:
    """Return the optional methods by which backends differ in what can be asked of them, as far as this one has them."""
    return frozenset(name for name in ("estimate", "explain", "load", "partition", "tune") if overrides(backend, name))
