"""Clusters on the software device: calibration, refusals, saving, settings, the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hub.errors import CompileError, ConstantsRefused, InputRefused, OptionError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import capture, whole_cluster
from plugin_mdla.__main__ import app
from plugin_mdla.backend import Mdla
from plugin_mdla.calibration import Calibration
from plugin_mdla.gather import calibrated
from plugin_mdla.settings import Settings, read_settings
from plugin_mdla.timing import CALL_S, call_s

ONE = CompileSettings(threads=1)
Simulated = Callable[..., Mdla]
X = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)


def net(width: int = 4) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU6(), nn.Conv2d(width, 2, 1)).eval()


@pytest.fixture
def cluster() -> Cluster:
    return whole_cluster(net(), (X,))[0]


def calibration_file(folder: Path, model: nn.Module, samples: list[tuple[torch.Tensor, ...]]) -> str:
    captured = capture(model, (X,))
    path = folder / "calib.json"
    calibrated(captured.graph, captured.inputs, samples).save(path)
    return str(path)


# --- Calibration ------------------------------------------------------------------------------------------------------


def test_ranges_come_from_samples(simulated: Simulated, tmp_path: Path) -> None:
    """With a calibration file formats follow the largest sample, whatever comes first; smaller calls fit."""
    path = calibration_file(tmp_path, net(), [(X,), (20 * X,), (X / 9,)])
    cluster, _ = whole_cluster(net(), (X,))
    executable = simulated(calibration=path).compile(cluster, ONE)
    assert executable.formats is not None
    assert str(executable.formats.values[cluster.input_names[0]]) == "Q7.9"
    (result,) = executable(20 * X)
    assert (result - cluster.module(20 * X)[0]).abs().max() < 0.01 * result.abs().max()


def test_without_samples_the_first_call_shows_ranges(
    simulated: Simulated, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call calibrates, with a warning that names the command; twice its range fits, four times is refused."""
    executable = simulated().compile(cluster, ONE)
    with caplog.at_level("WARNING", "hub.mdla"):
        executable(X)
        executable(1.9 * X)
    assert [record.getMessage().count("hub mdla calibrate") for record in caplog.records] == [1]
    with pytest.raises(InputRefused, match="elements of"):
        executable(4 * X)
    executable(X)


def test_a_file_of_another_model_is_refused(simulated: Simulated, tmp_path: Path) -> None:
    """Another width, or other operators: an error that names the value and the command."""
    path = calibration_file(tmp_path, net(8), [(X,)])
    backend = simulated(calibration=path)
    for model in (net(), nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()).eval()):
        cluster, _ = whole_cluster(model, (X,))
        with pytest.raises(CompileError, match="made for another model, or for other weights: ") as caught:
            backend.compile(cluster, ONE)
        assert "calibrate" in str(caught.value)


def test_a_file_of_other_weights_is_refused(simulated: Simulated, tmp_path: Path) -> None:
    """One weight that was trained on is enough: ranges behind it may be any."""
    model = net()
    backend = simulated(calibration=calibration_file(tmp_path, model, [(X,)]))
    assert backend.compile(whole_cluster(model, (X,))[0], ONE)
    with torch.no_grad():
        model[3].weight[0, 0] += 1e-6
    cluster, _ = whole_cluster(model, (X,))
    with pytest.raises(CompileError, match=r"weight .* has other values than the samples were shown to"):
        backend.compile(cluster, ONE)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 9, "values": {}}', '{"version": 2, "samples": 1, "values": {"x": [1]}}']
)
def test_a_damaged_file_is_refused(text: str, simulated: Simulated, cluster: Cluster, tmp_path: Path) -> None:
    """Whatever is wrong with the file, the error names it."""
    path = tmp_path / "calib.json"
    path.write_text(text)
    with pytest.raises(CompileError, match=r"cannot read calibration file .*calib\.json"):
        simulated(calibration=str(path)).compile(cluster, ONE)
    with pytest.raises(CompileError, match="cannot read calibration file"):
        simulated(calibration=str(tmp_path / "none.json")).compile(cluster, ONE)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        ([(X, X)], "2 tensors"),
        ([(X[:, :2],)], "expected"),
        ([(X * torch.nan,)], "NaN"),
        ([("x",)], "str"),
    ],
)
def test_wrong_samples_are_refused(samples: list, message: str, tmp_path: Path) -> None:
    """None, too many, of another shape, not finite, no tensors."""
    with pytest.raises(OptionError, match=message):
        calibration_file(tmp_path, net(), samples)


# --- Values that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_refused(bad: float, simulated: Simulated, cluster: Cluster) -> None:
    """NaN and infinities run in eager, on the first call and later; the count is reported."""
    executable = simulated().compile(cluster, ONE)
    x = X.clone()
    x[0, 0, 0, 0] = bad
    with pytest.raises(InputRefused, match="first call"):
        executable(x)
    executable(X)
    with pytest.raises(InputRefused, match="1 inputs are NaN or infinite"):
        executable(x)


def test_saturation_is_accepted_where_asked(
    simulated: Simulated, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """With HUB_MDLA_SATURATE results are the device's, finite and cut off, and the log says what saturated."""
    executable = simulated(saturate=True, format="q8.8").compile(cluster, ONE)
    x = X.clone()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = torch.inf, torch.nan
    (result,) = executable(x * 1000)
    assert bool(torch.isfinite(result).all())
    assert result.abs().max() <= 128
    assert "values saturated" in caplog.text
    assert "2 inputs are NaN or infinite" in caplog.text
    assert "calibrate on samples with this range" in caplog.text
    before, told = executable.saturated, len(caplog.records)
    assert before["NaN or infinity"] == 2
    executable(x * 1000)
    assert executable.saturated == {name: 2 * count for name, count in before.items()}
    assert len(caplog.records) == told, "a stream of images does not fill the log"


def test_weights_beyond_every_format_are_refused(simulated: Simulated) -> None:
    """The error names the layer, the value and the largest format; Q8.8 names its own limit."""
    model = nn.Conv2d(3, 4, 3).eval()
    model.weight.data[0, 0, 0, 0] = 4e4
    cluster, _ = whole_cluster(model, (X,))
    with pytest.raises(ConstantsRefused) as caught:  # which is not remembered: other weights may fit
        simulated().compile(cluster, ONE)
    assert caught.value.node == "conv2d"
    wanted = r"weight of Conv conv2d reaches 40000, beyond every 16-bit format \(at most 32767 in Q16\.0\)"
    with pytest.raises(CompileError, match=wanted):
        simulated().compile(cluster, ONE)
    with pytest.raises(CompileError, match=r"do not fit q8\.8"):
        simulated(format="q8.8").compile(cluster, ONE)
    model.weight.data[0, 0, 0, 0] = torch.nan
    cluster, _ = whole_cluster(model, (X,))
    with pytest.raises(CompileError, match="NaN or infinity"):
        simulated(format="varfp").compile(cluster, ONE)


# --- Saving -----------------------------------------------------------------------------------------------------------


def test_what_is_saved_has_its_ranges(simulated: Simulated, cluster: Cluster, tmp_path: Path) -> None:
    """A loaded executable computes the same bits as the saved one, whatever it is called with first."""
    executable = simulated().compile(cluster, ONE)
    wanted = executable(X)[0]
    executable.save(tmp_path)
    loaded = simulated().load(tmp_path, cluster, ONE)
    loaded(X / 50)
    assert torch.equal(loaded(X)[0], wanted)


def test_other_settings_or_another_cluster_do_not_load(simulated: Simulated, cluster: Cluster, tmp_path: Path) -> None:
    """Formats belong to what was saved: int8 or other weights need another compilation."""
    simulated().compile(cluster, ONE).save(tmp_path)
    with pytest.raises(CompileError, match="other HUB_MDLA_ settings"):
        simulated(format="int8").load(tmp_path, cluster, ONE)
    other, _ = whole_cluster(net(5), (X,))
    with pytest.raises(CompileError, match="another cluster"):
        simulated().load(tmp_path, other, ONE)


def test_a_calibration_file_that_changed_makes_saved_formats_stale(simulated: Simulated, tmp_path: Path) -> None:
    """What was saved under the ranges of a file is compiled again when the file has others, under the same name."""
    path, saved = calibration_file(tmp_path, net(), [(X,)]), tmp_path / "saved"
    saved.mkdir()
    cluster, _ = whole_cluster(net(), (X,))
    backend = simulated(calibration=path)
    backend.compile(cluster, ONE).save(saved)
    assert torch.equal(backend.load(saved, cluster, ONE)(X)[0], backend.compile(cluster, ONE)(X)[0])
    calibration_file(tmp_path, net(), [(X * 10,)])
    with pytest.raises(CompileError, match=r"calib\.json has changed since it was saved"):
        backend.load(saved, cluster, ONE)


def test_ranges_of_a_first_call_are_told_in_every_process(
    simulated: Simulated, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's log is not shown: loading what it saved warns again. Calibrated ones cause no warning."""
    executable = simulated().compile(cluster, ONE)
    executable(X)
    executable.save(tmp_path)
    caplog.clear()
    simulated().load(tmp_path, cluster, ONE)
    assert "ranges come from its first inputs; `hub mdla calibrate`" in caplog.text


def test_the_device_is_probed_without_the_models_calibration(simulated: Simulated, tmp_path: Path) -> None:
    """`hub list-backends --probe` works while a calibration file is set."""
    assert simulated(calibration=calibration_file(tmp_path, net(), [(X,)])).probe().accepted


def test_dump_has_the_model_and_the_report(simulated: Simulated, cluster: Cluster, tmp_path: Path) -> None:
    """A debug folder gets ONNX, and after the first call the table of formats and errors."""
    executable = simulated().compile(cluster, ONE)
    executable(X)
    executable.dump(tmp_path)
    assert (tmp_path / "model.onnx").stat().st_size > 100
    assert "SNR dB" in (tmp_path / "accuracy.txt").read_text()


def test_a_debug_folder_has_the_report(installed: None, tmp_path: Path) -> None:
    """Also where a worker compiled the cluster, and this process only loaded and verified it."""
    given = {"backends": ["mdla"], "accuracy": 0.05, "tune": "off", "debug_dir": str(tmp_path)}
    with torch.no_grad():
        torch.compile(net(), backend="hub", options=given)(X)
    (report,) = tmp_path.rglob("accuracy.txt")
    assert "SNR dB" in report.read_text()


# --- What users are told ----------------------------------------------------------------------------------------------


def told(backend: Mdla, cluster: Cluster, x: torch.Tensor) -> str:
    return backend.explain(cluster, ONE, [x])


def test_ranges_of_a_file_show_what_saturates(simulated: Simulated, cluster: Cluster, tmp_path: Path) -> None:
    """With a calibration file the report has its formats, counts what these inputs saturate, and gives advice."""
    path = calibration_file(tmp_path, net(), [(X,)])
    fine = told(simulated(calibration=path), cluster, X)
    assert f"ranges: {path}" in fine
    assert "saturated:" not in fine
    loud = told(simulated(calibration=path), cluster, X * 50)
    assert f"saturated: {cluster.input_names[0]}, " in loud
    assert "calibrate on samples with their range" in loud


def test_the_report_tells_of_weights_that_saturate(simulated: Simulated) -> None:
    """A weight of 200 does not fit Q8.8; its layer is named."""
    model = nn.Conv2d(3, 4, 3).eval()
    model.weight.data[0, 0, 0, 0] = 200.0
    cluster, _ = whole_cluster(model, (X,))
    assert "weights saturated: conv2d; HUB_MDLA_FORMAT=auto" in told(simulated(format="q8.8"), cluster, X)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_report_tells_why_there_are_no_formats(bad: float, simulated: Simulated, cluster: Cluster) -> None:
    """Inputs without a range leave no formats to choose: the report says so."""
    assert "holds NaN or infinity" in told(simulated(), cluster, X * bad)


# --- Settings, time, command line -------------------------------------------------------------------------------------


def test_settings_come_from_variables() -> None:
    """Every variable has its type; empty ones count as unset."""
    found = read_settings(
        {"HUB_MDLA_SIMULATOR": "yes", "HUB_MDLA_FORMAT": "INT8", "HUB_MDLA_CLUSTERS": "4", "HUB_MDLA_BOARDS": "",
         "HUB_MDLA_FLAGS": "mvbatch=1 imgs_per_cluster=2", "HUB_MDLA_TIMEOUT_S": "1.5", "HOME": "/"}
    )  # fmt: skip
    wanted = Settings(
        simulator=True, format="int8", clusters=4, flags=(("mvbatch", "1"), ("imgs_per_cluster", "2")), timeout_s=1.5
    )
    assert found == wanted
    assert found.bits == 8


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FORMAT", "q9.7"),
        ("CLUSTERS", "0"),
        ("BOARDS", "two"),
        ("SIMULATOR", "maybe"),
        ("TIMEOUT_S", "nan"),
        ("FLAGS", "x"),
        ("CLUSTER", "1"),
    ],
)
def test_wrong_settings_name_the_variable(variable: str, text: str) -> None:
    """A misspelt name or a wrong value is an error that names it."""
    with pytest.raises(OptionError, match=f"HUB_MDLA_{variable}"):
        read_settings({f"HUB_MDLA_{variable}": text})


def test_a_board_bids_its_predicted_time_and_the_simulator_its_own(simulated: Simulated, cluster: Cluster) -> None:
    """The board's price is the model's, call and bus included; software's is the roofline's."""
    price = Mdla(Settings(clusters=2)).estimate(cluster, ONE)
    program = simulated().compile(cluster, ONE).program
    assert price.run_s == call_s(program, 2) > CALL_S
    assert price.transfer_bytes > 0
    assert simulated().estimate(cluster, ONE).detail.startswith("roofline")


def test_the_command_line_calibrates_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`calibrate` writes the file from samples; `report` prints formats, error, time and what is not taken."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef make():\n    torch.manual_seed(0)\n"
        "    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Softmax(-1)).eval()\n"
        "    return model, (torch.rand(2, 3, 8, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.save([X, 3 * X], "inputs.pt")
    runner = CliRunner()
    done = runner.invoke(
        app, ["calibrate", "model.py:make", "--samples", "inputs.pt", "-o", "calib.json"], catch_exceptions=False
    )
    assert "from 2 samples" in done.output
    assert Calibration.read(tmp_path / "calib.json").samples == 2
    assert json.loads((tmp_path / "calib.json").read_text())["version"] == 2
    done = runner.invoke(app, ["report", "model.py:make", "--calibration", "calib.json"], catch_exceptions=False)
    assert "ms predicted on the board" in done.output
    assert "Conv" in done.output and "SNR dB" in done.output
    assert "not taken: aten.softmax.int: not in the operator table" in done.output
