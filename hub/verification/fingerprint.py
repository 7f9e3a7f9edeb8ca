"""Fingerprints of results, bit for bit: on inputs verified by one process, the next process needs no eager run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hub.plugin.canonical import as_bytes
from hub.plugin.table import dtype_name


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Results of a trusted executable on the real inputs."""

    digest: str
    """Digest of the outputs' dtypes, shapes and elements."""
    error: float
    """Largest max|error| / max|reference| over floating outputs."""
    strides: tuple[tuple[int, ...], ...]
    """Strides of eager's outputs, in elements."""


def digest_of_outputs(outputs: Sequence[torch.Tensor]) -> str:
    """Return the digest of outputs, regardless of their strides."""
    digest = hashlib.blake2b(digest_size=32)
    for output in outputs:
        plain = output.detach().resolve_conj().resolve_neg().cpu()
        digest.update(f"{dtype_name(output.dtype)} {tuple(output.shape)} {output.device.type};".encode())
        digest.update(as_bytes(plain).numpy().data)
    return digest.hexdigest()
