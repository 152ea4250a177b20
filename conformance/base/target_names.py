"""The names of targets.

``--ep`` takes one of these (`split_release`, `is_by_path`):

======================  ===========================================================================
``cpu``                 a target of the catalogue
``cpu@1.31.1``          it with a release; `conformance.targets.releases` has what ``@`` takes
``exec:PATH``           a program that speaks the runner protocol
``ort-plugin:WORD``     an execution provider of ONNX Runtime, in a plugin or built in
``standard:cpu``        a target of the catalogue that gets its models in standard operators
======================  ===========================================================================

In a run, and in results, a target has one of these:

==========================  =======================================================================
``cpu@1.31.1#2``            before its runner starts: the second of several of one ``--ep``
                            (`numbered`, `without_number`)
``webgpu@1.30.0``           in results: its base and the version of its runtime (`split_version`)
``webgpu@1.30.0+lavapipe``  the same, if results may differ by adapter (`name_in_results`)
``cpu@1.31.1#2``            the same, for the second of several that describe themselves alike
``webgpu+lavapipe``         all its releases on an adapter (`on_adapter`, `split_adapter`)
==========================  =======================================================================

The base of a name is the value of ``--name``, if it was given; else the name in the catalogue; else
what the runner calls itself, which has the form of a `is_name`. A path is never split.
"""

from __future__ import annotations

import re
from typing import Final

#: The prefix of a target that is any program.
EXEC: Final = "exec:"

#: The prefix of a target that is an execution provider: the library of a plugin, the Python module
#: that has it, or the name of one that is built into the package.
PLUGIN: Final = "ort-plugin:"

#: The prefix of a target that gets each model without the operator, rewritten in standard ones.
STANDARD: Final = "standard:"

#: The names that a user and a runner can give to a target.
NAME: Final = r"^[a-z][a-z0-9._-]*$"
MAX_LENGTH: Final = 40


def is_by_path(ep: str) -> bool:
    """Whether ``ep`` names a program or a plugin, whose runner reports the name for results."""
    return ep.startswith((EXEC, PLUGIN))


def at_release(name: str, release: str | None) -> str:
    """``cpu@1.25.1``; the name itself without a release."""
    return name if release is None else f"{name}@{release}"


def split_release(ep: str) -> tuple[str, str | None]:
    """A value of ``--ep`` without its release, and what follows the ``@``; None if it has none."""
    name, at, release = (ep, "", "") if is_by_path(ep) else ep.partition("@")
    return name, release if at else None


def numbered(name: str, number: int) -> str:
    """The name of one of several targets that would have the same: ``cpu#2`` for the second."""
    return f"{name}#{number}" if number > 1 else name


def without_number(label: str) -> str:
    """The value of ``--ep`` in the name of a target that has not been started."""
    return label if is_by_path(label) else re.sub(r"#\d+\Z", "", label)


def on_adapter(name: str, adapter: str | None) -> str:
    """``webgpu+lavapipe``; the name itself without an adapter."""
    return f"{name}+{adapter}" if adapter else name


def split_adapter(name: str) -> tuple[str, str]:
    """The name of a target without its adapter, and the adapter; "" if it has none."""
    base, _, adapter = name.partition("+")
    return base, adapter


def name_in_results(base: str, version: str, adapter: str | None, number: int = 1) -> str:
    """``webgpu@1.30.0+lavapipe``, or ``cpu@1.31.1#2`` for the second with the same name."""
    return numbered(on_adapter(at_release(base, version), adapter), number)


def split_version(name: str) -> tuple[str, str]:
    """The base of a name in results, and the rest of it after the ``@``; "" if it has none."""
    base, _, version = name.rpartition("@")
    return (base, version) if base else (name, "")


def is_name(text: str) -> bool:
    """Whether a target can have this name: lower-case letters, digits, dots, underscores, hyphens.

    It starts with a letter.
    """
    return len(text) <= MAX_LENGTH and re.fullmatch(NAME, text) is not None


def as_name(text: str) -> str:
    """A text in the characters of names; it may not begin with a letter, or be empty."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:MAX_LENGTH]
