"""Saves the graph that ONNX Runtime's own optimiser makes of a model for the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime


def main(source: Path, target: Path) -> None:
    """Write the optimised model of the folder ``source`` into the folder ``target``."""
    target.mkdir()
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target / "model.onnx")
    # The next level's operators exist for the machine's processor only.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(source / "model.onnx", options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
