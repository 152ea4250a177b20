"""From a name that ``--ep`` takes, and the options of its target, to the command of its runner."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.base.explain import did_you_mean
from conformance.base.paths import data_path
from conformance.harness.process import Command
from conformance.oracle.tolerance import TargetClass
from conformance.targets import catalogue
from conformance.targets.catalogue import EXEC, Programs, TargetEntry, TargetError, target_names
from conformance.targets.tools import Program


@dataclass(frozen=True)
class Target:
    """A target with the command that starts its runner here.

    ``ep`` is the name as typed, and ``arguments`` are what a command line needs to name the same
    target. ``execution_provider`` is the one that a node must run on, None where the runner itself
    says (``exec:``). ``needs`` and ``kernel_variant_of`` are those of `TargetEntry`. ``program`` is
    the program that the runner starts, if it starts one.
    """

    ep: str
    arguments: tuple[str, ...]
    command: Command
    target_class: TargetClass
    execution_provider: str | None
    needs: str
    kernel_variant_of: str | None = None
    program: Program | None = None

    @property
    def label(self) -> str:
        """Its name in a run before its runner is started; no other target of the run has it."""
        return self.ep

    @property
    def expectations(self) -> tuple[Path, ...]:
        """Its expectations files; the first that has a line for a case decides.

        The file of a kernel variant holds only what differs from the target that it is a variant
        of. A target of ``exec:`` has none.
        """
        if self.ep.startswith(EXEC):
            return ()
        names = [name for name in (self.ep, self.kernel_variant_of) if name is not None]
        return tuple(data_path("expectations") / f"{name}.yaml" for name in names)


def target_for(ep: str, programs: Programs | None = None) -> Target:
    """The target that ``--ep`` names. Raises :class:`TargetError`."""
    if ep.startswith(EXEC):
        return _any_program(ep)
    entry = catalogue.entry_of(ep)
    if entry is None:
        names = [entry.name for entry in catalogue.TARGETS]
        raise TargetError(
            f"Unknown target '{ep}'; known: {', '.join(target_names())}"
            f"{did_you_mean(ep, names) or '.'}"
        )
    return _built_in(entry, programs or Programs())


def _any_program(ep: str) -> Target:
    path = ep.removeprefix(EXEC)
    if not path:
        raise TargetError("exec: needs the path of a runner, such as exec:./my-runner")
    command = Command(argv=(os.path.abspath(os.path.expanduser(path)),), name=ep)
    return Target(ep, ("--ep", ep), command, "gpu", None, "a program that speaks runners/README.md")


def _built_in(entry: TargetEntry, programs: Programs) -> Target:
    interpreter, program = sys.executable, None
    passed: list[str] = []
    again = ["--ep", entry.name]
    for option in entry.options:
        typed = programs.value_of(option)
        start = option.start(typed)
        interpreter = start.interpreter or interpreter
        program = start.program or program
        passed += start.arguments
        if typed:
            again += [option.flag, typed]
    runner = data_path("runners") / entry.runner
    return Target(
        ep=entry.name,
        arguments=tuple(again),
        command=Command(
            argv=(interpreter, str(runner), *entry.arguments, *passed),
            name=entry.name,
            env=entry.environment,
        ),
        target_class=entry.target_class,
        execution_provider=entry.execution_provider,
        needs=entry.needs,
        kernel_variant_of=entry.kernel_variant_of,
        program=program,
    )


def targets_for(eps: Sequence[str], programs: Programs | None = None) -> list[Target]:
    """The targets of several ``--ep``, each once. Raises :class:`TargetError`."""
    return [target_for(ep, programs) for ep in dict.fromkeys(eps)]


def built_in(programs: Programs | None = None) -> list[Target]:
    """Every target that has an entry."""
    return targets_for([entry.name for entry in catalogue.TARGETS], programs)
