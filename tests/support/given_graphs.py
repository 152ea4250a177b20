"""Graphs as people and exporters write them, of which a good answer of ``gqa check`` is known.

What ``decoder`` of a table says is written by ``twin_decoders``; the graphs here have something
that it cannot say. Each function of ``GRAPHS`` gives models by file name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from twin_decoders import INPUTS, MS, Decoder, graph_of, usual
from twin_faults import config_of, genai_config_of
from twin_programs import established

HEADS, KV, SIZE, WIDTH = 4, 2, 16, 32
Models = dict[str, onnx.ModelProto]
GRAPHS: dict[str, Callable[[], Models]] = {}

QKV = ["batch", "new", HEADS * SIZE], ["batch", "new", KV * SIZE], ["batch", "new", KV * SIZE]
PAST, PRESENT = ["batch", KV, "past", SIZE], ["batch", KV, "all", SIZE]
SHAPES: dict[str, tuple[int, Sequence[Any]]] = {
    **{name: (T.FLOAT, dims) for name, dims in zip(("query", "key", "value"), QKV, strict=True)},
    **{f"past_{part}": (T.FLOAT, PAST) for part in ("key", "value")},
    **{f"present_{part}": (T.FLOAT, PRESENT) for part in ("key", "value")},
    "seqlens_k": (T.INT32, ["batch"]),
    "total": (T.INT32, []),
    "attention_mask": (T.INT64, ["batch", "all"]),
    "position_ids": (T.INT64, ["batch", "new"]),
    "x": (T.FLOAT, ["batch", "new", WIDTH]),
    "output": (T.FLOAT, QKV[0]),
}
PLAIN = dict(zip(INPUTS[:7], INPUTS[:7], strict=True))
ROTARY = {**PLAIN, "cos": "cos", "sin": "sin"}
OUT = ("output", "present_key", "present_value")


def graph(make: Callable[[], Models | onnx.ModelProto]) -> Callable[[], Models]:
    """A graph of this name; one model is `model.onnx`."""

    def made() -> Models:
        models = make()
        return models if isinstance(models, dict) else {"model.onnx": models}

    GRAPHS[make.__name__] = made
    return made


def const(name: str, array: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    return nh.from_array(np.asarray(array, dtype), name)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    random = np.random.default_rng([*name.encode()])
    return const(name, random.standard_normal(shape) * 0.3, np.float32)


def tables(width: int = SIZE // 2, *names: str) -> list[onnx.TensorProto]:
    angles = np.outer(np.arange(64), 100.0 ** (-np.arange(width) / width))
    made = np.cos(angles), np.sin(angles)
    return [const(n, t, np.float32) for n, t in zip(names or ("cos", "sin"), made, strict=True)]


def attention(
    inputs: Mapping[str, str] = PLAIN, outputs: Sequence[str] = OUT, number: int = 0, **other: Any
) -> onnx.NodeProto:
    last = max(INPUTS.index(name) for name in inputs)
    given = [inputs.get(name, "") for name in INPUTS[: last + 1]]
    attributes = {"num_heads": HEADS, "kv_num_heads": KV, "domain": MS, **other}
    attributes |= {"do_rotary": 1} if "cos" in inputs else {}
    name = f"/model/layers.{number}/attn/GroupQueryAttention"
    return h.make_node("GroupQueryAttention", given, outputs, name=name, **attributes)


def info(name: str, shapes: Mapping[str, Any] | None = None) -> onnx.ValueInfoProto:
    element, dims = (shapes or {}).get(name) or SHAPES.get(name) or (T.FLOAT, None)
    return h.make_tensor_value_info(name, element, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str] = INPUTS[:7],
    outputs: Sequence[str] = OUT,
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    *,
    ir: int = 10,
    opset: int = 21,
    **shapes: Any,
) -> onnx.ModelProto:
    """``shapes`` are types and dims of inputs and outputs that are not as usual."""
    ends = ([info(name, shapes) for name in names] for names in (inputs, outputs))
    made = h.make_graph(list(nodes), "main", *ends, initializer=list(weights))
    domains = [("", opset), (MS, 1), *((f.domain, 1) for f in functions if f.domain != MS)]
    opsets = [h.make_opsetid(*each) for each in dict(domains).items()]
    kinds: dict[str, Any] = {"functions": functions, "producer_name": "graph_surgery"}
    return h.make_model(made, opset_imports=opsets, ir_version=ir, **kinds)


def nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes in ONNX's own language."""
    return [*onnx.parser.parse_graph(f"g () => () {{ {text} }}").node]


def projections(x: str = "x", number: str = "") -> tuple[list[Any], list[Any]]:
    widths = {"query": HEADS * SIZE, "key": KV * SIZE, "value": KV * SIZE}
    made = [h.make_node("MatMul", [x, f"w_{n}{number}"], [f"{n}{number}"]) for n in widths]
    return made, [weight(f"w_{n}{number}", WIDTH, width) for n, width in widths.items()]


LENGTHS = """
    count = ReduceSum <keepdims = 0> (attention_mask, axis)
    last = Sub (count, axis)
    seqlens_k = Cast <to = 6> (last)
    width = Shape <start = 1, end = 2> (attention_mask)
    one_width = Squeeze (width)
    total = Cast <to = 6> (one_width)
"""
AXIS = const("axis", [1])


# Valid, and unusual


@graph
def if_first_call_has_no_past() -> onnx.ModelProto:
    def branch(tag: str, names: Mapping[str, str]) -> onnx.GraphProto:
        outs = [f"{tag}_{name}" for name in OUT]
        ends = [h.make_tensor_value_info(name, T.FLOAT, None) for name in outs]
        return h.make_graph([attention(names, outs)], tag, [], ends)

    made, weights = projections()
    prompt = {name: value for name, value in ROTARY.items() if not name.startswith("past")}
    made += nodes("""
        rows = Shape <start = 2, end = 3> (past_key)
        row = Squeeze (rows)
        has_past = Greater (row, zero)
    """)
    branches = {"then_branch": branch("step", ROTARY), "else_branch": branch("prompt", prompt)}
    made.append(h.make_node("If", ["has_past"], list(OUT), **branches))
    inputs = ("x", *INPUTS[3:7])
    return model(made, inputs, OUT, [*weights, *tables(), const("zero", 0)])


@graph
def loop_generates_in_graph() -> onnx.ModelProto:
    _, weights = projections()
    body = nodes("""
        query = MatMul (x_in, w_query)
        key = MatMul (x_in, w_key)
        value = MatMul (x_in, w_value)
        rows = Shape <start = 2, end = 3> (key_in)
        rows32 = Cast <to = 6> (rows)
        after = Add (rows32, one)
        total = Squeeze (after)
        batch = Shape <start = 0, end = 1> (x_in)
        seqlens_k = Expand (rows32, batch)
        x_out = MatMul (out, w_out)
        go_out = Identity (go_in)
    """)
    given = {**ROTARY, "past_key": "key_in", "past_value": "value_in"}
    body.insert(-2, attention(given, ("out", "key_out", "value_out")))
    ends: list[list[Any]] = []
    for way in ("in", "out"):
        values = [h.make_tensor_value_info(f"go_{way}", T.BOOL, [])]
        values.append(h.make_tensor_value_info(f"x_{way}", T.FLOAT, ["batch", 1, WIDTH]))
        dims = ["batch", KV, None, SIZE]
        parts = ("key", "value")
        values += [h.make_tensor_value_info(f"{part}_{way}", T.FLOAT, dims) for part in parts]
        ends.append(values)
    ends[0].insert(0, h.make_tensor_value_info("i", T.INT64, []))
    inner = h.make_graph(body, "step", *ends)
    loop = h.make_node(
        "Loop", ["four", "yes", "x", "past_key", "past_value"], list(OUT), body=inner
    )
    one = (T.FLOAT, ["batch", 1, WIDTH])
    numbers = [const("four", 4), const("yes", True, bool), const("one", 1, np.int32)]
    weights += [weight("w_out", HEADS * SIZE, WIDTH), *tables(), *numbers]
    return model([loop], ("x", "past_key", "past_value"), OUT, weights, x=one, output=one)


@graph
def cache_as_sequences() -> onnx.ModelProto:
    made, weights, x = [], [*tables()], "x"
    at = iter(range(4))
    for number in ("0", "1"):
        own, more = projections(x, number)
        parts = [f"{part}{number}" for part in ("key", "value")]
        for part in parts:
            weights.append(const(f"at_{part}", next(at)))
            made.append(h.make_node("SequenceAt", ["pasts", f"at_{part}"], [f"past_{part}"]))
        given = {**ROTARY, **{name: f"{name}{number}" for name in INPUTS[:5]}}
        out = f"y{number}"
        outs = (f"o{number}", *(f"new_{part}" for part in parts))
        node = attention(given, outs, int(number))
        made += [*own, node, h.make_node("MatMul", [f"o{number}", f"w_out{number}"], [out])]
        weights += [*more, weight(f"w_out{number}", HEADS * SIZE, WIDTH)]
        x = out
    news = [f"new_{part}{number}" for number in "01" for part in ("key", "value")]
    made.append(h.make_node("SequenceConstruct", news, ["presents"]))
    built = model(made, ("x", "seqlens_k", "total"), ("y1",), weights)
    of = h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, PAST))
    built.graph.input.append(h.make_value_info("pasts", of))
    built.graph.output.append(h.make_value_info("presents", of))
    return built


@graph
def dims_of_minus_one() -> onnx.ModelProto:
    shapes = {
        name: (element, [-1 if isinstance(dim, str) else dim for dim in dims])
        for name, (element, dims) in SHAPES.items()
    }
    return model([attention(ROTARY)], weights=tables(), **shapes)


@graph
def one_name_for_all_lengths() -> onnx.ModelProto:
    lengths = ("new", "past", "all")
    shapes = {
        name: (element, ["sequence" if dim in lengths else dim for dim in dims])
        for name, (element, dims) in SHAPES.items()
    }
    return model([attention(ROTARY)], weights=tables(), **shapes)


@graph
def two_steps_unrolled() -> onnx.ModelProto:
    made = nodes("""
        seqlens_2 = Add (seqlens_k, one)
        total_2 = Add (total, one)
        query_2 = Slice (first, minus, end, axis)
        key_2 = MatMul (query_2, w_key)
        value_2 = MatMul (query_2, w_value)
    """)
    second = {**ROTARY, **{name: f"{name}_2" for name in INPUTS[:3]}}
    second |= {"past_key": "mid_key", "past_value": "mid_value"}
    second |= {"seqlens_k": "seqlens_2", "total": "total_2"}
    made.insert(2, attention(ROTARY, ("first", "mid_key", "mid_value")))
    made.append(attention(second, number=1))
    numbers = [const("one", 1, np.int32), const("minus", [-1]), const("end", [2**31 - 1]), AXIS]
    own = [weight(f"w_{part}", HEADS * SIZE, KV * SIZE) for part in ("key", "value")]
    return model(made, weights=[*tables(), *numbers, *own])


@graph
def encoder_of_fixed_length() -> onnx.ModelProto:
    widths = {"query": HEADS, "key": KV, "value": KV, "output": HEADS}
    shapes = {name: (T.FLOAT, [1, 1500, n * SIZE]) for name, n in widths.items()}
    given = {name: value for name, value in PLAIN.items() if not name.startswith("past")}
    lengths = [const("seqlens_k", [1499], np.int32), const("total", 1500, np.int32)]
    node = attention(given, OUT[:1], causal=0)
    return model([node], INPUTS[:3], OUT[:1], lengths, **shapes)


@graph
def cache_of_another_float() -> onnx.ModelProto:
    shapes = {n: (T.FLOAT16, SHAPES[n][1]) for n in SHAPES if n.startswith(("past", "present"))}
    return model([attention()], **shapes)


@graph
def functions_in_functions() -> onnx.ModelProto:
    """Two layers by a function that calls another one, with attributes by reference."""
    names = ["a", "b", "c", "pk", "pv", "l", "t", "co", "si"]

    def by_reference(node: onnx.NodeProto, *attributes: str) -> onnx.NodeProto:
        for name in attributes:
            kind = onnx.AttributeProto.INT
            node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))
        return node

    opsets = [h.make_opsetid(*each) for each in (("", 21), (MS, 1), ("pkg", 1))]
    attributes = ("num_heads", "kv_num_heads", "local_window_size")
    gqa = h.make_node("GroupQueryAttention", names, ["o", "nk", "nv"], domain=MS, do_rotary=1)
    outs, default = ["o", "nk", "nv"], [h.make_attribute("local_window_size", -1)]
    made = [by_reference(gqa, *attributes)]
    attend = h.make_function("pkg", "Attend", names, outs, made, opsets, attributes[:2], default)
    call = by_reference(h.make_node("Attend", names, outs, domain="pkg"), *attributes)
    takes = ["x", "wq", "wk", "wv", "wo", *names[3:]]
    body = nodes("a = MatMul (x, wq)\nb = MatMul (x, wk)\nc = MatMul (x, wv)")
    body += [call, *nodes("m = MatMul (o, wo)\ny = Add (x, m)")]
    gives = ["y", "nk", "nv"]
    layer = h.make_function("pkg", "Layer", takes, gives, body, opsets, attributes[:2], default)
    calls, weights, x, shapes = [], [*tables()], "x", {}
    for number in (0, 1):
        _, own = projections(x, str(number))
        own.append(weight(f"w_out{number}", HEADS * SIZE, WIDTH))
        weights += own
        past, present = (
            [f"{w}.{number}.{p}" for p in ("key", "value")] for w in ("past", "present")
        )
        shapes |= dict.fromkeys(past, (T.FLOAT, PAST)) | dict.fromkeys(present, (T.FLOAT, PRESENT))
        given = [x, *(each.name for each in own), *past, "seqlens_k", "total", "cos", "sin"]
        kinds: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KV, "domain": "pkg"}
        kinds |= {"local_window_size": 8} if number else {}
        x = f"y{number}"
        calls.append(h.make_node("Layer", given, [x, *present], name=f"layer_{number}", **kinds))
    caches = [[n for n in shapes if n.startswith(word)] for word in ("past", "present")]
    inputs = ("x", *caches[0], "seqlens_k", "total")
    return model(calls, inputs, (x, *caches[1]), weights, [attend, layer], **shapes)


@graph
def function_named_like_the_operator() -> onnx.ModelProto:
    body = nodes("""
        o = Identity (q)
        nk = Identity (pk)
        nv = Identity (pv)
    """)
    names, outs = ["q", "k", "v", "pk", "pv", "l", "t"], ["o", "nk", "nv"]
    kinds = ["num_heads", "kv_num_heads"]
    opsets = [h.make_opsetid("", 21)]
    own = h.make_function(MS, "GroupQueryAttention", names, outs, body, opsets, kinds)
    return model([attention()], functions=[own])


@graph
def ir_version_of_newest_onnx() -> onnx.ModelProto:
    return model([attention()], ir=14)


# No runtime takes them


@graph
def tables_of_full_width() -> onnx.ModelProto:
    return model([attention(ROTARY)], weights=tables(SIZE))


@graph
def presents_declared_half() -> onnx.ModelProto:
    return model(
        [attention()], present_key=(T.FLOAT16, PRESENT), present_value=(T.FLOAT16, PRESENT)
    )


@graph
def past_with_all_heads() -> onnx.ModelProto:
    of = (T.FLOAT, ["batch", HEADS, "past", SIZE])
    return model([attention()], past_key=of, past_value=of)


@graph
def scores_without_qk_output() -> onnx.ModelProto:
    return model([attention(PLAIN, (*OUT, "scores"))], outputs=(*OUT, "scores"))


@graph
def function_that_calls_itself() -> onnx.ModelProto:
    names, outs = ["a", "b", "c", "pk", "pv", "l", "t"], ["o", "nk", "nv"]
    kinds = {"num_heads": HEADS, "kv_num_heads": KV, "domain": MS}
    made = [
        h.make_node("GroupQueryAttention", names, ["inner", "nk", "nv"], **kinds),
        h.make_node("Attend", ["inner", *names[1:]], ["o", "n1", "n2"], domain="pkg"),
    ]
    opsets = [h.make_opsetid(*each) for each in (("", 21), (MS, 1), ("pkg", 1))]
    own = h.make_function("pkg", "Attend", names, outs, made, opsets)
    return model([h.make_node("Attend", INPUTS[:7], OUT, domain="pkg")], functions=[own])


@graph
def query_of_four_dims() -> onnx.ModelProto:
    heads = {"query": HEADS, "key": KV, "value": KV}
    shapes = {name: (T.FLOAT, ["batch", n, "new", SIZE]) for name, n in heads.items()}
    return model([attention()], **shapes)


@graph
def value_of_another_width() -> onnx.ModelProto:
    value, past = ["batch", "new", 8 * KV], ["batch", KV, "past", 8]
    return model([attention()], value=(T.FLOAT, value), past_value=(T.FLOAT, past),
                 present_key=(T.FLOAT, None), present_value=(T.FLOAT, None))  # fmt: skip


@graph
def weights_of_another_float() -> onnx.ModelProto:
    packed = {"query": "packed", **{name: name for name in INPUTS[3:7]}}
    made = [*nodes("packed = MatMul (x, w)"), attention(packed)]
    shapes = {name: (T.FLOAT16, dims) for name, (kind, dims) in SHAPES.items() if kind == T.FLOAT}
    wide = weight("w", WIDTH, (HEADS + 2 * KV) * SIZE)
    return model(made, ("x", *INPUTS[3:7]), weights=[wide], **shapes)


# They run, and the program or the graph makes them wrong


@graph
def lengths_baked_by_tracing() -> onnx.ModelProto:
    lengths = [const("seqlens_k", [5], np.int32), const("total", 6, np.int32)]
    return model([attention(ROTARY)], INPUTS[:5], weights=[*tables(), *lengths])


# Caches and lengths that a program keeps in its own way


@graph
def borrowed_from_graph_input() -> onnx.ModelProto:
    own = {"query": "query", "key": "none", "value": "none"} | {n: n for n in INPUTS[3:7]}
    dims = {"query": QKV[0], "output": QKV[0], "past_key": PAST, "past_value": PAST}
    shapes = {name: (T.FLOAT, [1, *rest]) for name, (_, *rest) in dims.items()}
    none = h.make_tensor("none", T.FLOAT, [1, 0, KV * SIZE], [])
    inputs = ("query", *INPUTS[3:7])
    return model([attention(own)], inputs, OUT[:1], [none], seqlens_k=(T.INT32, [1]), **shapes)


@graph
def lengths_of_one_sequence() -> onnx.ModelProto:
    return model([attention()], seqlens_k=(T.INT32, [1, 1]))


@graph
def total_is_the_capacity() -> onnx.ModelProto:
    dims = {"query": [1, 1, HEADS * SIZE], "output": [1, 1, HEADS * SIZE]}
    dims |= {name: [1, 1, KV * SIZE] for name in ("key", "value")}
    dims |= {n: [1, KV, 96, SIZE] for n in SHAPES if n.startswith(("past", "present"))}
    shapes = {name: (T.FLOAT, each) for name, each in dims.items()}
    return model([attention()], seqlens_k=(T.INT32, [1, 1]), total=(T.INT32, [1]), **shapes)


@graph
def window_cache_slack() -> onnx.ModelProto:
    dims = (T.FLOAT, ["batch", KV, "sliding", SIZE])
    caches = {n: dims for n in SHAPES if n.startswith(("past", "present"))}
    return model([attention(local_window_size=8, sliding_window_cache=1)], **caches)


@graph
def window_never_reached() -> onnx.ModelProto:
    given = {name: value for name, value in PLAIN.items() if not name.startswith("past")}
    names = ("query", "key", "value", "output")
    shapes = {name: (T.FLOAT, ["batch", "new", 2048]) for name in names}
    heads = {"num_heads": 32, "kv_num_heads": 32, "local_window_size": 750}
    inputs = (*INPUTS[:3], "seqlens_k", "total")
    return model([attention(given, OUT[:1], **heads)], inputs, OUT[:1], **shapes)


@graph
def cache_of_opset_24() -> onnx.ModelProto:
    """A layer of TensorScatter and Attention beside one of the operator."""
    dims, cache = QKV, ["batch", "rows", KV * SIZE]
    own = [f"{part}_1" for part in ("query", "key", "value")]
    shapes = {name: (T.FLOAT, each) for name, each in zip(own, dims, strict=True)}
    shapes |= {
        f"{n}_{p}.1": (T.FLOAT, cache) for n in ("cache", "updated") for p in ("key", "value")
    }
    shapes |= {name: (T.INT64, ["batch"]) for name in ("write_indices", "nonpad_kv_seqlen")}
    made = [
        h.make_node("TensorScatter", [f"cache_{p}.1", f"{p}_1", "write_indices"],
                    [f"updated_{p}.1"], axis=1) for p in ("key", "value")
    ]  # fmt: skip
    news = [f"updated_{part}.1" for part in ("key", "value")]
    given = ["query_1", *news, "", "", "", "nonpad_kv_seqlen"]
    kinds = {"q_num_heads": HEADS, "kv_num_heads": KV, "is_causal": 1}
    made.append(h.make_node("Attention", given, ["output_1"], **kinds))
    inputs = (*INPUTS[:5], "attention_mask", *shapes)
    inputs = tuple(name for name in inputs if not name.startswith("updated"))
    outputs = (*OUT, "output_1", *news)
    shapes["output_1"] = (T.FLOAT, dims[0])
    nodes_ = [*nodes(LENGTHS), attention(), *made]
    return model(nodes_, inputs, outputs, [AXIS], ir=11, opset=24, **shapes)


@graph
def computed_past() -> onnx.ModelProto:
    """The past is computed, and the present after it."""
    made = nodes("""
        past_key = Mul (old_key, two)
        past_value = Mul (old_value, two)
    """)
    made.append(attention(ROTARY, ("output", "key_after", "value_after")))
    made += nodes("""
        present_key = Mul (key_after, half)
        present_value = Mul (value_after, half)
    """)
    numbers = [const("two", 2, np.float32), const("half", 0.5, np.float32)]
    inputs = (*INPUTS[:3], "old_key", "old_value", *INPUTS[5:7])
    built = model(made, inputs, weights=[*tables(), *numbers],
                  old_key=(T.FLOAT, PAST), old_value=(T.FLOAT, PAST))  # fmt: skip
    for value in (*built.graph.input, *built.graph.node):
        names = [value.name] if isinstance(value, onnx.ValueInfoProto) else value.input
        renamed = [name.replace("old_", "past_key_values.0.") for name in names]
        if isinstance(value, onnx.ValueInfoProto):
            value.name = renamed[0]
        else:
            value.input[:] = renamed
    return built


# All of them


def files_of(name: str, row: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a graph of a table, by name: its models, and what is beside them."""
    models: Models = GRAPHS[row.get("graph", name)]() if "decoder" not in row else {}
    if "decoder" in row:
        d = decoder_of(row)
        models = {"model.onnx": graph_of(d)}
        if d.pipeline:
            models = {"context.onnx": graph_of(d, 8), "iterator.onnx": graph_of(d, 1)}
    made = {file: each.SerializeToString() for file, each in models.items()}
    files = dict(row.get("files", {}))
    if row.get("config"):
        files["config.json"] = config_of(intended(row))
    if "decoder" in row and row["decoder"].get("pipeline"):
        files["genai_config.json"] = genai_config_of(intended(row))
    return made | {file: json.dumps(each).encode() for file, each in files.items()}


def decoder_of(row: Mapping[str, Any]) -> Decoder:
    """The decoder whose graph is written."""
    fields = dict(row["decoder"])
    if "branch" in fields:
        fields["branch"] = tuple(fields["branch"].items())
    return usual(**fields)


def intended(row: Mapping[str, Any]) -> Decoder:
    """The decoder that a graph should be."""
    return replace(decoder_of(row), fault="", branch=(), **row.get("meant", {}))


def truth_of(row: Mapping[str, Any]) -> dict[str, str]:
    """What plain onnxruntime makes of a decoder's graph in each way of calling."""
    return established(intended(row), [graph_of(decoder_of(row))]).ways


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files, and return what is given to the command."""
    for file, content in files.items():
        (folder / file).write_bytes(content)
    only = [file for file in files if file.endswith(".onnx")]
    return folder / only[0] if len(only) == 1 else folder
