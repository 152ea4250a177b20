"""The cost of a case on ONNX Runtime without the suite: ``PYTHON ort_loop.py PROVIDER [DEVICE]``.

For each line {"bundle", "files"} on standard input it reads the tensors, creates a session, binds
inputs and outputs, runs it twice and has the outputs in host memory; then it prints a line: "ran",
or "refused". One session stays open from the start, so that CUDA and its libraries start once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

COMMON = Path(__file__).resolve().parents[1] / "runners" / "common"
sys.path.insert(0, str(COMMON))

REPEAT = 2
FLOAT = 1  # a TensorProto.DataType


def main() -> None:
    """Answer lines until there are none."""
    parser = argparse.ArgumentParser(description="Answers for each bundle on standard input.")
    parser.add_argument("provider", help="such as CPUExecutionProvider")
    parser.add_argument("device", nargs="?", help="the number of a GPU")
    given = parser.parse_args()
    provider = (given.provider, {"device_id": given.device} if given.device else {})
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the runtime prints is no answer
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime
    from probe import probe_model

    onnxruntime.set_default_logger_severity(4)
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    kept = onnxruntime.InferenceSession(probe_model(FLOAT, 1), options, providers=[provider])
    if given.provider not in kept.get_providers():
        parser.error(f"ONNX Runtime has no {given.provider} here.")
    print("ready", file=answers)
    for line in sys.stdin:
        try:
            run(onnxruntime, options, provider, json.loads(line))
            print("ran", file=answers)
        except Exception:  # a refusal is a result; the suite runs these cases too
            print("refused", file=answers)


def run(onnxruntime: Any, options: Any, provider: Any, request: dict[str, Any]) -> None:
    """Run one bundle; raises whatever ONNX Runtime raises."""
    import numpy as np
    from tensor_file import ITEM_BYTES, read_tensor

    tensors = {
        name: read_tensor(f"{request['bundle']}/{file}") for name, file in request["files"].items()
    }
    session = onnxruntime.InferenceSession(
        f"{request['bundle']}/model.onnx", options, providers=[provider], enable_fallback=0
    )
    binding = session.io_binding()
    values = []
    for name, tensor in tensors.items():
        bits = np.frombuffer(tensor.raw, f"u{ITEM_BYTES[tensor.data_type]}").reshape(tensor.dims)
        value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, tensor.data_type)
        values.append(value)  # the binding copies, or keeps a pointer
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    for _ in range(REPEAT):
        session.run_with_iobinding(binding)
        binding.get_outputs()


if __name__ == "__main__":
    main()
