"""One case on tract: load, fix the inputs' shapes, prepare, run, write the outputs.

Tensors are passed as raw bits through the binding's C functions. Its NumPy conversion turns a
scalar into a vector before 0.23.8, and one path for every dtype is easier to trust than two.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable
from time import perf_counter
from typing import Any, NamedTuple

from answers import Files, Rejected, repeated, shortened, steps_in_turn, write_outputs
from availability import Unavailable, first_line
from facts import fact
from onnx_graph import output_names
from tensor_file import ITEM_BYTES, BadFile, Tensor, first_rows, read_tensor

# TensorProto.DataType → the binding's number of the type.
DATUM_TYPES = {
    9: 0x01,
    2: 0x11,
    4: 0x12,
    12: 0x14,
    13: 0x18,
    3: 0x21,
    5: 0x22,
    6: 0x24,
    7: 0x28,
    10: 0x32,
    1: 0x34,
    11: 0x38,
}
DATA_TYPES = {number: data_type for data_type, number in DATUM_TYPES.items()}

BACKTRACE = re.compile(r"\s*^Stack backtrace:.*", re.MULTILINE | re.DOTALL)
ANSI_CODE = re.compile(r"\x1b\[[0-9;]*m")


def causes(text: str) -> str:
    """The chain of causes of an error, without backtrace and colours, and not too long."""
    return shortened(ANSI_CODE.sub("", BACKTRACE.sub("", text)).strip())


class Value(NamedTuple):
    """A tensor in two forms: tract's object, and its content."""

    native: Any
    tensor: Tensor


class Plan(NamedTuple):
    """A model that was prepared for inputs of certain shapes."""

    runnable: Any
    inputs: list[str]  # in the order in which they are fed


class Engine:
    """The package ``tract`` and its runtime for the processor."""

    def __init__(self, tract: Any, runtime: Any) -> None:
        self.tract = tract
        self.runtime = runtime
        self.onnx = tract.onnx()
        self.version = str(tract.version())
        self.place = str(runtime.name())
        self.refusal: type[Exception] = tract.TractError

    def to_value(self, tensor: Tensor) -> Value:
        """A tensor of tract with a copy of the elements; TractError if that fails."""
        if tensor.data_type not in DATUM_TYPES:
            word = f"TensorProto type {tensor.data_type}"
            raise Unavailable(f"tract {self.version} takes no {word} ({tensor.name}).")
        number = DATUM_TYPES[tensor.data_type]
        rank = len(tensor.dims)
        dims = (ctypes.c_size_t * rank)(*tensor.dims)
        pointer = ctypes.c_void_p()
        bindings = self.tract.bindings
        bindings.check(
            bindings.lib.tract_tensor_from_bytes(
                number, ctypes.c_size_t(rank), dims, tensor.raw, ctypes.byref(pointer)
            )
        )
        return Value(self.tract.Tensor(pointer), tensor)

    def from_native(self, name: str, native: Any) -> Value:
        """The content of a tensor of tract; `BadFile` if the binding does not provide it."""
        number, rank = ctypes.c_uint32(), ctypes.c_size_t()
        shape, data = ctypes.POINTER(ctypes.c_size_t)(), ctypes.c_void_p()
        bindings = self.tract.bindings
        try:
            bindings.check(
                bindings.lib.tract_tensor_as_bytes(
                    native.ptr, *map(ctypes.byref, (number, rank, shape, data))
                )
            )
        except self.refusal as error:  # TDim, the type that Shape returns, is a type of tract's own
            reason = f"tract {self.version} does not hand output '{name}' over: {first_line(error)}"
            raise BadFile(reason) from error
        if number.value not in DATA_TYPES:
            reason = f"output '{name}' has tract's type {number.value:#x}, which has no ONNX type."
            raise BadFile(reason)
        data_type = DATA_TYPES[number.value]
        dims = tuple(shape[axis] for axis in range(rank.value))
        size = math.prod(dims) * ITEM_BYTES[data_type]
        # Without elements the pointer must not be dereferenced.
        raw = ctypes.string_at(data, size) if size else b""
        return Value(native, Tensor(name, data_type, dims, raw))

    def prepare(self, path: str, facts: dict[str, str]) -> Plan:
        """The model in ``path``, optimised for inputs of these shapes and types."""
        loaded = self.onnx.load(path)
        for index in range(loaded.input_count()):
            name = loaded.input_name(index)
            if name not in facts:
                raise BadFile(f"{path} has an input '{name}' that the request does not name")
            loaded.set_input_fact(index, facts[name])
        model = loaded.into_model()
        inputs = [model.input_name(index) for index in range(model.input_count())]
        for name in facts:
            if name not in inputs:  # tract treats an input with a default as a constant
                raise Unavailable(f"tract {self.version} takes no value for the input '{name}'.")
        return Plan(self.runtime.prepare(model), inputs)


def run_case(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Run the case that ``request`` names; the fields of a `ran` answer except id and outcome.

    Raises `Rejected` (tract returned an error), `Unavailable` (this case cannot run here) and
    `BadFile` (the bundle is not usable); every other exception is an error of this program.
    """
    case = Case(engine, request)
    runs, fastest = repeated(case.run, request["repeat"])
    return {
        "placement": engine.place,
        "runs": runs,
        "ms": {"load": case.load_seconds * 1e3, "run": fastest * 1e3},
    }


class Case:
    """A case: its model for each set of shapes, and its steps with their inputs in memory."""

    def __init__(self, engine: Engine, request: dict[str, Any]) -> None:
        bundle = request["bundle"]
        self.engine = engine
        self.path = f"{bundle}/model.onnx"
        self.outputs = output_names(self.path)
        self.out = request["out"]
        self.steps = request["steps"]
        self.inputs = [
            {name: read_tensor(f"{bundle}/{file}") for name, file in step["files"].items()}
            for step in self.steps
        ]
        self.plans: dict[tuple[tuple[str, str], ...], Plan] = {}
        self.load_seconds = 0.0  # for all plans together

    def run(self, repeat: int) -> tuple[Files, float]:
        """All steps from the start: the files written for each, and the seconds spent running."""

        def write(step: int, outputs: Iterable[Value]) -> dict[str, str]:
            return write_outputs(self.out, repeat, step, (value.tensor for value in outputs))

        return steps_in_turn(self.steps, self.run_step, write)

    def run_step(self, index: int, previous: dict[str, Value]) -> tuple[dict[str, Value], float]:
        """One call: its outputs, and the seconds it took."""
        engine = self.engine
        stage = "load"  # shapes grow from step to step, and the model is prepared for each
        try:
            # New tensors for each call, so that nothing can change what a repeat starts from.
            feeds = {name: engine.to_value(tensor) for name, tensor in self.inputs[index].items()}
            keep = self.steps[index].get("keep")
            for name, output in self.steps[index]["carry"].items():
                feeds[name] = previous[output]
                if keep is not None:
                    feeds[name] = engine.to_value(first_rows(previous[output].tensor, keep))
            plan = self.plan(feeds)
            stage = "run"
            natives = [feeds[name].native for name in plan.inputs]
            start = perf_counter()
            results = plan.runnable.run(natives)
            seconds = perf_counter() - start
        except engine.refusal as error:
            raise Rejected(stage, index, causes(str(error))) from error
        outputs = {
            name: engine.from_native(name, native)
            for name, native in zip(self.outputs, results, strict=True)
        }
        return outputs, seconds

    def plan(self, feeds: dict[str, Value]) -> Plan:
        """The model prepared for inputs like these, created on first use."""
        facts = {name: fact(value.tensor) for name, value in feeds.items()}
        key = tuple(sorted(facts.items()))
        if key not in self.plans:
            start = perf_counter()
            self.plans[key] = self.engine.prepare(self.path, facts)
            self.load_seconds += perf_counter() - start
        return self.plans[key]
