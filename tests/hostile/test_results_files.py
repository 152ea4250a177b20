"""Results files that were changed at random, and with an attack in every text."""

from __future__ import annotations

import ast
import csv
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
import xmlschema
from endings import no_hang, obeyed
from markdown_it import MarkdownIt
from mutations import mutant, places, strange, whole
from reported import HOSTILE as OF_TERMINALS
from reported import Parsed, decoded
from synthetic_runs import HOSTILE, only_own_markup

from conformance.cli.report import FORMS, Material
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.report.cells import csv_text, json_text, plain
from conformance.report.html import SCRIPTS
from conformance.report.junit import junit
from conformance.report.markdown import changes_markdown, summary_markdown
from conformance.report.repro.issue import issue
from conformance.report.repro.reproduction import program_of
from conformance.report.view import page
from conformance.results.compare import changes
from conformance.results.instability import is_unstable
from conformance.results.reader import Run, read
from conformance.results.records import CaseRecord, ResultRecord, TargetRecord
from conformance.results.results_error import ResultsError
from conformance.results.score import PARTS
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import VERDICTS, severity, verdict_word, was_tried

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

JUNIT = xmlschema.XMLSchema(str(Path(__file__).parents[1] / "support" / "junit.xsd"))


def try_all(run: Run, good: Run, folder: Path) -> None:
    """Everything that is made of a results file."""
    joined, of_good = tabulate([run]), tabulate([good])
    changes_markdown(changes(of_good, joined))
    material = Material([run, good], tabulate([run, good]), changes(joined, of_good))
    for form in FORMS:
        path = folder / form.option
        form.write(path, form.files(material, path))
    for about in reported_results(run):
        issue(*about, program_of(*about))


def reported_results(run: Run) -> Iterator[tuple[CaseRecord, ResultRecord, TargetRecord]]:
    """The first results that can have a bug report, with their cases and targets."""
    targets = {target.name: target for target in run.header.targets}
    for judged in run.results[:8]:
        if judged.case in run.cases and judged.target in targets:
            yield run.cases[judged.case], judged, targets[judged.target]


def counted(run: Table) -> dict[str, Counter[tuple[str, bool]]]:
    """Results by target, verdict and mark: of several for a case, the worst, and of those the
    first.
    """
    kept: dict[tuple[str, str], ResultRecord] = {}
    for record in run.runs[0].results:
        other = kept.get((record.case, record.target))
        if other is None or severity(record) < severity(other):
            kept[record.case, record.target] = record
    counts = {column.label: Counter[tuple[str, bool]]() for column in run.columns}
    for (_, name), record in kept.items():
        counts[name][record.verdict, record.unexpected] += 1
    return counts


def sums(counts: Counter[tuple[str, bool]], verdict: str) -> int:
    return counts[verdict, True] + counts[verdict, False]


def check_counts(run: Table) -> None:
    """Fails where a form has other numbers than the file."""
    counts = counted(run)

    rows = list(csv.DictReader(io.StringIO(csv_text(run), newline="")))
    shown = Counter((row["target"], row["verdict"], row["unexpected"] == "true") for row in rows)
    wanted = Counter[tuple[str, str, bool]]()
    for label, count in counts.items():
        for (verdict, unexpected), number in count.items():
            wanted[plain(label), verdict, unexpected] += number
    assert shown == wanted

    tried = Counter(label for (_, label), judged in run.results.items() if was_tried(judged))
    for label in [column.label for column in run.columns]:
        found = run.scores([label])
        both = (found.whole, found.requested)
        assert all(sum(score.parts[part] for part in PARTS) == score.asked for score in both)
        told = sum(score.asked + score.not_tried for score in both)
        assert told == len({*run.cases, *(id for id, _ in run.results)})
        assert sum(score.asked for score in both) == tried[label]
        assert sum(score.asked for score in found.themes.values()) == found.whole.asked
        assert sum(score.right for score in found.themes.values()) == found.whole.right

    document = json.loads(json_text(run), parse_constant=pytest.fail)
    assert Counter(
        (cell["target"], cell["verdict"], cell["unexpected"]) for cell in document["cells"]
    ) == Counter({(label, *key): n for label, count in counts.items() for key, n in count.items()})

    suites = fromstring(junit(run)).findall("testsuite")
    troubles = Counter(label for label, _ in run.infrastructure)
    for suite, (label, count) in zip(suites, counts.items(), strict=False):
        told = {p.get("name"): p.get("value") for p in suite.iter("property")}
        assert {v: int(told[f"verdict.{v}"] or "") for v in VERDICTS} == {
            verdict: sums(count, verdict) for verdict in VERDICTS
        }
        unexpected = sum(number for (_, mark), number in count.items() if mark)
        untested = 0 < count.total() == count["skip", False]
        errors = troubles[label] + untested
        unstable = run.instability.get(label, ())
        for name, number, elements in (
            ("tests", count.total() + errors + bool(unstable), "testcase"),
            ("failures", unexpected + is_unstable(unstable), "failure"),
            ("errors", errors, "error"),
            ("skipped", count["skip", False], "skipped"),
        ):
            assert suite.get(name) == str(number)
            assert len(list(suite.iter(elements))) == number

    listed, data, _ = page(run)
    data = decoded(data)
    for number, (head, count) in enumerate(zip(listed.heads, counts.values(), strict=True)):
        results = [one["results"][number] for one in data["cases"]]
        cells = Counter(each["look"]["verdict"] for each in results if each is not None)
        assert head.counts == {verdict: sums(count, verdict) for verdict in VERDICTS}
        assert cells == +Counter(head.counts)
        assert head.unexpected == sum(n for (_, mark), n in count.items() if mark)
    assert sum(len(cause.members) for cause in listed.unexpected) == sum(
        head.unexpected for head in listed.heads
    )

    summary = summary_markdown(run)
    titles, _, *table = table_of(summary)
    assert len(table) == len(counts)
    for line, count in zip(table, counts.values(), strict=True):
        row = dict(zip(titles, line, strict=True))
        numbers = {
            name: int(cell.replace(",", "")) for name, cell in row.items() if name != "target"
        }
        assert numbers.pop("unexpected") == sum(n for (_, mark), n in count.items() if mark)
        assert numbers.pop("results") == count.total()
        numbers.pop("known")
        numbers.pop("unstable", None)
        assert numbers == {w: sums(count, v) for v in VERDICTS if (w := verdict_word(v)) in numbers}
        assert sum(numbers.values()) == count.total()

    only_own_markup(summary)
    assert list(changes(run, run).all()) == []


def table_of(text: str) -> list[list[str]]:
    """The cells of the table of results."""
    part = text.split("## Results\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("count", [5, 20, pytest.param(500, marks=pytest.mark.night)])
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
                check_counts(tabulate([run]))
            except Exception as error:
                error.add_note(f"mutant {seed}")
                raise
            seen["read"] += 1
            if path.suffix == ".jsonl":
                # None is left out without a word.
                lines = path.read_bytes().count(b'"kind":"result"')
                assert len(run.results) >= lines or run.problems, seed
    assert min(seen["read"], seen["refused"]) >= count // 5, seen


#: Each attacks some form: what terminals obey, markup, formulas, ends of literals, the length.
TEXTS = (
    *HOSTILE,
    OF_TERMINALS,
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b2J\x00\x08\r\r\n\u2028\u2066\u200b\ufeff\xad\U000e0041",
    *("+1", "-1", "@x", "\t=1", "\n＝1", "'); evil()#", '"""\nevil()', "*/ evil() //", "\\"),
    "x\n" * 20_000,
)


@pytest.mark.parametrize(
    "seed",
    [n if n in (0, 9) else pytest.param(n, marks=pytest.mark.night) for n in range(len(TEXTS))],
)
def test_no_text_leaves_its_place_in_any_form(tmp_path: Path, seed: int) -> None:
    """With the seeds each text is in every field."""
    content = strange(whole(tmp_path / "run").read_bytes(), lambda text: attack(text, seed))
    (tmp_path / "run").write_bytes(content)
    run = read(tmp_path / "run")
    (tmp_path / "old").write_bytes(
        content.replace(b'"verdict": "unsupported"', b'"verdict": "pass"')
    )
    old = read(tmp_path / "old")
    assert changes(tabulate([run]), tabulate([old])).worse
    try_all(run, old, tmp_path)
    made = {form.option: tmp_path / form.option for form in FORMS}
    texts = {name: path.read_text("utf-8") for name, path in made.items() if path.is_file()}
    for name, text in texts.items():
        if name != "json":
            assert obeyed(text.replace("\r\n", "\n")) == set(), name

    parsed = Parsed(texts["html"])
    assert obeyed("".join(strings([parsed.cells, parsed.reports]))) == set()
    assert len(parsed.scripts) == len(SCRIPTS) + 4
    assert not {"img", "iframe"} & {tag for tag, _ in parsed.elements}
    assert not [name for _, named in parsed.elements for name in named if name.startswith("on")]
    only_own_markup(texts["markdown"])
    JUNIT.validate(texts["junit"])
    for row in csv.reader(io.StringIO(texts["csv"], newline="")):
        assert len(row) == 32
        assert not [cell for cell in row if cell.lstrip().startswith(tuple("=+-@＝＋－＠"))]
    cells = json.loads(texts["json"], parse_constant=pytest.fail)["cells"]
    assert {judged.reason for judged in run.results} <= {cell["reason"] for cell in cells}

    programs = [(about, program_of(*about)) for about in reported_results(run)]
    assert [program for _, program in programs if program.data] or seed % 2
    for about, program in programs:
        report = issue(*about, program)
        assert obeyed(program.text + report) == set()
        if program.language == "python":
            ast.parse(program.text)
        for token in MarkdownIt().enable("table").parse(report):
            for part in [token, *(token.children or ())]:
                assert part.type not in ("image", "html_block"), report
                assert part.type != "html_inline" or part.content == "<!-- -->", report
                assert part.type != "link_open" or REPOSITORY in str(part.attrs["href"]), report


REPOSITORY = "https://github.com/microsoft/onnxruntime/"
WORDS = {
    *("cpu", "webgpu", "tract", "wasm", "float32", "int32"),
    *(*INPUT_NAMES, *OUTPUT_NAMES, *ATTRIBUTE_BY_NAME),
}


def attack(text: str, seed: int) -> str:
    """``text`` behind one of `TEXTS`; with every other seed not where a program then is refused."""
    if seed % 2 == 0 and text in WORDS:
        return text
    return TEXTS[(zlib.crc32(text.encode()) + seed) % len(TEXTS)] + text


def strings(value: object) -> Iterator[str]:
    """All texts in a JSON value, keys too."""
    for container, key in places(value):
        yield from (one for one in (key, container[key]) if isinstance(one, str))
