import ctypes
import importlib
import json
import math
import os

import numpy as np

DATA = json.loads(r"""__DATA__""")
RUNTIME = DATA["runtime"]
os.environ.update(RUNTIME["environment"])
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or onnxruntime 1.32 records its user

import onnxruntime

if RUNTIME["device"] == "cuda" and hasattr(onnxruntime, "preload_dlls"):
    onnxruntime.preload_dlls()  # CUDA's libraries, where pip installed them


def session():
    """A session with the model on the execution provider, and on no other."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = RUNTIME["threads"]
    options.log_severity_level = 3
    if RUNTIME["alone"]:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if RUNTIME["plugin"]:
        add_plugin(options, RUNTIME["plugin"])
        content = static_model() if RUNTIME["static_shapes"] else model()
        # With enable_fallback Python would try again on the CPU.
        return onnxruntime.InferenceSession(content, options, enable_fallback=0)
    providers = [(RUNTIME["provider"], provider_options())]
    return onnxruntime.InferenceSession(model(), options, providers=providers)


def add_plugin(options, word):
    """Add the first device of a plugin, given by its library or by the Python module with it."""
    is_module = word.replace(".", "").isidentifier() and "/" not in word
    module = importlib.import_module(word) if is_module else None
    library = module.get_library_path() if module else word
    name = module.get_ep_name() if hasattr(module, "get_ep_name") else "plugin"
    known = {device.ep_name for device in onnxruntime.get_ep_devices()}
    onnxruntime.register_execution_provider_library(name, library)
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name not in known]
    options.add_provider_for_devices(devices[:1], provider_options())


def provider_options():
    """The provider's options. A value that is no text is the content of a file that it reads."""
    options = dict(RUNTIME["provider_options"])
    for key, value in options.items():
        if not isinstance(value, str):
            options[key] = f"{key}.json"
            with open(options[key], "w") as file:
                json.dump(value, file)
    return options


def static_model():
    """The model with the shapes of its first call; those of the outputs are found on the CPU."""
    import onnx

    on_cpu = onnxruntime.InferenceSession(model(), providers=["CPUExecutionProvider"])
    arrays, names = inputs()[0], [output.name for output in on_cpu.get_outputs()]
    arrays.update(zip(names, on_cpu.run(names, arrays)))
    made = onnx.load_model_from_string(model())
    for value in [*made.graph.input, *made.graph.output]:
        dims = value.type.tensor_type.shape.dim
        del dims[:]
        for size in arrays[value.name].shape:
            dims.add().dim_value = size
    return made.SerializeToString()


def call(session, feeds):
    """The outputs of one call as OrtValues; a shared past is that of its present."""
    binding = session.io_binding()
    shared = {}
    for name, value in feeds.items():
        dtype = dtype_of(name)
        if name in DATA["share"]:
            if isinstance(value, np.ndarray):
                bits = value.view(f"u{value.itemsize}")
                value = onnxruntime.OrtValue.ortvalue_from_numpy(bits, RUNTIME["device"], 0)
            shared[DATA["share"][name]] = value
            binding.bind_input(name, *place(value, dtype))
            continue
        if isinstance(value, np.ndarray):
            number = DTYPES[dtype][0]
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value, number)
        binding.bind_ortvalue_input(name, value)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        if name in shared:
            binding.bind_output(name, *place(shared[name], dtype_of(name)))
        else:
            binding.bind_output(name, "cpu")
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return {**dict(zip(names, binding.get_outputs())), **shared}


def place(value, dtype):
    """The memory of an OrtValue, for a tensor of this type."""
    return RUNTIME["device"], 0, DTYPES[dtype][0], value.shape(), value.data_ptr()


def bits(name, value):
    """The bits of an output."""
    dtype, shape = dtype_of(name), value.shape()
    size = math.prod(shape) * np.dtype(DTYPES[dtype][1]).itemsize
    if value.device_name().lower() != "cpu":
        content = value.numpy().tobytes()
    else:
        content = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(content, DTYPES[dtype][1]).reshape(shape)


def read(name, value):
    """The values of an output."""
    return values_of(bits(name, value).tobytes(), dtype_of(name), value.shape())


def main():
    """Make the calls, and check what comes back."""
    try:
        made = session()
        if RUNTIME["provider"] not in ["", *made.get_providers()]:
            print("it would run on", made.get_providers())
            end("fallback")
        results = results_of(lambda feeds: call(made, feeds), read, bits)
    except Exception as error:
        print("rejected:", error)
        end(DATA["if_rejected"])
    check(results)


from checks import check, end, in_child, results_of, values_of
from inputs import DTYPES, dtype_of, inputs, model

in_child(main)
