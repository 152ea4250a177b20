"""One GroupQueryAttention node on onnxruntime-web, for the scripts of these pages."""

import base64
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.helper as oh

INPUTS = [
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
]
OUTPUTS = ["output", "present_key", "present_value", "output_qk"]


def gqa(feeds, outputs=("output", "present_key", "present_value"), **attributes):
    """The outputs of the node by name, as NumPy arrays; or the error message."""
    return in_one_page((feeds, outputs, attributes))[0]


def in_one_page(*calls):
    """The result of `gqa` for each (feeds, outputs, attributes), in turn in one process."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{number}.json") for number in range(len(calls))]
        for path, (feeds, outputs, attributes) in zip(paths, calls, strict=True):
            model = path.with_suffix(".onnx")
            onnx.save(one_node(feeds, outputs, attributes), model)
            tensors = {name: plain(values) for name, values in feeds.items()}
            path.write_text(json.dumps({"model": str(model), "feeds": tensors}))
        script = pathlib.Path(__file__).with_suffix(".mjs")
        command = ["node", "--liftoff-only", script, *paths]
        done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) < len(calls):
        sys.exit(done.stderr)
    told = map(json.loads, lines[-len(calls) :])
    return [t["error"] if "error" in t else {n: array(o) for n, o in t.items()} for t in told]


def one_node(feeds, outputs, attributes):
    names = [name if name in feeds else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    results = [name if name in outputs else "" for name in OUTPUTS]
    while not results[-1]:
        results.pop()
    types = {name: oh.np_dtype_to_tensor_dtype(values.dtype) for name, values in feeds.items()}
    info = oh.make_tensor_value_info
    inputs = [info(name, types[name], [None] * values.ndim) for name, values in feeds.items()]
    made = []
    for name in filter(None, results):  # a present has the type of its past
        kind = types.get(name.replace("present", "past"), types["query"])
        made.append(info(name, kind, [None] * (3 if name == "output" else 4)))
    node = oh.make_node("GroupQueryAttention", names, results, domain="com.microsoft", **attributes)
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid("com.microsoft", 1)]
    graph = oh.make_graph([node], "g", inputs, made)
    return oh.make_model(graph, opset_imports=opsets, ir_version=9)


def plain(values):
    data = base64.b64encode(values.tobytes()).decode()
    return {"type": str(values.dtype), "dims": values.shape, "data": data}


def array(told):
    kind = "uint16" if told["type"] == "float16" else told["type"]  # the bits of a float16
    values = np.array([float(x) if kind == "float32" else x for x in told["data"]], kind)
    return values.view(told["type"]).reshape(told["dims"])
