"""Hostile graphs: each becomes a case, or is refused by a sentence, soon.

A mutant is a shipped graph with bytes, names, numbers or nodes changed. It is read, its inputs are
drawn, and it is computed: all that happens before a runner is started.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import onnx
import pytest
from case_files import HEAD, write
from endings import no_hang

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.bundle.script import script_of
from conformance.case.load import load_file
from conformance.oracle import OracleError

CONTENTS = [file.read_bytes() for file in sorted((data_path("cases") / "blocks").glob("*.onnx"))]
FIELDS = "sequence_length: 3, past_sequence_length: 2, dtype: {}"


def bytes_changed(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(changed))
        way = chance.randrange(3)
        if way == 0:
            changed[at] = chance.randrange(256)
        elif way == 1:
            del changed[at : at + chance.randint(1, 20)]
        else:
            changed[at:at] = chance.randbytes(chance.randint(1, 20))
    return bytes(changed)


def graph_changed(content: bytes, chance: random.Random) -> bytes:
    """A graph that is still a message, with something wrong in it."""
    model = onnx.load_model_from_string(content)
    graph = model.graph
    for _ in range(chance.randint(1, 3)):
        node = chance.choice(graph.node) if graph.node else onnx.NodeProto()
        name = chance.choice(["query", "attention", "present_key", "q_proj.codes", "", "nothing"])
        number = chance.choice([0, 1, -1, 2, 3, 7, 1 << 20, 1 << 40, -(1 << 62)])
        way = chance.randrange(9)
        if way == 0 and node.input:
            node.input[chance.randrange(len(node.input))] = name
        elif way == 1 and node.output:
            node.output[chance.randrange(len(node.output))] = name
        elif way == 2 and node.attribute:
            chance.choice(node.attribute).i = number
        elif way == 3:
            node.op_type = chance.choice(["MatMul", "If", "Reshape", "Gather", "Softmax", "Nope"])
        elif way == 4 and graph.initializer:
            tensor = chance.choice(graph.initializer)
            if tensor.dims:
                tensor.dims[chance.randrange(len(tensor.dims))] = number
        elif way == 5 and graph.input:
            dims = chance.choice(graph.input).type.tensor_type.shape.dim
            if dims:
                chance.choice(dims).dim_value = number
        elif way == 6 and graph.input:
            chance.choice(graph.input).type.tensor_type.elem_type = chance.randrange(20)
        elif way == 7 and graph.node:
            del graph.node[chance.randrange(len(graph.node))]
        elif graph.initializer:
            chance.choice(graph.initializer).data_type = chance.randrange(20)
    return bytes(model.SerializeToString())


def ending(file: Path) -> tuple[str, str]:
    """What becomes of the file's only case, and the message."""
    try:
        (case,) = load_file(file)
    except InputError as error:
        return "refused", str(error)
    script = script_of(case.call)
    try:
        script.compute(script.steps[0].inputs)
    except OracleError as error:
        return "has no meaning", str(error).partition("\n")[0]
    return "computed", ""


@pytest.mark.parametrize("count", [300, pytest.param(6_000, marks=pytest.mark.slow)])
def test_a_mutant_is_a_case_or_is_refused(tmp_path: Path, count: int) -> None:
    """0 other errors, and none takes more than 20 seconds."""
    ended: Counter[str] = Counter()
    for seed in range(count):
        chance = random.Random(seed)
        change = chance.choice([bytes_changed, graph_changed, graph_changed])
        content = change(chance.choice(CONTENTS), chance)
        (tmp_path / "g.onnx").write_bytes(content)
        fields = FIELDS.format(chance.choice(["float32", "float16"]))
        file = write(tmp_path, HEAD + f"  - {{name: a, graph: g.onnx, {fields}}}\n")
        with no_hang(f"the mutant {seed}"):
            how, said = ending(file)
        assert (how == "computed") == (said == ""), (seed, how)
        assert len(said.splitlines()) < 4, (seed, said)
        assert all(line.isprintable() for line in said.splitlines()), (seed, said)
        ended[how] += 1
    assert sum(ended.values()) == count
    assert min(ended.values()) > count / 100, ended
