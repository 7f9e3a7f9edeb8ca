"""How good estimates are for models without measurements: the shipped table, with each model left out in turn.

Predicts the time of every model of the table on each backend from the rows of all other models, and chooses a plan from
these times and eager's, as `tune="off"` does with an empty store. Times nothing: `python -m benchmarks.price_table` did.
Prints errors as factors, exp(|log(predicted / measured)|), and how far each choice is from the best; writes
`results/prices.json`. It takes a minute; run it with `python -m benchmarks.prices`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hub.partition.group import EAGER
from hub.pricing.compile_times import Compiled, CompileTimes, weighed
from hub.pricing.learned import LearnedPrices
from hub.pricing.roofline import COMPILED_EFFICIENCY
from hub.pricing.shipped import TABLE, Row, Table, bound_s, read_table

RESULTS = Path(__file__).parent / "results" / "prices.json"
GOOD = 1.25
"""A choice within this factor of the best one counts as good."""


class Predicted(NamedTuple):
    """One row with its estimate."""

    row: Row
    learned_s: float
    spread: float
    """Logarithm of the ratio of the 95 % interval's upper end to the estimate."""
    roofline_s: float
    compile_s: float


def main() -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    table = read_table(given.table)
    found = [one for model in names_of(table) for one in predicted(table, model)]
    errors = {backend: figures([one for one in found if one.row.backend == backend]) for backend in backends_of(table)}
    for backend, rows in errors.items():
        print(f"{backend}, {sum(one.row.backend == backend for one in found)} clusters, nothing of the model known")
        for title, values in rows.items():
            print(f"  {title:10}", "  ".join(f"{name} {value:.2f}" for name, value in values.items()))
    choices = list(chosen(found))
    for one in sorted(choices, key=lambda one: -one["factor"]):
        print("{model:20} {chosen:12} {factor:5.2f} of {best:12} eager {eager:5.2f}".format(**one))
    summary = summary_of(choices)
    print(json.dumps(summary, indent=1))
    written = {"command": "python -m benchmarks.prices", "errors": errors, "summary": summary, "choices": choices}
    given.output.write_text(json.dumps(written, indent=1) + "\n")


def names_of(table: Table) -> Sequence[str]:
    """Return the models of the table; other batches of a model have its name."""
    return tuple(dict.fromkeys(base(row.model) for row in table.rows))


def base(model: str) -> str:
    """Return a model's name without its batch."""
    return model.partition("@")[0]


def backends_of(table: Table) -> Sequence[str]:
    """Return the backends of the table, including eager."""
    return tuple(dict.fromkeys(row.backend for row in table.rows))


def predicted(table: Table, model: str) -> Iterator[Predicted]:
    """Predict one model's rows from those of all others, backend by backend."""
    for backend in backends_of(table):
        rows = [row for row in table.rows if row.backend == backend]
        others = [row for row in table.without(model).rows if row.backend == backend]
        learned = LearnedPrices.fit(table.without(model).samples(backend, table.peaks))
        times = CompileTimes.fit([Compiled(row.features, row.compile_s) for row in others])
        for row in rows:
            if base(row.model) == model:
                roofline_s = bound_s(row.features, table.peaks, COMPILED_EFFICIENCY)
                cost = learned.price(row.features) if learned is not None else None
                learned_s = roofline_s if cost is None else cost.run_s
                spread = 1.0 if cost is None else math.asinh(cost.spread_s / cost.run_s)
                yield Predicted(row, learned_s, spread, roofline_s, times.seconds(row.features) if times else 0.0)


def figures(found: Sequence[Predicted]) -> Mapping[str, Mapping[str, float]]:
    """Return median, mean and 90th percentile of the errors, and how often the intervals hold."""
    learned = [abs(math.log(one.learned_s / one.row.run_s)) for one in found]
    inside = [error < one.spread for error, one in zip(learned, found, strict=True)]
    rows = {
        "roofline": factors([abs(math.log(one.roofline_s / one.row.run_s)) for one in found]),
        "learned": factors(learned) | {"in interval": sum(inside) / len(inside)},
    }
    compiled = [abs(math.log(one.compile_s / one.row.compile_s)) for one in found if one.row.compile_s and one.compile_s]
    return rows | ({"compile time": factors(compiled)} if compiled else {})


def chosen(found: Sequence[Predicted]) -> Iterator[dict[str, Any]]:
    """Yield, for each model, the chosen plan of its whole graph, and how far it is from the best."""
    for model in dict.fromkeys(one.row.model for one in found):
        plans = {one.row.backend: one for one in found if one.row.model == model and one.row.kind == "graph"}
        measured_s = {backend: one.row.run_s for backend, one in plans.items()}
        expected_s = {backend: one.learned_s for backend, one in plans.items()}
        expected_s[EAGER] = measured_s[EAGER]  # planning measures eager first
        if len(plans) < 2:
            continue
        weighed_s = {
            name: weighed(expected_s[name], 0.0 if name == EAGER else one.compile_s) for name, one in plans.items()
        }
        best, choice = min(measured_s, key=measured_s.__getitem__), min(weighed_s, key=weighed_s.__getitem__)
        fastest = min(expected_s, key=expected_s.__getitem__)
        order = sorted((name for name in plans if name != EAGER), key=expected_s.__getitem__)
        yield {
            "model": model,
            "chosen": choice,
            "best": best,
            "factor": measured_s[choice] / measured_s[best],
            "compile_s": 0.0 if choice == EAGER else plans[choice].row.compile_s,
            "compile_s by speed alone": 0.0 if fastest == EAGER else plans[fastest].row.compile_s,
            "eager": measured_s.get(EAGER, math.inf) / measured_s[best],
            "expected": {name: round(expected_s[name] / measured_s[name], 3) for name in order},
            "rank": order.index(best) + 1 if best in order else 0,
        }


def summary_of(choices: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """Return how often the choice was good, and how often the best plan was among the first few."""
    return {
        "models": len(choices),
        "within 1.25 of the best": sum(one["factor"] <= GOOD for one in choices) / len(choices),
        "not slower than eager": sum(one["factor"] <= one["eager"] for one in choices) / len(choices),
        "mean factor": math.exp(sum(math.log(one["factor"]) for one in choices) / len(choices)),
        "largest factor": max(one["factor"] for one in choices),
        **{key: sum(one[key] for one in choices) for key in ("compile_s", "compile_s by speed alone")},
        **{f"best among the first {n}": sum(one["rank"] <= n for one in choices) / len(choices) for n in (1, 2, 3)},
    }


def factors(logs: Sequence[float]) -> dict[str, float]:
    """Convert logarithms to factors: their median, geometric mean and 90th percentile."""
    return {
        "median": math.exp(float(np.median(logs))),
        "mean": math.exp(float(np.mean(logs))),
        "90th": math.exp(float(np.quantile(logs, 0.9))),
    }


if __name__ == "__main__":
    main()
