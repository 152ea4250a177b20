"""Searches for models, which the command and the page must understand alike."""

from __future__ import annotations

from typing import Final

_QWEN: Final = {
    "qwen3_genai_webgpu_float16",
    "qwen3_genai_webgpu_int4",
    "qwen3_mobius_webgpu_float16",
}
_HALVES: Final = {"qwen3_genai_cuda_float16", "qwen3_mobius_cuda_float16"}
_FULL: Final = {"qwen3_genai_cpu", "qwen3_genai_cpu_int4", "qwen3_mobius_cpu"}
_GEMMA: Final = {
    "gemma3_genai_0_13_cpu",
    "gemma3_genai_0_13_cpu_int4",
    "gemma3_genai_0_13_webgpu_float16",
}

#: What is typed, the graphs that it means, and the columns that it chooses; none: all of them.
SEARCHES: Final[list[tuple[str, set[str], set[str]]]] = [
    ("qwen3 float16 webgpu", _QWEN, {"webgpu"}),
    ("Qwen/Qwen3-0.6B", {*_QWEN, *_HALVES, *_FULL}, set()),
    ("Qwen/Qwen3-0.6B half", {*_QWEN, *_HALVES}, set()),
    ("Qwen/Qwen3-1.7B", set(), set()),
    ("qwen 3 fp32 cpu", _FULL, {"cpu"}),
    ("llama 3.2 cuda", {"llama3_genai_cuda_float16", "llama3_mobius_cuda_float16"}, {"cuda"}),
    ("meta-llama/Llama-3.2-1B-Instruct f16 dml",
     {"llama3_genai_dml_float16", "llama3_mobius_dml_float16"}, set()),
    ("llama 3.2 q4", {"llama3_genai_cpu_int4", "llama3_genai_webgpu_int4"}, set()),
    ("llama3.2 4-bit tract", {"llama3_genai_cpu_int4", "llama3_genai_webgpu_int4"},
     {"tract-wheel"}),
    ("google/gemma-3-1b-it", _GEMMA, set()),
    ("google/gemma-3-1b-it 4bit", {"gemma3_genai_0_13_cpu_int4"}, set()),
    ("GEMMA3 wasm 1.27", _GEMMA, {"wasm"}),
    ("qwen 3 fp32 OpenVINO", _FULL, {"openvino"}),
    ("mistralai/Mistral-7B-Instruct-v0.3 int4", {"mistral_v03_genai_cpu_int4"}, set()),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", {"smollm2_genai_webgpu_float16"}, set()),
]  # fmt: skip
