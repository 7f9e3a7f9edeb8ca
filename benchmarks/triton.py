"""Times Triton's kernels on a GPU against Inductor, PyTorch's own kernels and a copy: `make bench-triton`, which needs one.

Every contender runs on the same tensors. Kernels are timed by `triton.testing.do_bench` (medians, the L2 cache emptied in
between); whole models, each as a CUDA graph where that can be, in blocks that take turns. Run parts of it with
`python -m benchmarks.triton memory attention`; `--tune 120` times block sizes before, for so many seconds a cluster.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from hub.backend import CompileSettings
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.testing.single import whole_cluster
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import IMAGES, PROGRAMS, Wrapped, inputs_of

RESULTS = Path(__file__).parent / "results" / "triton.json"
ROWS, COLUMNS = 8192, 4096
"""Of memory-bound programs: 128 MiB a float32 tensor, beyond every GPU's L2 cache."""
COPIED = 1 << 28
"""Elements of float32 that a copy moves."""
LENGTHS = (1024, 2048, 4096, 8192, 16384)
WIDTHS = (64, 128)
"""Of attention: keys, and elements of a head."""
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
ROUNDS = 30
BLOCK_S = 0.05

Contenders = Mapping[str, Callable[[], Any]]
Row = dict[str, Any]


def main() -> None:
    """Prints a line for each figure and writes them. Ends with status 1 where no GPU is here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="time block sizes of each cluster first")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        print("benchmarks.triton: no CUDA device is here, and nothing is estimated")
        sys.exit(1)
    before = json.loads(chosen.output.read_text()) if chosen.output.is_file() else {}
    command = f"python -m benchmarks.triton --tune {chosen.tune:g}"
    facts = {"command": command, "gpu": torch.cuda.get_device_name(), "machine": this_machine().model_dump(mode="json")}
    with torch.no_grad():
        for name in chosen.parts:
            before[name] = {**facts, "runs": list(PARTS[name](chosen.tune))}
            chosen.output.write_text(json.dumps(before, indent=2) + "\n")


# --- Kernels ----------------------------------------------------------------------------------------------------------


def memory_bound(tune_s: float) -> Iterable[Row]:
    """Programs of real models that wait for memory, in float32: against Inductor, its max-autotune, and a copy."""
    copied = _copied_bytes_s()
    for name in PROGRAMS:
        rows, columns = (ROWS // 8, COLUMNS // 8) if name in IMAGES else (ROWS, COLUMNS)
        inputs = tuple(value.cuda() for value in inputs_of(name, rows, columns))
        run = _timed(Wrapped(PROGRAMS[name]), inputs, tune_s)
        run |= {"program": name, "of_copy": run["bytes"] / run["call_s"]["triton"] / copied, "copied_bytes_s": copied}
        yield _told(name, run)


def _copied_bytes_s() -> float:
    """Gives the bytes read and written in a second by a copy."""
    source = torch.ones(COPIED, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _kernel_s(lambda: target.copy_(source))


def attention(tune_s: float) -> Iterable[Row]:
    """Attention in bfloat16, causal and not: against the best of PyTorch's own kernels."""
    for width in WIDTHS:
        for length in LENGTHS:
            for is_causal in (False, True):
                inputs = tuple(torch.randn(4, 16, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))

                def attend(*given: torch.Tensor, is_causal: bool = is_causal) -> torch.Tensor:
                    return functional.scaled_dot_product_attention(*given, is_causal=is_causal)

                label = f"{length} keys, heads of {width}{', causal' if is_causal else ''}"
                yield _told(label, {"program": label} | _timed(Wrapped(attend), inputs, tune_s, with_inductor=False))


def products(tune_s: float) -> Iterable[Row]:
    """Products of real layers in bfloat16, with what follows them: against cuBLAS and a kernel of its own."""
    for name, (rows, depth, columns) in LAYERS.items():
        shapes = ((rows, depth), (columns, depth), (columns,))
        inputs = tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
        plain = _timed(Wrapped(functional.linear), inputs, tune_s, with_inductor=False)
        yield _told(name, {"program": name} | plain)
        label = f"{name}, GELU"
        fused = _timed(Wrapped(lambda x, w, b: functional.gelu(functional.linear(x, w, b))), inputs, tune_s)
        yield _told(label, {"program": label} | fused)


def _timed(module: torch.nn.Module, inputs: tuple[Any, ...], tune_s: float, *, with_inductor: bool = True) -> Row:
    """Gives median seconds of a call of each contender, and the bytes of inputs and outputs."""
    cluster, values = whole_cluster(module, inputs)
    backend = create(Settings())
    if tune_s:
        backend.tune([cluster], CompileSettings(threads=1, effort="full"), tune_s, print)
    executable: Any = backend.compile(cluster, CompileSettings(threads=1))
    contenders: dict[str, Callable[[], Any]] = {"triton": lambda: executable(*values), "eager": lambda: module(*inputs)}
    if with_inductor:
        for label, mode in (("inductor", None), ("max-autotune", "max-autotune-no-cudagraphs")):
            torch.compiler.reset()
            compiled: Any = torch.compile(module, mode=mode)
            compiled(*inputs)
            contenders[label] = lambda compiled=compiled: compiled(*inputs)
    moved = sum(each.nbytes for each in (*inputs, *executable(*values)) if isinstance(each, torch.Tensor))
    return {"bytes": moved, "call_s": {label: _kernel_s(call) for label, call in contenders.items()}}


def _kernel_s(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, warmup=50, rep=200, return_mode="median")) / 1e3


# --- Models -----------------------------------------------------------------------------------------------------------


def models(tune_s: float) -> Iterable[Row]:
    """Whole models: the hub's plans against eager, Inductor and its max-autotune, each as a CUDA graph."""
    del tune_s
    for name in MODELS:
        for batch in BATCHES:
            for dtype in (torch.float32, torch.bfloat16):
                loaded = load_model(name, batch=batch)
                module = loaded.module.cuda().to(dtype)
                inputs = tuple(
                    value.to("cuda", dtype) if value.is_floating_point() else value.cuda() for value in loaded.inputs
                )
                label = f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}"
                yield _told(label, {"program": label, "call_s": _interleaved(_contenders(module, inputs))})
                torch.compiler.reset()


def _contenders(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Contenders:
    ways: Mapping[str, Mapping[str, Any]] = {
        "hub": {"backend": "hub", "options": {"cuda_graphs": True, "tune": "full"}},
        "inductor": {"mode": "reduce-overhead"},
        "max-autotune": {"mode": "max-autotune"},
    }
    found: dict[str, Callable[[], Any]] = {"eager": _as_graph(lambda: module(*inputs))}
    for label, way in ways.items():
        compiled: Any = torch.compile(module, **way)
        for _ in range(5):
            compiled(*inputs)
        found[label] = lambda compiled=compiled: compiled(*inputs)
    return found


def _as_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _interleaved(contenders: Contenders) -> dict[str, float]:
    """Gives median seconds of a call of each contender; blocks of calls take turns."""
    counts = {label: max(1, int(BLOCK_S / _block_s(call, 3))) for label, call in contenders.items()}
    found: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(ROUNDS):
        for label, call in contenders.items():
            found[label].append(_block_s(call, counts[label]))
    return {label: statistics.median(times) for label, times in found.items()}


def _block_s(call: Callable[[], Any], count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def _told(label: str, run: Row) -> Row:
    """Prints a run's ratios and gives it."""
    own = "triton" if "triton" in run["call_s"] else "hub"
    call_s: Mapping[str, float] = run["call_s"]
    ratios = "  ".join(f"{other} / {own} {call_s[other] / call_s[own]:.2f}" for other in call_s if other != own)
    of_copy = f"  of copy {run['of_copy']:.2f}" if "of_copy" in run else ""
    if any(math.isnan(seconds) or seconds <= 0 for seconds in call_s.values()):
        raise ValueError(f"{label}: no time was taken: {call_s}")
    print(f"{label:40} {call_s[own] * 1e6:9.1f} us  {ratios}{of_copy}", flush=True)
    return run


PARTS: Mapping[str, Callable[[float], Iterable[Row]]] = {
    "memory": memory_bound,
    "attention": attention,
    "products": products,
    "models": models,
}

if __name__ == "__main__":
    main()
