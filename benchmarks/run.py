"""Benchmark the zoo, by default settings and tuned for a minute, and write `benchmarks/results/`: what `make bench` runs.

It takes hours and may be stopped at any time: what is done stays, and the next run goes on. Run slices with
`python -m benchmarks.run --models bert,vit --batches 1`; every flag of `hub bench --zoo` may follow and wins.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hub.cli import main

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    usual = ["--zoo", "--rounds", "15", "--warm", "--resume"]
    sys.argv = ["hub", "bench", *usual, "--output", str(RESULTS), *sys.argv[1:]]
    main()
