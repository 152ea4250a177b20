"""The registry of mutants: the correct kernel with one step replaced, and the fault in a sentence.

A mutant is declared by the step that it replaces::

    @mutant(Kernel.window)
    def window_one_longer(kernel, call):
        \"\"\"A local window sees one token more than it should.\"\"\"
        return Kernel.window(kernel, call) + 1

The mutant's name is that of the function, its area that of the module, and its description the
docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kernel import Kernel

Step = Callable[..., Any]
#: How a mutant can be detected: by numbers, by behaviour (accepts, rejects, ends), by messages, by
#: hazards.
Kind = Literal["numbers", "behaviour", "message", "hazard"]


@dataclass(frozen=True)
class Mutant:
    """One fault. ``only`` is the reason if just one theme of the corpus can detect it."""

    name: str
    area: str
    what: str
    kind: Kind
    only: str
    kernel: type[Kernel]


MUTANTS: dict[str, Mutant] = {}


def mutant(*steps: Step, kind: Kind = "numbers", only: str = "") -> Callable[[Step], Step]:
    """Declares a mutant: the decorated function replaces these ``steps`` of `Kernel`.

    Without steps, it decorates a subclass of `Kernel` whose methods are the replacements.
    """

    def decorate(replacement: Step) -> Step:
        if steps:
            declare(replacement, kind, only, **{step.__name__: replacement for step in steps})
        else:
            _add(replacement, kind, only, replacement)
        return replacement

    return decorate


def declare(named: Step, kind: Kind = "numbers", only: str = "", **steps: Step) -> None:
    """Declares a mutant with the name and docstring of ``named`` that replaces ``steps``."""
    _add(named, kind, only, type(named.__name__, (Kernel,), steps))


def _add(named: Step, kind: Kind, only: str, kernel: Any) -> None:
    name, area = named.__name__, named.__module__.rpartition(".")[2]
    if name in MUTANTS:
        raise ValueError(f"two mutants are called {name}")
    MUTANTS[name] = Mutant(
        name,
        area,
        (named.__doc__ or "").strip(),
        kind,
        only,
        kernel,
    )
