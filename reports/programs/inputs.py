# The model and the inputs of its calls: the same in every program.
import base64
import math
import zlib

import numpy as np

#: Of each type its number in ONNX, and NumPy's name of it, or of its bits where NumPy lacks it.
DTYPES = {
    "float32": (1, "f4"),
    "uint8": (2, "u1"),
    "int8": (3, "i1"),
    "int32": (6, "i4"),
    "int64": (7, "i8"),
    "float16": (10, "f2"),
    "bfloat16": (16, "u2"),
    "float8e4m3fn": (17, "u1"),
}


def marked(numbers, head_size, divisor, starts):
    """In each head of a token one element, chosen by its position, is large."""
    if numbers.ndim == 3:
        tokens = numbers.reshape(*numbers.shape[:2], -1, head_size)
    else:
        tokens = numbers.swapaxes(1, 2)[..., :head_size]
    batch, length, heads, _ = tokens.shape
    starts = np.array(starts or [0] * batch)
    place = starts[:, None] + np.arange(length) + 5 * np.arange(batch)[:, None]
    place = place[:, :, None] + 3 * np.arange(heads)
    strides = range(1 + 3 * head_size // 8, 2 * head_size + 2)
    stride = next(n for n in strides if math.gcd(n, head_size) == 1)
    stands_out = np.arange(head_size) == (stride * place % head_size)[..., None]
    tokens[...] = np.where(stands_out, 0.5 + np.abs(tokens) / 2, tokens / divisor)
    return numbers


def drawn(recipe, shape, integers):
    """Random numbers, the same with every NumPy (NEP 19)."""
    state = np.random.RandomState(zlib.crc32(recipe["stream"].encode()))
    low, high = float(recipe.get("low", -1)), float(recipe.get("high", 1))
    if integers:
        return np.floor(low + state.random_sample(shape) * (high - low + 1)).astype("i8")
    numbers = low + state.random_sample(shape) * (high - low)
    size, step = recipe.get("head_size", 0), float(recipe.get("step", 0))
    if recipe.get("kind") == "marked":
        return marked(numbers, size, float(recipe.get("divisor", 1)), recipe.get("starts"))
    if "odd_heads" in recipe:
        numbers.reshape(*shape[:-1], -1, size)[..., 1::2, :] *= float(recipe["odd_heads"])
    return np.rint(numbers / step) * step if step else numbers


def numbers(recipe, shape, integers):
    """The values of a tensor before they are rounded to its type."""
    kind, word = recipe.get("kind"), "i8" if integers else "f8"
    if kind == "constant":
        return np.full(shape, np.array(recipe.get("value", 0), word))
    if kind == "numbers":
        return np.array(recipe["numbers"], word).reshape(shape)
    if kind == "positions":
        return np.resize(np.array(recipe["starts"])[:, None] + np.arange(recipe["count"]), shape)
    if kind in ("cosines", "sines"):
        rows, columns = shape if len(shape) == 2 else (math.prod(shape), 1)
        frequencies = 500.0 ** (-np.arange(columns) / max(columns, 1))
        angles = 0.75 * np.arange(rows)[:, None] * frequencies
        return (np.cos(angles) if kind == "cosines" else np.sin(angles)).reshape(shape)
    if kind == "packed":
        parts = recipe["parts"]
        made = [numbers(part, (*shape[:-1], part["width"]), integers) for part in parts]
        return np.concatenate(made, axis=-1)
    return drawn(recipe, shape, integers)


def bfloat16(values):
    """The bits of bfloat16, rounded to nearest, ties to even."""
    bits = values.astype("f4").view("u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0 | (bits >> 31) << 15, rounded).astype("u2")


def float8_values():
    """The values of the codes of float8e4m3fn without a sign; the last is no number."""
    exponent, fraction = np.divmod(np.arange(0x80), 8)
    sizes = np.where(exponent, (8 + fraction) * 2.0 ** (exponent - 10.0), fraction * 2.0**-9)
    return np.append(sizes[:0x7F], np.nan)


def float8(values):
    """The bits of float8e4m3fn, rounded to nearest, ties to even."""
    known, size = float8_values()[:0x7F], np.abs(values.astype("f4").astype("f8"))
    middle = (known[1:] + known[:-1]) / 2
    up, down = np.searchsorted(middle, size, "right"), np.searchsorted(middle, size, "left")
    bits = np.where(up % 2, down, up)  # at a tie they differ, and one is even
    bits = np.where(size <= 464, bits, 0x7F)
    return (bits | np.signbit(values) << 7).astype("u1")


def array(tensor):
    """The values of an input or constant in its type; of bfloat16 and float8 the bits."""
    dtype, recipe = tensor["dtype"], tensor["recipe"]
    values = numbers(recipe, tuple(tensor["shape"]), "int" in dtype)
    for (*rows, first), number, *count in recipe.get("but", []):
        below = values[tuple(rows)]
        below[first % len(below) :][: (count or [1])[0]] = number
    if dtype in ("bfloat16", "float8e4m3fn"):
        return bfloat16(values) if dtype == "bfloat16" else float8(values)
    return values.astype(DTYPES[dtype][1])


def inputs():
    """The inputs of each call. A later call has those of the first, but for some of its own."""
    first = {name: array(tensor) for name, tensor in DATA["inputs"].items()}
    later = ({name: array(tensor) for name, tensor in own.items()} for own in DATA["later"])
    return [first, *({**first, **own} for own in later)]


def number_field(number, value):
    """A field of a protobuf message with a number: seven bits a byte, the lowest first."""
    content = [8 * number]
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def bytes_field(number, content):
    """A field of a protobuf message with bytes."""
    length = number_field(0, len(content))[1:]
    return bytes([8 * number + 2]) + length + content


def tensor_message(name, dtype, values):
    """A TensorProto of ONNX."""
    dims = b"".join(number_field(1, size) for size in values.shape)
    kind = number_field(2, DTYPES[dtype][0])
    return dims + kind + bytes_field(8, name.encode()) + bytes_field(9, values.tobytes())


def model():
    """The bytes of the model. Constants follow: protobuf joins the parts of a message."""
    content = base64.b64decode(DATA["model"])
    for name, tensor in DATA["constants"].items():
        message = tensor_message(name, tensor["dtype"], array(tensor))
        content += bytes_field(7, bytes_field(5, message))
    return content


def dtype_of(name):
    """The type of an input or output."""
    return DATA["outputs"].get(name) or DATA["inputs"][name]["dtype"]
