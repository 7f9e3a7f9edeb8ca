"""A compiled cluster on the board or on the software device, with ranges from calibration or from its first call."""

from __future__ import annotations

import json
import logging
import operator
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from hub.plugin import (
    Cluster,
    CompileError,
    ConstantsRefused,
    Executable,
    HubError,
    InputRefused,
)

from .accuracy import report
from .calibration import with_bounds
from .emit import device_outputs, onnx_model
from .fixed import quantise
from .floating import largest_values, run_floating
from .formats import Formats, choose_formats, needs_ranges
from .program import Program
from .runtime import Board, Library
from .settings import Settings, library_path
from .simulator.device import Call, Simulator

FACTS_FILE = "mdla.json"
BINARY_FILE = "device.bin"
MODEL_FILE = "model.onnx"
LOG = logging.getLogger("hub.mdla")


class Session(Protocol):
    """A program on a device."""

    def run(self, inputs: Sequence[torch.Tensor], *, stop_at: int | None = None) -> Call:
        """Run one call on inputs of device shapes; see `Simulator.run`."""
        ...


class BoardSession:
    """A program on the board, with its compiled file, which `save` copies."""

    def __init__(self, board: Board, binary: Path, formats: Formats, program: Program) -> None:
        self.board, self.binary = board, binary
        self._formats, self._program = formats, program

    def run(self, inputs: Sequence[torch.Tensor], *, stop_at: int | None = None) -> Call:
        """Run one call. The board does not report saturation; a call with `stop_at` inputs that do not fit is not sent."""
        saturated: dict[str, int] = {}
        not_finite = 0
        for name, value in zip(self._program.inputs, inputs, strict=True):
            found = quantise(value, self._formats.values[name])
            not_finite += found.not_finite
            saturated.update({name: found.saturated} if found.saturated else {})
        if stop_at is not None and sum(saturated.values()) + not_finite >= stop_at:
            return Call((), saturated, not_finite)
        shaped = [
            value.detach().reshape(shape).contiguous().numpy()
            for value, shape in zip(inputs, self._program.inputs.values(), strict=True)
        ]
        outputs = [torch.from_numpy(output) for output in self.board.run(shaped)]  # pyright: ignore[reportUnknownMemberType]
        made = dict(zip(device_outputs(self._program), outputs, strict=True))
        found = {**dict(zip(self._program.inputs, inputs, strict=True)), **made}
        return Call(tuple(found[name] for name in self._program.outputs), saturated, not_finite)


class MdlaExecutable(Executable):
    """One cluster on one device."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        settings: Settings,
        ranges: Mapping[str, float] | None,
        folder: Path | None,
    ) -> None:
        """Open a device if the formats are known. `ranges` is None if the first call must determine them.

        `folder` holds a saved binary; None if there is none.
        """
        self.program, self._cluster, self.settings = program, cluster, settings
        self.ranges = ranges
        self._lock = threading.Lock()
        self._folder = folder
        self._session: Session | None = None
        self.samples: tuple[torch.Tensor, ...] = ()
        """The inputs of the first call, for the report."""
        self.are_ranges_seen = False
        """True if ranges came from a first call, in this process or in the one that saved them."""
        self._saturated = Counter[str]()
        if program.layers and (ranges is not None or not needs_ranges(settings)):
            self._session = self._opened(ranges or {}, ())

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call. Raise InputRefused if `HUB_MDLA_SATURATE` is off and values saturate or are not finite."""
        if not self.program.layers:
            return self._handed_over(inputs, inputs)
        session = self._session or self._calibrated(inputs)
        if not self.samples:
            self.samples = tuple(value.clone() for value in self._shaped(inputs))
        call = session.run(inputs, stop_at=None if self.settings.saturate else 1)
        if not call.is_faithful:
            self._object(call)
        return self._handed_over(inputs, call.outputs)

    def save(self, folder: Path) -> None:
        """Write ranges, settings and, for the board, the compiled program. The cluster itself holds the weights."""
        facts = {
            "ranges": self.ranges,
            "are_ranges_seen": self.are_ranges_seen,
            "settings": self.settings.model_dump(),
            "digest": self._cluster.digest,
        }
        (folder / FACTS_FILE).write_text(json.dumps(facts))
        if isinstance(self._session, BoardSession):
            shutil.copyfile(self._session.binary, folder / BINARY_FILE)

    def dump(self, folder: Path) -> None:
        """Write the ONNX model, and the report of formats, saturation and error by layer on the first call's inputs."""
        (folder / MODEL_FILE).write_bytes(onnx_model(self.program).SerializeToString())
        if self.samples and (formats := self.formats) is not None:
            (folder / "accuracy.txt").write_text(report(self.program, formats, self.samples))
        if self._saturated:
            counts = "".join(f"{name} {count}\n" for name, count in self._saturated.items())
            (folder / "saturated.txt").write_text(counts)

    @property
    def formats(self) -> Formats | None:
        """The formats of all values; None before the first call has determined ranges."""
        if not self.program.layers or (self.ranges is None and needs_ranges(self.settings)):
            return None
        return choose_formats(self.program, self.settings, self.ranges or {})

    # --- First call ---------------------------------------------------------------------------------------------------

    def _calibrated(self, inputs: Sequence[Any]) -> Session:
        """Take ranges from the first call's inputs, once; other threads wait. Raise InputRefused if any is not finite."""
        with self._lock:
            if self._session is not None:
                return self._session
            shaped = self._shaped(inputs)
            if any(not bool(torch.isfinite(value).all()) for value in shaped):
                raise self._refused("the first call, which shows the ranges, holds NaN or infinity")
            ranges = with_bounds(self.program, largest_values(run_floating(self.program, shaped)))
            try:
                session = self._opened(ranges, shaped)
            except ConstantsRefused as error:  # other errors are the board's, and end its use
                raise self._refused(error.message, blamed(self._cluster, error.node)) from error
            self.ranges = ranges
            self._session = session
            self.warn_of_ranges()
            return session

    def warn_of_ranges(self) -> None:
        """Warn that ranges came from a first call: larger values will not fit. Users do not see a worker's own warning."""
        self.are_ranges_seen = True
        LOG.warning(
            "cluster %s: ranges come from its first inputs; `hub mdla calibrate` takes them from samples",
            self._cluster.name,
        )

    @property
    def saturated(self) -> Mapping[str, int]:
        """Number of elements that saturated in all calls so far, by value, if the user accepts saturation."""
        return dict(self._saturated)

    def _opened(self, ranges: Mapping[str, float], samples: Sequence[torch.Tensor]) -> Session:
        formats = choose_formats(self.program, self.settings, ranges)
        if self.settings.is_simulated:
            found = Simulator(self.program, formats)
            if found.weights_saturated and not self.settings.saturate:
                raise ConstantsRefused(
                    f"weights do not fit {self.settings.format}: {_counted(found.weights_saturated)}",
                    backend="mdla",
                    cluster=self._cluster.name,
                    hint="HUB_MDLA_FORMAT=auto gives each tensor its own format; HUB_MDLA_SATURATE=1 accepts it",
                )
            return found
        return self._on_board(formats, samples)

    def _on_board(self, formats: Formats, samples: Sequence[torch.Tensor]) -> BoardSession:
        board = Board(Library(library_path(self.settings)), flags_of(self.settings), timeout_s=self.settings.timeout_s)
        try:
            if self._folder is not None and (self._folder / BINARY_FILE).exists():
                binary = self._folder / BINARY_FILE
            else:
                work = Path(tempfile.mkdtemp(prefix="hub-mdla-"))
                weakref.finalize(self, shutil.rmtree, work, ignore_errors=True)
                binary, model = work / BINARY_FILE, work / MODEL_FILE
                model.write_bytes(onnx_model(self.program).SerializeToString())
                arrays = [value.contiguous().numpy() for value in samples]
                board.compile(model, binary, self.program.inshapes, arrays)
            board.load(binary)
            shapes = self.program.shapes
            wanted = tuple(shapes[name] for name in device_outputs(self.program))
            if board.output_shapes != wanted:
                raise CompileError(f"the board's program returns {board.output_shapes}, {wanted} expected", backend="mdla")
        except HubError:
            board.close()
            raise
        return BoardSession(board, binary, formats, self.program)

    # --- Edges --------------------------------------------------------------------------------------------------------

    def _shaped(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return [value.detach().reshape(shape) for value, shape in zip(inputs, self.program.inputs.values(), strict=True)]

    def _handed_over(self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return outputs in the cluster's shapes. Inputs that are also outputs are copied unchanged, not quantised."""
        given = dict(zip(self.program.inputs, inputs, strict=True))
        handed: list[torch.Tensor] = []
        seen: set[str] = set()
        for name, output, spec in zip(self.program.outputs, outputs, self._cluster.outputs, strict=True):
            value = given[name].detach().clone() if name in given else output.clone() if name in seen else output
            seen.add(name)
            handed.append(value.reshape(spec.shape))
        return handed

    def _object(self, call: Call) -> None:
        """Raise InputRefused for a call that the device cannot compute faithfully; log and count it if that is accepted."""
        text = _counted(call.saturated)
        if call.not_finite:
            text = f"{call.not_finite} inputs are NaN or infinite{f'; {text}' if text else ''}"
        if not self.settings.saturate:
            raise self._refused(text)
        with self._lock:
            is_news = not self._saturated
            self._saturated.update(call.saturated)
            self._saturated["NaN or infinity"] += call.not_finite
        # Only the first call is a warning: a stream of images would fill the log.
        LOG.log(
            logging.WARNING if is_news else logging.DEBUG,
            "cluster %s: values saturated: %s; calibrate on samples with this range. Further calls are counted only",
            self._cluster.name,
            text,
        )

    def _refused(self, reason: str, node: str | None = None) -> InputRefused:
        return InputRefused(
            f"fixed point cannot hold this call's values: {reason}",
            backend="mdla",
            cluster=self._cluster.name,
            node=node,
            hint="calibrate on samples with this range, or accept saturation with HUB_MDLA_SATURATE=1",
        )


def restored(
    program: Program, cluster: Cluster, settings: Settings, calibrated: Mapping[str, float] | None, folder: Path
) -> MdlaExecutable:
    """Open a program that `MdlaExecutable.save` wrote; `calibrated` are the calibration file's ranges, None without a file.

    Raise CompileError for corrupt files, another cluster, or other settings or ranges.
    """
    try:
        facts = json.loads((folder / FACTS_FILE).read_text())
        ranges = facts["ranges"]
        are_ranges_seen = bool(facts["are_ranges_seen"])
        saved = (facts["digest"], json.dumps(facts["settings"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{folder} holds no saved program: {error}", backend="mdla", cluster=cluster.name) from error
    if saved != (cluster.digest, json.dumps(settings.model_dump())):
        raise CompileError("it was saved for another cluster or other HUB_MDLA_ settings", backend="mdla")
    if calibrated is not None and calibrated != ranges:
        raise CompileError(f"{settings.calibration} has changed since it was saved", backend="mdla", cluster=cluster.name)
    is_board = not settings.is_simulated and bool(program.layers) and (ranges is not None or not needs_ranges(settings))
    if is_board and not (folder / BINARY_FILE).exists():
        raise CompileError(f"{folder} lacks {BINARY_FILE}", backend="mdla", cluster=cluster.name)
    found = MdlaExecutable(program, cluster, settings, ranges, folder)
    if are_ranges_seen:
        found.warn_of_ranges()
    return found


def blamed(cluster: Cluster, name: str | None) -> str | None:
    """Return the node to disable the device for after an error at a value: the tuple's node for an element of a tuple."""
    found = next((node for node in cluster.module.graph.nodes if node.name == name), None)
    source = found.args[0] if found is not None and found.target is operator.getitem else None
    return source.name if isinstance(source, fx.Node) else name


def flags_of(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the device's flags for the settings, with the user's own flags last."""
    found = [("nfpgas", settings.boards), ("nclusters", settings.clusters), ("firstcluster", settings.first_cluster)]
    flags = [(name, str(value)) for name, value in found if value != (0 if name == "firstcluster" else 1)]
    flags += [("varfp", "1")] if settings.format in ("auto", "varfp") else []
    flags += [("int8mode", "1")] if settings.format == "int8" else []
    return (*flags, *settings.flags)


def _counted(saturated: Mapping[str, int]) -> str:
    return ", ".join(f"{count} elements of {name} saturate" for name, count in saturated.items())
