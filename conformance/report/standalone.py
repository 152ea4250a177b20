"""A result as a program of its own, and as the text of a bug report.

Both need nothing of this suite: the program makes the model and its inputs from the recipes in the
results file, with NumPy and onnx, calls the runtime as its users do, and looks at the elements that
were judged worst. Its blocks stand apart by one empty line, and the same block is the same text in
every program, so that a page can hold each once.

Everything here comes out of a results file, which anybody may have written: text goes through
`clean` and into comments line by line, and into code as a literal only.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.report.text import clean
from conformance.results import (
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    Recipe,
    ResultRecord,
    Target,
)
from conformance.signature import DOMAIN, INPUTS, OP_TYPE, OPSET_VERSION, OUTPUTS

_PYTHON: Final = ("cpu", "cpu-noflash", "cuda", "tract-wheel")
_SHELL: Final = ("tract", "tract-plain")
_NODE: Final = ("webgpu", "webgpu-jsep", "wasm")

_FILES: Final = {"python": "repro.py", "sh": "repro.sh", "javascript": "repro.mjs"}

#: dtype word → TensorProto's name of it, and NumPy's, of the bits where NumPy has no such type.
_KINDS: Final = {
    "float32": ("FLOAT", "f4"),
    "float16": ("FLOAT16", "f2"),
    "bfloat16": ("BFLOAT16", "u2"),
    "float8e4m3fn": ("FLOAT8E4M3FN", "u1"),
    "int8": ("INT8", "i1"),
    "uint8": ("UINT8", "u1"),
    "int32": ("INT32", "i4"),
    "int64": ("INT64", "i8"),
}
_BITS: Final = {"bfloat16": "bfloat16", "float8e4m3fn": "float8"}
_RANKS: Final = {output.name: output.rank for output in OUTPUTS}
_NAMES: Final = {parameter.name for parameter in (*INPUTS, *OUTPUTS)}
_CARRIED: Final = {"past_key": "present_key", "past_value": "present_value"}
_OPSET, _IR_VERSION = 18, 10

#: How judge.py says that a shape, a dtype or a second run differs.
_SHAPE = re.compile(r"(\w+)(?: in call (\d+))? has shape \([^)]*\), not (\([\d, ]*\))")
_DTYPE = re.compile(r"\w+(?: in call \d+)? has dtype ")
_TWO_RUNS: Final = "two runs on the same input differ"
_OTHER_FORM: Final = "The same call, "
_SECONDS = re.compile(r"No answer within ([\d.]+) s")


def language(target: Target) -> str:
    """The program's language, as Markdown calls it: python, sh or javascript."""
    if target.ep in _SHELL:
        return "sh"
    return "javascript" if target.ep in _NODE else "python"


def filename(target: Target) -> str:
    """What the program is best called."""
    return _FILES[language(target)]


def why_not(case: CaseRecord, result: ResultRecord, target: Target) -> str | None:
    """Why there is no program of this result, in a sentence; None if there is one."""
    if target.ep not in (*_PYTHON, *_SHELL, *_NODE):
        return f"Only the program behind {_line(target.ep)} knows how it is called."
    if result.verdict == "skip":
        return "It was not tried here, so there is nothing to show."
    connected = [tensor for tensor in case.call.inputs if tensor.state == "connected"]
    if any(tensor.recipe is None for tensor in connected):
        return "The results file is of a time when it did not say how inputs are made."
    made = [tensor for tensor in case.call.outputs if tensor.state == "connected"]
    tensors: list[CallInput | CallOutput] = [*connected, *made]
    strange = [t for t in tensors if t.dtype not in _KINDS or t.name not in _NAMES]
    if strange or not made or any(_odd(tensor.shape) for tensor in connected):
        return "The results file describes tensors that this version knows nothing of."
    if case.call.shared_buffer and target.ep not in ("cpu", "cpu-noflash", "cuda", *_NODE[:2]):
        return "Past and present share memory, which this runtime cannot be told."
    return None


def _odd(shape: Sequence[object] | None) -> bool:
    return shape is None or not all(type(dim) is int and dim >= 0 for dim in shape)


def script(case: CaseRecord, result: ResultRecord, target: Target) -> str:
    """The program: it makes the call, and says what came of it on its last line.

    Where there can be none, a comment that says why.
    """
    word = language(target)
    refusal = why_not(case, result, target)
    head = _head(case, result, target)
    if refusal is not None:
        return _comment([*head, "", refusal], word) + "\n"
    try:
        blocks = {"python": _python, "sh": _shell, "javascript": _node}[word](case, result, target)
    except ValueError as error:  # a recipe that no file of ours holds
        return _comment([*head, "", f"There is no program: {error}."], word) + "\n"
    shebang = {"python": "", "sh": "#!/bin/sh\n", "javascript": ""}[word]
    return "\n\n".join([shebang + _comment(head, word), *blocks]) + "\n"


# ── What it says first ──────────────────────────────────────────────────────────────────────────


def _head(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    """The lines of the first comment."""
    contract = case.contract
    told = [
        f"{_line(case.id)} on {_line(result.target)}",
        f"contract: {contract.demands} ({contract.basis}), {_line(contract.source)}",
    ]
    if contract.why:
        told.append(f"          {_line(contract.why)}")
    told.append(f"expected: {_EXPECTED[contract.demands]}")
    told.append(f"seen:     {result.verdict}: {_line(result.reason)}")
    told += _caveats(case, result)
    if target.describe and target.describe.adapter:
        told.append(f"adapter:  {_line(target.describe.adapter, 100)}")
    return [*told, _needs(target)]


_EXPECTED: Final = {
    "computes": "the values that the contract defines",
    "rejects": "an error that says what is wrong with the call",
    "either": "the values that follow from the rest of the contract, or an error",
}


def _caveats(case: CaseRecord, result: ResultRecord) -> Iterator[str]:
    if _of_the_other_form(result):
        what = f" ({_line(case.relation)})" if case.relation else ""
        yield f"note:     the fault is in the other form of this call{what}, which is not in here"
    if _TWO_RUNS in result.reason:
        yield "note:     two runs gave other numbers; so this makes the call twice"
    if result.verdict == "wrong" and _DTYPE.search(result.reason):
        yield "note:     the type of an output is wrong, which this does not look at"
    if result.verdict == "timeout":
        yield "note:     it is stopped after the time that the suite gave it"


def _of_the_other_form(result: ResultRecord) -> bool:
    """Whether the verdict is of the call in another form, or of what the two have not in common."""
    disagree = result.relation is not None and not result.relation.share <= 1
    return disagree or result.reason.startswith(_OTHER_FORM)


def _needs(target: Target) -> str:
    """What must be installed, in words of a command line."""
    version = target.describe.version if target.describe else ""
    pinned = version if re.fullmatch(r"\d+(\.\d+){1,3}", version) else ""
    if target.ep in ("cpu", "cpu-noflash", "cuda"):
        package = "onnxruntime-gpu" if target.ep == "cuda" else "onnxruntime"
        return f"needs:    pip install numpy onnx {package}{'==' + pinned if pinned else ''}"
    if target.ep == "tract-wheel":
        return f"needs:    pip install numpy onnx tract{'==' + pinned if pinned else ''}"
    if target.ep in _SHELL:
        return f"needs:    pip install numpy onnx; tract {pinned} on the PATH, or TRACT=its path"
    dawn = "" if target.ep == "wasm" else f" webgpu{_dawn(target)}"
    at = f"@{pinned}" if pinned else ""
    return f"needs:    pip install numpy onnx; npm install onnxruntime-web{at}{dawn}, here"


def _dawn(target: Target) -> str:
    told = target.describe.versions.get("dawn", "") if target.describe else ""
    match = re.fullmatch(r"webgpu (\d+(?:\.\d+){1,3})", told)
    return f"@{match[1]}" if match else ""


def _comment(lines: Sequence[str], word: str) -> str:
    """A comment whose lines nothing can leave."""
    mark = "//" if word == "javascript" else "#"
    wrapped: list[str] = []
    for line in lines:
        indent = re.match(r"(\w+: +)?", line)
        wrapped += textwrap.wrap(
            line,
            100,
            subsequent_indent=" " * len(indent[0] if indent else ""),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(f"{mark} {line}".rstrip() for line in wrapped)


def _line(text: str, limit: int = 600) -> str:
    """Text from anywhere, in one line."""
    return " ".join(clean(text, limit).split())


# ── Making the model and the inputs ─────────────────────────────────────────────────────────────

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
    """Integers, `high` among them."""
    numbers = np.random.RandomState(zlib.crc32(stream.encode())).random_sample(shape)
    return np.floor(low + numbers * (high - low + 1)).astype("i8")
''',
    "marked": '''
def marked(stream, shape, head_size, divisor, starts):
    """Uniform numbers; in each token's head one element stands out, by the token's place."""
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
    """Every other head times a factor."""
    numbers.reshape(*numbers.shape[:-1], -1, head_size)[..., 1::2, :] *= factor
    return numbers
''',
    "positions": '''
def positions(starts, count, shape):
    """`count` positions from each start."""
    return np.resize(np.array(starts)[:, None] + np.arange(count), shape)
''',
    "angles": '''
def angles(rows, columns):
    """The angle of each position (row) and pair of elements (column) of rotary embeddings."""
    return np.arange(rows)[:, None] * 10000.0 ** (-np.arange(columns) / max(columns, 1))
''',
    "changed": '''
def changed(numbers, *changes):
    """Some elements, or all below an index, are another number."""
    for index, number in changes:
        numbers[index] = number
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
    bits = np.where(up % 2, down, up)  # they differ in ties, of which one is even
    bits = np.where(size <= 464, bits, 0x7F)
    return (bits | np.signbit(numbers) << 7).astype("u1")
''',
}
#: Helpers that helpers need.
_BASES: Final = {"marked": ("uniform",)}


def making(case: CaseRecord) -> list[str]:
    """The blocks that make `calls` and `model`; the same for every target."""
    call = case.call
    types = {t.name: str(t.dtype) for t in call.inputs}
    made = {
        tensor.name: _array(tensor.recipe, _dims(tensor.shape), types[tensor.name])
        for tensor in call.inputs
        if tensor.state == "connected" and tensor.recipe is not None
    }
    shapes = {tensor.name: _dims(tensor.shape) for tensor in call.inputs}
    lines = ["calls = [", "    {"]
    lines += [f"        {_quoted(name)}: {code}," for name, code in made.items()]
    lines += ["    },", "]"]
    for later in call.later:
        lines += ["calls.append(", "    {", "        **calls[0],"]
        for tensor in later:
            shape = shapes[tensor.name] if tensor.shape is None else _dims(tensor.shape)
            code = _array(tensor.recipe, shape, types[tensor.name])
            lines.append(f"        {_quoted(tensor.name)}: {code},")
        lines += ["    }", ")"]
    code = "\n".join(lines)
    wanted = [name for name in HELPERS if re.search(rf"\b{name}\(", code)]
    bases = {base for name in wanted for base in _BASES.get(name, ())}
    helpers = [HELPERS[name].strip() for name in HELPERS if name in bases or name in wanted]
    return [*helpers, code, _model(call)]


def _array(recipe: Recipe | None, shape: tuple[int, ...], dtype: str) -> str:
    """An expression whose value is the input's array."""
    assert recipe is not None
    integer = dtype in ("int8", "uint8", "int32", "int64")
    code = _numbers(recipe, shape, integer)
    word = _KINDS[dtype][1]
    if recipe.but:
        if recipe.kind == "constant":
            code = (
                f"np.full({shape}, {_number(recipe.value)}, {_quoted('i8' if integer else 'f8')})"
            )
        changes = ", ".join(f"({_tuple(at)}, {_number(x)})" for at, x in recipe.but)
        code = f"changed({code}, {changes})"
    elif recipe.kind == "constant" and dtype not in _BITS:
        return f"np.full({shape}, {_number(recipe.value)}, {_quoted(word)})"
    if dtype in _BITS:
        return f"{_BITS[dtype]}({code})"
    return f"{code}.astype({_quoted(word)})"


def _numbers(recipe: Recipe, shape: tuple[int, ...], integer: bool) -> str:
    """An expression of the numbers, before they are of the input's type."""
    kind = recipe.kind
    if kind == "constant":
        return f"np.full({shape}, {_number(recipe.value)}, {_quoted('i8' if integer else 'f8')})"
    if kind == "numbers":
        numbers = ", ".join(map(_number, recipe.numbers))
        return f"np.array([{numbers}], {_quoted('i8' if integer else 'f8')}).reshape({shape})"
    if kind == "positions":
        return f"positions({list(recipe.starts)}, {recipe.count}, {shape})"
    if kind in ("cosines", "sines"):
        # a table of another rank, wrong on purpose, is one column in another shape
        rows, columns = shape if len(shape) == 2 else (math.prod(shape), 1)
        table = f"np.{'sin' if kind == 'sines' else 'cos'}(angles({rows}, {columns}))"
        return table if len(shape) == 2 else f"{table}.reshape({shape})"
    if kind == "packed":
        parts = [_numbers(part, (*shape[:-1], part.width), integer) for part in recipe.parts]
        return f"np.concatenate([{', '.join(parts)}], axis={len(shape) - 1})"
    stream = _quoted(recipe.stream)
    if kind == "marked":
        starts = list(recipe.starts or (0,) * shape[0])
        size, divisor = recipe.head_size, _number(recipe.divisor)
        return f"marked({stream}, {shape}, {size}, {divisor}, {starts})"
    low, high = recipe.low, recipe.high
    if integer:
        low, high = (int(x) if x == x // 1 else x for x in (low, high))
        return f"integers({stream}, {shape}, {_number(low)}, {_number(high)})"
    code = f"uniform({stream}, {shape}, {_number(low)}, {_number(high)})"
    if recipe.odd_heads != 1.0:
        code = f"odd_heads({code}, {recipe.head_size}, {_number(recipe.odd_heads)})"
    if recipe.step:
        code = f"np.rint({code} / {_number(recipe.step)}) * {_number(recipe.step)}"
        return f"({code})"
    return code


def _model(call: CallRecord) -> str:
    """The block that makes `model`: one node, its inputs declared as the call's are."""
    lines = ["inputs = ["]
    for tensor in call.inputs:
        if tensor.state == "connected":
            kind = _KINDS[str(tensor.dtype)][0]
            names = tensor.dims or (None,) * len(tensor.shape or ())
            dims = [name or size for name, size in zip(names, tensor.shape or (), strict=True)]
            told = ", ".join(str(dim) if type(dim) is int else _quoted(str(dim)) for dim in dims)
            lines.append(f"    ({_quoted(tensor.name)}, {_quoted(kind)}, [{told}]),")
    lines += ["]", "outputs = ["]
    for output in call.outputs:
        if output.state == "connected":
            kind = _KINDS[str(output.dtype)][0]
            rank = ["None"] * _RANKS.get(output.name, 4)
            told = ", ".join(rank if output.shape is None else map(str, _dims(output.shape)))
            lines.append(f"    ({_quoted(output.name)}, {_quoted(kind)}, [{told}]),")
    given = ", ".join(_listed(call.inputs))
    made = ", ".join(_listed(call.outputs))
    attributes = ", ".join(
        f"{_quoted(name)}: {_quoted(value) if isinstance(value, str) else _number(value)}"
        for name, value in call.attributes.items()
    )
    lines += [
        "]",
        f"attributes = {{{attributes}}}",
        "node = helper.make_node(",
        f"    {_quoted(OP_TYPE)},",
        f"    [{given}],",
        f"    [{made}],",
        f"    domain={_quoted(DOMAIN)},",
        ")",
        "node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())",
        "declared = [",
        "    [",
        "        helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), dims)",
        "        for name, kind, dims in each",
        "    ]",
        "    for each in (inputs, outputs)",
        "]",
        f"opsets = [helper.make_opsetid('', {_OPSET}), helper.make_opsetid({_quoted(DOMAIN)},"
        f" {OPSET_VERSION})]",
        "model = helper.make_model(",
        "    helper.make_graph([node], 'gqa', *declared),",
        "    opset_imports=opsets,",
        f"    ir_version={_IR_VERSION},",
        ")",
    ]
    return "\n".join(lines).replace("'", '"')


def _listed(tensors: Sequence[CallInput | CallOutput]) -> Iterator[str]:
    """The node's names: an omitted one is empty, and the list ends before the trailing ones."""
    for tensor in tensors:
        if tensor.state != "trailing":
            yield _quoted(tensor.name if tensor.state == "connected" else "")


def _dims(shape: Sequence[object] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))


def _tuple(index: Sequence[int]) -> str:
    return str(tuple(index))


_PLAIN_CHARACTER = re.compile(r"[^A-Za-z0-9_ ./+,:()\[\]=@-]")


def _quoted(text: str) -> str:
    """Text as a literal of Python and of JavaScript, that means nothing to a shell."""

    def spelled(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return f'"{_PLAIN_CHARACTER.sub(spelled, text)}"'


def _number(number: float) -> str:
    """A number as a literal of Python with NumPy."""
    if math.isnan(number):
        return "np.nan"
    if math.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return repr(number)


# ── What is looked at ───────────────────────────────────────────────────────────────────────────


def _checked(result: ResultRecord) -> list[tuple[str, int, tuple[int, ...], float, float]]:
    """Output, call, index, right number and allowed error of the elements that are looked at."""
    if _of_the_other_form(result) and result.verdict != "wrong":
        return []
    if result.reason.startswith(_OTHER_FORM) and result.relation is None:
        return []  # the figures are of the other form
    return [
        (error.output, error.step, error.index, error.want, error.budget)
        for error in result.errors
        if error.index is not None and error.want is not None and error.budget is not None
    ]


def _shapes(result: ResultRecord) -> list[tuple[str, int, str]]:
    """Output, call and the right shape, of what had another one."""
    return [
        (output, int(step or 0), shape)
        for output, step, shape in _SHAPE.findall(result.reason)
        if result.verdict == "wrong" and output in _RANKS and not _of_the_other_form(result)
    ]


def _wanted(case: CaseRecord, result: ResultRecord, word: str) -> str:
    """The elements as a list of the language."""
    python = word != "javascript"
    last = [tensor.name for tensor in case.call.outputs if tensor.state == "connected"]
    lines = ["wanted = [" if python else "const wanted = ["]
    for output, step, index, want, budget in _checked(result):
        if output not in last:
            continue
        place = _tuple(index) if python else json.dumps(list(index))
        number = _number if python else _js_number
        told = f"{_quoted(output)}, {step}, {place}, {number(want)}, {number(budget)}"
        lines.append(f"    ({told})," if python else f"  [{told}],")
    return "\n".join([*lines, "]" if python else "];"])


def _js_number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def _refused(case: CaseRecord) -> str:
    """The verdict where the runtime refuses the call."""
    return "unsupported" if case.contract.demands == "computes" else "pass"


def _best(case: CaseRecord) -> str:
    """The verdict where the call runs and all that is looked at is right."""
    return "accepted" if case.contract.demands == "rejects" else "pass"


def _runs(result: ResultRecord) -> int:
    return 2 if _TWO_RUNS in result.reason else 1


def _seconds(result: ResultRecord) -> float:
    """After so long a call has timed out."""
    match = _SECONDS.search(result.reason)
    return float(match[1]) if match else 60.0


_ELSEWHERE: Final = "the fault that the suite tells of is in another form of this call, not here"


def _check(case: CaseRecord, result: ResultRecord) -> str:
    """The last block of a Python program: `results` against the worst elements."""
    lines = [
        "# output, call, index, right number, allowed error: where the suite found most error",
        _wanted(case, result, "python"),
        f'verdict = "{_best(case)}"',
    ]
    worse = "verdict" if _best(case) == "accepted" else '"wrong"'
    for output, step, shape in _shapes(result):
        lines += [
            f"got = results[{step}][{_quoted(output)}].shape",
            f'print({_quoted(output)}, "has shape", got, "and should have", {shape})',
            f"verdict = verdict if got == {shape} else {worse}",
        ]
    lines += [
        "for name, call, at, want, allowed in wanted:",
        "    values = results[call][name]",
        "    got = float(values[at]) if len(at) == values.ndim else math.nan",
        "    good = got == want or abs(got - want) <= allowed",
        '    found = f"got {got:.9g}, want {want:.9g}, allowed error {allowed:.3g}"',
        "    print(f\"{name}{list(at)} of call {call}: {found}: {'right' if good else 'WRONG'}\")",
        f"    verdict = verdict if good else {worse}",
    ]
    if _runs(result) > 1:
        lines += [
            "for name in results[0]:",
            "    calls_made = len(results) // 2",
            "    pairs = zip(results[:calls_made], results[calls_made:])",
            "    if any(one[name].tobytes() != other[name].tobytes() for one, other in pairs):",
            '        print(f"two runs differ in {name}")',
            f"        verdict = {worse}",
        ]
    if _of_the_other_form(result):
        lines.append(f'print("{_ELSEWHERE}")')
    return "\n".join([*lines, 'print("verdict:", verdict)'])


# ── Python ──────────────────────────────────────────────────────────────────────────────────────


def _python(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    run = _tract_wheel if target.ep == "tract-wheel" else _onnxruntime
    blocks = [IMPORTS]
    if result.verdict in ("crash", "timeout"):
        blocks.append(_child(result))
    return [*blocks, *making(case), *run(case, result, target), _check(case, result)]


def _child(result: ResultRecord) -> str:
    """A block that runs the rest in another process, so that its end can be told."""
    return f"""import os
import subprocess
import sys
if "REPRO_CHILD" not in os.environ:  # the rest runs in a process of its own, which may die
    command = [sys.executable, os.path.abspath(__file__)]
    inner = {{**os.environ, "REPRO_CHILD": "1"}}
    try:
        status = subprocess.run(command, env=inner, timeout={_seconds(result):g}).returncode
        if status:
            print("the process ended with status", status, "(negative: the signal)")
            print("verdict: crash")
    except subprocess.TimeoutExpired as error:
        print("no answer within", error.timeout, "s")
        print("verdict: timeout")
    sys.exit()"""


def _onnxruntime(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    call = case.call
    provider = "CUDAExecutionProvider" if target.ep == "cuda" else "CPUExecutionProvider"
    device = "cuda" if target.ep == "cuda" else "cpu"
    first = ["import onnxruntime"]
    if target.ep == "cpu-noflash":
        first = ["import os", 'os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] = "1"', *first]
    options = [
        "options = onnxruntime.SessionOptions()",
        "options.intra_op_num_threads = 1",
        "options.log_severity_level = 3",
    ]
    if device == "cuda":
        options += ['options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")']
    session = [
        "names = [name for name, _, _ in outputs]",
        "results = []",
        "try:",
        "    session = onnxruntime.InferenceSession(",
        f'        model.SerializeToString(), options, providers=["{provider}"]',
        "    )",
    ]
    if device == "cuda":
        session += [
            f'    if "{provider}" not in session.get_providers():',
            '        print("it would run on", session.get_providers())',
            '        print("verdict: fallback")',
            "        raise SystemExit",
        ]
    end = [
        "except Exception as error:",
        '    print("refused:", error)',
        f'    print("verdict: {_refused(case)}")',
        "    raise SystemExit",
    ]
    loop, inner = "calls", "    "
    if _runs(result) > 1:
        loop = "calls * 2"
    carry = _carry(call)
    fresh = [f"{inner}    if call is calls[0]:", f"{inner}        carried = {{}}"]
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    odd = {str(tensor.dtype) for tensor in tensors if tensor.state == "connected"} & {*_BITS}
    if not call.shared_buffer and not odd:
        feeds = "{**call, **carried}" if carry else "call"
        body = [
            *(["    carried = {}  # from call to call"] if carry else []),
            f"    for call in {loop}:",
            *(fresh if _runs(result) > 1 and carry else []),
            f"        made = session.run(names, {feeds})",
            "        results.append(dict(zip(names, made)))",
        ]
        if carry:
            pairs = ", ".join(f'{_quoted(p)}: results[-1]["{n}"]' for p, n in carry.items())
            body.append(f"        carried = {{{pairs}}}")
        return ["\n".join([*first, *options, *session, *body, *end])]
    helper = [
        "def given(name, bits):",
        '    """An OrtValue over the bits of an input or output."""',
        "    kind = {n: t for n, t, _ in inputs + outputs}[name]",
        "    number = getattr(onnx.TensorProto, kind)",
        "    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)",
    ]
    first = ["import ctypes", *first]
    reading = _reading()
    body = [
        "    carried = {}  # from call to call",
        f"    for call in {loop}:",
        *(fresh if _runs(result) > 1 else []),
        "        feeds = {name: given(name, bits) for name, bits in call.items()} | carried",
        "        binding = session.io_binding()",
    ]
    if call.shared_buffer:
        body += [
            "        shared = {}  # past and present in one memory, which goes on to the next call",
            "        for past, present in ("
            + ", ".join(f'("{p}", "{n}")' for p, n in _CARRIED.items())
            + "):",
            "            value = feeds.pop(past)",
            "            if past not in carried:",
            '                bits = call[past].view(f"u{call[past].itemsize}")',
            "                make = onnxruntime.OrtValue.ortvalue_from_numpy",
            f'                value = make(bits, "{device}", 0)',
            "            kind = {n: getattr(onnx.TensorProto, t) for n, t, _ in inputs}[past]",
            f'            place = ("{device}", 0, kind, value.shape(), value.data_ptr())',
            "            binding.bind_input(past, *place)",
            "            shared[past] = shared[present] = value",
        ]
    body += [
        "        for name, value in feeds.items():",
        "            binding.bind_ortvalue_input(name, value)",
        "        for name in names:",
    ]
    if call.shared_buffer:
        body += [
            "            if name in shared:",
            "                kind = {n: getattr(onnx.TensorProto, t) for n, t, _ in outputs}[name]",
            "                value = shared[name]",
            f'                place = ("{device}", 0, kind, value.shape(), value.data_ptr())',
            "                binding.bind_output(name, *place)",
            "            else:",
            '                binding.bind_output(name, "cpu")',
        ]
    else:
        body += ['            binding.bind_output(name, "cpu")']
    body += [
        "        binding.synchronize_inputs()",
        "        session.run_with_iobinding(binding)",
        "        binding.synchronize_outputs()",
        "        made = dict(zip(names, binding.get_outputs()))"
        + (" | {n: v for n, v in shared.items() if n in names}" if call.shared_buffer else ""),
        "        results.append({name: read(name, value) for name, value in made.items()})",
    ]
    if call.shared_buffer:
        body.append(
            "        carried = {past: shared[past] for past in "
            f"({', '.join(map(_quoted, _CARRIED))})}}"
        )
    elif carry:
        pairs = ", ".join(f'{_quoted(p)}: made["{n}"]' for p, n in carry.items())
        body.append(f"        carried = {{{pairs}}}")
    return [
        "\n".join(first),
        "\n".join(helper),
        reading,
        "\n".join([*options, *session, *body, *end]),
    ]


def _carry(call: CallRecord) -> dict[str, str]:
    """Of a loop: past → the present that it is, in the next call."""
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    connected = {tensor.name for tensor in tensors if tensor.state == "connected"}
    if call.steps < 2:
        return {}
    return {p: n for p, n in _CARRIED.items() if {p, n} <= connected}


def _reading() -> str:
    """A helper that reads an OrtValue of any type."""
    return '''def read(name, value):
    """What an OrtValue of any type holds, as numbers."""
    kind = {n: t for n, t, _ in outputs}[name]
    word = {"BFLOAT16": "u2", "FLOAT8E4M3FN": "u1", "FLOAT16": "f2", "FLOAT": "f4"}.get(kind)
    word = word or {"INT8": "i1", "UINT8": "u1"}[kind]
    count = math.prod(value.shape())
    if value.device_name() == "cpu":
        raw = ctypes.string_at(value.data_ptr(), count * np.dtype(word).itemsize) if count else b""
    else:
        raw = value.numpy().tobytes()
    bits = np.frombuffer(raw, word).reshape(value.shape())
    if kind == "BFLOAT16":
        return (bits.astype("u4") << 16).view("f4")
    if kind == "FLOAT8E4M3FN":
        exponent, fraction = (bits >> 3 & 15).astype("f8"), (bits & 7).astype("f8")
        size = np.where(exponent, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
        size = np.where(bits & 127 == 127, np.nan, size)
        return np.where(bits >> 7, -size, size)
    return bits.copy()'''


def _tract_wheel(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    carry = _carry(case.call)
    pairs = ", ".join(f'{_quoted(p)}: results[-1]["{n}"]' for p, n in carry.items())
    lines = [
        "import os",
        "import tempfile",
        'os.environ.setdefault("RAYON_NUM_THREADS", "1")',
        'os.environ["RUST_LIB_BACKTRACE"] = "0"',
        "import tract",
        'path = os.path.join(tempfile.mkdtemp(), "model.onnx")',
        "onnx.save(model, path)",
        'words = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}',
        'words["int64"] = "i64"',
        "results = []",
        "try:",
        *(["    carried = {}  # from call to call"] if carry else []),
        f"    for call in calls{' * 2' if _runs(result) > 1 else ''}:",
        *(
            ["        if call is calls[0]:", "            carried = {}"]
            if _runs(result) > 1 and carry
            else []
        ),
        f"        feeds = {'{**call, **carried}' if carry else 'call'}",
        "        loaded = tract.onnx().load(path)",
        "        for number in range(loaded.input_count()):",
        "            values = feeds[loaded.input_name(number)]",
        '            fact = ",".join([*map(str, values.shape), words[str(values.dtype)]])',
        "            loaded.set_input_fact(number, fact)",
        "        ready = loaded.into_model()",
        "        order = [ready.input_name(number) for number in range(ready.input_count())]",
        '        ready = tract.runtime_for_name("default").prepare(ready)',
        "        made = ready.run([feeds[name] for name in order])",
        "        made = [value.to_numpy() for value in made]",
        "        results.append({name: v for (name, _, _), v in zip(outputs, made)})",
        *([f"        carried = {{{pairs}}}"] if carry else []),
        "except tract.TractError as error:",
        '    print("refused:", error)',
        f'    print("verdict: {_refused(case)}")',
        "    raise SystemExit",
    ]
    return ["\n".join(lines)]


# ── tract's command line ────────────────────────────────────────────────────────────────────────

_NNEF: Final = """import pathlib
import struct
import sys
HEADER = struct.Struct("<2s2BII8IIHH")  # of NNEF's tensors, which tract reads and writes exactly
def save(path, values):
    kind = {"f": 0, "u": 1, "i": 4}[values.dtype.kind]
    dims = [*values.shape, *[0] * (8 - values.ndim)]
    sizes = values.nbytes, values.ndim, *dims, 8 * values.itemsize, kind, 0
    with open(path, "wb") as file:
        file.write(HEADER.pack(b"N\\xef", 1, 0, *sizes).ljust(128, b"\\0") + values.tobytes())
def load(path):
    with open(path, "rb") as file:
        data = file.read()
    _, _, _, _, rank, *dims, bits, kind, _ = HEADER.unpack_from(data)
    word = {0: "f", 1: "u", 2: "u", 3: "i", 4: "i"}[kind] + str(bits // 8)
    return np.frombuffer(data[128:], word).reshape(dims[:rank])"""


def _shell(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    how = "-O --runtime cpu" if target.ep == "tract" else "--runtime unoptimized"
    carry = _carry(case.call)
    steps = case.call.steps * _runs(result)
    start = [
        "tract=${TRACT:-tract}",
        'command -v "$tract" > /dev/null || { echo "there is no $tract"; exit 3; }',
        'tract=$(command -v "$tract")',
        'case $tract in */*) tract=$(cd "$(dirname "$tract")" && pwd)/$(basename "$tract") ;; esac',
        'folder=$(mktemp -d) && cd "$folder" || exit 3',
        "trap 'rm -rf \"$folder\"' EXIT",
        "export RAYON_NUM_THREADS=1 TRACT_LOG=warn RUST_LOG_STYLE=never RUST_BACKTRACE=0"
        " RUST_LIB_BACKTRACE=0",
        "cat > making.py << 'END'",
    ]
    save = [
        "for number, call in enumerate(calls):",
        '    folder = pathlib.Path(f"in{number}")',
        "    folder.mkdir()",
        "    for name, values in call.items():",
        '        save(folder / f"{name}.dat", values)',
        'onnx.save(model, "model.onnx")',
        "END",
    ]
    facts = [
        "cat > facts.py << 'END'",
        "from making import load, np, pathlib, save, sys",
        "number = int(sys.argv[1])",
    ]
    if carry:
        facts += [
            f"if number % {case.call.steps}:  # its past is the present of the call before",
            f"    for past, present in {tuple(carry.items())}:".replace("'", '"'),
            '        values = load(f"out{number - 1}/{present}.dat")',
            '        save(f"in{number}/{past}.dat", values)',
        ]
    facts += [
        'words = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}',
        'words["int64"] = "i64"',
        'for path in pathlib.Path(f"in{number}").iterdir():',
        "    values = load(path)",
        '    print("-i", ",".join([f"{path.stem}:" + ",".join(map(str, values.shape))'
        ' + ("," if values.shape else "") + words[str(values.dtype)]]))',
        "END",
    ]
    repeat = []
    if _runs(result) > 1:
        repeat = ["calls = calls * 2"]
    timeout = f"timeout {_seconds(result):g} " if result.verdict == "timeout" else ""
    run = [
        "python3 making.py || exit 3",
        f"for number in {' '.join(map(str, range(steps)))}; do",
        "  # shapes and types of the inputs; shellcheck disable=SC2046",
        f'  {timeout}"$tract" model.onnx $(PYTHONPATH=. python3 facts.py "$number") {how} \\',
        '    run --input-from-nnef "in$number" --save-outputs-nnef "out$number" > log 2> errors',
        "  status=$?",
        "  cat errors >&2",
        "  case $status in",
        "    0) ;;",
        f'    1) echo "verdict: {_refused(case)}"; exit ;;',
        '    124) echo "verdict: timeout"; exit ;;',
        '    *) echo "exit status $status"; echo "verdict: crash"; exit ;;',
        "  esac",
        "done",
        "python3 - << 'END'",
        "import math",
        "import sys",
        'sys.path.insert(0, ".")',
        "from making import load, outputs",
        "results = [",
        '    {name: load(f"out{number}/{name}.dat") for name, _, _ in outputs}',
        f"    for number in range({steps})",
        "]",
    ]
    main = ['if __name__ == "__main__":', *(f"    {line}" for line in (*repeat, *save[:-1])), "END"]
    return [
        "\n".join(start),
        IMPORTS,
        _NNEF,
        *making(case),
        "\n".join([*main, *facts]),
        "\n".join(run),
        _check(case, result) + "\nEND",
    ]


# ── onnxruntime-web ─────────────────────────────────────────────────────────────────────────────


def _node(case: CaseRecord, result: ResultRecord, target: Target) -> list[str]:
    on_gpu = target.ep != "wasm"
    call = case.call
    start = [
        'import { execFileSync, spawnSync } from "node:child_process";',
        'import { pathToFileURL } from "node:url";',
        'import { setFlagsFromString } from "node:v8";',
        'setFlagsFromString("--liftoff-only"); // so that it starts in seconds',
        "// Run it in a folder with node_modules.",
        "const from = (path) => import(pathToFileURL(`${process.cwd()}/node_modules/${path}`));",
        "const making = String.raw`",
    ]
    send = [
        "import base64",
        "import json",
        "plain = lambda values: base64.b64encode(values.tobytes()).decode()",
        "types = {name: kind for name, kind, _ in inputs}",
        "sent = [",
        "    {n: [types[n], v.shape, plain(v)] for n, v in call.items()}",
        "    for call in calls",
        "]",
        "model = base64.b64encode(model.SerializeToString()).decode()",
        'print(json.dumps({"model": model, "calls": sent}))',
        "`;",
        'const options = { encoding: "utf8", maxBuffer: 2 ** 30 };',
        'const made = JSON.parse(execFileSync("python3", ["-c", making], options));',
    ]
    tensors = [
        "const arrays = {",
        "  FLOAT: Float32Array, FLOAT16: globalThis.Float16Array ?? Uint16Array,",
        "  INT8: Int8Array, UINT8: Uint8Array, INT32: Int32Array, INT64: BigInt64Array,",
        "};",
        "function tensor([kind, dims, data]) {",
        '  const bytes = Uint8Array.from(Buffer.from(data, "base64"));',
        '  const type = kind === "FLOAT" ? "float32" : kind.toLowerCase();',
        "  return new ort.Tensor(type, new arrays[kind](bytes.buffer), dims);",
        "}",
    ]
    entry = {"webgpu": "webgpu", "webgpu-jsep": "all", "wasm": "wasm"}[target.ep]
    runtime = [
        f'const ort = await from("onnxruntime-web/dist/ort.{entry}.bundle.min.mjs");',
        "ort.env.wasm.numThreads = 1;",
        'ort.env.logLevel = "error";',
    ]
    blocks = ["\n".join(start[:4])]
    if result.verdict in ("crash", "timeout"):
        blocks.append("\n".join(_node_child(result)))
    blocks += ["\n".join(start[4:]), IMPORTS, *making(case), "\n".join(send)]
    if on_gpu:
        blocks.append(_dawn_block(case, result))
    blocks.append("\n".join([*runtime, *tensors]))
    if call.shared_buffer:
        blocks.append(_SHARING)
    blocks.append("\n".join(_node_run(case, result, on_gpu)))
    return [*blocks, _node_check(case, result)]


def _node_child(result: ResultRecord) -> list[str]:
    """Runs the rest in another process, so that its end can be told."""
    return [
        "if (!process.env.REPRO_CHILD) { // the rest runs in a process of its own, which may die",
        '  const env = { ...process.env, REPRO_CHILD: "1" };',
        f'  const options = {{ env, stdio: "inherit", timeout: {1000 * _seconds(result):g} }};',
        "  const done = spawnSync(process.execPath, [process.argv[1]], options);",
        "  const { error, status, signal } = done;",
        '  if (error?.code === "ETIMEDOUT") console.log("verdict: timeout");',
        "  else if (status || signal) {",
        "    console.log(`the process ended with ${signal ?? status}`);",
        '    console.log("verdict: crash");',
        "  }",
        "  process.exit();",
        "}",
    ]


def _dawn_block(case: CaseRecord, result: ResultRecord) -> str:
    """WebGPU as a browser has it."""
    lines = [
        "// Dawn takes the system's adapter; on Linux VK_DRIVER_FILES=FILE.json names another",
        "// Vulkan driver, such as lavapipe's",
        "// /usr/share/vulkan/icd.d/lvp_icd.json and SwiftShader's",
        "// /usr/lib/chromium/vk_swiftshader_icd.json.",
        'const dawn = await from("webgpu/index.js");',
        "Object.assign(globalThis, dawn.globals);",
        'if (!globalThis.navigator) Object.defineProperty(globalThis, "navigator", { value: {} });',
        "const gpu = dawn.create([]);",
        'Object.defineProperty(navigator, "gpu", { value: gpu });',
        "const { writeBuffer } = GPUQueue.prototype; // Dawn takes no SharedArrayBuffer: copy",
        "GPUQueue.prototype.writeBuffer = function (buffer, at, data, start = 0, size) {",
        "  const unit = data.BYTES_PER_ELEMENT ?? 1;",
        "  const memory = ArrayBuffer.isView(data) ? data.buffer : data;",
        "  const first = (data.byteOffset ?? 0) + start * unit;",
        "  const bytes = size === undefined ? data.byteLength - start * unit : size * unit;",
        "  const copy = new Uint8Array(memory, first, bytes).slice();",
        "  return writeBuffer.call(this, buffer, at, copy);",
        "};",
        "let lost = null;",
        "const { requestDevice } = GPUAdapter.prototype;",
        "GPUAdapter.prototype.requestDevice = async function (...parameters) {",
        "  const device = await requestDevice.apply(this, parameters);",
        "  device.lost.then(({ reason, message }) => {",
        '    if (reason !== "destroyed") lost = message; // as the end of the last session does',
        "  });",
        "  globalThis.device = device;",
        "  return device;",
        "};",
    ]
    empty = any(tensor.shape and 0 in tensor.shape for tensor in case.call.inputs)
    if empty or "createBindGroup" in f"{result.message} {result.reason}":
        lines += [
            "const { createBindGroup } = GPUDevice.prototype; // throws as browsers do",
            "GPUDevice.prototype.createBindGroup = function (descriptor) {",
            "  const without = descriptor.entries.find(({ resource }) => !resource);",
            "  if (without) throw new TypeError(",
            "    `createBindGroup: the resource of binding ${without.binding} is undefined.`,",
            "  );",
            "  return createBindGroup.call(this, descriptor);",
            "};",
        ]
    return "\n".join(lines)


_SHARING: Final = """// A past and a present in one buffer on the device.
const buffers = new Map();
function onDevice(given) {
  if (buffers.has(given)) return given;
  const { data, type, dims } = given;
  const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
  const size = Math.max(16, Math.ceil(data.byteLength / 16) * 16);
  const usage = STORAGE | COPY_SRC | COPY_DST;
  const buffer = device.createBuffer({ size, usage, mappedAtCreation: true });
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  new Uint8Array(buffer.getMappedRange()).set(bytes);
  buffer.unmap();
  const made = ort.Tensor.fromGpuBuffer(buffer, { dataType: type, dims });
  buffers.set(made, async () => {
    const copy = device.createBuffer({ size, usage: COPY_DST | GPUBufferUsage.MAP_READ });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, size);
    device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    return new data.constructor(copy.getMappedRange().slice(0, data.byteLength));
  });
  return made;
}"""


def _node_run(case: CaseRecord, result: ResultRecord, on_gpu: bool) -> Iterator[str]:
    provider = "webgpu" if on_gpu else "wasm"
    yield "function end(verdict) {"
    yield "  console.log(`verdict: ${verdict}`);"
    yield '  process.stdout.write("", () => process.exit());'
    yield "  return new Promise(() => {});"
    yield "}"
    yield f'const session = {{ executionProviders: ["{provider}"], logSeverityLevel: 3 }};'
    yield "const results = [];"
    yield "let elsewhere = false;"
    yield "try {"
    yield '  const model = Buffer.from(made.model, "base64");'
    if on_gpu:
        yield '  const alone = { session: { disable_cpu_ep_fallback: "1" } };'
        yield "  const create = (more) =>"
        yield "    ort.InferenceSession.create(model, { ...session, ...more });"
        yield "  const loaded = await create({ extra: alone }).catch((error) => {"
        yield "    const fell = /fallback to CPU EP has been explicitly disabled/;"
        yield "    if (!fell.test(error.message)) throw error;"
        yield "    elsewhere = true;"
        yield "    return create({});"
        yield "  });"
    else:
        yield "  const loaded = await ort.InferenceSession.create(model, session);"
    calls = list(_node_calls(case))
    if _runs(result) > 1:
        calls = [f"  for (let run = 0; run < {_runs(result)}; run++) {{", *_indented(calls), "  }"]
    yield from calls
    yield "} catch (error) {"
    yield "  console.log(`refused: ${error.message ?? error}`);"
    gone = " || lost" if on_gpu else ""
    yield f"  const crashed = error instanceof WebAssembly.RuntimeError{gone};"
    yield f'  await end(crashed ? "crash" : "{_refused(case)}");'
    yield "}"
    if on_gpu:
        yield "if (lost) {"
        yield "  console.log(`the device was lost: ${lost}`);"
        yield '  await end("crash");'
        yield "}"
        yield 'if (elsewhere) await end("fallback"); // not on the GPU'


def _indented(lines: Sequence[str]) -> list[str]:
    """Lines of JavaScript one block further in."""
    return [f"  {line}" for line in lines]


def _node_calls(case: CaseRecord) -> Iterator[str]:
    """Every call of the case, once."""
    carry = _CARRIED if case.call.shared_buffer else _carry(case.call)
    if carry:
        yield "  let carried = {}; // from call to call"
    yield "  for (const call of made.calls) {"
    yield "    const given = Object.entries(call).map(([name, sent]) => [name, tensor(sent)]);"
    yield f"    const feeds = {{ ...Object.fromEntries(given){', ...carried' if carry else ''} }};"
    value = "value.data"
    if case.call.shared_buffer:
        value = "buffers.has(value) ? await buffers.get(value)() : value.data"
        yield "    const nulls = loaded.outputNames.map((name) => [name, null]);"
        yield "    const fetches = Object.fromEntries(nulls);"
        for past, present in carry.items():
            yield f"    fetches.{present} = feeds.{past} = onDevice(feeds.{past});"
    into = ", fetches" if case.call.shared_buffer else ""
    yield f"    const outputs = await loaded.run(feeds{into});"
    if carry:
        pairs = ", ".join(f"{past}: outputs.{present}" for past, present in carry.items())
        yield f"    carried = {{ {pairs} }};"
    yield "    results.push({});"
    yield "    for (const [name, value] of Object.entries(outputs)) {"
    yield f"      const data = {value};"
    yield "      results.at(-1)[name] = { dims: value.dims, type: value.type, data };"
    yield "    }"
    yield "  }"


def _node_check(case: CaseRecord, result: ResultRecord) -> str:
    worse = "verdict" if _best(case) == "accepted" else '"wrong"'
    lines = [
        "// output, call, index, right number, allowed error: where the suite found most error",
        _wanted(case, result, "javascript"),
        "function half(bits) {",
        "  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];",
        "  const size = exponent === 31 ? (fraction ? NaN : Infinity)",
        "    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;",
        "  return bits >> 15 ? -size : size;",
        "}",
        f'let verdict = "{_best(case)}";',
    ]
    for output, step, shape in _shapes(result):
        dims = json.dumps([int(dim) for dim in re.findall(r"\d+", shape)])
        lines += [
            f"if (`${{results[{step}][{_quoted(output)}].dims}}` !== `${{{dims}}}`) {{",
            f"  console.log({_quoted(output)}, 'has another shape than', {dims});",
            f"  verdict = {worse};",
            "}",
        ]
    lines += [
        "for (const [name, call, at, want, allowed] of wanted) {",
        "  const { dims, data } = results[call][name];",
        "  const flat = at.reduce((sum, index, axis) => sum * dims[axis] + index, 0);",
        "  const got = data instanceof Uint16Array ? half(data[flat]) : Number(data[flat]);",
        "  const good = got === want || Math.abs(got - want) <= allowed;",
        "  const found = `got ${got}, want ${want}, allowed error ${allowed}`;",
        "  console.log(`${name}[${at}] of call ${call}: ${found}: ${good ? 'right' : 'WRONG'}`);",
        f"  verdict = good ? verdict : {worse};",
        "}",
    ]
    if _runs(result) > 1:
        lines += [
            "const half_of_them = results.length / 2;",
            "for (let call = 0; call < half_of_them; call++) {",
            "  for (const [name, { data }] of Object.entries(results[call])) {",
            "    const again = results[call + half_of_them][name].data;",
            "    if (data.every((value, index) => Object.is(value, again[index]))) continue;",
            "    console.log(`two runs differ in ${name}`);",
            f"    verdict = {worse};",
            "  }",
            "}",
        ]
    if _of_the_other_form(result):
        lines.append(f'console.log("{_ELSEWHERE}");')
    return "\n".join([*lines, "await end(verdict);"])


# ── The text of a bug report ────────────────────────────────────────────────────────────────────


def issue(case: CaseRecord, result: ResultRecord, target: Target) -> str:
    """Markdown to paste into a bug tracker: a title, facts, and the program."""
    told = target.describe
    runtime = _inline(f"{told.runtime} {told.version}" if told else target.name, 100)
    what = {
        "crash": "ends the process",
        "timeout": "does not come back",
        "wrong": "gives wrong numbers",
        "accepted": "accepts a call that it must reject",
        "fallback": "runs on another execution provider",
        "unsupported": "refuses a call that it must compute",
        "pass": "does as it should",
        "skip": "was not tried",
    }[result.verdict]
    title = _inline(case.title or case.name.replace("_", " "))
    place = f" ({_inline(told.execution_provider)})" if told and told.execution_provider else ""
    lines = [f"# {OP_TYPE} {what}: {title} – {runtime}{place}", "", "## What is called", ""]
    lines += [
        f"`{DOMAIN}.{OP_TYPE}`, one node. {_inline(case.question)} {_inline(case.why)}".strip()
    ]
    lines += ["", "| input | type | shape | values |", "| --- | --- | --- | --- |"]
    for tensor in case.call.inputs:
        if tensor.state == "connected":
            cells = (
                tensor.name,
                str(tensor.dtype),
                str(list(tensor.shape or ())),
                _line(tensor.values or "", 200),
            )
            lines.append(f"| {' | '.join(map(_inline, cells))} |")
    given = ", ".join(f"{name} {value}" for name, value in case.call.attributes.items())
    outputs = ", ".join(o.name for o in case.call.outputs if o.state == "connected")
    lines += ["", f"Attributes: {_inline(given) or 'none'}. Outputs: {_inline(outputs)}."]
    if case.call.steps > 1:
        lines += [
            f"It is a loop of {case.call.steps} calls; each call's past is the present before it."
        ]
    if case.call.shared_buffer:
        lines += ["Past and present are the same memory."]
    lines += ["", "## What happens", "", _inline(result.reason, 2000)]
    if result.message and result.outcome in ("rejected", "crashed"):
        message = clean(result.message, 4000)
        lines += ["", *_fenced(message, "text")]
    lines += _worst(result)
    lines += ["", "## What should happen", "", _should(case)]
    lines += ["", "## Where", ""]
    lines += [f"- {_inline(name)}: {_inline(value)}" for name, value in _where(target)]
    lines += ["", f"The conformance suite's command: {_code(result.reproduce)}"]
    lines += ["", "## Reproduction", ""]
    refusal = why_not(case, result, target)
    if refusal is not None:
        lines += [refusal]
    else:
        lines += [f"Save it as `{filename(target)}`; it needs nothing of that suite.", ""]
        lines += _fenced(script(case, result, target).rstrip("\n"), language(target))
    return "\n".join(lines) + "\n"


def _should(case: CaseRecord) -> str:
    contract = case.contract
    must = {
        "computes": "It computes what the contract defines.",
        "rejects": "It is refused, with an error that says what is wrong.",
        "either": "It computes right, or is refused.",
    }[contract.demands]
    basis = "It is specified" if contract.basis == "specified" else "It is asked for"
    why = f" {_inline(contract.why)}" if contract.why else ""
    source = _line(contract.source)
    link = f"<{source}>" if _LINK.fullmatch(source) else _inline(source)
    return f"{must}{why} {basis}: {link}"


def _worst(result: ResultRecord) -> Iterator[str]:
    """A table of the worst elements."""
    if _of_the_other_form(result) or not result.errors:
        return
    yield from ("", "| worst element | got | want | allowed error | share of it |")
    yield "| --- | --- | --- | --- | --- |"
    for error in result.errors:
        if error.index is None:
            continue
        step = f" of call {error.step}" if error.step else ""
        place = _inline(f"{error.output}{list(error.index)}{step}")
        figures = (error.got, error.want, error.budget, error.share)
        digits = ("9", "9", "3", "3")
        told = [
            "" if x is None else format(x, f".{n}g") for x, n in zip(figures, digits, strict=True)
        ]
        yield f"| {place} | {' | '.join(told)} |"


def _where(target: Target) -> Iterator[tuple[str, str]]:
    told = target.describe
    if told is None:
        yield "target", target.name
        return
    yield told.runtime, told.version
    if told.execution_provider:
        yield "execution provider", told.execution_provider
    if told.device:
        yield "device", told.device
    for name, value in told.versions.items():
        if name != told.runtime and len(value) <= 120 and name != "binary":
            yield name, value


_LINK = re.compile(r"https?://[A-Za-z0-9/._#=%?&+-]+")
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~!&$]|[@#](?=\w)")


def _escaped(match: re.Match[str]) -> str:
    # of a person or an issue: a bug tracker links them even where they are escaped
    return f"{match[0]}<!-- -->" if match[0] in "@#" else f"\\{match[0]}"


def _inline(text: str, limit: int = 600) -> str:
    """Text from anywhere as one line of Markdown that means nothing but itself."""
    return _MARKUP.sub(_escaped, _line(text, limit))


def _code(text: str) -> str:
    """Text from anywhere as code within a line."""
    line = _line(text, 1000)
    ticks = "`" * (_longest(line, "`") + 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def _fenced(text: str, word: str) -> list[str]:
    """Text as a block of code that it cannot leave."""
    fence = "`" * max(3, _longest(text, "`") + 1)
    return [f"{fence}{word}", text, fence]


def _longest(text: str, character: str) -> int:
    return max((len(run) for run in re.findall(f"{re.escape(character)}+", text)), default=0)
