"""The whole machine program: one function for each stage, and the one that runs them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hub.toolkit.affine import Affine
from hub.toolkit.groups import Group, Schedule, Stage, scheduled
from hub.toolkit.reading import behind, in_order, reads
from hub.toolkit.simplify import simplified
from hub.toolkit.sizes import is_static, product, python_text, times
from hub.toolkit.tensors import Product, Put, Reshape, Scan, Source, Tensor, arguments_of

from .frame import OUTSIDE, Frame
from .kernel import Kernel, kernel_of
from .memory import ITEM_BYTES
from .products import product_of
from .puts import put_of
from .scans import scan_of
from .writer import Value, Writer

ENTRY = "disc_main"
NAME = "kernel"
"""The name of every kernel until equal kernels are merged."""
OUTSIDE_REPORT = "%frame : i64, !llvm.ptr"
"""The text that marks a stage as one that may report an index out of range."""
PARALLEL_WORK = 32768
"""Number of elements from which on threads are worth waking: about 5 us of work, several times OpenMP's start-up."""
NARROW = 64
"""Row length up to which an expensive function of a row's value costs as much as the row: exp is 20 instructions."""
ALIGNMENT = 64


@dataclass(frozen=True)
class MachineProgram:
    """The text of a program, and the contents of its frame for a call."""

    text: str
    slots: tuple[str, ...]
    workspace: str
    """The Python expression of the bytes that intermediate tensors need."""
    functions: tuple[str, ...]
    """The functions of PyTorch's library that it calls."""


def machine_program(
    outputs: Sequence[Tensor], *, inputs: Mapping[str, str], symbols: Mapping[Any, str], lanes: int, threads: int
) -> MachineProgram:
    """Return the program that computes some tensors into the memory at `o0`, `o1` ...

    `inputs` maps each source to the Python text of its address, `symbols` each symbol to that of its value.
    """
    frame = Frame(symbols)
    outputs = simplified(outputs, in_order(outputs), threads=threads)
    schedule = scheduled(outputs, narrow=NARROW)
    places, workspace = _places(outputs, schedule, symbols)
    for tensor in schedule.stage_of:
        if isinstance(tensor, Source):
            places[tensor] = inputs[tensor.name]
    kernels = [_kernel(stage, number, symbols, lanes, threads, places) for number, stage in enumerate(schedule.stages)]
    kernels = _without_doubles(kernels)
    distinct = {kernel.name: kernel for kernel in kernels}.values()
    texts = [kernel.text for kernel in distinct]
    texts.append(_entry(kernels, schedule.stages, frame, lanes, threads))
    names = tuple(text.split("'")[1] for text in frame.slots if text.startswith("address["))
    return MachineProgram("\n".join(texts), tuple(frame.slots), workspace, names)


_WRITERS: Mapping[type[Stage], Any] = {Group: kernel_of, Product: product_of, Scan: scan_of, Put: put_of}


def _kernel(
    stage: Stage, number: int, symbols: Mapping[Any, str], lanes: int, threads: int, places: Mapping[Tensor, str]
) -> Kernel:
    frame = Frame(symbols)

    def slot_of(tensor: Tensor) -> int:
        return frame.slot(places[tensor])

    write = next(write for kind, write in _WRITERS.items() if isinstance(stage, kind))
    kernel = write(stage, NAME, frame, lanes, slot_of)
    text = kernel.text
    if _may_share(kernel, threads):
        text += "\n" + _shared(frame.slot(python_text(kernel.tasks, symbols)), frame, lanes)
    return replace(kernel, name=f"k{number}", text=text, slots=tuple(frame.slots))


def _without_doubles(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels, with one name for those with equal text."""
    names: dict[str, str] = {}
    result: list[Kernel] = []
    for kernel in kernels:
        name = names.setdefault(kernel.text, kernel.name)
        text = kernel.text.replace(f"@{NAME}", f"@{name}")
        result.append(replace(kernel, name=name, text=text))
    return result


# --- Running stages ---------------------------------------------------------------------------------------------------


def _may_share(kernel: Kernel, threads: int) -> bool:
    if threads <= 1 or kernel.tasks == 1:
        return False
    return not is_static(kernel.work) or kernel.work >= PARALLEL_WORK


def _shared(tasks_slot: int, frame: Frame, lanes: int) -> str:
    """Write the function that each thread of a team runs: its share of the tasks."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{NAME}_part(%frame: !llvm.ptr)")
    counts: list[Value] = []
    for name in ("omp_get_thread_num", "omp_get_num_threads"):
        pointer = writer.slot(frame.function(name), "!llvm.ptr")
        number = writer.put(f"llvm.call {pointer.name}() : !llvm.ptr, () -> i32", "i32", is_wide=False, level=0, key=name)
        counts.append(writer.put(f"arith.extsi {number.name} : i32 to i64", "i64", is_wide=False, level=0))
    mine, team = counts
    tasks = writer.slot(tasks_slot, "i64")
    begin = writer.scalar("arith.divsi", writer.scalar("arith.muli", tasks, mine), team)
    following = writer.scalar("arith.addi", mine, writer.number(1))
    end = writer.scalar("arith.divsi", writer.scalar("arith.muli", tasks, following), team)
    writer.line(f"llvm.call @{NAME}(%frame, {begin.name}, {end.name}) : (!llvm.ptr, i64, i64) -> ()")
    return writer.finish()


def _entry(kernels: Sequence[Kernel], stages: Sequence[Stage], frame: Frame, lanes: int, threads: int) -> str:
    """Write the function that runs all stages, each with its own frame."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{ENTRY}(%frame: !llvm.ptr)")
    most = max((len(kernel.slots) for kernel in kernels), default=1)
    writer.line(f"%own = llvm.alloca {writer.number(most).name} x i64 : (i64) -> !llvm.ptr")
    for kernel, stage in zip(kernels, stages, strict=True):
        needed = product(stage.shape) if isinstance(stage, Product) else 1
        if needed == 0 or kernel.tasks == 0:
            continue
        _fill(writer, kernel, frame)
        if is_static(needed):
            _run(writer, kernel, frame, threads)
        else:
            some = writer.is_less(writer.number(0), writer.number(needed))
            writer.open(f"scf.if {some.name}")
            _run(writer, kernel, frame, threads)
            writer.close()
        if OUTSIDE_REPORT in kernel.text:
            _report(writer)
    return writer.finish()


def _fill(writer: Writer, kernel: Kernel, frame: Frame) -> None:
    """Write the copy of the slots that a stage needs from the program's frame into the stage's."""
    for place, text in enumerate(kernel.slots):
        value = writer.slot(frame.slot(text), "i64") if text != OUTSIDE else writer.number(0)
        at = writer.put(f"llvm.getelementptr %own[{place}] : (!llvm.ptr) -> !llvm.ptr, i64", "ptr", is_wide=False, level=0)
        writer.line(f"llvm.store {value.name}, {at.name} : i64, !llvm.ptr")


def _report(writer: Writer) -> None:
    """Write the code that passes on a stage's report of an index out of range."""
    found, before, now = writer.fresh(), writer.fresh(), writer.fresh()
    writer.line(f"{found} = llvm.load %own : !llvm.ptr -> i64")
    writer.line(f"{before} = llvm.load %frame : !llvm.ptr -> i64")
    writer.line(f"{now} = arith.ori {found}, {before} : i64")
    writer.line(f"llvm.store {now}, %frame : i64, !llvm.ptr")


def _run(writer: Writer, kernel: Kernel, frame: Frame, threads: int) -> None:
    tasks = writer.number(kernel.tasks)
    alone = f"llvm.call @{kernel.name}(%own, {writer.number(0).name}, {tasks.name}) : (!llvm.ptr, i64, i64) -> ()"
    if not _may_share(kernel, threads):
        writer.line(alone)
        return
    team = writer.constant(threads, "i32")
    nothing = writer.constant(0, "i32")
    address = writer.put(f"llvm.mlir.addressof @{kernel.name}_part : !llvm.ptr", "ptr", is_wide=False, level=0)
    start = writer.slot(frame.function("GOMP_parallel"), "!llvm.ptr")
    shared = (
        f"llvm.call {start.name}({address.name}, %own, {team.name}, {nothing.name})"
        " : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i32, i32) -> ()"
    )
    if is_static(kernel.work):
        writer.line(shared)
        return
    is_little = writer.is_less(writer.number(kernel.work), writer.number(PARALLEL_WORK))
    is_one = writer.is_less(tasks, writer.number(2))
    is_alone = writer.put(f"arith.ori {is_little.name}, {is_one.name} : i1", "i1", is_wide=False, level=0)
    writer.line(f"scf.if {is_alone.name} {{\n{alone}\n}} else {{\n{shared}\n}}")


# --- Memory -----------------------------------------------------------------------------------------------------------


def _places(outputs: Sequence[Tensor], schedule: Schedule, symbols: Mapping[Any, str]) -> tuple[dict[Tensor, str], str]:
    """Return the Python text of each stored tensor's address, and of the bytes of workspace.

    Memory of known size is reused by later tensors once its last reader has run.
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
