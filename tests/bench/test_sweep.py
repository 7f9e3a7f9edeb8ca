"""The benchmark of many models: a file each, and what is there already is not run again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hub.bench import sweep as sweep_module
from hub.bench.contenders import HUB, backend_alone, contenders, is_hub, more_names, options_of, zoo_names
from hub.bench.sweep import Job, Sweep, command_of, jobs_of, sweep
from hub.cache.database import DATABASE
from hub.cli.bench import CommonFlags, ZooFlags, print_zoo
from hub.errors import BenchmarkError, HubError, OptionError

GIVEN = {"threads": 1, "backends": ("eager",), "tune": "off"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, list[str]]:
    """Return a sweep over one tiny model, against eager and second processes, and its messages."""
    folder = tmp_path_factory.mktemp("sweep") / "results"
    said: list[str] = []
    wanted = Sweep(folder, ("eager", "hub@warm"), ("mlp",), 1, 3, GIVEN, small=True, resume=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUB_CACHE_DIR", str(folder.parent / "users"))
        sweep(wanted, said.append)
    return wanted, said


def test_a_sweep_writes_every_file(finished: tuple[Sweep, list[str]]) -> None:
    """One file of results a benchmark, the summary, the page and the figures, and nothing half-written."""
    wanted, said = finished
    names = {"mlp-b64.json", "summary.json", "summary.md", "speedup.svg", "scores.svg"}
    assert {path.name for path in wanted.folder.iterdir()} == names
    assert "1/1 mlp b64" in said[0]
    assert "x as fast as eager; all done in" in said[0]


def test_first_calls_are_cold_and_second_processes_warm(finished: tuple[Sweep, list[str]]) -> None:
    """A sweep has empty caches, not the user's; a contender of the first call only is not timed, and has not failed."""
    run = sweep_module.read(finished[0].folder / "mlp-b64.json")
    assert run is not None
    warm = next(one for one in run.results if one.name == "hub@warm")
    assert run.is_fresh
    assert not list((finished[0].folder.parent / "users").rglob(DATABASE))
    assert (warm.failure, warm.call_s, warm.blocks_s) == ("", None, ())
    assert warm.first_call_s is not None


def test_what_is_there_already_is_not_run_again(finished: tuple[Sweep, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped sweep goes on where it stopped: same request, same versions."""
    monkeypatch.setattr(sweep_module, "benchmark", lambda *_, **__: pytest.fail("it ran"))
    said: list[str] = []
    summary = sweep(finished[0], said.append)
    assert summary.runs == 1
    assert said == ["1 of 1 benchmark done already"]


@pytest.mark.parametrize("change", [{"rounds": 4}, {"given": {}}, {"against": ("eager",)}, {"resume": False}])
def test_another_request_is_run_again(
    finished: tuple[Sweep, list[str]], monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    """Results of another command do not pass for this one's."""
    monkeypatch.setattr(sweep_module, "benchmark", lambda *_, **__: (_ for _ in ()).throw(HubError("it ran")))
    with pytest.raises(HubError, match="it ran"):
        sweep(replace(finished[0], **change), lambda _: None)


def test_half_a_file_counts_as_none(tmp_path: Path) -> None:
    """A file that cannot be read, or of another format, is run again."""
    (tmp_path / "mlp-b64.json").write_text('{"format": 2, "model"')
    assert sweep_module.read(tmp_path / "mlp-b64.json") is None
    with pytest.raises(HubError, match="no results in"):
        sweep_module.write_summary(tmp_path)


def test_both_batches_run_the_models_own_first(tmp_path: Path) -> None:
    """A sweep that is stopped has every model once before any twice."""
    jobs = jobs_of(Sweep(tmp_path, (), ("bert", "mlp")))
    assert jobs == (Job("bert", 1), Job("mlp", 64), Job("bert", 4), Job("mlp", 1))
    with pytest.raises(HubError, match="did you mean 'bert'"):
        jobs_of(Sweep(tmp_path, (), ("brt",)))


def test_the_command_of_a_result_repeats_it(tmp_path: Path) -> None:
    """It can be pasted into a shell, options of every type included."""
    given = {"tune": "full", "budget_s": 120.0, "strict": True, "exclude": ("tvm", "xla"), "force": {"aten.add": "iree"}}
    found = shlex.join(command_of(Job("bert", 4), Sweep(tmp_path, ("eager",), given=given)))
    assert found == (
        "hub bench bert --batch 4 --against eager --rounds 15 --fresh "
        "--tune full --budget 120.0 --strict --exclude tvm,xla --force aten.add=iree"
    )


def test_flags_that_contradict_the_zoo_are_named() -> None:
    """`hub bench bert --zoo` is a mistake, not a guess."""
    with pytest.raises(OptionError, match="MODEL cannot be combined with --zoo"):
        print_zoo(CommonFlags(None, 3, {}), ZooFlags("bert", None, 1, None, None, "out"))


def test_a_zoo_in_which_nothing_could_run_fails(finished: tuple[Sweep, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are written all the same, with the cause of each failure."""
    run = sweep_module.read(finished[0].folder / "mlp-b64.json")
    assert run is not None
    failed = tuple(one.model_copy(update={"call_s": None, "failure": "no memory"}) for one in run.results)
    monkeypatch.setattr(sweep_module, "benchmark", lambda *_, **__: run.model_copy(update={"results": failed}))
    folder = finished[0].folder.with_name("failed")
    with pytest.raises(BenchmarkError, match="no contender could run"):
        print_zoo(CommonFlags("eager", None, GIVEN), ZooFlags(None, "mlp", 1, None, None, str(folder)))
    assert "no memory" in (folder / "summary.md").read_text()


def test_the_zoo_runs_peers_and_the_hub_in_five_ways() -> None:
    """The hub as it is, direct, frozen and tuned; with one backend or without, and second processes, where asked for."""
    names = zoo_names()
    peers = {"inductor", "inductor-max-autotune", "inductor-exported", "aot-inductor", "onnxruntime", "openvino"}
    assert {"eager", *peers} <= set(names)
    assert [name for name in names if is_hub(name)] == ["hub@direct", "hub@frozen", "hub@tuned", "hub@tuned-frozen"]
    assert more_names() == ()
    assert more_names(warm=True) == ("hub@warm",)
    assert {backend_alone(name) for name in more_names(alone=True)} >= {"inductor", "onnxruntime", "openvino"}
    assert "hub-openvino" in more_names(ablation=True)


def test_the_hub_without_a_backend_contradicts_no_option() -> None:
    """The backend joins those that are left out, or leaves those that were asked for."""
    _, one = contenders(["hub-openvino"])
    assert options_of(one, {"exclude": ("tvm",)}) == {"exclude": ("tvm", "openvino")}
    assert options_of(one, {"backends": ("openvino", "inductor")}) == {"backends": ("inductor",)}


def test_a_plan_is_for_the_hub_with_all_backends() -> None:
    """A plan from a file goes to the hub and its direct and frozen forms, not to those with one backend or without one."""
    found = {
        one.name: options_of(one, {"plan": "plan.json", "threads": 1}) for one in contenders([*zoo_names(), "hub-openvino"])
    }
    assert {name for name, given in found.items() if is_hub(name) and "plan" in given} == {HUB, "hub@direct", "hub@frozen"}
    assert all(given["threads"] == 1 for given in found.values())


def test_second_processes_share_a_cache_with_the_first() -> None:
    """And the tuned hub has one of its own, so that it is cold; its frozen form replays what it found."""
    caches = {one.name: one.cache for one in contenders([*zoo_names(), *more_names(warm=True)])}
    assert caches[HUB] == caches["hub@warm"] == caches["hub@direct"] == caches["hub@frozen"]
    assert caches[HUB] != caches["hub@tuned"] == caches["hub@tuned-frozen"]
