"""Runs a program in an ONNX Runtime session: generated binding code, zero-copy inputs and outputs, thread-safe."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from hub.plugin import (
    Cluster,
    CompileError,
    CompileSettings,
    Executable,
    HubError,
    InputRefused,
    RunError,
    TensorSpec,
    operator_name,
    tensors_of,
)

from .binding import compiled, run_source
from .library import onnxruntime
from .lower.builder import array_of
from .program import EDGES_FILE, MODEL_FILE, NAME, Edges, Program

_ERRORS_ONLY = 3
_FINITE_ONLY = ("aten.max_pool", "aten.gru.", "aten.lstm.")
"""Operators whose kernels lose NaN and infinities: pooling begins with the lowest number, recurrent layers clip their sums.

A second pooling for them would double its cost, so inputs are checked; only where one may arise inside it is paid."""


def is_infinite(value: torch.Tensor) -> bool:
    """Return whether any element is infinite or NaN. The sum decides in most cases, computed on this thread alone."""
    if value.dtype is torch.bfloat16:  # NumPy has no bfloat16
        return not bool(value.isfinite().all())
    with np.errstate(all="ignore"):
        array = value.detach().resolve_neg().numpy()
        return not np.isfinite(array.sum()) and not bool(np.isfinite(array).all())


Again = Callable[[], Program]
"""Function that lowers the cluster again: a kept program would hold a second copy of every transposed weight."""


class OnnxExecutable(Executable):
    """One cluster in one session."""

    def __init__(self, session: Any, cluster: Cluster, edges: Edges, origin: Again | Path) -> None:
        self._session = session
        self._cluster = cluster
        self._origin = origin
        """Source of the model: lowering, or the folder it was loaded from."""
        self.source = run_source(cluster.inputs, cluster.outputs, edges)
        self._run = compiled(self.source, session, cluster)
        names = tuple(map(operator_name, cluster.nodes))
        specs = enumerate(cluster.inputs) if any(name.startswith(_FINITE_ONLY) for name in names) else ()
        self._watched = tuple(at for at, spec in specs if isinstance(spec, TensorSpec) and spec.dtype.is_floating_point)

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. Return new contiguous tensors, or permuted ones if the cluster's specs require it.

        Raise InputRefused if an input holds NaN or infinities that max pooling or recurrent layers would lose.
        """
        for position in self._watched:
            if is_infinite(inputs[position]):
                reason = "an input holds an infinity or NaN, which ONNX Runtime's max pooling and recurrent layers lose"
                raise InputRefused(reason, backend=NAME, cluster=self._cluster.name)
        try:
            return self._run(*inputs)
        except HubError:
            raise
        except Exception as error:
            raise RunError(
                f"ONNX Runtime failed: {type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name
            ) from error  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write the model before ORT's optimisations, which depend on the machine, with constants and edges."""
        if isinstance(self._origin, Path):
            raise CompileError("a loaded executable is already saved", backend=NAME, cluster=self._cluster.name)
        self._origin().save(folder)

    def dump(self, folder: Path) -> None:
        """Write the model as text, the binding code, the session's options, and the model after ORT's optimisations.

        The optimised model comes from a second session; for a loaded executable it is omitted.
        """
        (folder / "run.py").write_text(self.source)
        (folder / "session.txt").write_text(self._options())
        if isinstance(self._origin, Path):
            model = _onnx_of(self._origin / MODEL_FILE)
        else:
            program = self._origin()
            model = program.model
            (folder / "optimised.txt").write_text(optimised_text(program, self._cluster))
        (folder / "model.txt").write_text(onnx.printer.to_text(model))

    def _options(self) -> str:
        options = self._session.get_session_options()
        lines = [f"{name} = {getattr(options, name)}" for name in _SHOWN]
        return "\n".join([*lines, f"providers = {self._session.get_providers()}", ""])


_SHOWN = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "graph_optimization_level",
    "execution_mode",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)


# --- Sessions ---------------------------------------------------------------------------------------------------------


def build(again: Again, cluster: Cluster, settings: CompileSettings) -> OnnxExecutable:
    """Lower a cluster and open a session on it. Raise CompileError if either fails."""
    program = again()
    session = _opened_on(program, session_options(settings), cluster)
    return OnnxExecutable(session, cluster, program.edges, again)


def restore(folder: Path, cluster: Cluster, settings: CompileSettings) -> OnnxExecutable:
    """Open a session on saved files, whose constants ORT maps. Raise CompileError if that fails."""
    try:
        edges = Edges.from_json((folder / EDGES_FILE).read_text())
    except (OSError, ValueError, KeyError) as error:
        raise CompileError(f"{folder} holds no saved model: {error}", backend=NAME, cluster=cluster.name) from error
    return OnnxExecutable(_opened(str(folder / MODEL_FILE), session_options(settings), cluster), cluster, edges, folder)


def session_options(settings: CompileSettings) -> Any:
    """Return the options of every session. Its one pool, of the hub's size, busy-waits between calls if the hub allows it.

    Within a call it may always busy-wait: without that a chain of products takes a tenth longer, and it takes no cores from
    other threads (`benchmarks/busy_waiting.py`).
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "0" if settings.busy_wait else "1")
    return options


def _opened_on(program: Program, options: Any, cluster: Cluster) -> Any:
    """Open a session on a program in memory. ORT (1.23 to 1.31) copies the constants, so ours may be freed afterwards."""
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array_of(tensor)) for tensor in program.weights.values()]
    options.add_external_initializers(list(program.weights), values)
    return _opened(program.model.SerializeToString(), options, cluster)


def _opened(model: bytes | str, options: Any, cluster: Cluster) -> Any:
    try:
        return onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_inexact(cluster)
        )
    except Exception as error:
        raise CompileError(
            f"ONNX Runtime refused the model: {type(error).__name__}: {error}", backend=NAME, cluster=cluster.name
        ) from error  # fmt: skip


def _inexact(cluster: Cluster) -> list[str] | None:
    """Return the optimisations that give float64 float32 attributes or no kernel, if the cluster has float64; else None."""
    has_double = any(tensor.dtype == torch.float64 for node in cluster.nodes for tensor in tensors_of(node))
    return ["MatMulScaleFusion", "LayerNormFusion", "SimplifiedLayerNormFusion", "QuickGeluFusion"] if has_double else None


def optimised_text(program: Program, cluster: Cluster) -> str:
    """Return the text of a program's graph after ORT's optimisations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = session_options(CompileSettings(threads=1))
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.bin")
        _opened_on(program, options, cluster)
        return onnx.printer.to_text(_onnx_of(path))


def _onnx_of(path: Path) -> onnx.ModelProto:
    return onnx.load(str(path), load_external_data=False)  # pyright: ignore[reportUnknownMemberType] - onnx's
