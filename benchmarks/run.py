"""Benchmark the zoo, with default settings and tuned for a minute, and write `benchmarks/results/`: used by `make bench`.

It takes hours and may be stopped at any time: finished results are kept, and the next run continues. Run slices with
`python -m benchmarks.run --models bert,vit --batches 1`; any flag of `hub bench --zoo` may follow and takes precedence.
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
