"""The benchmarks that measure a runner beside a bare loop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import CACHE_VARIABLE, ROOT

FOLDER = ROOT / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="not a checkout")
sys.path.insert(0, str(FOLDER))

beside_a_loop = pytest.importorskip("beside_a_loop")

#: A runtime that prints, as ONNX Runtime does where libraries are missing, and refuses every model.
RUNTIME = """
import os

def set_default_logger_severity(level):
    print("a severity")

def preload_dlls():
    os.write(1, b"Failed to load a library\\n")

class SessionOptions:
    pass

class InferenceSession:
    def __init__(self, model, options, providers, enable_fallback=1):
        if isinstance(model, str):
            print("loads")
            raise ValueError("no model")
        print(providers)
        self.get_providers = lambda: [name for name, _ in providers]
"""


def test_the_runner_is_measured_beside_the_bare_loop(shared_cache: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(FOLDER / "overhead.py"), "--ep", "cpu", "--repeat", "1"),
            *("--markdown", "-k", "float32", str(ROOT / "cases" / "softcap.yaml")),
        ],
        env={**os.environ, CACHE_VARIABLE: str(shared_cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    head, *_, loop, runner = done.stdout.splitlines()
    assert re.fullmatch(r"cpu@[\d.]+, (\d+) calls, of which \1 ran, \d+ cores", head)
    assert re.fullmatch(r"\| a bare loop \| \d+\.\d\d \| 1\.00 \|", loop)
    assert re.fullmatch(r"\| runner and harness \| \d+\.\d\d \| \d+\.\d\d \|", runner)


def test_what_the_runtime_prints_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(RUNTIME)
    request = json.dumps({"bundle": str(tmp_path), "files": {}})
    done = subprocess.run(
        [sys.executable, str(FOLDER / "ort_loop.py"), "AnyExecutionProvider", "1"],
        input=f"{request}\n{request}\n",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "ready\nrefused\nrefused\n"
    assert "Failed to load a library" in done.stderr
    assert "[('AnyExecutionProvider', {'device_id': '1'})]" in done.stderr


# The history of ratios

history = pytest.importorskip("history")


def test_the_history_gets_a_line_with_all_ratios_and_worse_ones_end_it_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ratio, file = ["1"], tmp_path / "new" / "history.jsonl"

    def measured(paths: list[Path]) -> list[object]:
        assert paths
        return [history.Ratio("a run", float(ratio[0]), 1.5, "2 ms")]

    monkeypatch.setattr(history, "BENCHMARKS", {"one": measured})
    monkeypatch.setattr("sys.argv", ["history.py", str(file), "--markdown"])
    assert [history.main() for _ in range(3)] == [0, 0, 0]
    ratio[0] = "1.3"
    capsys.readouterr()
    assert history.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "| what | measured | ratio | goal |",
        "| --- | ---: | ---: | ---: |",
        "| a run | 2 ms | 1.30 | 1.50 |",
        "",
        "Worse by more than a fifth than usual:",
        "",
        "- a run: 1.30, usually 1.00.",
    ]
    assert [line["ratios"]["a run"] for line in history.lines_of(file)] == [1, 1, 1, 1.3]
