"""``gqa fuzz``: draws calls, runs them, and writes each new fault down once, made small."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from conformance import __version__
from conformance.base.text import one_line, printable, safe_name
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.load import load_file
from conformance.cli import options
from conformance.cli.campaigns import counts, summary
from conformance.cli.common import BadArgument, Status, write_cases, write_file
from conformance.cli.options import TargetOptions, gathered
from conformance.diagnosis.smallest import case_text
from conformance.fuzz.campaign import Campaign
from conformance.fuzz.drawing import Donors, Drawing
from conformance.fuzz.state import FILE, STATE, CampaignState, read_state
from conformance.fuzz.target_faults import NewFault
from conformance.harness.folders import temporary_folder
from conformance.model.calls.entries import theme_of
from conformance.model.calls.stages import Lengths
from conformance.model.calls.subject import subject_of
from conformance.report.repro.reproduction import program_of
from conformance.results.descriptions import case_record
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.verdicts import verdict_word
from conformance.run.recording import corpus_digest
from conformance.run.target import Plan, target_plans
from conformance.run.worker import usual_jobs
from conformance.targets.registry import targets_for

#: The calls of a campaign, unless their number or its seconds are given.
CALLS: Final = 10_000


@dataclass(frozen=True)
class FuzzOptions:
    """What is drawn, how long, and where the faults are written."""

    donors: Sequence[str]
    calls: int | None
    seconds: float | None
    seed: int
    shard: str
    out: Path
    pinned: Sequence[Path]
    against: bool

    def settings(self, targets: Sequence[str]) -> dict[str, str]:
        """The options that must not change while a campaign goes on, with their values."""
        return {
            "suite": __version__,
            "--ep": " ".join(targets),
            "--seed": str(self.seed),
            "--from": " ".join(self.donors),
            "--against": "yes" if self.against else "no",
        }


@click.command()
@options.EPS
@options.JOBS
@click.option(
    "--calls",
    type=click.IntRange(1, 10**9),
    metavar="N",
    help=f"Draw so many calls; default: {CALLS:,}, or as many as fit into --seconds.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Begin no round of calls after so many seconds.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="Each seed has other calls."
)
@click.option(
    "--shard", default="1/1", metavar="N/OF", help="The N-th of OF parts of the calls, such as 3/8."
)
@click.option(
    "--from",
    "donors",
    multiple=True,
    metavar="PATH",
    help="Draw from these cases, as in gqa run, or calls of this model's nodes; repeat.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("fuzz"),
    metavar="FOLDER",
    help="Where the faults are written, and where a campaign goes on; default: fuzz.",
)
@click.option(
    "--expectations",
    "pinned",
    multiple=True,
    type=options.FILE,
    help="Known results of your own runner or build, before the shipped ones; repeat.",
)
@click.option(
    "--against",
    is_flag=True,
    help="Tell where two targets differ, two releases for instance, whether it is known or not.",
)
@options.program_options
@gathered(targets=TargetOptions, asked=FuzzOptions)
def fuzz(targets: TargetOptions, asked: FuzzOptions) -> int:
    """Draw calls that nobody has written, and find what fails.

    Each new fault is printed once, by its smallest call, and written to the folder as a case file
    with a program beside it. The same seed gives the same targets the same calls. A campaign whose
    folder is there goes on.

    \b
    Exit status: 0 no new fault   1 a new fault, or a result that did not recur
                 2 bad input      3 infrastructure failure
    """
    shard = options.shard_of(asked.shard)
    if asked.seconds is not None and math.isnan(asked.seconds):
        raise BadArgument("--seconds: nan is no number of seconds.")
    named = targets_for(targets.eps or ("cpu",), targets.programs)
    if asked.against and len(named) != 2:
        raise BadArgument(f"--against compares two targets; this campaign has {len(named)}.")
    settings = asked.settings([target.label for target in named])
    state = _earlier(asked.out, CampaignState(settings, {shard: 0}))
    donors, digest, corpus = _drawn_from(asked.donors)
    if not donors.changeable and not donors.nodes:
        raise BadArgument("--from: these have no feature to draw, or too many heads; name others.")
    state.settings = {"corpus": digest, **state.settings}
    _check_same(asked.out, state, {"corpus": digest})
    plans = [Plan(target, (), ()) for target in named]
    if not asked.against:
        plans = target_plans(corpus, named, pinned=asked.pinned)
    most = asked.calls or (CALLS if asked.seconds is None else 10**9)
    campaign = Campaign(
        Drawing(donors, asked.seed),
        [replace(plan, cases=(), measured=False) for plan in plans],
        corpus,
        shard,
        most,
        state,
        against=asked.against,
        jobs=targets.jobs or usual_jobs(named),
        until=math.inf if asked.seconds is None else time.monotonic() + asked.seconds,
    )
    _make_folder(asked.out)
    if before := state.calls:
        click.echo(printable(f"{asked.out} has {plural(before, 'call')}, and goes on."))
    _write_state(asked.out, state)  # a shard may have no call
    for now in campaign.rounds(lambda found: _tell(found, asked)):
        _write_state(asked.out, now)
        click.echo(printable(counts(now)))
    if state.calls == before and not campaign.failures:
        click.echo("No call was drawn: give more --calls or --seconds, or another folder: --out.")
    for line in summary(state):
        click.echo(printable(line))
    for failure in campaign.failures:
        click.echo(printable(failure))
    for what, told in (
        ("Not judged", campaign.unjudged),
        ("Not seen again", campaign.unstable),
        ("Mended, or the expectation covers too much, as a call passes", campaign.passing),
    ):
        for reason, first in told.items():
            click.echo(printable(f"{what}: {reason} (call {first} of --seed {asked.seed})"))
    if campaign.failures or campaign.unjudged:
        return Status.INFRASTRUCTURE
    new = any(not fault.known for fault in state.faults) or any(state.unstable.values())
    return Status.UNEXPECTED if new else Status.AS_EXPECTED


def _drawn_from(paths: Sequence[str]) -> tuple[Donors, str, Sequence[Case]]:
    """What calls are drawn from, the digest of that, and the corpus.

    Raises `BadArgument`, and `ModelError` for models without calls.
    """
    models = [Path(path) for path in paths if path.endswith(".onnx")]
    if not models:
        meant = find(paths)
        corpus = meant.loaded if meant.whole else find(()).loaded
        return Donors.of(meant.named), corpus_digest(meant.named), corpus
    if len(models) < len(paths):
        raise BadArgument("--from: models and cases do not mix; name one kind.")
    cases: list[Case] = []
    with temporary_folder() as folder:
        for number, model in enumerate(models):
            (folder / str(number)).mkdir()
            file = folder / str(number) / f"{theme_of(model)}.yaml"
            write_cases(subject_of(model, Lengths()), file)
            cases += load_file(file)
        return Donors.of_model(cases), corpus_digest(cases), find(()).loaded


def _earlier(folder: Path, now: CampaignState) -> CampaignState:
    """The campaign in the folder, ``now`` if there is none. Raises `BadArgument`."""
    try:
        state = read_state(folder)
    except ResultsError as error:
        raise BadArgument(f"{error} Delete it, or name another folder: --out.") from None
    if state is None or not state.calls:
        return now
    _check_same(folder, state, now.settings)
    was, shard = (safe_name(" ".join(map(str, each.done))) for each in (state, now))
    if was != shard:
        raise _another(folder, f"--shard {was!r}, not {shard!r}")
    return state


def _check_same(folder: Path, state: CampaignState, settings: dict[str, str]) -> None:
    """Raise `BadArgument` if a campaign has other settings."""
    if (difference := state.difference(settings)) is not None:
        raise _another(folder, difference)


def _another(folder: Path, difference: str) -> BadArgument:
    return BadArgument(
        f"{folder / FILE} is of a campaign with {difference}; name another folder: --out."
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"Cannot write to {folder}: {cause_of(error)}.") from None


def _write(file: Path, what: str, content: str | bytes) -> None:
    """Write a file of a campaign, whose folder may be somebody else's."""
    if file.is_symlink():
        raise ResultsError(f"Cannot write {what} to {file}: it is a link.")
    write_file(file, what, content)


def _write_state(folder: Path, state: CampaignState) -> None:
    _write(folder / FILE, "the campaign", STATE.dump_json(state, indent=1))


def _tell(found: NewFault, asked: FuzzOptions) -> None:
    """Print a new fault, and write its smallest call with a program."""
    fault, result, name = found.fault, found.result, found.fault.name
    file = asked.out / f"{name}.yaml"
    case = replace(found.case, name=name)
    told = [result.reason or fault.signature[-1], *found.sentences]
    if result.verdict == "unsupported":
        told.append(f"Message: {one_line(result.message or fault.signature[-1])}")
    described = case_record(replace(case, id=f"{case.theme}/{name}", file=file))
    program = program_of(
        described, result.model_copy(update={"case": described.id}), found.targets[0].record()
    )
    if program.missing is None:
        beside = file.with_suffix(Path(program.filename).suffix)
        told.append(f"Program: {beside}")
    arguments = (argument for target in found.targets for argument in target.arguments)
    told.append(shlex.join(["gqa", "run", str(file), *arguments]))
    click.echo(printable(f"\n{verdict_word(result.verdict)} on {fault.target}: {case.title}"))
    for line in told:
        click.echo(printable(f"  {line}"))
    why = " ".join((*found.sentences, f"Call {fault.number} of gqa fuzz --seed {asked.seed}."))
    _write(file, "the fault", case_text([(case, why)]))
    if program.missing is None:
        _write(beside, "the program", program.text)
