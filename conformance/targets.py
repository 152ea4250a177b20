"""Target names → how their runners are started."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from conformance.paths import data_path
from conformance.runner_process import Command
from conformance.tolerance import TargetClass

EXEC: Final = "exec:"


class TargetError(ValueError):
    """The user asked for a target that there is not; the message names those that there are."""


@dataclass(frozen=True)
class Target:
    """What ``--ep`` names.

    ``ep`` is the name as typed, ``arguments`` what the command line needs to mean it again;
    ``execution_provider`` is the one that a node must run on, None where the runner itself says
    (``exec:``). ``needs`` tells ``gqa doctor`` what it takes. ``variant_of`` names the target that
    is the same runtime by its usual code path.
    """

    ep: str
    arguments: tuple[str, ...]
    command: Command
    target_class: TargetClass
    execution_provider: str | None
    needs: str
    variant_of: str | None = None

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

KNOWN: Final = (*_ONNX_RUNTIME, f"{EXEC}PATH")


def target_for(ep: str, ort_python: str | None = None) -> Target:
    """The target that ``--ep`` names.

    ``ort_python`` is the interpreter whose onnxruntime is meant; this one's by default.
    Raises :class:`TargetError`.
    """
    if ep.startswith(EXEC):
        path = ep.removeprefix(EXEC)
        if not path:
            raise TargetError("exec: wants the path of a runner, such as exec:./my-runner")
        program = os.path.abspath(os.path.expanduser(path))
        command = Command(argv=(program,), name=ep)
        return Target(
            ep, ("--ep", ep), command, "gpu", None, "a program that speaks runners/README.md"
        )
    known = _ONNX_RUNTIME.get(ep)
    if known is None:
        near = difflib.get_close_matches(ep, list(_ONNX_RUNTIME), n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise TargetError(f"Unknown target '{ep}'; known: {', '.join(KNOWN)}.{hint}")
    runner = data_path("runners") / "onnxruntime" / "runner.py"
    python = os.path.abspath(os.path.expanduser(ort_python)) if ort_python else sys.executable
    command = Command(argv=(python, str(runner), "--ep", known.runner_ep), name=ep, env=known.env)
    arguments = ("--ep", ep, *(("--ort-python", ort_python) if ort_python else ()))
    return Target(
        ep,
        arguments,
        command,
        known.target_class,
        known.execution_provider,
        known.needs,
        known.variant_of,
    )


def targets_for(eps: Sequence[str], ort_python: str | None = None) -> list[Target]:
    """The targets of several ``--ep``, each once. Raises :class:`TargetError`."""
    return [target_for(ep, ort_python) for ep in dict.fromkeys(eps)]


def built_in(ort_python: str | None = None) -> list[Target]:
    """Every target that needs no path."""
    return targets_for(list(_ONNX_RUNTIME), ort_python)
