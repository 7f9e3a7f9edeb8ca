"""Compile models one after the other and print, as JSON, what the process and its workers hold after each.

python run_models.py '{"kind": "inference", "count": 12, "megabytes": 20, "options": {"tune": "off"}}'
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hub

SETTLED_S = 3.0
"""Seconds in which workers that are done free what they held."""


def descendants(process: int) -> Iterator[int]:
    """Yield the ids of all descendants of a process."""
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from descendants(child)


def held(process: int) -> dict[str, int]:
    """Return what a process holds: private memory in MB, open files, threads, mapped files."""
    folder = Path(f"/proc/{process}")
    lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    mapped = [line for line in (folder / "maps").read_text().splitlines() if "/" in line]
    return {
        "megabytes": kilobytes["Rss"] // 1000,
        "files": len(list((folder / "fd").iterdir())),
        "threads": len(list((folder / "task").iterdir())),
        "mapped": len(mapped),
    }


def all_held() -> dict[str, Any]:
    """Return what this process and its workers hold now, and how many temporary files there are."""
    workers: list[dict[str, int]] = []
    for process in descendants(os.getpid()):
        try:
            workers.append(held(process))
        except OSError:
            continue  # it has ended
    temporary = sum(len(files) for _, _, files in os.walk(tempfile.gettempdir()))
    return {"own": held(os.getpid()), "workers": workers, "temporary": temporary}


def layers(megabytes: int) -> tuple[nn.Sequential, int]:
    """Return a new model whose weights take so many megabytes, and the size of its inputs."""
    size = int((megabytes * 1e6 / 4 / 4) ** 0.5)
    parts = [part for _ in range(4) for part in (nn.Linear(size, size), nn.ReLU())]
    return nn.Sequential(*parts), size


def infer(compiled: Any, model: nn.Module, size: int) -> None:
    """Call twice."""
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.randn(4, size))


def train(compiled: Any, model: nn.Module, size: int) -> None:
    """Take two steps of an optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        compiled(torch.randn(4, size)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def freeze(compiled: Any, model: nn.Module, size: int) -> None:
    """Freeze, call, and freeze anew."""
    with torch.no_grad():
        frozen = hub.freeze(compiled, torch.randn(4, size))
        frozen(torch.randn(4, size))
        frozen.refresh()
        frozen(torch.randn(4, size))


def change(compiled: Any, model: nn.Module, size: int) -> None:
    """Call with weights that change: written to, announced, replaced."""
    with torch.no_grad():
        compiled(torch.randn(4, size))
        for weight in model.parameters():
            weight.mul_(0.5)
        compiled(torch.randn(4, size))
        hub.refresh(compiled)
        compiled(torch.randn(4, size))
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight = nn.Parameter(torch.randn(size, size))
        compiled(torch.randn(4, size))


def resize(compiled: Any, model: nn.Module, size: int) -> None:
    """Call 10,000 times with batches of changing size."""
    with torch.no_grad():
        for call in range(10_000):
            compiled(torch.randn(2 + call * 7 % 61, size))


KINDS: dict[str, Callable[[Any, nn.Module, int], None]] = {
    function.__name__: function for function in (infer, train, freeze, change, resize)
}


def main(kind: str, count: int, megabytes: int, options: dict[str, Any]) -> None:
    """Print a line for each model."""
    for _ in range(count):
        model, size = layers(megabytes)
        weights = [weakref.ref(weight) for weight in model.parameters()]
        compiled = torch.compile(model.train(kind == "train"), backend="hub", options=options, dynamic=kind == "resize")
        KINDS[kind](compiled, model, size)
        backends = sorted({name for plan in hub.plans(compiled) for name in plan.backends})
        failed = [event.message for plan in hub.plans(compiled) for event in plan.events if event.kind == "failed"]
        del model, compiled
        torch.compiler.reset()  # else later models of the class would share what the first one captured
        gc.collect()
        alive = sum(weight() is not None for weight in weights)
        found = all_held()
        end = time.monotonic() + SETTLED_S
        while time.monotonic() < end:
            time.sleep(SETTLED_S / 10)
            later = all_held()
            if sum(worker["megabytes"] for worker in later["workers"]) < sum(
                worker["megabytes"] for worker in found["workers"]
            ):
                found = later
        sys.stdout.write(json.dumps({"backends": backends, "failed": failed, "alive": alive, **found}) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(**json.loads(sys.argv[1]))
