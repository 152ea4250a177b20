"""A case whose model is a small graph: its inputs, the meaning of their values, its main node.

The values of an input, and of a constant whose data is not in the file, follow from its *role*: the
slot of an operator that takes it, directly or through operators that only move numbers (Reshape,
Transpose, Cast …). The roles are the names of GroupQueryAttention's inputs and those of
:data:`_ROLES`.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import onnx
from pydantic import ValidationError

from conformance.base.array_types import NUMPY, WORD_OF_ONNX
from conformance.base.files import TOO_LARGE, read_plain
from conformance.case.node_steps import MAX_ELEMENTS, node_steps
from conformance.case.overrides import MAX_RANK
from conformance.graph.describe import Unclear, fields_of_node, head_size_of, heads_of
from conformance.graph.nodes import AttentionNode, attributes_in, is_attention, node_with_types
from conformance.graph.shapes import UNKNOWN, ValueType, types_of
from conformance.graph.standard_attention import as_operator, is_standard
from conformance.graph.walks import inlined, make_names_safe
from conformance.operator.call import (
    CALL_FIELDS,
    GRAPH_FIELDS,
    Call,
    CallError,
    GraphCall,
    Values,
    checked_call,
)
from conformance.operator.signature import (
    ATTRIBUTE_BY_NAME,
    DOMAIN,
    INPUT_NAMES,
    OP_TYPE,
    OUTPUT_NAMES,
    PLAIN_NAME,
    PRESENT,
)
from conformance.operator.tensors import ShapeError, Step, Tensor

#: Largest size of an ONNX file. A weightless decoder layer has about 20 kB.
MAX_BYTES: Final = 4 << 20
#: Largest number of elements of the drawn weights together (64 MiB of float32).
MAX_WEIGHTS: Final = 1 << 24
#: Largest number of nodes, functions expanded.
MAX_NODES: Final = 2_000

#: Operators whose first input, or all of whose inputs (Concat), keep their meaning and magnitude.
_MOVES: Final = frozenset(
    {
        "Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "RotaryEmbedding", "Slice",
        "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
#: Operators that keep the numbers of a token together: heads that are normed, and joined again.
_KEEP_WIDTH: Final = frozenset(
    {
        "Add", "Cast", "Identity", "Mul", "RMSNormalization", "Reshape", "RotaryEmbedding",
        "SimplifiedLayerNormalization", "Transpose",
    }
)  # fmt: skip
#: Operators that turn a mask of tokens into the number of tokens.
_COUNTS: Final = frozenset({"ReduceSum", "Sub", "Add"})

#: The roles of an operator's inputs in order; "" has none. GroupQueryAttention's are their names.
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    OP_TYPE: INPUT_NAMES,
    "MatMul": ("activation", "weight"),
    "FusedMatMul": ("activation", "weight"),
    "Gemm": ("activation", "weight", "bias"),
    "MatMulNBits": ("activation", "codes", "weight_scale", "zero_points", "", "bias"),
    "Gather": ("embedding", "ids"),
    "GatherBlockQuantized": ("codes", "ids", "embedding_scale", "zero_points"),
    "SimplifiedLayerNormalization": ("activation", "norm_weight"),
    "RMSNormalization": ("activation", "norm_weight"),
    "LayerNormalization": ("activation", "norm_weight", "bias"),
    "SkipSimplifiedLayerNormalization": ("activation", "activation", "norm_weight", "bias"),
    "SkipLayerNormalization": ("activation", "activation", "norm_weight", "bias", "bias"),
    "Add": ("addend", "addend"),
    "BiasGelu": ("activation", "bias"),
    "FastGelu": ("activation", "bias"),
    "Mul": ("factor", "factor"),
    "Div": ("activation", "factor"),
    "Sub": ("addend", "addend"),
    "Attention": ("attention_query", "activation", "activation", "attention_bias"),
    **dict.fromkeys(
        ("Gelu", "QuickGelu", "Sigmoid", "Swish", "Tanh", "Softmax", "Relu", "Erf"),
        ("activation",),
    ),
}
#: RotaryEmbedding has its inputs in another order in each domain.
_ROTARY: Final = {
    DOMAIN: ("", "position_ids", "cos_cache", "sin_cache"),
    "": ("", "cos_cache", "sin_cache", "position_ids"),
}
#: Roles that determine a tensor's meaning even if other slots read it; other roles do not.
_TELLING: Final = (*INPUT_NAMES, "ids", "attention_mask")


class GraphError(CallError):
    """The graph cannot be a case; the message names the node or tensor and gives the reason."""

    def __init__(self, sentence: str) -> None:
        super().__init__("graph", sentence)


@dataclass(frozen=True, eq=False)
class Graph:
    """A parsed graph: its nodes without functions, and the readers and the maker of each tensor.

    ``types`` are the declared types of the tensors. In a graph without GroupQueryAttention,
    ``nodes`` and ``types`` have each standard Attention as the GroupQueryAttention that it is.
    """

    model: onnx.ModelProto
    nodes: tuple[onnx.NodeProto, ...]
    readers: Mapping[str, tuple[tuple[onnx.NodeProto, int], ...]]
    makers: Mapping[str, tuple[onnx.NodeProto, int]]
    attentions: tuple[onnx.NodeProto, ...]
    types: Mapping[str, ValueType]

    def type(self, name: str) -> ValueType:
        """The declared type of a tensor."""
        return self.types.get(name, UNKNOWN)

    @property
    def drawn(self) -> tuple[onnx.TensorProto, ...]:
        """The constants whose data is not in the file."""
        return tuple(filter(is_left_out, self.model.graph.initializer))

    @property
    def inputs(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The inputs that a caller must give."""
        constant = {tensor.name for tensor in self.model.graph.initializer}
        return tuple(each for each in self.model.graph.input if each.name not in constant)


def is_left_out(tensor: onnx.TensorProto) -> bool:
    """Whether a constant has no data in the model: its data is in another file, or missing."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    data = (
        tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data,
        tensor.double_data, tensor.uint64_data,
    )  # fmt: skip
    return math.prod(tensor.dims) > 0 and not any(map(len, data))


def read_graph(call: Call, file: Path) -> GraphCall:
    """The call of the graph in an ONNX file. Raises :class:`GraphError`, which names the file."""
    try:
        return graph_call(call, read_plain(file, MAX_BYTES))
    except GraphError as error:
        raise GraphError(f"{call.graph}: {error}") from None
    except OSError as error:
        why = error.strerror
        if error.errno == TOO_LARGE:
            why = f"larger than {MAX_BYTES >> 20} MiB; save it without its weights"
        raise GraphError(f"{call.graph}: it cannot be read: {why}") from None


def graph_call(call: Call, content: bytes) -> GraphCall:
    """``call`` with the content of an ONNX file, and with the fields of its main node.

    Raises :class:`GraphError`.
    """
    graph = parsed(content)
    with _legal():
        described = _described(graph, graph.attentions[0], call)
    return GraphCall(**vars(described), content=content)


@contextmanager
def _legal() -> Iterator[None]:
    """Report nodes that lack inputs or attributes, or have meaningless ones."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise GraphError(f"a node is not legal: {error}") from error


@lru_cache(maxsize=32)
def parsed(content: bytes) -> Graph:
    """The graph in an ONNX file. Raises :class:`GraphError`."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's own error, which has no public name
        raise GraphError("it is not an ONNX model") from None
    if not model.graph.node:
        raise GraphError("it is not an ONNX model, or has no nodes")
    try:
        make_names_safe(model)
    except ValueError as error:
        raise GraphError(f"it is damaged: {error}") from None
    try:  # an operator that the oracle knows stays one
        model = inlined(model, lambda f: f.domain == DOMAIN and f.name in _ROLES)
    except ValueError as error:
        raise GraphError(f"its functions cannot be expanded: {error}") from None
    nodes, types = [*model.graph.node], types_of(model.graph)
    if len(nodes) > MAX_NODES:
        raise GraphError(f"it has {len(nodes)} nodes; at most {MAX_NODES} fit: cut a part out")
    if not any(map(is_attention, nodes)):
        nodes = [_as_operator(node, types) if is_standard(node) else node for node in nodes]
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
    makers: dict[str, tuple[onnx.NodeProto, int]] = {}
    known = {"", *(each.name for each in model.graph.input)}
    known |= {each.name for each in model.graph.initializer}
    for node in nodes:
        for index, name in enumerate(node.input):
            if name not in known and name not in makers:
                raise GraphError(f"the node {_name(node)} reads {name} before any node makes it")
            readers[name].append((node, index))
        for index, name in enumerate(node.output):
            if name and (name in known or name in makers):
                raise GraphError(f"the node {_name(node)} makes {name}, which is there already")
            makers[name] = node, index
    attentions = tuple(node for node in nodes if is_attention(node))
    if not attentions:
        raise GraphError(f"no node outside If, Loop and Scan is a {OP_TYPE}")
    frozen = {name: tuple(found) for name, found in readers.items()}
    graph = Graph(model, tuple(nodes), frozen, makers, attentions, types)
    _check_names(graph)
    return graph


def _as_operator(node: onnx.NodeProto, types: dict[str, ValueType]) -> onnx.NodeProto:
    """A standard Attention as the operator; the types of its values are changed, too."""
    try:
        with _legal():
            made, own = as_operator(node, types)
    except Unclear as error:
        raise GraphError(f"the node {_name(node)} is no call of {OP_TYPE}: {error}") from None
    types |= own
    return made


def _check_names(graph: Graph) -> None:
    """Check the names of inputs, outputs and presents.

    Names of inputs and outputs become those of files. Presents must be recognisable by their names,
    and no other tensor may have such a name.
    """
    for each in (*graph.inputs, *graph.model.graph.output):
        if not PLAIN_NAME.fullmatch(each.name):
            raise GraphError(
                f"the name {each.name!r} of an input or output has more than letters, digits, '_',"
                " '.' and '-': rename it"
            )
    for output in graph.model.graph.output:
        if output.name not in graph.makers:
            raise GraphError(f"no node makes the output {output.name}")
        named, made = bool(PRESENT.search(output.name)), is_present(graph, output.name)
        if named != made:
            what = "a present" if made else "no present of a GroupQueryAttention"
            how = "must" if made else "must not"
            raise GraphError(
                f"the output {output.name} is {what}, so its name {how} have the word 'present'"
            )


def is_present(graph: Graph, name: str) -> bool:
    """Whether a tensor is a present of a node, directly or moved by other nodes."""
    while name in graph.makers:
        node, index = graph.makers[name]
        if node.op_type not in _MOVES or not node.input:
            return is_attention(node) and OUTPUT_NAMES[index].startswith("present")
        name = node.input[0]
    return False


def _name(node: onnx.NodeProto) -> str:
    """The node's name in error messages."""
    return node.name or f"{node.op_type} that makes {next(iter(node.output), 'nothing')}"


def shared_pasts(graph: Graph) -> dict[str, str]:
    """Each present that is an output, with the past of the same node if that is an input."""
    inputs = {each.name for each in graph.inputs}
    outputs = {each.name for each in graph.model.graph.output}
    found = {}
    for node in graph.attentions:
        given = dict(zip(INPUT_NAMES, node.input, strict=False))
        for name, made in zip(OUTPUT_NAMES, node.output, strict=False):
            past = given.get(name.replace("present", "past"), "")
            if made in outputs and past in inputs:
                found[made] = past
    return found


# The main node, in the fields of a case


def _described(graph: Graph, node: onnx.NodeProto, call: Call) -> Call:
    """``call`` with the fields that follow from the attributes and connections of ``node``."""
    found = _attention_node(graph, node)
    if unknown := sorted(found.attributes.keys() - ATTRIBUTE_BY_NAME.keys()):
        raise GraphError(f"the node {_name(node)} has the unknown attribute {unknown[0]}")
    try:
        (heads, kv_heads), size = heads_of(found), head_size_of(found)
    except Unclear as error:
        raise GraphError(f"the node {_name(node)}: {error}") from None
    if size is None:
        raise GraphError(
            f"the head size of the node {_name(node)} is unknown: declare the shape of its past_key"
            " or query"
        )
    fields = fields_of_node(found)
    table, rotated = found.type("cos_cache"), "rotary" in fields
    cache, past_length = "none", call.past_sequence_length
    if "past_key" in found.inputs:
        cache = "static" if call.max_sequence_length else "concatenated"
    borrows = fields.get("key_value") == "zero_length"
    if borrows and found.inputs.get("past_key") in graph.makers:
        past_length = max(call.written_totals[0], default=past_length + call.sequence_length)
    cache_dtype = found.type("past_key").dtype
    chunks = call.query_seqlens or (call.sequence_length,) * call.batch_size
    fields |= {
        **{name: getattr(call, name) for name in GRAPH_FIELDS},
        "past_sequence_length": past_length,
        "max_sequence_length": call.max_sequence_length if cache == "static" else None,
        "shared_buffer": call.shared_buffer and node is graph.attentions[0],
        "cache": cache,
        "cache_dtype": None if cache_dtype == call.dtype else cache_dtype,
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "head_size": size,
        "rotary_dim": 2 * (table.size(1) or 0) or None if rotated else None,
        "rotary_cache_length": table.size(0) or None if rotated else None,
        "query_seqlens": chunks if "query_seqlens" in found.inputs else None,
    }
    try:
        return checked_call(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ".".join(map(str, first["loc"]))
        raise GraphError(f"the node {_name(node)} has a wrong {what}: {first['msg']}") from None


def _attention_node(graph: Graph, node: onnx.NodeProto) -> AttentionNode:
    """The node with what the declared shapes and the weights say of its inputs and outputs."""
    made = node_with_types(node, _name(node), graph.types)
    types = {**made.types}
    for name, rank in (("query", 3), ("key", 3), ("past_key", 4), ("present_key", 4)):
        if name in types and types[name].size(-1) is None:
            width = _last(graph, {**made.inputs, **made.outputs}[name])
            types[name] = ValueType(types[name].dtype, (*[None] * (rank - 1), width))
    if "key" in made.inputs and _is_empty(graph, made.inputs["key"]):
        types["key"] = ValueType(types["key"].dtype, (None, 0, None))
    return replace(made, types=types)


def _is_empty(graph: Graph, name: str) -> bool:
    """Whether a tensor, such as a borrower's key, has no elements.

    The declared or the computed shape decides.
    """
    dims = graph.type(name).dims
    if dims is not None:
        return 0 in dims
    maker = graph.makers.get(name)
    return maker is not None and maker[0].op_type in ("ConstantOfShape", "Expand")


def _last(graph: Graph, name: str) -> int | None:
    """The last dim of a tensor: the declared one, or that of the weight matrix that produces it."""
    if (declared := graph.type(name).size(-1)) is not None:
        return declared
    while name in graph.makers:
        node = graph.makers[name][0]
        if node.op_type == "MatMulNBits":
            return _sized(node, "N")
        if node.op_type in ("MatMul", "FusedMatMul", "Gemm"):
            return graph.type(node.input[1]).size(0 if _is_turned(node) else -1)
        if node.op_type not in _KEEP_WIDTH:
            return None
        name = next((each for each in node.input if each in graph.makers), "")
    return None


# Inputs and constants


class _Use(NamedTuple):
    """A slot that takes a tensor: its role, the node, and whether the tensor is transposed."""

    role: str
    node: onnx.NodeProto
    transposed: bool


def _uses(graph: Graph, name: str) -> Iterator[_Use]:
    """The slots that take a tensor, directly or through operators that only move it."""
    waiting = deque([(name, False, False)])
    seen = {name}
    while waiting:
        tensor, transposed, counted = waiting.popleft()
        for node, index in graph.readers.get(tensor, ()):
            counts = node.op_type in _COUNTS
            if (node.op_type in _MOVES and (index == 0 or node.op_type == "Concat")) or counts:
                turned = transposed ^ (node.op_type == "Transpose")
                for made in node.output:
                    if made not in seen:
                        seen.add(made)
                        waiting.append((made, turned, counted or node.op_type == "ReduceSum"))
            roles = _roles_of(node)
            role = roles[index] if index < len(roles) else ""
            if role == "seqlens_k" and counted:
                role = "attention_mask"
            if role and (not counted or role == "attention_mask"):
                yield _Use(role, node, transposed)


def _roles_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """The roles of a node's inputs."""
    if node.op_type == OP_TYPE and not is_attention(node):
        return ()
    if node.op_type == "RotaryEmbedding":
        return _ROTARY.get(node.domain, ())
    return _ROLES.get(node.op_type, ())


def _use_of(graph: Graph, name: str, dtype: str) -> _Use:
    """The slot that determines the values of a tensor. Raises :class:`GraphError`."""
    integer = dtype not in ("float32", "float16", "bfloat16")
    of_integers = (
        "seqlens_k", "total_sequence_length", "query_seqlens", "position_ids", "ids",
        "attention_mask", "codes", "zero_points", "past_key", "past_value",
    )  # fmt: skip
    uses = [use for use in _uses(graph, name) if not integer or use.role in of_integers]
    if not integer:
        uses = [use for use in uses if use.role not in ("ids", "codes", "position_ids")]
    if not uses:
        readers = sorted({node.op_type for node, _ in graph.readers.get(name, ())})
        by = f"it is read by {', '.join(readers)}" if readers else "no node reads it"
        raise GraphError(f"the values of {name} ({dtype}) are unknown: {by}")
    return min(uses, key=lambda use: use.role not in _TELLING)


def graph_steps(call: GraphCall) -> tuple[Step, ...]:
    """The only step of a graph. Raises :class:`conformance.case.node_steps.ShapeError`."""
    graph = parsed(call.content)
    plain = Call(**{name: getattr(call, name) for name in CALL_FIELDS})
    (step,) = node_steps(plain)
    if call.shared_buffer and not shared_pasts(graph):
        raise ShapeError("shared_buffer", "no past is an input whose present is an output")
    try:
        with _legal():
            inputs = tuple(_input(graph, plain, step, each) for each in graph.inputs)
            weights = tuple(_weight(graph, plain, each) for each in graph.drawn)
            outputs = tuple(map(_output, graph.model.graph.output))
    except GraphError as error:
        raise ShapeError("graph", str(error)) from None
    elements = sum(math.prod(weight.shape or ()) for weight in weights)
    if elements > MAX_WEIGHTS:
        sentence = f"its weights have {elements} elements; at most {MAX_WEIGHTS} fit: cut it"
        raise ShapeError("graph", sentence)
    return (replace(step, inputs=inputs, outputs=outputs, weights=weights, node=step),)


def _word(data_type: int) -> str:
    word = WORD_OF_ONNX.get(data_type)
    if word is None:
        names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
        name = names.get(data_type, str(data_type)) if data_type else "no type"
        raise GraphError(f"a tensor has the type {name}; known are {', '.join(NUMPY)}")
    return word


def _input(graph: Graph, call: Call, step: Step, info: onnx.ValueInfoProto) -> Tensor:
    """An input of the graph, with its shape in this call and the rule for drawing its values."""
    name, dtype = info.name, _word(info.type.tensor_type.elem_type)
    use = _use_of(graph, name, dtype)
    node = _described(graph, use.node, call) if is_attention(use.node) else call
    declared = info.type.tensor_type.shape.dim
    meant = _axes(use.role, node, step)
    if meant is not None and len(meant) != len(declared):
        meant = None
    shape, names = [], []
    for axis, dim in enumerate(declared):
        expected = None if meant is None else meant[axis]
        if dim.HasField("dim_value"):
            size: int | None = dim.dim_value
            is_broadcast = use.role == "attention_bias" and size == 1
            if expected is not None and size != expected and not is_broadcast:
                raise GraphError(
                    f"{name} has the fixed size {size} at axis {axis}, but this call needs"
                    f" {expected}"
                )
        else:
            size = expected if expected is not None else _by_name(dim.dim_param, call, step)
        if size is None:
            raise GraphError(
                f"the size of axis {axis} of {name}, {dim.dim_param or 'unnamed'}, is unknown:"
                " give it a number, or the name of a field (batch_size, sequence_length …)"
            )
        shape.append(size)
        names.append(dim.dim_param or None if not dim.HasField("dim_value") else None)
    _check_shape(name, shape)
    values = _values(graph, use, node, dtype, tuple(shape), constant=False)
    return Tensor(
        name, "connected", dtype, len(shape), tuple(shape), values,
        dims=tuple(names), role=use.role, node=node,
    )  # fmt: skip


def _axes(role: str, call: Call, step: Step) -> tuple[int | None, ...] | None:
    """The sizes of a tensor with this role; None where the role does not determine them.

    ``call`` describes the node that takes the tensor, and ``step`` the main node.
    """
    if role in INPUT_NAMES:
        return node_steps(call)[0].input(role).shape
    tokens = call.batch_size, step.sequence_length
    return {
        "ids": tokens,
        "attention_mask": (call.batch_size, step.total_sequence_length),
        "activation": (*tokens, None),
        "attention_query": (*tokens, None),
        "addend": (*tokens, None),
        "factor": (*tokens, None),
    }.get(role)


def _by_name(name: str, call: Call, step: Step) -> int | None:
    """The size of a dim with the name of a field, or a sum of such names and numbers."""
    rows = call.max_sequence_length if call.cache_kind == "static" else call.past_sequence_length
    sizes = {
        "batch": call.batch_size,
        "batch_size": call.batch_size,
        "sequence_length": step.sequence_length,
        "kv_sequence_length": step.new_tokens,
        "past_sequence_length": rows,
        "max_sequence_length": rows,
        "total_sequence_length": step.total_sequence_length,
        "rotary_cache_length": call.rotary_cache_length or step.total_sequence_length,
    }
    parts = [part.strip() for part in name.split("+")]
    found = [int(part) if part.isdecimal() else sizes.get(part) for part in parts]
    return None if None in found else sum(filter(None, found))


def _output(info: onnx.ValueInfoProto) -> Tensor:
    tensor = info.type.tensor_type
    return Tensor(info.name, "connected", _word(tensor.elem_type), len(tensor.shape.dim))


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if any(size < 0 for size in shape) or len(shape) > MAX_RANK:
        raise GraphError(f"{name} cannot have the shape {list(shape)}")
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise GraphError(f"{name} of shape {list(shape)} is too large")


def _weight(graph: Graph, call: Call, tensor: onnx.TensorProto) -> Tensor:
    """A constant whose data is not in the file, with the rule for drawing it."""
    name, dtype, shape = tensor.name, _word(tensor.data_type), tuple(tensor.dims)
    _check_shape(name, shape)
    use = _use_of(graph, name, dtype)
    node = _described(graph, use.node, call) if is_attention(use.node) else call
    values = _values(graph, use, node, dtype, shape, constant=True)
    return Tensor(
        name, "connected", dtype, len(shape), shape, values, role=use.role, node=node
    )  # fmt: skip


def _values(
    graph: Graph, use: _Use, node: Call, dtype: str, shape: tuple[int, ...], *, constant: bool
) -> Values | None:
    """How values with this role are drawn; None if they follow from the call.

    Weights are scaled so that numbers keep their magnitude from layer to layer.
    """
    role = use.role
    if role == "attention_mask" or (role in INPUT_NAMES and not is_attention(use.node)):
        return None
    if role in INPUT_NAMES:  # as in a case of that node alone
        return node_steps(node)[0].input(role).values
    if role == "attention_query":
        return node_steps(node)[0].input("query").values
    if role == "ids":
        return Values(low=0, high=_rows_of(graph, use.node) - 1)
    if role == "weight":
        terms = shape[-1] if use.transposed or _is_turned(use.node) else shape[-2:][0]
        return _within(math.sqrt(3.0 / max(terms, 1)))
    if role in ("weight_scale", "embedding_scale"):
        spread = 2.0 ** _bits(use.node) / math.sqrt(12.0)
        if role == "weight_scale":
            spread *= math.sqrt(_sized(use.node, "K"))
        return Values(low=0.75 / spread, high=1.25 / spread)
    if role in ("codes", "zero_points") and NUMPY[dtype].kind in "iu":
        low, high = (0, 255) if dtype == "uint8" else (-128, 127)
        return Values(low=low, high=high)
    if role == "zero_points":
        middle = 2.0 ** (_bits(use.node) - 1)
        return Values(low=middle - 1.5, high=middle + 1.5)
    return {
        "activation": Values(),
        "embedding": Values(),
        "addend": _within(0.25) if constant else Values(),
        "bias": _within(0.25),
        "factor": Values(low=0.5, high=1.5),
        "norm_weight": Values(low=0.5, high=1.5),
    }[role]


def _sized(node: onnx.NodeProto, name: str) -> int:
    """A size that an attribute gives."""
    size = attributes_in(node).get(name)
    if not isinstance(size, int) or not 0 < size <= MAX_ELEMENTS:
        raise GraphError(f"the node {_name(node)} has no legal {name}: {size}")
    return size


def _bits(node: onnx.NodeProto) -> int:
    bits = attributes_in(node).get("bits", 4)
    if bits not in (2, 4, 8):
        raise GraphError(f"the node {_name(node)} has {bits} bits; known are 2, 4 and 8")
    return int(bits)


def _within(most: float) -> Values:
    return Values(low=-most, high=most)


def _is_turned(node: onnx.NodeProto) -> bool:
    return bool(attributes_in(node).get("transB", 0))


def _rows_of(graph: Graph, node: onnx.NodeProto) -> int:
    """The number of rows of the table from which a node gathers."""
    axis = attributes_in(node).get("gather_axis", attributes_in(node).get("axis", 0))
    rows = graph.type(node.input[0]).size(axis) if isinstance(axis, int) else None
    if not rows:
        raise GraphError(f"the number of rows from which {_name(node)} gathers is unknown")
    return rows
