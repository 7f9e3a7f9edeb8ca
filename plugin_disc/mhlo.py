"""A printer of clusters as programs for BladeDISC's compiler: torch-mlir makes StableHLO, which is written as MHLO.

The text is in MLIR's generic forms, with attributes as MHLO had them while BladeDISC was built (lists of numbers are dense
tensors): BladeDISC's parsers are older than the custom forms and properties of today's StableHLO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hub.plugin import Cluster, CompileError
from hub.toolkit.arguments import decomposed, with_weights
from hub.toolkit.mlir_text import RESOURCE, blobs

from .bindings import bindings
from .compiler import NAME

TO_BACKEND = "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline)"
TO_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_LISTS = {"array<i64": "i64", "array<i1": "i1"}


def program(cluster: Cluster) -> str:
    """Return the text of a cluster: one function `main` of its inputs and then its weights.

    Raise CompileError if torch-mlir cannot make StableHLO of it.
    """
    manager = bindings("passmanager").PassManager
    try:
        with bindings("ir").Context() as context:
            module = imported(cluster, context)
            for passes in (TO_BACKEND, TO_STABLEHLO):
                manager.parse(passes).run(module.operation)
            return _Printer(blobs(str(module))).program(module)
    except CompileError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:2000]}"
        raise CompileError(
            f"torch-mlir cannot make StableHLO of it: {reason}", backend=NAME, cluster=cluster.name
        ) from error


def imported(cluster: Cluster, context: Any) -> Any:
    """Return a cluster in the torch dialect, in an entered context: inputs, then weights. torch-mlir's exceptions pass."""
    table = bindings("extras.fx_decomp_util").get_decomposition_table()
    context.enable_multithreading(False)
    bindings("dialects.torch").register_dialect(context)
    importer = bindings("extras.fx_importer").FxImporter(context=context)
    importer.import_graph_module(decomposed(with_weights(cluster).module, table), func_name="main")
    return importer.module


class _Printer:
    """A printer of one function, with the names of its values."""

    def __init__(self, blobs: Mapping[str, str]) -> None:
        self._blobs = blobs
        self._names: dict[Any, str] = {}

    def program(self, module: Any) -> str:
        """Return the text of a module that holds one function."""
        (function,) = module.body.operations
        (block,) = function.regions[0].blocks
        declared, unpacked = self._arguments(block.arguments)
        operations = list(block.operations)
        results = [value.type for value in operations[-1].operands]
        lines = [f"func.func @main({', '.join(declared)}) -> ({_types(results)}) attributes {{"]
        lines.append(f"    tf.entry_function = {_entry(len(declared), len(results))}}} {{")
        lines += unpacked
        for operation in operations:
            lines += self._operation(operation.operation)
        return "\n".join(("module {", *lines, "}", "}", ""))

    def _arguments(self, arguments: Sequence[Any]) -> tuple[list[str], list[str]]:
        """Return the declared arguments, and the lines that extract plain numbers from the tensors that hold them."""
        declared: list[str] = []
        unpacked: list[str] = []
        for argument in arguments:
            name, kind = f"%arg{len(declared)}", str(argument.type)
            self._names[argument] = name
            if not kind.startswith("tensor<"):  # every input of a BladeDISC program is a tensor
                self._names[argument] = f"{name}_number"
                unpacked.append(f'{name}_number = "tensor.extract"({name}) : (tensor<{kind}>) -> {kind}')
                kind = f"tensor<{kind}>"
            declared.append(f"{name}: {kind}")
        return declared, unpacked

    def _operation(self, operation: Any) -> list[str]:
        for result in operation.results:
            self._names[result] = f"%{len(self._names)}"
        results = ", ".join(self._names[result] for result in operation.results)
        operands = ", ".join(self._names[operand] for operand in operation.operands)
        kinds = (
            f"({_types([value.type for value in operation.operands])})"
            f" -> ({_types([value.type for value in operation.results])})"
        )
        head = f'{results}{" = " if results else ""}"{_renamed(operation.name)}"({operands})'
        tail = f"{self._attributes(operation)} : {kinds}"
        regions = [self._region(region) for region in operation.regions]
        if not regions:
            return [head + tail]
        lines = [f"{head} ({{"]
        for place, region in enumerate(regions):
            lines += region if not place else ["}, {", *region]
        return [*lines, f"}}){tail}"]

    def _region(self, region: Any) -> list[str]:
        lines: list[str] = []
        for place, block in enumerate(region.blocks):
            for argument in block.arguments:
                self._names[argument] = f"%{len(self._names)}"
            declared = ", ".join(f"{self._names[argument]}: {argument.type}" for argument in block.arguments)
            lines.append(f"^bb{place}({declared}):")
            for operation in block.operations:
                lines += self._operation(operation.operation)
        return lines

    def _attributes(self, operation: Any) -> str:
        is_hlo = operation.name.startswith(("stablehlo.", "chlo."))
        found = [f"{name} = {self._attribute(str(operation.attributes[name]), is_hlo)}" for name in operation.attributes]
        return f" {{{', '.join(found)}}}" if found else ""

    def _attribute(self, text: str, is_hlo: bool) -> str:
        if (resource := RESOURCE.match(text)) is not None:
            if text.endswith("xi1>"):
                raise CompileError("a constant of bools is too large to be written as MHLO", backend=NAME)
            return f'dense<"0x{self._blobs[resource[1]]}">{text[resource.end() :]}'
        kind = _LISTS.get(re.split("[:>]", text, maxsplit=1)[0]) if is_hlo else None
        if kind is None:
            return text.replace("#stablehlo", "#mhlo")
        numbers = text.partition(":")[2].rstrip(">").strip()
        count = len(numbers.split(",")) if numbers else 0
        return f"dense<{f'[{numbers}]' if numbers else ''}> : tensor<{count}x{kind}>"


def _renamed(name: str) -> str:
    return f"mhlo.{name.removeprefix('stablehlo.')}" if name.startswith("stablehlo.") else name


def _types(kinds: Sequence[Any]) -> str:
    return ", ".join(map(str, kinds))


def _entry(inputs: int, outputs: int) -> str:
    """Return the attribute that marks the entry for BladeDISC and names the device of its values."""
    fields = {
        "inputs": ",".join(f"arg{place}" for place in range(inputs)),
        "outputs": ",".join(f"out{place}" for place in range(outputs)),
        "input_placements": ",".join(["cpu"] * inputs),
        "output_placements": ",".join(["cpu"] * outputs),
    }
    return f"{{{', '.join(f'{name} = {chr(34)}{value}{chr(34)}' for name, value in fields.items())}}}"
