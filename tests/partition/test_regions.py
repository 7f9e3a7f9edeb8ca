"""Regions: cut where one tensor crosses, equal for repeated layers however many there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from hub.bench import zoo
from hub.bench.zoo import text, vision
from hub.partition.extract import check_convex
from hub.partition.regions import Region, classes, coarsened, is_heavy, regions
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name
from hub.testing.single import capture
from tests.functions import Of

TINY: Mapping[str, Any] = {"hidden": 32, "tokens": 16, "vocabulary": 100}


def graph_of(built: tuple[nn.Module, tuple[Any, ...]], *, dynamic: bool = False) -> Graph:
    """Capture a model as the zoo's builders return it."""
    module, inputs = built
    with torch.no_grad():
        module.eval()(*inputs)  # transformers sets some models up at their first call
    return capture(module.eval(), inputs, dynamic=dynamic).graph


def heavies(graph: Graph, region: Region) -> list[str]:
    """Return the short names of a region's heavy operators."""
    nodes = (graph.by_name[name] for name in region.nodes)
    return [operator_name(node).split(".")[1] for node in nodes if is_heavy(node)]


def check_cover(graph: Graph, found: tuple[Region, ...]) -> None:
    """Check that each node is in one region, in order, and that each region is convex and carries what later nodes read."""
    assert tuple(name for region in found for name in region.nodes) == tuple(node.name for node in graph.nodes)
    done: set[str] = set()
    for region in found:
        check_convex(tuple(graph.by_name[name] for name in region.nodes), "region")
        done.update(region.nodes)
        read_later = {
            node.name for node in graph.nodes if node.name in done and any(user.name not in done for user in node.users)
        } - {source.name for source in graph.module.graph.output_node().all_input_nodes}
        assert read_later <= set(region.carried)
        assert set(region.carried) <= done


REPEATING: Mapping[str, Callable[[int], tuple[nn.Module, tuple[Any, ...]]]] = {
    "bert": lambda layers: text.bert(1, layers=layers, **TINY),
    "gpt2": lambda layers: text.gpt2(1, layers=layers, **TINY),
    "llama": lambda layers: text.llama(1, layers=layers, **TINY),
    "moe": lambda layers: text.moe(1, layers=layers, **TINY),
    "t5": lambda layers: text.t5(1, layers=layers, **TINY),
    "vit": lambda layers: vision.vit(1, layers=layers, hidden=32, pixels=32),
    "resnet": lambda blocks: vision.resnet18(1, widths=(8, 16), depths=(blocks, blocks), pixels=32),
}


@cache
def repeating(name: str, layers: int) -> Graph:
    """Capture a model with a number of layers, once."""
    return graph_of(REPEATING[name](layers))


DEPTHS = {"bert": (2, 4, 8), "resnet": (2, 4, 8, 16), "moe": (4, 8), "t5": (4, 8)}


SLOW_TO_CAPTURE = ("moe", "t5", "resnet", "gpt2", "llama")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_TO_CAPTURE)) for name in REPEATING]
)
def test_structures_do_not_grow_with_depth(name: str) -> None:
    """Twice the layers give about twice the regions and no new structure."""
    counts: dict[int, tuple[int, int]] = {}
    for layers in DEPTHS.get(name, (2, 4, 8)):
        graph = repeating(name, layers)
        found = regions(graph)
        check_cover(graph, found)
        counts[layers] = (len(found), len(classes(found)))
    repeated = [counts[layers] for layers in counts if layers > 2]  # of two layers, one is first and the other last
    assert len({n_classes for _, n_classes in repeated}) == 1, counts
    assert repeated[-1][0] > 1.6 * repeated[-2][0], counts
    assert repeated[0][1] >= counts.get(2, repeated[0])[1]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_attention_and_mlp_stand_apart(name: str) -> None:
    """Between the first and the last, a transformer's regions are attention and MLP by turns, each of one structure."""
    graph = repeating(name, 4)
    found = regions(graph)
    has_attention = ["scaled_dot_product_attention" in heavies(graph, region) for region in found]
    first = has_attention.index(True)
    assert has_attention[first : first + 8] == [True, False] * 4
    assert len({region.structure for region in found[first : first + 7 : 2]}) == 1
    assert len({region.structure for region in found[first + 1 : first + 6 : 2]}) == 1


def test_residual_blocks_stand_apart() -> None:
    """A ResNet gives its stem, one region for each residual block, and its head."""
    graph = graph_of(zoo.build("resnet18"))
    found = [heavies(graph, region) for region in regions(graph)]
    assert found == [["conv2d"], *([["conv2d"] * n for n in (2, 2, 3, 2, 3, 2, 3, 2)]), ["linear"]]


def test_a_chain_is_cut_at_every_convolution() -> None:
    """Norms and activations stay with the convolution before them."""
    layers = (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(5))
    graph = graph_of((nn.Sequential(*layers), (torch.ones(1, 4, 8, 8),)))
    found = regions(graph)
    assert [heavies(graph, region) for region in found] == [["conv2d"]] * 5
    assert len(found[0].nodes) == len(found[4].nodes) >= 3
    assert len({region.structure for region in found}) == 1


def test_skips_of_a_unet_hide_no_cut_points() -> None:
    """Each level is cut although skips live across; they are carried."""
    graph = graph_of(zoo.build("unet", small=True))
    found = regions(graph)
    check_cover(graph, found)
    assert len(found) > 10
    assert max(len(region.carried) for region in found) == 3
    assert max(len(heavies(graph, region)) for region in found) <= 4


def test_what_everybody_reads_hides_no_cut_points() -> None:
    """Cosines and sines live through a Llama, are carried through its layers, and belong to the start.

    Its mask is a constant of the graph.
    """
    graph = repeating("llama", 4)
    found = regions(graph)
    assert {"cos", "sin"} <= {operator_name(graph.by_name[name]).split(".")[1] for name in found[0].nodes}
    shared = set(found[0].carried) & set(found[3].carried)
    assert len(shared) == 2
    assert [len(region.carried) for region in found[:4]] == [3, 3, 3, 3]


def test_an_encoders_output_hides_no_cut_points() -> None:
    """A T5's decoder is cut into self-attention, cross-attention and MLP although all layers read the encoder."""
    graph = repeating("t5", 4)
    found = [heavies(graph, region) for region in regions(graph)]
    assert max(map(len, found)) <= 6
    assert sum("scaled_dot_product_attention" in names for names in found) == 4 + 2 * 4


def test_outputs_hide_no_cut_points() -> None:
    """Keys and values that every layer returns, for a cache, cross no cut: no later node reads them."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            kept: list[torch.Tensor] = []
            for layer in self.layers:
                y = layer(x)
                kept.append(y)
                x = y.relu()
            return (x, *kept)

    found = regions(graph_of((Layers(), (torch.ones(2, 8),))))
    assert len(found) == 12
    assert [len(region.carried) for region in found] == [1] * 11 + [0]


class Scan(nn.Module):
    """A state-space layer in plain PyTorch, as Mamba's: a step for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(8, 8)
        self.mix, self.steps = nn.Conv1d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, T, 8] to [B, T, 8]."""
        hidden, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        hidden = self.mix(hidden.mT).mT
        decay, b, c = self.steps(hidden).chunk(3, dim=-1)
        state, found = torch.zeros(x.shape[0], 8, 8), []
        for step in range(x.shape[1]):
            state = state * decay[:, step, :, None].sigmoid() + b[:, step, :, None] * hidden[:, step, None]
            found.append((state @ c[:, step, :, None]).squeeze(-1))
        return x + self.leave(torch.stack(found, 1) * gate.sigmoid())


def test_a_scan_stays_in_one_piece() -> None:
    """The steps of a state-space layer are no regions: its layers are."""
    graph = graph_of((nn.Sequential(*(Scan() for _ in range(3))), (torch.ones(2, 6, 8),)))
    found = regions(graph)
    assert [heavies(graph, region) for region in found] == [["linear", "conv1d", "linear", "linear"]] * 3
    assert len(classes(found)) == 1


def test_a_block_with_many_products_is_cut_inside() -> None:
    """Experts run one after the other; the layers stay apart, and equal."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(6))
            self.router = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shares = self.router(x).softmax(-1)
            return x + sum(expert(x) * shares[:, i : i + 1] for i, expert in enumerate(self.experts))  # pyright: ignore[reportReturnType]

    counts: list[int] = []
    for layers in (3, 6):
        graph = graph_of((nn.Sequential(*(Experts() for _ in range(layers))), (torch.ones(2, 8),)))
        found = regions(graph)
        check_cover(graph, found)
        assert len(found) >= layers
        counts.append(len(classes(found)))
    assert counts[0] == counts[1]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["swin", "segformer", "convnext", "whisper-encoder", "wav2vec2", "mobilenetv2"])
def test_models_give_several_regions_with_work(name: str) -> None:
    """Each region of a real model has a heavy operator, and none has more than a block's worth."""
    graph = graph_of(zoo.build(name, small=True))
    found = regions(graph)
    check_cover(graph, found)
    assert len(found) >= 5
    assert all(1 <= len(heavies(graph, region)) <= 8 for region in found)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_whole_speech_model_is_cut() -> None:
    """A Whisper's encoder, and its decoder with self-attention and cross-attention, are regions of their own."""
    config: Any = transformers.WhisperConfig
    sizes = {"d_model": 32, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 2, "vocab_size": 100}
    fixed = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0, "use_cache": False}
    made = config(
        **sizes, **fixed, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=50
    )
    module = transformers.WhisperModel(made)

    class Call(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model: Any = module

        def forward(self, sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_features=sound, decoder_input_ids=ids).last_hidden_state

    graph = graph_of((Call(), (torch.randn(1, 80, 100), torch.zeros(1, 5, dtype=torch.long))))
    found = regions(graph)
    check_cover(graph, found)
    assert sum("scaled_dot_product_attention" in heavies(graph, region) for region in found) == 4 + 2 * 4
    assert len(classes(found)) <= 12


def test_a_layer_of_two_models_is_one_structure() -> None:
    """BERT models of different depths and vocabularies share their layers."""
    one, two = (
        regions(graph_of(text.bert(1, layers=n, hidden=32, tokens=16, vocabulary=v))) for n, v in ((2, 100), (4, 50))
    )
    assert len(classes(one).keys() & classes(two).keys()) >= 2


def test_symbolic_sizes_change_nothing() -> None:
    """A captured model with symbolic sizes has the same regions, and repeats among them."""
    static, dynamic = (graph_of(zoo.build("bert", batch=3, small=True), dynamic=dynamic) for dynamic in (False, True))
    found = regions(dynamic)
    check_cover(dynamic, found)
    assert [heavies(dynamic, region) for region in found] == [heavies(static, region) for region in regions(static)]
    assert len(classes(found)) == len(classes(regions(static)))


def test_tuples_stay_with_their_elements() -> None:
    """No cut stands between a tuple and its elements."""
    layers = (lambda x: x.relu().split(4, dim=1), lambda parts: torch.cat(parts, 1))
    weight = torch.ones(8, 8)
    graph = graph_of((Of(lambda x: layers[1](layers[0](x @ weight)) @ weight), (torch.ones(2, 8),)))
    for region in regions(graph):
        for name in region.nodes:
            assert all(user.name in region.nodes for user in graph.by_name[name].users if user.name.startswith("getitem"))


def test_a_graph_without_heavy_operators_is_one_region() -> None:
    """Nothing to weigh, nothing to cut."""
    found = regions(graph_of((nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU()), (torch.ones(2, 8),))))
    assert len(found) == 1
    assert found[0].carried == ()


def test_classes_come_in_order_of_first_appearance() -> None:
    """Structure to positions."""
    found = tuple(Region((name,), structure, ()) for name, structure in zip("abcd", "xyxz", strict=True))
    assert list(classes(found).items()) == [("x", (0, 2)), ("y", (1,)), ("z", (3,))]


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_joining_keeps_repeats(name: str) -> None:
    """Joined to half, attention and its MLP are one region; joined on, layers go by twos, and an odd one is left over."""
    graph = repeating(name, 8)
    found = regions(graph)
    for most in (len(found) - 1, 10, 6, 4):
        joined = coarsened(graph, found, most)
        check_cover(graph, joined)
        assert 1 < len(joined) <= most
        assert len(classes(joined)) <= len(classes(found)) + 1
    halved = coarsened(graph, found, len(found) - 1)
    assert max(len(positions) for positions in classes(halved).values()) >= 7


def test_joining_leaves_few_regions_alone() -> None:
    """Where there are few enough, they stay as they are; at least one always stays."""
    graph = repeating("bert", 2)
    found = regions(graph)
    assert coarsened(graph, found, len(found)) == found
    (whole,) = coarsened(graph, found, 0)
    assert whole.nodes == tuple(node.name for node in graph.nodes)
    assert whole.carried == ()


def test_joining_without_repeats_takes_the_cheapest() -> None:
    """Of pairs that are equally frequent, the one that costs least is joined."""
    sizes = (8, 16, 32, 64, 128)
    layers = (nn.Linear(low, high) for low, high in itertools.pairwise(sizes))
    graph = graph_of((nn.Sequential(*layers), (torch.ones(2, 8),)))
    joined = coarsened(graph, regions(graph), 3, cost=lambda node: float(node.meta["val"].numel()))
    assert [len(region.nodes) for region in joined] == [2, 1, 1]
