"""The code paths that are targets of their own really are two."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import cases_of

from conformance.bundle import Bundle, bundle_for
from conformance.harness import Job, Pool, Ran
from conformance.targets import target_for


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    body = "- name: prompt\n  sequence_length: 37\n  head_size: 64"
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return bundle_for(case.call)


def output_of(ep: str, bundle: Bundle) -> bytes:
    """What ``ep`` returns, to the bit."""
    pool = Pool(target_for(ep).command)
    try:
        outcome = pool.run_one(Job(key=ep, bundle=str(bundle.path), steps=bundle.steps, seconds=30))
        assert isinstance(outcome, Ran)
        return Path(outcome.runs[0][0]["output"]).read_bytes()
    finally:
        pool.close()


def test_cpu_noflash_takes_the_other_kernels_whatever_the_environment_says(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    usual, other = output_of("cpu", bundle), output_of("cpu-noflash", bundle)
    assert usual != other  # the sums are taken in another order: the last bits differ
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    assert output_of("cpu", bundle) == usual
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    assert output_of("cpu-noflash", bundle) == other
