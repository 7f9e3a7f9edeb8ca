"""Of equal elements, eager's are right: a backend that picks others is not given the nodes that read them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

import hub
from hub.discovery.registry import registry
from hub.errors import CompileError
from hub.plugin.backend import Backend, CompileSettings, Executable
from hub.plugin.graph import Cluster
from hub.plugin.table import ACCEPTED, Support
from hub.testing.single import capture, whole_cluster
from hub.verification.ties import has_ties, reads_order, verdict
from tests.functions import Of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

Function = Callable[[torch.Tensor], Any]


def ordering_nodes(function: Function, x: torch.Tensor) -> Iterator[fx.Node]:
    """Yield the nodes of a captured function whose results depend on the order of equal elements."""
    graph = capture(Of(function), (x,)).graph
    yield from (node for node in graph.nodes if has_ties(node))


READ: dict[str, Function] = {
    "topk": lambda x: x.topk(3)[1],
    "topk in any order": lambda x: x.topk(3, sorted=False)[0],
    "sort": lambda x: x.sort(descending=True)[1],
    "sort, perhaps stable": lambda x: torch.sort(x, stable=False)[1],
    "argsort": lambda x: x.argsort(-1),
    "gather": lambda x: x.gather(1, x.topk(3)[1]).sum(),
    "kthvalue": lambda x: x.kthvalue(2)[1],
    "median": lambda x: x.median(1)[1],
    "nanmedian": lambda x: x.nanmedian(1)[1],
    "mode": lambda x: x.mode(1)[0],
    "cummax": lambda x: x.cummax(1)[1],
    "max_pool": lambda x: nn.functional.max_pool2d(x[None], 2, return_indices=True)[1],
}
SETTLED: dict[str, Function] = {
    "values of topk": lambda x: x.topk(3)[0] * 2,
    "values of sort": lambda x: x.sort()[0],
    "stable sort": lambda x: torch.sort(x, stable=True),
    "stable argsort": lambda x: torch.argsort(x, stable=True),
    "value of median": lambda x: x.median(1)[0],
    "first of the largest": lambda x: (x.argmax(1), x.max(1), x.argmin(0), x.min(0)),
}


@pytest.mark.parametrize("name", READ)
def test_an_order_that_pytorch_leaves_open_is_read(name: str) -> None:
    """What depends on which of equal elements comes first follows eager."""
    assert [reads_order(node) for node in ordering_nodes(READ[name], torch.randn(4, 6))] == [True]


@pytest.mark.parametrize("name", SETTLED)
def test_values_in_order_and_documented_places_leave_nothing_open(name: str) -> None:
    """Values are the same in any order of equal ones, and PyTorch documents which index is the first."""
    assert not any(map(reads_order, ordering_nodes(SETTLED[name], torch.randn(4, 6))))


class Greedy(Backend):
    """A backend that supports everything."""

    def supports(self, node: fx.Node) -> Support:
        return ACCEPTED

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        raise CompileError("never")


class Orderly(Greedy):
    """A backend that promises eager's order of `topk`."""

    def keeps_order(self, node: fx.Node) -> bool:
        return str(node.target) == "aten.topk.default"


@pytest.mark.parametrize(
    ("backend", "function", "is_taken"),
    [
        (Greedy(), "topk", False),
        (Greedy(), "values of topk", True),
        (Orderly(), "topk", True),
        (Orderly(), "sort", False),
        (Greedy(), "stable sort", True),
    ],
)
def test_only_a_backend_that_keeps_eagers_order_takes_what_reads_it(
    backend: Backend, function: str, is_taken: bool
) -> None:
    """What a backend does not promise is refused for it, with the reason."""
    (node,) = ordering_nodes({**READ, **SETTLED}[function], torch.randn(4, 6))
    answer = verdict(backend, node)
    assert answer.accepted == is_taken
    assert is_taken or "its order of equal elements need not be eager's" in answer.reason


# --- Backends that are installed --------------------------------------------------------------------------------------

BACKENDS = [name for name in registry().available() if registry().entries[name].info.devices[0] == "cpu"]
QUICK = ("onnxruntime", "disc", "openvino")
SAME_NAN = ("disc", "tvm")

ORDERED: dict[str, Callable[[int], Function]] = {
    "topk": lambda dim: lambda x: (x.topk(3, dim), x.topk(1, dim, largest=False), x.topk(x.shape[dim] // 2 + 1, dim)),
    "sort": lambda dim: lambda x: (x.sort(dim), x.sort(dim, descending=True), x.argsort(dim)),
    "stable sort": lambda dim: lambda x: (x.sort(dim=dim, stable=True), x.argsort(dim=dim, descending=True, stable=True)),
    "rank": lambda dim: lambda x: (x.kthvalue(3, dim), x.median(dim), x.mode(dim)),
    "running": lambda dim: lambda x: (x.cummax(dim), x.cummin(dim)),
    "extreme": lambda dim: lambda x: (x.max(dim), x.min(dim), x.argmax(dim), x.argmin(dim), x.argmax(), x.argmin()),
    "window": lambda dim: lambda x: nn.functional.max_pool2d(x.movedim(dim, -1)[None], 3, 2, 1, return_indices=True),
}


def tied(size: int) -> dict[str, torch.Tensor]:
    """Return tensors with every kind of equal elements: all, many, in blocks, in both signs of 0, next to NaN."""
    shape = 3, size, size
    row = torch.arange(size)
    return {
        "all": torch.full(shape, 0.7),
        "many": torch.randint(0, 4, shape).float(),
        "most": torch.randn(shape) * (torch.rand(shape) < 0.2),
        "blocks": (row // 7 + row[:, None] // 5).float().expand(shape).clone(),
        "zeros": torch.where(torch.rand(shape) < 0.5, 0.0, -0.0),
        "NaN": torch.where(torch.rand(shape) < 0.1, torch.nan, torch.randint(0, 4, shape).float()),
    }


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize(
    "backend", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS]
)
def test_a_backend_takes_the_equal_elements_that_eager_takes(backend: str, dim: int) -> None:
    """This holds for any input: along any dim, few and many, from sizes on at which eager sorts differently."""
    torch.manual_seed(dim)
    loaded, n_taken = registry().backend(backend), 0
    for name, ordered in ORDERED.items():
        for size in (6, 130):
            kinds = tied(size)
            cluster, _ = whole_cluster(Of(ordered(dim)), (kinds["all"],))
            calls = [node for node in cluster.nodes if node.target is not operator.getitem]
            if not all(verdict(loaded, node).accepted for node in calls):
                continue
            n_taken += 1
            executable = loaded.compile(cluster, CompileSettings(threads=1))
            for kind, x in kinds.items():
                if kind == "NaN" and backend not in SAME_NAN:
                    continue  # verification finds what differs, and such calls are guarded
                for got, want in zip(executable(x), cluster.module(x), strict=True):
                    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=f"{name} of {kind} {size}")
    assert n_taken or backend in ("openvino", "iree", "mdla", "triton")


# --- Models -----------------------------------------------------------------------------------------------------------


class Detector(nn.Module):
    """A model that continues with the anchors of the highest scores, which are all the same if no anchor is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.score, self.box = nn.Conv2d(3, 16, 3, 4, 1), nn.Linear(16, 5), nn.Linear(16, 4)
        self.anchors = nn.Parameter(torch.randn(81, 4))
        self.decode, self.label = nn.Linear(16, 16), nn.Linear(20, 5)

    def forward(self, pixels: torch.Tensor, is_inside: torch.Tensor) -> tuple[torch.Tensor, ...]:
        memory = self.stem(pixels).relu().flatten(2).mT * is_inside
        _, places = self.score(memory).max(-1)[0].topk(12, dim=1)
        boxes = (self.box(memory) + self.anchors).gather(1, places[..., None].expand(-1, -1, 4)).sigmoid()
        chosen = self.decode(memory.gather(1, places[..., None].expand(-1, -1, 16))).relu()
        scores, at = self.label(torch.cat((chosen, boxes), -1)).sigmoid().flatten(1).topk(6, dim=1)
        return scores, at % 5, boxes.gather(1, (at // 5)[..., None].expand(-1, -1, 4)) * 192


ALONE = [name for name in BACKENDS if name not in ("mdla", "triton")]


@pytest.mark.parametrize(
    ("tune", "backends"),
    [
        ("off", ("onnxruntime",)),
        *(pytest.param("off", (name,), marks=pytest.mark.slow) for name in ALONE if name != "onnxruntime"),
        *(pytest.param(tune, ("onnxruntime",), marks=pytest.mark.slow) for tune in ("fast", "full")),
        *(pytest.param(tune, None, marks=pytest.mark.slow) for tune in ("off", "fast", "full")),
    ],
)
def test_what_is_computed_from_the_first_of_equal_scores_is_eagers(tune: str, backends: tuple[str, ...] | None) -> None:
    """This holds in the first call and in all later ones, for any equal scores; the backend runs what is unambiguous."""
    torch.manual_seed(0)
    model = Detector().eval()
    options: dict[str, Any] = {"tune": tune}
    compiled = torch.compile(model, backend="hub", options={**options, **({"backends": backends} if backends else {})})
    with torch.no_grad():
        for n_inside in (0, 0, 30, 81):
            inputs = torch.rand(2, 3, 36, 36), (torch.arange(81) < n_inside).float()[:, None]
            for got, want in zip(compiled(*inputs), model(*inputs), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    (plan,) = hub.plans(compiled)
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]
    assert backends is None or set(backends) <= set(plan.backends)
