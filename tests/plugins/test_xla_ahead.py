"""XLA's programs for a GPU and a TPU, compiled on machines that have neither, but XLA's client for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hub.bench.zoo import build
from hub.plugin.graph import Cluster
from hub.testing.operators import SAMPLES, case_cluster
from hub.testing.single import whole_cluster
from hub.toolkit.arguments import captured_sizes

pytest.importorskip("jaxlib")
pytest.importorskip("torch_mlir")

from plugin_xla.lower import lower
from plugin_xla.settings import library
from plugin_xla.support import OPERATORS

MODELS = ("mlp", "bert", "gpt2", "llama", "vit", "resnet18", "mobilenetv2", "convnext", "lstm")
FOREIGN = re.compile(r'^\s*(?:%[\w:]+ = )?"?((?!stablehlo\.|chlo\.|func\.func)[a-z_]+\.[a-z_]+)', re.MULTILINE)
"""Operations of dialects that a client which comes as a library does not read."""
INSTALL = {"cuda": "pip install jax-cuda13-pjrt", "tpu": "pip install libtpu"}
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000 device_memory_size: 151397597184 device_address_bits: 64
  cuda_compute_capability { major: 9 } device_vendor: "NVIDIA Corporation" name: "NVIDIA H200"
  platform_version: "Compute Capability 9.0" driver_version: "13.0.0" runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}
platform_name: "CUDA" device_description_str: "NVIDIA H200" dnn_version_info { major: 9 minor: 10 patch: 0 }
"""
"""The GPU as XLA describes it to itself (GpuTargetConfigProto): openxla/xla, target_config/specs/h200.txtpb."""


def model(name: str) -> Cluster:
    """Return a small model of the zoo as one cluster."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)
    with torch._dynamo.config.patch(allow_rnn=True):
        return whole_cluster(module.eval(), inputs)[0]


def topology(target: str, library: Any) -> Any:
    """Return XLA's description of a processor that this machine lacks."""
    from jaxlib import xla_client

    if target == "cuda":
        return xla_client.make_c_api_device_topology(library, target_config=H200, topology="1x1x1")
    return xla_client.make_tfrt_tpu_c_api_device_topology("v5e:1x1x1", chips_per_host_bounds=[1, 1, 1])


@pytest.fixture(scope="module", params=["cuda", "tpu"])
def ahead(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """Yield a target, and XLA's compiler for it: a function from the text of a program to its executable."""
    target: str = request.param
    if (found := library(target)) is None:
        pytest.skip(f"XLA's client for {target} is not installed: {INSTALL[target]}")
    import jax  # noqa: F401 - as in plugin_xla.client
    from jax.interpreters.mlir import make_ir_context
    from jaxlib import _jax, xla_client
    from jaxlib.mlir import ir

    loaded = xla_client.load_pjrt_plugin_dynamically(target, str(found))
    xla_client.initialize_pjrt_plugin(target)
    options = xla_client.CompileOptions()
    if target == "cuda":
        options.env_option_overrides = [("xla_gpu_autotune_level", 0)]  # which would run on a GPU

    def compiled(text: str) -> Any:
        with make_ir_context():
            return device.client.compile(ir.Module.parse(text), _jax.DeviceList((device,)), options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")  # else libtpu looks for Google's cloud around it
        (device,) = topology(target, loaded)._make_compile_only_devices()
        yield target, compiled


@pytest.mark.parametrize("name", MODELS)
def test_models_compile_for_what_is_not_here(ahead: tuple[str, Any], name: str) -> None:
    """XLA reads all of a model's program and makes code for an H200 or a TPU of it, with products in full precision."""
    target, compiled = ahead
    cluster = model(name)
    found = compiled(lower(cluster, captured_sizes(cluster), target).text)
    optimised = "\n".join(module.to_string() for module in found.hlo_modules())
    assert found.serialize()
    products = [line for line in optimised.splitlines() if re.search(r"= \S+ (dot|convolution)\(", line)]
    assert "operand_precision={highest,highest}" in optimised
    assert [line for line in products if "highest" not in line] == []


def test_programs_hold_stablehlo_alone() -> None:
    """A client that comes as a library gets programs in a portable form, which other dialects have not."""
    for name in OPERATORS.rows:
        for sample in SAMPLES.get(name, ())[:1]:
            cluster, _ = case_cluster(name, sample)
            if all(OPERATORS.supports(node).accepted for node in cluster.nodes if "getitem" not in str(node.target)):
                text = lower(cluster, captured_sizes(cluster), "cuda").text
                assert FOREIGN.findall(text) == [], name
