"""The benchmarks that measure a runner beside a bare loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import CACHE_VARIABLE, ROOT

FOLDER = ROOT / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="not a checkout")


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
