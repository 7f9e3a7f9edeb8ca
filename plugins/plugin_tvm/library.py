"""TVM's modules, whose own annotations leave most types open. Importing this module imports TVM: do so as late as TVM."""

from __future__ import annotations

from typing import Any

import tvm as untyped_tvm
import tvm_ffi as untyped_tvm_ffi
from tvm import relax as untyped_relax
from tvm import s_tir as untyped_s_tir
from tvm import te as untyped_te
from tvm import tirx as untyped_tirx
from tvm.s_tir import meta_schedule as untyped_meta_schedule
from tvm.target import codegen as untyped_codegen

tvm: Any = untyped_tvm
tvm_ffi: Any = untyped_tvm_ffi
relax: Any = untyped_relax
s_tir: Any = untyped_s_tir
te: Any = untyped_te
tirx: Any = untyped_tirx
meta_schedule: Any = untyped_meta_schedule
codegen: Any = untyped_codegen
