"""Results files that were changed at random: each is read, or refused by one sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from endings import check_ending, no_hang
from mutations import mutant, whole
from synthetic_runs import case, result, write

from conformance.cli.report import FORMS, Material
from conformance.report.markdown import changes_markdown
from conformance.report.repro.issue import issue
from conformance.report.repro.program import program_of
from conformance.results.compare import changes
from conformance.results.errors import ResultsError
from conformance.results.reader import Run, read
from conformance.results.records import LaterInput, Recipe
from conformance.results.table import tabulate


def try_all(run: Run, good: Run, folder: Path) -> None:
    """Everything that is made of a results file."""
    joined, of_good = tabulate([run]), tabulate([good])
    for new, old in ((joined, of_good), (of_good, joined)):
        changes_markdown(changes(new, old))
    material = Material([run, good], tabulate([run, good]), changes(joined, of_good))
    for form in FORMS:
        form.write(material, folder / form.option)
    targets = {target.name: target for target in run.header.targets}
    for judged in run.results[:8]:
        if judged.case in run.cases and judged.target in targets:
            about = run.cases[judged.case], judged, targets[judged.target]
            issue(*about, program_of(*about))


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_no_mutant_ends_with_a_traceback_or_hangs(tmp_path: Path, count: int) -> None:
    good = read(whole(tmp_path / "good.jsonl"))
    content = good.path.read_bytes()
    seen = Counter[str]()
    for seed in range(count):
        path = mutant(content, seed, tmp_path / "bad.jsonl")
        with no_hang(f"mutant {seed}"):
            try:
                run = read(path)
            except ResultsError as error:
                said = str(error)
            else:
                said = ""
            if said:
                assert len(said.splitlines()) == 1, (seed, said)
                assert len(said) < 1000, seed
                seen["refused"] += 1
                continue
            try:
                try_all(run, good, tmp_path)
            except Exception as error:
                error.add_note(f"mutant {seed}")
                raise
            seen["read"] += 1
            if path.suffix == ".jsonl":
                # None is left out without a word.
                lines = path.read_bytes().count(b'"kind":"result"')
                assert len(run.results) >= lines or run.problems, seed
    assert min(seen["read"], seen["refused"]) >= 10, seen


def test_the_commands_end_with_a_sentence(desk: Desk, gqa: Gqa) -> None:
    content = whole(desk.folder / "good.jsonl").read_bytes()
    smoke = "smoke/prompt[dtype=float32,sequence_length=5]"
    for seed in range(6):
        path = mutant(content, seed, desk.folder / "bad.jsonl").name
        for arguments in (
            ("report", path, "good.jsonl", "--html", "x.html"),
            ("diff", "good.jsonl", path),
            ("export", smoke, str(seed), "--results", path),
        ):
            done = gqa(*arguments)
            check_ending(done)
            assert done.status not in (2, 3) or done.err.strip(), seed


@pytest.mark.parametrize(
    "shape",
    [(300_000_000, 1, 8), (1 << 26, 1, 1), (1, 10**4000, 8), (10**9,) * 30, (9,) * 200_000],
    ids=["large", "at the limit", "huge", "many large dims", "many dims"],
)
@pytest.mark.parametrize("kind", ["marked", "uniform", "cosines", "packed"])
def test_a_program_is_no_larger_for_a_large_recipe(
    tmp_path: Path, shape: tuple[int, ...], kind: str
) -> None:
    part = Recipe(kind="marked", head_size=8, width=4)
    recipe = Recipe(kind=kind, head_size=8, parts=(part, part) if kind == "packed" else ())
    call = case().call
    query = call.inputs[0].model_copy(update={"shape": shape, "recipe": recipe})
    later = LaterInput(name="query", shape=shape, recipe=recipe)
    for changed in (
        {"inputs": (query,)},
        {"inputs": (query.model_copy(update={"shape": (1, 1, 8)}),), "later": ((later,),)},
    ):
        large = case().model_copy(update={"call": call.model_copy(update=changed)})
        path = write(tmp_path / "large", [large], [result(large.id, verdict="wrong")])
        with no_hang(kind):
            run = read(path)
            about = run.cases[large.id], run.results[0], run.header.targets[0]
            assert len(program_of(*about).text) < 30_000 + 12 * len(shape)
            try_all(run, run, tmp_path)
