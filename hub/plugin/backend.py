"""The contract every plugin fulfils: `BackendInfo` announces, `Backend` decides and compiles, `Executable` runs.

Subclass `Backend` and `Executable`: methods with a body here are optional. A plugin is not trusted: each call below is
wrapped, and whatever it raises costs the cluster at hand and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hub.errors import CompileError
from hub.plugin.table import ACCEPTED, Support

if TYPE_CHECKING:
    import torch
    from torch import fx

    from hub.plugin.cost import Cost
    from hub.plugin.graph import Cluster

API_VERSION = (2, 0)
"""Version of this contract. A plugin built for another major version is refused by name, with both versions."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a plugin says about a backend at registration, before anything heavy is imported."""

    name: str
    """Short lower-case name, as users write it in options; equals the last word of the plugin's package."""
    factory: str
    """"package.module:callable"; called without arguments, once, when the backend is first wanted; gives a `Backend`."""
    summary: str
    requires: tuple[str, ...] = ()
    """Requirements on distributions of the library under it ("onnxruntime>=1.20"); the first one's version is reported."""
    install: str = ""
    """The pip command that mends a missing requirement."""
    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = ("float32",)
    operators: str = ""
    """"package.module:TABLE", an `OperatorTable` importable without torch; empty means any ATen operator."""
    dynamic_shapes: bool = False
    training: bool = False
    saveable: bool = False
    """True where `Executable.save` and `Backend.load` work, so that executables cross processes and live in the cache."""
    tunes: bool = False
    """True where `Backend.tune` searches for faster code."""
    explains: bool = False
    """True where `Backend.explain` has something to tell."""
    settings: str = ""
    """"package.module:Settings", a `BackendSettings` importable without torch. The factory is then called with an instance
    of it, once for each that differs; empty means that the backend has nothing to set."""
    error_class: float = 0.0
    """Largest max|error| / max|reference| beyond float32 eager's own that it may introduce; 0 means as exact as float32."""
    saturates: bool = False
    """True where the user accepts that values beyond the range of its numbers are cut off, infinities and NaN made finite.
    Its results then count on real inputs only: generated ones may lie outside that range."""
    peers: Mapping[str, str] = field(default_factory=dict[str, str])
    """For `hub bench`: name -> "package.module:callable". The callable takes (module, inputs) and gives a callable of no
    arguments that runs the model once through the library's own API, not through the hub."""
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes that a plugin would like to have as one cluster. It is priced like any other candidate."""

    backend: str
    nodes: tuple[str, ...]
    """Names in the graph, in any order; a tuple's elements come along with the node that makes the tuple."""
    name: str = ""
    """What it is, for messages: "fused attention"."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """What the hub asks of one compilation."""

    threads: int
    """Threads the executable may use in one call."""
    spin: bool = False
    """True where its thread pool may spin between calls: only where it is the whole plan."""
    accuracy: float | None = None
    """Largest allowed max|error| / max|reference|; None means as exact as float32 eager: no bf16, tf32 or fast math."""
    effort: str = "fast"
    """"fast" or "full": how long the compiler may search for a better program."""


class Executable(Protocol):
    """A compiled cluster. May be called from several threads at once."""

    @abstractmethod
    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. On the hot path.

        `inputs` follow `cluster.inputs`: tensors of any stride (never to be written to), or plain ints, floats and bools.
        Return new tensors in the order of `cluster.outputs`, with their shape, dtype and device, that alias neither inputs
        nor memory that a later call writes. Raises InputRefused for values that it cannot compute faithfully: eager then
        runs this call, and the next one comes here again. Whatever else it raises ends its use.
        """
        ...

    def save(self, folder: Path) -> None:  # noqa: ARG002 - for overriding methods
        """Write files from which `Backend.load` restores the executable. Called at most once, in the compiling process."""
        raise CompileError("this executable cannot be saved")

    def dump(self, folder: Path) -> None:
        """Write whatever helps a person debug: the program received, the program lowered to, sources, logs."""


class Backend(Protocol):
    """A compiler or runtime that can execute clusters. Created once a process; methods may be called from any thread."""

    def probe(self) -> Support:
        """Run a real one-operator program and say whether the backend works here. Called in a child process.

        A reason beside an acceptance is shown to people as a note.
        """
        return ACCEPTED

    @abstractmethod
    def supports(self, node: fx.Node) -> Support:
        """Return whether it takes a call_function node, from `node.target`, its arguments, and `meta["val"]` of its inputs.

        Called once for each node while planning; must not touch the device.
        """
        ...

    def keeps_order(self, node: fx.Node) -> bool:  # noqa: ARG002 - for overriding methods
        """Return whether the results of a node that it takes have eager's own order of equal elements, on any finite input.

        Asked of operators for which PyTorch leaves that order open (`topk`, `sort`, places in a pool), where something
        reads it; see `hub.verification.ties`. False, the default, leaves such a node to others. Must not touch the device.
        """
        return False

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost | None:  # noqa: ARG002 - for overriding methods
        """Predict one warm call, without compiling. None means "cannot say" and the hub uses its own roofline."""
        return None

    def explain(self, cluster: Cluster, settings: CompileSettings, inputs: Sequence[Any]) -> str:  # noqa: ARG002 - as above
        """Tell people, in lines, what only the backend knows of a cluster that a plan gives it: "" where that is nothing.

        Called by `hub explain` alone, once for each such cluster, on the cluster's real inputs. May use the device.
        """
        return ""

    def tune(
        self,
        clusters: Sequence[Cluster],  # noqa: ARG002 - for overriding methods
        settings: CompileSettings,  # noqa: ARG002 - as above
        budget_s: float,  # noqa: ARG002 - as above
        say: Callable[[str], None],  # noqa: ARG002 - as above
    ) -> str:
        """Search for faster code for clusters of one model, for about `budget_s`, and return in a line what it found.

        Called by `hub tune` alone, before it plans, and only where `BackendInfo.tunes` is set. What is found is kept as it
        is found, where `compile` looks for it and `BackendSettings.state` shows it: the call may end by Ctrl-C at any time,
        and the next one goes on from there. `say` is told of each step, with the best so far. May use the device.
        """
        return ""

    @abstractmethod
    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Compile a cluster all of whose nodes it supports. Raises CompileError with the reason if it cannot."""
        ...

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:  # noqa: ARG002 - as above
        """Restore what `Executable.save` wrote, for an equal cluster and equal settings."""
        raise CompileError("this backend cannot load saved executables")
