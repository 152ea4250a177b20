"""Which Python ``--ep cuda`` takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import target_for
from conformance.targets.tools import (
    ONNXRUNTIME_GPU_VERSION,
    TOOLS_VARIABLE,
    find_cuda_python,
    folder_of,
    has_cuda,
    python_in,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="there is no CUDA for macOS, which gqa setup cuda says"
)


def build(folder: Path, library: str = "libonnxruntime_providers_cuda.so") -> Path:
    """A build of one's own: a folder with onnxruntime, whose provider is ``library``."""
    (folder / "onnxruntime" / "capi").mkdir(parents=True)
    (folder / "onnxruntime" / "__init__.py").write_text("raise RuntimeError('was imported')")
    (folder / "onnxruntime" / "capi" / library).touch()
    return folder


@pytest.mark.parametrize(
    ("library", "has"),
    [
        ("libonnxruntime_providers_cuda.so", True),
        ("libonnxruntime_providers_cuda_plugin.so", True),
        ("libonnxruntime_providers_shared.so", False),
    ],
)
def test_a_build_in_pythonpath_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, has: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(build(tmp_path / "build [x]", library)))
    assert has_cuda(sys.executable) is has


def test_current_folder_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is not searched as runners do not."""
    pytest.importorskip("onnxruntime")
    if has_cuda(sys.executable):
        pytest.skip("this Python's onnxruntime has CUDA")
    monkeypatch.chdir(build(tmp_path))
    monkeypatch.syspath_prepend("")
    assert not has_cuda(sys.executable)


def test_this_python_comes_before_setups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python comes first and then that of setup."""

    def taken(**given: str) -> tuple[str, str | None, object]:
        target = target_for("cuda", OptionValues(**given))
        found = target.program and target.program.found_by
        return target.command.argv[0], found, target.command.env.get("PYTHONPATH")

    monkeypatch.setenv(TOOLS_VARIABLE, str(tmp_path / "tools"))
    monkeypatch.setenv("PYTHONPATH", str(build(tmp_path, "libonnxruntime_providers_shared.so")))
    assert find_cuda_python() is None
    assert taken() == (sys.executable, None, None)
    python = python_in(folder_of("onnxruntime-gpu", ONNXRUNTIME_GPU_VERSION))
    python.parent.mkdir(parents=True)
    python.touch()
    # What PYTHONPATH names is not of that environment.
    assert taken() == (str(python), "gqa setup cuda", "")
    assert taken(ort_python="/my/python") == ("/my/python", None, None)
    monkeypatch.setenv("PYTHONPATH", str(build(tmp_path / "with_cuda")))
    assert taken() == (sys.executable, "this environment", None)
    assert target_for("cpu").command.argv[0] == sys.executable
