"""This suite beside its peers, on the same bundles in the same run.

    python benchmarks/peers.py [--repeat 3] [--markdown] [PATH]...

`onnx.backend.test.runner` as the onnx project uses it, with the backend that ONNX Runtime ships; a
loop as that of ONNX Runtime's `onnx_test_runner`, which reads a bundle, creates a session, runs it
once and compares each output by `numpy.isclose`; and pytest with as many trivial items from a YAML
file. The first two run the cases that consist of one call and pass on ONNX Runtime's CPU, in one
process. A check of `gqa run` also compares two runs bit for bit, compares each element with an
error budget, and proves where the node ran. The ratios are to the peer.
"""

from __future__ import annotations

import io
import math
import os
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner
from overhead import inputs_of, session_of
from ratio import PYTEST, Ratio, parser_for, print_table, records, seconds_of_run, timed

from conformance.bundle.cache import bundle_for
from conformance.case.case import Case
from conformance.case.load import load

#: What a plugin for pytest must have at least to make items of a YAML file.
TRIVIAL: Final = """
import pytest, yaml

class Item(pytest.Item):
    def runtest(self):
        assert True

class File(pytest.File):
    def collect(self):
        for name in yaml.load(self.path.read_text(), Loader=yaml.CSafeLoader):
            yield Item.from_parent(self, name=name)

def pytest_collect_file(parent, file_path):
    if file_path.suffix == ".yaml":
        return File.from_parent(parent, path=file_path)
"""


def gqa(paths: Sequence[str | Path], folder: Path, jobs: int) -> tuple[float, set[str]]:
    """Seconds of ``gqa run`` from header to footer, and the cases that passed."""
    results = folder / "results.jsonl"
    seconds = seconds_of_run([*paths, "--ep", "cpu", "--jobs", str(jobs)], results)
    return seconds, {r["case"] for r in records(results) if r.get("verdict") == "pass"}


def backend_tests(cases: Sequence[Case]) -> float:
    """Seconds that onnx's runner takes for the bundles of ``cases``."""
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # otherwise it skips every contrib operator
    import onnxruntime.backend

    onnxruntime.set_default_logger_severity(4)

    warnings.simplefilter("ignore")  # in onnx's own tests
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
    return time.perf_counter() - start


def checking_loop(cases: Sequence[Case]) -> float:
    """Seconds of a loop over the bundles of ``cases``: session, read, one run, compare."""
    folders = [bundle_for(case.call).path for case in cases]
    start = time.perf_counter()
    for folder in folders:
        (inputs,) = inputs_of(folder, 1)
        found = session_of(folder).run(None, inputs)
        files = sorted(folder.glob("test_data_set_0/output_*.pb"))
        for got, want in zip(found, files, strict=True):
            np.isclose(got, numpy_helper.to_array(onnx.load_tensor(want)), 1e-3, 1e-3).all()
    return time.perf_counter() - start


def trivial_items(number: int, folder: Path) -> float:
    """Seconds of pytest from start to end with ``number`` items that do nothing."""
    (folder / "conftest.py").write_text(TRIVIAL)
    (folder / "items.yaml").write_text("".join(f"- item{n}\n" for n in range(number)))
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return timed([*pytest, "-c", os.devnull, "--rootdir", str(folder), str(folder)]).seconds


def measure(paths: Sequence[Path], repeat: int) -> Iterator[Ratio]:
    """Each peer, beside this suite."""
    best: dict[str, float] = {}

    def note(what: str, seconds: float) -> None:
        best[what] = min(seconds, best.get(what, math.inf))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, passed = gqa(paths, folder, 2)
        every = load(paths)
        cases = [
            case
            for case in every
            if case.id in passed
            and len(case.steps) == 1
            and not case.call.shared_buffer
            and not case.relation
            and case.contract.demands == "computes"
        ]
        ids = [case.id for case in cases]
        collect = [*PYTEST, "-p", "no:cacheprovider", "--collect-only", *paths]
        items = folder / "items"
        items.mkdir()
        for _ in range(repeat):
            for jobs in (1, 2):
                note(f"`gqa run --jobs {jobs}`", gqa(ids, folder, jobs)[0])
            note("onnx.backend.test.runner", backend_tests(cases))
            note("a loop as onnx_test_runner's", checking_loop(cases))
            note("trivial items", trivial_items(len(every), items))
            note("collecting", timed(collect).seconds)
    for peer in ("onnx.backend.test.runner", "a loop as onnx_test_runner's"):
        for jobs in (1, 2):
            ours = f"`gqa run --jobs {jobs}`"
            each, theirs = (best[what] / len(cases) * 1e3 for what in (ours, peer))
            ms = f"{each:.2f} to {theirs:.2f} ms ({len(cases):,})"
            what = f"{ours}, to {peer}"
            yield Ratio(what, best[ours] / best[peer], None, ms)
    seconds = f"{best['collecting']:.2f} to {best['trivial items']:.2f} s ({len(every):,})"
    what = "`pytest --ep cpu --collect-only`, to trivial items"
    yield Ratio(what, best["collecting"] / best["trivial items"], None, seconds)


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__, paths=True)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print_table(measure(options.paths, options.repeat), markdown=options.markdown)


if __name__ == "__main__":
    main()
