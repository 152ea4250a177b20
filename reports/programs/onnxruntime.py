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
        # With enable_fallback Python would try again on the CPU.
        return onnxruntime.InferenceSession(model(), options, enable_fallback=0)
    providers = [(RUNTIME["provider"], RUNTIME["provider_options"])]
    return onnxruntime.InferenceSession(model(), options, providers=providers)


def add_plugin(options, word):
    """Add the first device of a plugin, given by its library or by the Python module with it."""
    is_module = word.replace(".", "").isidentifier() and "/" not in word
    library = importlib.import_module(word).get_library_path() if is_module else word
    known = {device.ep_name for device in onnxruntime.get_ep_devices()}
    onnxruntime.register_execution_provider_library("plugin", library)
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name not in known]
    options.add_provider_for_devices(devices[:1], RUNTIME["provider_options"])


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
from inputs import DTYPES, dtype_of, model

in_child(main)
