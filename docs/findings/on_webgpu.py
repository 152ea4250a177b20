"""One GroupQueryAttention node on onnxruntime-web, for the scripts of these pages (see on_webgpu.mjs)."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.helper as oh

INPUTS = """query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache
position_ids attention_bias head_sink k_scale v_scale q_norm_weight k_norm_weight""".split()
OUTPUTS = ["output", "present_key", "present_value", "output_qk"]


def gqa(feeds, outputs=("output", "present_key", "present_value"), **attributes):
    """The outputs of the node by name, as NumPy arrays; what is thrown as text."""
    names = [name if name in feeds else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    results = [name if name in outputs else "" for name in OUTPUTS]
    while not results[-1]:
        results.pop()
    of = onnx.helper.np_dtype_to_tensor_dtype
    inputs = [oh.make_tensor_value_info(n, of(a.dtype), [None] * a.ndim) for n, a in feeds.items()]
    kinds = {n: of(feeds.get(n.replace("present", "past"), feeds["query"]).dtype) for n in results}
    made = [oh.make_tensor_value_info(n, kinds[n], [None] * (3 if n == "output" else 4)) for n in results if n]
    node = oh.make_node("GroupQueryAttention", names, results, domain="com.microsoft", **attributes)
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid("com.microsoft", 1)]
    model = oh.make_model(oh.make_graph([node], "g", inputs, made), opset_imports=opsets, ir_version=9)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        call = {"model": f"{folder}/model.onnx", "feeds": {n: plain(a) for n, a in feeds.items()}}
        pathlib.Path(folder, "call.json").write_text(json.dumps(call))
        script = pathlib.Path(__file__).with_suffix(".mjs")
        command = ["node", "--liftoff-only", script, f"{folder}/call.json"]
        done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(done.stderr)
    told = json.loads(lines[-1])
    return told["error"] if "error" in told else {n: array(t) for n, t in told.items()}


def plain(values):
    bits = values.view(np.uint16) if values.dtype == np.float16 else values
    return {"type": str(values.dtype), "dims": values.shape, "data": bits.ravel().tolist()}


def array(told):
    half = told["type"] == "float16"
    values = np.array([float(x) if told["type"] == "float32" else x for x in told["data"]], "uint16" if half else told["type"])
    return values.view(np.float16 if half else values.dtype).reshape(told["dims"])
