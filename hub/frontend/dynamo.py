"""The `hub` backend of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from hub.cache.forecast import may_need_workers
from hub.capture.attention import expand_attention
from hub.capture.bodies import as_called, bodies_of
from hub.capture.frames import captured_for_hub, is_part_of_a_call
from hub.capture.inference import capture_inference
from hub.capture.sources import number_positions, weight_positions
from hub.capture.traces import forget_last_trace
from hub.capture.training import capture_with_autograd, is_forward_mode, writes_to_inputs
from hub.config.options import Options, resolve
from hub.config.settings import working_folder
from hub.errors import CaptureError, HubError, OptionError, PlanError, warn_user
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.recorder import made_for_dynamo
from hub.frontend.direct.shortcut import Shortcut, called, graph_made
from hub.frontend.eager_plans import eager_plan
from hub.frontend.ownership import calling_wrapper, register
from hub.plan_file import read_plans
from hub.planning.evidence import Mode
from hub.plugin.graph import Graph
from hub.pricing.roofline import measure_early
from hub.process.environment import environment_now
from hub.process.interrupts import held_back
from hub.process.phases import Phases, Work
from hub.torch_private import set_grad_enabled
from hub.workers.pool import POOL


def hub_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one program that Dynamo captured. `torch.compile(model, backend="hub")` calls this.

    Only capture happens here, because only now do guards on sizes take effect. Planning waits for the first real call, so
    that its errors reach the caller unchanged. Wrong options raise OptionError at that call. Plugin discovery waits, too:
    time spent here delays the moment at which Dynamo resets random numbers, and all threads read "compiling" meanwhile.
    """
    try:
        chosen = _options(options, mode)
    except OptionError as error:
        return _raising(error)
    if chosen.start == "wait":
        _expect_work(chosen)
    phases = Phases()
    with held_back(), phases.during(Work.GRAPH):
        try:
            return _captured(module, example_inputs, chosen, calling_wrapper(), phases)
        finally:
            forget_last_trace()


captured_for_hub(hub_backend, around=Shortcut)


def restricted(*backends: str) -> Callable[..., Callable[..., Any]]:
    """Return a backend of `torch.compile` that is the hub with these backends alone, and eager for what they do not take.

    Plugins offer one under its own name (entry point group `torch_dynamo_backends`). It takes the hub's options. If these
    name other `backends`, the first call raises OptionError.
    """

    def backend(
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        asked = (options or {}).get("backends")
        if asked is not None and {*asked} != {*backends}:
            return _raising(
                OptionError(
                    f"option backends={list(asked)}: this backend of torch.compile is {', '.join(backends)} alone",
                    hint='leave it out, or use backend="hub"',
                )
            )
        return hub_backend(module, example_inputs, options={**(options or {}), "backends": backends}, mode=mode)

    return captured_for_hub(backend, around=Shortcut)


def _captured(
    module: fx.GraphModule, example_inputs: Sequence[Any], chosen: Options, owner: object | None, phases: Phases
) -> Callable[..., Any]:
    """Capture for inference if no input needs gradients, else for training."""

    is_part = is_part_of_a_call(module)

    def compile_graph(graph: Graph, kind: Mode, original: Callable[..., Any] | None = None) -> CompiledGraph:
        return _compiled(replace(graph, is_part=is_part), kind, chosen, original or graph.module, owner, phases)

    expand_attention(module)
    weights, numbers = weight_positions(module, example_inputs), number_positions(module)

    def with_autograd() -> Callable[..., Any]:
        made: list[CompiledGraph] = []

        def compile_one(graph: Graph, kind: Mode) -> CompiledGraph:
            made.append(compile_graph(graph, kind))
            return made[-1]

        with phases.during(Work.CAPTURE):
            call = capture_with_autograd(module, example_inputs, compile_one, weights)
        if [one.mode for one in made] == ["inference"] and not writes_to_inputs():
            _call_directly(made[0], numbers)  # anything else that AOTAutograd's wrapper does shows in arguments and outputs
        return call

    if is_forward_mode():
        return _captured_or_eager(_refuse_forward_mode, module, chosen, owner)
    if _needs_gradients(module, example_inputs):
        return _captured_or_eager(with_autograd, module, chosen, owner)
    try:
        compiled = compile_graph(capture_inference(module, example_inputs, weights, phases), "inference", module)
        _call_directly(compiled, numbers)
        return compiled
    except CaptureError:
        # AOTAutograd's own wrappers handle what the pre-dispatch form cannot express, such as writes to aliased inputs.
        return _captured_or_eager(with_autograd, module, chosen, owner)


def _call_directly(graph: CompiledGraph, numbers: Sequence[int]) -> None:
    """Note that the code that Dynamo generates calls this graph itself, and which of its inputs are made of numbers."""
    graph.numbers = frozenset(graph.graph.placeholders[position].name for position in numbers)
    made_for_dynamo(graph)
    called(graph)


def _refuse_forward_mode() -> Callable[..., Any]:
    raise CaptureError("forward-mode differentiation is on, whose tangents no captured graph carries")


def _compiled(
    graph: Graph,
    kind: Mode,
    options: Options,
    original: Callable[..., Any],
    owner: object | None,
    phases: Phases,
    *,
    is_body: bool = False,
) -> CompiledGraph:
    """Return the callable for a graph. The bodies of its control flow become callables of their own inside it."""
    compiled = CompiledGraph(graph, kind, options, original, owner, is_body=is_body, phases=phases)
    register(compiled)
    graph_made()
    compiled.bodies = {
        body.target: as_called(
            _compiled(body.graph, kind, _for_body(options, body.graph), body.graph.module, owner, phases, is_body=True),
            is_single=body.is_single,
        )
        for body in bodies_of(graph)
    }
    return compiled


def _for_body(options: Options, graph: Graph) -> Options:
    """Return the options for a body. If the plan file has no plan for it (it had not run), the hub plans the body."""
    if options.plan is None:
        return options
    try:
        known = [plan.graph_digest for plan in read_plans(options.plan)]
    except (OptionError, PlanError):
        return options  # the first call raises the error
    return options if graph.digest in known else options.model_copy(update={"plan": None})


def _expect_work(options: Options) -> None:
    """Start what workers of this process will need, if it is likely to use any. Do not wait for it."""
    if options.isolate and may_need_workers(options.cache.root):
        measure_early(options.cache.root, options.threads or torch.get_num_threads())
        POOL.prepare()


def _options(given: Mapping[str, Any] | None, mode: str | None) -> Options:
    if mode is not None:
        raise OptionError(f"the hub has no mode={mode!r}", hint='use options={"tune": "off" | "fast" | "full"}')
    return resolve(given, environment_now(), working_folder())


def _needs_gradients(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether an input needs gradients and the program may record them, from its beginning or from some place on."""
    if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        return False
    programs = [inside for inside in module.modules() if isinstance(inside, fx.GraphModule)]
    switches = (node for one in programs for node in one.graph.find_nodes(op="call_function", target=set_grad_enabled))
    return torch.is_grad_enabled() or any(switch.args[0] is True for switch in switches)


def _captured_or_eager(
    capture: Callable[[], Callable[..., Any]], module: fx.GraphModule, options: Options, owner: object | None
) -> Callable[..., Any]:
    try:
        return capture()
    except CaptureError as error:
        if options.strict:
            return _raising(error)
        compiled = _Uncaptured(module, options, owner, error)
        register(compiled)
        warn_user(f"capture: {error}")
        return compiled


class _Uncaptured(CompiledGraph):
    """A program that was not captured and runs in eager. Its plan records the reason."""

    def __init__(self, module: fx.GraphModule, options: Options, owner: object | None, error: CaptureError) -> None:
        super().__init__(Graph(module, "uncaptured"), "inference", options, module, owner)
        self._record.plan = eager_plan("uncaptured", str(error))

    def __call__(self, *args: Any) -> Any:
        return self.original(*args)


def _raising(error: HubError) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error.with_traceback(None)  # else each call's frames, and the tensors in them, would stay with the error

    return fail
