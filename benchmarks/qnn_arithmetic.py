"""How Qualcomm's simulator rounds in float16, by which the target class npu is defined.

It computes Exp, Softmax, ReduceSum and MatMul of random numbers, and no attention, so nothing of
the corpus is used. The largest error of each is printed as a share of the unit budget in
docs/tolerance.md, once with the unit roundoff a of float32 for the arithmetic with scores, and once
with that of float16. It needs onnx, onnxruntime and onnxruntime-qnn.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
from onnx import TensorProto, helper

U = 2.0**-11  # unit roundoff of float16
A = 2.0**-24  # that of float32
ETA = 2.0**-25  # half of float16's smallest number
SMALLEST_NORMAL = 2.0**-14


class Simulator:
    """ONNX Runtime with the provider of onnxruntime-qnn."""

    def __init__(self) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        self.onnxruntime = onnxruntime = importlib.import_module("onnxruntime")
        plugin = importlib.import_module("onnxruntime_qnn")
        onnxruntime.register_execution_provider_library(
            plugin.get_ep_name(), plugin.get_library_path()
        )
        devices = onnxruntime.get_ep_devices()
        self.devices = [each for each in devices if each.ep_name == plugin.get_ep_name()][:1]

    def run(self, operator: str, **feeds: np.ndarray) -> np.ndarray:
        """The result of one operator, in float64; sums and softmax are along the last axis."""
        given, sums = [*feeds.values()], operator == "ReduceSum"
        shape = given[0].shape[:-1] + (given[-1].shape[-1:] if len(given) > 1 or not sums else (1,))
        axes = [helper.make_tensor("axes", TensorProto.INT64, [1], [-1])] if sums else []
        node = helper.make_node(operator, [*feeds, *(tensor.name for tensor in axes)], ["y"])

        def declared(name: str, dims: Any) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT16, dims)

        inputs = [declared(name, array.shape) for name, array in feeds.items()]
        graph = helper.make_graph([node], "g", inputs, [declared("y", shape)], axes)
        opset = helper.make_opsetid("", 18)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        options = self.onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(self.devices, {"backend_type": "htp"})
        content = model.SerializeToString()
        session = self.onnxruntime.InferenceSession(content, options, enable_fallback=0)
        result: np.ndarray = session.run(None, feeds)[0].astype(np.float64)
        return result


def exp_share(simulator: Simulator, x: np.ndarray, a: float) -> float:
    """Of exp(x) for x <= 0."""
    got, want = simulator.run("Exp", x=x), np.exp(x.astype(np.float64))
    return share(got, want, U * want + ETA + (4 + 2 * np.abs(x)) * a * want)


def softmax_share(simulator: Simulator, x: np.ndarray, a: float) -> float:
    """Of softmax(x), as docs/tolerance.md derives it; of results that are normal numbers."""
    scores = x.astype(np.float64)
    below = scores.max(axis=1, keepdims=True) - scores
    want = np.exp(-below) / np.exp(-below).sum(axis=1, keepdims=True)
    e = a * np.abs(scores) + 2 * a * below + 4 * a
    most, least = ((want * np.exp(s * e)).sum(axis=1, keepdims=True) for s in (1, -1))
    moved = np.maximum(want * np.exp(e) / least - want, want - want * np.exp(-e) / most)
    unit = moved + (U + 2 * x.shape[1] * A + 4 * a) * want + ETA
    normal = want >= SMALLEST_NORMAL
    return share(simulator.run("Softmax", x=x)[normal], want[normal], unit[normal])


def share(got: np.ndarray, want: np.ndarray, unit: np.ndarray) -> float:
    """The largest error in units."""
    return float((np.abs(got - want) / unit).max())


def main() -> None:
    """Print a line for each operator and size."""
    simulator, random = Simulator(), np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    for lowest in (1, 4, 8):
        x = (-random.random((64, 64)) * lowest).astype(np.float16)
        shares = [exp_share(simulator, x, a) for a in (A, U)]
        print(f"Exp of {-lowest} to 0: {shares[0]:.2f} with float32, {shares[1]:.2f} with float16")
    for spread in (0.25, 1, 4, 16):
        for length in (2, 16, 64, 1024):
            x = (normal(64, length) * spread).astype(np.float16)
            shares = [softmax_share(simulator, x, a) for a in (A, U)]
            what = f"Softmax of {length} scores with the spread {spread}"
            print(f"{what}: {shares[0]:.2f} with float32, {shares[1]:.2f} with float16")
    for length in (8, 64, 512):
        x, w = normal(64, length).astype(np.float16), normal(length, 64).astype(np.float16)
        exact, exact_w = x.astype(np.float64), w.astype(np.float64)
        for name, got, want, terms in (
            ("ReduceSum", simulator.run("ReduceSum", x=x), exact.sum(1, keepdims=True),
             np.abs(exact).sum(1, keepdims=True)),
            ("MatMul", simulator.run("MatMul", x=x, w=w), exact @ exact_w,
             np.abs(exact) @ np.abs(exact_w)),
        ):  # fmt: skip
            unit = U * np.abs(want) + ETA + length * A * terms
            print(f"{name} of {length} terms: {share(got, want, unit):.2f} with float32")


if __name__ == "__main__":
    main()
