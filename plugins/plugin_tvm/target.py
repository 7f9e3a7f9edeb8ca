"""The host as a target of TVM's code generator: its CPU by name, minus features that a virtual machine hides."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_CHECKED = ("avx", "amx", "fma", "f16c", "bmi", "vaes", "vpclmul", "gfni", "sse")
"""Prefixes of features that code for a CPU's name may use; other features only influence heuristics."""


@cache
def host_target(threads: int) -> Any:
    """Return the host as a target with the given number of cores."""
    from plugin_tvm.library import codegen, tvm

    name = str(codegen.llvm_get_system_cpu())
    plain = {"kind": "llvm", "mcpu": name, "num-cores": threads}
    hidden = hidden_features(
        {str(feature) for feature in codegen.llvm_get_cpu_features(tvm.target.Target(plain))}, _flags()
    )
    return tvm.target.Target({**plain, "mattr": [f"-{feature}" for feature in hidden]} if hidden else plain)


def hidden_features(features: set[str], flags: set[str]) -> tuple[str, ...]:
    """Return features of a CPU of this name that this machine does not show; none if it shows no flags."""
    shown = {_plain(flag) for flag in flags}
    doubtful = (feature for feature in sorted(features) if feature.startswith(_CHECKED))
    known = {"bmi": "bmi1", "sse3": "pni"}
    return tuple(feature for feature in doubtful if shown and _plain(known.get(feature, feature)) not in shown)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(".", "")


def _flags() -> set[str]:
    """Return the features of an x86 CPU that Linux shows; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set[str]())
