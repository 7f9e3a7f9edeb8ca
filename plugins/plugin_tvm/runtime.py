"""Runs compiled clusters with zero-copy inputs and outputs, from any number of threads."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tvm.runtime import cpu

from hub.plugin import (
    Cluster,
    CompileError,
    Executable,
    HubError,
    InputRefused,
    RunError,
    TensorSpec,
)
from hub.toolkit.cluster import weights_of
from hub.toolkit.layout import memory_order
from plugin_tvm.library import relax, tvm_ffi
from plugin_tvm.pool import use_threads
from plugin_tvm.program import BIND, MAIN, Facts, Names

NAME = "tvm"
LIBRARY = "cluster.so"
META = "tvm.json"
ALIGNMENT = 64
"""Bytes. TVM's code assumes this alignment without a check: loads from other addresses crash the process."""
_AS_BITS = {torch.bfloat16: torch.uint16, torch.bool: torch.uint8}
"""Dtypes under which TVM sees memory of other dtypes."""
_NUMBERS = {"int": torch.int64, "float": torch.float64, "bool": torch.uint8}


@dataclass(frozen=True)
class Texts:
    """The intermediate programs between a cluster and its machine code, for debugging; "" after a load."""

    relax: str = ""
    scheduled: str = ""
    tuned: int = 0
    kernels: int = 0


class TvmExecutable(Executable):
    """A compiled cluster: Relax's virtual machine over machine code, with weights in PyTorch's memory."""

    def __init__(self, cluster: Cluster, library: Any, facts: Facts, threads: int, texts: Texts | None = None) -> None:
        """Bind the weights and prepare a virtual machine.

        `library` is an executable of Relax, or a module loaded from a shared library.
        """
        self._cluster, self._library, self.facts, self._threads = cluster, library, facts, threads
        self.texts = texts or Texts()
        weights = weights_of(cluster)
        names = facts.names
        self.weights = {name: array(weights[name]) for name in (*names.bind, *names.main) if name in weights}
        """Weights, as TVM's tensors over PyTorch's memory."""
        self._orders = tuple(memory_order(spec) if isinstance(spec, TensorSpec) else () for spec in cluster.inputs)
        self._sizes = _reader(facts.sizes, len(cluster.inputs))
        self._shapes = tuple(_reader((text,), len(cluster.inputs)) for text, _ in facts.outputs)
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._idle.append(self._machine())
        self._fixed = {**self.weights, **self._bound()}
        self._names = (*names.main, *names.bound)

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Run one call. Raise InputRefused for empty tensors and other dtypes, RunError for any other failure."""
        try:
            self._check(inputs)
            arguments = [self._argument(name, inputs) for name in self._names]
            sizes = [tvm_ffi.Shape(list(self._sizes(*inputs)))] if self.facts.sizes else []
            use_threads(self._threads)
            results = self._run([*sizes, *arguments])
            return [self._result(place, result, inputs) for place, result in enumerate(results)]
        except HubError as error:
            error.backend, error.cluster = NAME, self._cluster.name
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def save(self, folder: Path) -> None:
        """Write a shared library and its digest, without weights. Raise CompileError if there is no C compiler."""
        try:
            self._library.export_library(str(folder / LIBRARY))
        except Exception as error:
            raise CompileError(
                f"TVM cannot link a shared library: {type(error).__name__}: {error}",
                backend=NAME,
                cluster=self._cluster.name,
                hint="install a C++ compiler, which TVM links with",
            ) from error
        digest = hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest()
        (folder / META).write_text(json.dumps({"sha256": digest, "names": asdict(self.facts.names)}))

    def dump(self, folder: Path) -> None:
        """Write the FX program and, unless loaded, Relax and TensorIR before and after scheduling."""
        (folder / "cluster.py.txt").write_text(self._cluster.module.print_readable(print_output=False))
        if self.texts.relax:
            (folder / "relax.py.txt").write_text(self.texts.relax)
            (folder / "scheduled.py.txt").write_text(self.texts.scheduled)
            share = f"{self.texts.tuned} of {self.texts.kernels} kernels are tuned\n"
            (folder / "tuning.txt").write_text(share)

    # --- one call ---

    def _machine(self) -> Any:
        return relax.VirtualMachine(self._library, cpu())

    def _bound(self) -> dict[str, Any]:
        """Compute the tensors that depend on weights alone, once instead of at every call."""
        names = self.facts.names
        if not names.bound:
            return {}
        use_threads(self._threads)
        found = self._idle[0][BIND](*(self.weights[name] for name in names.bind))
        return {name: found[place] for place, name in enumerate(names.bound)}

    def _run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run a virtual machine that no other thread uses: it keeps the state of one call."""
        with self._lock:
            machine = self._idle.pop() if self._idle else None
        machine = machine or self._machine()
        try:
            return machine[MAIN](*arguments)
        finally:
            with self._lock:
                self._idle.append(machine)

    def _check(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self._cluster.inputs):
            raise RunError(f"got {len(inputs)} inputs, {len(self._cluster.inputs)} expected")
        for name, spec, value in zip(self._cluster.input_names, self._cluster.inputs, inputs, strict=True):
            if not isinstance(spec, TensorSpec):
                continue
            if value.dtype is not spec.dtype:  # not an error: some of eager's kernels return other dtypes than fakes
                raise InputRefused(f"input {name}: got {value.dtype}, compiled for {spec}")
            if len(value.shape) != len(spec.shape):
                raise RunError(f"input {name}: got {list(value.shape)}, compiled for {spec}")
            for got, wanted in zip(value.shape, spec.shape, strict=True):
                if isinstance(wanted, int) and got != wanted:
                    raise RunError(f"input {name}: got {list(value.shape)}, compiled for {spec}")
            if value.numel() == 0:
                raise InputRefused(f"input {name} has no elements")

    def _argument(self, name: str, inputs: Sequence[Any]) -> Any:
        fixed = self._fixed.get(name)
        if fixed is not None:
            return fixed
        place = int(name[1:])
        value, spec = inputs[place], self._cluster.inputs[place]
        if not isinstance(spec, TensorSpec):
            return array(torch.tensor(value, dtype=_NUMBERS[spec.kind]))
        return array(value.detach().permute(self._orders[place]))

    def _result(self, place: int, result: Any, inputs: Sequence[Any]) -> torch.Tensor:
        (shape,) = self._shapes[place](*inputs)
        spec = self._cluster.outputs[place]
        found = tensor(result)
        found = found.view(spec.dtype) if found.dtype is not spec.dtype else found
        return found.view(shape).permute(self.facts.outputs[place][1])


def array(value: torch.Tensor) -> Any:
    """Return TVM's tensor over a tensor's own memory, or over that of a contiguous and aligned copy."""
    if not value.is_contiguous() or value.is_neg() or value.device.type != "cpu":
        value = value.cpu().resolve_neg().contiguous()
    value = value.detach()
    if value.data_ptr() % ALIGNMENT:
        value = value.clone()
    bits = _AS_BITS.get(value.dtype)
    return tvm_ffi.from_dlpack(value if bits is None else value.view(bits))


def tensor(value: Any) -> torch.Tensor:
    """Return a tensor over the memory of TVM's tensor, which it keeps alive."""
    return torch.from_dlpack(value)


def restored(folder: Path) -> tuple[Any, Names]:
    """Load the files of `save`: code, and the names of its arguments.

    Raise ValueError if the library has changed, because loading a library runs code.
    """
    kept = json.loads((folder / META).read_text())
    code = (folder / LIBRARY).read_bytes()
    if hashlib.sha256(code).hexdigest() != kept["sha256"]:
        raise ValueError(f"{LIBRARY} is damaged")
    with tempfile.TemporaryDirectory(prefix="hub-tvm-") as place:  # load the bytes that were checked, not the file
        path = Path(place) / LIBRARY
        path.write_bytes(code)
        # Unmapped when its last user drops it; TVM's own function keeps every library until the process ends.
        library = tvm_ffi.load_module(path, keep_module_alive=False)
        return library, Names(**{key: tuple(names) for key, names in kept["names"].items()})


def _reader(texts: Sequence[str], count: int) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the inputs that evaluates some expressions; the hub itself wrote them, over shapes."""
    names = ", ".join(f"i{place}" for place in range(count))
    return eval(f"lambda {names}: ({''.join(text + ', ' for text in texts)})")
