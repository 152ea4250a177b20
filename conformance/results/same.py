"""Whether results files are parts of one run: of one suite, one corpus and the same targets."""

from __future__ import annotations

from typing import Any, Final

from conformance.results.records import Header, TargetRecord

#: Of a target's description, what may differ between two machines on which it is the same target.
OF_THE_MACHINE: Final = ("device", "platform")


def headers_differ(one: Header, other: Header) -> str | None:
    """Half a sentence about suite or corpus, where they differ: "the suite is …, not …"."""
    for what, mine, theirs in (
        ("suite", one.suite, other.suite),
        ("corpus", one.corpus, other.corpus),
    ):
        if mine != theirs:
            return f"the {what} is {theirs}, not {mine}"
    return None


def targets_differ(one: TargetRecord, other: TargetRecord) -> str | None:
    """Half a sentence about two targets of one name that are not the same; None if they are."""
    mine, theirs = _compared(one), _compared(other)
    for name in mine | theirs:
        if mine.get(name) != theirs.get(name):
            return f"its {name} is {theirs.get(name)!r}, not {mine.get(name)!r}"
    return None


def _compared(target: TargetRecord) -> dict[str, Any]:
    found = target.model_dump(mode="json", exclude={"name", "describe"})
    if target.describe is not None:
        described = target.describe.model_dump(mode="json")
        versions = {f"version of {k}": v for k, v in described.pop("versions").items()}
        found |= described | versions
    left_out = {*OF_THE_MACHINE, *(f"version of {name}" for name in OF_THE_MACHINE)}
    return {name: value for name, value in found.items() if name not in left_out}
