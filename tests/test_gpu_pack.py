"""What is run on a GPU machine in a day; a transcript has what such a machine gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files
from conformance.results.reader import read

SCRIPTS = ROOT / ".ci" / "gpu"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not a checkout")


def test_every_theme_has_a_place_and_a_reason() -> None:
    lines = (SCRIPTS / "themes.txt").read_text().splitlines()
    found = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    assert sorted(theme for theme, _ in found) == sorted(shipped_files())


@pytest.mark.slow
def test_a_day_records_the_target_and_its_variants(tmp_path: Path) -> None:
    """Here without a GPU; the second time there is nothing left to do."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    for _ in range(2):
        done = subprocess.run(
            [ROOT / ".ci" / "gpu-day", tmp_path, "--minutes", "4", "-k", "smoke and float32"],
            env={**os.environ, "EP": "cpu", "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        run = read(tmp_path / "results.jsonl.xz")
        names = [target.ep for target in run.header.targets]
        assert names == ["cpu", "cpu-noflash", "cpu-threads"]
        assert len(run.results) == 3 * len({result.case for result in run.results})
    assert " has " in done.stdout
    assert "; 0 are left." in done.stdout
