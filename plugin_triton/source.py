"""Makes one Python file of a cluster: its kernels, and `call`, which allocates and launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hub.fusion.groups import Group, Schedule, Stage, scheduled
from hub.graph import Cluster, ScalarSpec, TensorSpec
from hub.lowering.cluster import Lowered
from hub.lowering.layout import inverse, memory_order
from hub.lowering.sizes import Size, is_static, product, python_text, size_of
from hub.lowering.symbols import symbol_texts
from hub.lowering.tensors import Product, Put, Scan, Source, Tensor

from .attention import Attention
from .blocks import Blocks
from .flash import attention_kernel
from .kernel import Kernel, Writer, kernel_of, root_of
from .products import Epilogue, epilogue_of, product_kernel
from .program import for_kernels
from .puts import put_kernel
from .reductions import helpers
from .scans import scan_kernel

TORCH_TYPES: Mapping[str, str] = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32"},
    **{"i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool"},
}
_HEAD = '''"""{title}

Made by plugin_triton: run it with torch and triton alone.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
{helpers}

'''
_CHECK = '''
def check(flag):
    """Raises where an index was out of range; on a GPU as eager does, when the device is next waited for."""
    if flag.is_cuda:
        torch._assert_async(flag == 0, "an index is out of range")
    elif flag.item():
        raise IndexError("an index is out of range")

'''


@dataclass(frozen=True)
class File:
    """The text of a cluster's file, and its kernels."""

    text: str
    kernels: tuple[Kernel, ...]
    dtypes: Mapping[str, str]
    """Dtype behind each parameter that is memory."""
    counts: Mapping[str, int]
    """Elements behind each of these, where that is known."""
    numbers: Mapping[str, str]
    """Triton's type of each parameter that is a plain number; sizes are i64."""


Choose = Callable[[Kernel, Mapping[str, str]], Blocks | None]
"""Gives the blocks of a kernel, of which it sees the text with those that rules give it, and the dtypes behind its
parameters; None for the rules'."""


def by_rules(kernel: Kernel, dtypes: Mapping[str, str]) -> Blocks | None:  # noqa: ARG001 - a `Choose`
    """Chooses nothing."""
    return None


def file_of(cluster: Cluster, lowered: Lowered, *, is_interpreted: bool, choose: Choose = by_rules) -> File:
    """Gives the file. `is_interpreted` has rules for block sizes that suit the interpreter."""
    return _File(cluster, lowered, choose, is_interpreted=is_interpreted).written()


class _File:
    def __init__(self, cluster: Cluster, lowered: Lowered, choose: Choose, *, is_interpreted: bool) -> None:
        self.cluster = cluster
        self.choose = choose
        self.lowered = lowered = for_kernels(lowered)
        self.is_interpreted = is_interpreted
        self.sizes: dict[Size, str] = {}
        self.names: dict[Tensor, str] = {}
        self.dtypes: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.kernels: list[Kernel] = []
        for place, output in enumerate(lowered.outputs):
            self.names[root_of(output)] = f"o{place}"

    def name_of(self, tensor: Tensor) -> str:
        """Gives the name of a tensor's memory."""
        root = root_of(tensor)
        name = root.name if isinstance(root, Source) else self.names.setdefault(root, f"t{len(self.names)}")
        self.dtypes[name] = root.dtype
        if is_static(count := product(root.shape)):
            self.counts[name] = count
        return name

    def written(self) -> File:
        schedule = scheduled(self.lowered.outputs, has_annexes=False)
        carriers = self._carriers(schedule)
        carried = {tensor for tensor, _ in carriers.values()}
        stages = [stage for stage in schedule.stages if stage not in carried]
        self.kernels = [self._kernel(f"k{place}", stage, carriers) for place, stage in enumerate(stages)]
        text = "\n\n".join(kernel.text for kernel in self.kernels)
        may_leave = any(kernel.may_leave for kernel in self.kernels)
        head = _HEAD.format(title=f"Cluster {self.cluster.name}: {len(self.kernels)} kernels.", helpers=helpers(text))
        memory = [tensor for tensor in schedule.stored if tensor not in carried]
        text = f"{head}{text}\n{_CHECK if may_leave else ''}\n{self._call(memory, may_leave=may_leave)}"
        return File(text, tuple(self.kernels), self.dtypes, self.counts, _numbers(self.cluster))

    def _kernel(self, name: str, stage: Stage, carriers: Mapping[Group, tuple[Tensor, Epilogue]]) -> Kernel:
        tensor, epilogue = carriers.get(stage, (stage, None)) if isinstance(stage, Group) else (stage, None)
        kernel = self._written(name, tensor, epilogue, None)
        chosen = self.choose(kernel, self.dtypes)
        return kernel if chosen is None else self._written(name, tensor, epilogue, chosen)

    def _written(self, name: str, tensor: Stage, epilogue: Epilogue | None, chosen: Blocks | None) -> Kernel:
        writer = Writer(self.name_of, self.sizes, self.lowered.origins, chosen)
        kernel = self._kernel_by(writer, name, tensor, epilogue)
        if not writer.needs_wide:  # which is known of all that a kernel touches once it is written
            return kernel
        writer = Writer(self.name_of, self.sizes, self.lowered.origins, chosen, is_wide=True)
        return self._kernel_by(writer, name, tensor, epilogue)

    def _kernel_by(self, writer: Writer, name: str, tensor: Stage, epilogue: Epilogue | None) -> Kernel:
        match tensor:
            case Product():
                return product_kernel(tensor, epilogue, name, writer, is_interpreted=self.is_interpreted)
            case Attention():
                return attention_kernel(tensor, epilogue, name, writer, is_interpreted=self.is_interpreted)
            case Scan():
                return scan_kernel(tensor, name, writer, is_interpreted=self.is_interpreted)
            case Put():
                return put_kernel(tensor, name, writer, is_interpreted=self.is_interpreted)
            case Group():
                return kernel_of(tensor, name, writer, is_interpreted=self.is_interpreted)
            case _:
                raise AssertionError(f"nobody writes {type(tensor).__name__}")

    def _carriers(self, schedule: Schedule) -> dict[Group, tuple[Tensor, Epilogue]]:
        """Gives which product, or attention, takes a group along; the group comes after all that it reads."""
        outputs = {root_of(output) for output in self.lowered.outputs}
        found: dict[Group, tuple[Tensor, Epilogue]] = {}
        for stage in schedule.stages:
            epilogue = epilogue_of(stage, schedule, outputs) if isinstance(stage, (Product, Attention)) else None
            if epilogue is not None and isinstance(stage, Tensor) and epilogue.group not in found:
                found[epilogue.group] = (stage, epilogue)
        return found

    # --- the launcher ---

    def _call(self, memory: list[Tensor], *, may_leave: bool) -> str:
        weights = list(self.lowered.weights)
        names = [*(f"i{place}" for place in range(len(self.cluster.inputs))), *weights]
        symbols = symbol_texts(self.cluster)
        lines = [
            f"def call({', '.join([*names, 'device'])}):",
            '    """Runs one call; gives new tensors. Weights are packed already."""',
        ]
        lines += [f"    s{place} = {text}" for place, text in enumerate(symbols.values())]
        lines += [f"    {line}" for place, spec in enumerate(self.cluster.inputs) for line in _packed(place, spec)]
        texts: dict[Any, str] = {symbol: f"s{place}" for place, symbol in enumerate(symbols)}
        shapes = {self.name_of(tensor): tensor for tensor in memory}
        for place, output in enumerate(self.lowered.outputs):
            shapes[f"o{place}"] = root_of(output)
        lines += [f"    {name} = {python_text(size, texts)}" for size, name in self.sizes.items()]
        for name, tensor in shapes.items():
            shape = "".join(python_text(size, texts) + ", " for size in tensor.shape)
            lines.append(f"    {name} = torch.empty(({shape}), dtype=torch.{TORCH_TYPES[tensor.dtype]}, device=device)")
        if may_leave:
            lines.append("    flag = torch.zeros(1, dtype=torch.int32, device=device)")
        for kernel in self.kernels:
            if kernel.copied:
                into, source = kernel.copied
                lines.append(f"    {into}.view(-1).copy_({source}.view(-1))")
            lines.append(f"    {_launch(kernel)}")
        if may_leave:
            lines.append("    check(flag)")
        results: list[str] = []
        for place, spec in enumerate(self.cluster.outputs):
            order = memory_order(spec)
            shape = "".join(python_text(size_of(spec.shape[dim]), texts) + ", " for dim in order)
            text = f"o{place}.view(({shape}))"
            results.append(text if order == tuple(range(len(order))) else f"{text}.permute({inverse(order)})")
        lines.append(f"    return ({''.join(result + ', ' for result in results)})")
        return "\n".join(lines) + "\n"


def _packed(place: int, spec: TensorSpec | ScalarSpec) -> list[str]:
    """Lines that make an input one whose elements lie in memory in the order that was compiled for."""
    if isinstance(spec, ScalarSpec):
        return []
    order = memory_order(spec)
    is_plain = order == tuple(range(len(order)))
    return [f"i{place} = i{place}{'' if is_plain else f'.permute({order})'}.contiguous()"]


def _numbers(cluster: Cluster) -> dict[str, str]:
    """Gives the types of inputs that are plain numbers."""
    kinds = {"int": "i64", "float": "fp64", "bool": "u1"}
    return {f"i{place}": kinds[spec.kind] for place, spec in enumerate(cluster.inputs) if isinstance(spec, ScalarSpec)}


def _launch(kernel: Kernel) -> str:
    blocks = [f"{name}={size}" for name, size in kernel.blocks.sizes.items()]
    handed = [*kernel.parameters, *(["flag"] if kernel.may_leave else []), *blocks]
    handed += [f"{name}={value}" for name, value in launch_options(kernel.blocks).items()]
    grid = "".join(part + ", " for part in kernel.grid)
    return f"{kernel.name}[({grid})]({', '.join(handed)})"


def launch_options(blocks: Blocks) -> dict[str, Any]:
    """Gives what Triton is told beside parameters. Fused multiply-adds would round once where eager rounds twice."""
    return {"num_warps": blocks.warps, "num_stages": blocks.stages, "enable_fp_fusion": False}
