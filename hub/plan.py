"""Plan: one candidate for every node, with its evidence. A value that prints, saves, diffs and replays."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hub.errors import PlanError, shortened
from hub.process.accelerators import is_full

FORMAT = 1
"""Version of the JSON form; a plan of another version is refused by name."""


class EventKind(StrEnum):
    """What an event of a plan is."""

    REFUSED = "refused"
    FAILED = "failed"
    FALLBACK = "fallback"
    NOTE = "note"


TROUBLE = frozenset({EventKind.FAILED, EventKind.FALLBACK})
"""Kinds of events that say that something did not go as it should."""


class Stage(StrEnum):
    """At which step something happened."""

    CAPTURE = "capture"
    LOAD = "load"
    SUPPORT = "support"
    ESTIMATE = "estimate"
    EXPLAIN = "explain"
    COMPILE = "compile"
    VERIFY = "verify"
    TIME = "time"
    RUN = "run"
    SHADOW = "shadow"
    RECORD = "record"
    SAVE = "save"
    LATER = "later"
    """Verified after the first answer."""
    SERVE = "serve"
    """While the model ran, of an executable that was good while it was tried."""


class DecidedBy(StrEnum):
    """What a plan was decided by."""

    NOTHING_YET = ""
    PENDING = "nothing yet, planning goes on"
    MEASURED_PLANS = "measured whole plans"
    MEASURED = "measured prices"
    LEARNED = "learned prices"
    ESTIMATED = "estimated prices"
    MEASURED_LEARNED = "measured and learned prices"
    MEASURED_ESTIMATED = "measured and estimated prices"
    LEARNED_ESTIMATED = "learned and estimated prices"
    ALL_PRICES = "measured and learned and estimated prices"
    ESTIMATES = "estimates"
    OPTIONS = "options"
    NO_TAKER = "no backend takes any node"
    NOT_CAPTURED = "not captured"
    REPLAYED = "replayed"
    PLAN_FILE = "plan file"
    EDITED = "edited by hand"
    OTHER = "other"
    """What people wrote into a plan file."""

    @classmethod
    def _missing_(cls, value: object) -> DecidedBy:  # noqa: ARG003 - the name and form that enum asks for
        return cls.OTHER


EAGER = "eager"
"""Name under which PyTorch itself, operator by operator, appears in plans and options."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Price(_Value):
    """Seconds of one warm call, with provenance; the JSON form of `hub.Cost`."""

    run_s: Annotated[float, Field(ge=0)]
    spread_s: Annotated[float, Field(ge=0)] = 0.0
    source: Literal["measured", "learned", "estimated"] = "estimated"
    detail: str = ""


class Bid(_Value):
    """What one backend offered for one set of nodes, or why it did not."""

    backend: str
    price: Price | None = None
    refusal: Annotated[str, AfterValidator(shortened)] = ""
    """Why there is no price, in words; empty where there is one."""


class PlannedCluster(_Value):
    """One cluster of a plan."""

    name: str = ""
    """ "c0" for what is compiled, "e0" for what runs in eager, numbered in the order in which they run."""
    backend: Annotated[str, Field(min_length=1)]
    nodes: tuple[str, ...]
    """Names of its nodes in the graph, in topological order."""
    operators: tuple[str, ...] = ()
    """Operator of each node."""
    source: tuple[str, ...] = ()
    """Lines of the user's model that its nodes come from, "file.py:12 in forward", each once."""
    predicted_s: float | None = None
    """Seconds of one warm call, as priced before the decision; None where nothing was known."""
    measured_s: float | None = None
    """Seconds of one warm call, as measured inside the whole plan; None before it has run."""
    reason: str = ""
    """Why these nodes went to this backend."""
    bids: tuple[Bid, ...] = ()
    """What every backend offered for the same nodes."""
    report: str = ""
    """What its backend tells of it, in lines; only plans that `hub explain` gives have any."""


class Contender(_Value):
    """One whole plan that was timed in the proof."""

    name: str
    """ "onnxruntime", "eager", "openvino + inductor" ..."""
    median_s: float
    spread_s: float = 0.0
    """Half the width of the 95 % confidence interval of the median."""
    calls: int
    n_clusters: int
    won: bool = False


class Search(_Value):
    """What the planner looked at before it decided."""

    regions: int
    """Consecutive pieces that the graph falls into at its cut points."""
    structures: int
    """Different ones among them: equal regions are priced once."""
    candidates: int
    """Structures times the backends that take them."""
    measured: int
    """Candidates with a price measured on this machine, by this process or an earlier one."""
    compiled: int = 0
    """Clusters compiled for this decision."""
    timed_now: int = 0
    """Prices measured for this decision."""
    method: str = ""
    """How the cheapest assignment was found: "chain" (dynamic programme) or "milp" (binary programme)."""
    gap: float | None = None
    """Share by which a cheaper assignment might exist at these prices; 0 means proven optimal."""


class Event(_Value):
    """Something that went wrong, or was decided against, while planning or running."""

    kind: EventKind
    stage: Stage
    message: Annotated[str, AfterValidator(shortened)]
    backend: str | None = None
    cluster: str | None = None
    error: str = ""
    """Class of the error that costs a backend a candidate or a cluster: "CompileError", "ConstantsRefused"; else empty."""

    @property
    def is_device_full(self) -> bool:
        """Return whether an accelerator's memory was full, which is no verdict on a backend."""
        return is_full(self.message)


class Plan(_Value):
    """The decision for one captured graph, with the evidence behind it."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    graph: str = ""
    """Name of the captured graph."""
    graph_digest: str = ""
    """Digest of its structure: a kept plan is for graphs of equal digest, a plan file for all with its nodes."""
    mode: Literal["inference", "forward", "backward"] = "inference"
    inputs: tuple[str, ...] = ()
    """Type and shape of every input that is no weight, in order: "float32[8, 128]"."""
    clusters: tuple[PlannedCluster, ...]
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of one call; 0, which only people write, means as many as PyTorch uses."""
    spin: bool = False
    """True where the one backend's thread pool may spin between calls."""
    accuracy: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    verify_s: float | None = None
    """Seconds in which its executables were compared with eager while it was made; None before that."""
    effort: Literal["fast", "full"] = "fast"
    """How long each compiler was to search for a better program, which decides what a replay compiles."""
    predicted_s: float | None = None
    measured_s: float | None = None
    """Median seconds of one warm call of the whole plan, from the proof."""
    decided_by: DecidedBy = DecidedBy.NOTHING_YET
    contenders: tuple[Contender, ...] = ()
    search: Search | None = None
    """What was looked at; None where nothing had to be looked for."""
    events: tuple[Event, ...] = ()
    plan_s: float = 0.0
    """Seconds spent on planning and compiling."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON form; `Plan.from_json` reads it back to an equal plan."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan back. Raises PlanError, naming the field, where the text is no plan of this format."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the text"
            raise PlanError(
                f"not a plan: {where}: {first['msg']}", hint="write one with `hub explain MODEL --json`"
            ) from error

    def with_events(self, *events: Event) -> Plan:
        """Return the same plan with events added."""
        return self.model_copy(update={"events": (*self.events, *events)})

    @property
    def backends(self) -> tuple[str, ...]:
        """Name of the backends that run at least one cluster, in order of first use."""
        return tuple(dict.fromkeys(cluster.backend for cluster in self.clusters))

    def __str__(self) -> str:
        from hub.report.text import plan_text  # the report stands above the plan; only printing needs it

        return plan_text(self)

    def __repr_args__(self) -> Any:
        return [("graph", self.graph), ("backends", self.backends), ("clusters", len(self.clusters))]
