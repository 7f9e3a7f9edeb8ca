"""Runs compiled programs from any number of threads; on the CPU aligned tensors are not copied in either direction."""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from iree import runtime as iree
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage] - documented there

from hub.plugin import (
    Cluster,
    Executable,
    HubError,
    InputRefused,
    RunError,
    TensorSpec,
)
from hub.toolkit.arguments import Sizes, with_weights
from hub.toolkit.programs import Programs
from plugin_iree.compiler import stages
from plugin_iree.device import instance
from plugin_iree.lower import ENTRY, SCOPE
from plugin_iree.settings import Settings

NAME = "iree"
META = "iree.json"
ALIGNMENT = 64
"""Bytes. IREE requires this alignment of memory that it did not allocate: its code uses aligned vector instructions."""
_NUMPY = {torch.bfloat16: np.int16}
"""Types that NumPy lacks, with the NumPy types of the same width through which their memory is passed."""


@dataclass(frozen=True)
class Program:
    """A cluster compiled for given sizes, or for all sizes that meet a condition."""

    code: bytes
    """The compiled module, a .vmfb."""
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs."""
    text: str
    """The program in the torch dialect; "" after a load."""
    condition: str
    """Condition on the sizes for which a program for all sizes is correct; "" for a program for given sizes."""
    context: Any
    """IREE's virtual machine with the program in it."""
    function: Any
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock of the context: IREE's contexts do not synchronise calls."""


class Weights:
    """A cluster's weights as IREE's parameters: an archive in memory that lists their addresses in PyTorch's memory."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy weights that are not aligned and contiguous, once."""
        self.tensors = [placed(tensor.detach()) for tensor in tensors]
        self.index = iree.ParameterIndex()
        for position, tensor in enumerate(self.tensors):
            self.index.add_buffer(f"weight{position}", tensor.reshape(-1).view(torch.uint8).numpy())
        self._ends = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in self.tensors)

    def hold(self, address: int) -> bool:
        """Return whether an address is within a weight."""
        place = bisect_right(self._ends, address, key=lambda ends: ends[0])
        return place > 0 and address < self._ends[place - 1][1]


def weights_of(cluster: Cluster) -> Weights:
    """Return a cluster's weights, in the order of their names in its programs."""
    constants = cluster.constants
    return Weights(constants[name] for name in with_weights(cluster).weights)


def loaded(
    code: bytes, fed: Sequence[int], device: Any, weights: Weights, *, text: str = "", condition: str = ""
) -> Program:
    """Return a program that is ready to run; its weights are bound, and its computations on weights alone are done."""
    provider = weights.index.create_provider(scope=SCOPE)
    module = iree.VmModule.copy_buffer(instance(), code)
    modules = [iree.create_hal_module(instance(), device), iree.create_io_parameters_module(instance(), provider), module]
    context = iree.VmContext(instance(), modules)
    return Program(code, tuple(fed), text, condition, context, module.lookup_function(ENTRY))


def invoked(program: Program, values: Sequence[Any], count: int) -> list[Any]:
    """Run one call on integers and IREE's views of tensors. Return views of its results, of which there are `count`."""
    arguments, results = iree.VmVariantList(len(values)), iree.VmVariantList(count)
    for value in values:
        arguments.push_int(value) if isinstance(value, int) else arguments.push_ref(value.ref)
    with program.lock:
        program.context.invoke(program.function, arguments, results)
    return [results.get_as_object(place, iree.HalBufferView) for place in range(count)]


class IreeExecutable(Executable):
    """A compiled cluster: one program for all sizes, or one for each combination, compiled at once or on first use."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        device: Any,
        weights: Weights,
        programs: dict[Sizes, Program],
        build: Callable[[Sizes], Program],
        general: Program | None = None,
    ) -> None:
        """Prepare to run, with weights in PyTorch's memory. `build` compiles for sizes that `general` does not serve."""
        self._cluster, self._settings, self._device, self._weights = cluster, settings, device, weights
        condition = general.condition if general else ""
        self._programs = Programs(cluster, programs, build, general=general, condition=condition)
        self._dtypes = tuple(spec.dtype if isinstance(spec, TensorSpec) else None for spec in cluster.inputs)
        self._results = tuple(spec.dtype for spec in cluster.outputs)
        self._view, self._tensor = exchange(settings.target)

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Run one call. Raise InputRefused for too many size combinations and other dtypes, RunError for other failures."""
        try:
            program = self._programs.of(inputs)
            values = [self._checked(position, inputs[position]) for position in program.fed]
            found = invoked(program, [self._passed(value) for value in values], len(self._results))
            results = [self._tensor(*each, self._device) for each in zip(found, self._results, strict=True)]
            return self._apart(results, [value for value in values if isinstance(value, torch.Tensor)])
        except HubError as error:
            error.backend, error.cluster = NAME, self._cluster.name
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def save(self, folder: Path) -> None:
        """Write a .vmfb for all sizes, if there is one, and for each combination of sizes so far, without weights."""
        listed: list[dict[str, Any]] = []
        for place, (sizes, program) in enumerate(self._all()):
            (folder / f"program{place}.vmfb").write_bytes(program.code)
            digest = hashlib.sha256(program.code).hexdigest()
            listed.append({"sizes": sizes, "condition": program.condition, "fed": program.fed, "sha256": digest})
        (folder / META).write_text(json.dumps({"programs": listed}))

    def dump(self, folder: Path) -> None:
        """Write the FX program and, for each program of IREE, the .vmfb and, unless loaded, the text at each stage.

        IREE's stages are computed again, up to the sources of its executables: the slow stages come after these.
        """
        (folder / "cluster.py.txt").write_text(self._cluster.module.print_readable(print_output=False))
        for place, (_, program) in enumerate(self._all()):
            (folder / f"program{place}.vmfb").write_bytes(program.code)
            if program.text:
                (folder / f"program{place}.torch.mlir").write_text(program.text)
                within = folder / f"program{place}.stages"
                within.mkdir(exist_ok=True)
                stages(program.text, self._settings, within)

    def _all(self) -> list[tuple[Sizes | None, Program]]:
        """Return each program with its sizes; the first one may be for all sizes (None)."""
        general = self._programs.general
        return [*([] if general is None else [(None, general)]), *self._programs]

    def _passed(self, value: torch.Tensor | int) -> Any:
        return self._view(value, self._device) if isinstance(value, torch.Tensor) else value

    def _checked(self, position: int, value: Any) -> torch.Tensor | int:
        if isinstance(value, int):
            return value
        if value.dtype is not self._dtypes[position]:
            name = self._cluster.input_names[position]
            # Not an error: some of eager's kernels return other dtypes than fake tensors.
            raise InputRefused(f"input {name}: got {value.dtype}, compiled for {self._dtypes[position]}")
        return placed(value.detach())

    def _apart(self, results: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy results that share the memory of an input, a weight or another result, because IREE found them equal."""
        taken: set[int] = set()
        for place, result in enumerate(results):
            address = result.data_ptr()
            is_inputs = any(one.data_ptr() <= address < one.data_ptr() + one.nbytes for one in inputs)
            if is_inputs or address in taken or self._weights.hold(address):
                results[place] = result.clone()
            taken.add(address)
        return results


def exchange(target: str) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """Return the functions that convert tensors to IREE's views for a target, and views to tensors."""
    return (shared, mapped) if target == "cpu" else (sent, fetched)


def placed(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory IREE can use: itself, or a copy that is contiguous and aligned."""
    if value.device.type != "cpu" or value.is_neg():
        value = value.cpu().resolve_neg()
    if value.is_contiguous() and value.data_ptr() % ALIGNMENT == 0:
        return value
    return value.clone(memory_format=torch.contiguous_format)  # PyTorch's allocations are aligned


def shared(value: torch.Tensor, device: Any) -> Any:
    """Return IREE's view over a tensor's own memory, which it keeps alive. The tensor comes from `placed`."""
    return device.from_dlpack_capsule(to_dlpack(value))


def mapped(view: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:  # noqa: ARG001 - same signature as `fetched`
    """Return a tensor over the memory of IREE's view, which it keeps alive.

    DLPack is not used: IREE's capsule keeps only the allocation alive, not the view's part of it.
    """
    return _over(view.map(), view.shape, dtype)


def sent(value: torch.Tensor, device: Any) -> Any:
    """Return IREE's view of a copy in a device's own memory."""
    elements = _ELEMENTS[value.dtype]
    array = value.view(torch.int16).numpy() if value.dtype in _NUMPY else value.numpy()
    return device.allocator.allocate_buffer_copy(
        memory_type=iree.MemoryType.DEVICE_LOCAL,
        allowed_usage=iree.BufferUsage.DEFAULT,
        device=device,
        buffer=array,
        element_type=elements,
    )


def fetched(view: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Return a copy of IREE's view, made by the device in memory that host and device share."""
    source = view.get_buffer()
    target = device.allocator.allocate_buffer(
        memory_type=int(iree.MemoryType.HOST_LOCAL | iree.MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(iree.BufferUsage.TRANSFER_TARGET | iree.BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    done = device.create_semaphore(0)
    device.queue_copy(source, target, iree.HalFence.create_at(done, 0), iree.HalFence.create_at(done, 1))
    done.wait(1)
    return _over(target.map(), view.shape, dtype)


def _over(memory: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    array = memory.asarray(shape, np.dtype(_numpy(dtype)))
    return torch.from_numpy(array).view(dtype)  # pyright: ignore[reportUnknownMemberType] - torch's


def _numpy(dtype: torch.dtype) -> Any:
    return _NUMPY[dtype] if dtype in _NUMPY else torch.empty(0, dtype=dtype).numpy().dtype


_ELEMENTS: Mapping[torch.dtype, Any] = {
    torch.float32: iree.HalElementType.FLOAT_32,
    torch.float64: iree.HalElementType.FLOAT_64,
    torch.float16: iree.HalElementType.FLOAT_16,
    torch.bfloat16: iree.HalElementType.BFLOAT_16,
    torch.int64: iree.HalElementType.INT_64,
    torch.int32: iree.HalElementType.INT_32,
    torch.uint8: iree.HalElementType.UINT_8,
    torch.bool: iree.HalElementType.BOOL_8,
}
