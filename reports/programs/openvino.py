import json
import os
import sys
import tempfile

DATA = json.loads(r"""__DATA__""")
sys.modules["openvino_telemetry"] = None  # or importing openvino tells Google Analytics

import openvino

TYPES = {"float32": "f32", "uint8": "u8", "int8": "i8", "int32": "i32", "int64": "i64"}
TYPES.update({"float16": "f16", "bfloat16": "bf16", "float8e4m3fn": "f8e4m3"})
CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}
if DATA["runtime"]["threads"]:
    CONFIG["INFERENCE_NUM_THREADS"] = DATA["runtime"]["threads"]


def session():
    """A request for inference with the model."""
    path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    with open(path, "wb") as file:
        file.write(model())
    core = openvino.Core()
    return core.compile_model(core.read_model(path), "CPU", CONFIG).create_infer_request()


def call(request, feeds):
    """The outputs of one call; a type that NumPy lacks is shown as another one."""
    for name, values in feeds.items():
        element = getattr(openvino.Type, TYPES[dtype_of(name)])
        tensor = openvino.Tensor(element, openvino.Shape(values.shape))
        tensor.data[...] = values.view(tensor.data.dtype)
        request.set_tensor(name, tensor)
    request.infer()
    places = enumerate(DATA["outputs"])
    return {name: request.get_output_tensor(place).data.copy() for place, name in places}


def read(name, values):
    """The values of an output."""
    return values_of(values.tobytes(), dtype_of(name), values.shape)


def main():
    """Make the calls, and check what comes back."""
    try:
        made = session()
        results = results_of(lambda feeds: call(made, feeds), read)
    except Exception as error:
        print("rejected:", error)
        end(DATA["if_rejected"])
    check(results)


from checks import check, end, in_child, results_of, values_of
from inputs import dtype_of, model

in_child(main)
