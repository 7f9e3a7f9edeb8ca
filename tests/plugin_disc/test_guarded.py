"""Under guarded memory, a kernel that reads or writes one element too far is found."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from hub.errors import OptionError
from plugin_disc.guarded import END, PAGE, START, VARIABLE, Guard, guard

_PROGRAM = """
import torch
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from hub.toolkit.rules import moves
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

right = moves.sliced
{fault}
def program(x, y):
    return torch.cat([x[1:9] * 2, y], 0)

inputs = torch.ones(10, 64), torch.ones(4, 64)
cluster, given = whole_cluster(Wrapped(program), inputs)
(found,) = create().compile(cluster, CompileSettings(threads=1))(*given)
assert torch.equal(found, program(*inputs)), found
"""
FAULTS = {
    "none": "",
    "a read behind": "moves.sliced = lambda x, dim, start, *rest: right(x, dim, start + 2, *rest)",
    "a read in front": "moves.sliced = lambda x, dim, start, *rest: right(x, dim, start - 2, *rest)",
}


def status(fault: str, side: str) -> tuple[int, str]:
    """Return the exit status and the output of a process whose kernel has a fault."""
    text = textwrap.dedent(_PROGRAM).format(fault=FAULTS[fault])
    variables = {**os.environ, VARIABLE: side, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("fault", "side"), [("a read behind", END), ("a read in front", START)])
def test_a_read_outside_ends_the_process(fault: str, side: str) -> None:
    """One row too far on the guarded side is a segmentation fault."""
    found, text = status(fault, side)
    assert found == -signal.SIGSEGV, text


@pytest.mark.parametrize("side", [END, START])
def test_right_kernels_pass(side: str) -> None:
    """A kernel that stays within its tensors gives what it gives elsewhere."""
    found, text = status("none", side)
    assert found == 0, text


@pytest.mark.parametrize("side", [END, START])
def test_writes_next_to_a_tensor_are_seen(side: str) -> None:
    """The bytes around a tensor in its pages keep their pattern, or the call fails."""
    guard = Guard(side)

    def run(value: torch.Tensor) -> torch.Tensor:
        at = value.data_ptr() + (value.nbytes if side == START else -1)
        torch.frombuffer((ctypes.c_byte * 1).from_address(at), dtype=torch.uint8).fill_(0)
        return value

    with pytest.raises(Exception, match="memory next to a tensor was written"):
        guard.around(run)(torch.ones(3))


@pytest.mark.parametrize("side", [END, START])
def test_tensors_border_a_page(side: str) -> None:
    """Copies have the values and strides of what they stand for, unused elements hold NaN, and one end is a page's."""
    guard = Guard(side)
    value = torch.arange(40.0).reshape(4, 10)[:, 2:7]
    copy = guard.placed(value)
    assert torch.equal(copy, value)
    assert copy.stride() == value.stride()
    reach = 3 * 10 + 5
    assert copy.as_strided((reach,), (1,)).isnan().sum() == reach - 20
    border = copy.data_ptr() + (reach * 4 if side == END else 0)
    assert border % PAGE == 0
    assert guard.placed(torch.ones(3, 1).expand(3, 4)).stride() == (1, 0)
    assert guard.fresh((5,), (1,), torch.float32).isnan().all()


def test_another_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two that there are."""
    monkeypatch.setenv(VARIABLE, "middle")
    with pytest.raises(OptionError, match=f"{VARIABLE} is 'middle'(.|\n)*set it to {END} or {START}"):
        guard()
