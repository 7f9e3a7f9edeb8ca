"""The tensor program of a cluster, rewritten into one that suits a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from hub.toolkit.builders import with_own_memory
from hub.toolkit.cluster import Lowered
from hub.toolkit.reading import in_order
from hub.toolkit.simplify import simplifications
from hub.toolkit.tensors import Source, Tensor, arguments_of

from .attention import with_attention
from .deep import in_parts
from .prologues import Prologues
from .rewrite import for_gpu

PROGRAMS = 128
"""Number of programs that is taken to keep a GPU busy: an H100 has 132 multiprocessors, an MI300 304."""


def for_kernels(lowered: Lowered) -> Lowered:
    """Return an equal program: long sums and deep products in two steps, halves on tensor cores, attention in one."""
    done = simplifications(lowered.outputs, in_order(lowered.outputs), threads=PROGRAMS)
    halved = for_gpu([done[output] for output in lowered.outputs])
    before = [halved[done[output]] for output in lowered.outputs]
    prologues = Prologues(before)
    fused = with_attention(
        before, lambda old, new: in_parts(new, PROGRAMS, lambda product: prologues.before(old, product)), PROGRAMS
    )
    moved = {old: prologues.moved.get(new, new) for old, new in fused.items()}
    origins, found = lowered.origins, list[Tensor]()
    for known in (done, halved, moved):
        origins = _carried(origins, known)
    for output in lowered.outputs:
        found.append(with_own_memory(fused[halved[done[output]]], found))
    return Lowered(tuple(found), lowered.weights, origins)


def _carried(origins: Mapping[Tensor, str], known: Mapping[Tensor, Tensor]) -> dict[Tensor, str]:
    """Return the nodes of the replacements; a tensor that only the rewrite made gets the node of its first reader."""
    found: dict[Tensor, str] = {}
    for old, new in known.items():
        stack = [new] if old in origins else []
        while stack:
            tensor = stack.pop()
            if tensor not in found and not isinstance(tensor, Source):
                found[tensor] = origins[old]
                stack += arguments_of(tensor)
    return found
