"""Checks per second of this suite and of onnx's own backend-test runner, on the same bundles.

    python benchmarks/backend_test.py [--repeat 3]

A check is one output of one case, compared with its own reference. Both run the cases that consist
of one call and pass on ONNX Runtime's CPU: `onnx.backend.test.runner` as the onnx project uses
it, with the backend that ONNX Runtime ships, in one process; `gqa run`, where a check also
compares two runs bit for bit, compares each element with an error budget, and proves where the
node ran.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

from conformance.base.paths import data_path
from conformance.bundle.cache import bundle_for
from conformance.case.case import Case
from conformance.case.load import load
from conformance.results.reader import read
from conformance.results.records import ResultRecord


def gqa(cases: list[str], folder: Path, jobs: int) -> tuple[float, set[str]]:
    """Seconds of ``gqa run`` from header to footer, and the number of cases that passed."""
    results = folder / "results.jsonl"
    command = [sys.executable, "-m", "conformance", "run", *cases, "--ep", "cpu"]
    subprocess.run(
        [*command, "--jobs", str(jobs), "--results", str(results)], capture_output=True, check=False
    )
    run = read(results)
    assert run.footer is not None
    passed = {r.case for r in run.results if isinstance(r, ResultRecord) and r.verdict == "pass"}
    return run.footer.seconds, passed


def backend_tests(cases: list[Case]) -> tuple[float, int]:
    """Seconds that onnx's runner takes for the bundles of ``cases``, and how many it fails."""
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # otherwise it skips every contrib operator
    import onnxruntime.backend

    onnxruntime.set_default_logger_severity(4)

    runner = Runner(onnxruntime.backend)
    for number, case in enumerate(cases):
        name = f"test_case_{number}"
        folder = str(bundle_for(case.call).path)
        test = TestCase(name, name, None, folder, None, None, "simple", 1e-3, 1e-3)
        runner._add_model_test(test, "Simple")
    tests = runner.test_cases["OnnxBackendSimpleModelTest"]  # among them onnx's own
    suite = unittest.TestSuite(tests(f"test_case_{i}_cpu") for i in range(len(cases)))
    start = time.perf_counter()
    done = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    assert not done.skipped
    return time.perf_counter() - start, len(done.failures) + len(done.errors)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, passed = gqa([], folder, 2)
        cases = [
            case
            for case in load([data_path("cases")])
            if case.id in passed
            and len(case.steps) == 1
            and not case.call.shared_buffer
            and not case.relation
            and case.contract.demands == "computes"
        ]
        checks = sum(len(case.steps[0].connected_outputs) for case in cases)
        ids = [case.id for case in cases]
        print(f"{len(cases)} cases, {checks} checks, minimum of {repeat}")
        for jobs in (1, 2):
            seconds = min(gqa(ids, folder, jobs)[0] for _ in range(repeat))
            print(
                f"gqa run --jobs {jobs}: {seconds:.2f} s, {checks / seconds:.0f} checks per second"
            )
        tried = [backend_tests(cases) for _ in range(repeat)]
        seconds = min(seconds for seconds, _ in tried)
        print(
            f"onnx.backend.test.runner: {seconds:.2f} s, {checks / seconds:.0f} checks per second;"
            f" {tried[0][1]} cases fail there"
        )


if __name__ == "__main__":
    main()
