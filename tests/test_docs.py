"""The documentation: links resolve, and the quickstarts run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slices

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("plugin*/**/README.md")])
QUICKSTART = (ROOT / "docs" / "how-to" / "quickstart.md").read_text()
BLOCKS = re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", QUICKSTART, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)  # code calls `table[name](x)`
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_quickstart_has_code() -> None:
    assert [title for title, _ in BLOCKS] == re.findall(r"^## (.+)$", QUICKSTART, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "code"), slices.drawn((pytest.param(*block, id=block[0]) for block in BLOCKS), one_in=len(BLOCKS))
)
def test_quickstarts_run(title: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TUNE", "off")  # by prices: the output does not depend on which backend wins
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / f"{title.replace(' ', '_')}.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
