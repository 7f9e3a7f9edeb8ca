"""What Inductor's kernels gain where C++ calls them and not Python: each model both ways, frozen, in one process, in turns.

Prints microseconds a call, the ratio of the two in paired blocks, and the seconds until the frozen model runs. Each way has
a folder of Inductor's own, empty but for its precompiled header: a small module is compiled there first. Run it with
`python -m benchmarks.inductor_driver mlp t5 dlrm`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from plugin_inductor import compiler
from torch import nn
from torch._inductor import config

import hub
from hub.bench.models import load_model

ROUNDS = 21
BLOCK_S = 0.1
WAYS = ("C++", "Python")


def in_python(*args: Any, **kwargs: Any) -> Any:
    """Compile as Inductor does by default."""
    with config.patch(cpp_wrapper=False):
        return _compile_fx_inner(*args, **{**kwargs, "cpp_wrapper": False})


_compile_fx_inner = compiler.compile_fx.compile_fx_inner


def built(module: Any, inputs: tuple[Any, ...], way: str, folder: str) -> tuple[Callable[[], Any], float]:
    """Return a call of the frozen model, its kernels called in one of the two ways, and the seconds until it runs."""
    torch._dynamo.reset()
    options = {"tune": "off", "backends": ("inductor",), "start": "wait", "background": False, "isolate": False}
    start = time.perf_counter()
    with (
        mock.patch.object(compiler.compile_fx, "compile_fx_inner", _compile_fx_inner if way == "C++" else in_python),
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}),
    ):
        compiled = torch.compile(module, backend="hub", options={**options, "cache_dir": f"{folder}/hub"})
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


def main() -> None:
    """Print a line for each model that is named."""
    torch.set_grad_enabled(False)
    for name in sys.argv[1:] or ("mlp", "t5", "dlrm"):
        model = load_model(name)
        model.module(*model.inputs)  # some models prepare themselves in their first call
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            folders = dict(zip(WAYS, (first, second), strict=True))
            for way, folder in folders.items():
                built(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval(), (torch.randn(4, 8),), way, folder)
            calls = {way: built(model.module, tuple(model.inputs), way, folder) for way, folder in folders.items()}
            rounds = [tuple(block_us(call) for call, _ in calls.values()) for _ in range(ROUNDS)]
        ratio = statistics.median(slow / fast for fast, slow in rounds)
        for way, times_us in zip(WAYS, zip(*rounds, strict=True), strict=True):
            print(f"{name}, {way}: {statistics.median(times_us):.1f} us, compiled in {calls[way][1]:.1f} s", flush=True)
        print(f"{name}: Python takes {ratio:.3f} times as long", flush=True)


if __name__ == "__main__":
    main()
