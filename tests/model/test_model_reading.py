"""Reading a user's model without its weights: what is found in it, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from attention_models import GEMMA, Layer, decoder, saved, weight
from goldens import check_golden
from onnx import TensorProto, helper, numpy_helper
from tables import tables

from conformance.base.explain import reason_of
from conformance.bundle.inputs import draw_inputs
from conformance.case.steps import steps_of
from conformance.graph.nodes import nodes_of
from conformance.graph.reading import ModelError, as_model_errors, read_model
from conformance.model.calls.groups import groups_of
from conformance.model.calls.stages import Lengths, stages_of
from conformance.model.calls.subject import subject_of
from conformance.model.config.config_calls import read_configuration
from conformance.model.config.configuration import Configuration, configuration_beside
from conformance.operator.call import checked_call
from conformance.operator.tensors import attributes_of
from conformance.oracle.read_call import read_call

TABLES = tables(__file__)

PLAIN = Configuration()


def nodes(model: onnx.ModelProto, folder: Path):
    return nodes_of(read_model(saved(model, folder))).nodes


def groups(model: onnx.ModelProto, folder: Path):
    return groups_of(nodes(model, folder), PLAIN)[0]


def form(model: onnx.ModelProto, folder: Path):
    """The form of the only group of a model."""
    (group,) = groups(model, folder)
    return group.form


def declared(name: str, dtype: int, *dims: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


# Files


def test_external_data_need_not_be_there(tmp_path: Path) -> None:
    assert [group.layers for group in groups(decoder(*GEMMA), tmp_path)] == [(0,), (1,), (2,), (3,)]


def test_weights_inside_are_not_loaded(tmp_path: Path) -> None:
    model = decoder(Layer())
    big = numpy_helper.from_array(np.zeros(1 << 22, np.float32), "big")
    small = numpy_helper.from_array(np.arange(4), "small")
    model.graph.initializer.extend([big, small])
    file = saved(model, tmp_path)
    assert file.stat().st_size > 1 << 24
    read = read_model(file).proto
    kept = {tensor.name: tensor for tensor in read.graph.initializer}
    assert list(kept["big"].dims) == [1 << 22]
    assert not kept["big"].raw_data
    assert numpy_helper.to_array(kept["small"]).tolist() == [0, 1, 2, 3]


# Graphs


def test_nodes_may_be_in_any_order(tmp_path: Path) -> None:
    model = decoder(*GEMMA)
    backwards = [*reversed(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(backwards)
    assert len(groups(model, tmp_path)) == 4


def test_nodes_in_subgraphs_are_found(tmp_path: Path) -> None:
    model = decoder(Layer())
    node = model.graph.node.pop()
    body = helper.make_graph([node], "body", [], list(model.graph.output))
    made = [output.name for output in model.graph.output]
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node.append(helper.make_node("If", ["which"], made, name="choice", **branches))
    model.graph.input.append(declared("which", TensorProto.BOOL))
    found = nodes(model, tmp_path)
    assert [each.name.partition("#")[0] for each in found] == [
        "choice/body//model/layers.0/attn/GroupQueryAttention"
    ] * 2
    assert found[0].type("past_key").dims == ("batch_size", 2, "past_sequence_length", 16)
    assert found[0].type("query").dims == ("batch_size", "sequence_length", 64)


# Forms


def test_the_forms_of_nodes(tmp_path: Path) -> None:
    told = []
    for name, fields in TABLES["forms"].items():
        model = decoder(Layer(**fields), rows=77)
        graph = model.graph
        graph.input.append(declared("ids", TensorProto.INT64, "batch_size", "length"))
        graph.input.append(declared("bias", 1, "batch_size", 1, "length", "total"))
        graph.initializer.extend([weight("sink", 1, [4]), weight("norm", 1, [16])])
        graph.initializer.append(weight("scale", 1, [1]))
        for tensor in graph.initializer:
            if name == "4 columns" and tensor.name in ("cos.0", "sin.0"):
                tensor.dims[1] = 4
        for value in graph.input:
            if name.startswith("codes") and value.name.startswith("past"):
                value.type.tensor_type.elem_type = TensorProto.UINT8
                value.type.tensor_type.shape.dim[3].dim_value = 8
        if name.startswith("lengths"):
            first, last = (1, "batch_size") if name.endswith("last") else ("batch_size", 1)
            graph.input[1].CopyFrom(declared("seqlens_k", TensorProto.INT32, first, last))
        found = form(model, tmp_path)
        told.append(f"{name}: {found.cache}, {found.table_rows} rows, {found.fields}")
    check_golden("forms.txt", "\n".join(told) + "\n")


def test_what_lies_beside_the_model(tmp_path: Path) -> None:
    assert configuration_beside(tmp_path / "model.onnx") == PLAIN
    config = {"text_config": {"head_dim": 256, "dtype": "bfloat16", "sliding_window": 512,
                              "layer_types": ["sliding_attention", "full_attention"],
                              "attn_logit_softcapping": 50.0}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    genai = {"search": {"past_present_share_buffer": True}}
    (tmp_path / "genai_config.json").write_text(json.dumps(genai))
    beside = configuration_beside(tmp_path / "model.onnx")
    assert (beside.head_size, beside.dtype, beside.shared_buffer) == (256, "bfloat16", True)
    assert [(layer.window, layer.softcap) for layer in beside.layers] == [(512, 50.0), (0, 50.0)]
    for text, sentence in (
        ("[]", r"not a JSON object\."),
        ("{", "not JSON: "),
        (f'{{"attn_logit_softcapping": {"9" * 400}}}', r".* has a number of 400 digits\."),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=f"config.json: {sentence}"):
            configuration_beside(tmp_path / "model.onnx")


@pytest.mark.parametrize("unused", [{"use_sliding_window": False}, {"layer_types": ["full"] * 2}])
def test_a_window_that_the_model_does_not_use(tmp_path: Path, unused: dict[str, object]) -> None:
    config = {"num_hidden_layers": 2, "sliding_window": 512, **unused}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not any(each.window for each in configuration_beside(tmp_path / "model.onnx").layers)


# Groups


def test_stages_of_a_node_with_query_seqlens(tmp_path: Path) -> None:
    """A prompt, chunks with padding and an idle entry, single tokens, and a loop."""
    model = decoder(Layer(inputs={16: "counts"}))
    model.graph.input.append(declared("counts", TensorProto.INT32, "batch_size"))
    found = form(model, tmp_path)
    stages = {stage.label: stage for stage in stages_of(found, Lengths())}
    counts = {label: stage.fields.get("query_seqlens") for label, stage in stages.items()}
    assert counts.items() >= {"prompt_6": [6], "padded_8": [4, 0, 8]}.items()
    assert counts.items() >= {"ragged_prompt_9_5": [9, 5], "loop": [[6], [1], [1], [3]]}.items()
    assert counts.keys() >= {"padded_1", "chunk_5_on_12", "decode_on_16"}
    for stage in stages.values():
        call = checked_call({**found.fields, **stage.fields})
        for step in steps_of(call):  # each has a meaning
            inputs = draw_inputs(call, step)
            if not step.carried:
                read_call(inputs, attributes_of(call), step.connected_outputs)


def test_equal_nodes_are_one_group(tmp_path: Path) -> None:
    sliding = Layer(attributes={"local_window_size": 512})
    made = groups(decoder(*[sliding] * 5, Layer(), *[sliding] * 5, Layer()), tmp_path)
    assert [(group.name, group.title) for group in made] == [
        ("window_512", "Layers 0–4 and 6–10"),
        ("global", "Layers 5 and 11"),
    ]


def test_presents_of_layers_that_borrow_are_not_read(tmp_path: Path) -> None:
    made = groups(decoder(*GEMMA), tmp_path)
    assert [group.form.reads_presents for group in made] == [True, True, False, False]


def test_forms_that_differ_in_little_have_names_of_their_own(tmp_path: Path) -> None:
    made = groups(decoder(Layer(), Layer(size=32), Layer(packed=True)), tmp_path)
    assert [group.name for group in made] == ["global_1", "global_2", "global_3"]


# What a stranger puts into a model


def test_a_name_is_one_short_line_wherever_it_stands(tmp_path: Path) -> None:
    model = decoder(*GEMMA)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}\n  fix: evil" if name == "seqlens_k" else name for name in names]
    model.graph.input[1].name += "\n  fix: evil"
    first, second, *_ = (n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    first.name, second.name = "a\nb", "x" * 10_000
    model.producer_name = "maker\r\n  fix: evil"
    read = read_model(saved(model, tmp_path))
    assert read.renamed
    assert read.producer.splitlines() == [read.producer]
    found = nodes_of(read).nodes
    assert [len(each.name) < 500 for each in found] == [True] * len(found)
    assert found[0].name == "a⟨U+000A⟩b"
    assert found[0].inputs["seqlens_k"] == "seqlens_k⟨U+000A⟩  fix: evil"
    # It is the same model: the shapes are known, and borrowed caches are found.
    assert [each.layers for each in groups(model, tmp_path)] == [
        each.layers for each in groups(decoder(*GEMMA), tmp_path)
    ]
    assert not read_model(saved(decoder(*GEMMA), tmp_path)).renamed


def test_the_number_of_a_layer_is_short(tmp_path: Path) -> None:
    model = decoder(Layer(), Layer())
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.name = f"layers.{'9' * 100_000}{node.name}"
    assert [node.layer for node in nodes(model, tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    "odd",
    [
        TensorProto(dims=[2], data_type=TensorProto.INT64),
        TensorProto(dims=[-3], data_type=TensorProto.INT64, int64_data=[1]),
        TensorProto(dims=[2**62, 2**62], data_type=TensorProto.INT32, raw_data=b"1234567"),
        TensorProto(dims=[1], data_type=99, raw_data=b"1"),
        TensorProto(dims=[1], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL),
    ],
    ids=["empty", "negative", "huge", "no type", "elsewhere"],
)
def test_an_odd_initializer_does_not_cost_the_model(tmp_path: Path, odd: TensorProto) -> None:
    odd.name = "odd"
    if odd.data_location == TensorProto.EXTERNAL:
        odd.external_data.add(key="location", value="../../../etc/passwd")
    model = decoder(Layer())
    model.graph.initializer.append(odd)
    sliced = helper.make_node("Slice", ["hidden", "odd", "odd", "odd"], ["rows"], name="cut")
    model.graph.node.append(sliced)
    assert len(nodes(model, tmp_path)) == 1


def test_what_would_be_made_is_counted_before_it_is_made(tmp_path: Path) -> None:
    model = decoder(Layer())
    attention = model.graph.node.pop()
    body = helper.make_graph([attention], "body", [], list(model.graph.output))
    for depth in range(6):
        made = [output.name for output in model.graph.output]
        branches = {"then_branch": body, "else_branch": body}
        choice = helper.make_node("If", ["which"], made, name=f"at {depth}", **branches)
        body = helper.make_graph([choice], "body", [], list(model.graph.output))
    model.graph.node.append(choice)
    with pytest.raises(ModelError, match="more than 64 of its subgraphs have attention"):
        nodes(model, tmp_path)
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 100000000000, "num_attention_heads": 8, "hidden_size": 64}'
    )
    with pytest.raises(ModelError, match="its num_hidden_layers is 100,000,000,000"):
        read_configuration(tmp_path)


def test_a_configuration_has_texts_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma\\n  fix: evil"}')
    assert configuration_beside(tmp_path / "model.onnx").model_type == "gemma⟨U+000A⟩  fix: evil"


def test_an_error_that_nobody_foresaw_says_where_it_was_raised(tmp_path: Path) -> None:
    """So a fault of the suite is not taken for one of the model."""
    with pytest.raises(ModelError) as caught, as_model_errors(tmp_path / "model.onnx"):
        print({}["past_key"])
    assert caught.match(
        r"cannot be understood: 'past_key' \(KeyError in test_model_reading.py, line \d+\)\.$"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert reason_of(ModelError("it is empty")) == "it is empty"


def test_sizes_that_no_tensor_has_are_told_of_the_node(tmp_path: Path) -> None:
    model = decoder(Layer(size=1 << 31))
    with pytest.raises(
        ModelError, match=r"GroupQueryAttention: head_size 2147483648: Input should be less"
    ):
        subject_of(saved(model, tmp_path), Lengths())
