"""The user's process: runs models through the hub with the hostile plugin installed, and records the outcome.

`python driver.py TASK.json`: a list of cases, each answered by a line of JSON in the file that the task names. It judges
nothing: it passes only facts to the test. Cases run one after the other, so that a process that dies is known to have died
in the last one that it began.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from hub import plans
from hub.errors import HubError

IDS, IMAGE = (2, 16), (2, 3, 32, 32)
LEAKED = "hostile-leak"
DIRTY = 3
"""Exit status of a process whose state has changed; a new process runs the remaining cases."""


def bert() -> tuple[nn.Module, Sequence[Any], Sequence[Any]]:
    """Return BERT of two layers, with the inputs of two calls: the second one has padding and rare tokens."""
    from transformers import BertConfig, BertModel

    config: Any = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    ids = torch.randint(5, 90, IDS)
    mask = torch.ones(IDS, dtype=torch.int64)
    padded = mask.clone()
    padded[1, 9:] = 0
    return BertModel(config).eval(), (ids, mask), (torch.randint(0, 99, IDS) * padded, padded)


def resnet() -> tuple[nn.Module, Sequence[Any], Sequence[Any]]:
    """Return ResNet of basic blocks, with the inputs of two calls: the second one has values unlike any photograph's."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config: Any = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 2, 1], layer_type="basic", num_labels=7
    )
    other = torch.randn(IMAGE) * 20
    other[0, 0, 0, 0] = 3e3
    return ResNetForImageClassification(config).eval(), (torch.randn(IMAGE),), (other,)


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Sequence[Any], Sequence[Any]]]] = {"bert": bert, "resnet": resnet}


# --- What must be as it was -------------------------------------------------------------------------------------------


def digest(data: Any) -> str:
    """Return a short digest of bytes."""
    return hashlib.sha256(bytes(data)).hexdigest()[:12]


def surroundings() -> dict[str, Any]:
    """Return the state of this process that a plugin could change, by name."""
    return {
        "environment": sorted(os.environ.items()),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "PyTorch's random state": digest(torch.get_rng_state().numpy()),
        "Python's random state": digest(repr(random.getstate()).encode()),
        "NumPy's random state": digest(repr(numpy.random.get_state()).encode()),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "working directory": str(Path.cwd()),
        "signal handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals()) if number < 32],
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "warning filters": [str(entry) for entry in warnings.filters],
        "standard streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "excepthook": id(sys.excepthook),
        "recursion limit": sys.getrecursionlimit(),
        "plugin's threads": sum(thread.name.startswith(LEAKED) for thread in threading.enumerate()),
        "plugin's descriptors": sum(LEAKED in target for target in open_files()),
    }


def open_files() -> Iterable[str]:
    """Yield the files that this process has open."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield str(entry.readlink())
        except OSError:
            continue  # the descriptor of this very listing


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what differs from before."""
    return [_change(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _change(name: str, before: Any, after: Any) -> str:
    if isinstance(before, list):
        news = [item for item in after if item not in before]
        return f"{name}: new {news}, gone {[item for item in before if item not in after]}"
    return f"{name}: {before} -> {after}"


# --- One case ---------------------------------------------------------------------------------------------------------


class Subject:
    """A model with its inputs, and eager's results for them."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model, *self.inputs = MODELS[name]()
        self.kept = pytree.tree_map(torch.clone, self.inputs)
        with torch.no_grad():
            self.expected = [pytree.tree_leaves(self.model(*arguments)) for arguments in self.inputs]
        self.weights = self.weights_digest()

    def weights_digest(self) -> str:
        """Return a digest of every parameter and buffer."""
        return digest(b"".join(value.detach().numpy().tobytes() for value in self.model.state_dict().values()))

    def difference(self, results: Any, which: int) -> str:
        """Return how a result differs from eager's; "" if it does not."""
        leaves = pytree.tree_leaves(results)
        expected = self.expected[which]
        if len(leaves) != len(expected):
            return f"{len(leaves)} outputs in place of {len(expected)}"
        for index, (got, want) in enumerate(zip(leaves, expected, strict=True)):
            form = (got.shape, got.dtype, got.device, got.stride(), got.requires_grad)
            wanted = (want.shape, want.dtype, want.device, want.stride(), want.requires_grad)
            if form != wanted:
                return f"output {index} is {form}, eager's {wanted}"
            scale = float(want.abs().max())
            error = float((got - want).abs().max())
            if not error <= 2e-5 * scale:
                return f"output {index} is wrong by {error:.3g} of {scale:.3g}"
        return ""

    def harm(self) -> list[str]:
        """Return which of the user's tensors have changed, and restore the inputs."""
        same = pytree.tree_map(torch.equal, self.inputs, self.kept)
        harmed = [] if all(pytree.tree_leaves(same)) else ["inputs"]
        self.inputs = pytree.tree_map(torch.clone, self.kept)
        return harmed if self.weights_digest() == self.weights else [*harmed, "weights"]


def run(subject: Subject, case: Mapping[str, Any]) -> dict[str, Any]:
    """Compile the model and call it several times with two sets of inputs; return the observations."""
    torch._dynamo.reset()
    gc.collect()  # else plans of the previous case are found by the model's weights
    os.environ.update(case["variables"])
    compiled = torch.compile(subject.model, backend="hub", options=case["options"])
    wrong: list[str] = []
    first: Any = None
    before = surroundings()
    changed: list[str] = []
    with torch.no_grad():
        inside = surroundings()
        for call in range(case["calls"]):
            which = call % 2
            results = compiled(*subject.inputs[which])
            if not changed:
                changed = [f"{text} (call {call})" for text in changes(inside, surroundings())]
            if text := subject.difference(results, which):
                wrong.append(f"call {call}: {text}")
            first = results if call == 0 else first
        if text := subject.difference(first, 0):
            wrong.append(f"call 0, seen again after the last: {text}")
    changed += [text for text in changes(before, surroundings()) if not changed]
    made = plans(compiled)
    return {
        "wrong": wrong[:5],
        "changed": changed,
        "harmed": subject.harm(),
        "backends": [name for plan in made for name in plan.backends],
        "contenders": [contender.name for plan in made for contender in plan.contenders],
        "events": [event.model_dump() for plan in made for event in plan.events],
        "seconds": 0.0,
    }


def answer(subject: Subject, case: Mapping[str, Any], orders: Path) -> dict[str, Any]:
    """Return the facts of one case: of a first compilation, and of a second one in the same process."""
    journal = Path(case["orders"]["journal"])
    orders.write_text(json.dumps({**case["orders"], "user": os.getpid()}))
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)
    start = time.monotonic()
    facts = run(subject, case)
    facts["seconds"] = time.monotonic() - start
    facts["journal"] = journal.read_text().splitlines() if journal.exists() else []
    if case["again"]:
        facts["again"] = run(subject, {**case, "calls": 2})
        facts["again"]["journal"] = journal.read_text().splitlines()[len(facts["journal"]) :] if journal.exists() else []
        facts["again"]["seconds"] = time.monotonic() - start - facts["seconds"]
    return facts


def serve(task: Mapping[str, Any]) -> None:
    """Run the task's cases in order."""
    results = Path(task["results"])
    orders = Path(task["plugin_orders"])

    def write(**facts: Any) -> None:
        with results.open("a") as file:
            file.write(json.dumps({**facts, "pid": os.getpid()}) + "\n")

    warm_up()
    subjects = {name: Subject(name) for name in dict.fromkeys(case["model"] for case in task["cases"])}
    for number, case in enumerate(task["cases"]):
        write(begin=number)
        try:
            facts = answer(subjects[case["model"]], case, orders)
        except BaseException as error:  # noqa: BLE001 - any exception that reaches the user here is what the test is about
            subjects[case["model"]].harm()
            facts = {"raised": f"{type(error).__name__}: {_text(error)}"}
        write(number=number, facts=facts)
        if facts.get("raised") or facts.get("changed"):
            sys.exit(DIRTY)  # the next case would suffer from it
    write(done=True)


def _text(error: BaseException) -> str:
    try:
        return str(error) if isinstance(error, HubError) else str(error)[:500]
    except BaseException:  # noqa: BLE001 - some of the plugin's exceptions cannot be printed
        return "?"


def warm_up() -> None:
    """Compile something without the hub: what PyTorch itself changes on a first compilation is not the hub's doing."""
    with torch.no_grad():
        torch.compile(nn.Linear(2, 2), backend="aot_eager")(torch.ones(1, 2))
    importlib.import_module("hub.frontend.dynamo")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(json.loads(Path(sys.argv[1]).read_text()))
