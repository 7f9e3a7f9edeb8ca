"""The score of a backend: its findings counted by check, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hub.report.columns import columns
from hub.report.numbers import count, names_text
from hub.testing.conformance.finding import CHECKS, Finding, Verdict

_HEADERS = ("check", "passed", "failed", "n/a", "what it promises")
_NUMBERS = frozenset(_HEADERS[1:4])


@dataclass(frozen=True, slots=True)
class Count:
    """Number of findings of one check by verdict."""

    passed: int
    failed: int
    not_applicable: int


@dataclass(frozen=True, slots=True)
class Score:
    """All findings about one backend."""

    backend: str
    package: str
    """The distribution that provides it, with its version; empty if its registration could not be read."""
    hub: str
    """Version of the hub that this suite belongs to."""
    findings: tuple[Finding, ...]

    @property
    def total(self) -> Count:
        """Counts over all checks."""
        return count_of(self.findings)

    @property
    def is_passed(self) -> bool:
        """Return whether nothing failed and something passed."""
        return not self.total.failed and bool(self.total.passed)

    @property
    def share(self) -> float:
        """Share of the applicable findings that passed, 0 to 1; 0 if nothing applied."""
        found = self.total
        return found.passed / max(1, found.passed + found.failed)

    def to_json(self) -> str:
        """Return the JSON form: total counts, counts by check, then every finding."""
        facts = {
            "backend": self.backend,
            "package": self.package,
            "hub": self.hub,
            "is_passed": self.is_passed,
            "share": self.share,
            "total": asdict(self.total),
            "checks": {name: asdict(counted) for name, counted in self.by_check().items()},
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(facts, indent=2)

    def by_check(self) -> dict[str, Count]:
        """Return the count of each check that has findings, in the order of `CHECKS`."""
        found = {name: [finding for finding in self.findings if finding.check == name] for name in CHECKS}
        return {name: count_of(findings) for name, findings in found.items() if findings}


def write_score(score: Score, file: str) -> None:
    """Write the JSON form. Raise OSError if that fails."""
    Path(file).write_text(score.to_json() + "\n", encoding="utf-8")


def count_of(findings: Sequence[Finding]) -> Count:
    """Count findings by verdict."""
    verdicts = [finding.verdict for finding in findings]
    return Count(verdicts.count(Verdict.PASSED), verdicts.count(Verdict.FAILED), verdicts.count(Verdict.NOT_APPLICABLE))


def score_lines(score: Score) -> list[str]:
    """Return the score as text: a table of checks, every failure, figures, and a final line."""
    rows = [
        (name, str(found.passed), str(found.failed), str(found.not_applicable), CHECKS[name])
        for name, found in score.by_check().items()
    ]
    lines = columns(_HEADERS, rows, right=_NUMBERS)
    for title, verdict in (("failed", Verdict.FAILED), ("told", Verdict.PASSED)):
        told = [finding for finding in score.findings if finding.verdict is verdict and finding.reason]
        lines += ["", f"{title}:", *_told(told)] if told else []
    return [*lines, "", _last_line(score)]


def _told(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line for each reason: many subjects may share one."""
    for check, reason in dict.fromkeys((finding.check, finding.reason) for finding in findings):
        subjects = [finding.subject for finding in findings if (finding.check, finding.reason) == (check, reason)]
        yield f"  {check}, {names_text(subjects)}: {reason}"


def _last_line(score: Score) -> str:
    found = score.total
    who = f"{score.backend} ({score.package})" if score.package else score.backend
    aside = f", {found.not_applicable} not applicable" if found.not_applicable else ""
    # Rounded down: 100.0 % requires that nothing failed.
    share = f"{math.floor(1000 * score.share) / 10:.1f} %" if found.passed + found.failed else "nothing applied"
    return f"{who}: {found.passed} of {count(found.passed + found.failed, 'finding')} passed ({share}){aside}"
