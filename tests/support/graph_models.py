"""Small graphs for tests, written as text, and what the oracle makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from case_files import cases_of

from conformance.case.case import Case
from conformance.oracle import Reference
from conformance.oracle.graph_reference import GraphReference

#: Written before the graph of every model.
HEAD = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>\n'

#: A single attention: 2 query heads share a head of 8.
ATTENTION = """
agraph (float[B, S, 16] query, float[B, S, 8] key, float[B, S, 8] value,
        float[B, 1, P, 8] past_key, float[B, 1, P, 8] past_value,
        int32[B] seqlens_k, int32 total) => (float[B, S, 16] output) {
  output, present_key, present_value = com.microsoft.GroupQueryAttention
    <num_heads = 2, kv_num_heads = 1>
    (query, key, value, past_key, past_value, seqlens_k, total)
}
"""


#: The same for operators of a later set.
HEAD_23 = HEAD.replace('"" : 18', '"" : 23')


def declared(inputs: Mapping[str, np.ndarray]) -> str:
    """The inputs of a graph with the types and shapes of these arrays, as text."""
    kinds = {"f": "float", "b": "bool", "u": "uint8", "i": "int64"}
    return ", ".join(
        f"{kinds[array.dtype.kind]}[{', '.join(map(str, array.shape))}] {name}"
        for name, array in inputs.items()
    )


def model_of(text: str, left_out: Mapping[str, tuple[int, list[int]]] | None = None) -> bytes:
    """The model that ``text`` describes, with constants (type, dims) whose data is left out."""
    model = onnx.parser.parse_model(HEAD + text)
    for name, (kind, dims) in (left_out or {}).items():
        model.graph.initializer.add(name=name, data_type=kind, dims=dims).data_location = 1
    return model.SerializeToString()


def graph_cases(folder: Path, content: bytes, fields: str = "sequence_length: 3") -> list[Case]:
    """The cases of an entry with this graph and these fields."""
    (folder / "graph.onnx").write_bytes(content)
    lines = "".join(f"\n  {line}" for line in fields.splitlines())
    return cases_of(folder, f"- name: one\n  graph: graph.onnx{lines}")


def computed(text: str, inputs: Mapping[str, Any]) -> dict[str, Reference]:
    """The references of a graph's outputs."""
    program = GraphReference(onnx.load_model_from_string(model_of(text)))
    return program.references({name: np.asarray(array) for name, array in inputs.items()})
