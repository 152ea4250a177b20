"""The correct kernel, which also finds the mutants that could differ from it.

A mutant replaces a step. If the correct kernel never reaches that step, or if the replacement
always returns the same as the step for the same arguments, then the mutant equals the correct
kernel and need not be run. Mutation testing calls this weak mutation. It is conservative: a mutant
that cannot be compared in this way is listed as one that could differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from kernel import Call, Kernel, Refused
from registry import MUTANTS, Mutant

#: Areas whose mutants keep state or affect the process; they are always run.
NOT_TOLD = ("memory", "process")
#: Steps that write to their arguments. The arguments of all others are shared, not copied: a copy
#: of a long cache for each mutant takes longer than the mutant.
WRITING = ("put", "show", "bind")


def probe() -> type[Kernel]:
    """The correct kernel; its ``touched`` names the mutants that could differ from it so far."""
    by_step: dict[str, list[Mutant]] = {}
    for mutant in MUTANTS.values():
        for step in vars(mutant.kernel):
            if callable(getattr(Kernel, step, None)) and not step.startswith("__"):
                by_step.setdefault(step, []).append(mutant)
    steps = {step: _probed(step, mutants) for step, mutants in by_step.items()}
    kernel = type("Probe", (Kernel,), {**steps, "probing": False})
    return kernel


def _told(mutant: Mutant, step: str) -> bool:
    """Whether comparing one step is enough to show that the mutant equals the kernel."""
    own = [name for name in vars(mutant.kernel) if callable(getattr(Kernel, name, None))]
    steps = [name for name in own if not name.startswith("__")]
    return steps == [step] and mutant.area not in NOT_TOLD


def _probed(step: str, mutants: list[Mutant]) -> Callable[..., Any]:
    right = getattr(Kernel, step)
    told = [mutant for mutant in mutants if _told(mutant, step)]
    run_anyway = {mutant.name for mutant in mutants} - {mutant.name for mutant in told}

    def probed(kernel: Any, *arguments: Any) -> Any:
        if kernel.probing:
            return right(kernel, *arguments)
        touched = kernel.memory.setdefault("touched", set())
        touched |= run_anyway
        waiting = [mutant for mutant in told if mutant.name not in touched]
        before = copied(arguments) if step in WRITING else None
        with _kept(arguments if before is None else before):
            try:
                made = right(kernel, *arguments)
            except Refused:
                touched |= {mutant.name for mutant in waiting}
                raise
            kernel.probing = True
            try:
                for mutant in waiting:
                    own = shared(arguments) if before is None else copied(before)
                    if _differs(vars(mutant.kernel)[step], kernel, own, arguments, made):
                        touched.add(mutant.name)
            finally:
                kernel.probing = False
        return made

    return probed


def shared(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arrays, in calls and lists that can be written to safely."""
    return tuple(copy.copy(one) if isinstance(one, Call | list) else one for one in arguments)


@contextmanager
def _kept(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Within this context, writing to an array among ``arguments``, or in a list, is an error."""
    given = [one for some in arguments for one in (some if isinstance(some, list) else [some])]
    arrays = [one for one in given if isinstance(one, np.ndarray) and one.flags.writeable]
    try:
        for array in arrays:
            array.flags.writeable = False
        yield
    finally:
        for array in arrays:
            array.flags.writeable = True


def copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of arguments, safe to write to."""
    return tuple(
        copy.copy(one) if isinstance(one, Call) else copy.deepcopy(one) for one in arguments
    )


def _differs(
    replacement: Callable[..., Any],
    kernel: Any,
    own: tuple[Any, ...],
    arguments: tuple[Any, ...],
    made: Any,
) -> bool:
    """Whether the replacement, on copies of the arguments, differs from the correct step."""
    try:
        other = replacement(kernel, *own)
    except Exception:
        return True
    return not (same(made, other) and all(map(same, arguments, own)))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit."""
    if isinstance(one, Call) and isinstance(other, Call):
        return all(same(value, vars(other)[name]) for name, value in vars(one).items())
    if one is other:
        return True
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)
