"""Splits a graph into consecutive regions where little data crosses, so that repeated layers give equal regions.

A cut point is a position in the topological order that one tensor crosses. Weights, numbers, inputs before their first use
and outputs after their last use do not count. In a piece larger than one block of a network, values that live through most
of it (masks, position tables, an encoder's output, a U-Net's skips) do not count either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import fx

from hub.partition.structure import structure_digest
from hub.plugin.graph import Graph, is_view
from hub.plugin.table import operator_name, value_of
from hub.torch_private import HigherOrderOperator, OpOverload

MAX_HEAVY = 7
"""Most heavy operators in one block: attention has 5 (three products, attention, a product), with an MLP 7, an Inception
block 7, a residual block of a ResNet 2 to 4. A larger piece is split further."""


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive nodes of a graph between two cut points."""

    nodes: tuple[str, ...]
    """Names in topological order."""
    structure: str
    """`structure_digest` of the nodes: regions of equal structure are one candidate, priced once."""
    carried: tuple[str, ...]
    """Values made in or before it that later nodes read, including long-lived ones, in topological order."""


def regions(graph: Graph) -> tuple[Region, ...]:
    """Return the regions in topological order; each node is in exactly one. An empty graph has none.

    Each holds a heavy operator (a product with a weight, a convolution, attention, a recurrent layer, a table look-up),
    unless the graph has none; light nodes go with the heavy ones before them.
    """
    line = _Line.of(graph)
    found: list[_Piece] = []
    waiting = [(0, len(line.nodes))] if line.nodes else []
    while waiting:
        piece = waiting.pop()
        parts = _parts(line, piece)
        if len(parts) == 1:
            found.append(piece)
        else:
            waiting.extend(reversed(parts))
    return _as_regions(graph, line, _joined_at_the_start(line, found))


def classes(found: Sequence[Region]) -> Mapping[str, tuple[int, ...]]:
    """Return the positions of equal regions by their structure, in order of first appearance."""
    positions: dict[str, list[int]] = {}
    for position, region in enumerate(found):
        positions.setdefault(region.structure, []).append(position)
    return {structure: tuple(where) for structure, where in positions.items()}


_Piece = tuple[int, int]
"""First position, and the position after the last."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A graph's nodes in order, with the data that decides where to cut."""

    nodes: tuple[fx.Node, ...]
    lives: Mapping[fx.Node, tuple[int, int]]
    """For each value, where it is made and where it is last read. An input counts from the node that reads it first."""
    heavy_before: tuple[int, ...]
    """Number of heavy operators before each position, and one more entry at the end."""

    @classmethod
    def of(cls, graph: Graph) -> _Line:
        nodes = graph.nodes
        position = {node: index for index, node in enumerate(nodes)}
        weights = frozenset(graph.weights)
        lives: dict[fx.Node, tuple[int, int]] = {}
        for node in (*graph.placeholders, *nodes):
            reads = [position[user] for user in node.users if user in position]
            made = [position[node]] if node in position else reads
            if made and node.name not in weights:
                lives[node] = min(made), max((*made, *reads))
        return cls(nodes, lives, tuple(accumulate(map(is_heavy, nodes), initial=0)))

    def heavies(self, start: int, end: int) -> int:
        return self.heavy_before[end] - self.heavy_before[start]


def _parts(line: _Line, piece: _Piece) -> Sequence[_Piece]:
    """Cut a piece where one tensor crosses. If a large piece has no such position, ignore its longest-lived values.

    Only values that live through half of the piece or more may be ignored: those that live shorter belong to a block
    inside.
    """
    total = line.heavies(*piece)
    lives = [_Life(first, last, line.heavies(first + 1, last)) for first, last in _spans(line, piece)]
    lives.sort(key=lambda life: life.heavies, reverse=True)
    width = _Width(line, piece, lives)
    for heavies, longest in groupby(lives, key=lambda life: life.heavies):
        parts = _with_heavy(line, width.pieces())
        if _is_cut(line, parts) or total <= MAX_HEAVY or 2 * heavies < total:
            break
        width.ignore(longest)
    parts = _with_heavy(line, width.pieces())
    return parts if _is_cut(line, parts) else (piece,)


def _is_cut(line: _Line, parts: Sequence[_Piece]) -> bool:
    return sum(line.heavies(*part) > 0 for part in parts) > 1


@dataclass(frozen=True, slots=True)
class _Life:
    """Lifetime of one value in a piece: it crosses every position after `first` up to `last`."""

    first: int
    last: int
    heavies: int
    """Number of heavy operators that run during it."""


def _spans(line: _Line, piece: _Piece) -> Iterator[tuple[int, int]]:
    """Yield the lifetimes, within a piece, of the values that it makes or reads.

    Values that live through the whole piece are left out, since all parts share them; so are numbers, which are free to
    carry.
    """
    start, end = piece
    values = dict.fromkeys(value for node in line.nodes[start:end] for value in (node, *node.all_input_nodes))
    for value in values:
        first, last = line.lives.get(value, (end, end))
        is_everybodys = first < start and last >= end
        first, last = max(first, start - 1), min(last, end - 1)
        if first < last and not is_everybodys and not _is_number(value):
            yield first, last


def _is_number(node: fx.Node) -> bool:
    return isinstance(value_of(node), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


class _Width:
    """Number of values that cross each position of a piece."""

    def __init__(self, line: _Line, piece: _Piece, lives: Iterable[_Life]) -> None:
        self.line = line
        self.start, self.end = piece
        self.steps = [0] * (self.end - self.start + 1)  # change of the width at each position
        for life in lives:
            self._add(life, 1)

    def ignore(self, lives: Iterable[_Life]) -> None:
        """Stop counting some values."""
        for life in lives:
            self._add(life, -1)

    def pieces(self) -> Sequence[_Piece]:
        """Return the pieces between the positions that at most one value crosses."""
        widths = enumerate(accumulate(self.steps), self.start)
        inner = [at for at, width in widths if width <= 1 and self.start < at < self.end and self._may_cut(at)]
        return tuple(pairwise((self.start, *inner, self.end)))

    def _may_cut(self, at: int) -> bool:
        """Return False between a tuple and its elements, which exist only where the tuple is made."""
        node = self.line.nodes[at]
        return node.target is not operator.getitem or isinstance(value_of(node.args[0]), torch.Tensor)

    def _add(self, life: _Life, amount: int) -> None:
        self.steps[life.first + 1 - self.start] += amount
        self.steps[life.last + 1 - self.start] -= amount


def _with_heavy(line: _Line, pieces: Sequence[_Piece]) -> Sequence[_Piece]:
    """Join light pieces to the piece before."""
    joined = [pieces[0]]
    for start, end in pieces[1:]:
        if line.heavies(start, end):
            joined.append((start, end))
        else:
            joined[-1] = (joined[-1][0], end)
    return joined


def _joined_at_the_start(line: _Line, pieces: Sequence[_Piece]) -> Sequence[_Piece]:
    """Join light pieces to the piece before, and those at the start of the graph to the first heavy one."""
    joined = _with_heavy(line, pieces)
    if len(joined) > 1 and not line.heavies(*joined[0]):
        return ((0, joined[1][1]), *joined[2:])
    return joined


def _as_regions(graph: Graph, line: _Line, pieces: Sequence[_Piece]) -> tuple[Region, ...]:
    found: list[Region] = []
    alive: list[fx.Node] = []
    for start, end in pieces:
        alive = [node for node in (*alive, *line.nodes[start:end]) if line.lives[node][1] >= end]
        nodes = tuple(node.name for node in line.nodes[start:end])
        carried = tuple(node.name for node in alive)
        found.append(Region(nodes, structure_digest(graph, nodes), carried))
    return tuple(found)


# --- Heavy operators --------------------------------------------------------------------------------------------------

_ALWAYS_HEAVY = (
    "conv",
    "embedding",
    "scaled_dot_product",
    "_scaled_dot_product",
    "lstm",
    "gru",
    "rnn_",
    "fft_",
    "_grouped_mm",
)
"""Prefixes of the names of operators that are heavy whatever they read."""
_PRODUCTS = frozenset({"linear", "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "einsum", "mv", "addmv", "bilinear"})
"""Operators that are heavy if an operand is a weight or an input. Products of two computed values may be tiny, as in every
step of a scan; in attention they are between products with weights anyway."""
_CASTS = frozenset({"aten._to_copy.default", "aten.to.dtype", "aten.contiguous.default", "aten.clone.default"})


def is_heavy(node: fx.Node) -> bool:
    """Return whether a node is worth a region.

    That is a product with a weight, a convolution, attention, a recurrent layer, a table look-up, or a custom operator.
    """
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    namespace, _, rest = operator_name(node).partition(".")
    if not isinstance(node.target, OpOverload):
        return isinstance(node.target, HigherOrderOperator)
    if namespace not in ("aten", "prims", "prim"):
        return True
    name = rest.partition(".")[0]
    return name.startswith(_ALWAYS_HEAVY) or (name in _PRODUCTS and any(map(_is_stored, node.all_input_nodes)))


def _is_stored(node: fx.Node) -> bool:
    """Return True for weights and inputs, seen through views and casts."""
    while node.op == "call_function" and (is_view(node) or operator_name(node) in _CASTS) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op in ("placeholder", "get_attr")


# --- Coarser regions --------------------------------------------------------------------------------------------------


def coarsened(
    graph: Graph, found: Sequence[Region], most: int, *, cost: Callable[[fx.Node], float] = is_heavy
) -> tuple[Region, ...]:
    """Return at most `most` regions (at least one) by joining neighbours, equal ones alike, so that repeats stay repeats.

    As in byte-pair encoding (Gage, 1994), the most frequent pair of neighbouring structures is joined wherever it occurs,
    as often as needed: first attention with its MLP, then layers two by two. Among equally frequent pairs the cheapest is
    first, by the sum of `cost` over its nodes (for example, `hub.pricing.roofline.flops`), then the earliest.
    """
    labels = {structure: label for label, structure in enumerate(classes(found))}
    blocks = [
        _Block(
            labels[region.structure], region.nodes, region.carried, sum(cost(graph.by_name[name]) for name in region.nodes)
        )
        for region in found
    ]
    while len(blocks) > max(most, 1):
        pair = _next_pair(blocks)
        blocks = _joined(blocks, pair, label=len(labels))
        labels[f"join {len(labels)}"] = len(labels)
    structures = {region.nodes: region.structure for region in found}
    return tuple(
        Region(block.nodes, structures.get(block.nodes) or structure_digest(graph, block.nodes), block.carried)
        for block in blocks
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """A run of regions; equal labels mean that the same structures were joined."""

    label: int
    nodes: tuple[str, ...]
    carried: tuple[str, ...]
    cost: float


def _next_pair(blocks: Sequence[_Block]) -> tuple[int, int]:
    """Return the labels of the pair of neighbours to join: the most frequent, then the cheapest, then the first."""
    costs: dict[tuple[int, int], float] = {}
    for left, right in pairwise(blocks):
        costs.setdefault((left.label, right.label), left.cost + right.cost)
    return min(costs, key=lambda pair: (-len(_places(blocks, pair)), costs[pair]))


def _places(blocks: Sequence[_Block], pair: tuple[int, int]) -> Sequence[int]:
    """Return the positions of a pair of labels, from the left, without overlaps."""
    places: list[int] = []
    for index, (left, right) in enumerate(pairwise(blocks)):
        if (left.label, right.label) == pair and (not places or places[-1] < index - 1):
            places.append(index)
    return places


def _joined(blocks: Sequence[_Block], pair: tuple[int, int], label: int) -> list[_Block]:
    places = frozenset(_places(blocks, pair))
    joined: list[_Block] = []
    for index, block in enumerate(blocks):
        if index in places:
            right = blocks[index + 1]
            joined.append(_Block(label, block.nodes + right.nodes, right.carried, block.cost + right.cost))
        elif index - 1 not in places:
            joined.append(block)
    return joined
