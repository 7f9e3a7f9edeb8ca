"""The backend: selects nodes by its table, compiles through Relax, and loads saved machine code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torch import fx

from hub.plugin import (
    Backend,
    Cluster,
    CompileError,
    CompileSettings,
    Cost,
    HubError,
    PluginError,
    Support,
    compile_failure,
    kind_of,
    operator_name,
    peaks,
    refused,
)
from hub.toolkit.operators import PLACES_IN_WINDOWS
from hub.toolkit.recurrence import written_out
from plugin_tvm.settings import Settings
from plugin_tvm.support import OPERATORS

if TYPE_CHECKING:
    from plugin_tvm.runtime import TvmExecutable

NAME = "tvm"
PRODUCTS = ("product", "convolution", "depthwise", "attention", "recurrent")
CALL_S = 5e-05
"""Seconds to enter and leave a cluster. Assumed, not measured: Inductor's 15 us (`hub.pricing.roofline`) plus the start of
a virtual machine. `hub doctor` measures it for mixed plans; a cluster's own time replaces it as soon as it has run."""

_COMPILING = threading.Lock()
"""Lock that serialises compilations: TVM keeps the state of a build in a stack that all threads share."""


def create(own: Settings | None = None) -> Tvm:
    """Return the backend; called once per process for each distinct settings."""
    return Tvm(Settings() if own is None else own)


class Tvm(Backend):
    """Apache TVM on the CPU."""

    def __init__(self, own: Settings) -> None:
        self._own = own

    def supports(self, node: fx.Node) -> Support:
        """Return the verdict of the operator table on a node."""
        if self._own.missing:
            return refused(f"target {self._own.target}: this machine lacks {self._own.missing}")
        return OPERATORS.supports(node)

    def keeps_order(self, node: fx.Node) -> bool:
        """Return True for positions of a maximum in a window: the first, or the last NaN, as in eager."""
        return operator_name(node) in PLACES_IN_WINDOWS

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost | None:
        """Predict the time of one warm call from tuning's measurements; None unless tuning covered all expensive kernels.

        For None, the hub's cost model has the better estimate.
        """
        has_products = any(kind_of(node) in PRODUCTS for node in cluster.nodes)
        tuned_s = self._tuned_s(cluster, settings) if has_products and self._own.state else None
        return None if tuned_s is None else Cost(tuned_s + CALL_S, detail="sum of its kernels as tuning measured them")

    def tune(
        self, clusters: Sequence[Cluster], settings: CompileSettings, budget_s: float, say: Callable[[str], None]
    ) -> str:
        """Search for schedules of all kernels of a model. Each schedule is in the database as soon as it is measured."""
        if find_spec("xgboost") is None:  # MetaSchedule's cost model; running needs none
            hint = "pip install 'compiler-hub[tvm-tune]'"
            raise PluginError("searching for kernels needs xgboost, which is not installed", backend=NAME, hint=hint)
        from plugin_tvm import tuning
        from plugin_tvm.database import Database
        from plugin_tvm.program import program_of
        from plugin_tvm.target import host_target

        target = host_target(settings.threads)
        modules = [program_of(written_out(cluster), is_parallel=settings.threads > 1).module for cluster in clusters]
        tasks = tuning.bounded(tuning.tasks_of(modules), peaks(settings.threads))
        found = Database(self._own.folder, target)
        tuning.tune(tasks, target, found, budget_s=budget_s, threads=settings.threads, say=say)
        return tuning.summary(tasks)

    def _tuned_s(self, cluster: Cluster, settings: CompileSettings) -> float | None:
        """Return the seconds that tuning measured for all kernels of a cluster; None if an expensive one was not tuned."""
        from plugin_tvm import tuning
        from plugin_tvm.database import Database
        from plugin_tvm.program import program_of
        from plugin_tvm.target import host_target

        try:
            with _COMPILING:
                module = program_of(written_out(cluster), is_parallel=settings.threads > 1).module
                return tuning.price_s(tuning.tasks_of([module]), Database(self._own.folder, host_target(settings.threads)))
        except Exception:  # noqa: BLE001 - compiling then reports the error
            return None

    def compile(self, cluster: Cluster, settings: CompileSettings) -> TvmExecutable:
        """Compile a cluster. Raise CompileError with TVM's reason."""
        try:
            return self._compiled(written_out(cluster), settings)
        except HubError as error:
            error.backend, error.cluster = NAME, cluster.name
            raise
        except Exception as error:
            raise compile_failure(NAME, cluster, "TVM cannot compile it", error) from error

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> TvmExecutable:
        """Restore machine code from the files of `save`; the weights are the cluster's."""
        try:
            from plugin_tvm.program import facts_of
            from plugin_tvm.runtime import TvmExecutable, restored

            library, names = restored(folder)
            cluster = written_out(cluster)
            return TvmExecutable(cluster, library, facts_of(cluster, names), settings.threads)
        except Exception as error:
            raise compile_failure(NAME, cluster, "TVM cannot load it", error) from error

    def _compiled(self, cluster: Cluster, settings: CompileSettings) -> TvmExecutable:
        from plugin_tvm.compiler import built
        from plugin_tvm.database import Database
        from plugin_tvm.program import program_of
        from plugin_tvm.runtime import Texts, TvmExecutable
        from plugin_tvm.target import host_target

        if self._own.missing:
            raise CompileError(f"target {self._own.target}: this machine lacks {self._own.missing}")
        with _COMPILING:
            program = program_of(cluster, is_parallel=settings.threads > 1)
            text = program.module.script()
            target = host_target(settings.threads)
            found = Database(self._own.folder, target)
            made = built(program.module, target, threads=settings.threads, tuned=found.schedule)
        texts = Texts(text, made.scheduled, made.tuned, made.kernels)
        return TvmExecutable(cluster, made.executable, program.facts, settings.threads, texts)
