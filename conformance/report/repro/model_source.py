"""Python source code that makes a call's model and inputs, from the recipes in a results file."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.remembered import of_the_last
from conformance.base.signature import DOMAIN, OP_TYPE, OPSET_VERSION, OUTPUTS
from conformance.results.records import (
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    GraphRecord,
    Recipe,
)

#: dtype → its name in TensorProto, and NumPy's name for it, or for its bits where NumPy has none.
KINDS: Final = {
    "float32": ("FLOAT", "f4"),
    "float16": ("FLOAT16", "f2"),
    "bfloat16": ("BFLOAT16", "u2"),
    "float8e4m3fn": ("FLOAT8E4M3FN", "u1"),
    "int8": ("INT8", "i1"),
    "uint8": ("UINT8", "u1"),
    "int32": ("INT32", "i4"),
    "int64": ("INT64", "i8"),
}
BITS: Final = {"bfloat16": "bfloat16", "float8e4m3fn": "float8"}
RANKS: Final = {output.name: output.rank for output in OUTPUTS}
_OPSET, _IR_VERSION = 18, 10


IMPORTS: Final = """import math
import zlib

import numpy as np
import onnx
from onnx import helper""".replace("\n\n", "\n")

HELPERS: Final = {
    "uniform": '''
def uniform(stream, shape, low, high):
    """Uniform numbers, the same with every NumPy (NEP 19)."""
    numbers = np.random.RandomState(zlib.crc32(stream.encode())).random_sample(shape)
    return low + numbers * (high - low)
''',
    "integers": '''
def integers(stream, shape, low, high):
    """Integers from low to high, both included."""
    numbers = np.random.RandomState(zlib.crc32(stream.encode())).random_sample(shape)
    return np.floor(low + numbers * (high - low + 1)).astype("i8")
''',
    "marked": '''
def marked(stream, shape, head_size, divisor, starts):
    """Uniform numbers; in each head of a token one element, chosen by its position, is large."""
    numbers = uniform(stream, shape, -1.0, 1.0)
    if len(shape) == 3:
        tokens = numbers.reshape(*shape[:2], -1, head_size)
    else:
        tokens = numbers.swapaxes(1, 2)[..., :head_size]
    batch, length, heads, _ = tokens.shape
    place = np.array(starts)[:, None] + np.arange(length) + 5 * np.arange(batch)[:, None]
    place = place[:, :, None] + 3 * np.arange(heads)
    strides = range(1 + 3 * head_size // 8, 2 * head_size + 2)
    stride = next(n for n in strides if math.gcd(n, head_size) == 1)
    stands_out = np.arange(head_size) == (stride * place % head_size)[..., None]
    tokens[...] = np.where(stands_out, 0.5 + np.abs(tokens) / 2, tokens / divisor)
    return numbers
''',
    "odd_heads": '''
def odd_heads(numbers, head_size, factor):
    """Every second head, multiplied by a factor."""
    numbers.reshape(*numbers.shape[:-1], -1, head_size)[..., 1::2, :] *= factor
    return numbers
''',
    "positions": '''
def positions(starts, count, shape):
    """That many consecutive positions from each start."""
    return np.resize(np.array(starts)[:, None] + np.arange(count), shape)
''',
    "angles": '''
def angles(rows, columns):
    """The angle of each position (row) and pair of elements (column) of rotary embeddings."""
    return 0.75 * np.arange(rows)[:, None] * 500.0 ** (-np.arange(columns) / max(columns, 1))
''',
    "changed": '''
def changed(numbers, *changes):
    """The numbers with some elements, or whole slices, replaced."""
    for (*rows, first), number, *count in changes:
        below = numbers[tuple(rows)]
        below[first % len(below) :][: (count or [1])[0]] = number
    return numbers
''',
    "bfloat16": '''
def bfloat16(numbers):
    """The bits of bfloat16, rounded to nearest, ties to even."""
    bits = numbers.astype("f4").view("u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0 | (bits >> 31) << 15, rounded).astype("u2")
''',
    "float8": '''
def float8(numbers):
    """The bits of float8e4m3fn, rounded to nearest, ties to even."""
    codes = np.arange(0x7F)
    exponent, fraction = codes >> 3, codes & 7
    known = np.where(exponent, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    size = np.abs(numbers.astype("f4").astype("f8"))
    middle = (known[1:] + known[:-1]) / 2
    up, down = np.searchsorted(middle, size, "right"), np.searchsorted(middle, size, "left")
    bits = np.where(up % 2, down, up)  # at a tie they differ, and one is even
    bits = np.where(size <= 464, bits, 0x7F)
    return (bits | np.signbit(numbers) << 7).astype("u1")
''',
}
#: Helpers that other helpers call.
_BASES: Final = {"marked": ("uniform",)}
#: A call of a helper.
_HELPER: Final = re.compile(rf"\b({'|'.join(HELPERS)})\(")


@of_the_last
def model_source(case: CaseRecord) -> list[str]:
    """The blocks of source code that define `calls` and `model`; the same for every target."""
    call = case.call
    types = {t.name: str(t.dtype) for t in call.inputs}
    made = {tensor.name: _made(tensor) for tensor in call.inputs if _fed(tensor)}
    shapes = {tensor.name: _dims(tensor.shape) for tensor in call.inputs}
    lines = ["calls = [", "    {"]
    lines += [f"        {quoted(name)}: {code}," for name, code in made.items()]
    lines += ["    },", "]"]
    for later in call.later:
        lines += ["calls.append(", "    {", "        **calls[0],"]
        for tensor in later:
            shape = shapes[tensor.name] if tensor.shape is None else _dims(tensor.shape)
            code = _array(tensor.recipe, shape, types[tensor.name])
            lines.append(f"        {quoted(tensor.name)}: {code},")
        lines += ["    }", ")"]
    model = _model(call) if call.graph is None else _graph_model(call, call.graph)
    constants = [tensor for tensor in call.inputs if tensor.constant]
    if constants:
        lines += ["constants = {"]
        lines += [f"    {quoted(each.name)}: {_made(each)}," for each in constants]
        lines += ["}"]
    code = "\n".join(lines)
    wanted = {*_HELPER.findall(code), *_HELPER.findall(model)}
    wanted |= {base for name in wanted for base in _BASES.get(name, ())}
    helpers = [source.strip() for name, source in HELPERS.items() if name in wanted]
    return [*helpers, code, model]


def _fed(tensor: CallInput) -> bool:
    """Whether it is an input of the model."""
    return tensor.state == "connected" and not tensor.constant and tensor.same_as is None


def _made(tensor: CallInput) -> str:
    """An expression for an input's array."""
    return _array(tensor.recipe, _dims(tensor.shape), str(tensor.dtype))


def _graph_model(call: CallRecord, graph: GraphRecord) -> str:
    """The block that defines `model` from the bytes of its file, and fills in its constants."""
    content = textwrap.wrap(re.sub("[^A-Za-z0-9+/=]", "", graph.content), 88)
    lines = ["import base64", *_declared(call), "content = ("]
    lines += [f'    "{line}"' for line in content]
    lines += [
        ")",
        "model = onnx.load_model_from_string(zlib.decompress(base64.b64decode(content)))",
        "weights = {",
    ]
    lines += [f"    {quoted(tensor.name)}: {_made(tensor)}," for tensor in graph.weights]
    lines += [
        "}",
        "for tensor in model.graph.initializer:",
        "    if tensor.name in weights:",
        "        values = weights[tensor.name]",
        '        parts = {"name": tensor.name, "data_type": tensor.data_type}',
        '        parts |= {"dims": values.shape, "raw_data": values.tobytes()}',
        "        tensor.CopyFrom(onnx.TensorProto(**parts))",
        "for output in model.graph.output:",
        "    for dim in output.type.tensor_type.shape.dim:",
        "        dim.Clear()",
    ]
    return "\n".join(lines)


def _array(recipe: Recipe | None, shape: tuple[int, ...], dtype: str) -> str:
    """An expression for the input's array."""
    assert recipe is not None
    integer = dtype in ("int8", "uint8", "int32", "int64")
    code = _numbers(recipe, shape, integer)
    word = KINDS[dtype][1]
    if recipe.but:
        changes = ", ".join(
            f"({', '.join((index_text(at), python_number(x), *map(str, count)))})"
            for at, x, *count in recipe.but
        )
        code = f"changed({code}, {changes})"
    elif recipe.kind == "constant" and dtype not in BITS:
        return f"np.full({shape}, {python_number(recipe.value)}, {quoted(word)})"
    if dtype in BITS:
        return f"{BITS[dtype]}({code})"
    return f"{code}.astype({quoted(word)})"


def _numbers(recipe: Recipe, shape: tuple[int, ...], integer: bool) -> str:
    """An expression for the numbers, before they are cast to the input's type."""
    kind = recipe.kind
    if kind == "constant":
        return (
            f"np.full({shape}, {python_number(recipe.value)}, {quoted('i8' if integer else 'f8')})"
        )
    if kind == "numbers":
        numbers = ", ".join(map(python_number, recipe.numbers))
        return f"np.array([{numbers}], {quoted('i8' if integer else 'f8')}).reshape({shape})"
    if kind == "positions":
        return f"positions({list(recipe.starts)}, {recipe.count}, {shape})"
    if kind in ("cosines", "sines"):
        # A table of another rank, which is an intended fault of the call, is one column reshaped.
        rows, columns = shape if len(shape) == 2 else (math.prod(shape), 1)
        table = f"np.{'sin' if kind == 'sines' else 'cos'}(angles({rows}, {columns}))"
        return table if len(shape) == 2 else f"{table}.reshape({shape})"
    if kind == "packed":
        parts = [_numbers(part, (*shape[:-1], part.width), integer) for part in recipe.parts]
        return f"np.concatenate([{', '.join(parts)}], axis={len(shape) - 1})"
    stream = quoted(recipe.stream)
    if kind == "marked":
        zeros = str([0] * shape[0]) if shape[0] <= 64 else f"[0] * {shape[0]}"
        starts = str(list(recipe.starts)) if recipe.starts else zeros
        size, divisor = recipe.head_size, python_number(recipe.divisor)
        return f"marked({stream}, {shape}, {size}, {divisor}, {starts})"
    low, high = recipe.low, recipe.high
    if integer:
        low, high = (int(x) if x == x // 1 else x for x in (low, high))
        return f"integers({stream}, {shape}, {python_number(low)}, {python_number(high)})"
    code = f"uniform({stream}, {shape}, {python_number(low)}, {python_number(high)})"
    if recipe.odd_heads != 1.0:
        code = f"odd_heads({code}, {recipe.head_size}, {python_number(recipe.odd_heads)})"
    if recipe.step:
        code = f"np.rint({code} / {python_number(recipe.step)}) * {python_number(recipe.step)}"
        return f"({code})"
    return code


def _declared(call: CallRecord) -> list[str]:
    """The lines that define `inputs` and `outputs`, declared as in the call."""
    lines = ["inputs = ["]
    for tensor in call.inputs:
        if _fed(tensor):
            kind = KINDS[str(tensor.dtype)][0]
            names = tensor.dims or (None,) * len(tensor.shape or ())
            dims = [name or size for name, size in zip(names, tensor.shape or (), strict=True)]
            told = ", ".join(str(dim) if type(dim) is int else quoted(str(dim)) for dim in dims)
            lines.append(f"    ({quoted(tensor.name)}, {quoted(kind)}, [{told}]),")
    lines += ["]", "outputs = ["]
    for output in call.outputs:
        if output.state == "connected":
            kind = KINDS[str(output.dtype)][0]
            rank = ["None"] * RANKS.get(output.name, 4)
            told = ", ".join(rank if output.shape is None else map(str, _dims(output.shape)))
            lines.append(f"    ({quoted(output.name)}, {quoted(kind)}, [{told}]),")
    return [*lines, "]"]


def _model(call: CallRecord) -> str:
    """The block that defines `model`: one node."""
    lines = _declared(call)
    fixed = [tensor for tensor in call.inputs if tensor.constant]
    given = ", ".join(_listed(call.inputs))
    made = ", ".join(_listed(call.outputs))
    attributes = ", ".join(
        f"{quoted(name)}: {quoted(value) if isinstance(value, str) else python_number(value)}"
        for name, value in call.attributes.items()
    )
    lines += [
        f"attributes = {{{attributes}}}",
        "node = helper.make_node(",
        f"    {quoted(OP_TYPE)},",
        f"    [{given}],",
        f"    [{made}],",
        f"    domain={quoted(DOMAIN)},",
        ")",
        "node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())",
        "declared = [",
        "    [",
        "        helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), dims)",
        "        for name, kind, dims in each",
        "    ]",
        "    for each in (inputs, outputs)",
        "]",
        *_initializers(fixed),
        f"opsets = [helper.make_opsetid('', {_OPSET}), helper.make_opsetid({quoted(DOMAIN)},"
        f" {OPSET_VERSION})]",
        "model = helper.make_model(",
        f"    helper.make_graph([node], 'gqa', *declared{', initializers' if fixed else ''}),",
        "    opset_imports=opsets,",
        f"    ir_version={_IR_VERSION},",
        ")",
    ]
    return "\n".join(lines).replace("'", '"')


def _initializers(fixed: Sequence[CallInput]) -> Iterator[str]:
    """The lines that make tensors of the constants of the model."""
    if not fixed:
        return
    kinds = ", ".join(f"{quoted(t.name)}: {quoted(KINDS[str(t.dtype)][0])}" for t in fixed)
    yield f"kinds = {{{kinds}}}"
    yield "initializers = ["
    yield "    onnx.TensorProto("
    yield "        name=name, data_type=getattr(onnx.TensorProto, kinds[name]),"
    yield "        dims=values.shape, raw_data=values.tobytes(),"
    yield "    )"
    yield "    for name, values in constants.items()"
    yield "]"


def _listed(tensors: Sequence[CallInput | CallOutput]) -> Iterator[str]:
    """The node's names: an omitted one is empty, and the list ends before the trailing ones."""
    for tensor in tensors:
        if tensor.state != "trailing":
            name = (isinstance(tensor, CallInput) and tensor.same_as) or tensor.name
            yield quoted(name if tensor.state == "connected" else "")


def _dims(shape: Sequence[object] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))


def index_text(index: Sequence[int]) -> str:
    """An index as a Python tuple."""
    return str(tuple(index))


_PLAIN_CHARACTER = re.compile(r"[^A-Za-z0-9_ ./+,:()\[\]=@-]")


def quoted(text: str) -> str:
    """Text as a literal of both Python and JavaScript, without characters special to a shell."""

    def spelled(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return f'"{_PLAIN_CHARACTER.sub(spelled, text)}"'


def python_number(number: float) -> str:
    """A number as a Python literal that may use NumPy."""
    return _literal(number, "np.nan", "np.inf")


def js_number(number: float) -> str:
    """A number as a JavaScript literal."""
    return _literal(number, "NaN", "Infinity")


def _literal(number: float, nan: str, infinity: str) -> str:
    if math.isnan(number):
        return nan
    if math.isinf(number):
        return infinity if number > 0 else f"-{infinity}"
    return repr(number)
