"""Times Triton's kernels on a GPU against Inductor, PyTorch's own kernels and a copy: `make bench-triton`. Needs a GPU.

Every contender runs on the same tensors. Kernels are timed by `triton.testing.do_bench` (medians, with the L2 cache cleared
in between); whole models, each as a CUDA graph if possible, in interleaved blocks. Run parts of it with `python -m
benchmarks.triton memory attention`; `--tune 120` first tunes block sizes, for so many seconds per cluster or model. Each
run is written as soon as it is done. A run that fails is written with its error, and the next one follows; the exit status
is then 1. The targets are in `triton_bars.py`; a missed bar is a result, not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import hub
from benchmarks.triton_bars import SDPA, is_time, judged, told
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.config.options import resolve
from hub.errors import text_of
from hub.planning.kernels import tune_kernels
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import IMAGES, PROGRAMS, Wrapped, inputs_of

RESULTS = Path(__file__).parent / "results" / "triton.json"
DEVICE = "cuda"
ROWS, COLUMNS = 8192, 4096
"""Size of memory-bound programs: 128 MiB per float32 tensor, beyond every GPU's L2 cache; a quarter of each for images."""
COPIED = 1 << 28
"""Elements of float32 that a copy moves."""
LENGTHS = (1024, 2048, 4096, 8192, 16384)
WIDTHS = (64, 128)
"""Sizes of attention: keys, and elements of a head."""
KERNELS = dict(
    zip(SDPA, (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION), strict=True)
)
LAYERS: Mapping[str, tuple[int, int, int]] = {
    "bert-base up": (4096, 768, 3072),
    "bert-base down": (4096, 3072, 768),
    "llama-7b up": (4096, 4096, 11008),
    "llama-7b down": (4096, 11008, 4096),
    "gpt2 vocabulary": (4096, 768, 50304),
}
"""Rows, depth and columns of products of real layers."""
MODELS = ("bert", "gpt2", "llama", "vit", "resnet50")
BATCHES = (1, 32)
DTYPES = (torch.float32, torch.bfloat16)
WARM_CALLS = 5
"""Calls of a model before timing: more than the hub and Inductor run before they record a CUDA graph."""
ROUNDS = 30
BLOCK_S = 0.05
WRONG = 0.05
"""Largest error of a kernel's results, as a share of the largest value, for which its time is meaningful."""

Call = Callable[[], Any]
Contender = Callable[[], AbstractContextManager[Call]]
"""Function that returns a context manager, which provides the call that runs the contender once."""
Row = dict[str, Any]
Cases = Iterable[tuple[str, Callable[[], Row]]]
"""Runs by name, each created when its turn comes."""


def main() -> None:
    """Print a line for each figure and bar, and write them. Exit with status 1 without a GPU, or after a failed run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="time block sizes first")
    parser.add_argument("--budget", type=float, default=600.0, metavar="SECONDS", help="of the hub's planning of a model")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if not _has_gpu():
        print("benchmarks.triton: no CUDA device is here, and nothing is estimated")
        sys.exit(1)
    with torch.no_grad():
        failed = [name for name in chosen.parts if not _written(name, chosen)]
    if failed:
        print(f"benchmarks.triton: runs failed in {', '.join(failed)}; {chosen.output} has their errors")
        sys.exit(1)


def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _written(part: str, chosen: argparse.Namespace) -> bool:
    """Run a part, and write each run and then the outcome of its bars. Return whether all of its runs succeeded."""
    facts = _facts(chosen)
    rows: list[Row] = []
    for row in _runs(part, chosen):
        rows.append(row)
        _write(chosen.output, part, {**facts, "runs": rows})
    outcome = judged(part, rows)
    _write(chosen.output, part, {**facts, **outcome, "runs": rows})
    for other, mean in outcome["means"].items():
        print(f"{part}: geometric mean {other} {mean:.2f}")
    for bar in outcome["bars"]:
        print(f"{part}: {told(bar)}", flush=True)
    return not any("error" in row for row in rows)


def _facts(chosen: argparse.Namespace) -> Row:
    command = f"python -m benchmarks.triton --tune {chosen.tune:g} --budget {chosen.budget:g}"
    facts: Row = {"command": command, "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    facts["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    return facts | {"machine": this_machine().model_dump(mode="json")}


def _write(file: Path, part: str, section: Row) -> None:
    """Write a part's section to the file, completely or not at all."""
    before: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({**before, part: section}, indent=2) + "\n")
    partial.replace(file)


def _runs(part: str, chosen: argparse.Namespace) -> Iterator[Row]:
    """Yield a part's rows. A run that raises is a row with its error."""
    try:
        for label, run in PARTS[part](chosen):
            yield _attempted(label, run)
    except Exception as error:  # noqa: BLE001 - the other parts still run
        yield _failure(part, error)


def _attempted(label: str, run: Callable[[], Row]) -> Row:
    try:
        row: Row = {"program": label, **run()}
        if not all(map(is_time, row["call_s"].values())):
            raise ValueError(f"no time was taken: {row['call_s']}")
    except Exception as error:  # noqa: BLE001 - one failing program must not lose the others' figures
        return _failure(label, error)
    finally:
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    print(_line(row), flush=True)
    return row


def _failure(label: str, error: Exception) -> Row:
    text = text_of(error)
    print(f"{label:40} FAILED: {text}", flush=True)
    return {"program": label, "error": text}


def _line(row: Row) -> str:
    """Return a run's ratios as a line."""
    call_s: Mapping[str, float] = row["call_s"]
    own = "triton" if "triton" in call_s else "hub"
    ratios = "  ".join(f"{other} / {own} {call_s[other] / call_s[own]:.2f}" for other in call_s if other != own)
    of_copy = f"  of copy {row['of_copy']:.2f}" if "of_copy" in row else ""
    absent = f"  without {', '.join(row['absent'])}" if row.get("absent") else ""
    return f"{row['program']:40} {call_s[own] * 1e6:9.1f} us  {ratios}{of_copy}{absent}"


# --- Kernels ----------------------------------------------------------------------------------------------------------


def memory_bound(chosen: argparse.Namespace) -> Cases:
    """Yield memory-bound programs of real models, in float32: against Inductor, its max-autotune, and a copy."""
    copied = _copied_bytes_s()

    def run(name: str) -> Row:
        rows, columns = (ROWS // 4, COLUMNS // 4) if name in IMAGES else (ROWS, COLUMNS)
        inputs = tuple(value.to(DEVICE) for value in inputs_of(name, rows, columns))
        module = Wrapped(PROGRAMS[name])
        row = _timed(module, inputs, chosen.tune, {"eager": _eager(module, inputs), **_inductors(module, inputs)})
        return row | {"of_copy": row["bytes"] / row["call_s"]["triton"] / copied, "copied_bytes_s": copied}

    for name in PROGRAMS:
        yield name, lambda name=name: run(name)


def _copied_bytes_s() -> float:
    """Return the bytes per second that a copy reads and writes."""
    source = torch.ones(COPIED, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _kernel_s(lambda: target.copy_(source))


def attention(chosen: argparse.Namespace) -> Cases:
    """Yield attention in bfloat16, causal or not: against each of PyTorch's own kernels that supports it."""

    def run(length: int, width: int, *, is_causal: bool) -> Row:
        inputs = tuple(torch.randn(4, 16, length, width, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)

        module = Wrapped(attend)
        others = {"eager": _eager(module, inputs)}
        others |= {label: _within(kernel, module, inputs) for label, kernel in KERNELS.items()}
        return _timed(module, inputs, chosen.tune, others)

    for width in WIDTHS:
        for length in LENGTHS:
            for is_causal in (False, True):
                label = f"{length} keys, heads of {width}{', causal' if is_causal else ''}"
                yield label, lambda length=length, width=width, is_causal=is_causal: run(length, width, is_causal=is_causal)


def products(chosen: argparse.Namespace) -> Cases:
    """Yield products of real layers in bfloat16, with their epilogues: against cuBLAS and a separate kernel."""

    def run(shape: tuple[int, int, int], *, is_fused: bool) -> Row:
        rows, depth, columns = shape
        shapes = ((rows, depth), (columns, depth), (columns,))
        inputs = tuple(torch.randn(each, device=DEVICE, dtype=torch.bfloat16) for each in shapes)
        module = Wrapped(_linear_gelu if is_fused else functional.linear)
        others = {"eager": _eager(module, inputs), **(_inductors(module, inputs) if is_fused else {})}
        return _timed(module, inputs, chosen.tune, others) | {"is_fused": is_fused}

    for name, shape in LAYERS.items():
        yield name, lambda shape=shape: run(shape, is_fused=False)
        yield f"{name}, GELU", lambda shape=shape: run(shape, is_fused=True)


def _linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def _timed(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], tune_s: float, others: Mapping[str, Contender]
) -> Row:
    """Return median seconds of a call of Triton and of others, and the bytes of inputs and outputs.

    A contender that cannot run is absent, with its reason. Any exception of Triton propagates; raise ValueError if its
    result is wrong.
    """
    cluster, values = whole_cluster(module, inputs)
    backend = create(Settings())
    if tune_s:
        print(backend.tune([cluster], CompileSettings(threads=1, effort="full"), tune_s, print), flush=True)
    executable: Any = backend.compile(cluster, CompileSettings(threads=1))
    results = executable(*values)
    wrong_by = _wrong_by(results, cluster.module(*values))
    if not wrong_by <= WRONG:
        raise ValueError(f"Triton's results are off by {wrong_by:.1%} of the largest value")
    moved = sum(each.nbytes for each in (*inputs, *results))
    del results
    call_s = {"triton": _kernel_s(lambda: executable(*values))}
    absent: dict[str, str] = {}
    for label, contender in others.items():
        try:
            with contender() as call:
                call_s[label] = _kernel_s(call)
        except Exception as error:  # noqa: BLE001 - it lacks a kernel, or fails: the others are still of interest
            absent[label] = text_of(error)
    return {"bytes": moved, "wrong_by": wrong_by, "call_s": call_s, "absent": absent}


def _eager(module: torch.nn.Module, inputs: Sequence[Any]) -> Contender:
    return lambda: contextlib.nullcontext(lambda: module(*inputs))


def _inductors(module: torch.nn.Module, inputs: Sequence[Any]) -> dict[str, Contender]:
    """Return Inductor by default, and tuned; kernels are timed one by one, so without CUDA graphs."""
    modes = {"inductor": None, "max-autotune": "max-autotune-no-cudagraphs"}

    @contextlib.contextmanager
    def compiled(mode: str | None) -> Generator[Call]:
        torch.compiler.reset()
        run: Any = torch.compile(module, mode=mode)  # pyright: ignore[reportUnknownMemberType] - torch's
        run(*inputs)
        yield lambda: run(*inputs)

    return {label: lambda mode=mode: compiled(mode) for label, mode in modes.items()}


def _within(kernel: SDPBackend, module: torch.nn.Module, inputs: Sequence[Any]) -> Contender:
    """Return eager with only one of PyTorch's attention kernels."""

    @contextlib.contextmanager
    def alone() -> Generator[Call]:
        with sdpa_kernel(kernel):
            module(*inputs)
            yield lambda: module(*inputs)

    return alone


def _wrong_by(found: Any, wanted: Any) -> float:
    """Return the largest difference, as a share of the largest value of each result; NaN equals NaN."""
    pairs = zip(_tensors(found), _tensors(wanted), strict=True)
    return max((_apart(mine.float(), theirs.float()) for mine, theirs in pairs), default=0.0)


def _apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    is_odd = not torch.equal(mine.isnan(), theirs.isnan())
    largest = float(theirs.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) or 1.0
    return float("inf") if is_odd else float((mine - theirs).nan_to_num().abs().max()) / largest


def _tensors(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _kernel_s(call: Call) -> float:
    from triton import testing

    return float(cast("Any", testing).do_bench(call, warmup=50, rep=200, return_mode="median")) / 1e3


# --- Models -----------------------------------------------------------------------------------------------------------


def models(chosen: argparse.Namespace) -> Cases:
    """Yield whole models: the hub's plans against eager, Inductor and its max-autotune, each as a CUDA graph."""
    for name in MODELS:
        for batch in BATCHES:
            for dtype in DTYPES:
                label = f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}"
                yield label, lambda name=name, batch=batch, dtype=dtype: _model(name, batch, dtype, chosen)


def _model(name: str, batch: int, dtype: torch.dtype, chosen: argparse.Namespace) -> Row:
    """Return median seconds of a call of each contender, and the hub's plan; other contenders that fail are absent."""
    loaded = load_model(name, batch=batch)
    module = loaded.module.to(DEVICE, dtype)
    inputs = tuple(value.to(DEVICE, dtype if value.is_floating_point() else value.dtype) for value in loaded.inputs)
    tuned: tuple[str, ...] = ()
    if chosen.tune:
        only_triton = resolve({"backends": ("triton",)}, os.environ, Path.cwd())
        tuned = tune_kernels(module, inputs, only_triton, chosen.tune, print)
    planned: Any = _warm(module, inputs, _hub_way(chosen))
    calls: dict[str, Call] = {"hub": lambda: planned(*inputs)}
    wrong_by = _wrong_by(planned(*inputs), module(*inputs))
    absent: dict[str, str] = {}
    notes: dict[str, str] = {}
    try:
        calls["eager"] = _as_graph(lambda: module(*inputs))
    except Exception as error:  # noqa: BLE001 - then timed as users run it
        notes["eager"] = f"not as a CUDA graph: {text_of(error)}"
        calls["eager"] = lambda: module(*inputs)
    for label, mode in (("inductor", "reduce-overhead"), ("max-autotune", "max-autotune")):
        skipped = _skipped_graphs()
        try:
            compiled: Any = _warm(module, inputs, {"mode": mode})
        except Exception as error:  # noqa: BLE001 - the others are still of interest
            absent[label] = text_of(error)
            continue
        calls[label] = lambda compiled=compiled: compiled(*inputs)
        if _skipped_graphs() > skipped:
            notes[label] = "not all of it as CUDA graphs: Inductor skipped some"
    plans = hub.plans(planned)
    return {
        "call_s": _interleaved(calls),
        "wrong_by": wrong_by,
        "absent": absent,
        "notes": notes,
        "tuned": list(tuned),
        "plan": [f"{cluster.backend}: {len(cluster.nodes)} nodes" for plan in plans for cluster in plan.clusters],
        "events": [f"{event.kind}: {event.message}" for plan in plans for event in plan.events],
    }


def _hub_way(chosen: argparse.Namespace) -> dict[str, Any]:
    return {"backend": "hub", "options": {"cuda_graphs": True, "tune": "full", "budget_s": chosen.budget}}


def _warm(module: torch.nn.Module, inputs: Sequence[Any], way: Mapping[str, Any]) -> Any:
    """Compile a module and call it until its CUDA graphs are recorded."""
    compiled: Any = torch.compile(module, **way)  # pyright: ignore[reportUnknownMemberType] - torch's
    for _ in range(WARM_CALLS):
        compiled(*inputs)
    return compiled


def _skipped_graphs() -> int:
    """Return how often Inductor has skipped a CUDA graph so far."""
    from hub.torch_private import counters

    return int(counters["inductor"]["cudagraph_skips"])


def _as_graph(call: Call) -> Call:
    """Record a call and return its replay. Raise if no graph can hold it, after restoring the stream."""
    for _ in range(WARM_CALLS):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        call()
    return graph.replay


def _interleaved(contenders: Mapping[str, Call]) -> dict[str, float]:
    """Return the median seconds of a call of each contender, in alternating blocks of calls."""
    counts = {label: max(1, int(BLOCK_S / _block_s(call, 3))) for label, call in contenders.items()}
    found: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(ROUNDS):
        for label, call in contenders.items():
            found[label].append(_block_s(call, counts[label]))
    return {label: statistics.median(times) for label, times in found.items()}


def _block_s(call: Call, count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


PARTS: Mapping[str, Callable[[argparse.Namespace], Cases]] = {
    "memory": memory_bound,
    "attention": attention,
    "products": products,
    "models": models,
}

if __name__ == "__main__":
    main()
