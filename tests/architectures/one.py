"""One architecture through `hub.compile`, in a process of its own: `python -m tests.architectures.one llama bert`.

Each name gives a line of JSON. Without names they are read from standard input, for suites that ask for many: what takes
seconds to import is imported once, and each architecture runs in a fork of it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree
from tqdm import tqdm

import hub
from hub.frontend.direct.compile import program_of
from hub.process.environment import variables_set
from tests.architectures import tiny as tiny_models
from tests.architectures.differences import difference
from tests.architectures.tiny import NoTinyConfigurationError, Tiny, tiny

CALLS = 3
LIMIT_S = 240
"""Seconds after which an architecture counts as hanging."""
BACKENDS = ("openvino", "onnxruntime", "disc")
"""Those that compile a tiny model within seconds."""
FACTOR = 8.0
"""How many times eager's own error against float64 an answer may be wrong by."""
Row = dict[str, Any]


def row_of(name: str) -> Row:
    """Return the result row of one architecture."""
    start_s = time.monotonic()
    row: Row = {"name": name, "outcome": "error", "detail": "", "clusters": {}, "n_graphs": 0, "n_graph_breaks": 0}
    try:
        found = tiny(name)
        expected, state = _expected(found)
    except Exception as error:  # noqa: BLE001 - eager, too, may raise anything
        if not isinstance(error, NoTinyConfigurationError):
            error = f"{type(error).__name__}: {error}"[:300]
        return {**row, "outcome": "no tiny configuration", "detail": str(error), "seconds": _since(start_s)}
    row |= {"model": found.model_class.__name__, "inputs": sorted(found.arguments)}
    try:
        row |= _compiled(found, expected, state)
    except Exception as error:  # noqa: BLE001 - what is examined may raise anything
        lines = traceback.format_exc().strip().splitlines()
        row |= {"detail": f"{type(error).__name__}: {error}"[:600], "trace": lines[-8:]}
    return {**row, "seconds": _since(start_s)}


def _since(start_s: float) -> float:
    return round(time.monotonic() - start_s, 1)


def _expected(found: Tiny) -> tuple[list[Any], dict[str, Any]]:
    """Return eager's answers to each call, and the weights before them.

    Raise NoTinyConfigurationError if eager does not give the same answer twice.
    """
    model, other = found.build(), found.build()
    state = copy.deepcopy(model.state_dict())
    other.load_state_dict(state)
    answers = [found.run(model) for _ in range(CALLS)]
    for left, right in zip(answers, [found.run(other) for _ in range(CALLS)], strict=True):
        if why := difference(left, right, None, FACTOR):
            raise NoTinyConfigurationError(f"eager does not give the same answer twice: {why}")
    return answers, state


def _exact(found: Tiny) -> Any:
    """Return the answer of a float64 copy, or None if the model does not run in float64."""
    try:
        wide = pytree.tree_map_only(
            torch.Tensor, lambda one: one.double() if one.is_floating_point() else one, found.arguments
        )
        return Tiny(found.model_class, found.config, wide).run(found.build().double())
    except Exception:  # noqa: BLE001 - many models make float32 tensors of their own
        return None


def _wrong(found: Tiny, answers: list[Any], expected: list[Any]) -> tuple[list[str], bool | None]:
    """Return the differences from eager's answers, and whether float64 showed eager's accuracy; None: not needed."""
    pairs = list(enumerate(zip(answers, expected, strict=True), 1))
    if not any(difference(mine, right, right, FACTOR) for _, (mine, right) in pairs):
        return [], None
    exact = _exact(found)
    whys = [(number, difference(mine, right, exact, FACTOR)) for number, (mine, right) in pairs]
    return [f"call {number}: {why}" for number, why in whys if why], exact is not None


def _blame(found: Tiny, expected: list[Any], state: Mapping[str, Any]) -> str:
    """Return a remark if Dynamo alone, with eager kernels behind it, also differs from eager."""
    torch.compiler.reset()
    model = found.build()
    model.load_state_dict(state)
    answer = found.run(cast("Any", torch).compile(model, backend="eager"))
    return " (torch.compile(backend='eager') differs too)" if difference(answer, expected[0], None, FACTOR) else ""


def _compiled(found: Tiny, expected: list[Any], state: Mapping[str, Any]) -> Row:
    """Return what the hub compiled of a model, and how its answers differ from eager's."""
    model = found.build()
    model.load_state_dict(state)
    with tempfile.TemporaryDirectory() as cache, variables_set({"HUB_CACHE_DIR": cache}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {
            "start": "wait", "tune": "off", "isolate": False, "background": False, "backends": BACKENDS,
        }  # fmt: skip
        compiled = hub.compile(model, options=options)
        answers = [found.run(compiled) for _ in range(CALLS)]
        plans = hub.plans(compiled)
    wrong, has_float64 = _wrong(found, answers, expected)
    clusters = Counter(cluster.backend for plan in plans for cluster in plan.clusters if cluster.backend != "eager")
    why_dynamo = program_of(compiled).why_dynamo
    troubles = [f"{event.kind} at {event.stage}: {event.message}" for plan in plans for event in plan.events]
    return {
        "outcome": "wrong" if wrong else "right",
        "detail": f"{wrong[0]}{_blame(found, expected, state)}" if wrong else "",
        "clusters": dict(sorted(clusters.items())),
        "n_graphs": len(plans),
        "n_graph_breaks": sum(counters["graph_break"].values()),
        "is_direct": not why_dynamo,
        "why_dynamo": why_dynamo,
        "has_float64": has_float64,
        "troubles": [text[:300] for text in troubles if text.startswith(("failed", "fallback"))][:3],
    }


def rows(names: Iterator[str]) -> Iterator[Row]:
    """Yield the result row of each architecture, each from a process of its own that ends after `LIMIT_S`."""
    _import_all()
    for name in names:
        yield _in_fork(name)


def _import_all() -> None:
    """Import what takes seconds in advance, but plan nothing: compilers start threads, which forks would lack."""
    import torch._inductor.compile_fx

    tqdm.monitor_interval = 0  # its thread would be one
    tiny_models.tiny("bert")
    with torch.no_grad():
        cast("Any", torch).compile(nn.Linear(4, 4), backend="eager")(torch.ones(1, 4))
    torch.compiler.reset()
    counters.clear()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads, of which forks would have one"


def _in_fork(name: str) -> Row:
    start_s = time.monotonic()
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        os.setsid()
        os.close(ours)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        if not os.environ.get("ARCHITECTURES_VERBOSE"):
            os.dup2(silent, 2)
        try:
            os.write(theirs, json.dumps(row_of(name)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    text = _read(ours, start_s + LIMIT_S)
    if not text:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if text:
        return json.loads(text)
    busy_s = usage.ru_utime + usage.ru_stime
    detail = (
        f"no answer within {LIMIT_S} s, {busy_s:.0f} s of them busy"
        if text is None
        else f"the process ended: status {status}"
    )
    return {"name": name, "outcome": "error", "detail": detail, "clusters": {}, "seconds": _since(start_s)}


def _read(end: int, until_s: float) -> str | None:
    """Return everything read from a pipe, or None if it is not closed in time."""
    found = b""
    with os.fdopen(end, "rb", buffering=0) as stream:
        while select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]:
            if not (part := stream.read(65536)):
                return found.decode()
            found += part
    return None


def main() -> None:
    """Print a line for each named architecture."""
    names = iter(sys.argv[1:]) if sys.argv[1:] else (line.strip() for line in iter(sys.stdin.readline, ""))
    for row in rows(names):
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
