"""Stand-alone programs for tract's command line: a shell script."""

from __future__ import annotations

from typing import Final

from conformance.report.repro.checks import carried_of, runs_of, seconds_of, verdict_if_rejected
from conformance.report.repro.model_source import IMPORTS, model_source
from conformance.report.repro.python_program import check_block
from conformance.results.records import CaseRecord, ResultRecord
from conformance.targets.catalogue import StandaloneProgram, TargetEntry

_NNEF: Final = """import pathlib
import struct
import sys
HEADER = struct.Struct("<2s2BII8IIHH")  # of NNEF tensors, which tract reads and writes exactly
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


def shell_blocks(
    case: CaseRecord, result: ResultRecord, entry: TargetEntry, program: StandaloneProgram
) -> list[str]:
    """The blocks of the shell script, which has Python make the model and check the outputs."""
    carry = carried_of(case.call)
    steps = case.call.steps * runs_of(result)
    numbers = " ".join(map(str, range(steps))) if steps <= 8 else f"$(seq 0 {steps - 1})"
    start = [
        "tract=${TRACT:-tract}",
        'command -v "$tract" > /dev/null || { echo "$tract is not installed"; exit 3; }',
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
            f"if number % {case.call.steps}:  # its past is the present of the previous call",
            f"    for past, present in {tuple(carry.items())}:".replace("'", '"'),
            '        values = load(f"out{number - 1}/{present}.dat")',
            '        save(f"in{number}/{past}.dat", values)',
        ]
    facts += [
        'words = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}',
        'words["int64"] = "i64"',
        'for path in pathlib.Path(f"in{number}").iterdir():',
        "    values = load(path)",
        "    fact = [*map(str, values.shape), words[str(values.dtype)]]",
        '    print("-i", f"{path.stem}:{\',\'.join(fact)}")',
        "END",
    ]
    repeat = []
    if runs_of(result) > 1:
        repeat = ["calls = calls * 2"]
    timeout = f"timeout {seconds_of(result):g} " if result.verdict == "timeout" else ""
    run = [
        "python3 making.py || exit 3",
        f"for number in {numbers}; do",
        "  # shapes and types of the inputs; shellcheck disable=SC2046",
        f'  {timeout}"$tract" model.onnx $(PYTHONPATH=. python3 facts.py "$number")'
        f" {program.options} \\",
        '    run --input-from-nnef "in$number" --save-outputs-nnef "out$number" > log 2> errors',
        "  status=$?",
        "  cat errors >&2",
        "  case $status in",
        "    0) ;;",
        f'    1) echo "verdict: {verdict_if_rejected(case, result)}"; exit ;;',
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
        *model_source(case),
        "\n".join([*main, *facts]),
        "\n".join(run),
        check_block(case, result) + "\nEND",
    ]
