"""The contract of a call that has none in its file: it follows from the features of the call.

The table :data:`conformance.case.basis.GROUNDS` has the basis of a call that must be computed. This
module adds the calls on which texts are silent and kernels disagree, and those for which one
execution provider must behave differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from conformance.case.basis import BIAS_ON_CUDA, BIASES, KERNELS, contract_on, quoted
from conformance.case.call import Call, GraphCall
from conformance.case.contract import Contract
from conformance.case.features import (
    BIDIRECTIONAL,
    BY_NAME,
    DOCUMENTATION,
    SLIDING,
    features_of,
)
from conformance.case.tensors import Step

HEAD_SIZES: Final = f"{KERNELS}/cpu/bert/group_query_attention_helper.h"
NARROW_TABLES: Final = "https://github.com/microsoft/onnxruntime/pull/19874"
NORM_ON_WEBGPU: Final = "https://github.com/microsoft/onnxruntime/pull/28484"
OMITTED_PRESENTS: Final = "https://github.com/microsoft/onnxruntime/pull/28689"
SCORES: Final = "https://github.com/microsoft/onnxruntime/pull/25319"
QUANTISED: Final = "https://github.com/microsoft/onnxruntime/pull/28576"
#: A merged decision that a window is not applied to a borrowed cache on WebGPU.
WINDOWLESS: Final = "https://github.com/microsoft/onnxruntime/pull/32462"

#: The value of each feature.
Row = Mapping[str, str]
#: The fields of a contract, as in a case file.
Terms = dict[str, Any]

#: Questions about a sliding_window_cache that the documentation does not answer.
OPEN: Final = (
    ("output_qk", BY_NAME["output_qk"].values[1:], "which keys output_qk has then"),
    ("presents", ("none", "one"), "whether such a cache may do without its presents"),
    ("key_value", ("zero_length",), "whether such a cache can be borrowed"),
)

_BIAS_OF_A_WINDOW: Final = (
    "CPU supports this windowed absolute-column indexing; CUDA rejects attention_bias when"
    " sliding_window_cache is 1."
)
#: call_of gives a sliding-window cache one row more than its window.
_LONGER_THAN_THE_WINDOW: Final = "An execution provider may accept only part of the `C >= W` range."
_HONORED: Final = (
    "Currently honored by the CUDA and native WebGPU execution providers; JSEP WebGPU/JS and other"
    " EPs must reject the node when this input is set."
)
_HONORED_CHUNKS: Final = (
    "Currently honored by the CPU and CUDA execution providers; other EPs must reject the node when"
    " this input is set."
)
_CLEAR: Final = (
    "`NOT_IMPLEMENTED` (explicit, clear errors instead of the previous blanket rejection)"
)

#: Merged decisions about single execution providers: the values of a row that they concern, the
#: providers, and the differences of the contract. Of several demands the strictest counts.
ELSEWHERE: Final[tuple[tuple[Mapping[str, tuple[str, ...]], tuple[str, ...], Terms], ...]] = (
    (
        {"causal": ("bidirectional",)},
        ("WebGpuExecutionProvider", "JsExecutionProvider"),
        {
            "demands": "either",
            "basis": "specified",
            "source": BIDIRECTIONAL,
            "why": quoted("WebGPU and JS report `NOT_IMPLEMENTED` for `causal=0`.") + ".",
            "mentions": ["causal"],
        },
    ),
    (
        {"output_qk": BY_NAME["output_qk"].values[1:]},
        ("CUDAExecutionProvider", "WebGpuExecutionProvider", "JsExecutionProvider"),
        {
            "demands": "either",
            "basis": "specified",
            "source": SCORES,
            "why": quoted("Added asserts on other EPs if this feature is used") + ".",
            "mentions": ["output_qk", "qk_output"],
        },
    ),
    (
        {"cache": ("sliding_window",)},
        ("WebGpuExecutionProvider", "JsExecutionProvider"),
        {
            "demands": "either",
            "basis": "specified",
            "source": SLIDING,
            "why": quoted(
                "CPU / JS / WebGPU GQA return `NOT_IMPLEMENTED` for `sliding_window_cache=1`"
                " rather than silently computing the wrong result."
            )
            + ".",
            "mentions": ["sliding_window_cache"],
        },
    ),
    (
        {"cache": ("sliding_window",)},
        ("CUDAExecutionProvider",),
        {
            "demands": "rejects",
            "basis": "specified",
            "source": DOCUMENTATION,
            "why": quoted(
                "The CUDA implementation requires `C == W`, so there `G` is 1 and `L(T)` is"
                " `min(T, C)`; a larger capacity is rejected."
            )
            + ".",
            "mentions": ["capacity", "local_window_size", "sliding_window_cache"],
        },
    ),
    (
        {"attention_bias": BIASES, "sink": BY_NAME["sink"].values[1:]},
        ("CUDAExecutionProvider",),
        {
            "demands": "either",
            "basis": "specified",
            "source": BIAS_ON_CUDA,
            "why": f"It kept {quoted(_CLEAR)} for {quoted('bias × smooth-softmax/head_sink')}.",
            "mentions": ["attention_bias"],
        },
    ),
    (
        {"attention_bias": BIASES, "quantised": BY_NAME["quantised"].values[1:]},
        ("CUDAExecutionProvider",),
        {
            "demands": "either",
            "basis": "specified",
            "source": BIAS_ON_CUDA,
            "why": f"It kept {quoted(_CLEAR)} for a bias with a quantised cache, too.",
            "mentions": ["attention_bias"],
        },
    ),
    (
        {"qk_norm": ("given",)},
        ("CPUExecutionProvider", "JsExecutionProvider"),
        {
            "demands": "rejects",
            "basis": "specified",
            "source": DOCUMENTATION,
            "why": quoted(_HONORED) + ".",
            "mentions": ["q_norm_weight", "k_norm_weight"],
        },
    ),
    (
        {"query_seqlens": BY_NAME["query_seqlens"].values[1:]},
        ("WebGpuExecutionProvider", "JsExecutionProvider"),
        {
            "demands": "rejects",
            "basis": "specified",
            "source": DOCUMENTATION,
            "why": quoted(_HONORED_CHUNKS) + ".",
            "mentions": ["query_seqlens"],
        },
    ),
)
_STRICTER: Final = ("computes", "either", "rejects")


def contract_of(row: Row) -> Terms:
    """The row's contract: that of its weakest feature, or `either` where kernels disagree."""
    contract = _either(row) or contract_on(row)
    usual = contract.get("demands", "computes")  # on a provider that no text names
    whole: Terms = {}  # what holds for every provider
    if readings := contract.pop("readings", []):
        whole["readings"] = readings
    if row["key_value"] == "zero_length" and row["window"] == "shorter":
        whole["disputed"] = WINDOWLESS
    providers: dict[str, Terms] = {}
    if row["cache"] == "sliding_window" and usual == "computes":
        on_cpu = {"demands": "computes", **contract}
        if contract["source"] == DOCUMENTATION:
            on_cpu["why"] += f" {quoted('The CPU implementation accepts any `C >= W`')}."
        providers["CPUExecutionProvider"] = on_cpu
        bias = row["attention_bias"] != "none"
        contract = {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": quoted(_BIAS_OF_A_WINDOW if bias else _LONGER_THAN_THE_WINDOW) + ".",
            "mentions": [
                *(["attention_bias"] if bias else []),
                *("sliding_window_cache", "local_window_size", "capacity"),
            ],
        }
    if row["qk_norm"] == "given":
        computes = {"demands": "computes", **contract}
        providers["CUDAExecutionProvider"] = computes
        if row["rotary"] != "none" and row["key_value"] != "packed":  # its kernels rotate as well
            providers["WebGpuExecutionProvider"] = computes
        else:
            providers["WebGpuExecutionProvider"] = {
                "demands": "either",
                "basis": "specified",
                "source": NORM_ON_WEBGPU,
                "why": quoted("The optimizer only rewrites nodes that the WebGPU kernel can handle")
                + "; these must be rotated and not packed.",
            }
        contract = {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": quoted(_HONORED) + ".",
            "mentions": ["q_norm_weight", "k_norm_weight"],
        }
    if row["query_seqlens"] != "none":
        for name in ("CPUExecutionProvider", "CUDAExecutionProvider"):
            providers.setdefault(name, {"demands": usual, **contract})
        contract = {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": quoted(_HONORED_CHUNKS) + ".",
            "mentions": ["query_seqlens", *contract.get("mentions", [])],
        }
    for values, names, different in ELSEWHERE:
        for name in names if all(row[feature] in of for feature, of in values.items()) else ():
            now = providers[name]["demands"] if name in providers else usual
            if _STRICTER.index(different["demands"]) > _STRICTER.index(now):
                providers[name] = different
    return {**contract, **whole, **({"providers": providers} if providers else {})}


def contract_by_features(call: Call, steps: tuple[Step, ...]) -> Contract | None:
    """The contract of a call; None if one of its features has a value that is not listed."""
    if isinstance(call, GraphCall):
        return None
    try:
        return _validated(tuple(features_of(call, steps).items()))
    except KeyError:
        return None


@cache
def _validated(features: tuple[tuple[str, str | None], ...]) -> Contract:
    row = {name: value for name, value in features if value is not None}
    return Contract.model_validate(contract_of(row))


def _either(row: Row) -> Terms | None:
    """The contract of a row on which texts are silent and kernels disagree."""
    if row["key_value"] == "omitted":
        return None
    if made := _excluded(row):
        return made
    of_chunks = row["query_seqlens"] != "none"
    if of_chunks and row["presents"] != "both":
        return {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": "The room of a cache is that of "
            + quoted("the sequence dimension of `present_key`")
            + "; no text says whether a prompt with query_seqlens may do without it.",
            "mentions": ["present"],
        }
    if (row["phase"], row["lengths"], row["causal"]) == ("prefill", "ragged", "bidirectional"):
        return {
            "demands": "either",
            "source": BIDIRECTIONAL,
            "why": quoted("the full valid key sequence")
            + " does not say that seqlens_k ends it; some of ONNX Runtime's CUDA kernels attend to"
            " the padding of a prompt.",
            "mentions": ["seqlens_k", "causal"],
            "readings": ["prompt_without_lengths"],
        }
    if of_chunks and (row["phase"], row["position_ids"]) == ("prefill", "given"):
        return {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": quoted("When processing the first prompt the kernel uses only the first element")
            + ", but total_sequence_length "
            + quoted("is not used to determine the prompt case")
            + ": each element counts, or only the first of each row.",
            "mentions": ["position_ids"],
            "readings": ["prompts_of_query_seqlens"],
        }
    if row["rotary"] != "none" and row["head_size"] in ("8", "40"):
        return {
            "demands": "either",
            "basis": "established",
            "source": HEAD_SIZES,
            "why": "The documentation sets no limit to head_size, but all kernels of ONNX Runtime"
            " reject this one with rotary tables.",
            "mentions": ["head_size", "cos_cache", "rotary"],
        }
    if row["rotary"].startswith("partial_") and row["head_size"] == "16":
        return {
            "demands": "either",
            "source": NARROW_TABLES,
            "why": "The documentation gives the tables head_size / 2 columns. Narrower ones were"
            f" allowed where their width is {quoted('<= head_size / 2 and a multiple of 8')}, which"
            " it is not here.",
            "mentions": ["cos_cache", "rotary", "head_size"],
        }
    if row["presents"] == "one":
        return {
            "demands": "either",
            "source": OMITTED_PRESENTS,
            "why": quoted("Marked the `present_key` and `present_value` outputs as optional")
            + " says nothing of one without the other, and kernels disagree.",
            "mentions": ["present"],
        }
    if row["presents"] == "none" and row["quantised"] != "none":
        return {
            "demands": "either",
            "source": QUANTISED,
            "why": "No text says whether a quantised cache may do without its presents, and kernels"
            " disagree.",
            "mentions": ["present"],
        }
    return None


def _excluded(row: Row) -> Terms | None:
    """The contract of a row that the documentation excludes or does not describe."""
    chunks = row["query_seqlens"] != "none"  # which allow batches of several tokens
    if row["phase"] == "chunked_prefill" and row["batch"] == "more" and not chunks:
        return {
            "demands": "either",
            "source": DOCUMENTATION,
            "why": quoted("`sequence_length > 1` requires `batch_size == 1`")
            + " with a past; computing a larger batch is right, too, since its meaning is clear.",
            "mentions": ["batch_size", "sequence_length"],
        }
    for name, values, question in OPEN:
        if row["cache"] == "sliding_window" and row[name] in values:
            return {
                "demands": "either",
                "source": DOCUMENTATION,
                "why": f"The documentation of window-sized caches does not say {question}.",
                "mentions": ["sliding_window_cache"],
            }
    return None
