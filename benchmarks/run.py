"""Times the hub against every peer on the models of the README, and writes `benchmarks/results/`.

Each model is one `hub bench` run: each contender through its own API, in its own process, blocks interleaved. Run with
`make bench`, or `python benchmarks/run.py minilm resnet50 --rounds 20`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from hub.bench.result import Benchmark, Result
from hub.bench.table import benchmark_text
from hub.bench.whole import benchmark

MODELS = ("minilm", "resnet18", "resnet50", "mobilenetv2", "convnext")
AGAINST = ("eager", "inductor", "onnxruntime", "openvino")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Runs, prints, writes; one JSON file a model and one table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.output.mkdir(exist_ok=True)
    for model in given.models:
        command = f"hub bench {model} --against {','.join(AGAINST)} --rounds {given.rounds}"
        run = benchmark(model, AGAINST, rounds=given.rounds, command=shlex.split(command))
        print(benchmark_text(run), flush=True)
        (given.output / f"{model}.json").write_text(run.to_json() + "\n")
    (given.output / "summary.md").write_text(summary(given.output))


def summary(folder: Path) -> str:
    """Gives the table of all results in a folder: milliseconds a call, and the hub against the best of the others."""
    found = (path for path in sorted(folder.glob("*.json")) if path.stem != "dispatch")
    runs = [Benchmark.model_validate_json(path.read_text()) for path in found]
    names = [*AGAINST, "hub"]
    lines = [
        f"| model | {' | '.join(names)} | hub / best other | hub's plan |",
        f"|---|{'---|' * len(names)}---|---|",
        *(_row(run, names) for run in runs),
    ]
    return "\n".join((*_heading(runs), *lines, ""))


def _heading(runs: Sequence[Benchmark]) -> list[str]:
    machine = runs[0].machine
    return [
        f"Milliseconds a call, medians of interleaved blocks; {machine.cpu}, {runs[0].threads} threads, "
        f"torch {machine.libraries['torch']}.",
        "Below 1 in the last but one column, the hub is faster. Ratios are medians over rounds, with 95 % intervals.",
        "",
    ]


def _row(run: Benchmark, names: Sequence[str]) -> str:
    results = {result.name: result for result in run.results}
    cells = [_milliseconds(results.get(name)) for name in names]
    ratio = run.hub_to_others
    against = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] ({run.best_other})" if ratio is not None else "-"
    return f"| {run.model} | {' | '.join(cells)} | {against} | {results['hub'].note} |"


def _milliseconds(found: Result | None) -> str:
    return "failed" if found is None or found.call_s is None else f"{found.call_s.median * 1e3:.2f}"


if __name__ == "__main__":
    main()
