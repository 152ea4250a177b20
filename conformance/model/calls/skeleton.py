"""A model that can be run: with its own weights, with drawn ones, or a part of it.

A small model gets random weights. In a large one the products with weights are left out: in their
place each token has a row of random numbers. Lengths, positions, masks and tables are computed as
in the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from conformance.base.array_types import NUMPY
from conformance.graph.nodes import ATTENTION, AttentionNode, is_attention, is_empty
from conformance.graph.parts import (
    MOST_WEIGHTS,
    CannotCut,
    model_of,
    nodes_that_make,
    put,
    reached,
    too_many,
)
from conformance.graph.reading import ReadModel, reads
from conformance.graph.shapes import UNKNOWN, ValueType, types_of
from conformance.graph.walks import inlined, make_names_safe, nodes_in, subgraphs, within
from conformance.model.calls.sequences import DIFFERENT
from conformance.model.config.graph_rotation import stored
from conformance.operator.signature import DOMAIN, OP_TYPE

#: The elements of a weight from which on the product with the weight is left out.
_MOST_OF_ONE: Final = 1 << 14
#: The most bytes of weights that are passed on; a model in protocol buffers cannot have more.
_MOST_BYTES: Final = 1_900_000_000
#: Columns of a rotary table, as wide as the largest heads.
_WIDEST_TABLE: Final = 512
#: The scale for quantising activations of about 4 to uint8.
_SCALE_AND_ZERO: Final = (np.array(4 / 127, np.float32), np.array(128, np.uint8))
#: Numbers from the first of a drawn value to the first of the next.
_SHIFT: Final = 101
#: More than the largest key or value that drawn weights make.
_LARGEST_KEY: Final = 6.0
#: Tokens of the longest call of a program, and so rows of a drawn rotary table.
MOST_TOKENS: Final = 4100
#: The input of a part of a model that has the tokens, if the part reads no other.
TOKENS: Final = "drawn/tokens"
#: The inputs and outputs of a node whose values are inspected.
SEEN: Final = (
    *("past_key", "past_value", "query", "key", "value", "seqlens_k", "total_sequence_length"),
    *("query_seqlens", "cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
    *("output", "present_key", "present_value"),
)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A model that a target can run.

    ``content`` is what the target loads: the bytes of the file if nothing of it was replaced.
    ``model`` is the same model, for reading and rewriting. ``inputs`` has what is known about its
    inputs. ``table_rows`` is the number of rows of the tables that rotary tables are taken from.
    ``only_loads``: its weights are inputs, so that it can be loaded but not run. ``as_written`` is
    the model before scales of activations were fixed, b"" if there were none. ``results`` are the
    values to compare; empty: its outputs. ``mixes``: the result for a token depends on the other
    tokens of the call.
    """

    content: bytes
    model: onnx.ModelProto
    inputs: Mapping[str, ValueType]
    table_rows: int | None = None
    only_loads: bool = False
    as_written: bytes = b""
    results: tuple[str, ...] = ()
    mixes: bool = False


def with_weights(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """The model as it is written, with its own weights.

    Raises :class:`CannotCut` if they are not there, or too large to be passed on.
    """
    proto = onnx.load(model.path, load_external_data=False)
    make_names_safe(proto)
    outside = [each for each in _tensors(proto.graph) if each.data_location == TensorProto.EXTERNAL]
    size = model.path.stat().st_size + sum(math.prod(each.dims) for each in outside)
    if size > _MOST_BYTES:
        raise CannotCut(f"--weights takes at most {_MOST_BYTES / 2**30:g} GiB of weights")
    try:
        load_external_data_for_model(proto, str(model.path.parent))
    except Exception as error:  # of several classes, for files that are not there or too short
        raise CannotCut(f"its weights cannot be read: {error}") from None
    content = bytes(proto.SerializeToString()) if outside else model.path.read_bytes()
    return _made(model, proto, content, nodes)


def whole(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """The model as it is written, with random weights for those that are large or not there.

    If there are too many weights, they become inputs, and the model can only be loaded.
    """
    left_out = [tensor for tensor in _tensors(model.written.graph) if is_empty(tensor)]
    if not left_out and not model.renamed:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.written)
        return _made(model, proto, model.path.read_bytes(), nodes)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.written)
    if not too_many(left_out):
        _draw(proto.graph, _tables(model, nodes), model)
        return _made(model, proto, b"", nodes, drawn=bool(left_out))
    graph = proto.graph
    kept = [tensor for tensor in graph.initializer if not is_empty(tensor)]
    known = {each.name for each in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if is_empty(tensor) and tensor.name not in known
    )
    put(graph.initializer, kept)
    _draw(graph, _tables(model, nodes))
    return Skeleton(bytes(proto.SerializeToString()), proto, {}, only_loads=True)


def part(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """The part that computes the inputs of the attention nodes, without products with weights.

    Raises :class:`CannotCut`.
    """
    graph, types = model.proto.graph, types_of(model.inferred[0].graph)
    tables = _tables(model, nodes)
    weights = [each for each in graph.initializer if is_empty(each) and each.name not in tables]
    heavy = {each.name for each in weights if math.prod(each.dims) > _MOST_OF_ONE}
    roots = [each for each in graph.node if any(map(attends, within(each)))]
    light = [each for each in graph.node if heavy.isdisjoint(reads(each))]
    origins = {name: [*reads(each)] for each in (*light, *roots) for name in each.output}
    results = {each.output[0] for each in roots}
    names = reached(results, origins.get)
    if too_many(each for each in weights if each.name in names):
        raise CannotCut("what computes the inputs of its attention nodes has too many weights")
    made = {name for each in graph.node for name in each.output}
    inputs = [each for each in graph.input if each.name in names]
    cut = sorted(names & made - origins.keys())
    kept = nodes_that_make(names & origins.keys(), graph)
    own = {name for each in kept for name in each.output}
    outputs = [each for each in graph.output if each.name in own]
    proto = model_of(model.proto, kept, inputs, outputs)
    proto.graph.value_info.extend(each for each in graph.value_info if each.name in own)
    _put_rows(proto, {name: types.get(name, UNKNOWN) for name in cut})
    _draw(proto.graph, tables, model)
    shown = {each.name for each in outputs}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(results - shown))
    return _made(model, proto, b"", nodes, drawn=True, results=tuple(sorted(results)))


def part_for(model: onnx.ModelProto, values: Set[str]) -> onnx.ModelProto:
    """The part of a model that computes these values; names of other values are left out."""
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output if name}
    names = reached(values & makers.keys(), lambda n: reads(makers[n]) if n in makers else ())
    kept = [node for node in graph.node if not names.isdisjoint(node.output)]
    inputs = [each for each in graph.input if each.name in names]
    outputs = [onnx.ValueInfoProto(name=name) for name in sorted(values & makers.keys())]
    proto = model_of(model, kept, inputs, outputs)
    known = (each for each in (*graph.value_info, *graph.output) if each.name in names)
    proto.graph.value_info.extend(known)
    proto.functions.extend(model.functions)
    return proto


def attends(node: NodeProto) -> bool:
    """Whether a node is attention of any operator."""
    return is_attention(node) or node.op_type in ATTENTION


def _put_rows(proto: onnx.ModelProto, cut: Mapping[str, ValueType]) -> None:
    """Compute values that the part lacks: each token has a row of random numbers.

    Raises :class:`CannotCut` for values that are not of tokens.
    """
    if not cut:
        return
    graph, draws = proto.graph, np.random.default_rng(2)
    ids = next((each.name for each in graph.input if each.name.endswith("input_ids")), TOKENS)
    if ids == TOKENS:
        kind = helper.make_tensor_value_info(TOKENS, TensorProto.INT64, ["batch", "new"])
        graph.input.append(kind)
    made = [helper.make_node("Mod", [ids, "drawn/number"], ["drawn/rows"])]
    constants = {"drawn/number": np.array(DIFFERENT, np.int64)}
    if (
        ids != TOKENS
        and graph.input[[each.name for each in graph.input].index(ids)].type.tensor_type.elem_type
        != TensorProto.INT64
    ):
        made.insert(0, helper.make_node("Cast", [ids], ["drawn/ids"], to=TensorProto.INT64))
        made[1].input[0] = "drawn/ids"
    most: dict[str, int] = {}
    for at, (name, known) in enumerate(cut.items()):
        dims, dtype = known.dims or (), known.dtype
        widths = [dim for dim in dims[2:] if isinstance(dim, int)]
        if dtype is None or len(dims) < 3 or len(widths) != len(dims) - 2:
            raise CannotCut(f"the type of {name} cannot be told")
        # The rows of each value begin elsewhere in the same numbers: those of all layers are large.
        start, size = at * _SHIFT, DIFFERENT * math.prod(widths)
        most[dtype] = max(most.get(dtype, 0), start + size)
        constants[f"{name}/start"] = np.array([start], np.int64)
        constants[f"{name}/end"] = np.array([start + size], np.int64)
        constants[f"{name}/shape"] = np.array([DIFFERENT, *widths], np.int64)
        ends = [f"{name}/start", f"{name}/end"]
        made += (
            helper.make_node("Slice", [f"drawn/{dtype}", *ends], [f"{name}/numbers"]),
            helper.make_node("Reshape", [f"{name}/numbers", f"{name}/shape"], [f"{name}/rows"]),
            helper.make_node("Gather", [f"{name}/rows", "drawn/rows"], [name]),
        )
    for dtype, size in most.items():
        constants[f"drawn/{dtype}"] = draws.uniform(-1.7, 1.7, size).astype(NUMPY[dtype])
    put(graph.node, [*made, *graph.node])
    graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())


def _tables(model: ReadModel, nodes: Iterable[AttentionNode]) -> dict[str, str]:
    """The values that rotary tables come from, each with "cos_cache" or "sin_cache".

    These are the tables of the nodes, and those that a graph takes rows of to rotate by itself.
    """

    def origins(name: str) -> Iterator[str]:
        """The values that a value is equal to, or a part of."""
        if node := model.makers.get(name):
            yield from node.input[:1]
            yield from (each.output[[*node.output].index(name)].name for each in subgraphs(node))

    graph = model.proto.graph
    narrow = {w.name for w in graph.initializer if w.dims[1:] and w.dims[-1] <= _WIDEST_TABLE}
    names = {each.name for each in graph.input}
    of_tokens = {name for name in names if "ids" in name and "position" not in name}
    by_hand = {
        name
        for node in nodes_in(graph)
        for name in (node.input if node.op_type == "RotaryEmbedding" else node.input[:1])
        if node.op_type in ("Gather", "RotaryEmbedding") and of_tokens.isdisjoint(node.input)
    }
    return {name: "sin_cache" if "sin" in name else "cos_cache" for name in by_hand & narrow} | {
        name: parameter
        for node in nodes
        for parameter in ("sin_cache", "cos_cache")
        for name in reached([node.inputs.get(parameter, "")], origins)
    }


def _made(
    model: ReadModel,
    proto: onnx.ModelProto,
    content: bytes,
    nodes: Sequence[AttentionNode],
    *,
    drawn: bool = False,
    results: tuple[str, ...] = (),
) -> Skeleton:
    """The skeleton of a model, whose ``content`` is not known if something was replaced."""
    graph, as_written = proto.graph, b""
    if drawn:
        _fit_scales(graph, nodes)
    operators = {node.op_type for node in nodes_in(graph)}
    if "DynamicQuantizeLinear" in operators:
        as_written = content or bytes(proto.SerializeToString())
        _fix_scales(graph)
        content = b""
    tables = _tables(model, nodes)
    fixed, types = {tensor.name: tensor for tensor in graph.initializer}, types_of(graph)
    return Skeleton(
        content or bytes(proto.SerializeToString()),
        proto,
        {each.name: types[each.name] for each in graph.input if each.name not in fixed},
        min((fixed[n].dims[0] for n in tables if n in fixed and fixed[n].dims), default=None),
        as_written=as_written,
        results=results,
        mixes="DynamicQuantizeMatMul" in operators,
    )


def observed(skeleton: Skeleton, values: Iterable[str]) -> onnx.ModelProto:
    """The model, with its functions expanded, that returns these values as well."""
    proto = onnx.ModelProto()
    proto.CopyFrom(skeleton.model)
    proto = inlined(proto, lambda function: (function.domain, function.name) == (DOMAIN, OP_TYPE))
    made = {name for node in proto.graph.node for name in node.output}
    given = {each.name for each in proto.graph.output}
    names = sorted({*values} & made - given)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return proto


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The weights and constants of a graph and of its subgraphs."""
    for inner in _with_bodies(graph):
        yield from inner.initializer
    yield from (a.t for node in nodes_in(graph) for a in node.attribute if a.HasField("t"))


def _with_bodies(graph: GraphProto) -> list[GraphProto]:
    """The graph, and the subgraphs in it."""
    return [graph, *(inner for node in nodes_in(graph) for inner in subgraphs(node))]


def _fit_scales(graph: GraphProto, nodes: Sequence[AttentionNode]) -> None:
    """Let the scales of quantised caches hold the keys and values that drawn weights make."""
    largest = {
        node.inputs[name]: {4: 7.0, 8: 127.0}.get(
            int(node.attributes.get("kv_cache_bit_width", 8)), 127.0
        )
        for node in nodes
        for name in ("k_scale", "v_scale")
        if name in node.inputs
    }
    for tensor in graph.initializer:
        if tensor.name in largest:
            scale = np.full(tuple(tensor.dims), _LARGEST_KEY / largest[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(scale.astype(_kind(tensor)), tensor.name))


def _fix_scales(graph: GraphProto) -> None:
    """Quantise activations by one fixed scale.

    With a scale for each call, the result for a token would depend on the other tokens of the call.
    """
    for inner in _with_bodies(graph):
        nodes: list[NodeProto] = []
        for node in inner.node:
            if (node.op_type, node.domain) == ("DynamicQuantizeLinear", ""):
                scale, zero = (numpy_helper.from_array(each) for each in _SCALE_AND_ZERO)
                nodes += (
                    helper.make_node("Constant", [], [node.output[1]], value=scale),
                    helper.make_node("Constant", [], [node.output[2]], value=zero),
                    helper.make_node(
                        "QuantizeLinear", [node.input[0], *node.output[1:]], node.output[:1]
                    ),
                )
            else:
                nodes.append(node)
        if len(nodes) > len(inner.node):
            put(inner.node, nodes)


def _draw(graph: GraphProto, tables: Mapping[str, str], model: ReadModel | None = None) -> None:
    """Give each weight of the graph content.

    The content of rotary tables, and of integers such as positions and masks, is read from the
    ``model``. Raises :class:`CannotCut` for integers that are missing; other tables get cosines and
    sines.
    """
    draws = np.random.default_rng(1)
    weights = [(each.name, each) for inner in _with_bodies(graph) for each in inner.initializer]
    weights += ((n.output[0], a.t) for n in nodes_in(graph) for a in n.attribute if a.HasField("t"))
    for name, tensor in weights:
        if is_empty(tensor):
            values = None
            kind = _kind(tensor)
            whole = kind.kind in "iub" and (kind.itemsize > 1 or kind.kind == "b")
            if model is not None and (whole or name in tables):
                with suppress(Exception):  # whatever a stranger's model has in its place
                    values = stored(model, name)
                if values is None and whole:
                    raise CannotCut(f"the content of {name} is not there")
            if values is None:
                values = _values(tensor, draws, tables.get(name, ""))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _kind(tensor: TensorProto) -> np.dtype:
    with suppress(KeyError):  # a type that ONNX does not know
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if not kind.hasobject:
            return kind
    raise CannotCut(f"{tensor.name} does not have numbers")


def _values(tensor: TensorProto, draws: np.random.Generator, table: str) -> np.ndarray:
    """Random numbers for a weight; integers of more than a byte are 0."""
    dims, kind = tuple(tensor.dims), _kind(tensor)
    if table and len(dims) == 2:
        dims = (min(dims[0], MOST_TOKENS), dims[1])
    if math.prod(dims) > MOST_WEIGHTS:
        raise CannotCut(f"{tensor.name or 'a constant'} is too large")
    if kind.itemsize == 1 and kind.kind in "iu":
        return np.frombuffer(draws.bytes(math.prod(dims)), kind).reshape(dims)
    if kind.kind in "iub":
        return np.zeros(dims, kind)
    if table and len(dims) == 2:
        return rotary_table(*dims, table).astype(kind)
    if len(dims) < 2:  # of a norm
        return (1 + draws.standard_normal(dims) / 8).astype(kind)
    return (draws.standard_normal(dims) / math.sqrt(max(min(dims[-2], 4096), 1))).astype(kind)


def rotary_table(rows: int, width: int, table: str) -> np.ndarray:
    """Cosines or sines of ``rows`` positions, one of ``width`` frequencies in each column."""
    angles = np.outer(np.arange(rows), 10_000.0 ** (-np.arange(width) / max(width, 1)))
    table_of = np.cos if table == "cos_cache" else np.sin
    return np.asarray(table_of(angles))
