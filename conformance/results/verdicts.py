"""The verdicts: one table, which every view, filter, schema and document follows.

To add a verdict, follow the recipe "A verdict" in ``CONTRIBUTING.md``.
``tests/test_verdict_table.py`` checks everything that shows verdicts against the table, and names
the file to edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from conformance.results.wrong_outputs import only_presents, where_wrong

if TYPE_CHECKING:
    from conformance.results.records import FlakyRecord, ResultRecord

#: The verdicts that an expectation can name: what could not be run is never expected.
ExpectedVerdict = Literal[
    "crash", "timeout", "wrong", "accepted", "fallback", "unsupported", "pass"
]
Verdict = Literal[ExpectedVerdict, "skip"]

_ANY_CONTRACT: Final = ("computes", "rejects", "either")


@dataclass(frozen=True)
class VerdictRow:
    """What there is to know of one verdict."""

    name: Verdict
    sentence: str
    """When a result has this verdict: half a sentence, in plain text."""
    group: str
    """What the caller sees, which neighbouring verdicts have in common."""
    deed: str
    """What the runtime does, for the title of a bug report: a verb and its object."""
    sign: str
    """One character for the terminal."""
    style: str
    """Its style in the terminal, as rich writes it."""
    red: Literal["always", "specified", "never"] = "always"
    """Whether an unexpected result is red: ``specified`` is only where the contract's basis is."""
    demands: tuple[str, ...] = _ANY_CONTRACT
    """The demands of a contract under which it can occur."""

    def red_under(self, basis: str) -> bool:
        """Whether an unexpected result is red where the contract has this basis."""
        return self.red in ("always", basis)


#: Every verdict, worst first.
TABLE: Final[Mapping[Verdict, VerdictRow]] = {
    row.name: row
    for row in (
        VerdictRow(
            "crash",
            "the process died of a signal, an abort or a panic, or its device failed (an illegal "
            "access on a GPU), and again when the case was run alone; or it did so in the case "
            "after it, each time that those two were run",
            group="no result",
            deed="ends the process",
            sign="☠",
            style="bold magenta",
        ),
        VerdictRow(
            "timeout",
            "no answer within the case's time limit; the process was killed",
            group="no result",
            deed="does not return",
            sign="⧗",
            style="bold magenta",
        ),
        VerdictRow(
            "wrong",
            "it ran, but a defined element is beyond its error budget, or a shape, a dtype, a "
            "second run or a variant of the call differs",
            group="result, no error",
            deed="returns a wrong result",
            sign="✗",
            style="bold red",
            demands=("computes", "either"),
        ),
        VerdictRow(
            "accepted",
            "it ran a call that must be rejected; harmless if the values are nevertheless correct, "
            "a silent failure if they are wrong",
            group="result, no error",
            deed="accepts a call that it must reject",
            sign="!",
            style="red",
            demands=("rejects",),
        ),
        VerdictRow(
            "fallback",
            "it ran on another execution provider than the requested one; or, on a kernel variant, "
            "not with the kernel that its name says, which is never red",
            group="result, no error",
            deed="runs on another execution provider",
            sign="↷",
            style="yellow",
        ),
        VerdictRow(
            "unsupported",
            "it rejected, with an error, a call that must compute; red only where the contract is "
            "specified",
            group="rejected",
            deed="rejects a call that it must compute",
            sign="○",
            style="yellow",
            red="specified",
            demands=("computes",),
        ),
        VerdictRow(
            "pass",
            "as the contract demands; a rejection whose message names none of the contract's words "
            "is marked vague",
            group="correct",
            deed="behaves as required",
            sign="✓",
            style="green",
            red="never",
        ),
        VerdictRow(
            "skip",
            "it could not be run here; the reason is given",
            group="not tried",
            deed="was not run",
            sign="–",
            style="dim",
            red="never",
        ),
    )
}

VERDICTS: Final[tuple[Verdict, ...]] = tuple(TABLE)
"""Worst first."""


def without_zeros(
    counts: Mapping[str, Mapping[Verdict, int]],
) -> dict[str, dict[Verdict, int]]:
    """The numbers of results by target and verdict, in the order of the verdicts."""
    return {
        name: {verdict: found[verdict] for verdict in VERDICTS if found.get(verdict)}
        for name, found in counts.items()
    }


@dataclass(frozen=True)
class Acceptance:
    """One of the two kinds of `accepted` that are judged by their values."""

    name: Literal["harmless", "silent"]
    ranks_as: Verdict
    """The verdict whose place in the order, and whose colour, such a result has."""
    red: bool
    note: str
    """What a view writes beside the verdict."""


#: `accepted` by `values_right`. Where the values could not be compared, the row of `TABLE` stands.
ACCEPTANCES: Final[Mapping[bool, Acceptance]] = {
    True: Acceptance("harmless", "unsupported", red=False, note="correct values"),
    False: Acceptance("silent", "wrong", red=True, note="wrong values"),
}


def acceptance_of(result: ResultRecord) -> Acceptance | None:
    """Which kind of `accepted` a result is; None for any other, and where nobody can say."""
    if result.verdict != "accepted" or result.values_right is None:
        return None
    return ACCEPTANCES[result.values_right]


def ranks_as(result: ResultRecord) -> Verdict:
    """The verdict that a result is ordered and coloured by; what was not tried ranks as `skip`."""
    acceptance = acceptance_of(result)
    if acceptance is not None:
        return acceptance.ranks_as
    return result.verdict if was_tried(result) else "skip"


def severity(result: ResultRecord) -> int:
    """A result's place in the order of severity: 0 is worst.

    Of two that rank as one verdict, that whose presents alone are wrong comes second.
    """
    return 2 * VERDICTS.index(ranks_as(result)) + only_presents(result)


def worst(results: Iterable[ResultRecord]) -> ResultRecord:
    """The first of the worst results; ``ValueError`` if there are none."""
    return min(results, key=severity)


def is_red(result: ResultRecord, basis: str) -> bool:
    """Whether a result that nobody expects makes a run fail; ``basis`` is its contract's."""
    acceptance = acceptance_of(result)
    if acceptance is not None:
        return acceptance.red
    if result.other_kernel:
        return False
    return TABLE[result.verdict].red_under(basis)


def was_tried(result: ResultRecord) -> bool:
    """Whether the call was tried on what its target stands for: the runtime, or one kernel."""
    return result.verdict != "skip" and not result.other_kernel


def is_silent_failure(result: ResultRecord) -> bool:
    """Whether the results are wrong and there was no error."""
    return ranks_as(result) == "wrong"


#: The drawing, the colours and the part of the score of a result whose presents alone are wrong.
PRESENTS: Final = "presents"


def colour_of(result: ResultRecord) -> str:
    """Whose colours a result has: those of a verdict, or `PRESENTS`."""
    return PRESENTS if only_presents(result) else ranks_as(result)


def drawing_of(result: ResultRecord) -> str:
    """The drawing of a result: that of its verdict, or `PRESENTS`."""
    return PRESENTS if result.verdict == "wrong" and only_presents(result) else result.verdict


def flaky_text(flaky: FlakyRecord) -> str:
    """The rate of a flaky case in words: ``flaky, 3 of 10 runs``."""
    return f"flaky, {flaky.failed:,} of {flaky.runs:,} runs"


def note_of(result: ResultRecord) -> str:
    """What a view writes beside the verdict: how often a flaky case fails, of `accepted` whether
    the values are correct, of `fallback` whether only the kernel is another one, and where
    something other than the output is wrong, which it is. Empty for most results."""
    acceptance = acceptance_of(result)
    where = where_wrong(result)
    notes = (
        flaky_text(result.flaky) if result.flaky else "",
        acceptance.note if acceptance else "",
        "another kernel" if result.other_kernel else "",
        where if where.startswith("only") else "",
    )
    return ", ".join(filter(None, notes))
