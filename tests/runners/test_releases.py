"""The releases of a target: which ones a name stands for, and how they are installed.

The packages are small wheels in a folder, which pip is told to use instead of its registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from tables import tables

from conformance.base.paths import CACHE_VARIABLE
from conformance.case.corpus import find
from conformance.results.records import ResultRecord
from conformance.run.engine import PlanRun
from conformance.run.target import Plan
from conformance.targets import published as registry_lists
from conformance.targets.catalogue import OptionValues, Package, entry_of
from conformance.targets.published import published
from conformance.targets.registry import eps_of, target_for, targets_for
from conformance.targets.releases import is_in_range, releases
from conformance.targets.setup.installed import has_driver, install
from conformance.targets.setup.programs import SetupError
from conformance.targets.tools import TOOLS_VARIABLE, folder_of, python_in

TABLES = tables(__file__)

PUBLISHED = (
    "1.9.0", "1.19.2", "1.20.0", "1.20.1", "1.22.0", "1.22.1", "1.31.0", "1.31.1",
    "1.32.0-dev.20260914-8d85527a0", "1.32.0-dev.20260101-ffffffff0", "not a version",
)  # fmt: skip


def package_of(name: str) -> Package:
    entry = entry_of(name)
    assert entry.package is not None
    return entry.package


ONNXRUNTIME = package_of("cpu")

#: Another version of Python.
OTHER = "3.9" if sys.version_info.minor != 9 else "3.10"


@pytest.mark.parametrize(("word", "expected"), TABLES["words"])
def test_what_a_word_stands_for(word: str, expected: str) -> None:
    assert " ".join(releases(word, ONNXRUNTIME, lambda _: PUBLISHED)) == expected


def test_each_release_of_tract_is_a_series() -> None:
    there = ("0.22.0", "0.22.5", "0.23.0", "0.23.1")
    assert releases("0.22..", package_of("tract"), lambda _: there) == [*there]
    assert releases("0.22..", package_of("tract-wheel"), lambda _: there) == [*there[2:]]


@pytest.mark.parametrize(("versions", "marks"), TABLES["ranges"].items())
def test_which_versions_are_in_a_range(versions: str, marks: str) -> None:
    found = [is_in_range(each, versions) for each in TABLES["around"]]
    assert "".join("x" if inside else "-" for inside in found) == marks


def test_what_is_no_version_and_what_is_no_range() -> None:
    assert not is_in_range("my build", "")
    assert not is_in_range("1" * 5_000, "")
    for no_range in ("1.31", f"<1,<{'1' * 5_000}"):
        with pytest.raises(ValueError, match=r"Invalid|digits"):
            is_in_range("1.31.0", no_range)


# Targets


def test_a_pinned_target_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = targets_for(["cpu@1.20.1", "cpu@1.31.1", "cpu@1.20.1"])
    assert (older.label, older.ep, older.release) == ("cpu@1.20.1", "cpu", "1.20.1")
    assert older.arguments == ("--ep", "cpu@1.20.1")
    assert older.command.argv[0] == str(python_in(folder_of("onnxruntime", "1.20.1")))
    assert older.expectations == target_for("cpu").expectations
    assert not older.may_share_name(newer)
    assert older.may_share_name(target_for("cpu"))
    assert eps_of([older.label, "cpu@1.20.1#2"], OptionValues()) == ["cpu@1.20.1"]
    web, tract = targets_for(["webgpu@1.27.0", "tract@0.22.3"], OptionValues(adapter="swiftshader"))
    assert "--release" in web.command.argv
    assert "1.27.0" in web.command.argv
    assert web.arguments == ("--ep", "webgpu@1.27.0", "--adapter", "swiftshader")
    assert tract.arguments == ("--ep", "tract@0.22.3")


# The registries


def wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> None:
    """A wheel with a module that only says its version."""
    about = f"{name}-{version}"
    with zipfile.ZipFile(folder / f"{about}-{tag}.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nothing\n"
        file.writestr(f"{about}.dist-info/METADATA", meta)
        kind = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
        file.writestr(f"{about}.dist-info/WHEEL", kind)
        file.writestr(f"{about}.dist-info/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip uses instead of a registry; there is no uv."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.20.0", "1.20.1", "1.25.1"):
        wheel(folder, "onnxruntime", version)
    wheel(folder, "numpy", "2.0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(TOOLS_VARIABLE, str(tmp_path / "tools"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    # pip takes a second for each version of Python that it is asked about.
    own = f"3.{sys.version_info.minor}"
    monkeypatch.setattr(registry_lists, "_PYTHONS", (own, OTHER))
    paths = os.environ["PATH"].split(os.pathsep)
    without_uv = (path for path in paths if not (Path(path) / "uv").exists())
    monkeypatch.setenv("PATH", os.pathsep.join(without_uv))
    return folder


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


def test_npm_and_cargo_are_asked(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[1] / "support" / "installers"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert published(package_of("wasm")) == ["1.27.0", "1.30.0"]
    assert published(package_of("tract")) == ["0.23.1", "0.23.0", "0.22.5", "0.22.0"]


# Environments


def nothing(*_: object) -> None:
    pass


def test_a_release_is_installed_once(wheels: Path) -> None:
    half = folder_of("onnxruntime", "1.20.1") / "half"
    half.parent.mkdir(parents=True)
    half.touch()
    told: list[str] = []
    first = install(ONNXRUNTIME, "1.20.1", told.append)
    again = install(ONNXRUNTIME, "1.20.1", told.append)
    assert (first, again, len(told), half.exists()) == (True, False, 2, False)
    asks = "import onnxruntime, numpy; print(onnxruntime.__version__, numpy.__version__)"
    done = subprocess.run(
        (python_in(half.parent), "-I", "-c", asks), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1.20.1 2.0.0"


@pytest.mark.push
def test_two_processes_may_ask_at_once(wheels: Path) -> None:
    code = "from conformance.cli.main import main; main()"
    command = (sys.executable, "-c", code, "setup", "cpu@1.20.1")
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60) for process in both]
    assert [out for out, _ in said] == ["cpu@1.20.1: installed\n"] * 2
    assert [each.name for each in (wheels.parent / "tools").iterdir()] == ["onnxruntime-1.20.1"]


@pytest.mark.push
def test_a_release_for_an_absent_python(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(wheels, "onnxruntime", "1.15.0", f"cp{OTHER.replace('.', '')}-none-any")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        SetupError, match=rf"has wheels for Python {OTHER}, and none of these is on"
    ):
        install(ONNXRUNTIME, "1.15.0", nothing)


def test_uv_is_used_where_it_is_there(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheels.parent / "programs"
    calls = wheels.parent / "calls"
    program(folder, "uv", f'echo "$1" >> {calls}; exit 2')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    install(ONNXRUNTIME, "1.20.1", nothing)  # with pip, since uv fails
    assert calls.read_text() == "venv\n"
    assert ONNXRUNTIME.installed_file("1.20.1").is_file()


# The command


@pytest.mark.push
def test_a_failed_installation_does_not_end_the_run(wheels: Path, gqa: Gqa, desk: Desk) -> None:
    """A release that cannot be installed does not end the run."""
    done = gqa("run", "three.yaml", "--ep", "cpu@9.9.9", "--ep", desk.runner("correct"))
    assert done.status == 3
    assert "6 results, 0 unexpected" in done.out
    assert "cpu@9.9.9: every case was skipped: onnxruntime==9.9.9 could not be" in done.both
    assert f"fix: {sys.executable} -m pip index versions onnxruntime" in done.both


@pytest.mark.skipif(has_driver(), reason="there is a driver")
def test_cuda_is_not_downloaded_without_a_driver(wheels: Path, gqa: Gqa, desk: Desk) -> None:
    done = gqa("run", "three.yaml", "--ep", "cuda@1.26.0", "--ep", desk.runner("correct"))
    assert done.status == 3
    assert "is not installed, and there is no NVIDIA driver to run it" in done.both
    assert "fix: gqa setup cuda@1.26.0" in done.both


def test_published_names_stay(wheels: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with tract 0.23.2, which calls itself 0.23.2-pre."""
    pinned = target_for("cpu@1.20.1")
    (other,) = targets_for([desk.runner("correct")])
    folder = folder_of("onnxruntime", "1.20.1")
    python_in(folder).parent.mkdir(parents=True)
    python_in(folder).touch()
    monkeypatch.setenv("FAULT_ON", "nothing")
    with PlanRun(Plan(replace(pinned, command=other.command), (), ())) as run:
        assert run.ready.name == "cpu@1.20.1"
        assert run.ready.described.versions["version that it reports"] == "1.0"
        case = find(["smoke"]).loaded[0]
        with run.again() as other:  # as each worker does
            assert isinstance(other.run_one(case).record, ResultRecord)
