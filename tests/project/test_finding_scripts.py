"""The scripts of some findings, run as docs/findings/README.md says: they print what the page says.

All findings need many releases, so these are those of the releases that `gqa setup` installs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tables import tables

from conformance.base.paths import ROOT
from conformance.targets.tools import find_onnxruntime_web

TABLES = tables(__file__)

FINDINGS = ROOT / "docs" / "findings"
LAVAPIPE = Path("/usr/share/vulkan/icd.d/lvp_icd.json")

#: Pages, and the variables with which their scripts run.
SCRIPTS = TABLES["scripts"]


@pytest.mark.night
@pytest.mark.parametrize("page", SCRIPTS)
def test_a_script_prints_what_its_page_says(page: str, tmp_path: Path) -> None:
    package = {"ort": "onnxruntime", "tract": "tract"}.get(page.partition("-")[0])
    folder, more = tmp_path, SCRIPTS[page]
    if package is None:
        program = find_onnxruntime_web()
        if program is None:
            pytest.skip("needs onnxruntime-web: gqa setup webgpu")
        if more.get("EP") != "wasm":
            if not LAVAPIPE.exists():
                pytest.skip("needs lavapipe: gqa setup lavapipe")
            more = {"VK_ICD_FILENAMES": str(LAVAPIPE), **more}
        folder = program.path
    elif importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the Python package {package}")
    blocks = re.findall(
        r"(?ms)^```(\w*)\n(.*?)^```$", (FINDINGS / f"{page}.md").read_text(encoding="utf-8")
    )
    (language, script), (_, output), *_ = blocks
    assert language == "python"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FINDINGS), **more},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout == output, done.stderr
