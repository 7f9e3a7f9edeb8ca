"""The process of one contender: builds the model, checks its numbers, and times blocks of calls on request.

Between requests it waits on its pipe, so that it takes no core from the contender whose turn it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hub.bench.closeness import difference, least_tolerance
from hub.bench.contenders import Contender, build
from hub.bench.models import load_model
from hub.bench.prepared import Block, Prepared
from hub.frontend.ownership import captured_plans, wait
from hub.plan import TROUBLE, Plan
from hub.pricing.timing import time_call
from hub.process.accelerators import accelerators_of, wait_for
from hub.process.threads import set_threads
from hub.report.numbers import count
from hub.workers.channel import serve

_SETTLE_S = 300.0
"""Longest time in seconds for the verification that remains after the first answer."""
_WARM_S = 0.3
"""Seconds of warm-up calls that do not count."""


_call: Callable[[], Any] | None = None
_awaited: tuple[torch.device, ...] = ()
"""Accelerators that the model computes on, with which each call has to synchronise."""


def prepare(
    contender: Contender,
    model: str,
    batch: int | None,
    given: Mapping[str, Any],
    threads: int | None,
    small: bool,
    allowed: float,
) -> Prepared:
    """Build the model and the contender, and compare one result with eager's. Propagate their exceptions.

    If the result is off by more than `allowed` of the largest value, time it at once, for the error-aware score.
    """
    global _call, _awaited
    torch.set_grad_enabled(False)
    if threads is not None:
        set_threads(threads)
    loaded = load_model(model, batch=batch, small=small)
    reference = loaded.module(*loaded.inputs)
    _awaited = accelerators_of((reference, loaded.inputs))
    wait_for(_awaited)
    began_s = time.perf_counter()
    built = build(contender, loaded.module, loaded.inputs, given)
    _call = built.call
    found = _call()
    wait_for(_awaited)
    first_call_s = time.perf_counter() - began_s
    if built.compiled is not None and contender.is_timed:
        wait(built.compiled, _SETTLE_S)  # until then, a check of inputs may run before what is timed
    apart = difference(found, reference)
    time_call(_call, _WARM_S, awaited=_awaited)
    plans = () if built.compiled is None else captured_plans(built.compiled)
    return Prepared(
        first_call_s=first_call_s,
        max_abs_error=apart.absolute,
        relative_error=apart.relative,
        tolerance=least_tolerance(found, reference),
        wrong_call_s=time_call(_call, _WARM_S, awaited=_awaited).median_s if apart.relative > allowed else None,
        threads=torch.get_num_threads(),
        inputs=tuple(_described(value) for value in loaded.inputs),
        verify_s=sum(plan.verify_s or 0.0 for plan in plans) if plans else None,
        peak_bytes=_peak_bytes(),
        note="; ".join(map(_summary, plans)),
        plans=tuple(map(str, plans)),
        backends=tuple(dict.fromkeys(name for plan in plans for name in plan.backends)),
        clusters=max((len(plan.clusters) for plan in plans), default=None),
    )


def block(at_least_s: float) -> Block:
    """Time calls for at least `at_least_s` seconds, after one call that does not count."""
    assert _call is not None, "prepare comes first"
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    samples_s = time_call(_call, at_least_s, warmup=1, awaited=_awaited).samples_s
    return Block(samples_s, (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s))


def _summary(plan: Plan) -> str:
    """Return what runs, and why other plans do not: a fallback must not look as if the contender had been that slow."""
    failed = [f"{event.backend}: {event.message}" for event in plan.events if event.kind in TROUBLE]
    text = f"{plan.graph}: {count(len(plan.clusters), 'cluster')} on {', '.join(plan.backends)}, {plan.decided_by}"
    return "; ".join((text, *(message.splitlines()[0][:200] for message in failed[:2])))


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _peak_bytes() -> int | None:
    """Return the peak memory from /proc; getrusage's maximum is inherited from the parent process."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    serve({"prepare": prepare, "block": block})
