"""onnxruntime-web itself, where it is installed: its results match its expectations.

With the commands of the documentation: a smoke test of an adapter, and the whole corpus on the CPU.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from as_user import Gqa

from conformance.results.reader import Run, read
from conformance.results.records import ResultRecord
from conformance.targets.tools import ONNXRUNTIME_WEB_VERSION

PLACEMENTS = {"webgpu": "WebGpuExecutionProvider", "wasm": "CPUExecutionProvider"}


def ran(gqa: Gqa, folder: Path, ep: str, *arguments: str) -> Run:
    """The target's results for the cases; skips if it is not installed, with the reason."""
    file = folder / "results.jsonl"
    done = gqa("run", "--ep", ep, *arguments, "--results", str(file))
    run = read(file)
    (target,) = run.header.targets
    if target.describe is None and target.unavailable is not None:
        pytest.skip(f"{ep}: {target.unavailable} {target.fix or ''}")
    assert target.describe is not None, done.both
    assert target.describe.version == ONNXRUNTIME_WEB_VERSION
    assert run.infrastructure == []
    assert [f"{each.case}: {each.reason}" for each in run.results if each.unexpected] == []
    assert done.status == 0, done.both
    placements = {result.placement for result in run.results if result.outcome == "ran"}
    assert placements == {PLACEMENTS[ep]}
    return run


def verdicts(results: list[ResultRecord]) -> Counter[str]:
    """The number of results for each verdict."""
    return Counter(each.verdict for each in results)


@pytest.mark.slow
def test_every_family_of_kernels_on_webgpu(gqa: Gqa, tmp_path: Path) -> None:
    """Two minutes on a software adapter, which builds some thirty shaders."""
    run = ran(gqa, tmp_path, "webgpu", "-k", "smoke")
    for dtype in run.header.targets[0].describe.dtypes:  # type: ignore[union-attr]
        if dtype in ("float32", "float16"):
            results = [each for each in run.results if f"dtype={dtype}" in each.case]
            assert verdicts(results)["pass"] >= 14
            assert verdicts(results)["skip"] == 0


@pytest.mark.slow
def test_every_result_of_wasm_is_expected(gqa: Gqa, tmp_path: Path) -> None:
    run = ran(gqa, tmp_path, "wasm", "--jobs", "2")
    found = verdicts(list(run.results))
    assert found["pass"] >= 2000
    assert set(found) == {"crash", "wrong", "accepted", "unsupported", "pass", "skip"}
