"""The oracle's computation of one step of a call, with all intermediate values."""

from __future__ import annotations

from conformance.base.dtypes import NUMPY
from conformance.bundle.cache import Bundle
from conformance.bundle.script import Arrays, script_of
from conformance.case.call import Call
from conformance.oracle.reference import Computation, compute


def computation_of(call: Call, bundle: Bundle, step: int) -> Computation:
    """The computation behind the expected outputs of a step in ``bundle``, that of ``call``.

    The call must have a meaning: ``bundle.unjudged`` is None.
    """
    script = script_of(call, bundle.reading)
    inputs: Arrays = dict(script.steps[step].inputs)
    for past, present in script.steps[step].carry.items():
        before = bundle.expected[step - 1][present]
        inputs[past] = before.value.astype(NUMPY[before.dtype])
    return compute(inputs, script.attributes, script.outputs, bundle.reading)
