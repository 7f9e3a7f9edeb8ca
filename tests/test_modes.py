"""PyTorch's settings of the user's process: workers adopt them, and they are in every key."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn

from hub.cache.measurements import modes_digest
from hub.partition.group import Group
from hub.plugin.backend import CompileSettings
from hub.process.modes import Modes, modes, set_modes
from hub.process.threads import tell, untell
from hub.testing.single import capture
from hub.workers.limits import Limits
from hub.workers.session import Session
from hub.workers.transfer import Sample

PLUGIN = """
from hub import Backend, BackendInfo, Support, hookimpl
from hub.process.modes import modes

@hookimpl
def hub_backends():
    return [BackendInfo(name="telling", factory="hub_telling:create", summary="")]

def create():
    return Telling()

class Telling(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def explain(self, cluster, settings, inputs):
        return modes()

    def compile(self, cluster, settings):
        raise NotImplementedError
"""

products, cuda, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn


def _set(place: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(place, name, value)


CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "the default dtype": ("default_dtype", lambda: torch.set_default_dtype(torch.float64)),
    "determinism": ("deterministic", lambda: torch.use_deterministic_algorithms(True)),
    "determinism as far as it goes": (
        "deterministic",
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "the precision of products": ("matmul_precision", lambda: torch.set_float32_matmul_precision("medium")),
    "the precision of products on CUDA": ("float32_precision", _set(products, "fp32_precision", "tf32")),
    "the precision of products on CPUs": ("float32_precision", _set(mkldnn.matmul, "fp32_precision", "bf16")),
    "the precision of everything": ("float32_precision", _set(torch.backends, "fp32_precision", "ieee")),
    "the precision of convolutions": ("float32_precision", _set(cudnn.conv, "fp32_precision", "ieee")),
    "cuDNN's precision": ("float32_precision", _set(cudnn, "allow_tf32", False)),
    "sums of float16": ("reduced_sums", _set(products, "allow_fp16_reduced_precision_reduction", False)),
    "sums of bfloat16": ("reduced_sums", _set(products, "allow_bf16_reduced_precision_reduction", False)),
    "split sums": ("reduced_sums", _set(products, "allow_bf16_reduced_precision_reduction", (False, False))),
    "sums in float16": ("reduced_sums", _set(products, "allow_fp16_accumulation", True)),
    "cuDNN": ("cudnn", _set(cudnn, "enabled", False)),
    "cuDNN's trials": ("cudnn", _set(cudnn, "benchmark", True)),
    "cuDNN's determinism": ("cudnn", _set(cudnn, "deterministic", True)),
    "oneDNN": ("mkldnn", _set(mkldnn, "enabled", False)),
    "oneDNN's determinism": ("mkldnn", _set(mkldnn, "deterministic", True)),
    "flash attention": ("attention", lambda: cuda.enable_flash_sdp(False)),
    "attention in little memory": ("attention", lambda: cuda.enable_mem_efficient_sdp(False)),
    "attention in its plain form": ("attention", lambda: cuda.enable_math_sdp(False)),
    "attention of cuDNN": ("attention", lambda: cuda.enable_cudnn_sdp(False)),
    "the order of attention": ("attention_order", lambda: torch._C._set_sdp_priority_order([2, 1, 0, 3, 4])),
    "attention's sums": ("attention_sums", lambda: cuda.allow_fp16_bf16_reduction_math_sdp(True)),
    "MKL's threads": ("is_mkl_told", tell),
}
"""Settings by name, each with its part of a key and the user's call to change it."""


@pytest.fixture(autouse=True)
def before() -> Iterator[Modes]:
    """Yield the current settings, and restore them; PyTorch's own tests forbid changes after they are imported."""
    untell()
    found = modes()
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield found
    set_modes(found)


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_in_the_key_and_can_be_sent(name: str, before: Modes) -> None:
    """A user's change changes its own part of the digest; another process can have the same settings, and go back."""
    part, change = CHANGES[name]
    change()
    changed = modes()
    assert changed.parts[part] != before.parts[part]
    assert modes_digest(changed) != modes_digest(before)
    set_modes(before)
    assert modes().parts == before.parts
    set_modes(pickle.loads(pickle.dumps(changed)))
    assert modes().parts == changed.parts


def test_every_setting_is_changed_here(before: Modes) -> None:
    """An added setting needs a change above."""
    assert {part for part, _ in CHANGES.values()} == set(before.parts)


def test_the_older_interface_can_be_read_as_before(before: Modes) -> None:
    """Setting the newer one from it leaves them in agreement, for libraries that read the older one."""
    torch.set_float32_matmul_precision("high")
    wanted = modes()
    set_modes(before)
    set_modes(wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (products.allow_tf32, cudnn.allow_tf32) == (True, True)
    assert torch.get_float32_matmul_precision() == "high"


def test_settings_that_nobody_may_change_are_put_back(before: Modes, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are restored like a plugin's traces, if the user has called `torch.backends.disable_global_flags()`."""
    cudnn.benchmark = not before.cudnn[1]
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
    assert torch.backends.flags_frozen()
    set_modes(before)
    assert modes() == before
    assert torch.backends.flags_frozen()


def told(names: tuple[str, ...], sample: Sample) -> Modes:
    """Return the settings that a plugin finds in its worker process."""
    limits = Limits(compile_s=60.0, memory_bytes=4_000_000_000, output_bytes=1_000_000)
    with Session(sample, 1, limits) as session:
        return cast("Modes", session.explain(Group("telling", names), "k0", CompileSettings(threads=1)).answer)


def test_a_worker_has_the_users_settings(install_plugin: Callable[..., None], before: Modes) -> None:
    """All of them are adopted, and the next session's, if the same worker serves it."""
    install_plugin("telling", PLUGIN)
    captured = capture(nn.ReLU(), (torch.ones(2, 8),))
    sample = Sample(captured.graph, captured.inputs)
    names = tuple(node.name for node in captured.graph.nodes)
    for _, change in CHANGES.values():
        change()
    changed = modes()
    assert all(value != before.parts[part] for part, value in changed.parts.items())
    assert told(names, sample).parts == changed.parts
    set_modes(before)
    assert told(names, sample).parts == before.parts
