"""The effect of the hub's choices on Inductor: each model both ways, frozen, in one process, in alternating blocks.

`driver`: kernels called from C++ and from Python. `packing`: weights packed for the faster library at each size, for MKL,
which is Inductor's choice, and for oneDNN. Prints microseconds per call, the ratio to the first variant in paired blocks,
and the seconds until the frozen model runs. Each variant has its own Inductor folder, empty except for its precompiled
header: a small module is compiled there first. Run it with `python -m benchmarks.inductor_ways packing mlp t5 dlrm`.
`sizes`, without models: single products in MKL and oneDNN.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from plugin_inductor import compiler, packing
from torch import nn

import hub
from hub.bench.models import load_model
from hub.torch_private import inductor_config

SIZES = (
    (1, 1024, 1024),
    (16, 512, 512),
    (64, 512, 512),
    (64, 512, 2048),
    (128, 384, 1536),
    (512, 768, 3072),
    (128, 13, 64),
)
"""Rows, inner size and columns."""
ROUNDS = 21
BLOCK_S = 0.1


def in_python(*args: Any, **kwargs: Any) -> Any:
    """Compile with kernels called from Python, Inductor's default."""
    with inductor_config.patch(cpp_wrapper=False):  # pyright: ignore[reportUnknownMemberType] - torch's
        return _compile_fx_inner(*args, **{**kwargs, "cpp_wrapper": False})


_compile_fx_inner = compiler.compile_fx.compile_fx_inner


def _never(*_: Any) -> bool:
    return False


def _always(*_: Any) -> bool:
    return True


Way = Callable[[], contextlib.AbstractContextManager[Any]]
WAYS: Mapping[str, Mapping[str, Way]] = {
    "driver": {
        "C++": contextlib.nullcontext,
        "Python": lambda: mock.patch.object(compiler.compile_fx, "compile_fx_inner", in_python),
    },
    "packing": {
        "the faster": contextlib.nullcontext,
        "MKL": lambda: mock.patch.object(packing, "is_onednn_faster", _never),
        "oneDNN": lambda: mock.patch.object(packing, "is_onednn_faster", _always),
    },
}


def built(module: Any, inputs: tuple[Any, ...], way: Way, folder: str) -> tuple[Callable[[], Any], float]:
    """Return a call of the frozen model, compiled in one variant, and the seconds until it runs."""
    torch.compiler.reset()
    options: dict[str, Any] = {"tune": "off", "backends": ("inductor",), "start": "wait"}
    options |= {"background": False, "isolate": False}
    caches = {"HUB_CACHE_DIR": f"{folder}/hub", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    start = time.perf_counter()
    with way(), mock.patch.dict(os.environ, caches):
        compiled = torch.compile(module, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
        frozen = hub.freeze(compiled, *inputs)
    return lambda: frozen(*inputs), time.perf_counter() - start


def block_us(call: Callable[[], Any]) -> float:
    """Return the microseconds of a call in one block, after one that is not counted."""
    call()
    start, calls = time.perf_counter(), 0
    while (spent_s := time.perf_counter() - start) < BLOCK_S:
        call()
        calls += 1
    return 1e6 * spent_s / calls


def print_sizes() -> None:
    """Print a line for each size: microseconds of both libraries, and their ratio in paired blocks."""
    for size in SIZES:
        calls = packing.calls(*size)
        onednn_us, mkl_us = zip(*((block_us(calls[0]), block_us(calls[1])) for _ in range(ROUNDS)), strict=True)
        ratio = statistics.median(one / other for one, other in zip(onednn_us, mkl_us, strict=True))
        print(f"{size}: oneDNN {statistics.median(onednn_us):.1f} us, MKL {statistics.median(mkl_us):.1f} us, {ratio:.2f}")


def main() -> None:
    """Print a line for each named model and variant, or for each size."""
    torch.set_grad_enabled(False)
    kind, *names = sys.argv[1:]
    if kind == "sizes":
        print_sizes()
        return
    ways = WAYS[kind]
    small = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()
    for name in names:
        model = load_model(name)
        model.module(*model.inputs)  # some models initialise on their first call
        with contextlib.ExitStack() as folders:
            calls: dict[str, tuple[Callable[[], Any], float]] = {}
            for label, way in ways.items():
                folder = folders.enter_context(tempfile.TemporaryDirectory())
                built(small, (torch.randn(4, 8),), way, folder)
                calls[label] = built(model.module, tuple(model.inputs), way, folder)
            rounds = [tuple(block_us(call) for call, _ in calls.values()) for _ in range(ROUNDS)]
        firsts, *_ = zip(*rounds, strict=True)
        for (label, (_, built_s)), times_us in zip(calls.items(), zip(*rounds, strict=True), strict=True):
            ratio = statistics.median(each / first for each, first in zip(times_us, firsts, strict=True))
            took = f"{statistics.median(times_us):.1f} us, {ratio:.3f} times as long as the first"
            print(f"{name}, {label}: {took}, compiled in {built_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
