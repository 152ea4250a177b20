"""Why CUDA does not run, and what a GPU is called: with a driver and a wheel that are stand-ins.

The driver, its management library and the wheel's library are built with ``cc`` and loaded by a
runner's process as real ones are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from spoken_runner import RUNNERS, Message, Modules, Start, fake_package, importing, starting, step
from tables import tables

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

linux = pytest.mark.skipif(sys.platform != "linux", reason="CUDA is tested on Linux")

start = starting(RUNNERS / "onnxruntime" / "runner.py", "--ep", "cuda")
module = importing("onnxruntime")

#: Of libraries that stand in for those of NVIDIA.
SOURCES = Path(__file__).parents[1] / "support" / "fake_libraries"

#: A wheel for CUDA 13 whose sessions fail.
WHEEL = """
__version__, package_name, cuda_version = "1.31.1", "onnxruntime-gpu", "13.0"
def get_available_providers(): return ["CUDAExecutionProvider", "CPUExecutionProvider"]
def set_default_logger_severity(level): pass
class SessionOptions:
    def add_session_config_entry(self, name, value): pass
def InferenceSession(model, options, providers, enable_fallback):
    raise RuntimeError(f"no {providers} ; hostname=secret ; file=x\\nand more")
"""

#: Kind, bytes of the entry's header, and architecture of what a wheel has code for.
CODE = ((2, 64, 80), (2, 64, 90), (2, 112, 120))

#: The libraries of CUDA that the stand-in for the provider needs.
LIBRARIES = ("libcublas.so.13", "libcudart.so.13", "libcudnn.so.9")


def fat_binary(*entries: tuple[int, int, int]) -> bytes:
    """A fat binary with 8 bytes of code for each entry: kind, size of its header, architecture."""
    content = b"".join(
        struct.pack("<HHIQ12xI", kind, 0x101, size, 8, sm).ljust(size, b"\1") + b"machine!"
        for kind, size, sm in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def provider(*fat_binaries: bytes) -> str:
    """The source of a library with these fat binaries, with a gap between each two."""
    content = (b"\0" * 8).join(fat_binaries)
    numbers = ",".join(map(str, content))
    return f'__attribute__((section(".nv_fatbin"))) const unsigned char code[] = {{{numbers}}};'


def library(file: Path, source: str, *options: str) -> None:
    """Build a shared library; its name is that of the file. Skips the test without ``cc``."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("needs a C compiler: cc")
    options = ("-shared", "-fPIC", "-w", f"-Wl,-soname,{file.name}", "-x", "c", "-", *options)
    subprocess.run([cc, *options, "-o", str(file)], input=source, text=True, check=True, timeout=60)


class Machine:
    """Libraries of CUDA, a driver and a wheel that needs both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver, self.libraries = folder / "driver", folder / "libraries"
        self.package = folder / "packages" / "onnxruntime"
        for path in (self.driver, self.libraries, self.package / "capi"):
            path.mkdir(parents=True)
        for name, source in (("libcuda.so.1", "driver"), ("libnvidia-ml.so.1", "management")):
            library(self.driver / name, (SOURCES / f"{source}.c").read_text())
        versions = (SOURCES / "versions.c").read_text()
        for name in LIBRARIES:
            library(self.libraries / name, versions)
        (self.package / "__init__.py").write_text(WHEEL)
        needed = [f"-l:{name}" for name in (*LIBRARIES, "libcuda.so.1")]
        library(
            self.package / "capi" / "libonnxruntime_providers_cuda.so",
            provider(fat_binary(*CODE[:2]), fat_binary(), fat_binary(CODE[2])),
            *("-Wl,--no-as-needed", f"-L{self.libraries}", f"-L{self.driver}", *needed),
        )
        self.everything = self.with_folders(self.libraries, self.driver)

    def with_folders(self, *folders: Path) -> dict[str, str]:
        """The environment in which the wheel and the libraries in these folders are found."""
        path = os.pathsep.join(map(str, folders))
        return {"PYTHONPATH": str(self.package.parent), "LD_LIBRARY_PATH": path}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


# Why CUDA does not run


def unavailable(start: Start, folder: Path, environment: dict[str, str]) -> Message:
    """The answer to describe, which a run repeats."""
    runner = start(**environment)
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert "\n" not in answer["reason"]
    assert runner.run(folder, step({})) == answer
    assert runner.end() == 0
    return answer


def test_a_build_with_cuda_as_a_plugin(start: Start, tmp_path: Path) -> None:
    source = (
        "__version__ = '1.32.0'\n"
        "def get_available_providers(): return ['CPUExecutionProvider']\n"
        "def get_build_info(): return 'ORT Build Info: git-branch=x, cuda-plugin-ep=1, x'\n"
    )
    environment = fake_package(tmp_path, "onnxruntime", source)
    answer = unavailable(start, tmp_path, environment)
    library = (
        Path(environment["PYTHONPATH"])
        / "onnxruntime"
        / "capi"
        / "libonnxruntime_providers_cuda.so"
    )
    assert answer["reason"] == "onnxruntime 1.32.0 was built with CUDA as a plugin."
    assert answer["fix"] == f"gqa run --ep ort-plugin:{library}"


@linux
@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["libcudnn.so.9"], "libcudnn.so.9, which the loader does not find: install nvidia-cudnn-"),
        (
            ["libcublas.so.13", "libcudart.so.13"],
            "libcublas.so.13 and libcudart.so.13, which the loader does not find: "
            "install nvidia-cublas and nvidia-cuda-runtime.",
        ),
    ],
    ids=["cudnn", "cuda"],
)
def test_a_missing_library_is_named_with_its_package(
    start: Start, machine: Machine, tmp_path: Path, missing: list[str], said: str
) -> None:
    for name in set(LIBRARIES) - set(missing):
        (tmp_path / name).symlink_to(machine.libraries / name)
    metadata = tmp_path / "onnxruntime_gpu-1.31.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n"
        "Provides-Extra: cuda\nProvides-Extra: cudnn\nProvides-Extra: other\n"
    )
    found = machine.with_folders(tmp_path)  # without a driver, too: the first cause is told
    found["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    answer = unavailable(start, tmp_path, found)
    assert answer["reason"].startswith(f"onnxruntime-gpu 1.31.1 needs {said}")
    assert answer["fix"].endswith(" 'onnxruntime-gpu[cuda,cudnn]==1.31.1'")
    assert sys.executable in answer["fix"]


@linux
def test_a_library_the_loader_does_not_find(start: Start, machine: Machine, tmp_path: Path) -> None:
    """A library in a folder that the loader does not search."""
    folder = tmp_path / "lib64"
    folder.symlink_to(machine.libraries)
    answer = unavailable(start, tmp_path, machine.with_folders() | {"CUDA_HOME": str(tmp_path)})
    assert answer["reason"] == (
        "onnxruntime-gpu 1.31.1 needs libcublas.so.13, libcudart.so.13 and libcudnn.so.9, which "
        f"the loader does not find: it does not search {folder}."
    )
    assert answer["fix"] == f'export LD_LIBRARY_PATH="{folder}:$LD_LIBRARY_PATH"'


@linux
def test_an_own_build_has_no_pip_command(start: Start, machine: Machine, tmp_path: Path) -> None:
    answer = unavailable(start, tmp_path, machine.with_folders())
    assert answer["reason"].endswith(
        "install nvidia-cublas, nvidia-cuda-runtime and nvidia-cudnn-cu13."
    )
    assert answer["fix"] is None


@linux
def test_a_library_that_does_not_load(start: Start, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "packages").symlink_to(machine.package.parent)
    package = tmp_path / "broken" / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").write_text(WHEEL)
    (package / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(b"\x7fELF and no more")
    environment = machine.everything | {"PYTHONPATH": str(package.parent)}
    answer = unavailable(start, tmp_path, environment)
    assert answer["reason"].startswith("onnxruntime-gpu 1.31.1 cannot load its CUDA provider: ")


@linux
def test_no_driver(start: Start, machine: Machine, tmp_path: Path) -> None:
    answer = unavailable(start, tmp_path, machine.with_folders(machine.libraries))
    assert answer["reason"].startswith("there is no NVIDIA driver: libcuda.so.1: cannot open ")
    assert answer["fix"] is None


#: What the driver says, and the sentence that is made of it.
DRIVERS = TABLES["drivers"]


@linux
@pytest.mark.parametrize("name", DRIVERS)
def test_what_the_driver_says_is_told(
    start: Start, machine: Machine, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment, sentence = DRIVERS[name]
    answer = unavailable(start, tmp_path, machine.everything | environment)
    assert answer["reason"] == sentence
    diagnosed = name in ("broken", "all is well")
    assert answer["fix"] == ("nvidia-smi" if diagnosed else None)


@linux
@pytest.mark.parametrize(
    ("gpus", "there"), [(1, "is 1 GPU, number 0"), (2, "are 2 GPUs, numbers 0 to 1")]
)
def test_a_gpu_that_is_not_there(
    start: Start, machine: Machine, monkeypatch: pytest.MonkeyPatch, gpus: int, there: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = machine.everything | {"FAKE_GPUS": str(gpus)}
    for word in (("--ep", "cuda"), ("--plugin", "CUDAExecutionProvider")):
        answer = start(*word, "--device", "2", **environment).ask(cmd="describe")
        assert answer["reason"] == f"there is no GPU 2: there {there}."
        assert answer["fix"] is None


# The same within this process


def in_python(environment: dict[str, str], script: str) -> Any:
    """What ``script`` prints as JSON, with the runner's modules, in a process of its own."""
    paths = [str(RUNNERS / "onnxruntime"), str(RUNNERS / "common")]
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys; sys.path[:0] = {paths!r}\n{script}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_the_probe_is_a_valid_model_and_never_falls_back(module: Modules) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    availability = module("cuda_availability")
    probe = availability.probe_model(TensorProto.FLOAT, 4)
    onnx.checker.check_model(onnx.load_model_from_string(probe), full_check=True)
    session = onnxruntime.InferenceSession(probe, providers=["CPUExecutionProvider"])
    [result] = session.run(None, {"x": np.array([-1, 0, 1, 2], np.float32)})
    assert result.tolist() == [0, 0, 1, 2]
    if availability.PROVIDER not in onnxruntime.get_available_providers():
        with pytest.raises(Exception, match="CPU EP"):
            availability.run_probe(onnxruntime, availability.PROVIDER, {"device_id": "0"})


# The file of the provider


@linux
def test_the_providers_needs_are_read_from_its_file(module: Modules, machine: Machine) -> None:
    cuda = module("cuda_library")
    found = cuda.read(str(machine.package / "capi" / cuda.NAME))
    assert found.needed[: len(LIBRARIES) + 1] == (*LIBRARIES, "libcuda.so.1")
    assert found.cuda == 13
    assert found.code.words() == "sm_80 sm_90 sm_120"


@linux
def test_ptx_is_told_apart_from_machine_code(module: Modules, tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    library(file, provider(fat_binary((1, 80, 90), (2, 64, 75), (0x40, 64, 10))))
    found = module("cuda_library").read(str(file))
    assert (found.cuda, found.code.words()) == (None, "sm_75 compute_90")


@pytest.mark.parametrize(("machine_code", "ptx", "capability", "runs"), TABLES["code"])
def test_which_gpus_code_runs_on(
    module: Modules,
    machine_code: list[int],
    ptx: list[int],
    capability: tuple[int, int],
    runs: bool,
) -> None:
    code = module("cuda_library").Code(frozenset(machine_code), frozenset(ptx))
    assert code.runs_on(capability) is runs


def test_a_file_that_is_no_library_says_nothing(module: Modules, tmp_path: Path) -> None:
    cuda = module("cuda_library")
    contents = [b"", b"text", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
        assert cuda.read(str(tmp_path / str(number))) == cuda.Library()
    assert cuda.read(str(tmp_path / "none")) == cuda.Library()
    assert cuda.read(str(tmp_path)) == cuda.Library()


# The GPU

NAMES = dict(TABLES["names"])


@pytest.mark.parametrize("name", NAMES)
def test_the_word_for_a_model(module: Modules, name: str) -> None:
    word = module("cuda_device").adapter_word(name)
    assert word == NAMES[name]
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", word)
    assert len(word) <= 60


DESCRIBE = """
import cuda_device, ctypes
for name in {loaded!r}: ctypes.CDLL(name)
print(json.dumps(cuda_device.describe()._asdict()))
"""


@linux
def test_a_gpu_is_described_with_all_that_its_results_may_depend_on(machine: Machine) -> None:
    script = DESCRIBE.format(loaded=LIBRARIES)
    gpu = in_python(machine.everything, script)
    libraries = {name.partition(".so")[0]: str(machine.libraries / name) for name in LIBRARIES}
    versions = TABLES["gpu"]["versions"] | libraries
    assert gpu == TABLES["gpu"] | {"versions": versions}
    # A process must describe itself as the one before did.
    assert in_python(machine.everything, script) == gpu


@linux
def test_a_gpu_without_cudnn_and_management_library(machine: Machine, tmp_path: Path) -> None:
    """A GPU without cuDNN and without the management library."""
    (tmp_path / "libcuda.so.1").symlink_to(machine.driver / "libcuda.so.1")
    environment = machine.with_folders(tmp_path)
    gpu = in_python(environment, DESCRIBE.format(loaded=()))
    assert gpu["words"] == "NVIDIA H100 80GB HBM3, compute capability 9.0, without cuDNN"
    assert gpu["versions"]["cudnn"] == "missing"
    assert gpu["versions"].keys() <= {
        *("driver", "cuda_driver", "cudnn", "gpu", "compute_capability", "gpu_memory")
    }


@linux
def test_the_users_folders_are_not_named(machine: Machine) -> None:
    environment = machine.everything | {"HOME": str(machine.folder)}
    gpu = in_python(environment, DESCRIBE.format(loaded=LIBRARIES))
    assert gpu["versions"]["libcudnn"] == "~/libraries/libcudnn.so.9"
