"""The targets: an entry for each name that ``--ep`` takes.

This is the only list of targets; the command line, the pytest plugin and the reports use it. The
recipe "A runner" in ``CONTRIBUTING.md`` lists the other steps to add a runtime, and tests compare
them with the entries.

The pytest plugin imports this module in every pytest run, so it imports only the standard library,
`conformance.base.paths`, `conformance.base.target_names` and `conformance.targets.tools`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from conformance.base.findings import SOFTWARE_ADAPTERS
from conformance.base.paths import SHADERS, cache_root, data_path
from conformance.base.target_names import EXEC, PLUGIN, STANDARD, split_release
from conformance.targets import tools
from conformance.targets.tools import RuntimeProgram, as_typed

if TYPE_CHECKING:
    from conformance.oracle.tolerance import TargetClass

#: The words that ``--adapter`` takes instead of a path: two software renderers, and the GPU.
ADAPTERS: Final = (*SOFTWARE_ADAPTERS, "gpu")

#: The browser that ``--browser`` takes, or a path of one.
CHROMIUM: Final = "chromium"

#: The command that installs the software adapter with float16; runners know it, too.
LAVAPIPE: Final = "gqa setup lavapipe"

#: Environment variable that disables the tiled and the decode kernels of ONNX Runtime's CPU
#: provider, which were added in 1.28 (microsoft/onnxruntime#28962, microsoft/onnxruntime#29216).
#: Every call then takes the older code path.
NO_FLASH: Final = "ORT_GQA_DISABLE_FLASH_ATTENTION"

#: The threads of `cpu-threads`. With more threads than heads, kernels split the keys of a head.
THREADS: Final = 4

#: Environment variables that select a kernel of ONNX Runtime's CUDA provider (docs/cuda.md). They
#: are set for every CUDA target, so that none depends on the user's environment. An empty value is
#: the same as none.
_CUDA_SWITCHES: Final = (
    "ORT_DISABLE_FLASH_ATTENTION",
    "ORT_DISABLE_FLASH_DECODE",
    "ORT_DISABLE_FUSED_KV_DEQUANT",
    "ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION",
    "ORT_ENABLE_CUDNN_FLASH_ATTENTION",
    "ORT_ENABLE_XQA",
)
#: Makes the provider report the kernel that ran; see ``runners/onnxruntime/attention_kernels.py``.
_REPORT_KERNELS: Final = {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}

#: The templates of stand-alone programs, in ``reports/programs``.
Template = Literal[
    "exec.py", "onnxruntime.py", "onnxruntime_web.mjs", "openvino.py", "tract.py", "tract_wheel.py"
]


class TargetError(ValueError):
    """``--ep`` or an option of a target has an invalid value; the message lists valid ones."""


@dataclass(frozen=True)
class RunnerStart:
    """The parts of the command of a runner that an option contributes.

    ``interpreter`` is the Python that runs it, if it is not this one. ``arguments`` are appended to
    the runner's own. ``program`` is the program that the runner starts, or the Python that was
    found for it. ``environment`` is set for the runner. ``ending`` is a word for the target's name.
    """

    interpreter: str | None = None
    arguments: tuple[str, ...] = ()
    program: RuntimeProgram | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    ending: str = ""


@dataclass(frozen=True)
class TargetOption:
    """An option of ``gqa`` and of pytest that chooses the program that a target uses.

    ``start`` turns its value, None if it was not set, into parts of the runner's command. It raises
    :class:`TargetError` for an invalid value. ``of_one_target``: all its values are for the same
    target; otherwise there is a target for each.
    """

    flag: str
    metavar: str
    help: str
    start: Callable[[str | None], RunnerStart]
    of_one_target: bool = False

    @property
    def name(self) -> str:
        """``ort_python`` for ``--ort-python``."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class StandaloneProgram:
    """The stand-alone program that reproduces a result of a target.

    ``needs`` are the packages to install beside NumPy. VERSION stands for the runtime's version,
    PLUGIN for that of a plugin, and DAWN for that of the npm package webgpu.
    ``environment`` is set by the program. ``options`` are the command-line options of tract, or the
    build of onnxruntime-web, or ``node`` for onnxruntime-node. ``shared_buffer`` says whether past
    and present can share a buffer. For ONNX Runtime's Python package, ``provider_options`` are
    those of the execution provider, with the content of a JSON file for its path, ``plugin`` is the
    library or the Python module of a plugin, ``threads`` is the number of threads of a session, and
    ``static_shapes`` says that its models need the shapes of their call.
    """

    template: Template
    needs: str
    environment: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str | dict[str, Any]] = field(default_factory=dict)
    options: str = ""
    shared_buffer: bool = False
    plugin: str = ""
    threads: int = 1
    static_shapes: bool = False


@dataclass(frozen=True)
class Package:
    """A package whose releases a target can be pinned to, as in ``cpu@1.25.1``.

    ``name`` is its name in the registry of ``manager``, and ``former_name`` that of older releases.
    ``dependencies`` are other packages that its runner needs. ``option`` is the option of the
    target that takes the `value` of a release. ``oldest`` is the oldest release that the runner
    supports. Versions with the same first ``series`` numbers are a series, of which a range has
    only the last release. ``pinned`` is the release that ``gqa setup`` installs for the targets;
    empty if it installs none. Folders of installed releases begin with ``installed_as``, by default
    the name.
    """

    manager: Literal["pip", "npm", "cargo"]
    name: str
    option: TargetOption
    oldest: str
    pinned: str = ""
    series: int = 2
    former_name: str = ""
    installed_as: str = ""
    dependencies: tuple[str, ...] = ()

    def folder(self, release: str) -> Path:
        """The folder of an installed release; it need not exist."""
        return tools.folder_of(self.installed_as or self.name, release)

    def installed_file(self, release: str) -> Path:
        """A file that exists if the release is installed: a program, or npm's manifest."""
        inside = {
            "pip": "bin/python",
            "npm": f"node_modules/{self.name}/package.json",
            "cargo": "bin/tract",
        }
        return self.folder(release) / inside[self.manager]

    def value(self, release: str) -> str:
        """The value of the option that selects a release."""
        return release if self.manager == "npm" else str(self.installed_file(release))


@dataclass(frozen=True)
class TargetEntry:
    """A target: the command of its runner, its requirements, and how its results are judged.

    - ``runner`` is a path below ``runners/``, and ``arguments`` are always passed to it;
      ``environment`` is set for it. ``python`` finds its Python if no option names one.
    - ``execution_provider`` is the one on which a node must run; None if the runner reports it.
    - ``needs`` is the text of ``gqa doctor``. ``extra`` is the extra of this package that installs
      the runtime.
    - ``kernel_variant_of`` is the target that runs the default code path of the same runtime, and
      ``kernel`` the kernel that must run, as the runner reports it.
    - ``script`` is the stand-alone program.
    - ``maps_device``: a driver maps memory of a device into the runner's process, so its memory
      limit is half of the machine's memory.
    - ``package`` is the package to whose releases the target can be pinned.
    - ``static_shapes``: its compiler takes no model with dims that have no value.
    """

    name: str
    runner: str
    target_class: TargetClass
    needs: str
    arguments: tuple[str, ...] = ()
    options: tuple[TargetOption, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    execution_provider: str | None = None
    extra: str = ""
    kernel_variant_of: str | None = None
    kernel: str | None = None
    script: StandaloneProgram | None = None
    python: Callable[[], RunnerStart] = RunnerStart
    maps_device: bool = False
    package: Package | None = None
    static_shapes: bool = False


# ── The options ─────────────────────────────────────────────────────────────────────────────────


def _interpreter(typed: str | None) -> RunnerStart:
    """Raises :class:`TargetError` for a folder, such as that of a virtual environment."""
    if not typed:
        return RunnerStart()
    python = as_typed(typed)
    if python.is_dir():
        inside = python / "bin" / "python"
        name = f"; its interpreter is {inside}" if inside.exists() else ", not an interpreter"
        raise TargetError(f"{python} is a folder{name}.")
    return RunnerStart(interpreter=str(python))


def _device(typed: str | None) -> RunnerStart:
    if not typed:
        return RunnerStart()
    if not typed.isascii() or not typed.isdigit():
        raise TargetError(f"--device '{typed}' is not the number of a device, such as 0 or 1.")
    return RunnerStart(arguments=("--device", typed))


def _provider_option(typed: str | None) -> RunnerStart:
    if not typed:
        return RunnerStart()
    key, separator, _ = typed.partition("=")
    if not key or not separator:
        raise TargetError(
            f"--provider-option '{typed}' is not KEY=VALUE, such as backend_type=htp."
        )
    return RunnerStart(arguments=("--provider-option", typed))


def _cuda_python() -> RunnerStart:
    """The parts for the Python whose onnxruntime has CUDA."""
    program = tools.find_cuda_python()
    if program is None:
        return RunnerStart()
    python = str(program.path)
    # In another environment, PYTHONPATH would hide its packages.
    elsewhere = {} if python == sys.executable else {"PYTHONPATH": ""}
    return RunnerStart(interpreter=python, program=program, environment=elsewhere)


def _tract(typed: str | None) -> RunnerStart:
    program = tools.find_tract(typed)
    if program is None:
        return RunnerStart()
    named = ("--named",) if typed else ()
    return RunnerStart(arguments=("--tract", str(program.path), *named), program=program)


def _onnxruntime_web(typed: str | None) -> RunnerStart:
    return _packages(tools.find_onnxruntime_web(typed), typed)


def _onnxruntime_node(typed: str | None) -> RunnerStart:
    return _packages(tools.find_onnxruntime_node(typed), typed)


def _packages(program: RuntimeProgram | None, typed: str | None) -> RunnerStart:
    """The parts for a folder of npm packages."""
    if program is None:
        return RunnerStart()
    arguments = ["--modules", str(program.path)]
    if program.release is not None:
        arguments += ["--release", program.release]
    elif typed:
        arguments += ["--named"]
    return RunnerStart(arguments=tuple(arguments), program=program)


def _adapter(typed: str | None) -> RunnerStart:
    named = ("--adapter", _adapter_or_driver(typed)) if typed else ()
    return RunnerStart(arguments=(*named, "--shaders", str(cache_root() / SHADERS)))


def _adapter_or_driver(typed: str) -> str:
    """The word, or the absolute path of the driver's file. Raises :class:`TargetError`."""
    if typed in ADAPTERS:
        return typed
    path = os.path.abspath(os.path.expanduser(typed))
    if not typed.endswith(".json"):
        from conformance.base.explain import did_you_mean  # imports pydantic

        raise TargetError(
            f"Unknown adapter '{typed}'; expected {', '.join(ADAPTERS)} or the path of a Vulkan "
            f"driver's .json file{did_you_mean(typed, ADAPTERS) or '.'}"
        )
    if not os.path.isfile(path):
        raise TargetError(f"The Vulkan driver file {path}, named by --adapter, does not exist.")
    return path


def _browser(typed: str | None) -> RunnerStart:
    if not typed:
        return RunnerStart()
    if os.sep not in typed and typed != CHROMIUM:
        raise TargetError(f"Unknown browser '{typed}'; expected {CHROMIUM} or the path of one.")
    browser = typed if typed == CHROMIUM else str(as_typed(typed))
    return RunnerStart(arguments=("--browser", browser), ending=CHROMIUM)


ORT_PYTHON: Final = TargetOption(
    "--ort-python",
    "PYTHON",
    "Python interpreter whose onnxruntime is tested; default: this one, and for CUDA that of "
    "gqa setup cuda if this one has no CUDA; repeat.",
    _interpreter,
)
DEVICE: Final = TargetOption(
    "--device",
    "N",
    "The number of the GPU, or of another device of an execution provider; default: 0; repeat.",
    _device,
)
PROVIDER_OPTION: Final = TargetOption(
    "--provider-option",
    "KEY=VALUE",
    "An option of the execution provider of ort-plugin:WORD; repeat: a target gets all of them.",
    _provider_option,
    of_one_target=True,
)
TRACT: Final = TargetOption(
    "--tract",
    "PATH",
    "The tract binary; default: what gqa setup built, then PATH; repeat.",
    _tract,
)
TRACT_PYTHON: Final = TargetOption(
    "--tract-python",
    "PYTHON",
    "Python interpreter whose tract package is tested; default: this one; repeat.",
    _interpreter,
)
OPENVINO_PYTHON: Final = TargetOption(
    "--openvino-python",
    "PYTHON",
    "Python interpreter whose openvino package is tested; default: this one; repeat.",
    _interpreter,
)
ONNXRUNTIME_WEB: Final = TargetOption(
    "--onnxruntime-web",
    "FOLDER|VERSION",
    "The folder of its node_modules, or a release that gqa setup installed; "
    "default: the release that gqa setup installs; repeat.",
    _onnxruntime_web,
)
ONNXRUNTIME_NODE: Final = TargetOption(
    "--onnxruntime-node",
    "FOLDER|VERSION",
    "The folder of onnxruntime-node, or its release, likewise; repeat.",
    _onnxruntime_node,
)
ADAPTER: Final = TargetOption(
    "--adapter",
    "WORD|PATH",
    f"The adapter that WebGPU runs on: {', '.join(ADAPTERS)}, or a Vulkan driver's .json file; "
    "default: a GPU, else lavapipe, else SwiftShader; repeat.",
    _adapter,
)
BROWSER: Final = TargetOption(
    "--browser",
    f"{CHROMIUM}|PATH",
    "Run onnxruntime-web in Chromium instead of Node; repeat.",
    _browser,
)

#: Not an option of single targets: it gives a name to each target, in their order.
NAME: Final = TargetOption(
    "--name",
    "NAME",
    "What results call the target instead of its own name; repeat, once for each target.",
    lambda _: RunnerStart(),
)

# ── The packages ────────────────────────────────────────────────────────────────────────────────

_ONNXRUNTIME: Final = Package(
    "pip", "onnxruntime", ORT_PYTHON, oldest="1.20.0", dependencies=("numpy",)
)
ONNXRUNTIME_GPU: Final = replace(
    _ONNXRUNTIME, name="onnxruntime-gpu", pinned=tools.ONNXRUNTIME_GPU_VERSION
)
# tract gets features in patch releases, so each of them is its own series.
_TRACT: Final = Package(
    "cargo",
    "tract-cli",
    TRACT,
    "0.22.0",
    tools.TRACT_VERSION,
    series=3,
    former_name="tract",
    installed_as="tract",
)
_TRACT_PACKAGE: Final = replace(
    _ONNXRUNTIME,
    name="tract",
    option=TRACT_PYTHON,
    oldest="0.23.0",
    series=3,
    installed_as="tract-wheel",
)
_OPENVINO: Final = replace(_ONNXRUNTIME, name="openvino", option=OPENVINO_PYTHON, oldest="2026.0.0")
_QNN: Final = replace(
    _ONNXRUNTIME, name="onnxruntime-qnn", oldest="2.7.0", dependencies=("numpy", "onnxruntime")
)
_ONNXRUNTIME_WEB: Final = Package(
    "npm", "onnxruntime-web", ONNXRUNTIME_WEB, "1.25.0", tools.ONNXRUNTIME_WEB_VERSION
)
_ONNXRUNTIME_NODE: Final = Package(
    "npm", "onnxruntime-node", ONNXRUNTIME_NODE, "1.20.0", tools.ONNXRUNTIME_NODE_VERSION
)

# ── The entries ─────────────────────────────────────────────────────────────────────────────────

#: Lets the provider of Qualcomm take the operator; qnn_op_affinity.json in runners/ has the same.
_QNN_PLACEMENT: Final = {"op_type": {"GroupQueryAttention": "htp"}}
_ORT_SCRIPT: Final = StandaloneProgram("onnxruntime.py", "onnxruntime==VERSION", shared_buffer=True)
_TRACT_SCRIPT: Final = StandaloneProgram(
    "tract.py", "tract-cli --version VERSION", options="-O --runtime cpu"
)
_WEB_SCRIPT: Final = StandaloneProgram(
    "onnxruntime_web.mjs",
    "onnxruntime-web@VERSION webgpu@DAWN",
    options="webgpu",
    shared_buffer=True,
)
_ORT_RUNNER: Final = "onnxruntime/runner.py"
_CPU_PROVIDER: Final = "CPUExecutionProvider"
_ADAPTER_NEEDS: Final = (
    "an adapter: a GPU with a Vulkan driver (Metal on macOS), or a software renderer: "
    f"lavapipe ({LAVAPIPE}), or SwiftShader, without float16 (apt-get install chromium libvulkan1)"
)
_WEB_NEEDS: Final = "Node.js 20 or later and the npm package onnxruntime-web (gqa setup webgpu)"


def _cuda(
    variant: str = "", kernel: str | None = None, sdpa_kernel: int = 0, **switches: str
) -> TargetEntry:
    """The entry of ONNX Runtime on CUDA: with its own choice of kernels, or with the named kernel.

    ``sdpa_kernel`` is the provider's option, with a bit for each kernel that it may choose. XQA has
    no bit; in variants it is off unless ``switches`` turn it on.
    """
    chosen = {"ORT_ENABLE_XQA": "0", **switches} if variant else switches
    options = {"sdpa_kernel": str(sdpa_kernel)} if sdpa_kernel else {}
    passed = (part for pair in options.items() for part in ("--provider-option", "=".join(pair)))
    return TargetEntry(
        name=f"cuda-{variant}" if variant else "cuda",
        runner=_ORT_RUNNER,
        arguments=("--ep", "cuda", *passed),
        options=(ORT_PYTHON, DEVICE),
        environment={**dict.fromkeys(_CUDA_SWITCHES, ""), **chosen, **_REPORT_KERNELS},
        execution_provider="CUDAExecutionProvider",
        target_class="gpu",
        needs="onnxruntime built with CUDA, 1.20 or later (gqa setup cuda); a driver and a GPU",
        python=_cuda_python,
        maps_device=True,
        package=ONNXRUNTIME_GPU,
        kernel_variant_of="cuda" if variant else None,
        kernel=kernel,
        script=replace(
            _ORT_SCRIPT,
            needs="'onnxruntime-gpu[cuda,cudnn]==VERSION'",
            environment={**chosen, **_REPORT_KERNELS},
            provider_options=options,
        ),
    )


_CPU: Final = TargetEntry(
    name="cpu",
    runner=_ORT_RUNNER,
    arguments=("--ep", "cpu"),
    options=(ORT_PYTHON,),
    # Set for all CPU targets, so that none depends on the user's environment.
    environment={NO_FLASH: "0"},
    execution_provider=_CPU_PROVIDER,
    target_class="cpu",
    needs="the Python package onnxruntime, 1.20 or later",
    extra="cpu",
    package=_ONNXRUNTIME,
    script=_ORT_SCRIPT,
)
_TRACT_CLI: Final = TargetEntry(  # with its optimiser
    name="tract",
    runner="tract/cli.py",
    options=(TRACT,),
    target_class="cpu",
    needs="the tract binary, 0.23 (gqa setup tract builds it)",
    package=_TRACT,
    script=_TRACT_SCRIPT,
)
_WEBGPU: Final = TargetEntry(  # ONNX Runtime's own WebGPU kernels
    name="webgpu",
    runner="onnxruntime_web/launch.py",
    arguments=("--ep", "webgpu"),
    options=(ONNXRUNTIME_WEB, ADAPTER, BROWSER),
    execution_provider="WebGpuExecutionProvider",
    target_class="gpu",
    needs=f"{_WEB_NEEDS}; {_ADAPTER_NEEDS}",
    package=_ONNXRUNTIME_WEB,
    script=_WEB_SCRIPT,
)

_NODE_SCRIPT: Final = StandaloneProgram(
    "onnxruntime_web.mjs",
    "--ignore-scripts onnxruntime-node@VERSION",
    options="node",
    shared_buffer=True,
)
_NODE: Final = TargetEntry(
    name="node",
    runner="onnxruntime_web/launch.py",
    arguments=("--ep", "node"),
    options=(ONNXRUNTIME_NODE,),
    environment={NO_FLASH: "0"},
    execution_provider=_CPU_PROVIDER,
    target_class="cpu",
    needs="Node.js 20 or later and the npm package onnxruntime-node (gqa setup node)",
    kernel_variant_of="cpu",
    package=_ONNXRUNTIME_NODE,
    script=_NODE_SCRIPT,
)

TARGETS: tuple[TargetEntry, ...] = (
    _CPU,
    replace(
        _CPU,
        name="cpu-noflash",
        environment={NO_FLASH: "1"},
        kernel_variant_of="cpu",
        script=replace(_ORT_SCRIPT, environment={NO_FLASH: "1"}),
    ),
    replace(  # work that is split among threads
        _CPU,
        name="cpu-threads",
        arguments=("--ep", "cpu", "--threads", str(THREADS)),
        kernel_variant_of="cpu",
        script=replace(_ORT_SCRIPT, threads=THREADS),
    ),
    _cuda(),
    _cuda("flash", "flash", 1),
    _cuda("flash-nodecode", "flash", 1, ORT_DISABLE_FLASH_DECODE="1"),
    _cuda("efficient", "efficient", 2),
    _cuda("cudnn", "cudnn", 8),
    _cuda("math", "math", 16),
    _cuda("xqa", "xqa", ORT_ENABLE_XQA="1"),
    _TRACT_CLI,
    replace(  # the graph as tract reads it
        _TRACT_CLI,
        name="tract-plain",
        arguments=("--plain",),
        kernel_variant_of="tract",
        script=replace(_TRACT_SCRIPT, options="--runtime unoptimized"),
    ),
    TargetEntry(
        name="tract-wheel",
        runner="tract/wheel.py",
        options=(TRACT_PYTHON,),
        target_class="cpu",
        needs="the Python package tract, 0.23 or later",
        extra="tract",
        package=_TRACT_PACKAGE,
        kernel_variant_of="tract",
        script=StandaloneProgram("tract_wheel.py", "tract==VERSION"),
    ),
    TargetEntry(  # with the number of threads that it chooses
        name="openvino",
        runner="openvino/openvino_runner.py",
        options=(OPENVINO_PYTHON,),
        target_class="cpu",
        needs="the Python package openvino, 2026.0 or later",
        extra="openvino",
        package=_OPENVINO,
        script=StandaloneProgram("openvino.py", "openvino==VERSION", threads=0),
    ),
    TargetEntry(  # the simulator of Qualcomm's NPU
        name="qnn",
        runner=_ORT_RUNNER,
        arguments=(
            "--plugin",
            "onnxruntime_qnn",
            "--provider-option",
            "backend_type=htp",
            "--provider-option",
            f"op_affinity={data_path('runners') / 'onnxruntime' / 'qnn_op_affinity.json'}",
        ),
        options=(ORT_PYTHON,),
        target_class="npu",
        needs="the Python packages onnxruntime and onnxruntime-qnn, 2.7 or later",
        extra="qnn",
        package=_QNN,
        static_shapes=True,
        script=replace(
            _ORT_SCRIPT,
            needs="onnx onnxruntime==VERSION onnxruntime-qnn==PLUGIN",
            provider_options={
                "backend_type": "htp",
                "op_affinity": _QNN_PLACEMENT,
            },
            plugin="onnxruntime_qnn",
            static_shapes=True,
        ),
    ),
    _WEBGPU,
    replace(  # the older WebGPU kernels, in JavaScript
        _WEBGPU,
        name="webgpu-jsep",
        arguments=("--ep", "webgpu-jsep"),
        execution_provider="JsExecutionProvider",
        script=replace(_WEB_SCRIPT, options="all"),
    ),
    replace(  # the CPU kernels, compiled to WebAssembly
        _WEBGPU,
        name="wasm",
        arguments=("--ep", "wasm"),
        options=(ONNXRUNTIME_WEB, BROWSER),
        execution_provider=_CPU_PROVIDER,
        target_class="cpu",
        needs=_WEB_NEEDS,
        kernel_variant_of="cpu",
        script=StandaloneProgram("onnxruntime_web.mjs", "onnxruntime-web@VERSION", options="wasm"),
    ),
    _NODE,
    replace(  # the kernels of webgpu, compiled for the processor, on a Dawn of their own
        _NODE,
        name="node-webgpu",
        arguments=("--ep", "node-webgpu"),
        options=(ONNXRUNTIME_NODE, ADAPTER),
        execution_provider=_WEBGPU.execution_provider,
        target_class="gpu",
        needs=f"{_NODE.needs}; {_ADAPTER_NEEDS}",
        kernel_variant_of="webgpu",
        script=_NODE_SCRIPT,
    ),
)


#: Any execution provider of ONNX Runtime.
_ANY_PROVIDER: Final = TargetEntry(
    name=f"{PLUGIN}WORD",
    runner=_ORT_RUNNER,
    options=(ORT_PYTHON, DEVICE, PROVIDER_OPTION),
    target_class="gpu",
    needs="the Python package onnxruntime, 1.23 or later, and the plugin",
    maps_device=True,
)


def entry_of(name: str) -> TargetEntry | None:
    """The entry with this name, which may have a release (``cpu@1.25.1``).

    None for ``exec:`` and for unknown names.
    """
    if name.startswith(PLUGIN):
        return _plugin(name)
    name, _ = split_release(name)
    return next((entry for entry in TARGETS if entry.name == name), None)


def script_of(name: str) -> StandaloneProgram | None:
    """The stand-alone program for results of the target with this name.

    None if it has none, and for unknown names, which old results files can have.
    """
    if name.startswith(EXEC):
        return StandaloneProgram("exec.py", "", shared_buffer=True)
    entry = entry_of(name)
    return entry.script if entry else None


def _plugin(name: str) -> TargetEntry:
    word = name.removeprefix(PLUGIN)
    if os.sep in word or word.endswith((".so", ".dylib", ".dll")):
        word = os.path.abspath(os.path.expanduser(word))
    built_in = word if word.endswith("ExecutionProvider") else None
    package = "onnxruntime" if built_in is None else f"onnxruntime-{device_word(word)}"
    is_module = built_in is None and re.fullmatch(r"\w+", word, re.ASCII)
    plugin = f" {word}==PLUGIN" if is_module else ""
    return replace(
        _ANY_PROVIDER,
        name=name,
        arguments=("--plugin", word),
        execution_provider=built_in,
        script=replace(
            _ORT_SCRIPT,
            needs=f"{package}==VERSION{plugin}",
            plugin="" if built_in else word,
        ),
    )


def device_word(provider: str) -> str:
    """The device of an execution provider: ``webgpu`` for WebGpuExecutionProvider."""
    return provider.removesuffix("ExecutionProvider").lower()


def target_names() -> tuple[str, ...]:
    """Everything that ``--ep`` takes, for help texts and messages."""
    names = (entry.name for entry in TARGETS)
    return (*names, f"{EXEC}PATH", _ANY_PROVIDER.name, f"{STANDARD}TARGET")


def target_options() -> tuple[TargetOption, ...]:
    """The options of all targets, each once."""
    every = (*TARGETS, _ANY_PROVIDER)
    return tuple(dict.fromkeys(option for entry in every for option in entry.options))


def takers_of(option: TargetOption) -> list[str]:
    """The names of the targets that take an option, as `target_names` has them."""
    return [entry.name for entry in (*TARGETS, _ANY_PROVIDER) if option in entry.options]


def run_options() -> tuple[TargetOption, ...]:
    """The options of `gqa run` and of pytest that choose programs and names of targets."""
    return (*target_options(), NAME)


class OptionValues:
    """The values that a user gave to the options of `run_options`, by the name of the option."""

    def __init__(self, **values: str | Sequence[str] | None) -> None:
        """Raise :class:`TypeError` for a name that no option has."""
        unknown = values.keys() - {option.name for option in run_options()}
        if unknown:
            raise TypeError(f"no target has an option {', '.join(sorted(unknown))}")
        self._values = values

    def values_of(self, option: TargetOption) -> tuple[str, ...]:
        """The values of an option in the order of the command line, each once."""
        values = self._values.get(option.name)
        if values is None:
            return ()
        return (values,) if isinstance(values, str) else tuple(dict.fromkeys(values))
