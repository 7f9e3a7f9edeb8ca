"""Embeds real sentences with a trained encoder through the hub, and shows what the hub decided.

Run it with `make demo`, or `python examples/minilm_demo.py`; HUB_* variables and a hub.toml set options.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are in a package; nothing is downloaded

import torch
from rich.console import Console

import hub
from hub.bench.closeness import difference
from hub.bench.result import Benchmark
from hub.bench.table import benchmark_text
from hub.bench.whole import benchmark
from hub.bench.zoo.text import SentenceEncoder, tokenized, trained_encoder
from hub.report.columns import columns
from hub.report.numbers import duration
from hub.report.tables import plan_table

SENTENCES = Path(__file__).with_name("sentences.txt")
BATCH = 8
AGAINST = ("eager", "inductor")
ROUNDS = 10

Tokens = tuple[torch.Tensor, torch.Tensor]
"""Token ids and attention mask of one batch, [batch, tokens] each."""


def main() -> None:
    """Plan, embed, compare, and time."""
    lines, batches = read_batches()
    encoder = trained_encoder()
    print(f"{len(lines)} sentences in {len(batches)} batches of {BATCH}; the trained MiniLM encoder, all float32")
    compiled: Any = torch.compile(encoder, backend="hub")  # pyright: ignore[reportUnknownMemberType] - torch's
    with torch.no_grad():
        print("planning, compiling and embedding through the hub ...", flush=True)
        began_s = time.perf_counter()
        embedded(compiled, batches)
        print(f"... first answers after {duration(time.perf_counter() - began_s)}, in eager")
        hub.wait(compiled)
        vectors = embedded(compiled, batches)
        print(f"... took {duration(time.perf_counter() - began_s)} until all of it ran as planned")
        expected = embedded(encoder, batches)
    show_plans(compiled)
    show_nearest(lines, vectors)
    show_difference(vectors, expected)
    show_times()


def read_batches() -> tuple[tuple[str, ...], list[Tokens]]:
    """Return the sentences, and their tokens in batches, all padded to one length so that one plan serves all batches."""
    lines = tuple(line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip())
    ids, mask = tokenized(lines)
    return lines, list(zip(torch.split(ids, BATCH), torch.split(mask, BATCH), strict=True))


def first_batch() -> tuple[SentenceEncoder, Tokens]:
    """Return the encoder and one batch: a factory for `hub bench examples/minilm_demo.py:first_batch`."""
    return trained_encoder(), read_batches()[1][0]


def embedded(run: Callable[..., torch.Tensor], batches: Sequence[Tokens]) -> torch.Tensor:
    """Return one vector of length 1 per sentence, [sentences, 384]."""
    return torch.cat([run(*batch) for batch in batches])


def show_plans(compiled: Any) -> None:
    """Print the plan of every captured graph."""
    console = Console()
    for plan in hub.plans(compiled):
        console.print()
        console.print(plan_table(plan, width=console.width))


def show_nearest(lines: Sequence[str], vectors: torch.Tensor) -> None:
    """Print the nearest other sentence of every third one, by the cosine of the angle between vectors."""
    cosines = (vectors @ vectors.T).fill_diagonal_(-1.0)
    nearest = [int(place) for place in cosines.argmax(dim=1)]
    rows = [(lines[i], lines[nearest[i]], f"{cosines[i, nearest[i]]:.2f}") for i in range(0, len(lines), 3)]
    print("\nnearest sentences")
    for line in columns(("sentence", "nearest other", "cosine"), rows):
        print(f"  {line}")


def show_difference(vectors: torch.Tensor, expected: torch.Tensor) -> None:
    """Print how far the hub's vectors are from eager's."""
    apart = difference(vectors, expected)
    print(f"\nlargest difference from eager: {apart.absolute:.1e}, {apart.relative:.1e} of the largest value")


def show_times() -> None:
    """Print the time of one batch through the hub, eager and Inductor, each in its own process, in alternating blocks."""
    print(f"\ntiming one batch against {' and '.join(AGAINST)}, each in its own process ...", flush=True)
    run: Benchmark = benchmark(f"{Path(__file__).resolve()}:first_batch", AGAINST, rounds=ROUNDS)
    print(benchmark_text(run.model_copy(update={"model": "MiniLM, one batch"})))


if __name__ == "__main__":
    main()
