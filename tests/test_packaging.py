"""The content of a wheel: one import name with everything inside, and it works anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from conformance import __version__
from conformance.base.paths import ROOT
from conformance.maintain.generate import FILES

pytestmark = pytest.mark.slow


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, in pip's layout."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout: there is nothing to build a wheel from")
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(
        *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", str(ROOT), cwd=folder
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    site = folder / "site"
    done = run(*pip, "install", "--no-deps", "--target", str(site), str(wheel), cwd=folder)
    assert done.returncode == 0, done.stderr
    return site


def test_the_wheel_installs_one_import_name(installed: Path) -> None:
    (wheel,) = (installed.parent / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"conformance"}


@pytest.mark.parametrize(
    "name",
    [
        "cases/shared_kv.yaml",
        "cases/schema.json",
        "runners/onnxruntime/runner.py",
        "runners/README.md",
        "runners/onnxruntime_web/package-lock.json",
        "expectations/cpu.yaml",
        "docs/known_bugs.yaml",
        "reports/report.html.j2",
        "reports/page/main.js",
        "docs/findings/webgpu-borrowed-window.md",
        "mutants/runner.py",
        "mutants/areas/window_cache.py",
        "mutants/killers.json",
    ],
)
def test_data_files_are_inside_the_package(installed: Path, name: str) -> None:
    assert (installed / "conformance" / "data" / name).is_file()


def test_the_wheel_says_what_it_is(installed: Path) -> None:
    (info,) = installed.glob("gqa_conformance-*.dist-info")
    assert (info / "licenses" / "LICENSE").read_text().startswith("MIT License\n")
    metadata = message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Author"] == "gqa-conformance contributors"
    assert metadata["Version"] == __version__
    assert "Project-URL" not in metadata


def test_the_sdist_has_every_file_of_the_repository(tmp_path: Path) -> None:
    tracked = run("git", "ls-files", cwd=ROOT) if shutil.which("git") else None
    if tracked is None or tracked.returncode or not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout by git: nobody knows what the files of the repository are")
    built = run(
        sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT
    )
    assert built.returncode == 0, built.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as source:
        packed = {name.partition("/")[2] for name in source.getnames()}
    assert {"LICENSE", "CHANGELOG.md"} <= packed
    assert [name for name in tracked.stdout.splitlines() if name not in packed] == []


def test_packages_do_not_contain_node_modules(installed: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    leave = shutil.ignore_patterns(".git", ".venv", "node_modules", "tests", "*_cache")
    shutil.copytree(ROOT, checkout, ignore=leave)
    (checkout / ".gitignore").unlink()
    module = checkout / "runners" / "onnxruntime_web" / "node_modules" / "webgpu" / "index.js"
    module.parent.mkdir(parents=True)
    module.touch()
    built = run(sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), cwd=checkout)
    assert built.returncode == 0, built.stderr
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as source:
        packed = source.getnames()
    for names in (zipfile.ZipFile(wheel).namelist(), packed):
        assert any(name.endswith("/onnxruntime_web/launch.py") for name in names)
        assert not [name for name in names if "node_modules" in name]


def test_gqa_runs_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = run(
        sys.executable,
        "-m",
        "conformance",
        "run",
        "shared_kv/zero_length_kv",
        "--html",
        "report.html",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 results, 0 unexpected" in done.stdout
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    where = "import conformance.base.paths as p; print(p.ROOT)"
    root = run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(installed))
    assert root.stdout.strip() == str(installed / "conformance" / "data")


def test_pytest_runs_the_corpus_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = run(
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conformance.pytest_plugin",
        "--ep",
        "cpu",
        "-k",
        "zero_length_kv_static",
        "-q",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("file", FILES)
def test_an_installed_package_is_not_changed(installed: Path, tmp_path: Path, file: str) -> None:
    place = installed / "conformance" / "data" / file
    before = place.read_bytes() if place.exists() else None
    command = (sys.executable, "-m", "conformance.maintain.generate", file)
    done = run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    says = f"{file} can only be written in a checkout of the project.\n"
    assert (done.returncode, done.stderr) == (1, says)
    assert (place.read_bytes() if place.exists() else None) == before
