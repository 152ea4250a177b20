"""The plugin as a pytest user sees it: ids, options, failures, and unrelated YAML files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from as_user import Desk, Done
from case_files import HEAD, entries, write

from conformance.base.paths import ROOT, data_path
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
ALL = {**ALONE, "FAULT_ON": "/"}
NONE = {**ALONE, "FAULT_ON": "no bundle"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"), shared_cache)


def py_test(desk: Desk, *arguments: str, environment: dict[str, str] = ALONE) -> Done:
    """``pytest`` in the user's folder, as if the package were installed."""
    plugin = ("-p", "conformance.pytest_plugin")
    return desk.run(sys.executable, "-m", "pytest", *plugin, *arguments, environment=environment)


def in_root(desk: Desk, *arguments: str) -> Done:
    """``pytest`` in the checkout, where conftest.py alone makes it work."""
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**desk.environment, **ALONE, "PYTHONPATH": ""},
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
            name = f"cases/shared_kv.yaml::zero_length_kv_heads[dtype={dtype},heads=mha]@{ep} "
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
        if "zero_length_kv_heads[dtype=float16,heads=mha]@cpu" in test.attrib["name"]
    ]
    said = {p.attrib["name"]: p.attrib["value"] for p in one.iter("property")}
    assert said["gqa_verdict"] == "pass"
    assert said["gqa_outcome"] == "ran"
    assert said["gqa_target"].startswith("cpu@")
    assert said["gqa_reason"].startswith("Computed correctly; ")


@in_checkout
def test_with_ep_alone_it_is_the_cases_and_their_ids(desk: Desk) -> None:
    eps = ("cpu", desk.runner("correct"))
    done = in_root(desk, "--collect-only", "-q", "--ep", eps[0], "--ep", eps[1])
    assert done.status == 0, done.both
    found = [line for line in done.out.splitlines() if "::" in line]
    cases = load([data_path("cases")])
    assert found == [f"cases/{case.theme}.yaml::{case.label}@{ep}" for case in cases for ep in eps]
    assert (
        "cases/shared_kv.yaml::"
        "zero_length_kv[dtype=float16,past_sequence_length=64,batch_size=1]@cpu"
    ) in found


@in_checkout
def test_pytest_without_arguments_runs_the_tests_and_the_cases() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["pytest"]["ini_options"]["testpaths"] == ["tests", "cases"]


@in_checkout
def test_a_node_id_of_the_checkout(desk: Desk) -> None:
    target = desk.runner("correct")
    name = "zero_length_kv[dtype=float16,past_sequence_length=64,batch_size=1]"
    done = in_root(desk, "--ep", target, f"cases/shared_kv.yaml::{name}@{target}")
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
    start = lines.index(f"three/one on {target}@1.0: wrong")
    assert lines[start + 1].startswith("  reason    It ran, but output is 1000 at [0, 0, 63], not ")
    assert lines[start + 2 : start + 4] == [
        "  contract  computes (specified)",
        "            a document",
    ]
    assert lines[start + 4].startswith("  worst     output[0, 0, 63]: got 1000, expected ")
    assert " times the budget)" in lines[start + 4]
    assert lines[start + 5] == f"  reproduce gqa run three.yaml::one --ep {target}"
    for word in ("Traceback", "pytest_plugin.py", "CaseFailed", "def runtest"):
        assert word not in failed.both


def test_the_reproduction_works_when_pasted(failed: Done, desk: Desk) -> None:
    # In CI pytest prints a failure a second time, in its summary.
    (line,) = {line for line in failed.out.splitlines() if line.startswith("  reproduce ")}
    done = desk.paste(f"FAULT_ON=/ {line.removeprefix('  reproduce ')}")
    assert done.status == 1
    assert "1 result, 1 unexpected" in done.out


def test_last_failed_runs_only_the_failed_cases(failed: Done, desk: Desk) -> None:
    assert "three.yaml::one@" in failed.out
    arguments = ("three.yaml", "--lf", "-v", "--ep", desk.runner("wrong_values"))
    done = py_test(desk, *arguments, environment=NONE)
    assert (done.status, last(done)) == (0, "1 passed, 2 deselected")
    assert "three.yaml::one@" in done.out


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
    start = lines.index(f"refused/refused on {desk.runner('rejects')}@1.0: unsupported at load")
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
    assert f"three/faulty on {desk.runner('dies')}@1.0: crash" in done.out
    trouble = f"Infrastructure, {desk.runner('no_file')}@1.0 (three/faulty): The runner gave no"
    assert trouble in done.out
    assert "Traceback" not in done.both


def test_tags_are_markers(desk: Desk) -> None:
    write(
        desk.folder, entries("- name: a\n  tags: [pretty]\n- name: b\n  tags: [ugly]"), "tags.yaml"
    )
    arguments = ("tags.yaml", "--strict-markers", "--ep", desk.runner("correct"), "-v")
    done = py_test(desk, *arguments, "-m", "pretty")
    assert (done.status, last(done)) == (0, "1 passed, 1 deselected")
    assert "tags.yaml::a@" in done.out
    assert "warning" not in done.out


@pytest.mark.slow
def test_markers_lists_the_tags(desk: Desk) -> None:
    done = py_test(desk, "--markers")
    assert done.status == 0
    for tag in {tag for case in load([data_path("cases")]) for tag in case.tags}:
        assert f"@pytest.mark.{tag}: cases with this tag" in done.out


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


def test_the_options_are_in_the_help(desk: Desk) -> None:
    done = py_test(desk, "--help")
    assert "--ep=TARGET" in done.out
    assert f"({', '.join(target_names())})" in " ".join(done.out.split())
    for option in target_options():
        assert f"{option.flag}=" in done.out


# Runs that skip everything


def test_only_skips_fail_if_the_target_was_requested(desk: Desk) -> None:
    target = desk.runner("unavailable")
    done = py_test(desk, "three.yaml", "--ep", target)
    assert (done.status, last(done)) == (1, "3 skipped")
    said = f"{target}: every case was skipped: there is no device"
    assert said in done.out.splitlines()


def test_a_target_that_skips_everything_is_not_hidden_by_another(desk: Desk) -> None:
    skips, correct = desk.runner("unavailable"), desk.runner("correct")
    done = py_test(desk, "three.yaml", "--ep", skips, "--ep", correct, "-p", "xdist", "-n", "2")
    assert (done.status, last(done)) == (1, "3 passed, 3 skipped")
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
    cases = [case for case in load([data_path("cases")]) if case.name == name]
    found = [line for line in done.out.splitlines() if "::" in line]
    assert [line.partition("::")[2] for line in found] == [f"{c.label}@{target}" for c in cases]


def test_a_folder_with_its_own_case_files_runs_only_those(desk: Desk, tmp_path: Path) -> None:
    own = Desk(tmp_path / "desk", desk.folder)
    target = desk.runner("correct")
    done = py_test(own, "--ep", target, "--collect-only", "-q")
    found = [line for line in done.out.splitlines() if "::" in line]
    assert found == [f"three.yaml::{name}@{target}" for name in ("one", "faulty", "fine")]


def test_a_path_and_a_node_id_elsewhere(desk: Desk) -> None:
    target = desk.runner("correct")
    done = py_test(desk, "--ep", target, f"three.yaml::fine@{target}", "-v")
    assert (done.status, last(done)) == (0, "1 passed")
    assert f"three.yaml::fine@{target} PASSED" in done.out


def test_a_run_without_cases_does_not_load_the_engine() -> None:
    script = (
        "import sys, conformance.pytest_plugin;"
        "print(sorted({'onnx', 'pydantic', 'numpy', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
