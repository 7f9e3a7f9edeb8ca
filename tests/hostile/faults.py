"""The faults of the hostile plugin, and what the report must say about each.

A fault's name is a step and what goes wrong there; `hub_hostile.py` implements it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = ("import", "register", "create", "probe", "support", "estimate", "compile", "save", "load", "run")
BEFORE_PLANNING = ("import", "register", "create", "probe")
"""Steps that happen once per process, so that each such fault has a process of its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and its promises beyond a right answer and an unharmed process."""

    name: str
    says: str
    """Regular expression that a message of the report about the plugin must match; "" if there is nothing to report."""
    is_refused: bool = True
    """True if the plugin must not run anything in the end; False if the hub can fix what it did."""
    is_remembered: bool = False
    """True if later compilations and processes must not try the candidate again."""
    calls: int = 3
    """Calls of the compiled model after which the fault has appeared."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options that the user must have given for the promise to hold."""
    limit_s: float = 20.0
    """The setting `workers.compile_limit_s`."""
    tunes: tuple[str, ...] = ("off", "fast")
    models: tuple[str, ...] = ("bert", "resnet")
    saves: bool | None = None
    """Whether the plugin's executables must be saveable (True) or must not be (False); None if either will do."""

    @property
    def step(self) -> str:
        """Return the step at which it goes wrong."""
        return self.name.partition("_")[0]

    @property
    def act(self) -> str:
        """Return what goes wrong."""
        return self.name.partition("_")[2]


OUT_OF_TIME = r"no answer within \d+|not compiled within \d+ s"
OUT_OF_MEMORY = r"it took .* of memory, .* allowed"
TOO_MUCH_SAVED = r"it saved .* allowed \(`workers.output_limit_mb`"
DIED = r"killed by SIG\w+|exit status \d|it closed its pipe|ended without an answer"
GENERAL: Mapping[str, str] = {
    "raise": "a plain fault",
    "raises_150_mib": r"(?s)\A(?=.{,5000}\Z).*ValueError: endlessx+ \[\.\.\. \d+ characters",
    "system_exit": "SystemExit",
    "keyboard_interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
    "stop_iteration": "StopIteration",
    "memory_error": "MemoryError",
    "odd_exception": "Odd",
    "mute_exception": "Mute",
    "stuck_exception": "Stuck|cannot leave its process",
    "recursion": "RecursionError",
    "hang": OUT_OF_TIME,
    "spin": OUT_OF_TIME,
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "exit": r"exit status 0|ended without an answer",
    "kill": "SIGKILL",
    "overflow": "SIGSEGV",
    "memory": OUT_OF_MEMORY,
    "prints": r"it printed .* allowed",
    "writes": r"it printed .* allowed",
    "garbage": r"wrote unexpected data|an answer that cannot be read",
    "closes": DIED,
    "forks": r"\d+ process",
    "leaves_child": r"\d+ process",
    "daemonizes": r"\d+ process",
    "leaks_threads": r"\d+ threads",
    "leaks_descriptors": r"\d+ open files",
    "changes_environment": "the environment",
    "changes_dtype": "the default dtype",
    "changes_rng": "PyTorch's random numbers",
    "changes_threads": "the number of threads",
    "changes_grad": "whether gradients are on",
    "changes_folder": "the working directory",
    "changes_signals": "signal handlers",
    "changes_warnings": "filters of warnings",
    "changes_streams": "the standard streams",
    "changes_everything": "the environment",
}
"""The message for what can go wrong in the same way at every step."""
SLOW_ACTS = ("hang", "spin")
MENDED = tuple(act for act in GENERAL if act.startswith("changes_"))
"""Acts that the hub may undo, and use the plugin all the same."""
ENDED_BY_OTHERS = ("kill",)
"""Acts that look as if a user or the system had ended the process: they count from the second time on."""
EXCEPTIONS = tuple(GENERAL)[:11]
LEFT = ("forks", "leaves_child", "daemonizes", "leaks_threads", "leaks_descriptors")
CRASHES = ("segfault", "abort", "exit", "kill", "overflow")
CHANGES = tuple(act for act in GENERAL if act.startswith("changes_"))


def _general(step: str, acts: Iterable[str], **promises: Any) -> list[Fault]:
    return [
        Fault(
            f"{step}_{act}",
            GENERAL[act],
            **{
                "is_refused": act not in MENDED,
                "is_remembered": step in ("compile", "run") and act not in (*MENDED, *ENDED_BY_OTHERS),
                "limit_s": 4.0 if act in SLOW_ACTS else 20.0,
                **promises,
            },
        )
        for act in acts
    ]


def _wrong(act: str, says: str, **promises: Any) -> Fault:
    return Fault(f"run_{act}", says, **{"is_remembered": True, **promises})


def _later(act: str, says: str, **promises: Any) -> Fault:
    """Return a fault of an executable that was good while it was verified."""
    return Fault(f"run_later_{act}", says, **{"is_remembered": True, "calls": 100, "tunes": ("off",), **promises})


ALL: tuple[Fault, ...] = (
    *_general(
        "import", ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "segfault", "exit", "memory")
    ),
    *_general("import", ("writes",)),
    *_general("import", ("changes_everything",), is_refused=False),
    *_general("register", ("raise", "generator_exit", "odd_exception", "hang", "abort", "exit")),
    Fault("register_junk", "returned a str, not a BackendInfo"),
    *_general("register", ("changes_everything",)),
    *_general("create", ("raise", "system_exit", "stuck_exception", "recursion", "hang", "spin", "segfault")),
    Fault("create_junk", "lacks"),
    *_general("create", ("changes_everything",)),
    *_general("probe", ("raise", "keyboard_interrupt", "hang", "segfault", "exit", "memory", "closes")),
    Fault("probe_junk", "returned a str, not a Support"),
    *_general(
        "support", ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "spin", "segfault", "memory")
    ),
    Fault("support_junk", "returned a bool, not a Support"),
    Fault("support_mutates", "changed the graph", is_refused=False),
    *_general("support", ("changes_everything",)),
    *_general(
        "estimate",
        ("raise", "system_exit", "stuck_exception", "recursion", "hang", "segfault", "changes_everything"),
        is_refused=False,
    ),
    Fault("estimate_junk", "returned a str, not a Cost", is_refused=False),
    Fault("estimate_lie", "returned a Lie, not a Cost", is_refused=False),
    *_general("compile", EXCEPTIONS),
    *_general("compile", ("hang", "spin", *CRASHES, "memory", "prints", "writes", "garbage", "closes", *CHANGES)),
    # A saveable executable is compiled only in a worker, and what it leaves there ends with the worker.
    *_general("compile", LEFT, saves=False, is_refused=True, is_remembered=True),
    Fault("compile_junk", "returned an int, which is not callable", is_remembered=True),
    Fault("compile_none", "returned a NoneType, which is not callable", is_remembered=True),
    Fault("compile_mutates", "changed the program that it was given", is_remembered=True),
    Fault("compile_writes_weights", "wrote to the weight", is_remembered=True),
    *_general("save", ("raise", "system_exit", "hang", "segfault", "exit", "writes"), saves=True, is_refused=False),
    # An executable may need no files: the error is that it cannot be loaded from none.
    Fault("save_nothing", r"could not be saved, .*load failed", saves=True, is_refused=False),
    Fault("save_outside", "outside the folder that it was given", saves=True, is_refused=False),
    Fault("save_symlink", "is a link", saves=True, is_refused=False),
    Fault("save_pipe", "neither a file nor a folder", saves=True, is_refused=False),
    Fault("save_huge", TOO_MUCH_SAVED, saves=True, is_refused=False),
    Fault("save_sparse", TOO_MUCH_SAVED, saves=True, is_refused=False),
    *_general(
        "load",
        ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "segfault", "exit", "memory"),
        saves=True,
        is_refused=False,
    ),
    *_general("load", ("changes_everything",), saves=True),
    Fault("load_junk", "'int' object is not callable", saves=True, is_refused=False),
    Fault("load_wrong_value", "expected", saves=True, is_refused=False),
    *_general("run", EXCEPTIONS),
    *_general("run", ("hang", "spin", *CRASHES, "memory", "prints", "garbage")),
    *_general("run", (*LEFT, *CHANGES), is_refused=True, is_remembered=True),
    _wrong("wrong_value", "expected"),
    _wrong("wrong_element", "expected"),
    _wrong("wrong_for_others", "expected"),
    _wrong("wrong_out_of_range", "expected"),
    # Integers that index are tried only if eager accepts them, so there is no such fault for BERT's.
    _wrong("wrong_for_large", "expected", models=("resnet",)),
    _wrong("wrong_unstable", "expected"),
    _wrong("nan", "expected"),
    _wrong("wrong_shape", "has shape .* expected"),
    _wrong("wrong_rank", "has shape .* expected"),
    _wrong("wrong_dtype", "has dtype .* expected"),
    _wrong("wrong_device", "has device .* expected"),
    # No wrong result: outputs with other strides than eager's are copied to eager's layout, which is part of its time.
    _wrong("wrong_order", "", is_refused=False, is_remembered=False),
    _wrong("too_few", r"\d+ outputs?, \d+ expected"),
    _wrong("too_many", r"\d+ outputs?, \d+ expected"),
    _wrong("arrays", "is a ndarray, no tensor"),
    _wrong("nothing", "NoneType"),
    _wrong("aliases_input", "shares memory with an input|wrote to its input"),
    _wrong("same_buffer", "memory that an earlier call returned|a later call wrote to output"),
    _wrong("writes_input", "wrote to its input"),
    _wrong("writes_weights", "wrote to the weight"),
    _later("raise", "a plain fault"),
    _later("system_exit", "SystemExit"),
    _later("keyboard_interrupt", "KeyboardInterrupt"),
    _later("mute_exception", "Mute"),
    # Any process may cause a lack of memory: such a call runs in eager, and the next one calls the plugin again.
    _later("memory_error", "MemoryError", is_remembered=False),
    _later("wrong_value", "expected", options={"shadow": 1.0}),
    _later("nan", "nan.*expected|expected.*nan|NaN", options={"shadow": 1.0}),
    _later("writes_weights", "wrote to the weight", options={"shadow": 1.0}),
    _later("changes_environment", "the environment", options={"shadow": 1.0}),
)

BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in ALL}
