"""Choice of the set of backends if each additional one costs: branch and bound over sets of backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from hub.planning.assign.problem import Part

Best = Callable[[frozenset[str]], Part | None]
"""Function that returns the cheapest choice, without mixing costs, that uses only the given backends; None if none."""

Floor = Callable[[frozenset[str]], float]
"""Function that returns a lower bound in seconds for such choices, faster than solving."""


def cheapest_mix(backend_of: Sequence[str], mix_s: float, best: Best, floor: Floor) -> Part | None:
    """Return the cheapest choice, adding `mix_s` for each distinct backend after the first. Exact; None if there is none.

    `backend_of` names the backend of each index that a choice picks. A branch consists of a set of allowed backends and a
    set of backends that count as used. Its choice without mixing is a lower bound; if that choice uses backends that are
    not counted, the search branches by counting or forbidding one of them. So only sets that could still win are solved,
    seldom all 2^backends.
    """
    found: Part | None = None
    proven_s = float("inf")
    branches: list[tuple[frozenset[str], frozenset[str]]] = [(frozenset(backend_of), frozenset())]
    solved: dict[frozenset[str], Part | None] = {}
    while branches:
        allowed, counted = branches.pop()
        mixed_s = mix_s * max(len(counted) - 1, 0)
        if allowed not in solved:
            if found is not None and floor(allowed) + mixed_s >= found.objective_s:
                continue
            solved[allowed] = best(allowed)
        part = solved[allowed]
        if part is None:
            continue
        lower_s = part.bound_s + mixed_s
        if found is not None and lower_s >= found.objective_s:
            continue
        uses = Counter(backend_of[index] for index in part.picked)
        total_s = part.objective_s + mix_s * max(len(uses) - 1, 0)
        if found is None or total_s < found.objective_s:
            found = replace(part, objective_s=total_s)
        if mix_s == 0 or len(uses) <= max(len(counted), 1):
            proven_s = min(proven_s, lower_s)
            continue
        rarest = min(uses.keys() - counted, key=lambda name: (uses[name], name))
        branches += [(allowed, counted | {rarest}), (allowed - {rarest}, counted)]
    return None if found is None else replace(found, bound_s=min(proven_s, found.objective_s))
