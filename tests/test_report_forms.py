"""Other forms of a report: JUnit, CSV, JSON, badges and support data agree with the file."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from packaging.version import Version
from recorded import FOLDER, recorded
from synthetic_runs import (
    HOSTILE,
    case,
    expected,
    of_results,
    only_own_markup,
    realistic,
    result,
    target,
    write,
)

from conformance.base.paths import ROOT, data_path
from conformance.case.contract import Basis, Contract, Demands
from conformance.cli.report import FORMS
from conformance.report import view
from conformance.report.badges import badges, verdict_colours
from conformance.report.cells import csv_text, json_text, plain
from conformance.report.junit import junit
from conformance.report.markdown import changes_markdown, summary_markdown
from conformance.report.repro.program import program_of
from conformance.report.support import support
from conformance.report.terminal import tell
from conformance.results.compare import changes
from conformance.results.reader import read
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    Milliseconds,
    ResultRecord,
    TargetDescription,
    TargetRecord,
    UncalledParts,
)
from conformance.results.score import PARTS
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import VERDICTS, severity

SVG = "{http://www.w3.org/2000/svg}"


def joined(folder: Path, results: Sequence[ResultRecord], **fields: Any) -> Table:
    """A run with these results."""
    return tabulate([of_results(folder / "r.jsonl", results, **fields)])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tabulate([realistic(tmp_path_factory.mktemp("run") / "r.jsonl")])


def uncalled(text: str) -> TargetDescription:
    """The description of a runtime that has parts with this name, which no case calls."""
    parts = UncalledParts(declared_by=text, inputs=(text,), types={text: (text,)})
    return TargetDescription(runtime=text, version=text, uncalled=parts)


# Any results file


TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12))
NUMBERS = st.none() | st.floats()


@st.composite
def runs(draw: st.DrawFn, folder: Path) -> Table:
    """A file that validates, with arbitrary texts and inconsistent content."""
    names = draw(st.lists(TEXTS, unique=True, min_size=1, max_size=3))
    targets = []
    for name in names:
        described: list[dict[str, Any]] = [
            {},
            target().model_dump(),
            {"unavailable": name, "fix": name},
            {"describe": uncalled(name)},
        ]
        about = draw(st.sampled_from(described)) | {"name": name}
        targets.append(TargetRecord(**{"ep": name} | about))
    ids = draw(st.lists(TEXTS, unique=True, min_size=1, max_size=4))
    cases = []
    for id in ids:
        if draw(st.booleans()):
            basis: Basis = draw(st.sampled_from(get_args(Basis)))
            contract = Contract(basis=basis, source="x").model_dump()
            said = {"id": id, "theme": id, "title": id, "contract": contract}
            cases.append(CaseRecord(**case("t/c").model_dump() | said))
    pairs = [(id, name) for id in ids for name in [*names, *draw(st.lists(TEXTS, max_size=1))]]
    results = []
    for id, name in draw(st.lists(st.sampled_from(pairs), max_size=8)):
        text = draw(TEXTS)
        fields: dict[str, Any] = {
            "reason": draw(TEXTS),
            "message": draw(st.none() | TEXTS),
            "stderr": text,
            "reproduce": text,
            "unexpected": draw(st.booleans()),
            "values_right": draw(st.sampled_from([None, True, False])),
            "share": draw(NUMBERS),
            "ms": Milliseconds(load=draw(NUMBERS), run=draw(NUMBERS), total=draw(NUMBERS)),
        }
        if draw(st.booleans()):
            known = draw(st.sampled_from(VERDICTS))
            fields["expectation"] = expected(known, why=text, link=text, file=text)
        results.append(result(id, name, draw(st.sampled_from(VERDICTS)), **fields))
    problems = [
        InfrastructureRecord(target=draw(TEXTS), case=draw(st.none() | TEXTS), message=draw(TEXTS))
        for _ in range(draw(st.integers(0, 2)))
    ]
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "r.jsonl"
        write(path, cases, results, targets=targets,
              problems=problems, complete=draw(st.booleans()))  # fmt: skip
        return tabulate([read(path)])


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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_form_has_the_counts_of_the_file(data: st.DataObject, tmp_path: Path) -> None:
    run = data.draw(runs(tmp_path))
    counts = counted(run)

    rows = list(csv.DictReader(io.StringIO(csv_text(run), newline="")))
    shown = Counter((row["target"], row["verdict"], row["unexpected"] == "true") for row in rows)
    wanted = Counter[tuple[str, str, bool]]()
    for label, count in counts.items():
        for (verdict, unexpected), number in count.items():
            wanted[plain(label), verdict, unexpected] += number
    assert shown == wanted

    for label, count in counts.items():
        found = run.scores([label])
        both = (found.whole, found.requested)
        assert all(sum(score.parts[part] for part in PARTS) == score.asked for score in both)
        told = sum(score.asked + score.not_tried for score in both)
        assert told == len({*run.cases, *(id for id, _ in run.results)})
        assert sum(score.asked for score in both) == count.total() - sums(count, "skip")
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
        for name, number, elements in (
            ("tests", count.total() + errors, "testcase"),
            ("failures", unexpected, "failure"),
            ("errors", errors, "error"),
            ("skipped", count["skip", False], "skipped"),
        ):
            assert suite.get(name) == str(number)
            assert len(list(suite.iter(elements))) == number

    listed, data, _ = view.page(run)
    for number, (head, count) in enumerate(zip(listed.heads, counts.values(), strict=True)):
        results = [one["results"][number] for one in data["cases"]]
        looks = [data["results"][number]["look"] for number in results if number is not None]
        cells = Counter(data["looks"][look]["verdict"] for look in looks)
        assert head.counts == {verdict: sums(count, verdict) for verdict in VERDICTS}
        assert cells == +Counter(head.counts)
        assert head.unexpected == sum(n for (_, mark), n in count.items() if mark)
    assert sum(cause.number for cause in listed.unexpected) == sum(
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
        assert numbers == {v: sums(count, v) for v in VERDICTS if v in numbers}
        assert sum(numbers.values()) == count.total()

    same = changes(run, run)
    assert list(same.all()) == []
    for page in (summary, changes_markdown(same)):
        only_own_markup(page)
    validate(support(run))
    for badge in badges(run):
        tags = {element.tag.removeprefix(SVG) for element in fromstring(badge.svg).iter()}
        assert tags == {"svg", "title", "rect", "text"}
        assert re.fullmatch(r"[A-Za-z0-9_+@][A-Za-z0-9._+@-]{0,90}\.svg", badge.file)
    assert len({badge.file.lower() for badge in badges(run)}) == len(counts)


def table_of(text: str) -> list[list[str]]:
    """The cells of the table of results."""
    part = text.split("## Results\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# JUnit


def schema_of_junit() -> Any:
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed")
    return xmlschema.XMLSchema(str(Path(__file__).parent / "junit.xsd"))


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_of_hostile_text_is_valid_by_the_schema(tmp_path: Path, text: str) -> None:
    schema_of_junit().validate(junit(hostile(tmp_path, text)))


@pytest.mark.parametrize(
    ("demands", "terms"), [("rejects", "rejects (established)"), ("either", "either")]
)
def test_a_contract_says_a_basis_of_what_it_demands_alone(
    tmp_path: Path, demands: Demands, terms: str
) -> None:
    one = result(verdict="wrong")
    about = case(contract=Contract(demands=demands, basis="established", source="x"))
    assert f"  contract  {terms}" in list(tell(about, one))
    for text in (
        junit(joined(tmp_path, [one], cases=[about])),
        program_of(about, one, target()).text,
    ):
        assert f"contract: {terms}, x" in text


def test_junit_of_an_incomplete_run_has_an_error(tmp_path: Path) -> None:
    text = junit(joined(tmp_path, [result()], complete=False))
    assert 'message="The run was stopped before its end."' in text
    schema_of_junit().validate(text)


# CSV and JSON


def hostile(folder: Path, text: str) -> Table:
    """A run in which every text field is ``text``."""
    fields: dict[str, Any] = {
        "reason": text, "message": text, "reproduce": text, "stderr": text, "code": text,
        "expectation": expected(link=text, why=text, file=text),
    }  # fmt: skip
    record = CaseRecord(
        **case("t/c").model_dump() | {"id": text, "theme": text, "name": text, "title": text}
    )
    return joined(
        folder,
        [result(text, text, "wrong", **fields), result("t/c", text, **fields)],
        cases=[record],
        targets=[TargetRecord(name=text, ep=text, unavailable=text, fix=text)],
        problems=[InfrastructureRecord(target=text, case=text, message=text, fix=text)],
    )


@pytest.mark.parametrize("text", [*HOSTILE, *"=+-@＝＋－＠", "\t=1+1", " =1+1", "\r=1", "\n@a"])
def test_csv_cells_are_never_formulas(tmp_path: Path, text: str) -> None:
    made = csv_text(hostile(tmp_path, text))
    made.encode()
    rows = list(csv.reader(io.StringIO(made, newline="")))
    assert len(rows) == 3
    for row in rows:
        assert len(row) == len(rows[0])
        for cell in row:
            assert not cell.lstrip().startswith(tuple("=+-@＝＋－＠"))
            assert not re.search("[\x00-\x08\x1b\u202e]", cell)


def test_the_json_keeps_texts_unchanged(tmp_path: Path) -> None:
    for text in HOSTILE:
        kept = result("t/c", reason=text).reason
        document = json.loads(json_text(joined(tmp_path, [result("t/c", reason=text)])))
        assert document["cells"][0]["reason"] == kept


# Badges


@pytest.mark.parametrize(
    ("results", "fields", "verdict", "says"),
    [
        ([result("t/a")], {}, "pass", "1 of 1 calls right, 0 unexpected"),
        ([result("t/a", verdict="wrong", unexpected=False)], {}, "pass", "0 of 1 calls"),
        ([result("t/a"), result("t/b", verdict="wrong")], {}, "wrong", "1 of 2 calls"),
        ([result("t/a", verdict="crash"), result("t/b", verdict="wrong")], {}, "crash", "0 of 2"),
        ([result("t/a", verdict="skip")], {}, "skip", "not tried"),
        ([result("t/a")], {"complete": False}, "skip", "0 unexpected, run incomplete"),
    ],
)
def test_a_badge_has_the_colour_of_the_worst_unexpected_verdict(
    tmp_path: Path, results: list[ResultRecord], fields: dict[str, Any], verdict: str, says: str
) -> None:
    (badge,) = badges(joined(tmp_path, results, **fields))
    root = fromstring(badge.svg)
    second = list(root.iter(f"{SVG}rect"))[1]
    assert second.get("fill") == verdict_colours()[verdict]  # type: ignore[index]
    assert says in (root.findtext(f"{SVG}title") or "")


# Support


def validate(document: Any) -> None:
    schema = json.loads((data_path("reports") / "support.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)


UNTRIED = "['In {} only 1 of 2 cases were tried; they pass.']"
NOTHING = "False ['1.3: 1 wrong, 1 unsupported of 2 cases.']"
HALF = "True ['1.2: 1 wrong, 1 pass of 2 cases.']"


@pytest.mark.parametrize(
    ("verdicts", "supported"),
    [
        ("1.2 pass pass", ["≤1.2"]),
        ("1.2 pass pass, 1.3 pass pass", ["≤1.2"]),
        ("1.2 wrong unsupported, 1.3 pass pass, 1.4 pass pass", ["1.3"]),
        ("1.10 pass pass, 1.9 wrong unsupported", ["1.10"]),
        ("1.2 wrong unsupported, 1.3 wrong unsupported", [NOTHING]),
        ("1.2 pass wrong, 1.3 pass pass", ["1.3", f"≤1.2 1.3 {HALF}"]),
        ("1.2 pass pass, 1.3 wrong unsupported, 1.4 pass pass", ["1.4", "≤1.2 1.3"]),
        ("1.2 pass pass, 1.3 wrong unsupported", [NOTHING, "≤1.2 1.3"]),
        # What was not tried is not claimed.
        ("1.2 pass skip", [f"None {UNTRIED.format('1.2')}"]),
        ("1.2 pass -", [f"None {UNTRIED.format('1.2')}"]),
        ("1.2 skip -", ["None ['Not tried.']"]),
        ("1.2 pass -, 1.3 pass pass", [f"1.3 {UNTRIED.format('1.2')}"]),
        ("1.2 pass wrong, 1.3 pass -", [f"None {UNTRIED.format('1.3')}", f"≤1.2 {HALF}"]),
    ],
)
def test_support_by_version(tmp_path: Path, verdicts: str, supported: list[str]) -> None:
    """The verdicts of an entry's two cases in each version, where - is no result."""
    runs = []
    cases = [case("t/c[n=0]"), case("t/c[n=1]")]
    for one in verdicts.split(", "):
        version, *words = one.split()
        name = f"cpu@{version}"
        pairs = [(each.id, word) for each, word in zip(cases, words, strict=True) if word != "-"]
        found = [result(id, name, word) for id, word in pairs]
        runs.append(of_results(tmp_path / version, found, cases, targets=[target(name)]))
    document = support(tabulate(runs))
    validate(document)
    told = document["t"]["c"]["__compat"]["support"]["cpu"]
    statements = told if isinstance(told, list) else [told]
    assert [" ".join(map(str, each.values())) for each in statements] == supported


def test_adapters_are_targets_of_their_own(tmp_path: Path) -> None:
    names = ["webgpu@1.30.0+lavapipe", "webgpu@1.30.0+swiftshader"]
    document = support(joined(tmp_path, [result("t/c", name) for name in names]))
    assert list(document["__meta"]["targets"]) == ["webgpu+lavapipe", "webgpu+swiftshader"]


def test_names_of_the_format_cannot_be_overwritten(tmp_path: Path) -> None:
    record = CaseRecord(**case("t/c").model_dump() | {"theme": "__meta", "name": "__compat"})
    document = support(joined(tmp_path, [result("t/c")], cases=[record]))
    validate(document)
    assert "__compat" in document["·__meta"]["·__compat"]


def test_every_form_is_documented() -> None:
    options = {form.option for form in FORMS}
    for page in ("README.md", "docs/report.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        missing = [option for option in options if f"--{option} " not in text]
        assert not missing, f"{page} does not list the forms {missing}"


# ── What is recorded ────────────────────────────────────────────────────────────────────────────

RECORDED = FOLDER / "cpu.jsonl.xz"


@pytest.mark.skipif(not RECORDED.exists(), reason="not a checkout")
def test_the_readme_says_since_when_a_cache_can_be_borrowed() -> None:
    for entry, since in (
        ("zero_length_kv", "1.27.0"),
        ("zero_length_kv_present_omitted", "1.31.0"),
    ):
        for version, results in recorded(RECORDED).results.items():
            of_entry = [r for id, r in results.items() if id.startswith(f"shared_kv/{entry}[")]
            right = all(record["verdict"] == "pass" for record in of_entry)
            assert right == (Version(version) >= Version(since)), (entry, version)
        assert since in (ROOT / "README.md").read_text(encoding="utf-8")
