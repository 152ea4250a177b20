"""A new input of the operator is a small change: CONTRIBUTING's recipe, done to a copy.

The input is made up and has a dim for heads. Nothing but the files of the recipe changes, and cases
with the input are loaded, found, titled, drawn, computed, measured, varied and shown; a model with
it is read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from conformance.base.paths import PACKAGE, ROOT

#: The most files of the package that a new input may touch, the oracle's left out.
MAX_FILES: Final = 10
#: For each file of the package, the text after which another one is written.
EDITS: Final = {
    "operator/signature.py": [
        (
            'Parameter("query_seqlens", "M", ("batch_size",), since="1.32"),\n',
            '    Parameter("head_gain", "T", ("num_heads",), since="1.33", is_weight=True),\n',
        )
    ],
    "operator/call.py": [('"""Connect head_sink."""\n', "    head_gain: Flag = False\n")],
    "operator/features.py": [
        ("parts import (\n", "    head_gain,\n"),
        ("    query_seqlens.PART,\n", "    head_gain.PART,\n"),
        ("    query_seqlens.QUERY_SEQLENS,\n", "    head_gain.HEAD_GAIN,\n"),
    ],
    "oracle/read_call.py": [
        ("    softcap: float\n", "    gain: Float | None\n"),
        (
            "        softcap=_softcap(attributes, reading),\n",
            '        gain=_exact(inputs["head_gain"]) if "head_gain" in inputs else None,\n',
        ),
    ],
    "oracle/reference.py": [
        (
            "    query = apply_rotary(\n        normed(call.query",
            " if call.gain is None else call.query * call.gain[:, None]",
        )
    ],
}
CASES: Final = """\
format: gqa-cases/2
question: Does a made-up input reach the kernel?
defaults: {head_gain: true, past_sequence_length: 3, num_heads: 4, kv_num_heads: 2}
cases:
  - {name: gained, why: The scores of each head have a factor.}
  - {name: permuted, relation: permuted_heads, softcap: 5.0}
"""
#: What each command prints of the input.
PRINTED: Final = {
    ("list", "made_up.yaml", "-k", "head_gain and softcap"): "made_up/permuted\n",
    ("show", "made_up.yaml::gained"): "head_gain/ones",
    ("list", "made_up.yaml", "--json"): "One token on a past, softcap, head_gain",
}


@pytest.mark.push
def test_a_new_input_changes_few_files(tmp_path: Path) -> None:
    package = tmp_path / "conformance"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("cases", "runners", "mutants", "reports"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for name, edits in EDITS.items():
        text = (package / name).read_text(encoding="utf-8")
        for after, more in edits:
            assert text.count(after) == 1, f"{name} has no single {after!r}"
            text = text.replace(after, after + more)
        (package / name).write_text(text, encoding="utf-8")
    part = ROOT / "tests" / "support" / "new_input" / "head_gain.py"
    shutil.copy(part, package / "operator" / "parts")
    (tmp_path / "made_up.yaml").write_text(CASES, encoding="utf-8")
    changed = [name for name in EDITS if not name.startswith("oracle/")]
    assert len(changed) + 1 <= MAX_FILES
    for arguments, words in PRINTED.items():
        assert words in said(tmp_path, *arguments), f"gqa {' '.join(arguments)}"
    code = (
        "from conformance.case.corpus import find\n"
        "from conformance.bundle.prepare import prepare\n"
        "from conformance.bundle.effects import effects\n"
        "from conformance.case.case_file import schema\n"
        "gained, permuted = find(['made_up.yaml']).named\n"
        "print(gained.contract.basis, gained.contract.why)\n"
        "print(effects(gained.call)['head_gain/ones'] > 20)\n"
        "own, other = (prepare(permuted.call, relation).script.steps[0].inputs['head_gain']\n"
        "              for relation in (None, 'permuted_heads'))\n"
        "print(sorted(own.tolist()) == sorted(other.tolist()), own.tolist() != other.tolist())\n"
        "print('head_gain' in schema()['$defs']['Fields']['properties'])\n"
        "from pathlib import Path\n"
        "from conformance.graph.describe import fields_of_node\n"
        "from conformance.graph.nodes import nodes_of\n"
        "from conformance.graph.reading import read_model\n"
        "model = prepare(gained.call).script.model.SerializeToString()\n"
        "Path('model.onnx').write_bytes(model)\n"
        "(node,) = nodes_of(read_model(Path('model.onnx'))).nodes\n"
        "print(fields_of_node(node)['head_gain'])\n"
    )
    assert said(tmp_path, code=code).splitlines() == [
        "established The documentation does not say what a gain multiplies; ONNX Runtime's kernels"
        " agree.",
        "True",
        "True True",
        "True",
        "True",
    ]


def said(folder: Path, *arguments: str, code: str = "") -> str:
    """What a command of the copy in ``folder`` prints, or a program that uses the copy."""
    command = ["-c", code] if code else ["-m", "conformance", *arguments]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout
