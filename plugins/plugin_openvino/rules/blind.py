"""The alarm before kernels that lose NaN or infinity: see `support.NAN_BLIND`."""

from __future__ import annotations

from math import inf

import torch
from openvino import Output

from hub.plugin import operator_name
from hub.toolkit.intervals import Hazards
from plugin_openvino.alarms import Alarm
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, convert, output
from plugin_openvino.rules.elementwise import not_a_number
from plugin_openvino.support import INFINITY_BLIND, LOWEST_BLIND

_FACTORS = ("query", "key", "value")
"""Arguments of attention whose infinities become NaN."""


def raise_alarm_where_lost(call: Call, hazards: Hazards) -> None:
    """Make a call run eagerly if arguments hold NaN or infinity that the node's kernel loses, and that no input held."""
    name = operator_name(call.node)
    loses_lowest = name in LOWEST_BLIND
    for source in call.node.all_input_nodes:
        if hazards.may_hold_lowest(source) if loses_lowest else hazards.may_hold_nan(source):
            value = call.value(source)
            if loses_lowest:
                call.raise_alarm_where(_is_not_below_infinity(output(ops.negative(value))), Alarm.NAN_LOST)
            elif "attention" in name and any(call.raw(factor) is source for factor in _FACTORS):
                call.raise_alarm_where(_is_not_below_infinity(output(ops.abs(value))), Alarm.NAN_LOST)
            elif name in INFINITY_BLIND or "attention" in name:
                call.raise_alarm_where(_is_not_below_infinity(value), Alarm.NAN_LOST)
            else:
                call.raise_alarm_where(not_a_number(value), Alarm.NAN_LOST)
    hazards.end(call.node)


def _is_not_below_infinity(value: Output) -> Output:
    """Return a mask of the elements that are infinity or NaN. NaN is less than nothing."""
    return output(ops.logical_not(ops.less(convert(value, torch.float32), constant(inf, torch.float32))))
