"""The example plugin, installed by pip into an environment of its own, works as the how-to says."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "example_plugin"
FILES = ("pyproject.toml", "src/hub_numpy/__init__.py", "src/hub_numpy/backend.py")
HOW_TO = Path(__file__).parent.parent / "docs" / "how-to" / "write-a-backend.md"

SCRIPT = """
import json, torch, hub
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4), torch.nn.Softmax(-1)).eval()
compiled = torch.compile(model, backend="hub", options={"backends": ["numpy"], "tune": "off"})
x = torch.randn(3, 8)
with torch.no_grad():
    error = (compiled(x) - model(x)).abs().max().item()
plan = hub.plans(compiled)[0]
listed = {item.name: item for item in hub.list_backends()}
print(json.dumps([error, [[cluster.backend, len(cluster.nodes)] for cluster in plan.clusters], listed["numpy"].package]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example by pip into an environment that sees this one's packages. Return its interpreter."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # addsitedir, and not a bare path, so that editable installs (.pth files) in this environment are found too
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (Path(own) / "parent.pth").write_text(lines)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--target", own, str(EXAMPLE)], check=True)
    return python


def test_the_example_runs_real_clusters(environment: Path, tmp_path: Path) -> None:
    """Its operators run on NumPy, unsupported ones run in eager, and the result is eager's."""
    variables = {**os.environ, "HUB_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([environment, "-c", SCRIPT], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    error, clusters, package = json.loads(done.stdout)
    assert error < 1e-6
    assert clusters == [["numpy", 3], ["eager", 1]]
    assert package == "hub-numpy"


def test_the_example_is_short() -> None:
    """A working backend takes fewer than 40 lines, blank ones aside."""
    sources = (EXAMPLE / "src" / "hub_numpy").glob("*.py")
    assert sum(bool(line.strip()) for path in sources for line in path.read_text().splitlines()) < 40


@pytest.mark.parametrize("file", FILES)
def test_the_how_to_shows_every_file_whole(file: str) -> None:
    """Who follows the page has the package that these tests install."""
    page = HOW_TO.read_text()
    language = "toml" if file.endswith("toml") else "python"
    assert f"```{language}\n{(EXAMPLE / file).read_text()}```" in page
    assert f"`{file}`" in page
