"""A plugin that harms its user in a selected way: one backend, a hundred faults.

Its backend supports every node and computes with PyTorch itself, so that all results are right except for the fault. The
fault ("compile_segfault": a step, and what goes wrong there) is read from `hostile.json` next to this file, anew at every
step: one process can thus go through many faults. Each step is recorded in a journal with the process id.

This file is a complete plugin: tests copy it into a folder on the path, with an entry point, as pip would. Without
`hostile.json`, it does nothing wrong.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from hub import Backend, BackendInfo, Executable, Support, hookimpl

ORDERS = Path(__file__).with_name("hostile.json")
HANG_S = 600.0
"""Longer than any limit under test, and still an end if nothing else sets one."""
BOMB_BYTES = 4 << 30
PRINTED_BYTES = 1 << 30
TEXT_BYTES = 150 << 20
CHUNK_BYTES = 1 << 22
LATER = 60
"""Calls after which the faults named "later" begin: verification and a first use are over."""
LEAKED = "hostile-leak"
"""Part of the name of everything that is leaked, so that a test can find it."""

_done: dict[str, int] = {}
_kept: list[object] = []
"""References that keep leaked objects from being collected."""


def orders() -> dict:
    """Return the test's instructions: {"fault", "journal", "scratch", "saveable", "user"}."""
    return json.loads(ORDERS.read_text())


def fault_at(step: str, *, is_first: bool = True) -> str:
    """Record that a step was reached for the first time, and return what is to go wrong at it, or ""."""
    if not ORDERS.exists():
        return ""
    given = orders()
    if is_first:
        note(given, step, os.getpid())
    where, _, act = given["fault"].partition("_")
    return act if where == step else ""


def note(given: dict, word: str, number: int) -> None:
    """Add a line to the journal, in one write."""
    with Path(given["journal"]).open("a") as journal:
        journal.write(f"{word} {number}\n")


def at(step: str) -> str:
    """Do what is to go wrong at a step if that is the same at every step; otherwise return it."""
    act = fault_at(step)
    if act in ACTS:
        ACTS[act]()
        return ""
    return act


# --- Exceptions -------------------------------------------------------------------------------------------------------


class Mute(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text for this")

    __repr__ = __str__


class Stuck(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("cannot leave its process")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Odd(BaseException):
    """An exception that is not an `Exception`."""


def raising(error: object):
    """Return an act that raises."""

    def act() -> None:
        raise error() if isinstance(error, type) else error

    return act


def recurse(depth: int = 0) -> int:
    """Recurse until Python stops it."""
    return recurse(depth + 1) + 1


# --- Crashes and hangs ------------------------------------------------------------------------------------------------


def overflow_the_stack() -> None:
    """Recurse through C until the stack is exhausted, in a thread with a small stack."""
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    sort, numbers = ctypes.CDLL(None).qsort, (ctypes.c_int * 2)(2, 1)

    def deeper(*_: object) -> int:
        sort(numbers, 2, 4, again)
        return 0

    again = compare(deeper)
    sys.setrecursionlimit(10**6)
    threading.stack_size(256 * 1024)
    thread = threading.Thread(target=deeper)
    thread.start()
    thread.join()


def spin_in_c() -> None:
    """Compute in C for days, with the GIL held and every signal blocked that can be."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sum(range(10**15))


def take_memory() -> None:
    """Take and touch memory in steps."""
    _kept.extend(bytearray(b"x") * CHUNK_BYTES for _ in range(BOMB_BYTES // CHUNK_BYTES))
    _kept.clear()


def print_much() -> None:
    """Print a gigabyte."""
    for _ in range(PRINTED_BYTES // CHUNK_BYTES):
        sys.stdout.write("x" * CHUNK_BYTES)


def write_much() -> None:
    """Write a gigabyte straight to the standard output's descriptor."""
    for _ in range(PRINTED_BYTES // CHUNK_BYTES):
        os.write(1, b"x" * CHUNK_BYTES)


def is_users_process() -> bool:
    """Return True in the user's process, which some faults spare: there they would hit the test itself."""
    return os.getpid() == orders()["user"]


def write_garbage() -> None:
    """Write into every descriptor that is not its own."""
    for descriptor in () if is_users_process() else range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"garbage\n" * 4)


def close_descriptors() -> None:
    """Close every descriptor that is not its own."""
    if not is_users_process():
        os.closerange(3, 256)


def is_new(act: str, most: int = 1) -> bool:
    """Return True until an act was done `most` times for this test: without a limit it would exhaust the machine."""
    key = f"{act} {orders()['journal']}"
    _done[key] = _done.get(key, 0) + 1
    return _done[key] <= most


def fork() -> None:
    """Fork, and return in both processes."""
    if not is_new("fork"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn that forking with threads is a bad idea
        os.fork()


def leave_a_child() -> None:
    """Start a process and forget it."""
    if not is_new("child", 4):
        return
    child = subprocess.Popen(["sleep", str(HANG_S)])
    child.returncode = 0  # else its finalizer warns
    note(orders(), "child", child.pid)


def daemonize() -> None:
    """Start a daemon: a process that leaves the session, and whose parent ends."""
    if not is_new("daemon", 4):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in `fork`
        parent = os.fork()
    if parent == 0:
        os.setsid()
        if os.fork() == 0:
            note(orders(), "child", os.getpid())
            os.execvp("sleep", ["sleep", str(HANG_S)])
        os._exit(0)
    os.waitpid(parent, 0)


def leak_threads() -> None:
    """Start threads that never end."""
    if not is_new("threads", 20):
        return
    for number in range(8):
        threading.Thread(target=time.sleep, args=(HANG_S,), name=f"{LEAKED}-{number}", daemon=True).start()


def leak_descriptors() -> None:
    """Open files and keep them open."""
    if not is_new("files", 10):
        return
    path = Path(orders()["scratch"]) / LEAKED
    _kept.extend(path.open("ab") for _ in range(64))


# --- Changes of the process -------------------------------------------------------------------------------------------


def change_environment() -> None:
    """Set, change and remove variables."""
    os.environ["HOSTILE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "7"
    os.environ.pop("HOME", None)


def change_default_dtype() -> None:
    """Make new tensors float64."""
    import torch

    torch.set_default_dtype(torch.float64)


def change_random_state() -> None:
    """Seed every generator."""
    import numpy
    import torch

    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)


def change_threads() -> None:
    """Change how many threads PyTorch uses."""
    import torch

    torch.set_num_threads(3)


def change_grad_mode() -> None:
    """Toggle gradients."""
    import torch

    torch._C._set_grad_enabled(not torch.is_grad_enabled())


def change_folder() -> None:
    """Change the working directory."""
    os.chdir(orders()["scratch"])


def change_signals() -> None:
    """Ignore Ctrl-C and requests to terminate."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(number, signal.SIG_IGN)


def change_warnings() -> None:
    """Hide all warnings."""
    warnings.simplefilter("ignore")


def change_streams() -> None:
    """Replace the standard output."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - stays open, as the fault wants it


def change_everything() -> None:
    """Make all of these changes at once."""
    for act in CHANGES.values():
        act()


CHANGES = {
    "changes_environment": change_environment,
    "changes_dtype": change_default_dtype,
    "changes_rng": change_random_state,
    "changes_threads": change_threads,
    "changes_grad": change_grad_mode,
    "changes_folder": change_folder,
    "changes_signals": change_signals,
    "changes_warnings": change_warnings,
    "changes_streams": change_streams,
}

ACTS = {
    "raise": raising(ValueError("a plain fault")),
    "raises_150_mib": lambda: raising(ValueError("endless" + "x" * TEXT_BYTES))(),
    "system_exit": raising(SystemExit),
    "keyboard_interrupt": raising(KeyboardInterrupt),
    "generator_exit": raising(GeneratorExit),
    "stop_iteration": raising(StopIteration),
    "memory_error": raising(MemoryError),
    "odd_exception": raising(Odd),
    "mute_exception": raising(Mute),
    "stuck_exception": raising(Stuck),
    "recursion": recurse,
    "hang": lambda: time.sleep(HANG_S),
    "spin": spin_in_c,
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "overflow": overflow_the_stack,
    "memory": take_memory,
    "prints": print_much,
    "writes": write_much,
    "garbage": write_garbage,
    "closes": close_descriptors,
    "forks": fork,
    "leaves_child": leave_a_child,
    "daemonizes": daemonize,
    "leaks_threads": leak_threads,
    "leaks_descriptors": leak_descriptors,
    **CHANGES,
    "changes_everything": change_everything,
}
"""What can go wrong in the same way at every step."""


# --- Wrong results ----------------------------------------------------------------------------------------------------


def doctored(outputs: list, index: int, value: object) -> list:
    """Return the outputs with one of them replaced."""
    return [*outputs[:index], value, *outputs[index + 1 :]]


def is_other(inputs: tuple, first: list) -> bool:
    """Return True if these inputs differ from those of the first call."""
    import torch

    return any(
        isinstance(now, torch.Tensor) and not torch.equal(now, then) for now, then in zip(inputs, first, strict=True)
    )


def is_out_of_range(inputs: tuple) -> bool:
    """Return True for values that no example has: floats far below zero, zeros among integers."""
    return any(
        bool((value < -6).any()) if value.is_floating_point() else bool((value == 0).any())
        for value in inputs
        if hasattr(value, "is_floating_point") and value.numel()
    )


def is_large(inputs: tuple) -> bool:
    """Return True for floats beyond a thousand."""
    return any(
        bool((value.abs() > 1e3).any())
        for value in inputs
        if hasattr(value, "is_floating_point") and value.is_floating_point() and value.numel()
    )


def one_element(output, change):
    """Return a copy that is changed in one element."""
    copy = output.clone().contiguous()
    flat = copy.view(-1)
    flat[flat.numel() // 2] = change(flat[flat.numel() // 2], flat)
    return copy


def in_memory_of(output, inputs: tuple):
    """Return the output as a view of an input's memory, correct in every element; the input is lost. None if none fits."""
    import torch

    for value in inputs:
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() >= output.numel() * output.element_size():
            strides = output.contiguous().stride()
            return torch.empty(0, dtype=output.dtype).set_(value.untyped_storage(), 0, output.shape, strides).copy_(output)
    return None


def write_weights(cluster) -> None:
    """Change the first weight in place."""
    import torch

    with torch.no_grad():
        next(value for value in cluster.constants.values() if value.is_floating_point()).mul_(1.5)


def mutate(graph) -> bool:
    """Replace the first activation's function in a graph, in place; its user may compare with the same graph."""
    import torch

    activations = {torch.ops.aten.relu.default, torch.ops.aten.gelu.default, torch.ops.aten.tanh.default}
    for node in graph.nodes:
        if node.target in activations:
            node.target, node.args, node.kwargs = torch.ops.aten.sin.default, node.args[:1], {}
            return True
    return False


class Run(Executable):
    """An executable that runs the cluster in eager, and then does what is wrong."""

    def __init__(self, cluster, fault: str = "") -> None:
        self.cluster = cluster
        self.module = cluster.module
        self.fault = fault
        self.calls = 0
        self.first: list | None = None
        self.buffers: list | None = None

    def __call__(self, *inputs):
        import torch

        self.calls += 1
        act = fault_at("run", is_first=self.calls == 1) or self.fault
        if act.startswith("later_"):
            act = act.removeprefix("later_") if self.calls > LATER else ""
        with torch.no_grad():
            outputs = [value.clone() for value in self.module(*inputs)]
            if self.first is None:
                self.first = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            if act not in ACTS:
                return self.spoilt(act, inputs, outputs)
        ACTS[act]()  # outside, or a gradient mode that it sets would be restored
        return outputs

    def spoilt(self, act: str, inputs: tuple, outputs: list) -> object:
        """Return the outputs as the fault changes them."""
        import torch

        last = len(outputs) - 1
        output = outputs[last]
        if act == "wrong_value" or (act == "wrong_unstable" and self.calls > 1):
            return doctored(outputs, last, output * 1.01)
        if act == "wrong_element":
            return doctored(outputs, last, one_element(output, lambda value, flat: value + 0.05 * flat.abs().max()))
        if act == "wrong_for_others" and is_other(inputs, self.first or []):
            return doctored(outputs, last, output * 1.5)
        if act == "wrong_out_of_range" and is_out_of_range(inputs):
            return doctored(outputs, last, output * 1.5)
        if act == "wrong_for_large" and is_large(inputs):
            return doctored(outputs, last, output * 1.5)
        if act == "nan":
            return doctored(outputs, last, one_element(output, lambda value, flat: float("nan")))
        if act == "wrong_shape":
            return doctored(outputs, last, output[..., :1])
        if act == "wrong_rank":
            return doctored(outputs, last, output.unsqueeze(0))
        if act == "wrong_dtype":
            return doctored(outputs, last, output.double())
        if act == "wrong_order":
            return doctored(outputs, last, output.movedim(0, -1).contiguous().movedim(-1, 0))
        if act == "wrong_device":
            return doctored(outputs, last, output.to("meta"))
        if act == "too_few":
            return outputs[:-1]
        if act == "too_many":
            return [*outputs, output]
        if act == "arrays":
            return [value.numpy() for value in outputs]
        if act == "nothing":
            return None
        if act == "aliases_input":
            return doctored(outputs, last, output if (view := in_memory_of(output, inputs)) is None else view)
        if act == "same_buffer":
            return self.in_one_buffer(outputs)
        if act == "writes_input":
            next(value for value in inputs if isinstance(value, torch.Tensor)).add_(1)
        if act == "writes_weights":
            write_weights(self.cluster)
        return outputs

    def in_one_buffer(self, outputs: list) -> list:
        """Return the same tensors at every call, with new values."""
        if self.buffers is None:
            self.buffers = [value.clone() for value in outputs]
        for buffer, value in zip(self.buffers, outputs, strict=True):
            buffer.copy_(value)
        return self.buffers

    def save(self, folder: Path) -> None:
        act = at("save")
        if act == "nothing":
            return
        (folder / "hostile.txt").write_text("saved")
        if act == "outside":
            (folder.parent / LEAKED).write_text("not in my folder")
        if act == "symlink":
            (folder / "link").symlink_to(Path(__file__))
        if act == "sparse":
            with (folder / "sparse.bin").open("wb") as file:
                file.truncate(1 << 40)
        if act == "huge":
            with (folder / "huge.bin").open("wb") as file:
                for _ in range(PRINTED_BYTES // CHUNK_BYTES):
                    file.write(b"x" * CHUNK_BYTES)
        if act == "pipe":
            os.mkfifo(folder / "pipe")


class Lie:
    """An object that looks like a cost, and is none."""

    run_s = -1.0
    spread_s = float("nan")
    is_measured = True


class Hostile(Backend):
    """A backend that supports everything."""

    def probe(self) -> Support:
        act = at("probe")
        return "fine" if act == "junk" else Support(accepted=True)

    def supports(self, node) -> Support:
        act = at("support")
        if act == "mutates":
            mutate(node.graph)
        return True if act == "junk" else Support(accepted=True)

    def estimate(self, cluster, settings):
        act = at("estimate")
        return {"junk": "soon", "lie": Lie()}.get(act)

    def compile(self, cluster, settings):
        act = at("compile")
        if act == "mutates":
            mutate(cluster.module.graph)
            cluster.module.recompile()
        if act == "writes_weights":
            write_weights(cluster)
        return {"junk": 7, "none": None}[act] if act in ("junk", "none") else Run(cluster)

    if not ORDERS.exists() or orders()["saveable"]:

        def load(self, folder: Path, cluster, settings):
            act = at("load")
            if act == "junk":
                return 7
            if (folder / "hostile.txt").read_text() != "saved":
                raise ValueError("not what was saved")
            return Run(cluster, act)


def create() -> object:
    """Return the backend."""
    act = at("create")
    return object() if act == "junk" else Hostile()


at("import")


@hookimpl
def hub_backends():
    """Register the backend."""
    act = at("register")
    if act == "junk":
        return ["hostile", 7]
    if act == "endless":
        return (BackendInfo(name=f"hostile{number}", factory="hub_hostile:create", summary="") for number in iter(int, 1))
    return [
        BackendInfo(
            name="hostile",
            factory="hub_hostile:create",
            summary="hurts",
            dtypes=("float32", "int64", "bool"),
        )
    ]
