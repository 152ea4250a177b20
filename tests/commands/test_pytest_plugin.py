"""The plugin as a pytest user sees it: ids, options, failures, and unrelated YAML files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from as_user import Desk, Done, has_onnxruntime

from conformance.base.paths import ROOT

in_checkout = pytest.mark.skipif(
    not (ROOT / "conftest.py").is_file(), reason="not a checkout: there is no conftest.py"
)

#: The tests, not the entry point, decide whether the plugin is loaded.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="module", params=["this", pytest.param("oldest", marks=pytest.mark.night)])
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> Desk:
    """A desk with the pytest that runs these tests, and one with the oldest that is supported."""
    desk = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    if request.param == "oldest":
        folder = request.getfixturevalue("oldest_pytest")
        desk.environment["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
    return desk


def py_test(desk: Desk, *arguments: str, environment: dict[str, str] = ALONE) -> Done:
    """``pytest`` in the user's folder, as if the package were installed."""
    plugin = ("-p", "conformance.pytest_plugin")
    return desk.run(sys.executable, "-m", "pytest", *plugin, *arguments, environment=environment)


def in_root(desk: Desk, *arguments: str) -> Done:
    """``pytest`` in the checkout, where conftest.py alone makes it work."""
    found = desk.environment["PYTHONPATH"].split(os.pathsep)
    path = os.pathsep.join(folder for folder in found if folder != str(ROOT))
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**desk.environment, **ALONE, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Done(process.returncode, process.stdout, process.stderr)


def last(done: Done) -> str:
    """The line that pytest ends with, without its frame and time."""
    return done.out.rstrip().splitlines()[-1].strip("= ").partition(" in ")[0]


# In the checkout


@has_onnxruntime
@in_checkout
def test_cases_on_two_targets(desk: Desk) -> None:
    """A known defect is an expected failure; JUnit has the verdicts."""
    chosen = "(zero_length_kv_heads and mha) or (past_and_new_kv_static and cpu)"
    correct, junit = desk.runner("correct"), desk.folder / "junit.xml"
    done = in_root(
        desk,
        *("--ep", "cpu", "--ep", correct, "-v", "-rxX", f"--junitxml={junit}"),
        *("cases/shared_kv.yaml", "cases/omitted_present.yaml", "-k", chosen),
    )
    assert done.status == 0, done.both
    assert re.fullmatch(r"4 passed, .*2 xfailed", last(done))
    ids = [
        f"zero_length_kv_heads[dtype={dtype},heads=mha,ep={ep}]"
        for dtype in ("float32", "float16")
        for ep in ("cpu", correct)
    ]
    said = re.findall(r"^cases/shared_kv\.yaml::(\S+) PASSED", done.out, re.MULTILINE)
    assert sorted(said) == sorted(ids)
    assert len(re.findall(r"^XFAIL .*static\[.*accepted: With a past", done.out, re.MULTILINE)) == 2
    tests = {test.attrib["name"]: test for test in ElementTree.parse(junit).iter("testcase")}
    assert len(tests) == 6
    told = {p.attrib["name"]: p.attrib["value"] for p in tests[ids[0]].iter("property")}
    assert (told["gqa_verdict"], told["gqa_outcome"]) == ("pass", "ran")
    assert told["gqa_target"].startswith("cpu@")
    assert told["gqa_reason"].startswith("Computed correctly; ")


@pytest.mark.push
@in_checkout
def test_a_node_id_and_an_option_with_a_path(desk: Desk) -> None:
    target = desk.runner("correct")
    axes = "dtype=float16,past_sequence_length=64,batch_size=1"
    node_id = f"cases/shared_kv.yaml::zero_length_kv[{axes},ep={target}]"
    done = in_root(desk, "--ep", target, node_id)
    assert (done.status, last(done)) == (0, "1 passed")
    plugin = ("-p", "conformance.pytest_plugin", "--collect-only", "cases/smoke.yaml")
    done = in_root(desk, "--ep", "cpu", "--ort-python", sys.executable, *plugin)
    assert f"rootdir: {ROOT}\nconfigfile: pyproject.toml" in done.out


def test_cases_of_another_checkout_are_refused_with_the_remedy(desk: Desk, tmp_path: Path) -> None:
    """To the suite of another checkout they are a stranger's, and known crashes red."""
    other = tmp_path / "other"
    (other / "conformance").mkdir(parents=True)
    (other / "conformance" / "pytest_plugin.py").touch()
    (other / "pytest.ini").write_text("[pytest]\n")
    done = py_test(desk, "--rootdir", str(other), str(other), "-q")
    assert done.status == pytest.ExitCode.USAGE_ERROR
    assert f"are of {other}, and the suite that runs is in {ROOT}: unset PYTHONPATH" in done.err
