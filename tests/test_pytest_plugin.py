"""The plugin as a pytest user sees it: ids, options, failures, and unrelated YAML files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from as_user import Desk, Done
from case_files import HEAD, entries, write
from shipped import shipped_cases

from conformance.base.paths import ROOT
from conformance.bundle.prepare import digest_of
from conformance.case.corpus import name_on
from conformance.case.load import load
from conformance.targets.catalogue import target_names, target_options

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)
in_checkout = pytest.mark.skipif(
    not (ROOT / "conftest.py").is_file(), reason="not a checkout: there is no conftest.py"
)

#: The tests, not the entry point, decide whether the plugin is loaded.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
NONE = {**ALONE, "FAULT_ON": "no bundle"}


@pytest.fixture(scope="module", params=["this", pytest.param("oldest", marks=pytest.mark.slow)])
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


def py_tests(
    desk: Desk, *lines: tuple[str, ...], environment: dict[str, str] = ALONE
) -> list[Done]:
    """``pytest`` with each of ``lines`` as its arguments, one after the other in one process."""
    script = (
        "import contextlib, io, json, pytest\n"
        "for line in json.loads(input()):\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        status = pytest.main(['-p', 'conformance.pytest_plugin', *line])\n"
        "    print(json.dumps([int(status), out.getvalue(), err.getvalue()]))\n"
    )
    process = desk.start(
        sys.executable, "-c", script, environment=environment, stdin=subprocess.PIPE
    )
    out, err = process.communicate(json.dumps(lines), timeout=120)
    assert process.returncode == 0, err
    return [Done(*json.loads(line)) for line in out.splitlines()]


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


@pytest.fixture(scope="module")
def checkout(desk: Desk) -> Done:
    chosen = "(zero_length_kv_heads and mha) or (past_and_new_kv_static and cpu)"
    return in_root(
        desk,
        *("--ep", "cpu", "--ep", desk.runner("correct"), "-v", "-rxX"),
        *("cases/shared_kv.yaml", "cases/omitted_present.yaml", "-k", chosen),
        f"--junitxml={desk.folder}/junit.xml",
    )


@has_onnxruntime
@in_checkout
def test_one_test_per_case_and_target(checkout: Done, desk: Desk) -> None:
    assert checkout.status == 0, checkout.both
    lines = checkout.out.splitlines()
    for dtype in ("float32", "float16"):
        for ep in ("cpu", desk.runner("correct")):
            test = f"zero_length_kv_heads[dtype={dtype},heads=mha,ep={ep}]"
            name = f"cases/shared_kv.yaml::{test} "
            (line,) = [line for line in lines if line.startswith(name)]
            assert "PASSED" in line
    assert last(checkout).startswith("4 passed, ")


@has_onnxruntime
@in_checkout
def test_a_known_defect_is_an_expected_failure_with_its_reason(checkout: Done) -> None:
    said = [line for line in checkout.out.splitlines() if line.startswith("XFAIL ")]
    assert len(said) == 2
    for line in said:
        assert "past_and_new_kv_static[" in line
        assert "accepted: With a past, new tokens and no presents" in line
    assert last(checkout).endswith("2 xfailed")


@has_onnxruntime
@in_checkout
def test_junit_has_the_cases_and_their_verdicts(checkout: Done, desk: Desk) -> None:
    assert checkout.status == 0
    tests = list(ElementTree.parse(desk.folder / "junit.xml").iter("testcase"))
    assert len(tests) == 6
    (one,) = [
        test
        for test in tests
        if test.attrib["name"] == "zero_length_kv_heads[dtype=float16,heads=mha,ep=cpu]"
    ]
    said = {p.attrib["name"]: p.attrib["value"] for p in one.iter("property")}
    assert said["gqa_verdict"] == "pass"
    assert said["gqa_outcome"] == "ran"
    assert said["gqa_target"].startswith("cpu@")
    assert said["gqa_reason"].startswith("Computed correctly; ")


@pytest.mark.slow
@in_checkout
def test_with_ep_alone_it_is_the_cases_and_their_ids(desk: Desk) -> None:
    eps = ("cpu", desk.runner("correct"))
    done = in_root(desk, "--collect-only", "-q", "--ep", eps[0], "--ep", eps[1])
    assert done.status == 0, done.both
    found = [line for line in done.out.splitlines() if "::" in line]
    cases = shipped_cases()
    assert found == [
        f"{case.file.relative_to(ROOT)}::{name_on(case, ep)}" for case in cases for ep in eps
    ]
    assert (
        "cases/shared_kv.yaml::"
        "zero_length_kv[dtype=float16,past_sequence_length=64,batch_size=1,ep=cpu]"
    ) in found


@in_checkout
def test_pytest_without_arguments_runs_the_tests_and_the_cases() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["pytest"]["ini_options"]["testpaths"] == ["tests", "cases"]


@in_checkout
def test_a_node_id_of_the_checkout(desk: Desk) -> None:
    target = desk.runner("correct")
    axes = "dtype=float16,past_sequence_length=64,batch_size=1"
    done = in_root(
        desk, "--ep", target, f"cases/shared_kv.yaml::zero_length_kv[{axes},ep={target}]"
    )
    assert (done.status, last(done)) == (0, "1 passed")


# Selecting what failed


@pytest.fixture(scope="module")
def axes(desk: Desk) -> dict[str, str]:
    """``axes.yaml`` with two entries, one of them with axes; a[seed=2,…] fails on its target."""
    body = "- {name: a, matrix: {seed: [1, 2], head_size: [8, 16]}}\n- {name: b, seed: 3}"
    file = write(desk.folder, entries(body), "axes.yaml")
    (failing,) = (c for c in load([file]) if c.axes == {"seed": "2", "head_size": "8"})
    return {**ALONE, "FAULT_ON": digest_of(failing.call)}


def names_run(done: Done) -> list[str]:
    """The names of the tests that ran, from the output of ``-v``."""
    return re.findall(r"^axes\.yaml::(.*) (?:PASSED|FAILED)", done.out, re.MULTILINE)


def all_names(target: str) -> list[str]:
    a = [f"a[seed={seed},head_size={size},ep={target}]" for seed in (1, 2) for size in (8, 16)]
    return [*a, f"b[ep={target}]"]


@pytest.fixture(scope="module")
def failed_once(desk: Desk, axes: dict[str, str]) -> tuple[str, Done]:
    """A target and the run of all cases on it, in which one of them failed."""
    target = desk.runner("wrong_values")
    files = (f"--junitxml={desk.folder}/axes.xml", "-o", "cache_dir=cache_of_failure")
    done = py_test(desk, "axes.yaml", "-v", "--ep", target, *files, environment=axes)
    assert (done.status, last(done)) == (1, "1 failed, 4 passed")
    return target, done


def test_ids_end_in_their_only_bracket(desk: Desk, failed_once: tuple[str, Done]) -> None:
    target, done = failed_once
    assert names_run(done) == all_names(target)
    tests = ElementTree.parse(desk.folder / "axes.xml").iter("testcase")
    assert [test.attrib["name"] for test in tests] == all_names(target)
    # What pytest itself prints can be pasted.
    said = re.findall(r"^FAILED (axes\.yaml::\S+?])", done.out, re.MULTILINE)
    assert said == [f"axes.yaml::{all_names(target)[2]}"]
    assert names_run(py_test(desk, said[0], "-v", "--ep", target)) == [all_names(target)[2]]


@pytest.mark.slow
def test_the_last_failure_in_workers(desk: Desk, failed_once: tuple[str, Done]) -> None:
    target, _ = failed_once
    shutil.copytree(desk.folder / "cache_of_failure", desk.folder / "cache_of_workers")
    options = ("--lf", "-p", "xdist", "--tx", "2*popen", "--dist", "load")
    cache = ("-o", "cache_dir=cache_of_workers")
    done = py_test(desk, "axes.yaml", "--ep", target, *cache, *options, environment=NONE)
    assert (done.status, last(done)) == (0, "1 passed")


@pytest.mark.slow
def test_ids_of_several_builds_name_their_targets_without_ep(desk: Desk) -> None:
    case = "[dtype=float32,stage=decode,ep={}]"
    window = f"{ROOT}/cases/smoke.yaml::window{case}"
    builds = (f"--ort-python={sys.executable}", "--ort-python=/usr/bin/python3")
    collect = ("--collect-only", "-q")
    done = py_test(desk, *collect, *builds, window.format("cpu#2"))
    assert done.status == 0, done.both
    assert "window[dtype=float32,stage=decode,ep=cpu#2]" in done.out.splitlines()[0]
    done = py_test(desk, *collect, "--name", "mine", window.format("mine"))
    assert "window[dtype=float32,stage=decode,ep=mine]" in done.out.splitlines()[0]


@pytest.mark.slow
def test_a_program_with_an_odd_path(desk: Desk, axes: dict[str, str]) -> None:
    odd = desk.folder / "odd [x], ep=y::z\n%41é"
    odd.mkdir(exist_ok=True)
    program = desk.runner("wrong_values").removeprefix("exec:")
    (odd / "a b]").unlink(missing_ok=True)
    (odd / "a b]").symlink_to(program)
    target = f"exec:./{odd.name}/a b]"
    shutil.rmtree(desk.folder / ".pytest_cache", ignore_errors=True)
    junit = f"--junitxml={desk.folder}/odd.xml"
    done = py_test(desk, "axes.yaml", "-q", "--ep", target, junit, environment=axes)
    assert (done.status, last(done)) == (1, "1 failed, 4 passed")
    tests = list(ElementTree.parse(desk.folder / "odd.xml").iter("testcase"))
    shown = target.replace("%", "%25").replace("\n", "%0A")
    assert [test.attrib["name"] for test in tests] == all_names(shown)
    again = py_test(desk, "axes.yaml", "--lf", "--ep", target, environment=NONE)
    assert (again.status, last(again)) == (0, "1 passed, 4 deselected")
    pasted = f"axes.yaml::{all_names(shown)[2]}"
    for done in (py_test(desk, pasted, environment=NONE), desk.gqa("run", pasted)):
        assert done.status == 0, done.both
    spread = py_test(desk, "-p", "xdist", "-n", "2", pasted, "--ep", target, environment=NONE)
    assert (spread.status, last(spread)) == (0, "1 passed")


@pytest.mark.parametrize("ep", [("--ep", "cpu"), ()])
def test_an_invalid_expression_is_one_sentence(desk: Desk, ep: tuple[str, ...]) -> None:
    words = ("(" * 51 + "a" + ")" * 51, "a and", " or ".join(["a"] * 1001))
    lines = [("three.yaml", *ep, "-k", word) for word in words]
    for done in py_tests(desk, *lines):
        assert done.status == 4
        (line,) = filter(None, done.err.splitlines())
        assert line.startswith("ERROR: -k '")
        assert "Traceback" not in done.both


# Options


@pytest.mark.slow
def test_markers_lists_the_tags(desk: Desk) -> None:
    done = py_test(desk, "--markers")
    assert done.status == 0
    for tag in {tag for case in shipped_cases() for tag in case.tags}:
        assert f"@pytest.mark.{tag}: cases with this tag" in done.out
    assert "@pytest.mark.borrowed: cases whose call is or has this" in done.out


CALLS = """
- {name: a, softcap: 30.0, matrix: {head_size: [16, 256]}}
- {name: b, local_window_size: 2, sequence_length: 4, dtype: float16}
- name: c
  contract: {source: x, demands: either}
  softcap: 5.0
  dtype: bfloat16
  cache_dtype: float16
"""


def test_the_options_are_in_the_help(desk: Desk) -> None:
    done = py_test(desk, "--help")
    assert "--ep=TARGET" in done.out
    # The oldest pytest breaks lines at hyphens, too.
    assert "".join(f"({', '.join(target_names())})".split()) in "".join(done.out.split())
    for option in target_options():
        assert f"{option.flag}=" in done.out


# A value that is a path


def rootdir(done: Done) -> str:
    (line,) = [line for line in done.out.splitlines() if line.startswith("rootdir: ")]
    return line.removeprefix("rootdir: ")


@in_checkout
def test_the_path_of_an_option_in_the_checkout(desk: Desk) -> None:
    plugin = ("-p", "conformance.pytest_plugin")
    options = ("--ep", "cpu", "--ort-python", sys.executable, "--collect-only")
    done = in_root(desk, *plugin, *options, "cases/smoke.yaml")
    assert (done.status, rootdir(done)) == (0, str(ROOT))
    assert "configfile: pyproject.toml" in done.out


# pytest-xdist


@pytest.fixture(scope="module")
def spread(desk: Desk) -> tuple[str, ...]:
    """Options and files for two workers."""
    for name in ("left.yaml", "right.yaml"):
        body = "- {name: a, tags: [pretty], matrix: {seed: [1, 2]}}\n- {name: b, seed: 3}"
        write(desk.folder, entries(body), name)
    return ("-p", "xdist", "-n", "2", "left.yaml", "right.yaml")


@pytest.mark.slow
def test_workers_run_what_is_selected(desk: Desk, spread: tuple[str, ...]) -> None:
    write(desk.folder, entries(CALLS), "calls.yaml")
    arguments = (*spread, "calls.yaml", "--ep", desk.runner("correct"))
    for option in ("-k", "-m"):
        done = py_test(desk, *arguments, option, "softcap or window")
        assert (done.status, last(done)[:8]) == (0, "4 passed")
        assert "2 workers [4 items]" in done.out


@pytest.mark.slow
def test_an_invalid_file_is_reported_by_workers(desk: Desk, spread: tuple[str, ...]) -> None:
    write(desk.folder, f"{HEAD}  - name: x\n    dtyp: y\n", "wrong_in_worker.yaml")
    done = py_test(desk, *spread, "wrong_in_worker.yaml", "--ep", desk.runner("correct"))
    assert done.status != 0
    assert "unknown field 'dtyp'; did you mean 'dtype'?" in done.out
    assert "Traceback" not in done.both


# Runs that skip everything


def test_a_target_that_skips_everything_is_not_hidden_by_another(
    desk: Desk, spread: tuple[str, ...]
) -> None:
    skips, correct = desk.runner("unavailable"), desk.runner("correct")
    done = py_test(desk, *spread, "--ep", skips, "--ep", correct)
    assert (done.status, last(done)) == (1, "6 passed, 6 skipped")
    assert f"{skips}: every case was skipped" in done.out
    assert f"{correct}: every case was skipped" not in done.out


# Outside the checkout


@pytest.mark.slow
def test_a_folder_without_case_files_gets_the_corpus(desk: Desk, tmp_path: Path) -> None:
    empty = Desk(tmp_path / "desk", desk.folder)
    (empty.folder / "three.yaml").unlink()
    target = desk.runner("correct")
    name = "zero_length_kv_static"
    done = py_test(empty, "--ep", target, "--collect-only", "-q", "-k", name)
    assert done.status == 0, done.both
    cases = [case for case in shipped_cases() if case.name == name]
    found = [line for line in done.out.splitlines() if "::" in line]
    assert [line.partition("::")[2] for line in found] == [name_on(c, target) for c in cases]


def test_a_run_without_cases_does_not_load_the_engine() -> None:
    script = (
        "import sys, conformance.pytest_plugin;"
        "print(sorted({'onnx', 'pydantic', 'numpy', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_tests_of_the_project_are_not_loaded_where_only_the_corpus_is_collected() -> None:
    script = (
        "import sys, pytest\n"
        "status = pytest.main([*sys.argv[1:], '-q', '--collect-only', '-p', 'no:cacheprovider'])\n"
        "print(status.name, 'as_user' in sys.modules)"
    )
    for arguments, loaded in ((["--ep", "cpu"], False), (["tests/test_files.py"], True)):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == f"OK {loaded}"
