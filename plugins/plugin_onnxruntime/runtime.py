"""Runs a program in an ONNX Runtime session: generated straight-line binding code, zero-copy both ways, safe from any thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from hub.backend import CompileSettings, Executable
from hub.errors import CompileError, HubError, RunError
from hub.graph import Cluster, ScalarSpec, Spec, TensorSpec

from .lower.builder import ELEMENT, array_of
from .lower.call import number_dtype
from .program import EDGES_FILE, MODEL_FILE, Edges, Program
from .sizes import shape_text, sources

NAME = "onnxruntime"
_CPU = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)
_ERRORS_ONLY = 3
_SPARE = torch.empty(16)
"""Its address stands in for that of empty tensors, which have none and which ORT would refuse."""


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
        self._run = _compiled(self.source, session, cluster)

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
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(
            f"ONNX Runtime refused the model: {type(error).__name__}: {error}", backend=NAME, cluster=cluster.name
        ) from error  # fmt: skip


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


# --- One call ---------------------------------------------------------------------------------------------------------


def run_source(inputs: Sequence[Spec], outputs: Sequence[TensorSpec], edges: Edges) -> str:
    """Gives the Python text of `run(i0, i1, ...)`: check and bind inputs, allocate and bind outputs, run, return."""
    known = sources(inputs)
    lines = [f"def run({', '.join(f'i{position}' for position in range(len(inputs)))}):"]
    for position, (spec, name, order) in enumerate(zip(inputs, edges.inputs, edges.input_orders, strict=True)):
        if name:
            lines += _prepare(position, spec, order)
    lines += ["try:", "    b = pool.pop()", "except IndexError:", "    b = new_binding()"]
    for position, (spec, name) in enumerate(zip(inputs, edges.inputs, strict=True)):
        if name:
            element = _element(spec)
            lines.append(f"b.bind_input({name!r}, cpu, {element}, a{position}.shape, a{position}.data_ptr() or spare)")
    shapes = [shape_text(spec, known) for spec in outputs]
    for position, (spec, name, shape, order) in enumerate(
        zip(outputs, edges.outputs, shapes, edges.output_orders, strict=True)
    ):
        lines += _allocate(position, spec, name, shape, order)
    lines.append("run_session(b, None)")
    if None in shapes:
        lines.append("found = b.get_outputs()")
        lines += [
            f"o{position} = taken(found, {position}, dtype_o{position})"
            for position, shape in enumerate(shapes)
            if shape is None
        ]
        lines.append("b.clear_binding_outputs()")
    lines.append("pool.append(b)")
    lines.append(
        f"return ({''.join(_result(position, order) + ', ' for position, order in enumerate(edges.output_orders))})"
    )
    return "\n    ".join(lines) + "\n"


def _prepare(position: int, spec: Spec, order: Sequence[int]) -> list[str]:
    """Lines that make a{position} a contiguous tensor of the right dtype, in memory order."""
    value = f"i{position}"
    if isinstance(spec, ScalarSpec):
        return [f"a{position} = number({value}, dtype_i{position})"]
    permuted = f"{value}.permute({tuple(order)})" if order else value
    return [
        f"if {value}.dtype is not dtype_i{position} or not {value}.is_cpu:",
        f"    wrong({position}, {value})",
        f"a{position} = {permuted}",
        f"if not a{position}.is_contiguous():",
        f"    a{position} = a{position}.contiguous()",
    ]


def _allocate(position: int, spec: TensorSpec, name: str, shape: str | None, order: Sequence[int]) -> list[str]:
    if shape is None:
        return [f"b.bind_output({name!r}, cpu)"]
    make = f"o{position} = empty({shape}, dtype=dtype_o{position})"
    if order:
        make = f"s{position} = {shape}; o{position} = empty(({', '.join(f's{position}[{dim}]' for dim in order)},), dtype=dtype_o{position})"
    return [
        make,
        f"b.bind_output({name!r}, cpu, {ELEMENT[spec.dtype]}, o{position}.shape, o{position}.data_ptr() or spare)",
    ]


def _result(position: int, order: Sequence[int]) -> str:
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    return f"o{position}.permute({inverse})" if order else f"o{position}"


def _element(spec: Spec) -> int:
    return ELEMENT[spec.dtype if isinstance(spec, TensorSpec) else number_dtype(spec.value)]


def _compiled(source: str, session: onnxruntime.InferenceSession, cluster: Cluster) -> Any:
    # The low-level session: the public wrapper's binding costs more than the binding itself, and hides the pointer form.
    inner = session._sess
    names: dict[str, Any] = {
        "cpu": _CPU, "empty": torch.empty, "number": _number, "taken": _taken, "pool": [], "math": math, "spare": _SPARE.data_ptr(),
        "new_binding": lambda: ort.SessionIOBinding(inner), "run_session": inner.run_with_iobinding, "wrong": _refuser(cluster),
    }  # fmt: skip
    for position, spec in enumerate(cluster.inputs):
        names[f"dtype_i{position}"] = spec.dtype if isinstance(spec, TensorSpec) else number_dtype(spec.value)
    for position, spec in enumerate(cluster.outputs):
        names[f"dtype_o{position}"] = spec.dtype
    exec(compile(source, f"<onnxruntime {cluster.name}>", "exec"), names)
    return names["run"]


@lru_cache(maxsize=4096)
def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A number as a 0-d tensor; sizes repeat, so they are kept."""
    return torch.tensor(value, dtype=dtype)


def _taken(found: Sequence[Any], position: int, dtype: torch.dtype) -> torch.Tensor:
    """An output that ORT allocated, since its size depends on data; DLPack from ORT knows booleans only as bytes."""
    tensor = torch.from_dlpack(found[position].to_dlpack())
    return tensor.view(torch.bool) if dtype is torch.bool else tensor


def _refuser(cluster: Cluster) -> Any:
    def wrong(position: int, value: Any) -> None:
        found = f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
        name = cluster.input_names[position]
        raise RunError(
            f"input {name} is {found}, {cluster.inputs[position]} on cpu was compiled", backend=NAME, cluster=cluster.name
        )

    return wrong
