"""Sample calls of ATen operators, one-operator clusters made of them, and the check that results are exact enough.

For tests of a backend's operator table: every operator that a table declares has samples here, and each sample that the
backend accepts must compile, run and give correct results.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub.plugin.table import overload_of
from hub.testing.operators import backward, elementwise, layers, reductions, shapes
from hub.testing.operators.case import case_cluster, expected, read_outputs
from hub.testing.operators.close import Reference, check_close, references
from hub.testing.operators.sample import Made, Sample

SAMPLES: Mapping[str, tuple[Sample, ...]] = {
    **elementwise.TABLE,
    **reductions.TABLE,
    **shapes.TABLE,
    **layers.TABLE,
    **backward.TABLE,
}
"""Sample calls by overload name ("aten.add.Tensor")."""

__all__ = [
    "SAMPLES",
    "Made",
    "Reference",
    "Sample",
    "case_cluster",
    "check_close",
    "expected",
    "overload_of",
    "read_outputs",
    "references",
]
