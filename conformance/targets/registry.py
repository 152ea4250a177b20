"""Target names → how their runners are started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.base.paths import SHADERS, cache_root, data_path
from conformance.harness.process import Command
from conformance.oracle.tolerance import TargetClass
from conformance.targets.tools import Program, as_typed, find_onnxruntime_web, find_tract

EXEC: Final = "exec:"


class TargetError(ValueError):
    """The user asked for a target that there is not; the message names those that there are."""


@dataclass(frozen=True)
class Programs:
    """What a person named on the command line instead of what is found without a word.

    ``ort_python`` and ``tract_python`` are interpreters, this one by default; ``tract`` is the
    binary (`conformance.targets.tools.find_tract`); ``onnxruntime_web`` is a folder or a release
    (`conformance.targets.tools.find_onnxruntime_web`), and ``adapter`` the GPU that it
    computes on, or what plays one: a word of `ADAPTERS`, or a Vulkan driver's file.
    """

    ort_python: str | None = None
    tract: str | None = None
    tract_python: str | None = None
    onnxruntime_web: str | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class Target:
    """What ``--ep`` names.

    ``ep`` is the name as typed, ``arguments`` what the command line needs to mean it again;
    ``execution_provider`` is the one that a node must run on, None where the runner itself says
    (``exec:``). ``needs`` tells ``gqa doctor`` what it takes. ``variant_of`` names the target that
    is the same runtime by its usual code path. ``program`` is the program that the runner starts,
    and how it was found, where there is such a one.
    """

    ep: str
    arguments: tuple[str, ...]
    command: Command
    target_class: TargetClass
    execution_provider: str | None
    needs: str
    variant_of: str | None = None
    program: Program | None = None

    @property
    def expectations(self) -> tuple[Path, ...]:
        """Its expectations files, the one that has the first word first.

        A variant's own file holds only what it does otherwise than the target that it is a
        variant of. A stranger's runner has none.
        """
        if self.ep.startswith(EXEC):
            return ()
        names = [name for name in (self.ep, self.variant_of) if name is not None]
        return tuple(data_path("expectations") / f"{name}.yaml" for name in names)


@dataclass(frozen=True)
class _OnnxRuntime:
    """A target of ONNX Runtime; ``runner_ep`` is what its runner calls the execution provider."""

    runner_ep: str
    execution_provider: str
    target_class: TargetClass
    needs: str
    env: Mapping[str, str] = field(default_factory=dict)
    variant_of: str | None = None


#: Turns off the tiled and the decode kernels that the CPU has since 1.28
#: (microsoft/onnxruntime#28962, #29216); every call then takes the older code path.
NO_FLASH: Final = "ORT_GQA_DISABLE_FLASH_ATTENTION"

_CPU_NEEDS: Final = "the Python package onnxruntime, 1.20 or later"
_CPU: Final = "CPUExecutionProvider"
_ONNX_RUNTIME: Final = {
    # The switch is set both ways, so that neither target depends on the user's environment.
    "cpu": _OnnxRuntime("cpu", _CPU, "cpu", _CPU_NEEDS, {NO_FLASH: "0"}),
    "cpu-noflash": _OnnxRuntime("cpu", _CPU, "cpu", _CPU_NEEDS, {NO_FLASH: "1"}, "cpu"),
    "cuda": _OnnxRuntime(
        "cuda",
        "CUDAExecutionProvider",
        "gpu",
        "the Python package onnxruntime-gpu, 1.20 or later, CUDA, cuDNN, a driver and a GPU",
    ),
}

_TRACT_NEEDS: Final = "the tract binary, 0.23 (gqa setup tract builds it)"
#: The optimised graph, and the graph as it was read.
_TRACT: Final = {"tract": (), "tract-plain": ("--plain",)}
_WHEEL: Final = "tract-wheel"


@dataclass(frozen=True)
class _Web:
    """A target of onnxruntime-web."""

    execution_provider: str
    target_class: TargetClass
    needs: str
    variant_of: str | None = None

    @property
    def wants_adapter(self) -> bool:
        """Whether it computes on a GPU, or on what plays one."""
        return self.target_class == "gpu"


_WEB_NEEDS: Final = "Node.js 20 or later and the npm package onnxruntime-web (gqa setup webgpu)"
_ADAPTER_NEEDS: Final = (
    f"{_WEB_NEEDS}; a GPU with a Vulkan driver (Metal on macOS), or SwiftShader or lavapipe"
)
#: Three implementations of the kernels: onnxruntime's own for WebGPU, the older one in JavaScript,
#: and that of the CPU, compiled to WebAssembly.
_WEB: Final = {
    "webgpu": _Web("WebGpuExecutionProvider", "gpu", _ADAPTER_NEEDS),
    "webgpu-jsep": _Web("JsExecutionProvider", "gpu", _ADAPTER_NEEDS),
    "wasm": _Web(_CPU, "cpu", _WEB_NEEDS, "cpu"),
}

#: What ``--adapter`` takes beside a path: two that compute on the CPU, and the machine's own.
ADAPTERS: Final = ("swiftshader", "lavapipe", "gpu")

_BUILT_IN: Final = (*_ONNX_RUNTIME, *_TRACT, _WHEEL, *_WEB)
KNOWN: Final = (*_BUILT_IN, f"{EXEC}PATH")


def target_for(ep: str, programs: Programs | None = None) -> Target:
    """The target that ``--ep`` names. Raises :class:`TargetError`."""
    programs = programs or Programs()
    if ep.startswith(EXEC):
        path = ep.removeprefix(EXEC)
        if not path:
            raise TargetError("exec: wants the path of a runner, such as exec:./my-runner")
        command = Command(argv=(os.path.abspath(os.path.expanduser(path)),), name=ep)
        return Target(
            ep, ("--ep", ep), command, "gpu", None, "a program that speaks runners/README.md"
        )
    if ep in _ONNX_RUNTIME:
        return _onnx_runtime(ep, programs.ort_python)
    if ep in _TRACT:
        return _tract(ep, programs.tract)
    if ep == _WHEEL:
        return _tract_wheel(programs.tract_python)
    if ep in _WEB:
        return _web(ep, programs.onnxruntime_web, programs.adapter)
    raise TargetError(
        f"Unknown target '{ep}'; known: {', '.join(KNOWN)}{did_you_mean(ep, _BUILT_IN) or '.'}"
    )


def _onnx_runtime(ep: str, python: str | None) -> Target:
    known = _ONNX_RUNTIME[ep]
    runner = data_path("runners") / "onnxruntime" / "runner.py"
    argv = (_interpreter(python), str(runner), "--ep", known.runner_ep)
    return Target(
        ep,
        _arguments(ep, ("--ort-python", python)),
        Command(argv=argv, name=ep, env=known.env),
        known.target_class,
        known.execution_provider,
        known.needs,
        known.variant_of,
    )


def _tract(ep: str, named: str | None) -> Target:
    program = find_tract(named)
    runner = data_path("runners") / "tract" / "cli.py"
    binary = ("--tract", str(program.path)) if program else ()
    if program and program.named:
        binary = (*binary, "--named")
    return Target(
        ep,
        _arguments(ep, ("--tract", named)),
        Command(argv=(sys.executable, str(runner), *binary, *_TRACT[ep]), name=ep),
        "cpu",
        None,
        _TRACT_NEEDS,
        None if ep == "tract" else "tract",
        program,
    )


def _tract_wheel(python: str | None) -> Target:
    runner = data_path("runners") / "tract" / "wheel.py"
    return Target(
        _WHEEL,
        _arguments(_WHEEL, ("--tract-python", python)),
        Command(argv=(_interpreter(python), str(runner)), name=_WHEEL),
        "cpu",
        None,
        "the Python package tract, 0.23 or later",
        "tract",
    )


def _web(ep: str, named: str | None, adapter: str | None) -> Target:
    known = _WEB[ep]
    program = find_onnxruntime_web(named)
    argv = [sys.executable, str(data_path("runners") / "onnxruntime_web" / "launch.py"), "--ep", ep]
    if program is not None:
        argv += ["--modules", str(program.path)]
        if program.release is not None:
            argv += ["--release", program.release]
        elif program.named:
            argv += ["--named"]
    options = [("--onnxruntime-web", named)]
    if adapter and known.wants_adapter:
        argv += ["--adapter", _adapter(adapter)]
        options += [("--adapter", adapter)]
    if known.wants_adapter:
        argv += ["--shaders", str(cache_root() / SHADERS)]
    return Target(
        ep,
        _arguments(ep, *options),
        Command(argv=tuple(argv), name=ep),
        known.target_class,
        known.execution_provider,
        known.needs,
        known.variant_of,
        program,
    )


def _adapter(typed: str) -> str:
    """What ``--adapter`` names: its word, or its absolute path. Raises :class:`TargetError`."""
    if typed in ADAPTERS:
        return typed
    path = os.path.abspath(os.path.expanduser(typed))
    if not typed.endswith(".json"):
        raise TargetError(
            f"Unknown adapter '{typed}'; wanted {', '.join(ADAPTERS)} or the path of a Vulkan "
            f"driver's .json file{did_you_mean(typed, ADAPTERS) or '.'}"
        )
    if not os.path.isfile(path):
        raise TargetError(f"There is no Vulkan driver's file {path}, which --adapter names.")
    return path


def _interpreter(named: str | None) -> str:
    return str(as_typed(named)) if named else sys.executable


def _arguments(ep: str, *options: tuple[str, str | None]) -> tuple[str, ...]:
    """What the command line needs to mean the target again."""
    return ("--ep", ep, *(word for name, named in options if named for word in (name, named)))


def targets_for(eps: Sequence[str], programs: Programs | None = None) -> list[Target]:
    """The targets of several ``--ep``, each once. Raises :class:`TargetError`."""
    return [target_for(ep, programs) for ep in dict.fromkeys(eps)]


def built_in(programs: Programs | None = None) -> list[Target]:
    """Every target that needs no path."""
    return targets_for(_BUILT_IN, programs)
