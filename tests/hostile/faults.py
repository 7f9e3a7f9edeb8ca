"""What the hostile plugin can be told to do, and what the report must say about each fault.

A fault's name is a step and what goes wrong there; `hub_hostile.py` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = ("import", "register", "create", "probe", "support", "estimate", "compile", "save", "load", "run")
BEFORE_PLANNING = ("import", "register", "create", "probe")
"""Steps that happen once a process, so that each such fault has a process of its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and what is promised about it beyond a right answer and an unharmed process."""

    name: str
    says: str
    """Regular expression that a message of the report about the plugin must match; "" where there is nothing to report."""
    is_refused: bool = True
    """True where the plugin must not run anything in the end; False where the hub can mend what it did."""
    is_remembered: bool = False
    """True where later compilations and processes must not try the candidate again."""
    calls: int = 3
    """Calls of the compiled model after which the fault has shown."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options that the user must have given for the promise to hold."""
    limit_s: float = 20.0
    """`compile_limit_s`."""
    tunes: tuple[str, ...] = ("off", "fast")
    models: tuple[str, ...] = ("bert", "resnet")
    saves: bool | None = None
    """True or False where the plugin must, or must not, be one whose executables can be saved."""

    @property
    def step(self) -> str:
        """Where it goes wrong."""
        return self.name.partition("_")[0]

    @property
    def act(self) -> str:
        """What goes wrong."""
        return self.name.partition("_")[2]


OUT_OF_TIME = r"within|limit|too long|did not (answer|end)|time"
OUT_OF_MEMORY = r"memory"
TOO_MUCH_SAVED = r"it saved .* allowed \(`output_limit_mb`"
DIED = r"SIG\w+|exit status|died|ended"
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
    "exit": r"exit status 0|ended without|died",
    "kill": "SIGKILL",
    "overflow": "SIGSEGV",
    "memory": OUT_OF_MEMORY,
    "prints": r"printed|output",
    "writes": r"printed|output",
    "garbage": r"garbage|cannot be read|died",
    "closes": DIED,
    "forks": r"process",
    "leaves_child": r"process",
    "daemonizes": r"process",
    "leaks_threads": r"thread",
    "leaks_descriptors": r"descriptor|open files",
    "changes_environment": r"environment",
    "changes_dtype": r"dtype",
    "changes_rng": r"random",
    "changes_threads": r"thread",
    "changes_grad": r"grad",
    "changes_folder": r"folder|director",
    "changes_signals": r"signal|SIGINT",
    "changes_warnings": r"warning",
    "changes_streams": r"stdout|output|stream",
    "changes_everything": r"environment",
}
"""For what can go wrong in the same way at every step: what is said."""
SLOW_ACTS = ("hang", "spin")
MENDED = tuple(act for act in GENERAL if act.startswith("changes_"))
"""What the hub may undo, and use the plugin all the same."""
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
                "is_remembered": step in ("compile", "run") and act not in MENDED,
                "limit_s": 4.0 if act in SLOW_ACTS else 20.0,
                **promises,
            },
        )
        for act in acts
    ]


def _wrong(act: str, says: str, **promises: Any) -> Fault:
    return Fault(f"run_{act}", says, **{"is_remembered": True, **promises})


def _later(act: str, says: str, **promises: Any) -> Fault:
    """Gives a fault of an executable that was good while it was tried."""
    return Fault(f"run_later_{act}", says, **{"is_remembered": True, "calls": 100, "tunes": ("off",), **promises})


ALL: tuple[Fault, ...] = (
    *_general(
        "import", ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "segfault", "exit", "memory")
    ),
    *_general("import", ("writes",)),
    *_general("import", ("changes_everything",), is_refused=False),
    *_general("register", ("raise", "generator_exit", "odd_exception", "hang", "abort", "exit")),
    Fault("register_junk", r"hub_backends|str|BackendInfo"),
    *_general("register", ("changes_everything",)),
    *_general("create", ("raise", "system_exit", "stuck_exception", "recursion", "hang", "spin", "segfault")),
    Fault("create_junk", "lacks"),
    *_general("create", ("changes_everything",)),
    *_general("probe", ("raise", "keyboard_interrupt", "hang", "segfault", "exit", "memory", "closes")),
    Fault("probe_junk", r"str|Support"),
    *_general(
        "support", ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "spin", "segfault", "memory")
    ),
    Fault("support_junk", r"bool|Support"),
    Fault("support_mutates", r"", is_refused=False),
    *_general("support", ("changes_everything",)),
    *_general(
        "estimate",
        ("raise", "system_exit", "stuck_exception", "recursion", "hang", "segfault", "changes_everything"),
        is_refused=False,
    ),
    Fault("estimate_junk", r"estimate|str", is_refused=False),
    Fault("estimate_lie", r"estimate|Lie", is_refused=False),
    *_general("compile", EXCEPTIONS),
    *_general("compile", ("hang", "spin", *CRASHES, "memory", "prints", "writes", "garbage", "closes", *CHANGES)),
    # What can be saved is compiled in a worker only, and what it leaves there ends with the worker.
    *_general("compile", LEFT, saves=False, is_refused=True, is_remembered=True),
    Fault("compile_junk", r"int|callable", is_remembered=True),
    Fault("compile_none", r"None|callable", is_remembered=True),
    Fault("compile_mutates", r"program|graph|module|expected", is_remembered=True),
    Fault("compile_writes_weights", r"weight|constant|wrote|expected", is_remembered=True),
    *_general("save", ("raise", "system_exit", "hang", "segfault", "exit", "writes"), saves=True, is_refused=False),
    Fault("save_nothing", r"", saves=True, is_refused=False),
    Fault("save_outside", r"outside|sav", saves=True, is_refused=False),
    Fault("save_symlink", r"link", saves=True, is_refused=False),
    Fault("save_pipe", r"pipe|file", saves=True, is_refused=False),
    Fault("save_huge", TOO_MUCH_SAVED, saves=True, is_refused=False),
    Fault("save_sparse", TOO_MUCH_SAVED, saves=True, is_refused=False),
    *_general(
        "load",
        ("raise", "system_exit", "keyboard_interrupt", "mute_exception", "hang", "segfault", "exit", "memory"),
        saves=True,
        is_refused=False,
    ),
    *_general("load", ("changes_everything",), saves=True),
    Fault("load_junk", r"int|callable|load", saves=True, is_refused=False),
    Fault("load_wrong_value", r"expected|load", saves=True, is_refused=False),
    *_general("run", EXCEPTIONS),
    *_general("run", ("hang", "spin", *CRASHES, "memory", "prints", "garbage")),
    *_general("run", (*LEFT, *CHANGES), is_refused=True, is_remembered=True),
    _wrong("wrong_value", "expected"),
    _wrong("wrong_element", "expected"),
    _wrong("wrong_for_others", "expected"),
    _wrong("wrong_out_of_range", "expected"),
    # Whole numbers that index are only tried where eager takes them, so there is no such thing for BERT's.
    _wrong("wrong_for_large", "expected", models=("resnet",)),
    _wrong("wrong_unstable", r"expected|calls"),
    _wrong("nan", "expected"),
    _wrong("wrong_shape", "shape"),
    _wrong("wrong_rank", "shape"),
    _wrong("wrong_dtype", "dtype"),
    _wrong("wrong_device", "device"),
    _wrong("wrong_order", "", is_refused=False, is_remembered=False),
    _wrong("too_few", "outputs"),
    _wrong("too_many", "outputs"),
    _wrong("arrays", "ndarray|tensor"),
    _wrong("nothing", "NoneType|None"),
    _wrong("aliases_input", r"memory|wrote|alias"),
    _wrong("same_buffer", r"memory|buffer|alias"),
    _wrong("writes_input", r"wrote to its input|input"),
    _wrong("writes_weights", r"weight|constant|wrote|expected"),
    _later("raise", "a plain fault"),
    _later("system_exit", "SystemExit"),
    _later("keyboard_interrupt", "KeyboardInterrupt"),
    _later("mute_exception", "Mute"),
    # A lack of memory may be anybody's: such a call runs in eager, and the next one asks the plugin again.
    _later("memory_error", "MemoryError", is_remembered=False),
    _later("wrong_value", r"expected|shadow|drift", options={"shadow": 1.0}),
    _later("nan", r"NaN|expected|shadow", options={"shadow": 1.0}),
    _later("writes_weights", "wrote to the weight", options={"shadow": 1.0}),
)

BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in ALL}
