"""`disc-compile`: programs in StableHLO and MHLO as libraries, called by their C functions and compared with eager."""

# ruff: noqa: E501 - programs stand as MLIR prints them

from __future__ import annotations

import ctypes
import os
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from hub.errors import CompileError, InputRefused, RunError
from hub.testing.single import whole_cluster
from plugin_disc import compiler
from plugin_disc.__main__ import app
from plugin_disc.__main__ import compiler as alone
from plugin_disc.external import constants_in
from plugin_disc.hlo.reader import read
from plugin_disc.library import Library, load
from plugin_disc.mhlo import program
from plugin_disc.settings import Settings
from plugin_disc.standalone import compile_file, compile_program_text, metadata_path
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of

STRICT = Settings(cpu_fast_math_level=0, enable_amp=False)
VARIABLES = ("TAO_MLIR_ENABLE_AMP", "DISC_CPU_FAST_MATH_LEVEL")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep logs of failures in a folder that pytest removes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))


def compiled(text: str, folder: Path, settings: Settings = STRICT, threads: int = 1) -> Library:
    """Return the library of a program, loaded."""
    (folder / "in.mlir").write_text(text)
    compile_file(folder / "in.mlir", folder / "out.so", settings, threads=threads)
    return load(folder / "out.so")


def of(body: str, inputs: str, outputs: str, returned: str) -> str:
    """Return a program of some lines; `inputs` are types, called %a, %b, ..."""
    names = [f"%{chr(ord('a') + place)}: {kind}" for place, kind in enumerate(inputs.split("; "))]
    shown = outputs.replace("; ", ", ")
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    return f"module {{\n  func.func @main({', '.join(names)}) -> ({shown}) {{\n{lines}\n    return {returned} : {shown}\n  }}\n}}\n"


ADDED = of("%0 = stablehlo.add %a, %b : tensor<3xf32>", "tensor<3xf32>; tensor<3xf32>", "tensor<3xf32>", "%0")
OPEN = of("%0 = stablehlo.add %a, %b : tensor<?xf32>", "tensor<?xf32>; tensor<?xf32>", "tensor<?xf32>", "%0")


# --- Programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["masked_softmax", "residual_norm", "rms_rotary", "embedding_norm", "column_statistics", "heads"]
)
def test_programs_of_torch_mlir_compute_as_eager(name: str, tmp_path: Path) -> None:
    """What BladeDISC's compiler is given, ours compiles, too."""
    cluster, inputs = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 4, 16))
    wanted = cluster.module(*inputs)
    for found, right in zip(compiled(program(cluster), tmp_path)(*inputs), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["masked_softmax", "cross_entropy_rows", "quantised"])
def test_one_library_serves_every_size(name: str, tmp_path: Path) -> None:
    """Sizes that the program leaves open are read at each call."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 4, 16), dynamic=True)
    library = compiled(program(cluster), tmp_path)
    for rows, columns in ((4, 16), (3, 24), (7, 40)):
        inputs = inputs_of(name, rows, columns)
        (found,) = library(*inputs)
        torch.testing.assert_close(found, PROGRAMS[name](*inputs), rtol=1e-5, atol=1e-5)


def test_sizes_may_come_as_numbers(tmp_path: Path) -> None:
    """An input that is one integer, as BladeDISC's programs take sizes, is read before the loops run."""
    cluster, inputs = whole_cluster(Wrapped(PROGRAMS["residual_norm"]), inputs_of("residual_norm", 4, 16), dynamic=True)
    values = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in inputs]
    for found, right in zip(compiled(program(cluster), tmp_path)(*values), cluster.module(*inputs), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_weights_stay_in_the_library(tmp_path: Path) -> None:
    """Constants are part of it, in every form that MLIR prints them in."""
    text = of(
        """%w = stablehlo.constant dense<[[1.0, -2.0, 0.5], [4.0, 0.25, 8.0]]> : tensor<2x3xf32>
        %h = stablehlo.constant dense<"0x0000803F0000004000004040"> : tensor<3xf32>
        %f = stablehlo.constant dense<[1.5, 2.0, -3.0]> : tensor<3xbf16>
        %r = stablehlo.constant dense_resource<blob> : tensor<3xf32>
        %m = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
        %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<2x3xf32>) -> tensor<4x2xf32>
        %g = stablehlo.convert %f : (tensor<3xbf16>) -> tensor<3xf32>
        %0 = stablehlo.select %m, %h, %g : tensor<3xi1>, tensor<3xf32>
        %1 = stablehlo.add %0, %r : tensor<3xf32>""",
        "tensor<4x3xf32>",
        "tensor<4x2xf32>; tensor<3xf32>",
        "%p, %1",
    )
    text += '{-# dialect_resources: { builtin: { blob: "0x040000000000803F0000803F00000040" } } #-}\n'
    value = torch.randn(4, 3)
    product, total = compiled(text, tmp_path)(value)
    torch.testing.assert_close(product, value @ torch.tensor([[1.0, -2.0, 0.5], [4.0, 0.25, 8.0]]).T)
    assert total.tolist() == [2.0, 3.0, 5.0]


def test_integers_wrap_shift_and_divide(tmp_path: Path) -> None:
    """Bit for bit: what overflows wraps, shifts by too much give nothing, and no division ends the process."""
    kind = "tensor<6xi32>"
    names = [
        "add",
        "subtract",
        "multiply",
        "divide",
        "remainder",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "and",
        "xor",
    ]
    lines = "\n".join(f"%{place} = stablehlo.{name} %a, %b : {kind}" for place, name in enumerate(names))
    text = of(
        lines, f"{kind}; {kind}", "; ".join([kind] * len(names)), ", ".join(f"%{place}" for place in range(len(names)))
    )
    lowest = -(2**31)
    left = torch.tensor([lowest, lowest, 7, -7, 2**31 - 1, -1], dtype=torch.int32)
    right = torch.tensor([-1, 0, -2, 2, 31, 40], dtype=torch.int32)
    found = dict(zip(names, compiled(text, tmp_path)(left, right), strict=True))
    for name, function in (
        ("add", torch.add),
        ("subtract", torch.sub),
        ("multiply", torch.mul),
        ("xor", torch.bitwise_xor),
    ):
        assert torch.equal(found[name], function(left, right)), name
    assert found["divide"].tolist() == [lowest, -1, -3, -3, (2**31 - 1) // 31, 0]
    assert found["remainder"].tolist() == [0, lowest, 1, -1, (2**31 - 1) % 31, -1]
    assert found["shift_left"].tolist() == [0, lowest, 0, -28, lowest, 0]
    assert found["shift_right_arithmetic"].tolist() == [-1, lowest, 0, -2, 0, -1]
    assert found["shift_right_logical"].tolist() == [0, lowest, 0, 2**30 - 2, 0, 0]


def test_movements(tmp_path: Path) -> None:
    """Slices, padding of either sign, reversal, joins, numbering, and slices at places that a tensor gives."""
    text = of(
        """%z = stablehlo.constant dense<-1.0> : tensor<f32>
        %0 = stablehlo.slice %a [1:4, 0:6:2] : (tensor<4x6xf32>) -> tensor<3x3xf32>
        %1 = stablehlo.pad %a, %z, low = [1, -2], high = [0, 3], interior = [0, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<5x7xf32>
        %2 = stablehlo.reverse %a, dims = [1] : tensor<4x6xf32>
        %3 = stablehlo.concatenate %a, %2, dim = 0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
        %4 = stablehlo.iota dim = 1 : tensor<2x3xi32>
        %5 = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<4x6xf32>, tensor<3x2xi64>) -> tensor<3x4xf32>
        %6 = stablehlo.transpose %3, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>""",
        "tensor<4x6xf32>; tensor<3x2xi64>",
        "tensor<3x3xf32>; tensor<5x7xf32>; tensor<2x3xi32>; tensor<3x4xf32>; tensor<6x8xf32>",
        "%0, %1, %4, %5, %6",
    )
    value, places = torch.randn(4, 6), torch.tensor([[0, 1], [9, 9], [-3, 0]])
    cut, padded, numbers, taken, turned = compiled(text, tmp_path)(value, places)
    assert torch.equal(cut, value[1:, ::2])
    assert torch.equal(padded, functional.pad(value, (-2, 3, 1, 0), value=-1.0))
    assert torch.equal(numbers, torch.arange(3, dtype=torch.int32).expand(2, 3))
    assert torch.equal(taken, torch.stack((value[0, 1:5], value[3, 2:], value[0, :4])))
    assert torch.equal(turned, torch.cat((value, value.flip(1))).T)


def test_products_windows_and_convolutions(tmp_path: Path) -> None:
    """Batches of products, products of integers, a strided convolution, and sums over padded windows."""
    text = of(
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x3x4xf32>
        %1 = stablehlo.dot_general %c, %c, contracting_dims = [0] x [0] : (tensor<3x4xi16>, tensor<3x4xi16>) -> tensor<4x4xi16>
        %2 = stablehlo.convolution(%d, %e) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], pad = [[1, 0], [0, 2]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x6x5x3xf32>, tensor<3x2x3x4xf32>) -> tensor<1x3x6x4xf32>
        %3 = "stablehlo.reduce_window"(%a, %z) <{padding = dense<[[0, 0], [0, 0], [1, 1]]> : tensor<3x2xi64>, window_dimensions = array<i64: 1, 1, 3>, window_strides = array<i64: 1, 1, 2>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %s = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3x3xf32>""",
        "tensor<2x3x5xf32>; tensor<2x5x4xf32>; tensor<3x4xi16>; tensor<1x6x5x3xf32>; tensor<3x2x3x4xf32>",
        "tensor<2x3x4xf32>; tensor<4x4xi16>; tensor<1x3x6x4xf32>; tensor<2x3x3xf32>",
        "%0, %1, %2, %3",
    )
    torch.manual_seed(0)
    a, b, d, e = torch.randn(2, 3, 5), torch.randn(2, 5, 4), torch.randn(1, 6, 5, 3), torch.randn(3, 2, 3, 4)
    c = torch.randint(-300, 300, (3, 4), dtype=torch.int16)
    product, whole, convolved, sums = compiled(text, tmp_path)(a, b, c, d, e)
    torch.testing.assert_close(product, a @ b)
    assert torch.equal(whole, (c.T.long() @ c.long()).to(torch.int16))
    image = functional.pad(d.permute(0, 3, 1, 2), (0, 2, 1, 0))
    right = functional.conv2d(image, e.permute(3, 2, 0, 1), stride=(2, 1)).permute(0, 2, 3, 1)
    torch.testing.assert_close(convolved, right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums, functional.avg_pool1d(a, 3, 2, 1) * 3)


def test_exceptional_floats_are_ieees(tmp_path: Path) -> None:
    """NaN goes through extremes, signed zeros and infinities stay, and sign and rounding keep them."""
    kind = "tensor<6xf32>"
    names = ("maximum", "minimum", "remainder")
    lines = [f"%{place} = stablehlo.{name} %a, %b : {kind}" for place, name in enumerate(names)]
    lines += [f"%{3 + place} = stablehlo.{name} %a : {kind}" for place, name in enumerate(("sign", "round_nearest_afz"))]
    lines.append(f"%5 = chlo.erf %a : {kind} -> {kind}")
    text = of("\n".join(lines), f"{kind}; {kind}", "; ".join([kind] * 6), "%0, %1, %2, %3, %4, %5")
    a = torch.tensor([float("nan"), -0.0, float("inf"), 2.5, -0.5, -2.5])
    b = torch.tensor([1.0, 0.0, float("nan"), -1.0, 3.0, 2.0])
    found = compiled(text, tmp_path)(a, b)
    wanted = (
        torch.maximum(a, b),
        torch.minimum(a, b),
        torch.fmod(a, b),
        torch.tensor([float("nan"), -0.0, 1.0, 1.0, -1.0, -1.0]),
        torch.tensor([float("nan"), -0.0, float("inf"), 3.0, -1.0, -3.0]),
    )
    for left, right in zip(found, wanted, strict=False):
        torch.testing.assert_close(left, right, rtol=0.0, atol=0.0, equal_nan=True)
        is_number = ~right.isnan() & (right != 0.0)
        assert torch.equal(left.signbit()[is_number], right.signbit()[is_number])
    torch.testing.assert_close(found[5], torch.erf(a), equal_nan=True)


def test_constants_keep_their_precision_and_signs(tmp_path: Path) -> None:
    """One number for all elements is as exact as several, and zeros of both signs are not one number."""
    text = of(
        """%p = stablehlo.constant dense<0.1> : tensor<2xf64>
        %q = stablehlo.constant dense<1.0e300> : tensor<f64>
        %r = stablehlo.constant dense<0.1> : tensor<bf16>
        %s = stablehlo.constant dense<[0.0, -0.0]> : tensor<2xf32>
        %0 = stablehlo.multiply %a, %p : tensor<2xf64>
        %1 = stablehlo.multiply %b, %q : tensor<f64>
        %2 = stablehlo.multiply %c, %r : tensor<bf16>
        %3 = stablehlo.divide %d, %s : tensor<2xf32>""",
        "tensor<2xf64>; tensor<f64>; tensor<bf16>; tensor<2xf32>",
        "tensor<2xf64>; tensor<f64>; tensor<bf16>; tensor<2xf32>",
        "%0, %1, %2, %3",
    )
    ones = torch.ones(2, dtype=torch.float64), torch.ones((), dtype=torch.float64), torch.ones((), dtype=torch.bfloat16)
    found = compiled(text, tmp_path)(*ones, torch.ones(2))
    assert [each.tolist() for each in found] == [[0.1, 0.1], 1e300, 0.10009765625, [torch.inf, -torch.inf]]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_padding_is_of_every_precision(kind: str, tmp_path: Path) -> None:
    """What surrounds a tensor, or the windows of one, may be any constant, also a converted one."""
    text = of(
        f"""%n = stablehlo.constant dense<-2.0> : tensor<{kind}>
        %f = stablehlo.constant dense<0.1> : tensor<f32>
        %m = stablehlo.convert %f : (tensor<f32>) -> tensor<{kind}>
        %0 = stablehlo.pad %a, %m, low = [1], high = [0], interior = [0] : (tensor<3x{kind}>, tensor<{kind}>) -> tensor<4x{kind}>
        %1 = "stablehlo.reduce_window"(%a, %n) ({{
          ^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>):
            %s = stablehlo.maximum %x, %y : tensor<{kind}>
            stablehlo.return %s : tensor<{kind}>
        }}) {{window_dimensions = array<i64: 2>, padding = dense<[[1, 0]]> : tensor<1x2xi64>}} : (tensor<3x{kind}>, tensor<{kind}>) -> tensor<3x{kind}>""",
        f"tensor<3x{kind}>",
        f"tensor<4x{kind}>; tensor<3x{kind}>",
        "%0, %1",
    )
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
    values = torch.tensor([-3.0, -1.5, -4.0], dtype=dtype)
    padded, highest = compiled(text, tmp_path)(values)
    assert torch.equal(padded, functional.pad(values, (1, 0), value=0.1))
    assert highest.tolist() == [-2.0, -1.5, -1.5]


def test_windows_over_the_edge_begin_with_what_surrounds_them(tmp_path: Path) -> None:
    """The first value is counted once for each window, and for each of its places outside of the tensor."""
    text = of(
        """%c = stablehlo.constant dense<1.0> : tensor<f32>
        %0 = "stablehlo.reduce_window"(%a, %c) ({
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
        }) {window_dimensions = array<i64: 3>, padding = dense<1> : tensor<1x2xi64>} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>""",
        "tensor<4xf32>",
        "tensor<4xf32>",
        "%0",
    )
    assert compiled(text, tmp_path)(torch.zeros(4))[0].tolist() == [2.0, 1.0, 1.0, 2.0]


def test_sums_have_the_range_of_the_result(tmp_path: Path) -> None:
    """Small integers that are multiplied, or added up, as larger ones do not wrap on the way."""
    text = of(
        """%z = stablehlo.constant dense<0> : tensor<i32>
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x4xi8>, tensor<4x2xi8>) -> tensor<2x2xi32>
        %1 = stablehlo.dot %a, %b : (tensor<2x4xi8>, tensor<4x2xi8>) -> tensor<2x2xi32>
        %2 = "stablehlo.reduce"(%a, %z) ({
          ^bb0(%x: tensor<i32>, %y: tensor<i32>):
            %s = stablehlo.add %x, %y : tensor<i32>
            stablehlo.return %s : tensor<i32>
        }) {dimensions = array<i64: 1>} : (tensor<2x4xi8>, tensor<i32>) -> tensor<2xi32>
        %3 = "stablehlo.reduce_window"(%a, %z) ({
          ^bb0(%x: tensor<i32>, %y: tensor<i32>):
            %s = stablehlo.add %x, %y : tensor<i32>
            stablehlo.return %s : tensor<i32>
        }) {window_dimensions = array<i64: 1, 2>} : (tensor<2x4xi8>, tensor<i32>) -> tensor<2x3xi32>""",
        "tensor<2x4xi8>; tensor<4x2xi8>",
        "tensor<2x2xi32>; tensor<2x2xi32>; tensor<2xi32>; tensor<2x3xi32>",
        "%0, %1, %2, %3",
    )
    hundreds = torch.full((2, 4), 100, dtype=torch.int8)
    found = compiled(text, tmp_path)(hundreds, hundreds.reshape(4, 2))
    assert [each.unique().tolist() for each in found] == [[40000], [40000], [400], [200]]


def test_a_power_is_no_root(tmp_path: Path) -> None:
    """The power 0.5 of -0.0 is 0, and of minus infinity it is infinity."""
    text = of(
        """%c = stablehlo.constant dense<0.5> : tensor<3xf32>
        %d = stablehlo.constant dense<-0.5> : tensor<3xf32>
        %0 = stablehlo.power %a, %c : tensor<3xf32>
        %1 = stablehlo.power %a, %d : tensor<3xf32>""",
        "tensor<3xf32>",
        "tensor<3xf32>; tensor<3xf32>",
        "%0, %1",
    )
    root, inverse = compiled(text, tmp_path)(torch.tensor([4.0, -0.0, -torch.inf]))
    assert root.tolist() == [2.0, 0.0, torch.inf]
    assert not root.signbit().any()
    assert inverse.tolist() == [0.5, torch.inf, 0.0]


def test_large_areas_are_finite(tmp_path: Path) -> None:
    """The inverses of hyperbolic functions do not square what they are given."""
    lines = [f"%{name} = chlo.{name} %a : tensor<3xf32> -> tensor<3xf32>" for name in ("asinh", "acosh")]
    text = of("\n".join(lines), "tensor<3xf32>", "tensor<3xf32>; tensor<3xf32>", "%asinh, %acosh")
    given = torch.tensor([3e38, -1e30, 1.5])
    for found, function in zip(compiled(text, tmp_path)(given), (torch.asinh, torch.acosh), strict=True):
        torch.testing.assert_close(found, function(given.double()).float(), equal_nan=True)


def test_mhlo_in_its_short_form_is_taken() -> None:
    """Not only what is printed here: names are mapped wherever they stand."""
    text = ADDED.replace("stablehlo.", "mhlo.").replace(
        "-> (tensor<3xf32>) {", '-> (tensor<3xf32>) attributes {tf.entry_function = {inputs = "a,b"}} {'
    )
    assert "mhlo.add" in text
    assert read(text).outputs[0].shape == (3,)


# --- The two files and the C functions --------------------------------------------------------------------------------


def test_the_files_are_the_contracts(tmp_path: Path) -> None:
    """A shared library, and what describes it in the format that BladeDISC has for constants; nothing else."""
    library = compiled(ADDED, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mlir", "out.so", "out.so.pbtxt"]
    (entry,) = constants_in((tmp_path / "out.so.pbtxt").read_bytes())
    assert entry.key == "disc_program"
    assert library.signature.inputs == (((3,), "f32"), ((3,), "f32"))


def test_a_c_program_may_call_it(tmp_path: Path) -> None:
    """By three functions, with addresses and sizes alone."""
    compiled(OPEN, tmp_path)
    raw = ctypes.CDLL(str(tmp_path / "out.so"))
    left, right, total = (ctypes.c_float * 2)(1, 2), (ctypes.c_float * 2)(10, 20), (ctypes.c_float * 2)()
    inputs = (ctypes.c_void_p * 2)(ctypes.addressof(left), ctypes.addressof(right))
    outputs = (ctypes.c_void_p * 1)(ctypes.addressof(total))
    sizes, found = (ctypes.c_int64 * 2)(2, 2), (ctypes.c_int64 * 1)()
    raw.disc_shapes(inputs, sizes, found)
    assert list(found) == [2]
    assert raw.disc_call(inputs, sizes, outputs, None) == 0
    assert list(total) == [11.0, 22.0]
    assert raw.disc_call(inputs, (ctypes.c_int64 * 2)(2, 3), outputs, None) == 2


def test_calls_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Sizes that have to be equal are, though the program leaves both open; and dtypes and counts are as compiled."""
    library = compiled(OPEN, tmp_path)
    assert library(torch.ones(0), torch.ones(0))[0].shape == (0,)
    with pytest.raises(InputRefused, match="do not fit"):
        library(torch.ones(2), torch.ones(3))
    with pytest.raises(InputRefused, match="float64"):
        library(torch.ones(2), torch.ones(2, dtype=torch.float64))
    with pytest.raises(RunError, match="2 inputs"):
        library(torch.ones(2))


def test_files_of_two_compilations_are_refused(tmp_path: Path) -> None:
    """A library with another's description would read memory that is not there."""
    compiled(ADDED, tmp_path)
    other = metadata_path(tmp_path / "out.so").read_bytes()
    compiled(OPEN, tmp_path)
    metadata_path(tmp_path / "out.so").write_bytes(other)
    with pytest.raises(CompileError, match="not from one compilation"):
        load(tmp_path / "out.so")
    metadata_path(tmp_path / "out.so").unlink()
    with pytest.raises(CompileError, match="not a library of disc-compile"):
        load(tmp_path / "out.so")


def test_threads_share_large_programs(tmp_path: Path) -> None:
    """A call may use as many threads as were asked for."""
    kind = "tensor<300x400xf32>"
    library = compiled(of(f"%0 = stablehlo.tanh %a : {kind}", kind, kind, "%0"), tmp_path, threads=2)
    value = torch.randn(300, 400)
    torch.testing.assert_close(library(value)[0], torch.tanh(value))
    assert library.signature.threads == 2


# --- The command and its variables ------------------------------------------------------------------------------------


def run(arguments: Sequence[str], expected: int = 0) -> str:
    done = CliRunner().invoke(alone, list(arguments))
    assert done.exit_code == expected, done.output
    return done.output


def test_the_command_line_is_disc_compiler_mains(tmp_path: Path) -> None:
    """Both names give one program, and the flag that BladeDISC's users pass is taken."""
    (tmp_path / "in.mlir").write_text(OPEN)
    arguments = [str(tmp_path / "in.mlir"), str(tmp_path / "out.so"), "--mlir-elide-elementsattrs-if-larger=8"]
    assert "f32[?], f32[?] -> f32[?]" in run(arguments)
    assert load(tmp_path / "out.so")(torch.ones(2), torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert CliRunner().invoke(app, ["compile", *arguments]).exit_code == 0
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["disc-compile"] == "plugin_disc.__main__:compiler"


def test_several_processors_are_refused(tmp_path: Path) -> None:
    """A flag is never ignored where it would change the code."""
    (tmp_path / "in.mlir").write_text(ADDED)
    said = run([str(tmp_path / "in.mlir"), str(tmp_path / "out.so"), "--multi-cc-support"], expected=2)
    assert "this processor only" in said
    assert not (tmp_path / "out.so").exists()


def test_fast_math_shows_in_code_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DISC_CPU_FAST_MATH_LEVEL=4 rounds a product and a difference once; 0, the default, rounds both."""
    kind = "tensor<64xf32>"
    body = f"%0 = stablehlo.multiply %a, %b : {kind}\n%1 = stablehlo.subtract %0, %c : {kind}"
    (tmp_path / "in.mlir").write_text(of(body, f"{kind}; {kind}; {kind}", kind, "%1"))
    torch.manual_seed(0)
    x, y = torch.rand(64) + 1.0, torch.rand(64) + 1.0
    arguments = [str(tmp_path / "in.mlir"), str(tmp_path / "out.so")]
    run(arguments)
    assert load(tmp_path / "out.so")(x, y, x * y)[0].abs().max() == 0.0
    monkeypatch.setenv("DISC_CPU_FAST_MATH_LEVEL", "4")
    fast = tmp_path / "fast.so"
    run([arguments[0], str(fast)])
    assert torch.equal(load(fast)(x, y, x * y)[0], (x.double() * y.double() - (x * y).double()).float())
    assert fast.read_bytes() != (tmp_path / "out.so").read_bytes()
    monkeypatch.setenv("DISC_CPU_FAST_MATH_LEVEL", "7")
    assert "DISC_CPU_FAST_MATH_LEVEL" in run(arguments, expected=2)


def test_amp_shows_in_code_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TAO_MLIR_ENABLE_AMP=true has products take their factors as bfloat16, and sums stay float32."""
    text = of(
        "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x32xf32>, tensor<32x8xf32>) -> tensor<8x8xf32>",
        "tensor<8x32xf32>; tensor<32x8xf32>",
        "tensor<8x8xf32>",
        "%0",
    )
    assert "bf16" not in compile_program_text(text, STRICT, threads=1).text
    assert "bf16" in compile_program_text(text, Settings(enable_amp=True), threads=1).text
    torch.manual_seed(0)
    a, b = torch.randn(8, 32), torch.randn(32, 8)
    (tmp_path / "in.mlir").write_text(text)
    monkeypatch.setenv("TAO_MLIR_ENABLE_AMP", "true")
    run([str(tmp_path / "in.mlir"), str(tmp_path / "out.so")])
    found = load(tmp_path / "out.so")(a, b)[0]
    torch.testing.assert_close(found, a.bfloat16().float() @ b.bfloat16().float(), rtol=1e-5, atol=1e-5)
    assert (found - a @ b).abs().max() > 1e-4


# --- Bad input --------------------------------------------------------------------------------------------------------


BAD = {
    "not MLIR": ("module {\n  func.func @main(", "line 2"),
    "empty": ("", "functions"),
    "unknown operation": (ADDED.replace("add", "frobnicate"), "line 3, column"),
    "wrong types": (ADDED.replace("%b : tensor<3xf32>", "%b : tensor<4xf32>"), "line 3"),
    "sorting": (
        of(
            """%0 = "stablehlo.sort"(%a) <{dimension = 0 : i64, is_stable = true}> ({
            ^bb0(%x: tensor<f32>, %y: tensor<f32>):
              %c = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
              stablehlo.return %c : tensor<i1>
            }) : (tensor<3xf32>) -> tensor<3xf32>""",
            "tensor<3xf32>",
            "tensor<3xf32>",
            "%0",
        ),
        "line 3: stablehlo.sort",
    ),
    "complex": (ADDED.replace("xf32", "xcomplex<f32>"), "complex<f32>"),
    "unequal sizes": (
        of(
            "%0 = stablehlo.concatenate %a, %a, dim = 0 : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>\n"
            "%1 = stablehlo.add %0, %a : tensor<?xf32>",
            "tensor<?xf32>",
            "tensor<?xf32>",
            "%1",
        ),
        "size d0_0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_programs_are_named(name: str, tmp_path: Path) -> None:
    """A failure, the line where there is one, and no file."""
    text, said = BAD[name]
    (tmp_path / "in.mlir").write_text(text)
    output = run([str(tmp_path / "in.mlir"), str(tmp_path / "out.so")], expected=1)
    assert said in output
    assert [path.name for path in tmp_path.iterdir()] == ["in.mlir"]


def test_a_missing_program_or_folder_is_named(tmp_path: Path) -> None:
    """Each by its path."""
    assert "none.mlir cannot be read" in run([str(tmp_path / "none.mlir"), str(tmp_path / "out.so")], expected=2)
    (tmp_path / "in.mlir").write_text(ADDED)
    assert "cannot be written" in run([str(tmp_path / "in.mlir"), str(tmp_path / "no" / "out.so")], expected=1)


@pytest.mark.parametrize(
    ("found", "said"), [(None, "no cc to link with"), ("/bin/false", "/bin/false ended with status 1")]
)
def test_a_missing_or_failing_cc_is_named(
    found: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library cannot be made without one."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: found)
    (tmp_path / "in.mlir").write_text(ADDED)
    with pytest.raises(CompileError, match=said):
        compile_file(tmp_path / "in.mlir", tmp_path / "out.so", STRICT, threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mlir"]


def test_no_room_for_the_object_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written by Python: where LLVM cannot write, it ends the process."""

    def full(path: Path, content: bytes) -> int:
        assert content.startswith(b"\x7fELF")
        raise OSError(28, "No space left on device")

    (tmp_path / "in.mlir").write_text(ADDED)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CompileError, match="No space left"):
        compile_file(tmp_path / "in.mlir", tmp_path / "out.so", STRICT, threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mlir"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half of the pair, nor a draft of one."""
    (tmp_path / "in.mlir").write_text(ADDED)
    calls: list[object] = []

    def full(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)

    owner = os if call == "fsync" else Path
    real = getattr(owner, call)
    monkeypatch.setattr(owner, call, full)
    with pytest.raises(CompileError, match="No space left"):
        compile_file(tmp_path / "in.mlir", tmp_path / "out.so", STRICT, threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mlir"]
