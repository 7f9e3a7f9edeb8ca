"""A cold start as text: a row for each phase, what the wait consists of, and Inductor for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hub.bench.cold import UNKNOWN, Cold, Start, kinds, lengths, shared_out
from hub.process.phases import Work
from hub.report.columns import columns

_FIRST = (Work.DYNAMO, Work.CAPTURE, Work.GRAPH, Work.ANSWER, Work.PROCESS, Work.START, Work.PROPOSE, Work.SAMPLE)
_OF_BACKENDS = (Work.ASK, Work.WAIT, Work.COMPILE, Work.LOAD, Work.VERIFY, Work.SAVE, Work.CHECK, Work.TIME)
_LAST = (Work.RACE, Work.DECIDE, Work.KEEP, Work.BUILD)
_HEADERS = ("phase", "of", "seconds", "of the wait")
Row = tuple[str, ...]


def cold_text(cold: Cold) -> str:
    """Return the tables of one model."""
    plans = ", ".join(dict.fromkeys(cold.hub.plans)) or "none"
    lines = [
        f"{cold.model} through the hub, cold: {cold.hub.in_use_s:.1f} s until the plan is in use ({plans})",
        _kinds_text(cold.hub),
        "",
        *columns(_HEADERS, list(_rows(cold.hub)), right=frozenset(_HEADERS[2:])),
        "",
    ]
    if cold.inductor.failure:
        lines.append(f"torch.compile(backend='inductor') failed: {cold.inductor.failure}")
    else:
        head = f"torch.compile(backend='inductor'), cold: {cold.inductor.in_use_s:.1f} s until the first answer"
        lines += [
            head,
            _kinds_text(cold.inductor),
            "",
            *columns(_HEADERS, list(_rows(cold.inductor)), right=frozenset(_HEADERS[2:])),
        ]
    return "\n".join([*lines, "", *_milestones(cold)])


def _kinds_text(start: Start) -> str:
    """Return what the wait was spent on: "compilers 61 %, the hub 24 %, PyTorch's capture 15 %"."""
    shares = sorted(kinds(start).items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= 0.005)


def _rows(start: Start) -> Iterator[Row]:
    """Yield the rows of all phases: the hub's and PyTorch's, those of each tried backend, and the decision."""
    taken, shares = lengths(start.phases, start.in_use_s), shared_out(start.phases, start.in_use_s)
    backends = dict.fromkeys(phase.who for phase in start.phases if phase.work in _OF_BACKENDS and phase.who)

    def rows(works: Sequence[Work], who: str | None = None) -> Iterator[Row]:
        for work in works:
            keys = [key for key in taken if key[0] == work and who in (None, key[1])]
            if keys:
                of_the_wait = sum(shares.get(key, 0.0) for key in keys)
                yield work.value, who or "", f"{sum(taken[key] for key in keys):.2f}", f"{of_the_wait:.2f}"

    yield from rows(_FIRST)
    for backend in backends:
        yield from rows(_OF_BACKENDS, backend)
    yield from rows(_LAST)
    yield UNKNOWN, "", "", f"{shares.get((UNKNOWN, ''), 0.0):.2f}"
    yield "all", "", "", f"{start.in_use_s:.2f}"


def _milestones(cold: Cold) -> Sequence[str]:
    """Return what precedes the wait, and the times of answers, with the hub and with Inductor."""
    ways = (cold.hub, cold.inductor)
    settled = ("plan in use", f"{cold.hub.in_use_s:.2f}", "")
    verified = ("all verified", "-" if cold.hub.verified_s is None else f"{cold.hub.verified_s:.2f}", "")
    rows = [
        ("import torch", *(f"{way.torch_s:.2f}" for way in ways)),
        ("import hub", f"{cold.hub.hub_s:.2f}", ""),
        ("build the model", *(f"{way.model_s:.2f}" for way in ways)),
        ("first answer", *(f"{way.first_s:.2f}" for way in ways)),
        ("second answer", *(f"{way.second_s:.2f}" for way in ways)),
        settled,
        verified,
    ]
    return columns(("seconds", "hub", "inductor"), rows, right=frozenset({"hub", "inductor"}))
