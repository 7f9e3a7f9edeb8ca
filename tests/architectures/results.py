"""What became of each architecture: the file that keeps it, and the table in the docs.

`python -m tests.architectures.results FILE` takes over what `make test-architectures` noted in FILE, and writes both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.architectures.tiny import NAMES

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "architectures.json"
TABLE = ROOT / "docs" / "reference" / "architectures.md"
KEPT = ("outcome", "detail", "model", "clusters", "n_graphs", "n_graph_breaks", "is_direct", "why_dynamo", "troubles")
"""What the file keeps of each row: nothing that differs from run to run."""
NO_CONFIGURATION, NOT_RUN = "no tiny configuration", "not run"
MAX_TEXT = 110
_HEAD = """# Architectures of transformers

Every configuration class of `transformers`, made tiny by rules, through `hub.compile`: three calls are compared with
eager's answers. Written by `make test-architectures` and `python -m tests.architectures.results`; do not edit.

"""


def read_done(file: Path) -> dict[str, Row]:
    """Return the results that a run recorded, by architecture; the last of several lines counts."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def merged(before: Mapping[str, Any], done: Mapping[str, Row], commit: str) -> dict[str, Any]:
    """Return the new content of the file: the old content, with the entries that ran since replaced."""
    rows: dict[str, Row] = {**before.get("rows", {})}
    for name, row in done.items():
        rows[name] = {key: row[key] for key in KEPT if row.get(key) not in (None, "", [], {}, 0)}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "commit": commit}
    return {**versions, "rows": {name: rows.get(name, {"outcome": NOT_RUN}) for name in NAMES}}


def table(results: Mapping[str, Any]) -> str:
    """Return the documentation page."""
    rows: Mapping[str, Row] = results["rows"]
    lines = ["| architecture | eager runs | answer | clusters | without Dynamo |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(_cells(row))} |" for name, row in rows.items()]
    return f"{_HEAD}{_totals(results, rows.values())}\n" + "\n".join(lines) + "\n"


def _totals(results: Mapping[str, Any], rows: Iterable[Row]) -> str:
    outcomes = Counter(row["outcome"] for row in rows)
    ran = [row for row in rows if row["outcome"] not in (NO_CONFIGURATION, NOT_RUN)]
    compiled = sum(bool(row.get("clusters")) for row in ran)
    backends = Counter(backend for row in ran for backend in row.get("clusters", {}))
    direct = sum(bool(row.get("is_direct")) for row in ran)
    share = f"{100 * compiled / max(1, len(ran)):.0f} %"
    return "\n".join((
        f"PyTorch {results['torch']}, transformers {results['transformers']}, commit {results['commit']}.", "",
        f"- {sum(outcomes.values())} architectures: {len(ran)} run in eager, {outcomes[NO_CONFIGURATION]} have no tiny "
        f"configuration, {outcomes[NOT_RUN]} are not run yet.",
        f"- Of those that run in eager, {outcomes['right']} give eager's answer, {outcomes['wrong']} another one, and "
        f"{outcomes['error']} fail or hang.",
        f"- In {compiled} of {len(ran)} ({share}) at least one cluster is compiled: "
        + (", ".join(f"{backend} in {count}" for backend, count in sorted(backends.items())) or "none") + ".",
        f"- {direct} of {len(ran)} go without Dynamo from the third call on.", "",
    ))  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    outcome, detail = row["outcome"], _short(row.get("detail", ""))
    if outcome == NOT_RUN:
        return NOT_RUN, "", "", ""
    if outcome == NO_CONFIGURATION:
        return f"no: {detail}", "", "", ""
    clusters = ", ".join(f"{backend} {count}" for backend, count in row.get("clusters", {}).items())
    direct = "yes" if row.get("is_direct") else f"no: {_short(row.get('why_dynamo', ''))}".removesuffix(": ")
    return "yes", outcome if outcome == "right" else f"{outcome}: {detail}", clusters or "none", direct


def _short(text: str) -> str:
    """Return text shortened to fit a cell."""
    line = " ".join(text.split()).replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."


def main() -> None:
    """Merge the recorded results, and write the file and the page."""
    command = ("git", "rev-parse", "--short=12", "HEAD")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = merged(before, read_done(Path(sys.argv[1])), commit) if sys.argv[1:] else before
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    TABLE.write_text(table(results))


if __name__ == "__main__":
    main()
