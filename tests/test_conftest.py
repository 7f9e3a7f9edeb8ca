"""What all tests rely on."""

from __future__ import annotations

import torch

DRAWN = torch.rand(4)


def test_what_a_module_draws_when_it_is_imported_is_seeded() -> None:
    """The values of examples do not depend on which modules were collected before."""
    assert torch.equal(DRAWN, torch.rand(4, generator=torch.Generator().manual_seed(0)))
