"""The table of verdicts, which all reports, filters, schemas and documents follow.

To add a verdict, follow the recipe "A verdict" in ``CONTRIBUTING.md``.
``tests/results/test_verdict_table.py`` compares everything that shows verdicts with the table, and
names the file to edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from conformance.base.findings import on_software_only
from conformance.results.wrong_outputs import only_presents, where_wrong

if TYPE_CHECKING:
    from conformance.results.records import FlakyRecord, ResultRecord

#: The verdicts that an expectation can name: all but `skip`.
ExpectedVerdict = Literal[
    "crash", "timeout", "wrong", "accepted", "fallback", "unsupported", "pass"
]
Verdict = Literal[ExpectedVerdict, "skip"]
#: What a symbol and colours stand for: a verdict, or a wrong result that only a software GPU has.
Drawn = Literal[Verdict, "software"]

_ANY_CONTRACT: Final = ("computes", "rejects", "either")


@dataclass(frozen=True)
class VerdictRow:
    """The properties of a verdict."""

    name: Verdict
    sentence: str
    """When a result has this verdict: half a sentence of plain text."""
    group: str
    """What the caller of the runtime sees; neighbouring verdicts can share it."""
    deed: str
    """What the runtime does: a verb and its object, for the title of a bug report."""
    sign: str
    """Its character in the terminal."""
    style: str
    """Its style in the terminal, as rich writes it."""
    red: Literal["always", "specified", "never"] = "always"
    """When an unexpected result is red; ``specified``: if the basis of the contract is that."""
    demands: tuple[str, ...] = _ANY_CONTRACT
    """The demands of contracts under which the verdict can occur."""

    def red_under(self, basis: str) -> bool:
        """Whether an unexpected result is red where the contract has this basis."""
        return self.red in ("always", basis)


#: Every verdict, worst first.
TABLE: Final[Mapping[Verdict, VerdictRow]] = {
    row.name: row
    for row in (
        VerdictRow(
            "crash",
            "the process died (of a signal, an abort or a panic), or its device failed (an illegal "
            "access on a GPU), and again when the case was run alone; or the next case dies "
            "whenever it is run after this one",
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
            "it ran a call that must be refused; harmless if the values are nevertheless correct, "
            "a silent failure if they are wrong",
            group="result, no error",
            deed="accepts a call that it must refuse",
            sign="!",
            style="red",
            demands=("rejects",),
        ),
        VerdictRow(
            "fallback",
            "it ran on another execution provider than the requested one; never red for a kernel "
            "variant that ran another kernel than its name says",
            group="result, no error",
            deed="runs on another execution provider",
            sign="↷",
            style="yellow",
        ),
        VerdictRow(
            "unsupported",
            "it refused, with an error, a call that must compute; red only where the contract is "
            "specified",
            group="refused",
            deed="refuses a call that it must compute",
            sign="○",
            style="yellow",
            red="specified",
            demands=("computes",),
        ),
        VerdictRow(
            "pass",
            "as the contract demands; a refusal whose message names none of the contract's words "
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
"""All verdicts, worst first."""


def verdict_word(verdict: str) -> str:
    """What people read for a verdict: ``refused`` for ``unsupported``, the key in files."""
    return "refused" if verdict == "unsupported" else verdict


def without_zeros(
    counts: Mapping[str, Mapping[Verdict, int]],
) -> dict[str, dict[Verdict, int]]:
    """The numbers of results by target and verdict, worst verdict first, without zeros."""
    return {
        name: {verdict: numbers[verdict] for verdict in VERDICTS if numbers.get(verdict)}
        for name, numbers in counts.items()
    }


@dataclass(frozen=True)
class Acceptance:
    """A kind of `accepted`: with correct values, or with wrong ones."""

    ranks_as: Verdict
    """The verdict that gives such a result its severity and colour."""
    red: bool
    note: str
    """The note that reports show beside the verdict."""


#: The kinds of `accepted` by `values_right`. If the values could not be compared, it has no kind.
ACCEPTANCES: Final[Mapping[bool, Acceptance]] = {
    True: Acceptance("unsupported", red=False, note="correct values"),
    False: Acceptance("wrong", red=True, note="wrong values"),
}


def acceptance_of(result: ResultRecord) -> Acceptance | None:
    """The kind of an `accepted` result; None for others, and if values were not compared."""
    if result.verdict != "accepted" or result.values_right is None:
        return None
    return ACCEPTANCES[result.values_right]


def ranks_as(result: ResultRecord) -> Verdict:
    """The verdict that gives a result its severity and colour; `skip` if the call was not tried."""
    acceptance = acceptance_of(result)
    if acceptance is not None:
        return acceptance.ranks_as
    return result.verdict if was_tried(result) else "skip"


def severity(result: ResultRecord) -> int:
    """The place of a result in the order of severity; 0 is worst.

    Of results with the same rank, one whose presents alone are wrong is less severe, and one that
    only a software GPU is known to have is the least severe.
    """
    less = 2 if is_of_software(result) else only_presents(result)
    return 3 * VERDICTS.index(ranks_as(result)) + less


def worst(results: Iterable[ResultRecord]) -> ResultRecord:
    """The first of the worst results. Raises :class:`ValueError` if there are none."""
    several = [*results]
    return several[0] if len(several) == 1 else min(several, key=severity)


def is_red(result: ResultRecord, basis: str) -> bool:
    """Whether the result makes a run fail if it is unexpected; ``basis`` is its contract's."""
    acceptance = acceptance_of(result)
    if acceptance is not None:
        return acceptance.red
    if result.other_kernel:
        return False
    return TABLE[result.verdict].red_under(basis)


def was_tried(result: ResultRecord) -> bool:
    """Whether the call was tried on the runtime, or kernel, that the target stands for."""
    return result.verdict != "skip" and not result.other_kernel


def is_silent_failure(result: ResultRecord) -> bool:
    """Whether the call returned wrong results without an error.

    One of a defect that depends on the adapter says nothing about the runtime on a real GPU.
    """
    return ranks_as(result) == "wrong" and not is_of_software(result)


def is_of_software(result: ResultRecord) -> bool:
    """Whether a wrong result has a defect that is known on software adapters, and is of one."""
    known = result.known if ranks_as(result) == "wrong" else None
    return known is not None and on_software_only(known.link, result.target) is not None


#: Names the symbol, the colours and the part of the score of results with only presents wrong.
PRESENTS: Final = "presents"
#: The same of wrong results that only a software GPU is known to have.
SOFTWARE: Final = "software"

#: The character and the style of each verdict, and of `SOFTWARE`, in the terminal.
LOOKS: Final[Mapping[Drawn, tuple[str, str]]] = {
    **{name: (row.sign, row.style) for name, row in TABLE.items()},
    SOFTWARE: ("?", "cyan"),
}


def colour_of(result: ResultRecord) -> str:
    """The verdict whose colours a result has, `SOFTWARE` or `PRESENTS`."""
    if is_of_software(result):
        return SOFTWARE
    return PRESENTS if only_presents(result) else ranks_as(result)


def drawing_of(result: ResultRecord) -> str:
    """The verdict whose symbol a result has, `SOFTWARE` or `PRESENTS`."""
    if is_of_software(result):
        return SOFTWARE
    return PRESENTS if result.verdict == "wrong" and only_presents(result) else result.verdict


def flaky_text(flaky: FlakyRecord) -> str:
    """How often a flaky case fails: ``flaky, 3 of 10 runs``."""
    return f"flaky, {flaky.failed:,} of {flaky.runs:,} runs"


def note_of(result: ResultRecord) -> str:
    """The note that reports show beside the verdict; empty for most results.

    It says how often a flaky case fails, whether the values of an `accepted` result are correct,
    whether a `fallback` is only to another kernel, whether only a software GPU is known to be
    wrong, and which outputs are wrong if ``output`` is
    right.
    """
    acceptance = acceptance_of(result)
    where = where_wrong(result)
    notes = (
        flaky_text(result.flaky) if result.flaky else "",
        acceptance.note if acceptance else "",
        "another kernel" if result.other_kernel else "",
        "software GPU" if is_of_software(result) else "",
        where if where.startswith("only") else "",
    )
    return ", ".join(filter(None, notes))
