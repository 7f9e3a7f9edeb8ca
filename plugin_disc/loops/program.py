"""Writes the whole machine program: one function for each stage, and the one that runs them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..affine import Affine
from ..sizes import is_static, product, python_text, times
from ..tensors import Product, Reshape, Source, Tensor, arguments_of
from .frame import Frame
from .group import Group, Schedule, Stage, behind, reads, scheduled
from .kernel import Kernel, kernel_of
from .memory import ITEM_BYTES
from .products import product_of
from .scans import scan_of
from .writer import Value, Writer

ENTRY = "disc_main"
PARALLEL_WORK = 32768
"""Elements from which on threads are worth waking: some 5 us of work, several times what OpenMP takes to start."""
ALIGNMENT = 64


@dataclass(frozen=True)
class MachineProgram:
    """The text, and what a call has to fill into its frame."""

    text: str
    slots: tuple[str, ...]
    workspace: str
    """Python expression of the bytes that intermediate tensors need."""
    functions: tuple[str, ...]
    """Functions of PyTorch's library that it calls."""


def machine_program(
    outputs: Sequence[Tensor], *, inputs: Mapping[str, str], symbols: Mapping[Any, str], lanes: int, threads: int
) -> MachineProgram:
    """Gives the program that computes some tensors into the memory at `o0`, `o1` ...

    `inputs` gives the Python text of each source's address, `symbols` that of each symbol's value.
    """
    frame = Frame(symbols)
    schedule = scheduled(outputs)
    places, workspace = _places(outputs, schedule, symbols)
    for tensor in schedule.stage_of:
        if isinstance(tensor, Source):
            places[tensor] = inputs[tensor.name]
    kernels = [
        _kernel(stage, f"k{number}", frame, lanes, lambda tensor: frame.slot(places[tensor]))
        for number, stage in enumerate(schedule.stages)
    ]
    texts = [kernel.text for kernel in kernels]
    texts += [_shared(kernel, frame, lanes) for kernel in kernels if _may_share(kernel, threads)]
    texts.append(_entry(kernels, schedule.stages, frame, lanes, threads))
    names = tuple(text.split("'")[1] for text in frame.slots if text.startswith("address["))
    return MachineProgram("\n".join(texts), tuple(frame.slots), workspace, names)


def _kernel(stage: Stage, name: str, frame: Frame, lanes: int, slot_of: Any) -> Kernel:
    if isinstance(stage, Group):
        return kernel_of(stage, name, frame, lanes, slot_of)
    if isinstance(stage, Product):
        return product_of(stage, name, frame, lanes, slot_of)
    return scan_of(stage, name, frame, lanes, slot_of)


# --- Running stages ---------------------------------------------------------------------------------------------------


def _may_share(kernel: Kernel, threads: int) -> bool:
    if threads <= 1 or kernel.tasks == 1:
        return False
    return not is_static(kernel.work) or kernel.work >= PARALLEL_WORK


def _shared(kernel: Kernel, frame: Frame, lanes: int) -> str:
    """The function that each thread of a team runs: its share of the tasks."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{kernel.name}_part(%frame: !llvm.ptr)")
    counts: list[Value] = []
    for name in ("omp_get_thread_num", "omp_get_num_threads"):
        pointer = writer.slot(frame.function(name), "!llvm.ptr")
        number = writer.put(f"llvm.call {pointer.name}() : !llvm.ptr, () -> i32", "i32", is_wide=False, level=0, key=name)
        counts.append(writer.put(f"arith.extsi {number.name} : i32 to i64", "i64", is_wide=False, level=0))
    mine, team = counts
    tasks = writer.number(kernel.tasks)
    begin = writer.scalar("arith.divsi", writer.scalar("arith.muli", tasks, mine), team)
    following = writer.scalar("arith.addi", mine, writer.number(1))
    end = writer.scalar("arith.divsi", writer.scalar("arith.muli", tasks, following), team)
    writer.line(f"llvm.call @{kernel.name}(%frame, {begin.name}, {end.name}) : (!llvm.ptr, i64, i64) -> ()")
    return writer.finish()


def _entry(kernels: Sequence[Kernel], stages: Sequence[Stage], frame: Frame, lanes: int, threads: int) -> str:
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{ENTRY}(%frame: !llvm.ptr)")
    for kernel, stage in zip(kernels, stages, strict=True):
        needed = product(stage.shape) if isinstance(stage, Product) else 1
        if needed == 0 or kernel.tasks == 0:
            continue
        if not is_static(needed):
            some = writer.put(
                f"arith.cmpi sgt, {writer.number(needed).name}, {writer.number(0).name} : i64", "i1", is_wide=False, level=0
            )
            writer.open(f"scf.if {some.name}")
        _run(writer, kernel, frame, threads)
        if not is_static(needed):
            writer.close()
    return writer.finish()


def _run(writer: Writer, kernel: Kernel, frame: Frame, threads: int) -> None:
    tasks = writer.number(kernel.tasks)
    alone = f"llvm.call @{kernel.name}(%frame, {writer.number(0).name}, {tasks.name}) : (!llvm.ptr, i64, i64) -> ()"
    if not _may_share(kernel, threads):
        writer.line(alone)
        return
    team = writer.constant(threads, "i32")
    nothing = writer.constant(0, "i32")
    address = writer.put(f"llvm.mlir.addressof @{kernel.name}_part : !llvm.ptr", "ptr", is_wide=False, level=0)
    start = writer.slot(frame.function("GOMP_parallel"), "!llvm.ptr")
    shared = (
        f"llvm.call {start.name}({address.name}, %frame, {team.name}, {nothing.name})"
        " : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i32, i32) -> ()"
    )
    if is_static(kernel.work):
        writer.line(shared)
        return
    work, enough = writer.number(kernel.work), writer.number(PARALLEL_WORK)
    text = f"arith.cmpi sge, {work.name}, {enough.name} : i64"
    is_much = writer.put(text, "i1", is_wide=False, level=0)
    writer.line(f"scf.if {is_much.name} {{\n{shared}\n}} else {{\n{alone}\n}}")


# --- Memory -----------------------------------------------------------------------------------------------------------


def _places(outputs: Sequence[Tensor], schedule: Schedule, symbols: Mapping[Any, str]) -> tuple[dict[Tensor, str], str]:
    """Gives the Python text of each stored tensor's address, and of the bytes of workspace.

    Memory of known size is given to a later tensor when its last reader has run.
    """
    places: dict[Tensor, str] = {tensor: f"o{place}.data_ptr()" for place, tensor in enumerate(outputs)}
    last = _last_use(schedule)
    first = {tensor: stage for tensor, stage in _first_write(schedule).items() if tensor not in places}
    free: list[tuple[int, int]] = []
    busy: list[tuple[int, int, int]] = []
    top = 0
    dynamic: list[str] = []
    for tensor in sorted(first, key=first.__getitem__):
        bytes_ = times(product(tensor.shape), ITEM_BYTES[tensor.dtype])
        if not is_static(bytes_):
            text = f"({python_text(bytes_, symbols)} + {2 * ALIGNMENT - 1}) // {ALIGNMENT} * {ALIGNMENT}"
            before = " + ".join(dynamic) or "0"
            places[tensor] = f"w + TOP + {before}"
            dynamic.append(text)
            continue
        size = -(-max(bytes_, 1) // ALIGNMENT) * ALIGNMENT
        ended = [item for item in busy if item[2] < first[tensor]]
        busy = [item for item in busy if item[2] >= first[tensor]]
        free = _merged([*free, *((start, length) for start, length, _ in ended)])
        fitting = min((hole for hole in free if hole[1] >= size), key=lambda hole: hole[1], default=None)
        if fitting is None:
            start, top = top, top + size
        else:
            start = fitting[0]
            free.remove(fitting)
            if fitting[1] > size:
                free.append((start + size, fitting[1] - size))
        busy.append((start, size, last.get(tensor, len(schedule.stages))))
        places[tensor] = f"w + {start}"
    places = {tensor: text.replace("TOP", str(top)) for tensor, text in places.items()}
    return places, " + ".join((str(top), *dynamic))


def _merged(holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for start, length in sorted(holes):
        if result and sum(result[-1]) == start:
            result[-1] = (result[-1][0], result[-1][1] + length)
        else:
            result.append((start, length))
    return result


def _first_write(schedule: Schedule) -> dict[Tensor, int]:
    first: dict[Tensor, int] = {}
    for number, stage in enumerate(schedule.stages):
        written = [store.into for store in stage.stores] if isinstance(stage, Group) else [stage]
        for tensor in written:
            first.setdefault(tensor, number)
    return first


def _last_use(schedule: Schedule) -> dict[Tensor, int]:
    last: dict[Tensor, int] = {}
    for number, stage in enumerate(schedule.stages):
        if isinstance(stage, Group):
            sources = [source for member in stage.members for source, _ in reads(member)]
            sources += [store.into for store in stage.stores]
        else:
            sources = [source for each in arguments_of(stage) for source, _ in behind(each, (Affine(),) * len(each.shape))]
            sources.append(stage)
        for source in sources:
            while isinstance(source, Reshape):
                source = source.source
            last[source] = number
    return last
