"""Chooses which backends may appear at all, where each further one costs: branch and bound over sets of backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from hub.assign.problem import Part

Best = Callable[[frozenset[str]], Part | None]
"""Return the cheapest choice, mixing not counted, that uses none but the given backends; None if there is none."""

Floor = Callable[[frozenset[str]], float]
"""Return seconds that no such choice undercuts, quicker."""


def cheapest_mix(backend_of: Sequence[str], mix_s: float, best: Best, floor: Floor) -> Part | None:
    """Return the cheapest choice with `mix_s` for each distinct backend after the first. Exact; None if there is no choice.

    `backend_of` names the backend of each index that a choice picks. A branch is a set of backends that may be used and one
    that counts as used. Its choice without mixing bounds it from below; where that choice uses more than is counted, one
    backend is either counted or forbidden. So only sets that could still win are solved for, seldom all 2^backends.
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
