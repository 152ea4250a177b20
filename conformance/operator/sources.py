"""The texts and decisions that say what the operator means."""

from __future__ import annotations

from typing import Final

ONNXRUNTIME: Final = "https://github.com/microsoft/onnxruntime"
DOCUMENTATION: Final = (
    f"{ONNXRUNTIME}/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention"
)
KERNELS: Final = f"{ONNXRUNTIME}/blob/main/onnxruntime/contrib_ops"
#: What all kernels of ONNX Runtime check first.
HELPER: Final = f"{KERNELS}/cpu/bert/group_query_attention_helper.h"
BORROWING: Final = f"{ONNXRUNTIME}/pull/28242"
OMITTING: Final = f"{ONNXRUNTIME}/issues/28318"
BIDIRECTIONAL: Final = f"{ONNXRUNTIME}/pull/31704"
SLIDING: Final = f"{ONNXRUNTIME}/pull/29904"
BIAS_ON_CUDA: Final = f"{ONNXRUNTIME}/pull/29525"
SCORES: Final = f"{ONNXRUNTIME}/pull/25319"
OMITTED_PRESENTS: Final = f"{ONNXRUNTIME}/pull/28689"
SUITE: Final = "docs/cases.md"

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
WEBGPU: Final = "WebGpuExecutionProvider"
JSEP: Final = "JsExecutionProvider"
