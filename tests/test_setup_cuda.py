"""Which Python ``--ep cuda`` takes, and an environment that the real venv and pip make."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from as_user import in_this_process

from conformance.base.processes import ask
from conformance.targets import tools
from conformance.targets.catalogue import Programs
from conformance.targets.registry import target_for
from conformance.targets.setup import python_packages
from conformance.targets.tools import (
    ONNXRUNTIME_GPU_VERSION,
    TOOLS_VARIABLE,
    built_onnxruntime_gpu,
    find_cuda_python,
    has_cuda,
    python_in,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="there is no CUDA for macOS, which gqa setup cuda says"
)

#: What a runner finds as onnxruntime.
WHEEL = """
__version__ = "1.31.1"
def get_available_providers(): return ["CPUExecutionProvider"]
def get_build_info(): return ""
"""


# Which Python --ep cuda takes


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


def test_the_current_folder_is_not_searched_as_runners_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    if has_cuda(sys.executable):
        pytest.skip("this Python's onnxruntime has CUDA")
    monkeypatch.chdir(build(tmp_path))
    monkeypatch.syspath_prepend("")
    assert not has_cuda(sys.executable)


def test_a_python_that_does_not_answer_has_no_cuda(tmp_path: Path) -> None:
    assert not has_cuda(str(tmp_path / "none"))


def test_this_python_comes_first_and_then_that_of_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(**given: str) -> tuple[str, str | None, object]:
        target = target_for("cuda", Programs(**given))
        found = target.program and target.program.found_by
        return target.command.argv[0], found, target.command.env.get("PYTHONPATH")

    monkeypatch.setenv(TOOLS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(tools, "has_cuda", lambda python: False)
    assert find_cuda_python() is None
    assert taken() == (sys.executable, None, None)
    python = python_in(built_onnxruntime_gpu())
    python.parent.mkdir(parents=True)
    python.touch()
    # What PYTHONPATH names is not of that environment.
    assert taken() == (str(python), "gqa setup cuda", "")
    assert taken(ort_python="/my/python") == ("/my/python", None, None)
    monkeypatch.setattr(tools, "has_cuda", lambda python: True)
    assert taken() == (sys.executable, "this environment", None)
    assert target_for("cpu").command.argv[0] == sys.executable


# The real venv and pip


def wheel(folder: Path, name: str, version: str, metadata: str = "", **files: str) -> None:
    """A wheel of pure Python, with ``files`` by module."""
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    content = {
        **{f"{module}/__init__.py": source for module, source in files.items()},
        f"{info}/METADATA": about,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in content))


@pytest.mark.slow
def test_a_real_environment_is_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    extras = (
        "Provides-Extra: cuda\nProvides-Extra: cudnn\n"
        'Requires-Dist: nvidia-cublas; extra == "cuda"\n'
        'Requires-Dist: nvidia-cudnn; extra == "cudnn"\n'
    )
    wheel(wheels, "onnxruntime_gpu", ONNXRUNTIME_GPU_VERSION, extras, onnxruntime=WHEEL)
    for name in ("nvidia_cublas", "nvidia_cudnn", "numpy"):
        wheel(wheels, name, "13.0", **{name: "__version__ = '13.0'"})
    for name, value in {
        TOOLS_VARIABLE: str(tmp_path / "tools with spaces"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_USER": "1",
        "PYTHONPATH": str(build(tmp_path / "own", "nothing")),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(python_packages, "_DRIVER", "libc.so.6")
    with in_this_process(monkeypatch, capsys) as gqa:
        done = gqa("setup", "cuda")
    assert (done.status, done.err.count("\n")) == (0, 1), done.both
    assert done.out.splitlines()[1].startswith(
        "cuda cannot be used yet: the installed wheel onnxruntime 1.31.1 was built without "
    )
    folder = built_onnxruntime_gpu()
    found = find_cuda_python()
    assert has_cuda(sys.executable) or (found and found.path == folder / "bin" / "python")
    names = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    said = ask((python_in(folder), "-I", "-c", names))
    there = {name.replace("-", "_") for name in said.stdout.decode().split()}
    assert {"onnxruntime_gpu", "nvidia_cublas", "nvidia_cudnn", "numpy"} <= there
