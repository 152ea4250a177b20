"""``gqa setup cuda``, with a Python whose venv and pip write small files, and once with real ones.

Also which Python ``--ep cuda`` takes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from as_user import Desk, Gqa, in_this_process, wait_for

from conformance.base.paths import ROOT
from conformance.cli import terminal
from conformance.harness.protocol import DescribedAnswer
from conformance.targets.catalogue import Programs
from conformance.targets.registry import target_for
from conformance.targets.setup import cuda, described, pip
from conformance.targets.tools import (
    COMPLETE,
    ONNXRUNTIME_GPU_VERSION,
    built_onnxruntime_gpu,
    find_cuda_python,
    has_cuda,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="there is no CUDA for macOS, which gqa setup cuda says"
)

REAL = sys.executable

#: A Python: it records its call, makes environments of its own kind, and runs $FAKE as pip. What it
#: does not know a real Python does, such as a runner.
PYTHON = """\
#!/bin/sh
here=$(dirname "$0")
installs() { echo "${RELEASE:-$1}" > "$here/release"; echo "Successfully installed all of it"; }
case "$*" in
  "-P -c "*) exit "${OWN:-1}" ;;
  "-I -c "*) [ -z "$HANGS" ] || sleep 30; cat "$here/release"; exit ;;
esac
case "$*" in
  "-m venv "* | "-m pip "*) echo "$* PYTHONPATH=$PYTHONPATH PIP_USER=$PIP_USER" >> "$CALLS" ;;
esac
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*) for word; do case $word in *==*) version=${word#*==};; esac; done; eval "$FAKE" ;;
  *) PYTHONPATH=$PACKAGES exec REAL "$@" ;;
esac
"""

#: What a runner finds as onnxruntime.
WHEEL = """
__version__ = "1.31.1"
def get_available_providers(): return ["CPUExecutionProvider"]
def get_build_info(): return ""
"""

USE = "Once that is fixed: gqa run --ep cuda"


class Place:
    """A folder of tools, a Python whose pip installs nothing real, and the environment for them."""

    def __init__(self, folder: Path) -> None:
        self.tools, self.calls = folder / "tools", folder / "calls"
        self.python = folder / "python" / "python"
        self.python.parent.mkdir()
        self.python.write_text(PYTHON.replace("REAL", shlex.quote(REAL)))
        self.python.chmod(0o755)
        package = folder / "packages" / "onnxruntime"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(WHEEL)
        self.environment = {
            "GQA_TOOLS": str(self.tools),
            "CALLS": str(self.calls),
            "FAKE": "installs $version",
            "PACKAGES": str(package.parent),
            "PYTHONPATH": str(folder / "of the user"),
        }

    @property
    def folder(self) -> Path:
        return self.tools / f"onnxruntime-gpu-{ONNXRUNTIME_GPU_VERSION}"

    @property
    def working(self) -> Path:
        return self.tools / "building" / self.folder.name

    def called(self) -> list[str]:
        """The calls of venv and pip."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(made.python))
    monkeypatch.setattr(cuda, "_DRIVER", "libc.so.6")  # there is one, wherever the tests run
    set_free_space(monkeypatch, 100)
    return made


def set_free_space(monkeypatch: pytest.MonkeyPatch, gigabytes: float) -> None:
    """What the setup sees as free on the disk, however full the one of the tests is."""
    usage = shutil.disk_usage("/")._replace(free=int(gigabytes * 1e9))
    monkeypatch.setattr("conformance.targets.setup.cuda.shutil.disk_usage", lambda path: usage)


@pytest.fixture
def gqa(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, which behaves the same and starts faster."""
    with in_this_process(monkeypatch, capsys) as call:
        yield call


# Success


def test_the_pinned_release_gets_an_environment_and_what_is_missing_is_told(
    gqa: Gqa, place: Place
) -> None:
    done = gqa("setup", "cuda")
    assert (done.status, done.out.splitlines()) == (
        0,
        [
            f"onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION} is installed: {place.folder}",
            "cuda cannot be used yet: the installed wheel onnxruntime 1.31.1 was built without "
            "CUDAExecutionProvider.",
            "  fix: gqa setup cuda",
            USE,
        ],
    )
    requirement = f"onnxruntime-gpu[cuda,cudnn]=={ONNXRUNTIME_GPU_VERSION}"
    assert done.err == (
        f"Installing {requirement} with pip in an environment of its own: "
        "1.6 GB to download, 2.5 GB on the disk.\n"
    )
    # Neither a PYTHONPATH nor a setting of the user puts packages into another place.
    rest = "PYTHONPATH= PIP_USER=0"
    assert place.called() == [
        f"-m venv {place.folder} {rest}",
        f"-m pip install {requirement} numpy {rest}",
    ]
    assert (place.folder / COMPLETE).exists()
    assert not place.working.exists()


def test_a_missing_driver_is_told_before_the_download(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_DRIVER", "libno-such-driver.so.1")
    done = gqa("setup", "cuda")
    first, second = done.err.splitlines()
    assert first == (
        "There is no NVIDIA driver here: libno-such-driver.so.1 cannot be loaded. "
        "What is installed now runs once there is one."
    )
    assert second.startswith("Installing onnxruntime-gpu")
    assert (done.status, (place.folder / COMPLETE).exists()) == (0, True)


def test_a_second_time_there_is_nothing_to_do(gqa: Gqa, place: Place) -> None:
    gqa("setup", "cuda")
    done = gqa("setup", "cuda")
    assert (done.status, done.err, len(place.called())) == (0, "", 2)
    there = f"onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION} is already installed: {place.folder}"
    assert done.out.splitlines()[0] == there


def test_another_release_lies_beside_it_and_is_named(gqa: Gqa, place: Place) -> None:
    gqa("setup", "cuda")
    done = gqa("setup", "cuda", "--version", "1.27.0")
    python = place.tools / "onnxruntime-gpu-1.27.0" / "bin" / "python"
    assert done.status == 0
    assert done.out.splitlines()[-1] == f"{USE} --ort-python {python}"
    assert "-m pip install onnxruntime-gpu[cuda,cudnn]==1.27.0 numpy " in place.called()[-1]
    assert (place.folder / COMPLETE).exists()


def test_the_python_is_named_if_another_one_would_be_used(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN", "0")
    last = gqa("setup", "cuda").out.splitlines()[-1]
    assert last == f"{USE} --ort-python {place.folder}/bin/python"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("cut off", "is not complete"),
        ("other release", f"has no onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION}"),
        ("no Python", "has a Python that does not start (No such file or directory)"),
        ("hangs", "has a Python that did not answer within 0 s"),
    ],
)
def test_an_environment_that_does_not_work_is_made_again(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, broken: str, why: str
) -> None:
    gqa("setup", "cuda")
    if broken == "cut off":
        (place.folder / COMPLETE).unlink()
    elif broken == "other release":
        (place.folder / "bin" / "release").write_text("1.30.0")
    elif broken == "no Python":
        (place.folder / "bin" / "python").unlink()
    else:
        monkeypatch.setattr(cuda, "_TO_START", 0.3)
        python = place.folder / "bin" / "python"
        python.write_text(python.read_text().replace("$HANGS", "hangs"))
    (place.folder / "litter").touch()
    done = gqa("setup", "cuda")
    said = f"{place.folder} {why}, so it is installed again."
    assert (done.status, done.err.splitlines()[0]) == (0, said)
    assert not (place.folder / "litter").exists()
    assert not place.working.exists()


def test_the_gpu_is_named(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        """A pool whose runner finds a GPU."""

        def __init__(self, command: object) -> None: ...
        def __enter__(self) -> OnGpu:
            return self

        def __exit__(self, *error: object) -> None: ...
        def start(self) -> DescribedAnswer:
            device = "NVIDIA H100 80GB HBM3, compute capability 9.0"
            return DescribedAnswer.model_construct(device=device)

    monkeypatch.setattr(described, "Pool", OnGpu)
    assert gqa("setup", "cuda").out.splitlines()[1:] == [
        "GPU: NVIDIA H100 80GB HBM3, compute capability 9.0",
        "use it with: gqa run --ep cuda",
    ]


# Failures

NO_RELEASE = """\
Looking in links: /wheels
ERROR: Could not find a version that satisfies the requirement onnxruntime-gpu==9.9.9 (from ...)
ERROR: No matching distribution found for onnxruntime-gpu==9.9.9
"""
DISK_FULL = """\
Installing collected packages: numpy, onnxruntime-gpu
ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device

"""
REFUSED = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /numpy/
ERROR: Could not find a version that satisfies the requirement numpy (from versions: none)
ERROR: No matching distribution found for numpy
"""
OF_UV = """\
Using Python 3.12.1 environment at: gpu
  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of onnxruntime-gpu==9.9.9 and you require it, all is lost.
"""


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        (NO_RELEASE, 1, "No matching distribution found for onnxruntime-gpu==9.9.9"),
        (DISK_FULL, 1, "Could not install packages due to an OSError: [Errno 28] No space left"),
        (OF_UV, 1, "No solution found when resolving dependencies: Because there is no version"),
        ("/usr/bin/python: No module named pip\n", 1, "/usr/bin/python: No module named pip"),
        ("", 3, "it ended with status 3 and said nothing"),
        ("", -9, "it was ended by SIGKILL"),
    ],
    ids=["no release", "disk", "uv", "other words", "nothing", "killed"],
)
def test_pips_output_is_reduced_to_one_sentence(said: str, status: int, told: str) -> None:
    assert pip.why_it_failed(said, status).startswith(told)


@pytest.mark.parametrize(
    ("said", "mends"),
    [
        (NO_RELEASE, "list all releases  {python} -m pip index versions onnxruntime-gpu"),
        (REFUSED, "try again          gqa setup cuda --version 1.27.0"),
        (
            DISK_FULL,
            "use another disk   GQA_TOOLS=/another/folder TMPDIR=/another/folder gqa setup cuda "
            "--version 1.27.0",
        ),
    ],
    ids=["no release", "refused", "disk"],
)
def test_a_failure_is_reported_with_its_log_and_a_fix(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, said: str, mends: str
) -> None:
    monkeypatch.setenv("SAID", said)
    monkeypatch.setenv("FAKE", 'echo half > "$here/half"; printf %s "$SAID" >&2; exit 1')
    done = gqa("setup", "cuda", "--version", "1.27.0")
    assert (done.status, done.out) == (3, "")
    log = place.tools / "building" / "onnxruntime-gpu-1.27.0" / "pip.log"
    lines = done.err.splitlines()
    assert lines[1].startswith("pip could not install onnxruntime-gpu[cuda,cudnn]==1.27.0: ")
    assert lines[2] == f"  full output        {log}"
    assert lines[3] == f"  {mends.format(python=place.python)}"
    assert log.read_text() == said
    assert os.listdir(place.tools) == ["building"]  # no partial environment

    monkeypatch.setenv("FAKE", "installs $version")
    assert gqa("setup", "cuda", "--version", "1.27.0").status == 0
    assert not log.parent.exists()


def test_a_pip_that_succeeds_but_installs_another_release(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEASE", "1.30.0")
    done = gqa("setup", "cuda")
    assert done.status == 3
    has_no = f"{place.folder} has no onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION}"
    assert done.err.splitlines()[1].endswith(f": it reported success, but {has_no}.")
    assert not place.folder.exists()


def test_a_python_that_does_not_start(gqa: Gqa, place: Place) -> None:
    place.python.write_bytes(b"\x7fELF")
    done = gqa("setup", "cuda")
    assert done.status == 3
    assert f"{place.python} does not start: Exec format error." in done.err


def test_a_folder_that_cannot_be_written(gqa: Gqa, place: Place) -> None:
    place.tools.write_text("a file")
    done = gqa("setup", "cuda")
    assert (done.status, done.out) == (3, "")
    assert done.err == (
        f"Cannot write {place.tools}/building: Not a directory. Set GQA_TOOLS to another folder.\n"
    )


def test_a_disk_that_is_too_small(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_space(monkeypatch, 1.9)
    done = gqa("setup", "cuda")
    assert (done.status, done.out, place.called()) == (3, "", [])
    first, second = done.err.splitlines()
    assert first.startswith(f"Installing onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION} needs 2.5 GB, ")
    assert first.endswith(" has 1.9 GB free.")
    assert second == "  use another disk  GQA_TOOLS=/another/folder gqa setup cuda"


def test_there_is_no_cuda_for_macos(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda.sys, "platform", "darwin")
    done = gqa("setup", "cuda")
    said = "There is no CUDA for macOS; use a machine with Linux and an NVIDIA GPU.\n"
    assert (done.status, done.out, done.err) == (3, "", said)


@pytest.mark.parametrize("version", ["1.30", "v1.30.0", "1.30.0/../x", "latest", "", "1.2.3\n"])
def test_an_invalid_release_is_rejected(gqa: Gqa, place: Place, version: str) -> None:
    done = gqa("setup", "cuda", "--version", version)
    assert (done.status, done.out) == (2, "")
    wanted = f"expected three numbers, such as {ONNXRUNTIME_GPU_VERSION}.\n"
    assert done.err == f"'{version}' is not a release of onnxruntime-gpu; {wanted}"
    assert not place.tools.exists()


# Without venv


@pytest.fixture
def without_venv(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python without venv's own packages, as Debian's is; the folder of the only programs."""
    find = pip.importlib.util.find_spec
    monkeypatch.setattr(
        pip.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "ensurepip" else find(name, *rest),
    )
    programs = place.tools.parent / "programs"
    programs.mkdir()
    for name in ("cat", "cp", "dirname", "mkdir", "sh"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    return programs


def test_without_venv_and_uv(gqa: Gqa, place: Place, without_venv: Path) -> None:
    done = gqa("setup", "cuda")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines() == [
        f"Installing onnxruntime-gpu {ONNXRUNTIME_GPU_VERSION} needs venv, which {place.python} "
        "does not have.",
        "  install it  apt-get install python3-venv, or uv: https://docs.astral.sh/uv",
    ]
    assert not place.tools.exists()


def test_uv_takes_the_place_of_venv(gqa: Gqa, place: Place, without_venv: Path) -> None:
    uv = without_venv / "uv"
    uv.write_text(
        '#!/bin/sh\necho "uv $*" >> "$CALLS"\n'
        'case $1 in\n  venv) "$3" -m venv "$4" ;;\n'
        '  pip) "$4" -m pip install "$5" "$6" ;;\nesac\n'
    )
    uv.chmod(0o755)
    assert gqa("setup", "cuda").status == 0
    calls = [call for call in place.called() if call.startswith("uv ")]
    requirement = f"onnxruntime-gpu[cuda,cudnn]=={ONNXRUNTIME_GPU_VERSION}"
    assert calls == [
        f"uv venv --python {place.python} {place.folder}",
        f"uv pip install --python {place.folder}/bin/python {requirement} numpy",
    ]


# Progress


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("", ""),
        ("Looking in links: /wheels\n", ""),
        ("Collecting onnxruntime-gpu==1.31.1\n", "pip: collecting onnxruntime-gpu"),
        ("  Downloading numpy-2.5.5-cp312-x.whl (15.7 MB)\n", "pip: downloading numpy (15.7 MB)"),
        ("Using cached nvidia_cublas-13.10-py3.whl (1 GB)\n", "pip: using nvidia_cublas (1 GB)"),
        ("Collecting a\nInstalling collected packages: a, b\n", "pip: installing"),
        ("Collecting a\nnot a step\n", "pip: collecting a"),
    ],
)
def test_the_last_step_of_pip_is_told(said: str, step: str) -> None:
    assert pip.step_of(said) == step


def test_without_a_terminal_a_line_is_written_periodically(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_BUILD_LINE_EVERY", 0.9)
    step = "Downloading nvidia_cublas-13.10-py3-none-any.whl (444.3 MB)"
    monkeypatch.setenv("FAKE", f"echo '{step}'; sleep 1.6; installs $version")
    lines = gqa("setup", "cuda").err.splitlines()[1:]
    assert lines[0] in [f"pip: downloading nvidia_cublas (444.3 MB), 0:0{n}" for n in (0, 1, 2)]


def test_an_interruption_ends_pip_too_and_leaves_no_partial_environment(
    place: Place, tmp_path: Path, shared_cache: Path
) -> None:
    desk = Desk(tmp_path, shared_cache)
    script = (
        f"import sys; sys.executable = {str(place.python)!r}; sys.argv = ['gqa', 'setup', 'cuda']\n"
        "from conformance.cli.main import main; main()"
    )
    fake = {"FAKE": f"echo $$ > {tmp_path}/pid; exec sleep 61.5", "PYTHONPATH": str(ROOT)}
    process = desk.start(REAL, "-c", script, environment={**place.environment, **fake})
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "Interrupted."
    assert not place.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


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
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(**given: str) -> tuple[str, str | None, object]:
        target = target_for("cuda", Programs(**given))
        found = target.program and target.program.found_by
        return target.command.argv[0], found, target.command.env.get("PYTHONPATH")

    assert find_cuda_python() is None
    assert taken() == (str(place.python), None, None)
    gqa("setup", "cuda")
    # What PYTHONPATH names is not of that environment.
    setups = str(place.folder / "bin" / "python")
    assert taken() == (setups, "gqa setup cuda", "")
    assert taken(ort_python="/my/python") == ("/my/python", None, None)
    monkeypatch.setenv("OWN", "0")
    own = "this environment"
    assert taken() == (str(place.python), own, None)
    assert target_for("cpu").command.argv[0] == str(place.python)


def test_an_environment_that_is_not_complete_is_not_taken(place: Place) -> None:
    folder = built_onnxruntime_gpu()
    (folder / "bin").mkdir(parents=True)
    shutil.copy(place.python, folder / "bin" / "python")
    assert find_cuda_python() is None


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
    if not pip.can_make_environments():
        pytest.skip("needs venv")
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
        "GQA_TOOLS": str(tmp_path / "tools with spaces"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_USER": "1",
        "PYTHONPATH": str(build(tmp_path / "own", "nothing")),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cuda, "_DRIVER", "libc.so.6")
    set_free_space(monkeypatch, 100)
    with in_this_process(monkeypatch, capsys) as gqa:
        done = gqa("setup", "cuda")
    assert (done.status, done.err.count("\n")) == (0, 1), done.both
    assert done.out.splitlines()[1].startswith(
        "cuda cannot be used yet: the installed wheel onnxruntime 1.31.1 was built without "
    )
    folder = built_onnxruntime_gpu()
    found = find_cuda_python()
    assert has_cuda(sys.executable) or (found and found.path == folder / "bin" / "python")
    listed = subprocess.run(
        [folder / "bin" / "pip", "list", "--format=freeze"],  # its programs have the right path
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    there = {line.partition("=")[0].replace("-", "_") for line in listed.stdout.splitlines()}
    assert {"onnxruntime_gpu", "nvidia_cublas", "nvidia_cudnn", "numpy"} <= there
