"""The content of a wheel: one import name with everything inside. `.ci/test-wheel` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from conformance.base.paths import ROOT

pytestmark = pytest.mark.night


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


def test_the_wheel_installs_one_import_name_with_all_data(installed: Path) -> None:
    tops = {file.name for file in installed.iterdir() if file.suffix != ".dist-info"}
    assert tops - {"bin"} == {"conformance"}
    (license_file,) = installed.glob("gqa_conformance-*.dist-info/licenses/LICENSE")
    assert license_file.read_text().startswith("MIT License\n")
    data = installed / "conformance" / "data"
    for files in ("cases/*", "runners/*/*", "expectations/*", "mutants/*/*", "reports/page/*"):
        wanted = {file.relative_to(ROOT) for file in ROOT.glob(files) if file.is_file()}
        assert [file for file in wanted if not (data / file).is_file()] == []
    assert [*data.glob("docs/findings/*.md")]


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
