"""What one process has verified, the next knows again by its bits, and looks at closely where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hub.errors import AccuracyError, ContractError
from hub.plugin.graph import Cluster
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import call, pos
from hub.verification.fingerprint import digest_of_outputs
from hub.verification.verify import recognized, verify

Case = tuple[Cluster, tuple[Any, ...]]
Fault = Callable[[list[torch.Tensor], Sequence[Any]], Any]
Faulty = Callable[[Cluster, Fault], Callable[..., list[torch.Tensor]]]


def _nothing(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    pass


def _one_bit(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    outputs[0].view(torch.int32).view(-1)[5] ^= 1


def _off(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    outputs[0].view(-1)[3] += 1e-3


def _input(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    inputs[0].view(-1)[0] = 3.0


def test_the_same_bits_are_recognized(softmax: Case, faulty: Faulty) -> None:
    """Equal outputs need no eager run, and keep the error that was found where it was run."""
    cluster, inputs = softmax
    executable = faulty(cluster, _nothing)
    fingerprint = verify(cluster, "backend", executable, inputs, None).fingerprint
    again = recognized(cluster, "backend", executable, inputs, fingerprint)
    assert again is not None
    assert again.reference is None
    assert again.error == fingerprint.error
    assert torch.equal(again.outputs[0], cluster.module(*inputs)[0])


def test_another_bit_is_not_recognized(softmax: Case, faulty: Faulty) -> None:
    """One bit of one element is enough for a full comparison."""
    cluster, inputs = softmax
    fingerprint = verify(cluster, "backend", faulty(cluster, _nothing), inputs, None).fingerprint
    assert recognized(cluster, "backend", faulty(cluster, _one_bit), inputs, fingerprint) is None


def test_a_written_input_is_noticed(softmax: Case, faulty: Faulty) -> None:
    """Right outputs do not excuse a write."""
    cluster, inputs = softmax
    fingerprint = verify(cluster, "backend", faulty(cluster, _nothing), inputs, None).fingerprint
    with pytest.raises(ContractError, match="wrote to its input"):
        recognized(cluster, "backend", faulty(cluster, _input), inputs, fingerprint)


def test_an_output_in_an_inputs_memory_is_noticed() -> None:
    """Equal values may lie in memory that belongs to another object."""
    cluster, inputs = case_cluster("aten.relu.default", call(pos(4, 4)))
    fingerprint = verify(cluster, "backend", cluster.module, inputs, None).fingerprint
    with pytest.raises(ContractError, match="shares memory with an input"):
        recognized(cluster, "backend", lambda x: [x], inputs, fingerprint)


def test_a_reference_that_is_there_is_used(softmax: Case, faulty: Faulty) -> None:
    """Eager is not run again, and its numbers count."""
    cluster, inputs = softmax
    reference = verify(cluster, "backend", faulty(cluster, _nothing), inputs, None).reference
    assert reference is not None
    again = verify(cluster, "backend", faulty(cluster, _nothing), inputs, None, reference=reference)
    assert again.reference is reference
    with pytest.raises(AccuracyError):
        verify(cluster, "backend", faulty(cluster, _off), inputs, None, reference=reference)


@pytest.mark.parametrize(
    "other", [torch.ones(3, 2), torch.ones(6), torch.ones(2, 3, dtype=torch.float64), -torch.ones(2, 3)], ids=str
)
def test_form_is_part_of_the_digest(other: torch.Tensor) -> None:
    """Shape, dtype and values tell outputs apart; strides do not."""
    digest = digest_of_outputs([torch.ones(2, 3)])
    assert digest_of_outputs([other]) != digest
    assert digest_of_outputs([torch.ones(3, 2).T]) == digest
    assert digest_of_outputs([torch.ones(2, 3), other]) != digest_of_outputs([torch.ones(2, 3)])
