"""Kernel variants really use another code path."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import cases_of

from conformance.bundle.cache import Bundle, bundle_for
from conformance.harness.outcomes import Ran
from conformance.harness.pool import Job, Pool
from conformance.results.records import ResultRecord
from conformance.run.engine import TargetRun
from conformance.run.target import TargetPlan
from conformance.targets.registry import target_for


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    body = "- name: prompt\n  sequence_length: 37\n  head_size: 64"
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return bundle_for(case.call)


def output_of(ep: str, bundle: Bundle) -> bytes:
    """The exact output of ``ep``."""
    pool = Pool(target_for(ep).command)
    try:
        outcome = pool.run_one(Job(key=ep, bundle=str(bundle.path), steps=bundle.steps, seconds=30))
        assert isinstance(outcome, Ran)
        return outcome.runs[0][0]["output"]
    finally:
        pool.close()


def test_cpu_noflash_uses_the_other_kernels_in_any_environment(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    usual, other = output_of("cpu", bundle), output_of("cpu-noflash", bundle)
    assert usual != other  # the order of summation differs, so the last bits do
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    assert output_of("cpu", bundle) == usual
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    assert output_of("cpu-noflash", bundle) == other


def test_results_record_where_two_targets_return_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    body = "- {name: prompt, sequence_length: 37, head_size: 64, matrix: {softcap: [0.0, 1.0]}}"
    cases = cases_of(tmp_path, body)
    bits = []
    for ep in ("cpu", "cpu-noflash"):
        with TargetRun(TargetPlan(target_for(ep), (), ())) as run:
            records = [run.run_one(case) for case in cases]
        assert all(isinstance(r, ResultRecord) and r.verdict == "pass" for r in records)
        bits.append([r.bits for r in records if isinstance(r, ResultRecord)])
    (tiled, capped), (plain, plain_capped) = bits
    assert tiled != plain
    assert capped == plain_capped  # the newer kernels do not support softcap
