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
from conformance.case.corpus import find, name_on, names_of
from conformance.case.load import load
from conformance.case.selection import compile_expression
from conformance.targets.catalogue import target_names, target_options

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)
in_checkout = pytest.mark.skipif(
    not (ROOT / "conftest.py").is_file(), reason="not a checkout: there is no conftest.py"
)

#: The tests, not the entry point, decide whether the plugin is loaded.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ALL = {**ALONE, "FAULT_ON": "/"}
NONE = {**ALONE, "FAULT_ON": "no bundle"}


@pytest.fixture(scope="module", params=["this", pytest.param("oldest", marks=pytest.mark.slow)])
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> Desk:
    """A desk with the pytest that runs these tests, and one with the oldest that is supported."""
    desk = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    if request.param == "oldest":
        if not (ROOT / "pyproject.toml").is_file():
            pytest.skip("not a checkout: there is no pyproject.toml")
        place = tmp_path_factory.mktemp("oldest_pytest")
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place))
        done = desk.run(*install, *oldest())
        if done.status != 0:
            pytest.skip(f"pip cannot install {oldest()}: {done.err.strip()[-300:]}")
        desk.environment["PYTHONPATH"] = f"{place}{os.pathsep}{ROOT}"
        version = desk.run(sys.executable, "-m", "pytest", "--version").both
        assert version.startswith(oldest()[0].replace("==", " "))
    return desk


def oldest() -> list[str]:
    """The oldest pytest and pytest-xdist that pyproject.toml allows, as pip takes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["test"]
    return [one.replace(">=", "==") for one in wanted if re.match(r"pytest(-xdist)?>=", one)]


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
        f"cases/{case.theme}.yaml::{name_on(case, ep)}" for case in cases for ep in eps
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


# Printed failures


@pytest.fixture(scope="module")
def failed(desk: Desk) -> Done:
    """The first of three failures, with -x."""
    return py_test(desk, "three.yaml", "-x", "--ep", desk.runner("wrong_values"), environment=ALL)


def test_a_failure_is_printed_without_a_traceback(failed: Done, desk: Desk) -> None:
    assert (failed.status, last(failed)) == (1, "1 failed")
    target = desk.runner("wrong_values")
    lines = failed.out.splitlines()
    start = lines.index("three/one on miniature@1.0: wrong")
    assert lines[start + 1].startswith("  reason    It ran, but output is 1000 at [0, 0, 63], not ")
    assert lines[start + 2 : start + 5] == [
        "  wrong in  output",
        "  contract  computes (specified)",
        "            a document",
    ]
    assert lines[start + 5].startswith("  worst     output[0, 0, 63]: got 1000, expected ")
    assert " times the budget)" in lines[start + 5]
    assert lines[start + 6] == f"  reproduce gqa run three.yaml::one --ep {target}"
    for word in ("Traceback", "pytest_plugin.py", "CaseFailed", "def runtest"):
        assert word not in failed.both


def test_the_reproduction_works_when_pasted(failed: Done, desk: Desk) -> None:
    # In CI pytest prints a failure a second time, in its summary.
    (line,) = {line for line in failed.out.splitlines() if line.startswith("  reproduce ")}
    done = desk.paste(f"FAULT_ON=/ {line.removeprefix('  reproduce ')}")
    assert done.status == 1
    assert "1 result, 1 unexpected" in done.out


def test_last_failed_runs_only_the_failed_cases(failed: Done, desk: Desk) -> None:
    assert "three.yaml::one[ep=" in failed.out
    arguments = ("three.yaml", "--lf", "-v", "--ep", desk.runner("wrong_values"))
    done = py_test(desk, *arguments, environment=NONE)
    assert (done.status, last(done)) == (0, "1 passed, 2 deselected")
    assert "three.yaml::one[ep=" in done.out


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


def test_selections_after_a_failure(desk: Desk, failed_once: tuple[str, Done]) -> None:
    target, _ = failed_once
    names = all_names(target)
    chosen: dict[tuple[str, ...], list[int]] = {
        ("--lf",): [2],
        ("--ff",): [2, 0, 1, 3, 4],
        ("--nf",): [0, 1, 2, 3, 4],
        ("--lf", "-k", "seed=1"): [0, 1],  # none of them failed
        ("-k", "seed=2"): [2, 3],
        ("-k", "not a[seed"): [4],
        (f"--deselect=axes.yaml::{names[0]}", "--deselect=axes.yaml::b"): [1, 2, 3],
    }
    lines = []
    for number, options in enumerate(chosen):
        cache = f"cache_{number}"
        shutil.copytree(desk.folder / "cache_of_failure", desk.folder / cache)
        lines.append(("axes.yaml", "-v", "--ep", target, "-o", f"cache_dir={cache}", *options))
    for done, which in zip(py_tests(desk, *lines, environment=NONE), chosen.values(), strict=True):
        assert done.status == 0, done.both
        assert names_run(done) == [names[n] for n in which]


@pytest.mark.slow
def test_the_last_failure_in_workers(desk: Desk, failed_once: tuple[str, Done]) -> None:
    target, _ = failed_once
    shutil.copytree(desk.folder / "cache_of_failure", desk.folder / "cache_of_workers")
    options = ("--lf", "-p", "xdist", "--tx", "2*popen", "--dist", "load")
    cache = ("-o", "cache_dir=cache_of_workers")
    done = py_test(desk, "axes.yaml", "--ep", target, *cache, *options, environment=NONE)
    assert (done.status, last(done)) == (0, "1 passed")


@pytest.mark.slow
def test_stepwise_continues_at_the_failure(desk: Desk, axes: dict[str, str]) -> None:
    target = desk.runner("wrong_values")
    shutil.rmtree(desk.folder / ".pytest_cache", ignore_errors=True)
    arguments = ("axes.yaml", "-v", "--sw", "--ep", target)
    stopped = py_test(desk, *arguments, environment=axes)
    assert stopped.status == 2
    assert names_run(stopped) == all_names(target)[:3]
    assert names_run(py_test(desk, *arguments, environment=NONE)) == all_names(target)[2:]


@pytest.mark.slow
def test_new_cases_first(desk: Desk, axes: dict[str, str], tmp_path: Path) -> None:
    own = Desk(tmp_path / "desk", desk.folder)
    own.environment["PYTHONPATH"] = desk.environment["PYTHONPATH"]
    target = desk.runner("correct")
    write(own.folder, entries("- {name: a, matrix: {seed: [1, 2]}}"), "axes.yaml")
    assert py_test(own, "axes.yaml", "--ep", target).status == 0
    write(own.folder, entries("- {name: a, matrix: {seed: [1, 2, 3]}}"), "axes.yaml")
    done = py_test(own, "axes.yaml", "--nf", "-v", "--ep", target)
    assert names_run(done) == [f"a[seed={seed},ep={target}]" for seed in (3, 1, 2)]


def test_an_id_is_an_argument(desk: Desk, axes: dict[str, str]) -> None:
    target = desk.runner("correct")
    chosen = {
        "a": [0, 1, 2, 3],
        "b": [4],
        f"a[seed=2,head_size=8,ep={target}]": [2],
        f"a[ep={target}]": [0, 1, 2, 3],
        f"a[head_size=8,seed=2,ep={target}]": [2],
        "a[seed=2,head_size=8]": [2],
        "a[head_size=8]": [0, 2],
        f"a[seed=1,ep={target}]": [0, 1],
        f"b[ep={target}]": [4],
        f"a[seed=2,head_size=8]@{target}": [2],  # as earlier versions wrote it
    }
    lines = [("-v", "--ep", target, f"axes.yaml::{argument}") for argument in chosen]
    for done, which in zip(py_tests(desk, *lines), chosen.values(), strict=True):
        assert done.status == 0, done.both
        assert names_run(done) == [all_names(target)[n] for n in which]


def test_an_id_that_names_nothing(desk: Desk, axes: dict[str, str]) -> None:
    target = desk.runner("correct")
    said = {
        "bb": "No case is called 'axes/bb'; did you mean 'axes/b'?",
        "a[sed=1]": "axes/a has no axis 'sed'; did you mean 'seed'?",
        "a[seed=3]": "The axis 'seed' of axes/a has no value '3'; it has 1, 2.",
        "b[ep=cpu]": f"An argument names the target 'cpu', and the run has {target};"
        " add --ep cpu, or leave 'ep=cpu' out.",
    }
    lines = [("--ep", target, f"axes.yaml::{argument}") for argument in said]
    for done, sentence in zip(py_tests(desk, *lines), said.values(), strict=True):
        assert done.status == 4
        assert f"ERROR: {sentence}" in done.err.splitlines()
        assert "Traceback" not in done.both


def test_an_id_names_the_target(desk: Desk, axes: dict[str, str]) -> None:
    target = desk.runner("correct")
    done = py_test(desk, "-v", f"axes.yaml::b[ep={target}]")
    assert names_run(done) == [f"b[ep={target}]"]


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


def test_a_tag_that_the_chosen_file_lacks_selects_nothing(desk: Desk) -> None:
    done = py_test(desk, "--ep", "cpu", "-m", "shared_kv", f"{ROOT}/cases/decode_shapes.yaml")
    assert (done.status, last(done)) == (5, "120 deselected")


def test_a_parameter_of_another_test_names_no_target(desk: Desk, axes: dict[str, str]) -> None:
    (desk.folder / "test_other.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('where', ['x'], ids=['ep=staging'])\n"
        "def test_a(where): pass\n"
    )
    collect = ("--collect-only", "-q", "test_other.py::test_a[ep=staging]", "axes.yaml::b")
    done = py_test(desk, *collect)
    assert done.out.splitlines()[:2] == [
        "test_other.py::test_a[ep=staging]",
        "axes.yaml::b[ep=cpu]",
    ]


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


@pytest.mark.slow
def test_words_match_as_in_gqa(desk: Desk, tmp_path: Path) -> None:
    """In pytest alone, -k finds float16 in bfloat16, and knows no ``=``."""
    body = "- {name: some_case, matrix: {dtype: [float16, bfloat16], seed: [1, 12]}}"
    file = str(write(tmp_path, entries(body), "words.yaml"))
    theirs = "import pytest\n@pytest.mark.parametrize('x', ['float16', 'bfloat16'])\n"
    test = str(write(tmp_path, f"{theirs}def test_theirs(x): pass\n", "test_theirs.py"))
    counts = {
        "float16": (2, 2),
        "not float16": (2, 0),
        "float16 and words.yaml": (2, 0),
        "some or theirs": (4, 2),
        "oat16 or ome": (0, 2),
        "seed=1": (2, None),  # pytest has no such word
        "not " * 986 + "float16": (2, None),
    }
    ours = [(path, word) for word in counts for path in ((file,), (file, test))]
    lines = [("--collect-only", "-q", *path, "-k", word) for path, word in ours]
    for (path, word), done in zip(ours, py_tests(desk, *lines), strict=True):
        cases, others = counts[word]
        if len(path) == 1:
            others = 0
            listed = find([file]).named
            matches = compile_expression(word)
            assert [matches(names_of(case, "cpu")) for case in listed].count(True) == cases
        if others is not None:
            found = [line.partition("::") for line in done.out.splitlines() if "::" in line]
            names = [name for file, _, name in found]
            assert [name.startswith("some_case") for name in names].count(True) == cases, word
            assert len(names) == cases + others, word


@pytest.mark.parametrize("ep", [("--ep", "cpu"), ()])
def test_an_invalid_expression_is_one_sentence(desk: Desk, ep: tuple[str, ...]) -> None:
    words = ("(" * 51 + "a" + ")" * 51, "a and", " or ".join(["a"] * 1001))
    lines = [("three.yaml", *ep, "-k", word) for word in words]
    for done in py_tests(desk, *lines):
        assert done.status == 4
        (line,) = filter(None, done.err.splitlines())
        assert line.startswith("ERROR: -k '")
        assert "Traceback" not in done.both


def test_a_rejection_is_printed_with_message_contract_and_links(desk: Desk) -> None:
    body = """
    - name: refused
      links: [https://example.org/2]
      contract: {source: https://example.org/1, why: It was released.}
    """
    write(desk.folder, entries(body), "refused.yaml")
    done = py_test(desk, "refused.yaml", "--ep", desk.runner("rejects"), environment=ALL)
    assert done.status == 1
    lines = done.out.splitlines()
    start = lines.index("refused/refused on miniature@1.0: unsupported at load")
    assert lines[start + 1 : start + 7] == [
        "  reason    Rejected at load with a message; the call is specified.",
        "  message   INVALID: query has rank 2",
        "  contract  computes (specified)",
        "            It was released.",
        "            https://example.org/1",
        "  see       https://example.org/2",
    ]


# Options


def test_several_targets(desk: Desk) -> None:
    targets = [
        word for name in ("correct", "dies", "no_file") for word in ("--ep", desk.runner(name))
    ]
    done = py_test(desk, "three.yaml", *targets)
    assert (done.status, last(done)) == (1, "2 failed, 7 passed")
    assert "three/faulty on miniature@1.0#2: crash" in done.out
    trouble = "Infrastructure, miniature@1.0#3 (three/faulty): The runner gave no"
    assert trouble in done.out
    assert "Traceback" not in done.both


def test_tags_are_markers(desk: Desk) -> None:
    write(
        desk.folder, entries("- name: a\n  tags: [pretty]\n- name: b\n  tags: [ugly]"), "tags.yaml"
    )
    arguments = ("tags.yaml", "--strict-markers", "--ep", desk.runner("correct"), "-v")
    done = py_test(desk, *arguments, "-m", "pretty")
    assert (done.status, last(done)) == (0, "1 passed, 1 deselected")
    assert "tags.yaml::a[ep=" in done.out
    assert "warning" not in done.out


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


def test_k_and_m_select_calls_by_what_they_are(desk: Desk) -> None:
    """Also where the id does not say it, without and with workers."""
    write(desk.folder, entries(CALLS), "calls.yaml")
    target = desk.runner("correct")
    chosen = {
        ("-k", "softcap"): ["a[head_size=16", "a[head_size=256", "c["],
        ("-k", "softcap and head_size>=256"): ["a[head_size=256"],
        ("-k", "not window and head_size = 16"): ["a[head_size=16", "c["],
        ("-k", "dtype=float16"): ["b["],
        ("-m", "softcap"): ["a[head_size=16", "a[head_size=256", "c["],
        ("-m", "softcap and not bfloat16"): ["a[head_size=16", "a[head_size=256"],
        ("-m", "window"): ["b["],
        ("-m", "softcap", "-k", "bfloat16"): ["c["],
    }
    lines = [
        ("--collect-only", "-q", "--strict-markers", "calls.yaml", "--ep", target, *options)
        for options in chosen
    ]
    for names, done in zip(chosen.values(), py_tests(desk, *lines), strict=True):
        found = [line.partition("::")[2] for line in done.out.splitlines() if "::" in line]
        assert all(name.startswith(start) for name, start in zip(found, names, strict=True)), found
        assert "warning" not in done.both


def test_an_empty_selection_ends_as_in_pytest(desk: Desk) -> None:
    done = py_test(desk, "three.yaml", "-k", "nothing", "--ep", desk.runner("correct"))
    assert (done.status, last(done)) == (5, "3 deselected")


def test_an_unknown_target_names_the_known_ones(desk: Desk) -> None:
    done = py_test(desk, "three.yaml", "--ep", "cpuu")
    assert done.status == 4
    known = ", ".join(target_names())
    said = f"ERROR: Unknown target 'cpuu'; known: {known}; did you mean 'cpu'?"
    assert said in done.err.splitlines()
    assert "Traceback" not in done.both


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device", "1"), "--device is for cuda, "),
        (("--compute-sanitizer", "auto"), "--compute-sanitizer is for cuda, "),
        (("--ort-python", ""), "--ort-python '' is empty; it takes PYTHON."),
    ],
)
def test_an_option_without_its_target_is_one_error_before_collection(
    desk: Desk, failed_once: tuple[str, Done], options: tuple[str, str], said: str
) -> None:
    shutil.copytree(desk.folder / "cache_of_failure", cache := desk.folder / "cache_of_error")
    try:
        known = (cache / "v" / "cache" / "lastfailed").read_text()
        files = ("axes.yaml", "three.yaml", "-o", f"cache_dir={cache}")
        done = py_test(desk, *files, *options)
        assert (done.status, done.out) == (4, "")
        (line,) = [line for line in done.err.splitlines() if line]
        assert line.startswith(f"ERROR: {said}")
        assert (cache / "v" / "cache" / "lastfailed").read_text() == known
    finally:
        shutil.rmtree(cache)


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


def test_the_path_of_an_option_is_no_path_of_tests(desk: Desk, tmp_path: Path) -> None:
    """pytest looks for its rootdir before it knows the options of plugins."""
    own = Desk(tmp_path / "desk", desk.folder)
    own.environment["PYTHONPATH"] = desk.environment["PYTHONPATH"]
    write(own.folder, "[pytest]\nmarkers =\n  ours: a mark\n", "pytest.ini")
    write(tmp_path, "{}", "web/node_modules/onnxruntime-web/package.json")
    (own.folder / "cpu").mkdir()
    lines = [
        ("--ep", "cpu", "--ort-python", sys.executable),
        ("--ep", "tract", "--tract", sys.executable, "three.yaml"),
        ("--ep", "tract-wheel", "three.yaml", "--tract-python", sys.executable),
        ("--ep", "wasm", "--onnxruntime-web", str(tmp_path / "web")),
        ("--ep", "cpu"),
        (f"--ort-python={sys.executable}", "three.yaml"),
    ]
    for done in py_tests(own, *(("--collect-only", *line) for line in lines)):
        assert done.status == 0, done.both
        assert rootdir(done) == str(own.folder)
        assert "configfile: pytest.ini" in done.out
        assert "collected 3 items" in done.out
        assert done.out.count("test session starts") == 1


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


def test_only_skips_fail_if_the_target_was_requested(desk: Desk) -> None:
    target = desk.runner("unavailable")
    done = py_test(desk, "three.yaml", "--ep", target)
    assert (done.status, last(done)) == (1, "3 skipped")
    named = py_test(desk, f"three.yaml::one[ep={target}]")
    assert (named.status, last(named)) == (1, "1 skipped")
    said = [
        f"{target}: every case was skipped: there is no device",
        "  fix: pip install miniature",
    ]
    assert [line for line in done.out.splitlines() if line in said] == said


def test_a_target_that_skips_everything_is_not_hidden_by_another(
    desk: Desk, spread: tuple[str, ...]
) -> None:
    skips, correct = desk.runner("unavailable"), desk.runner("correct")
    done = py_test(desk, *spread, "--ep", skips, "--ep", correct)
    assert (done.status, last(done)) == (1, "6 passed, 6 skipped")
    assert f"{skips}: every case was skipped" in done.out
    assert f"{correct}: every case was skipped" not in done.out


def test_without_ep_skips_are_reported_as_skips(desk: Desk, tmp_path: Path) -> None:
    """A project with case files but without onnxruntime has not requested cpu."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    done = py_test(desk, "three.yaml", "--ort-python", str(tmp_path / "bin" / "python"))
    assert (done.status, last(done)) == (0, "3 skipped")
    assert "cpu: every case was skipped: onnxruntime is not inst" in done.out


def test_a_runner_that_does_not_start_is_a_failure_and_not_a_skip(desk: Desk) -> None:
    done = py_test(desk, "three.yaml", "--ort-python", "/no/such/python")
    assert (done.status, last(done)) == (1, "3 failed")
    lines = done.out.splitlines()
    assert lines.count("Infrastructure, cpu: The runner /no/such/python does not exist.") == 3
    assert "Traceback" not in done.both


# Outside the checkout


def test_other_yaml_files_are_ignored(desk: Desk, tmp_path: Path) -> None:
    write(tmp_path, "services:\n  web: {image: nginx}\n", "docker-compose.yaml")
    write(tmp_path, "a: [1,\n", "broken.yaml")
    write(tmp_path, "- !!python/object/apply:os.abort []\n", "evil.yml")
    write(tmp_path, b"\xff\xfe\x00", "binary.yaml")
    write(tmp_path, "", "empty.yaml")
    write(tmp_path, "# format: gqa-cases/2 is what case files say\nx: 1\n", "comment.yaml")
    write(tmp_path, "def test_of_theirs(): pass\n", "test_theirs.py")
    (tmp_path / "folder.yaml").mkdir()
    theirs = Desk(tmp_path / "desk", desk.folder)
    (theirs.folder / "three.yaml").unlink()
    arguments = ("--strict-markers", "-W", "error", "-v", str(tmp_path))
    done = py_test(theirs, *arguments)
    assert (done.status, last(done)) == (0, "1 passed")
    assert ".yaml" not in done.out
    assert ".yml" not in done.out
    named = py_test(theirs, str(tmp_path / "docker-compose.yaml"))
    assert named.status == 4  # as for any file that
    assert f"ERROR: not found: {tmp_path}/docker-compose.yaml" in named.both


def test_an_invalid_case_file_is_a_collection_error(desk: Desk, tmp_path: Path) -> None:
    write(tmp_path, f"{HEAD}  - name: x\n    dtyp: y\n  - name: x\n", "wrong.yaml")
    done = py_test(desk, str(tmp_path), "three.yaml", "--ep", desk.runner("correct"))
    assert (done.status, last(done)) == (2, "1 error")
    lines = [line for line in done.out.splitlines() if "wrong.yaml:7:5: " in line]
    assert len(lines) == 1
    assert "unknown field 'dtyp'; did you mean 'dtype'?" in lines[0]
    for word in ("Traceback", "pytest_plugin.py", "InputError"):
        assert word not in done.both


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


def test_a_folder_with_its_own_case_files_runs_only_those(desk: Desk, tmp_path: Path) -> None:
    own = Desk(tmp_path / "desk", desk.folder)
    target = desk.runner("correct")
    done = py_test(own, "--ep", target, "--collect-only", "-q")
    found = [line for line in done.out.splitlines() if "::" in line]
    assert found == [f"three.yaml::{name}[ep={target}]" for name in ("one", "faulty", "fine")]


def test_a_path_and_a_node_id_elsewhere(desk: Desk) -> None:
    target = desk.runner("correct")
    done = py_test(desk, "--ep", target, f"three.yaml::fine[ep={target}]", "-v")
    assert (done.status, last(done)) == (0, "1 passed")
    assert f"three.yaml::fine[ep={target}] PASSED" in done.out


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
        "print(status.name, 'shipped' in sys.modules)"
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
