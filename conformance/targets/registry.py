"""Turns values of ``--ep`` and the options of targets into targets with the commands of runners."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from conformance.base.explain import did_you_mean
from conformance.base.paths import data_path
from conformance.base.target_names import (
    EXEC,
    MAX_LENGTH,
    PLUGIN,
    STANDARD,
    at_release,
    is_by_path,
    is_name,
    numbered,
    split_release,
    without_number,
)
from conformance.harness.runner import Command, half_the_memory
from conformance.targets import catalogue
from conformance.targets.catalogue import (
    OptionValues,
    RunnerStart,
    TargetEntry,
    TargetError,
    TargetOption,
    target_names,
)
from conformance.targets.published import published
from conformance.targets.releases import releases
from conformance.targets.setup.programs import SetupError
from conformance.targets.tools import RuntimeProgram


@dataclass(frozen=True)
class Target:
    """A target with the command that starts its runner on this machine.

    - ``entry`` says what it is; of ``exec:``, only that it is any program. ``arguments`` name the
      same target on a command line.
    - ``program`` is the program that the runner starts, if any. ``python_by`` is the option that
      named the Python of the runner, if any.
    - ``named`` is the value of ``--name``; ``ending`` is a word of its name in results;
      ``number`` counts the targets of the same ``ep`` in a run, from 1.
    - ``release`` is the release to which it is pinned, as in ``cpu@1.25.1``; ``missing`` says why
      that could not be installed, first in a line that is a sentence.
    - ``in_standard_operators``: it gets models without the operator.
    """

    entry: TargetEntry
    arguments: tuple[str, ...]
    command: Command
    program: RuntimeProgram | None = None
    python_by: str | None = None
    named: str | None = None
    ending: str = ""
    number: int = 1
    release: str | None = None
    missing: SetupError | None = None
    in_standard_operators: bool = False

    @property
    def ep(self) -> str:
        """Its name without a release."""
        return self.entry.name

    @property
    def label(self) -> str:
        """Its name before its runner is started, unique in a run."""
        return self.named or numbered(self.typed, self.number)

    @property
    def typed(self) -> str:
        """The value of ``--ep`` for it: ``cpu``, or ``cpu@1.25.1`` with a pinned release."""
        return at_release(self.ep, self.release)

    @property
    def base(self) -> str | None:
        """The beginning of its name in results; None if its runner reports the name."""
        if self.named or is_by_path(self.ep):
            return self.named
        return "-".join(filter(None, (self.ep, self.ending)))

    @cached_property
    def reads_only_inputs(self) -> bool:
        """Whether its runner is part of this suite; such runners read no expected outputs."""
        runners = data_path("runners")
        return any(Path(word).is_relative_to(runners) for word in self.command.argv)

    def may_share_name(self, other: Target) -> bool:
        """Whether both targets may have the same name in results; their runners can decide that."""
        if self.release and other.release and self.release != other.release:
            return False
        if self.base is not None and other.base is not None:
            return self.base == other.base
        known = self.base or other.base
        return known is None or catalogue.entry_of(known) is None

    @property
    def expectations(self) -> tuple[Path, ...]:
        """Its expectations files; the first one with a line for a case applies.

        The file of a kernel variant has only the differences from that of the plain target.
        ``exec:`` and ``ort-plugin:`` have none. All targets in standard operators share one.
        """
        if is_by_path(self.ep):
            return ()
        if self.in_standard_operators:
            return (data_path("expectations") / f"{STANDARD.rstrip(':')}.yaml",)
        names = (self.ep, self.entry.kernel_variant_of)
        files = (data_path("expectations") / f"{name}.yaml" for name in names if name is not None)
        return tuple(dict.fromkeys(files))


def target_for(ep: str, programs: OptionValues | None = None) -> Target:
    """The target of this ``--ep``. Raises :class:`TargetError`, also if there are several."""
    targets = targets_for([ep], programs)
    if len(targets) > 1:
        again = " and ".join(shlex.join(target.arguments) for target in targets)
        raise TargetError(f"This command takes one target, not {len(targets)}: {again}.")
    return targets[0]


def targets_for(eps: Sequence[str], programs: OptionValues | None = None) -> list[Target]:
    """The targets of several ``--ep``, each once.

    If an option has several values, there is a target for each value. An ``@`` is followed by
    releases (`conformance.targets.releases`), each of which is a target; they need not be
    installed. Raises :class:`TargetError`.
    """
    programs = programs or OptionValues()
    _check_not_empty(programs)
    several = (target for ep in eps for target in _targets(ep, programs))
    made = list({target.label: target for target in several}.values())
    _check_taken(programs, made)
    names = programs.values_of(catalogue.NAME)
    if not names:
        return made
    if len(names) != len(made):
        raise TargetError(
            f"--name gives {len(names)} different names to {len(made)} targets; give one to each: "
            f"{', '.join(target.label for target in made)}."
        )
    return [_named(target, name) for target, name in zip(made, names, strict=True)]


def eps_of(labels: Sequence[str], programs: OptionValues) -> list[str]:
    """The values of ``--ep`` for targets with these labels; ``cpu`` for a ``--name``."""
    names = programs.values_of(catalogue.NAME)
    eps = ("cpu" if label in names else without_number(label) for label in labels)
    return list(dict.fromkeys(eps))


def built_in(programs: OptionValues | None = None) -> list[Target]:
    """All targets with an entry."""
    return targets_for([entry.name for entry in catalogue.TARGETS], programs)


def name_fault(name: str) -> str | None:
    """Why another target cannot have this name; None if it can."""
    if catalogue.entry_of(name) is not None:
        return f"{name} is the name of a target of this suite"
    return None


def _check_not_empty(programs: OptionValues) -> None:
    """Raise :class:`TargetError` for an empty value, which an unset shell variable gives."""
    for option in catalogue.run_options():
        if "" in programs.values_of(option):
            raise TargetError(f"{option.flag} '' is empty; it takes {option.metavar}.")


def _check_taken(programs: OptionValues, targets: Sequence[Target]) -> None:
    """Raise :class:`TargetError` for an option that no target takes, and for a key given twice."""
    keys = [pair.partition("=")[0] for pair in programs.values_of(catalogue.PROVIDER_OPTION)]
    if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise TargetError(
            f"{catalogue.PROVIDER_OPTION.flag} gives {twice[0]} several values, and a target takes "
            "one; run the command once for each."
        )
    taken = {option for target in targets for option in target.entry.options}
    for option in catalogue.target_options():
        if programs.values_of(option) and option not in taken:
            takers = catalogue.takers_of(option)
            labels = ", ".join(target.label for target in targets)
            raise TargetError(
                f"{option.flag} is for {', '.join(takers)}, and the targets are {labels}; "
                f"add --ep {takers[0]}."
            )


def _targets(ep: str, programs: OptionValues) -> list[Target]:
    if ep.startswith(STANDARD) and not is_by_path(ep.removeprefix(STANDARD)):
        return [in_standard_operators(of) for of in _targets(ep.removeprefix(STANDARD), programs)]
    if ep.startswith(EXEC):
        return [_any_program(ep)]
    if ep == PLUGIN:
        raise TargetError(
            f"{PLUGIN} needs a plugin's library or Python module, such as {PLUGIN}nxrt_ep_cpu"
        )
    name, word = split_release(ep)
    entry = catalogue.entry_of(name)
    if entry is None:
        names = target_names()
        raise TargetError(
            f"Unknown target '{name}'; known: {', '.join(names)}{did_you_mean(name, names) or '.'}"
        )
    if word is None:
        return _of_release(entry, None, programs)
    if entry.package is None:
        raise TargetError(f"{name} has no releases that this suite installs; leave out '@{word}'.")
    if programs.values_of(entry.package.option):
        raise TargetError(
            f"{ep} says which release is tested, and so does {entry.package.option.flag}; "
            "leave out one of them."
        )
    chosen = releases(word, entry.package, published)
    return [target for each in chosen for target in _of_release(entry, each, programs)]


#: A value of an option; None if it was not given.
OptionValue = tuple[TargetOption, str | None]


def _of_release(entry: TargetEntry, release: str | None, programs: OptionValues) -> list[Target]:
    """The targets of an entry and a release: one for each combination of values of options."""

    def values_of(option: TargetOption) -> list[tuple[OptionValue, ...]]:
        """The values of each target."""
        if release is not None and entry.package is not None and option is entry.package.option:
            return [((option, entry.package.value(release)),)]
        values = [(option, value) for value in programs.values_of(option) or (None,)]
        return [tuple(values)] if option.of_one_target else [(value,) for value in values]

    targets = itertools.product(*map(values_of, entry.options))
    return [
        _built_in(entry, [*itertools.chain.from_iterable(typed)], number, release)
        for number, typed in enumerate(targets, start=1)
    ]


def in_standard_operators(target: Target) -> Target:
    """The same target, which gets models without the operator; no provider has a say in it."""
    name = f"{STANDARD}{target.ep}"
    entry = replace(
        target.entry,
        name=name,
        execution_provider=None,
        kernel=None,
        kernel_variant_of=None,
        script=None,
    )
    _, was, *others = target.arguments
    return replace(
        target,
        entry=entry,
        arguments=("--ep", f"{STANDARD}{was}", *others),
        command=replace(target.command, name=f"{STANDARD}{target.label}"),
        in_standard_operators=True,
    )


def _any_program(ep: str) -> Target:
    path = ep.removeprefix(EXEC)
    if not path:
        raise TargetError("exec: needs the path of a runner, such as exec:./my-runner")
    command = Command(argv=(os.path.abspath(os.path.expanduser(path)),), name=ep)
    entry = TargetEntry(ep, path, "gpu", "a program that speaks runners/README.md")
    return Target(entry, ("--ep", ep), command)


def _built_in(
    entry: TargetEntry, typed: Sequence[OptionValue], number: int, release: str | None
) -> Target:
    pinned = entry.package.option if release and entry.package else None
    starts = [(option, option.start(value)) for option, value in typed]
    python_by = next((option for option, start in starts if start.interpreter), None)
    python = RunnerStart() if python_by else entry.python()
    every = (*(start for _, start in starts), python)
    again = [(option.flag, value) for option, value in typed if value and option != pinned]
    runner = data_path("runners") / entry.runner
    target = Target(
        entry,
        arguments=(
            "--ep",
            at_release(entry.name, release),
            *itertools.chain.from_iterable(again),
        ),
        command=Command(
            argv=(
                next(filter(None, (start.interpreter for start in every)), sys.executable),
                str(runner),
                *entry.arguments,
                *(word for start in every for word in start.arguments),
            ),
            name=entry.name,
            env={**entry.environment, **python.environment},
            memory_bytes=half_the_memory() if entry.maps_device else None,
        ),
        program=next(filter(None, (start.program for start in every)), None),
        ending=next(filter(None, (start.ending for start in every)), ""),
        python_by=python_by.flag if python_by and python_by != pinned else None,
        number=number,
        release=release,
    )
    return replace(target, command=replace(target.command, name=target.label))


def _named(target: Target, name: str) -> Target:
    """The target with this ``--name``. Raises :class:`TargetError`."""
    if not is_name(name):
        raise TargetError(
            f"--name '{name}' is not a name: it takes up to {MAX_LENGTH} lower-case letters, "
            "digits, dots, underscores and hyphens, and starts with a letter."
        )
    if name != target.ep and (fault := name_fault(name)):
        raise TargetError(f"--name '{name}' cannot be the name of {target.label}: {fault}.")
    return replace(
        target,
        named=name,
        arguments=(*target.arguments, catalogue.NAME.flag, name),
        command=replace(target.command, name=name),
    )
