"""One case on OpenVINO: read and compile the model, run its steps, write the outputs.

Tensors are passed as bits. NumPy has no bfloat16 and no float8, whose tensors OpenVINO shows as
arrays of another dtype of the same size.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any, Final

from answers import Files, Rejected, repeated, shortened, steps_in_turn, write_outputs
from availability import Unavailable
from onnx_graph import output_names
from tensor_file import BadFile, Tensor, first_rows, read_tensor

#: TensorProto.DataType → OpenVINO's name for it.
WORDS: Final = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "boolean", 10: "f16",
    11: "f64", 12: "u32", 13: "u64", 16: "bf16", 17: "f8e4m3", 19: "f8e5m2",
}  # fmt: skip
DATA_TYPES: Final = {word: data_type for data_type, word in WORDS.items()}


def message(error: Exception) -> str:
    """What an error says, not too long."""
    return shortened(str(error).strip() or type(error).__name__)


class Runtime:
    """The module ``openvino`` and the properties with which models are compiled."""

    def __init__(self, openvino: Any, config: dict[str, str | int]) -> None:
        self.openvino = openvino
        self.core = openvino.Core()
        self.config = config

    def compiled(self, path: str) -> Any:
        """A compiled model; any exception is OpenVINO's."""
        return self.core.compile_model(self.core.read_model(path), "CPU", self.config)

    def to_native(self, tensor: Tensor) -> Any:
        """A tensor of OpenVINO with a copy of the elements."""
        if tensor.data_type not in WORDS:
            word = f"TensorProto type {tensor.data_type}"
            raise Unavailable(f"OpenVINO takes no {word} ({tensor.name}).")
        element = getattr(self.openvino.Type, WORDS[tensor.data_type])
        native = self.openvino.Tensor(element, self.openvino.Shape(tensor.dims))
        bits = native.data
        bits[...] = type(bits)(bits.shape, bits.dtype, tensor.raw)
        return native

    def from_native(self, name: str, native: Any) -> Tensor:
        """A copy of an output; `BadFile` if its type has no bytes of its own."""
        word = native.element_type.get_type_name()
        if word not in DATA_TYPES:
            raise BadFile(f"output '{name}' has OpenVINO's type {word}")
        return Tensor(name, DATA_TYPES[word], tuple(native.shape), native.data.tobytes())


def run_case(runtime: Runtime, request: dict[str, Any]) -> dict[str, Any]:
    """Run the case that ``request`` names; the fields of a `ran` answer except id and outcome.

    Raises `Rejected` (OpenVINO returned an error), `Unavailable` (this case cannot run here) and
    `BadFile` (the bundle is not usable); every other exception is an error of this program.
    """
    case = Case(runtime, request)
    runs, fastest = repeated(case.run, request["repeat"])
    return {"runs": runs, "ms": {"load": case.load_seconds * 1e3, "run": fastest * 1e3}}


class Case:
    """A case: its compiled model, and its steps with their inputs in memory."""

    def __init__(self, runtime: Runtime, request: dict[str, Any]) -> None:
        bundle = request["bundle"]
        path = f"{bundle}/model.onnx"
        self.runtime = runtime
        self.outputs = output_names(path)
        self.out = request["out"]
        self.steps = request["steps"]
        self.inputs = [
            {name: read_tensor(f"{bundle}/{file}") for name, file in step["files"].items()}
            for step in self.steps
        ]
        start = perf_counter()
        try:
            model = runtime.compiled(path)
            self.session = model.create_infer_request()
        except Exception as error:
            raise Rejected("load", 0, message(error)) from error
        self.load_seconds = perf_counter() - start
        self.takes = {name for port in model.inputs for name in port.get_names()}

    def run(self, repeat: int) -> tuple[Files, float]:
        """All steps from the start: the files written for each, and the seconds spent running."""
        write = partial(write_outputs, self.out, repeat)
        return steps_in_turn(self.steps, self.run_step, write)

    def run_step(self, index: int, previous: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """One call: its outputs, and the seconds it took."""
        feeds, step = dict(self.inputs[index]), self.steps[index]
        for name, output in step["carry"].items():
            keep = step.get("keep")
            feeds[name] = previous[output] if keep is None else first_rows(previous[output], keep)
        for name in feeds:
            if name not in self.takes:
                raise Unavailable(f"OpenVINO takes no value for the input '{name}'.")
        # New tensors for each call, so that nothing can change what a repeat starts from.
        natives = {name: self.runtime.to_native(tensor) for name, tensor in feeds.items()}
        try:
            for name, native in natives.items():
                self.session.set_tensor(name, native)
            start = perf_counter()
            self.session.infer()
            seconds = perf_counter() - start
        except Exception as error:
            raise Rejected("run", index, message(error)) from error
        made = {
            name: self.runtime.from_native(name, self.session.get_output_tensor(position))
            for position, name in enumerate(self.outputs)
        }
        return made, seconds
