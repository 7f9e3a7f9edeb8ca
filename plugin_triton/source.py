"""Write one Python file for a cluster: its kernels, `call` to allocate and launch, and `example` to make arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    ScalarSpec,
    Spec,
    TensorSpec,
    count,
    priced_size,
)
from hub.toolkit.cluster import Lowered
from hub.toolkit.groups import Group, Schedule, Stage, scheduled
from hub.toolkit.layout import inverse, memory_order
from hub.toolkit.sizes import Size, is_static, product, python_text, size_of
from hub.toolkit.symbols import symbol_texts
from hub.toolkit.tensors import Product, Put, Scan, Source, Tensor

from .attention import Attention
from .blocks import Blocks
from .carried import CHECK, HEAD, IMPORT, INTERPRETED, LIBRARY, MAIN
from .flash import attention_kernel
from .formatting import formatted, tuple_text
from .functions import shown
from .kernel import IEEE, Kernel, Writer, kernel_of, root_of
from .products import Epilogue, epilogue_of, product_kernel
from .program import for_kernels
from .prologues import Multiplied
from .puts import put_kernel
from .reductions import helpers
from .scans import scan_kernel

NAME = "kernels.py"
"""Name of a file of kernels."""
TORCH_TYPES: Mapping[str, str] = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32"},
    **{"i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool"},
}


@dataclass(frozen=True)
class File:
    """The text of a cluster's file, and its kernels."""

    text: str
    kernels: tuple[Kernel, ...]
    dtypes: Mapping[str, str]
    """Dtype of each parameter that is memory."""
    counts: Mapping[str, int]
    """Number of elements of each of these, if it is known."""
    numbers: Mapping[str, str]
    """Triton's type of each parameter that is a number; sizes are i64."""
    program: Lowered
    """The tensor program that the kernels compute."""
    stages: tuple[tuple[Stage, Epilogue | None], ...]
    """The stage of the program that each kernel computes, and the epilogue fused into it."""


Choose = Callable[[Kernel, Mapping[str, str]], Blocks | None]
"""A function that returns the blocks of a kernel, or None for the blocks by rules.

It is called with the kernel as written with the blocks by rules, and with the dtypes of its parameters.
"""


def by_rules(kernel: Kernel, dtypes: Mapping[str, str]) -> Blocks | None:  # noqa: ARG001 - a `Choose`
    """Return None, which keeps the blocks by rules."""
    return None


def file_of(
    cluster: Cluster, lowered: Lowered, *, is_interpreted: bool, choose: Choose = by_rules, precision: str = IEEE
) -> File:
    """Return the file of a cluster. `is_interpreted` selects block sizes by rules that suit the interpreter.

    `precision` is how products read float32: "ieee" unchanged, "tf32" with 10 bits of fraction, on tensor cores.
    """
    return _File(cluster, lowered, choose, precision, is_interpreted=is_interpreted).written()


class _File:
    def __init__(self, cluster: Cluster, lowered: Lowered, choose: Choose, precision: str, *, is_interpreted: bool) -> None:
        self.cluster = cluster
        self.choose = choose
        self.precision = precision
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
        """Return the name of a tensor's memory."""
        root = root_of(tensor)
        name = root.name if isinstance(root, Source) else self.names.setdefault(root, f"t{len(self.names)}")
        self.dtypes[name] = root.dtype
        if is_static(elements := product(root.shape)):
            self.counts[name] = elements
        return name

    def written(self) -> File:
        schedule = scheduled(self.lowered.outputs, has_annexes=False)
        carriers = self._carriers(schedule)
        carried = {tensor for tensor, _ in carriers.values()}
        stages = [
            carriers.get(stage, (stage, None)) if isinstance(stage, Group) else (stage, None)
            for stage in schedule.stages
            if stage not in carried
        ]
        self.kernels = [self._kernel(f"k{place}", *stage) for place, stage in enumerate(stages)]
        memory = [tensor for tensor in schedule.stored if tensor not in carried]
        text = self._text(memory)
        numbers = _numbers(self.cluster)
        return File(text, tuple(self.kernels), self.dtypes, self.counts, numbers, self.lowered, tuple(stages))

    def _text(self, memory: Sequence[Tensor]) -> str:
        kernels = "".join(f"\n\n{kernel.text}" for kernel in self.kernels)
        may_leave = any(kernel.may_leave for kernel in self.kernels)
        parts = [
            HEAD.format(cluster=self.cluster.name, kernels=count(len(self.kernels), "kernel"), file=NAME),
            IMPORT + LIBRARY if "libdevice." in kernels else "",
            INTERPRETED if "INTERPRETED" in kernels else "",
            helpers(kernels),
            kernels,
            CHECK if may_leave else "",
            f"\n\n{self._call(memory, may_leave=may_leave)}",
            f"\n\n{_example(self.cluster, self.lowered)}",
            MAIN,
        ]
        return formatted("".join(parts))

    def _kernel(self, name: str, tensor: Stage, epilogue: Epilogue | None) -> Kernel:
        kernel = self._written(name, tensor, epilogue, None)
        chosen = self.choose(kernel, self.dtypes)
        return kernel if chosen is None else self._written(name, tensor, epilogue, chosen)

    def _written(self, name: str, tensor: Stage, epilogue: Epilogue | None, chosen: Blocks | None) -> Kernel:
        writer = Writer(self.name_of, self.sizes, self.lowered.origins, chosen, self.precision)
        kernel = self._kernel_by(writer, name, tensor, epilogue)
        if not writer.needs_wide:  # known once it is written
            return kernel
        writer = Writer(self.name_of, self.sizes, self.lowered.origins, chosen, self.precision, is_wide=True)
        return self._kernel_by(writer, name, tensor, epilogue)

    def _kernel_by(self, writer: Writer, name: str, tensor: Stage, epilogue: Epilogue | None) -> Kernel:
        match tensor:
            case Product() | Multiplied():
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
                raise AssertionError(f"no rule writes a {type(tensor).__name__}")

    def _carriers(self, schedule: Schedule) -> dict[Group, tuple[Stage, Epilogue]]:
        """Return the product or attention that each fused group is an epilogue of; a group comes after its operands."""
        outputs = {root_of(output) for output in self.lowered.outputs}
        found: dict[Group, tuple[Stage, Epilogue]] = {}
        for stage in schedule.stages:
            epilogue = (
                epilogue_of(stage, schedule, outputs) if isinstance(stage, (Product, Multiplied, Attention)) else None
            )
            if epilogue is not None and isinstance(stage, Tensor) and epilogue.group not in found:
                found[epilogue.group] = (stage, epilogue)
        return found

    # --- the launcher ---

    def _call(self, memory: Sequence[Tensor], *, may_leave: bool) -> str:
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
        lines += [f"    {name} = {_size_text(size, texts)}" for size, name in self.sizes.items()]
        for name, tensor in shapes.items():
            shape = tuple_text(_size_text(size, texts) for size in tensor.shape)
            lines.append(f"    {name} = torch.empty({shape}, dtype=torch.{TORCH_TYPES[tensor.dtype]}, device=device)")
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
            shape = tuple_text(_size_text(size_of(spec.shape[dim]), texts) for dim in order)
            text = f"o{place}.view({shape})"
            results.append(text if order == tuple(range(len(order))) else f"{text}.permute({inverse(order)})")
        lines.append(f"    return {tuple_text(results)}")
        return "\n".join(lines) + "\n"


def _example(cluster: Cluster, lowered: Lowered) -> str:
    """Return the text of `example`: arguments for `call`, of the shapes that the cluster was captured with."""
    weights = [_random(tuple(weight.shape), weight.dtype) for weight in lowered.weights.values()]
    made = [*map(_given, cluster.inputs), *weights]
    lines = [
        "def example(device):",
        '    """Gives inputs and weights: random numbers; integers are 0, which every place may be."""',
    ]
    if any(text.startswith("torch.") for text in made):
        lines.append("    torch.manual_seed(0)")
    return "\n".join([*lines, f"    return {tuple_text(made)}"]) + "\n"


def _given(spec: Spec) -> str:
    if isinstance(spec, TensorSpec):
        return _random(tuple(map(priced_size, spec.shape)), spec.dtype)
    return (
        str(priced_size(spec.value)) if spec.kind == "int" else shown(spec.value, "f64" if spec.kind == "float" else "i1")
    )


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    made = "randn" if dtype.is_floating_point else "zeros"
    return f"torch.{made}({shape}, dtype={dtype}, device=device)"


def _size_text(size: Size, known: Mapping[Any, str]) -> str:
    """Return the Python expression of a size, spaced as formatters do."""
    return ast.unparse(ast.parse(python_text(size, known), mode="eval")).replace(" ** ", "**")


def _packed(place: int, spec: TensorSpec | ScalarSpec) -> list[str]:
    """Return the lines that bring an input's elements into the memory order that the kernels were compiled for."""
    if isinstance(spec, ScalarSpec):
        return []
    order = memory_order(spec)
    is_plain = order == tuple(range(len(order)))
    return [f"i{place} = i{place}{'' if is_plain else f'.permute({order})'}.contiguous()"]


def _numbers(cluster: Cluster) -> dict[str, str]:
    """Return the types of inputs that are numbers."""
    kinds = {"int": "i64", "float": "fp64", "bool": "u1"}
    return {f"i{place}": kinds[spec.kind] for place, spec in enumerate(cluster.inputs) if isinstance(spec, ScalarSpec)}


def _launch(kernel: Kernel) -> str:
    blocks = [f"{name}={size}" for name, size in kernel.blocks.sizes.items()]
    handed = [*kernel.parameters, *(["flag"] if kernel.may_leave else []), *blocks]
    handed += [f"{name}={value}" for name, value in launch_options(kernel.blocks).items()]
    grid = tuple_text(kernel.grid)
    return f"{kernel.name}[{grid}]({', '.join(handed)})"


def launch_options(blocks: Blocks) -> dict[str, Any]:
    """Return the launch options of a kernel. Fused multiply-adds are off: they round once where eager rounds twice."""
    return {"num_warps": blocks.warps, "num_stages": blocks.stages, "enable_fp_fusion": False}
