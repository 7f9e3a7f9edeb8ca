"""Runs a program in an ONNX Runtime session: generated binding code, zero-copy both ways, safe from any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from hub.backend import CompileSettings, Executable
from hub.errors import CompileError, HubError, RunError
from hub.graph import Cluster
from hub.support import tensors_of

from .binding import compiled, run_source
from .lower.builder import array_of
from .program import EDGES_FILE, MODEL_FILE, NAME, Edges, Program

_ERRORS_ONLY = 3


class OnnxExecutable(Executable):
    """One cluster in one session."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        cluster: Cluster,
        edges: Edges,
        program: Program | Path,
        keep: Any = None,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._program = program
        self._keep = keep
        """Constants that the session reads in place."""
        self.source = run_source(cluster.inputs, cluster.outputs, edges)
        self._run = compiled(self.source, session, cluster)

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Runs one call; new contiguous tensors, or permuted ones where the cluster's specs say so."""
        try:
            return self._run(*inputs)
        except HubError:
            raise
        except Exception as error:
            raise RunError(
                f"ONNX Runtime failed: {type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name
            ) from error  # fmt: skip

    def save(self, folder: Path) -> None:
        """Writes the model before ORT's optimisations, which depend on the machine, with constants and edges."""
        if isinstance(self._program, Path):
            raise CompileError("a loaded executable is already saved", backend=NAME, cluster=self._cluster.name)
        self._program.save(folder)

    def dump(self, folder: Path) -> None:
        """Writes the model as text, the binding code, the model after ORT's optimisations, and the session's options."""
        model = (
            onnx.load(str(self._program / MODEL_FILE), load_external_data=False)
            if isinstance(self._program, Path)
            else self._program.model
        )
        (folder / "model.txt").write_text(onnx.printer.to_text(model))
        (folder / "run.py").write_text(self.source)
        options = self._session.get_session_options()
        lines = [f"{name} = {getattr(options, name)}" for name in _SHOWN] + [f"providers = {self._session.get_providers()}"]
        (folder / "session.txt").write_text("\n".join(lines) + "\n")
        (folder / "optimised.txt").write_text(self._optimised())

    def _optimised(self) -> str:
        """Text of the model as ORT runs it, from a second session that writes it out."""
        return "" if isinstance(self._program, Path) else optimised_text(self._program)


_SHOWN = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "graph_optimization_level",
    "execution_mode",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)


# --- Sessions ---------------------------------------------------------------------------------------------------------


def build(program: Program, cluster: Cluster, settings: CompileSettings) -> OnnxExecutable:
    """Opens a session on a program whose constants stay where they are. Raises CompileError."""
    options = session_options(settings)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array_of(tensor)) for tensor in program.weights.values()]
    options.add_external_initializers(list(program.weights), values)
    session = _opened(program.model.SerializeToString(), options, cluster)
    return OnnxExecutable(session, cluster, program.edges, program, keep=values)


def restore(folder: Path, cluster: Cluster, settings: CompileSettings) -> OnnxExecutable:
    """Opens a session on saved files; ORT maps the constants. Raises CompileError."""
    try:
        edges = Edges.from_json((folder / EDGES_FILE).read_text())
    except (OSError, ValueError, KeyError) as error:
        raise CompileError(f"{folder} holds no saved model: {error}", backend=NAME, cluster=cluster.name) from error
    return OnnxExecutable(_opened(str(folder / MODEL_FILE), session_options(settings), cluster), cluster, edges, folder)


def session_options(settings: CompileSettings) -> onnxruntime.SessionOptions:
    """Options of every session: one pool of the hub's size, spinning only where the hub allows it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spin else "0")
    return options


def _opened(model: bytes | str, options: onnxruntime.SessionOptions, cluster: Cluster) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_inexact(cluster)
        )
    except Exception as error:
        raise CompileError(
            f"ONNX Runtime refused the model: {type(error).__name__}: {error}", backend=NAME, cluster=cluster.name
        ) from error  # fmt: skip


def _inexact(cluster: Cluster) -> list[str] | None:
    """Names of the optimisations that move float64 numbers into float32 attributes, where the cluster has any."""
    has_double = any(tensor.dtype == torch.float64 for node in cluster.nodes for tensor in tensors_of(node))
    return ["MatMulScaleFusion", "LayerNormFusion", "SimplifiedLayerNormFusion"] if has_double else None


def optimised_text(program: Program) -> str:
    """Text of a program's graph after ORT's optimisations."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = session_options(CompileSettings(threads=1))
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.bin")
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array_of(tensor)) for tensor in program.weights.values()]
        options.add_external_initializers(list(program.weights), values)
        onnxruntime.InferenceSession(program.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.printer.to_text(onnx.load(str(path), load_external_data=False))
