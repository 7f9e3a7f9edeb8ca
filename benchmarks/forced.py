"""How much of whole models one backend runs if it is the only candidate, and how far its results are from eager's.

For each model and backend: nodes that the backend runs, nodes that run in eager with the backend's reasons, and the largest
difference from eager, relative to the largest value. Times nothing. Prints a table as Markdown. Run with `python -m
benchmarks.forced --backends tvm,xla,iree`; TVM's products without tuning take minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import hub
from hub.bench.zoo import build
from hub.plan import EAGER, Plan
from hub.torch_private import pytree

BACKENDS = ("tvm", "xla", "iree")
MODELS = ("bert", "gpt2", "llama", "vit", "resnet50", "mobilenetv2", "convnext", "mamba", "lstm")

HEADER = f"| model | backend | taken | left | clusters | largest difference | why nodes were left |\n{'|---' * 7}|"


@dataclass(frozen=True, slots=True)
class Forced:
    """One backend's result for one model."""

    model: str
    backend: str
    taken: int
    left: int
    clusters: int
    reasons: tuple[str, ...]
    """Reasons why nodes run in eager, each once."""
    problems: tuple[str, ...]
    """Failures and fallbacks while the model was compiled and run."""
    difference: float
    """Largest difference of a result from eager's, relative to its largest value."""

    @property
    def left_share(self) -> float:
        """Share of the nodes that eager runs."""
        return self.left / (self.taken + self.left)


def main() -> None:
    """Print a row for each model and backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--small", action="store_true", help="the zoo's small forms")
    given = parser.parse_args()
    print(HEADER, flush=True)
    for model in given.models.split(","):
        for backend in given.backends.split(","):
            print(row_of(forced(model, backend, small=given.small)), flush=True)


def forced(model: str, backend: str, *, small: bool) -> Forced:
    """Compile a model of the zoo with one backend alone, and run it. Any exception of the hub propagates."""
    module, inputs = build(model, small=small)
    torch.compiler.reset()
    options: dict[str, Any] = {"tune": "off", "start": "wait", "backends": [backend]}
    compiled: Any = torch.compile(module, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
    with torch.no_grad():
        wanted = module(*inputs)
        got = compiled(*inputs)
    plans = hub.plans(compiled)
    clusters = [cluster for plan in plans for cluster in plan.clusters]
    return Forced(
        model=model,
        backend=backend,
        taken=sum(len(cluster.nodes) for cluster in clusters if cluster.backend == backend),
        left=sum(len(cluster.nodes) for cluster in clusters if cluster.backend == EAGER),
        clusters=sum(cluster.backend == backend for cluster in clusters),
        reasons=tuple(dict.fromkeys(reasons_in(plans))),
        problems=tuple(problems_in(plans)),
        difference=difference(got, wanted),
    )


def reasons_in(plans: Iterable[Plan]) -> Iterable[str]:
    """Return the reasons why nodes run in eager."""
    clusters = (cluster for plan in plans for cluster in plan.clusters if cluster.backend == EAGER)
    return (bid.refusal for cluster in clusters for bid in cluster.bids if bid.refusal)


def problems_in(plans: Iterable[Plan]) -> Iterable[str]:
    """Return failures and fallbacks."""
    events = (event for plan in plans for event in plan.events if event.kind in ("failed", "fallback"))
    return (f"{event.stage}: {event.message}" for event in events)


def difference(got: Any, wanted: Any) -> float:
    """Return the largest difference between tensors in two results, relative to each tensor's largest value."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
    return max(float((mine - other).abs().max() / other.abs().max()) for mine, other in pairs)


def row_of(found: Forced) -> str:
    """Return a row of the table."""
    why = "; ".join((*found.reasons, *found.problems))
    cells = (found.model, found.backend, found.taken, found.left, found.clusters, f"{found.difference:.0e}", why)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
