"""Plan: one backend for every node, with the evidence. A value that can be printed, saved, compared and replayed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hub.config.options import MAX_THREADS
from hub.errors import PlanError, shortened
from hub.process.accelerators import is_full

FORMAT = 1
"""Version of the JSON form; plans of any other version are rejected."""


class EventKind(StrEnum):
    """Kind of a plan's event."""

    REFUSED = "refused"
    FAILED = "failed"
    FALLBACK = "fallback"
    NOTE = "note"


TROUBLE = frozenset({EventKind.FAILED, EventKind.FALLBACK})
"""Kinds of events that report a problem."""


class Stage(StrEnum):
    """Step at which an event happened."""

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
    """Saving an executable, or the plan for later processes."""
    DEBUG = "debug"
    """Writing readable files into `debug_dir`."""
    LATER = "later"
    """Verification after the first answer."""
    SERVE = "serve"
    """While the model runs, for an executable that passed its trial."""


class DecidedBy(StrEnum):
    """Basis on which a plan was decided."""

    NOTHING_YET = ""
    PENDING = "nothing yet, still planning"
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
    NO_TAKER = "no backend can run any node"
    NOT_CAPTURED = "not captured"
    REPLAYED = "replayed"
    PLAN_FILE = "plan file"
    EDITED = "edited by hand"
    OTHER = "other"
    """Any text that a user wrote into a plan file."""

    @classmethod
    def _missing_(cls, value: object) -> DecidedBy:  # noqa: ARG003 - the name and form that enum asks for
        return cls.OTHER


EAGER = "eager"
"""Name of PyTorch itself, operator by operator, in plans and options."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Price(_Value):
    """Seconds of one warm call, with provenance; the JSON form of `hub.Cost`."""

    run_s: Annotated[float, Field(ge=0)]
    spread_s: Annotated[float, Field(ge=0)] = 0.0
    source: Literal["measured", "learned", "estimated"] = "estimated"
    detail: str = ""


class Bid(_Value):
    """One backend's offer for one set of nodes, or the reason why there is none."""

    backend: str
    price: Price | None = None
    refusal: Annotated[str, AfterValidator(shortened)] = ""
    """Reason in words why there is no price; empty if there is one."""


class PlannedCluster(_Value):
    """One cluster of a plan."""

    name: str = ""
    """ "c0" for a compiled cluster, "e0" for one that runs in eager, numbered in execution order."""
    backend: Annotated[str, Field(min_length=1)]
    nodes: tuple[str, ...]
    """Names of its nodes in the graph, in topological order."""
    operators: tuple[str, ...] = ()
    """Operator of each node."""
    source: tuple[str, ...] = ()
    """Lines of the user's model that its nodes come from, "file.py:12 in forward", each once."""
    predicted_s: float | None = None
    """Seconds of one warm call, as priced before the decision; None if unknown."""
    measured_s: float | None = None
    """Seconds of one warm call, as measured inside the whole plan; None before it has run."""
    reason: str = ""
    """Reason why these nodes went to this backend."""
    bids: tuple[Bid, ...] = ()
    """Bids of all backends for the same nodes."""
    report: str = ""
    """Its backend's remarks on it, in lines; only plans from `hub explain` have any."""


class Contender(_Value):
    """One whole plan that was timed in the final race."""

    name: str
    """ "onnxruntime", "eager", "openvino + inductor" ..."""
    median_s: float
    spread_s: float = 0.0
    """Half the width of the 95 % confidence interval of the median."""
    calls: int
    n_clusters: int
    won: bool = False


class Search(_Value):
    """Extent of the planner's search before it decided."""

    regions: int
    """Consecutive pieces that the graph is split into at its cut points."""
    structures: int
    """Distinct structures among the regions: equal regions are priced once."""
    candidates: int
    """Structures times the backends that support them."""
    measured: int
    """Candidates with a price measured on this machine, by this process or an earlier one."""
    compiled: int = 0
    """Clusters compiled for this decision."""
    timed_now: int = 0
    """Prices measured for this decision."""
    method: str = ""
    """Method by which the cheapest assignment was found: "chain" (dynamic program) or "milp" (binary program)."""
    gap: float | None = None
    """Share by which a cheaper assignment might exist at these prices; 0 means proven optimal."""


class Event(_Value):
    """A problem, or a decision against something, while planning or running."""

    kind: EventKind
    stage: Stage
    message: Annotated[str, AfterValidator(shortened)]
    backend: str | None = None
    cluster: str | None = None
    error: str = ""
    """Class of the error that cost a backend a candidate or a cluster: "CompileError", "ConstantsRefused"; else empty."""

    @property
    def is_device_full(self) -> bool:
        """Return whether an accelerator was out of memory, which is no verdict on a backend."""
        return is_full(self.message)


class Plan(_Value):
    """The decision for one captured graph, with the evidence behind it."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    graph: str = ""
    """Name of the captured graph."""
    graph_digest: str = ""
    """Digest of its structure: a cached plan applies to graphs of equal digest, a plan file to any graph with its nodes."""
    mode: Literal["inference", "forward", "backward"] = "inference"
    inputs: tuple[str, ...] = ()
    """Type and shape of every input that is not a weight, in order: "float32[8, 128]"."""
    clusters: tuple[PlannedCluster, ...]
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
    """Threads of one call; 0, which appears only in plans edited by hand, means as many as PyTorch uses."""
    busy_wait: bool = False
    """True if the thread pool of the plan's only backend may busy-wait between calls."""
    accuracy: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    verify_s: float | None = None
    """Seconds spent comparing its executables with eager while planning; None before that."""
    effort: Literal["fast", "full"] = "fast"
    """Time that each compiler may spend on a better program, which affects what a replay compiles."""
    predicted_s: float | None = None
    measured_s: float | None = None
    """Median seconds of one warm call of the whole plan, from the final race."""
    decided_by: DecidedBy = DecidedBy.NOTHING_YET
    is_provisional: bool = False
    """True if other work took the cores while it was timed: the next process decides again, once."""
    contenders: tuple[Contender, ...] = ()
    search: Search | None = None
    """The planner's search; None if no search was necessary."""
    events: tuple[Event, ...] = ()
    plan_s: float = 0.0
    """Seconds spent on planning and compiling."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON form, which `Plan.from_json` reads back into an equal plan."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from JSON. Raises PlanError, naming the field, if the text is not a plan of this format."""
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
        """Names of the backends that run at least one cluster, in order of first use."""
        return tuple(dict.fromkeys(cluster.backend for cluster in self.clusters))

    def __str__(self) -> str:
        from hub.report.text import plan_text  # the report package imports this module; only printing needs it

        return plan_text(self)

    def __repr_args__(self) -> Any:
        return [("graph", self.graph), ("backends", self.backends), ("clusters", len(self.clusters))]
