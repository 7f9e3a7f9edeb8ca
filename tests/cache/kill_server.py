"""Kills processes that share a cache at random times, and checks after each round what they left. No test by itself.

Run as `python kill_server.py CACHE ROUNDS CHILDREN SEED`; prints a summary as JSON, with every problem that was found.

Importing PyTorch takes seconds, so 16 processes a round cannot each do it for a thousand rounds. This process imports
everything once, runs nothing in threads (ONNX Runtime starts one when it is imported, which waits), and forks: from there
on each child is a process of its own, with file descriptors, locks and memory of its own. A child compiles with a real
backend, saves through the real store, loads, verifies and runs what is there, keeps plans, measurements and failures, and
prunes: all that touches the cache when a model is compiled. What a fork leaves out is the import, which touches no file of
the cache.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime  # noqa: F401 - before the first fork, and not in each child
import torch
from filelock import FileLock, Timeout
from torch import fx
from torch._subclasses import FakeTensorMode

from hub.cache.artifacts import LOCKS, PARTIAL, is_in_use
from hub.cache.keys import artifact_parts, digest_of
from hub.cache.measurements import Failure, Measurement, Measurements, Subject
from hub.cache.store import Store
from hub.cache.upkeep import find_broken, prune
from hub.discovery.registry import registry
from hub.errors import PluginError
from hub.partition.extract import extract
from hub.plan import Plan, PlannedCluster
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost
from hub.plugin.graph import Cluster, Graph
from hub.workers.compilation.build import build_cluster, load_and_verify

BACKEND = "onnxruntime"
SETTINGS = CompileSettings(threads=1)
SUBJECT = Subject("structure", BACKEND, "versions", "machine", 1, False, "fast", None, "modes")
NOW = "2026-11-01T12:00:00+00:00"


@dataclass(frozen=True)
class Case:
    """A cluster with its inputs, the right result, and the place of its executable."""

    cluster: Cluster
    inputs: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    folder: Path


@dataclass
class Summary:
    """What happened."""

    rounds: int = 0
    killed: int = 0
    finished: int = 0
    compiled: int = 0
    loaded: int = 0
    leftovers: int = 0
    life_s: float = 2.0
    """Seconds that a child takes that is not killed, while others run."""
    problems: list[str] = field(default_factory=list)


def case(store: Store, number: int) -> Case:
    """Return softmax(relu(x @ weight)) with a weight of its own."""
    generator = torch.Generator().manual_seed(number)
    x, weight = torch.randn(4, 16, generator=generator), torch.randn(16, 16, generator=generator)
    program = fx.Graph()
    nodes = [program.placeholder("x"), program.placeholder("weight")]
    steps = ((torch.ops.aten.linear.default, nodes), (torch.ops.aten.relu.default, ()), (torch.ops.aten.softmax.int, (-1,)))
    with FakeTensorMode() as mode:
        nodes[0].meta["val"], nodes[1].meta["val"] = mode.from_tensor(x), mode.from_tensor(weight)
        last = nodes[0]
        for target, args in steps:
            given = tuple(args) if target is torch.ops.aten.linear.default else (last, *args)
            last = program.call_function(target, given)
            last.meta["val"] = target(*(item.meta["val"] if isinstance(item, fx.Node) else item for item in given))
    program.output((last,))
    graph = Graph(fx.GraphModule(torch.nn.Module(), program), "g", weights=("weight",))
    cluster = extract(graph, [node.name for node in graph.nodes], "c0", {"weight": weight})
    key = digest_of(artifact_parts(cluster.digest, registry().entries[BACKEND], SETTINGS))
    expected = torch.softmax(torch.relu(torch.nn.functional.linear(x, weight)), -1)
    return Case(cluster, (x,), expected, store.artifact(BACKEND, key))


def obtain(store: Store, case: Case) -> tuple[Any, bool]:
    """Return the executable, from the cache or compiled, as planning does, and whether it was compiled."""
    if store.has_artifact(case.folder):
        try:
            return load_and_verify(
                case.cluster, BACKEND, SETTINGS, case.folder, inputs=case.inputs, registry=registry()
            ).loaded.executable, False
        except PluginError:  # another process has pruned it meanwhile
            store.discard(case.folder)
    built = build_cluster(case.cluster, BACKEND, SETTINGS, inputs=case.inputs, registry=registry(), folder=case.folder)
    if not built.report.is_saved:
        raise RuntimeError(f"not saved: {built.report.problem}")
    return built.loaded.executable, True


def live(root: Path, cases: list[Case], seed: int, *, is_check: bool) -> dict[str, Any]:
    """Use the cache as a process does. Raise any error that occurs."""
    chance, store, compiled = random.Random(seed), Store(root), Counter[str]()
    for one in cases if is_check else chance.sample(cases, 2):
        executable, was_compiled = obtain(store, one)
        (result,) = executable(*one.inputs)
        torch.testing.assert_close(result, one.expected)
        compiled["compiled" if was_compiled else "loaded"] += 1
    key = f"{chance.randrange(4)}"
    plan = Plan(graph=key, graph_digest="d" * 5000, clusters=(PlannedCluster(name="c0", backend=BACKEND, nodes=("n",)),))
    if (found := store.plan(key)) not in (None, plan):
        raise RuntimeError(f"another plan was kept: {found!r}")
    store.keep_plan(key, plan)
    write_rows(root, chance)
    if not is_check and chance.random() < 0.2:
        prune(root, 1.0, grace_s=0.0)
    notes = store.take_notes()
    if notes:
        raise RuntimeError(f"a killed process must leave nothing broken: {notes}")
    return {**compiled, "end_s": time.monotonic()}


def write_rows(root: Path, chance: random.Random) -> None:
    kept, note = Measurements.open(root)
    subject = replace(SUBJECT, structure=f"{chance.randrange(20)}")
    cost = Cost(float(len(subject.structure)), 0.0, 64, "measured", "")
    kept.keep(Measurement(subject, cost, 0.5, {}, NOW))
    kept.keep_failure(Failure(subject, "compile", subject.structure, None, NOW))
    found, failed = kept.find(subject), kept.find_failures([subject])
    kept.close()
    if note or kept.notes:
        raise RuntimeError(f"measurements: {note} {kept.notes}")
    if found is None or found.cost.run_s != cost.run_s or failed[subject].reason != subject.structure:
        raise RuntimeError(f"wrong rows: {found} {failed}")


def fork(root: Path, cases: list[Case], seed: int, *, is_check: bool = False) -> tuple[int, int]:
    """Start a child; return its process id and the descriptor on which it reports."""
    report, answer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(answer)
        return pid, report
    os.close(report)
    try:
        text = json.dumps(live(root, cases, seed, is_check=is_check))
    except BaseException:  # noqa: BLE001 - everything is a finding
        text = json.dumps({"problem": traceback.format_exc()})
    os.write(answer, text.encode()[:60_000])
    os._exit(0)


def answer_of(pid: int, report: int, summary: Summary) -> dict[str, Any] | None:
    """Wait for a child to end; return what it reported, or None if it was killed before."""
    _, status = os.waitpid(pid, 0)
    with os.fdopen(report, "rb") as pipe:
        text = pipe.read()
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            summary.problems.append(f"a child died of signal {os.WTERMSIG(status)}")
        summary.killed += 1
        return None
    summary.finished += 1
    answer = json.loads(text)
    if "problem" in answer:
        summary.problems.append(answer["problem"])
        return None
    summary.compiled += answer.get("compiled", 0)
    summary.loaded += answer.get("loaded", 0)
    return answer


def kill_round(root: Path, cases: list[Case], n_children: int, chance: random.Random, summary: Summary) -> None:
    """Run children at once and kill each at a random time, up to slightly more than the longest recent life."""
    start_s = time.monotonic()
    children = [fork(root, cases, chance.randrange(2**30)) for _ in range(n_children)]
    deadlines = sorted((start_s + chance.uniform(0.0, 1.2 * summary.life_s), pid, report) for pid, report in children)
    lives_s: list[float] = []
    for deadline_s, pid, report in deadlines:
        # Its pipe becomes readable when a child reports, or ends.
        if not select.select([report], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
        if (answer := answer_of(pid, report, summary)) is not None:
            lives_s.append(answer["end_s"] - start_s)
    summary.life_s = 0.7 * summary.life_s + 0.3 * max(lives_s, default=1.5 * summary.life_s)


def life_s(root: Path, cases: list[Case], n_children: int, chance: random.Random, summary: Summary) -> float:
    """Return the longest life of children that run at once and are not killed, which depends on the machine."""
    start_s, apart = time.monotonic(), Summary()  # they count for nothing
    children = [fork(root, cases, chance.randrange(2**30)) for _ in range(n_children)]
    answers = [answer_of(pid, report, apart) for pid, report in children]
    summary.problems += apart.problems
    return max((answer["end_s"] - start_s for answer in answers if answer is not None), default=summary.life_s)


def check_round(root: Path, cases: list[Case], chance: random.Random, summary: Summary) -> None:
    """Check that a first process compiles each cluster at most once, a second none; no lock is held, nothing is corrupt."""
    for most in (1, 0):
        pid, report = fork(root, cases, chance.randrange(2**30), is_check=True)
        answer = answer_of(pid, report, summary)
        if answer is not None and answer.get("compiled", 0) > most * len(cases):
            summary.problems.append(f"{answer['compiled']} compilations where {most * len(cases)} were expected")
        if answer is not None and answer.get("compiled", 0) + answer.get("loaded", 0) != len(cases):
            summary.problems.append(f"{answer} for {len(cases)} clusters")
    for lock in (*(root / LOCKS).iterdir(), *root.glob("*.lock")):
        try:
            FileLock(lock, timeout=0).acquire().lock.release()
        except Timeout:
            summary.problems.append(f"{lock.name} is held by nobody who lives")
    summary.problems += [f"broken: {item}" for item in find_broken(root)]


def remove_some(cases: list[Case], chance: random.Random) -> None:
    """Make work for the next round: nothing, or some, or all has to be compiled again."""
    share = chance.choice((0.0, 0.5, 1.0))
    for one in cases:
        if chance.random() < share:
            shutil.rmtree(one.folder, ignore_errors=True)


def main(root: Path, rounds: int, n_children: int, seed: int) -> Summary:
    """Run all rounds, until the first problem."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    chance, summary, store = random.Random(seed), Summary(), Store(root)
    cases = [case(store, number) for number in range(4)]
    if len(list(Path("/proc/self/task").iterdir())) > 2:
        summary.problems.append("a process with threads at work must not fork")
    summary.life_s = life_s(root, cases, n_children, chance, summary)
    while summary.rounds < rounds and not summary.problems:
        remove_some(cases, chance)
        kill_round(root, cases, n_children, chance, summary)
        check_round(root, cases, chance, summary)
        summary.rounds += 1
    summary.leftovers = sum(path.name.startswith(PARTIAL) for path in root.rglob("*"))
    prune(root, 1e12, stale_s=0.0)
    if any(path.name.startswith(PARTIAL) for path in root.rglob("*")):
        summary.problems.append("leftovers stay after pruning")
    assert not any(is_in_use(one.folder) for one in cases)  # this process only looks on
    return summary


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(json.dumps(vars(main(Path(arguments[0]), *map(int, arguments[1:])))))  # noqa: T201 - its answer
