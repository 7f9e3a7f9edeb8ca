"""Write `times.json` from the report of a run.

`make test TESTS=--junitxml=report.xml` writes the report, and `python -m tests.times report.xml` reads it. Of a long file,
only some tests ran: the time of all is estimated. Files that did not run keep their time. Files that draw their parameters
are left out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests import slices

MIN_S = 5.0
"""Seconds below which a file is not worth a line."""
ROOT = Path(__file__).parent.parent


def times_of(report: Path, turns: Mapping[str, int]) -> dict[str, float]:
    """Return the seconds that each file's tests would take if all ran, from the report of a run with these turns."""
    ran: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            ran[_file_of(case.attrib["classname"])] += float(case.attrib["time"])
    return {
        path: round(taken_s * turns.get(path, 1), 1)
        for path, taken_s in ran.items()
        if taken_s >= MIN_S and "import slices" not in (ROOT / path).read_text()
    }


def _file_of(classname: str) -> str:
    """Return the file of a test, from its module and class with dots between."""
    parts = classname.split(".")
    while not (ROOT / (path := "/".join(parts) + ".py")).is_file():
        parts = parts[:-1]
    return path


if __name__ == "__main__":
    kept: dict[str, float] = json.loads(slices.TIMES.read_text())
    found = {**kept, **times_of(Path(sys.argv[1]), slices.turns_of(kept))}
    present = {path: taken_s for path, taken_s in sorted(found.items()) if (ROOT / path).is_file()}
    slices.TIMES.write_text(json.dumps(present, indent=1) + "\n")
