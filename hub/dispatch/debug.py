"""Writes a readable folder for each planned graph: the captured program, the plan, generated code, and backends' dumps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from hub.discovery.plugin_fault import is_plugins
from hub.dispatch.assemble import Loaded
from hub.errors import text_of
from hub.plan import Plan
from hub.plugin.graph import Graph

_log = logging.getLogger("hub")


def write_debug_folder(root: Path, graph: Graph, plan: Plan, source: str, loaded: Mapping[str, Loaded]) -> None:
    """Write the folder `root/GRAPH/`.

    It holds fx_graph_readable.py, plan.json, plan.txt, output_code.py (the dispatcher), and for each cluster its program
    and its executable's dump. What cannot be written is logged and left out.
    """
    folder = root / graph.name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
    texts = {
        "fx_graph_readable.py": graph.module.print_readable(print_output=False),
        "plan.json": plan.to_json(),
        "plan.txt": f"{plan}\n",
        "output_code.py": source,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, item in loaded.items():
        _write_cluster(folder / f"{name}_{item.backend}", item)


def _write_cluster(folder: Path, item: Loaded) -> None:
    folder.mkdir(exist_ok=True)
    program = item.cluster.module.print_readable(print_output=False)
    (folder / "fx_graph_transformed.py").write_text(program, encoding="utf-8")
    dump = getattr(item.executable, "dump", None)
    if dump is None:
        return
    try:
        dump(folder)
    except BaseException as error:
        if not is_plugins(error):
            raise
        _log.warning("%s could not dump %s: %s", item.backend, item.cluster.name, text_of(error))
