"""Inductor's programs end no process: bad indices and zero divisors are eager's errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import torch
from torch.nn import functional as F
import hub

table, many = torch.randn(1000, 64), torch.randn(4096, 10)
others = torch.randint(1, 9, (4096,))
ids, places, divisors = torch.randint(0, 1000, (64,)), torch.randint(0, 64, (1000, 64)), torch.randint(1, 9, (4096,))

small, few = (torch.randint(1, 9, (4096,), dtype=torch.uint8) for _ in range(2))

def ends(function, good, bad):
    run = torch.compile(function, backend="hub", options={"backends": ["inductor"], "tune": "off", "start": "wait"})
    with torch.no_grad():
        torch.testing.assert_close(run(*good), function(*good))
        assert hub.plans(run)[-1].backends == ("inductor",), hub.plans(run)[-1]
        try:
            function(*bad)
        except (RuntimeError, IndexError) as error:
            wanted = error
        try:
            run(*bad)
        except (RuntimeError, IndexError) as error:
            assert str(error) == str(wanted)
        else:
            raise AssertionError("no error")
        torch.testing.assert_close(run(*good), function(*good))
        assert hub.plans(run)[-1].backends == ("inductor",)

def beyond(values, size):
    bad = values.clone()
    bad.view(-1)[7] = size
    return bad
"""
CASES = {
    "embedding": "ends(lambda i, w: F.embedding(i, w) * 2, (ids, table), (beyond(ids, 1000), table))",
    "embedding, negative": "ends(lambda i, w: F.embedding(i, w) * 2, (ids, table), (beyond(ids, -1), table))",
    "index": "ends(lambda x, i: x[i] * 2, (table, ids), (table, beyond(ids, 1000)))",
    "index, second dim": "ends(lambda x, i: x[:, i % 64] + x[:, i], (table, ids % 64), (table, beyond(ids % 64, 64)))",
    "gather": "ends(lambda x, i: x.gather(1, i) * 2, (table, places), (table, beyond(places, 64)))",
    "select": "ends(lambda x, i: x.index_select(0, i) * 2, (table, ids), (table, beyond(ids, 1000)))",
    "put": "ends(lambda x, i: (x * 2).index_put((i,), x[0]), (table, ids), (table, beyond(ids, -1001)))",
    "scatter": "ends(lambda x, i: (x * 2).scatter_add(1, i, x), (table, places), (table, beyond(places, 64)))",
    "labels": "ends(lambda x, i: F.cross_entropy(x, i), (many, divisors), (many, beyond(divisors, 10)))",
    "divide": "ends(lambda a, b: torch.div(a, b, rounding_mode='trunc'), (divisors, others), (divisors, others * 0))",
    "bytes": "ends(lambda a, b: torch.div(a, b, rounding_mode='trunc'), (small, few), (small, beyond(few, 0)))",
    "along all": "ends(lambda x, i: torch.take_along_dim(x, i) * 2, (table, ids), (table, beyond(ids, 64000)))",
    "remainder": "ends(lambda a, b: a % b + 1, (divisors, others), (divisors, beyond(others, 0)))",
}
GOOD = """
run = torch.compile(lambda x, i: x[i] + x[:, :1][-1], backend="hub", options={"backends": ["inductor"], "tune": "off"})
torch.testing.assert_close(run(table, -1 - ids), table[-1 - ids] + table[:, :1][-1])
ignored = torch.where(divisors == 3, -100, divisors)
loss = torch.compile(F.cross_entropy, backend="hub", options={"backends": ["inductor"], "tune": "off"})
with torch.no_grad():
    torch.testing.assert_close(loss(many, ignored), F.cross_entropy(many, ignored))
assert {plan.backends for call in (run, loss) for plan in hub.plans(call)} == {("inductor",)}
"""


@pytest.mark.parametrize(
    "code", [pytest.param(code, id=name) for name, code in {**CASES, "what eager takes": GOOD}.items()]
)
def test_the_call_raises_what_eager_raises(code: str) -> None:
    """In a process of its own, which would end by SIGABRT or SIGFPE; the backend stays."""
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
