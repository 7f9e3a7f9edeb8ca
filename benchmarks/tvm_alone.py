"""TVM alone, without the hub: a model through its own importer, default pipeline and build, for this CPU.

Prints the median seconds of a call as JSON. Run with `python -m benchmarks.tvm_alone MODEL`, as `benchmarks/tuned.py` does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from plugin_tvm.target import host_target

from hub.bench.models import load_model

CALLS = 7


def main() -> None:
    """Time one model with PyTorch's number of threads, to which `TVM_NUM_THREADS` must also be set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    loaded = load_model(parser.parse_args().model)
    print(json.dumps({"call_s": seconds(loaded.module.eval(), loaded.inputs)}))


def seconds(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """Return the median seconds of a call. Raise AssertionError if TVM's result differs from eager's."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    library, building = cast("Any", tvm), cast("Any", relax)
    with torch.no_grad():
        wanted = _first(module(*inputs))
        program: Any = torch.export.export(module, tuple(inputs))
    imported = building.get_pipeline("zero")(from_exported_program(program, keep_params_as_input=False))
    machine = building.VirtualMachine(building.build(imported, host_target(torch.get_num_threads())), library.cpu())
    given = [library.runtime.tensor(value.numpy()) for value in inputs]
    found = torch.from_numpy(_first(machine["main"](*given)).numpy())  # pyright: ignore[reportUnknownMemberType] - torch's
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    return statistics.median(_timed(lambda: machine["main"](*given)) for _ in range(CALLS))


def _first(result: Any) -> Any:
    while not hasattr(result, "dtype"):  # transformers return a mapping, TVM an array of arrays
        result = next(iter(result.values())) if hasattr(result, "values") else result[0]
    return result


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
