"""The Inductor backend: one cluster becomes one Inductor program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from hub.plugin import (
    Backend,
    Cluster,
    CompileError,
    CompileSettings,
    Support,
    TensorSpec,
    refused,
)
from plugin_inductor import stored
from plugin_inductor.compiler import build, compiling, environment_kept
from plugin_inductor.folders import trusted_place
from plugin_inductor.lower import lower
from plugin_inductor.runtime import InductorExecutable
from plugin_inductor.support import keeps_order, supports
from plugin_inductor.torch_private import FakeTensorMode

if TYPE_CHECKING:
    from hub.plugin import Executable

_NEEDS_COMPILER = "install a C++ compiler (`apt-get install g++`), or name one in the environment variable CXX"


class InductorBackend(Backend):
    """The backend that compiles clusters with the graph compiler inside PyTorch."""

    def probe(self) -> Support:
        """Compile and run `relu` on four numbers. If Inductor's own cache folder is not used, the result has the reason."""
        cluster = relu_cluster()
        try:
            place = trusted_place()
            found: Any  # torch's stub does not type the elements of lists
            (found,) = self.compile(cluster, CompileSettings(threads=1))(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
        except Exception as error:  # noqa: BLE001 - any exception is the answer to the probe
            return refused(str(error))
        if found.tolist() != [0.0, 0.0, 1.0, 2.0]:
            return refused(f"relu gave {found.tolist()}")
        return Support(accepted=True, reason=place.problem)

    def supports(self, node: fx.Node) -> Support:
        """Return whether Inductor supports a node; see `plugin_inductor.support`."""
        return supports(node)

    def keeps_order(self, node: fx.Node) -> bool:
        """Return whether equal elements keep eager's order; see `plugin_inductor.support`."""
        return keeps_order(node)

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Compile a cluster. Raise CompileError with Inductor's reason, and with the remedy if one is known."""
        try:
            with compiling(settings, has_weights=bool(cluster.constants)):
                program = build(lower(cluster))
        except CompileError:
            raise
        except Exception as error:
            raise _failure(error, cluster) from error
        return InductorExecutable(cluster, settings, program)

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Restore a program with the cluster's own weights, without compiling C++. Raise CompileError with the reason."""
        try:
            with environment_kept():
                program = stored.load(folder, [weight.detach() for weight in cluster.constants.values()])
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(f"cannot load {folder}: {error}", backend="inductor", cluster=cluster.name) from error
        return InductorExecutable(cluster, settings, program)


def create() -> InductorBackend:
    """Return the backend."""
    return InductorBackend()


def relu_cluster() -> Cluster:
    """Return the smallest useful program: `relu` on a float32 tensor of 4 elements."""
    graph = fx.Graph()
    source = graph.placeholder("x")
    result = graph.call_function(torch.ops.aten.relu.default, (source,), name="relu")
    graph.output((result,))
    with FakeTensorMode():
        source.meta["val"] = result.meta["val"] = torch.empty(4)
    spec = TensorSpec.of(source.meta["val"])
    return Cluster("probe", fx.GraphModule(torch.nn.Module(), graph), ("relu",), ("x",), ("relu",), (spec,), (spec,))


def _failure(error: Exception, cluster: Cluster) -> CompileError:
    names = {type(cause).__name__ for cause in _causes(error)}
    lacks_compiler = bool(names & {"InvalidCxxCompiler", "CppCompileError", "FileNotFoundError"})
    return CompileError(
        f"{type(error).__name__}: {error}",
        backend="inductor",
        cluster=cluster.name,
        hint=_NEEDS_COMPILER if lacks_compiler else None,
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return found
