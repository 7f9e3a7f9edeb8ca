"""Saves a compiled program in a folder and loads it again without a C++ compiler.

The folder holds `program.py` (Inductor's Python around its C++), `program.so` (that C++ as a shared library), `program.cpp`
(its text), `constants.pt` (constants that are not simply weights) and `manifest.json`. Weights are not written: `load`
receives a cluster that has them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import operator
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import sympy
import torch

from hub.plugin import CompileError
from plugin_inductor.compiler import GETITEM, Program, Recipe, copying
from plugin_inductor.symbols import Binding, SizeGuards
from plugin_inductor.torch_private import CppWrapperCodeCache, OrderedSet, align_inputs_from_check_idxs

_PACKERS = ("mkldnn", "mkl", "aten")
"""Namespaces of operators that a manifest may name."""

_TEXTS = ("cpp_wrapper_src", "kernel_src")
_ENTRY = "inductor_entry"
"""Inductor's name for the library function that runs the whole program."""
_LOADED = "hub_entry"
"""Global variable through which a stored program calls that function."""


def save(program: Program, folder: Path) -> None:
    """Write the folder. Raise CompileError if the program or a constant cannot be written."""
    if away := [device for device in program.devices if device != "cpu"]:
        raise CompileError(
            f"programs for {', '.join(away)} are not saved: Triton's kernels are compiled where they run",
            backend="inductor",
            hint="nothing is wrong with the program; each process compiles it",
        )
    if not program.source:
        raise CompileError("Inductor made no program that could be saved", backend="inductor")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_library(program), folder / "program.so")
    for name, text in zip(("program.py", "program.cpp"), _parted(program.source), strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    tensors: list[torch.Tensor] = []
    constants = {name: _describe(value, program, tensors) for name, value in program.constants.items()}
    torch.save(tensors, folder / "constants.pt")
    manifest = {
        "constants": constants,
        "bindings": [asdict(binding) for binding in program.guards.bindings],
        "conditions": program.guards.conditions,
        "strides": program.strides,
        "aligned_inputs": program.aligned_inputs,
        "constant_outputs": program.constant_outputs,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def load(folder: Path, weights: Sequence[torch.Tensor]) -> Program:
    """Restore a program. `weights` are the weights it was lowered with, in the same order."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    tensors = torch.load(folder / "constants.pt", weights_only=True)
    weights = tuple(weights)
    constants = {name: _restore(value, weights, tensors) for name, value in manifest["constants"].items()}
    source = (folder / "program.py").read_text(encoding="utf-8")
    module: Any = ModuleType("hub_inductor_program")
    module.__dict__.update({_LOADED: _loaded(folder / "program.so"), "__file__": str(folder / "program.py")})
    exec(compile(source, str(folder / "program.py"), "exec"), module.__dict__)
    module.__dict__.update(constants)  # last, because the program itself sets them to None
    aligned, constant_outputs = tuple(manifest["aligned_inputs"]), tuple(manifest["constant_outputs"])
    call = align_inputs_from_check_idxs(module.call, aligned, OrderedSet()) if aligned else module.call
    return Program(
        call=copying(call, constant_outputs),
        guards=SizeGuards(tuple(Binding(**binding) for binding in manifest["bindings"]), tuple(manifest["conditions"])),
        strides=tuple(map(tuple, manifest["strides"])),
        constant_outputs=constant_outputs,
        owner=module,
        source=source,
        namespace=module.__dict__,
        weights=weights,
        aligned_inputs=aligned,
    )


# --- The library ------------------------------------------------------------------------------------------------------


def _library(program: Program) -> Path:
    """Return the file of the library that Inductor loaded. Raise CompileError if there is none."""
    path = getattr(getattr(program.namespace.get(_ENTRY), "__self__", None), "__file__", None)
    if path is None:
        raise CompileError("the program has no shared library to save", backend="inductor")
    return Path(path)


def _parted(source: str) -> tuple[str, str]:
    """Return Inductor's Python without its C++, which refers to a loaded library, and the C++."""
    lines, texts = source.splitlines(), list[str]()
    for node in reversed(ast.parse(source).body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name in _TEXTS:
                lines[node.lineno - 1 : node.end_lineno] = []
                texts.append(text)
            case ast.Assign(targets=[ast.Name(id=name)]) if name == _ENTRY:
                lines[node.lineno - 1 : node.end_lineno] = [f"{_ENTRY} = {_LOADED}"]
            case _:
                pass
    return "\n".join([*lines, ""]), "\n".join(reversed(texts))


def _loaded(path: Path) -> Any:
    # Equal libraries share one module, so that loading a cluster twice maps its code once.
    key = f"hub_{hashlib.sha256(path.read_bytes()).hexdigest()}"
    module = CppWrapperCodeCache._load_library_inner(str(path), key)
    return getattr(module, CppWrapperCodeCache.entry_function)


# --- Constants --------------------------------------------------------------------------------------------------------


def _describe(value: Any, program: Program, tensors: list[torch.Tensor]) -> Any:
    """Return a constant as JSON: a view of a weight, a stored tensor, or the recipe of a packed tensor."""
    describe = partial(_describe, program=program, tensors=tensors)
    if isinstance(value, Recipe):
        return {"call": value.operator, "arguments": [describe(argument) for argument in value.arguments]}
    if isinstance(value, (tuple, list)):
        return {"list": list(map(describe, value))}  # pyright: ignore[reportUnknownArgumentType]
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    if isinstance(value, sympy.Integer):  # a hint of a symbolic size
        return {"plain": int(value)}
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"a constant of type {type(value).__name__} cannot be saved", backend="inductor")
    if value.layout is not torch.strided:
        return _describe_packed(value, program, tensors)
    return _describe_view(value, program.weights) or _describe_stored(value, tensors)


def _describe_packed(value: torch.Tensor, program: Program, tensors: list[torch.Tensor]) -> Any:
    recipe = program.recipes.get(id(value))
    if recipe is None:
        raise CompileError(f"how a {value.layout} constant was made is not known", backend="inductor")
    return _describe(recipe, program, tensors)


def _describe_view(value: torch.Tensor, weights: Sequence[torch.Tensor]) -> Any:
    for index, weight in enumerate(weights):
        if _lies_in(value, weight):
            # The offset is relative to the weight, because the loading process may hold the weight in another storage.
            offset = value.storage_offset() - weight.storage_offset()
            return {"weight": index, "size": list(value.shape), "stride": list(value.stride()), "offset": offset}
    return None


def _lies_in(value: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a tensor reads only a weight's own memory. Sharing a storage is not enough: many tensors may."""
    if value.dtype != weight.dtype or not value.numel() or not weight.numel():
        return False
    if value.untyped_storage().data_ptr() != weight.untyped_storage().data_ptr():
        return False
    (first, last), (low, high) = _extent(value), _extent(weight)
    return low <= first and last <= high


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset())
    return first, first + reach


def _describe_stored(value: torch.Tensor, tensors: list[torch.Tensor]) -> Any:
    tensors.append(value.detach())
    return {"stored": len(tensors) - 1}


def _restore(value: Mapping[str, Any], weights: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
    restore = partial(_restore, weights=weights, tensors=tensors)
    match value:
        case {"plain": plain}:
            return plain
        case {"list": items}:
            return [restore(item) for item in items]
        case {"stored": int(index)}:
            return tensors[index]
        case {"weight": int(index), "size": size, "stride": stride, "offset": offset}:
            weight = weights[index]
            return weight.as_strided(size, stride, weight.storage_offset() + offset)
        case {"call": name, "arguments": arguments}:
            return _operator(name)(*map(restore, arguments))
        case _:
            raise CompileError(f"a manifest has no constants of the form {value!r}", backend="inductor")


def _operator(text: str) -> Any:
    if text == GETITEM:
        return operator.getitem
    namespace, name, *overload = text.split(".")
    if namespace not in _PACKERS:
        raise CompileError(f"a manifest may not call {text}", backend="inductor")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload[0] if overload else "default")
