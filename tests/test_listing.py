"""Listing: what is installed, what is wrong with it, and how to fix it, without importing anything heavy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pluggy
import pytest

from hub.cli.backends import print_backends
from hub.discovery import listing
from hub.discovery.listing import ListedBackend, Probed, list_backends
from hub.discovery.registry import Registry
from hub.plugin.backend import BackendInfo
from hub.plugin.entry import Entry
from hub.plugin.table import ACCEPTED, OperatorTable, Support, refused
from hub.process.children import Failed, Outcome, exit_text, run_child

TABLE = OperatorTable({"aten.relu.default": (), "aten.gelu.default": ()})


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Entry]]:
    """Yield a list whose entries make up the registry."""
    found: list[Entry] = []
    monkeypatch.setattr(listing, "registry", lambda: Registry(found))
    yield found


def entry(status: Support = ACCEPTED, **facts: object) -> Entry:
    info = BackendInfo(**{"name": "toy", "factory": "toy:create", "summary": "a toy", **facts})  # pyright: ignore
    return Entry(info, "hub-toy", "1.2", status)


def only(listed: tuple[ListedBackend, ...]) -> ListedBackend:
    assert [backend.name for backend in listed] == ["toy", "eager"]
    return listed[0]


def test_the_first_party_backends_and_eager_are_listed() -> None:
    """First-party plugins are found through entry points, and eager is built in."""
    listed = {backend.name: backend for backend in list_backends()}
    assert {"inductor", "onnxruntime", "openvino", "eager"} <= set(listed)
    assert listed["inductor"].package == "compiler-hub"
    assert listed["eager"].library == "torch"
    assert listed["eager"].library_version


def test_versions_of_plugin_and_library_are_given(entries: list[Entry]) -> None:
    """The first requirement is the library that the backend is built on."""
    entries.append(entry(requires=("pluggy>=1", "numpy")))
    toy = only(list_backends())
    assert (toy.package, toy.package_version) == ("hub-toy", "1.2")
    assert (toy.library, toy.library_version) == ("pluggy", pluggy.__version__)


def test_an_unavailable_backend_gives_the_reason_and_what_mends_it(entries: list[Entry]) -> None:
    """The pip command is shown if something is missing, and only then."""
    entries.append(entry(refused("toylib is not installed"), requires=("toylib>=3",), install="pip install toylib"))
    toy = only(list_backends())
    assert (toy.available, toy.reason, toy.install) == (False, "toylib is not installed", "pip install toylib")
    assert toy.library_version is None
    entries[0] = entry(install="pip install toylib")
    assert only(list_backends()).install == ""


def test_devices_on_which_a_backend_has_never_run_are_named(
    entries: list[Entry], capsys: pytest.CaptureFixture[str]
) -> None:
    """A list of devices alone would promise more than anybody has seen."""
    entries.append(entry(devices=("cpu", "cuda"), never_ran_on=("a GPU", "a TPU")))
    assert only(list_backends()).never_ran_on == ("a GPU", "a TPU")
    print_backends(as_json=False, probe=False)
    assert "toy: has never run on a GPU or a TPU" in capsys.readouterr().out


def test_operators_are_counted_from_the_table(entries: list[Entry]) -> None:
    """A table is counted; no table means any operator."""
    module = sys.modules[__name__]
    sys.modules["toy_table"] = module
    entries.append(entry(operators="toy_table:TABLE"))
    assert only(list_backends()).operators == "2"
    entries[0] = entry()
    assert only(list_backends()).operators == "any"


def test_a_broken_operator_table_costs_its_backend_only(entries: list[Entry]) -> None:
    """The listing names the table and the error, and goes on."""
    entries.append(entry(operators="no_such_module:TABLE"))
    toy = only(list_backends())
    assert not toy.available
    assert "no_such_module:TABLE cannot be read: ModuleNotFoundError" in toy.reason


def test_the_json_form_holds_every_field(entries: list[Entry]) -> None:
    """`to_json` is what `hub list-backends --json` prints for one backend."""
    entries.append(entry(devices=("cpu", "cuda"), training=True))
    values = json.loads(only(list_backends()).to_json())
    assert (values["name"], values["devices"], values["training"], values["n_operators"]) == (
        "toy",
        ["cpu", "cuda"],
        True,
        None,
    )


def test_listing_imports_neither_torch_nor_a_library_under_a_backend() -> None:
    """The listing must answer at once, and work even if a library is broken."""
    script = (
        "import sys; from hub.discovery.listing import list_backends; list_backends()\n"
        "heavy = {'torch', 'onnxruntime', 'openvino', 'onnx', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# --- Probes -----------------------------------------------------------------------------------------------------------

PLUGIN = """
import os, time
from hub.plugin.backend import Backend, BackendInfo
from hub.plugin.hooks import hookimpl
from hub.plugin.table import ACCEPTED, refused

class Toy(Backend):
    def supports(self, node): return ACCEPTED
    def compile(self, cluster, settings): raise NotImplementedError
    def probe(self):
        print("noise")
        {probe}
    def load(self, folder, cluster, settings): raise NotImplementedError

@hookimpl
def hub_backends():
    return (BackendInfo(name="toy", factory="toy_plugin:Toy", summary=""),)
"""


@pytest.fixture
def probe_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Probed]:
    """Install a plugin whose probe has the given body, for child processes, and probe it."""

    def probed(body: str, timeout_s: float = 60.0) -> Probed:
        (tmp_path / "toy_plugin.py").write_text(PLUGIN.format(probe=body))
        facts = tmp_path / "toy_plugin-1.0.dist-info"
        facts.mkdir(exist_ok=True)
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[hub]\ntoy = toy_plugin\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
        return listing.probe("toy", timeout_s)

    return probed


@pytest.mark.parametrize(
    ("body", "accepted", "reason", "abilities"),
    [
        ("return ACCEPTED", True, "", ("load",)),
        ("return refused('no AVX2 here')", False, "no AVX2 here", ("load",)),
        ("raise ValueError('bad driver')", False, "ValueError: bad driver", ("load",)),
        ("return 'fine'", False, "ContractError: probe() returned a str, not a Support", ("load",)),
        ("os.abort()", False, "killed by SIGABRT", ()),
        ("os._exit(7)", False, "exit status 7", ()),
        ("os.closerange(3, 256); return ACCEPTED", False, "Bad file descriptor", ()),
        ("print('x' * (65 << 20)); return ACCEPTED", False, "it printed", ()),
    ],
)
def test_a_probe_gives_a_verdict_whatever_the_plugin_does(
    probe_of: Callable[..., Probed], body: str, accepted: bool, reason: str, abilities: tuple[str, ...]
) -> None:
    """A probe that refuses, raises, crashes or exits is named in the verdict; the class says what else it can do."""
    found = probe_of(body)
    assert found.verdict.accepted == accepted
    assert reason in found.verdict.reason
    assert found.abilities == abilities


def test_a_probe_that_takes_memory_is_stopped(probe_of: Callable[..., Probed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason gives its usage and the limit."""
    monkeypatch.setattr(listing, "PROBE_BYTES", 1 << 30)
    taken = "kept = [bytearray(b'x') * (4 << 20) for _ in range(1024)]; time.sleep(60)"
    assert re.search(r"it took [\d,.]+ .*of memory, .* allowed", probe_of(taken).verdict.reason)


def test_a_probe_that_hangs_is_stopped(probe_of: Callable[..., Probed]) -> None:
    """A hang is a refusal that gives the limit."""
    assert probe_of("time.sleep(600)", timeout_s=2.0).verdict.reason == "no answer within 2 s"


def test_a_failed_probe_makes_its_backend_unavailable(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    """With probes, a backend counts as available only if its program ran."""
    entries.append(entry())
    monkeypatch.setattr(listing, "probe", lambda name: Probed(refused("killed by SIGILL")))
    toy = only(list_backends(probe=True))
    assert (toy.available, toy.probe, toy.reason) == (False, "killed by SIGILL", "the probe failed: killed by SIGILL")
    monkeypatch.setattr(listing, "probe", lambda name: Probed(ACCEPTED))
    assert only(list_backends(probe=True)).probe == "passed"


def test_only_a_probe_says_what_a_class_overrides(
    entries: list[Entry], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listing loads no class, so it claims what was registered; a probe adds what the class has methods for."""
    entries.append(entry(training=True))
    monkeypatch.setattr(listing, "probe", lambda name: Probed(ACCEPTED, ("estimate", "load", "tune")))
    print_backends(as_json=False, probe=False)
    print_backends(as_json=False, probe=True)
    plain, probed = (line for line in capsys.readouterr().out.splitlines() if line.startswith("toy"))
    assert "  training  " in plain
    assert "  training, save, tune, probe passed  " in probed


def test_a_child_that_leaves_a_child_behind_does_not_hold_us_up() -> None:
    """The listing does not wait for the output of a killed child."""
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
    failed = run_child([sys.executable, "-c", script], timeout_s=1.0)
    assert failed == Failed(Outcome.OUT_OF_TIME, "no answer within 1 s")


def test_ends_of_processes_are_said_in_words() -> None:
    """Signals have names."""
    assert [exit_text(code) for code in (1, -11)] == ["exit status 1", "killed by SIGSEGV"]
