"""The HTML report: what it shows, what it must not let through, and how it behaves in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from synthetic_runs import case, error, expected, realistic, result, small, target, write

from conformance.case import Contract
from conformance.paths import data_path
from conformance.report import render
from conformance.report.text import clean
from conformance.report.view import MEANING, page
from conformance.results import (
    VERDICTS,
    Infrastructure,
    ResultsError,
    Run,
    Verdict,
    join,
    read,
)

HOSTILE = (
    "</script></pre><img src=x onerror=\"document.title='pwned'\">"
    "<svg onload=document.title='pwned'></svg><!--<script>"
    "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 \x00 \u202egpj.exe\u202c \u200b \u2028 "
    "\"'`${alert(1)} {{ 7 * 7 }} &lt; مرحبا"
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """About 150 cases on two targets, with all verdicts and marks."""
    return realistic(tmp_path_factory.mktemp("report") / "real.jsonl")


@pytest.fixture(scope="module")
def real_page(real: Run) -> str:
    """Its page."""
    return render([real])


class Parsed(HTMLParser):
    """A page as its elements, the text of its table's rows, and its details."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, str] = {}
        self.scripts: list[str] = []
        self.style = ""
        self.text = ""
        self._row: str | None = None
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag == "tr":
            self._row = attributes.get("id")
        if tag in ("script", "style"):
            self._in = tag
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self._row = None
        if tag == self._in:
            self._in = ""
        if self._row is not None and tag in ("div", "p", "th", "td", "b"):
            self.rows[self._row] = self.rows.get(self._row, "") + " "

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in == "style":
            self.style += data
        else:
            self.text += data
            if self._row is not None:
                self.rows[self._row] = self.rows.get(self._row, "") + data

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, id: str) -> str:
        return " ".join(self.rows[id].split())

    @property
    def details(self) -> Any:
        return json.loads(self.scripts[-1])


# ── Text from anywhere ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mtrue\x1b[K colour", "true colour"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mone byte", "one byte"),
        ("\x1b(Bcharset", "charset"),
        ("NUL \x00 BEL \x07 DEL \x7f", "NUL ⟨U+0000⟩ BEL ⟨U+0007⟩ DEL ⟨U+007F⟩"),
        ("unfinished \x1b", "unfinished ⟨U+001B⟩"),
        ("\u202egpj.exe\u202c", "⟨U+202E⟩gpj.exe⟨U+202C⟩"),
        ("\u2066\u2069\u200f\u061c", "⟨U+2066⟩⟨U+2069⟩⟨U+200F⟩⟨U+061C⟩"),
        ("zero\u200bwidth\ufeff\xad", "zero⟨U+200B⟩width⟨U+FEFF⟩⟨U+00AD⟩"),
        ("\u2028", "⟨U+2028⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
        ("naïve 😀 مرحبا 日本 ≤", "naïve 😀 مرحبا 日本 ≤"),
    ],
)
def test_text_is_made_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_long_text_keeps_its_ends_and_says_what_is_left_out() -> None:
    shown = clean("begin" + "x" * 1_000_000 + "end")
    assert shown.startswith("beginxxx")
    assert shown.endswith("xxxend")
    assert "984,008 characters left out here; the results file has them all" in shown
    assert len(shown) < 16_200
    assert clean("x" * 16_000) == "x" * 16_000


@pytest.mark.parametrize("piece", ["\x1b", "\x1b[", "\x1b]", "\x1b[1;", "\x9d", "\x00", "\x1b\\"])
def test_a_megabyte_of_control_sequences_is_cleaned_at_once(piece: str) -> None:
    start = time.process_time()
    clean(piece * (1_000_000 // len(piece)))
    assert time.process_time() - start < 1


# ── What is shown ───────────────────────────────────────────────────────────────────────────────


def run_of(path: Path, *verdicts: Verdict, **fields: Any) -> Run:
    """One group of cases, with these verdicts."""
    cases = [case(f"shared_kv/zero_length_kv[n={n}]") for n in range(len(verdicts))]
    results = [
        result(one.id, verdict=verdict, **fields)
        for one, verdict in zip(cases, verdicts, strict=True)
    ]
    return read(write(path, cases, results))


def test_themes_groups_and_rows_follow_the_cases(real: Run) -> None:
    shown, _ = page(join([real]))
    assert [(theme.name, theme.question) for theme in shown.themes] == list(
        dict.fromkeys((case.theme, case.question) for case in real.cases.values())
    )
    rows = [row for theme in shown.themes for group in theme.groups for row in group.rows]
    assert [row.id for row in rows] == list(real.cases)
    assert [row.number for row in rows] == list(range(len(rows)))
    for row in rows:
        assert {axis.name: axis.label for axis in row.axes} == real.cases[row.id].axes


def test_counts_are_those_of_the_file(real: Run) -> None:
    shown, details = page(join([real]))
    assert {head.label: dict(head.counts) for head in shown.heads} == {
        name: {verdict: counts[verdict] for verdict in VERDICTS}
        for name, counts in real.counts().items()
    }
    assert shown.results == len(real.results)
    unexpected = [result for result in real.results if result.unexpected]
    known = [result for result in real.results if result.expectation and not result.unexpected]
    assert sum(finding.number for finding in shown.unexpected) == len(unexpected)
    assert sum(finding.number for finding in shown.known) == len(known)
    assert sum(head.unexpected for head in shown.heads) == len(unexpected)
    assert sum(head.known for head in shown.heads) == len(known)
    cells: Counter[tuple[str, str]] = Counter()
    for one in details["cases"]:
        for column, cell in zip(details["columns"], one["results"], strict=True):
            cells[column, cell["verdict"]] += 1
    assert cells == Counter((result.target, result.verdict) for result in real.results)
    totals: Counter[Verdict] = Counter()
    for theme in shown.themes:
        for group in theme.groups:
            for tally in group.tallies:
                assert tally
                totals.update({verdict: n for verdict, n, _ in tally.counts})
    assert totals == Counter(result.verdict for result in real.results)


def test_a_group_tells_its_worst_verdict_and_of_how_many(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a.jsonl", "pass", "wrong", "pass", "skip", "wrong", unexpected=False)
    (theme,) = page(join([run]))[0].themes
    (tally,) = theme.groups[0].tallies
    assert tally
    assert (tally.verdict, tally.number, tally.total) == ("wrong", 2, 5)
    assert tally.counts == (("wrong", 2, 0), ("pass", 2, 2), ("skip", 1, 4))
    assert tally.row == 1
    parsed = Parsed(render([run]))
    assert parsed.row("shared_kv/zero_length_kv") == (
        "zero_length_kv 5 cases Key and value of length 0 mean: attend to the cache as it is. "
        "wrong 2 of 5"
    )
    assert "2 wrong, 2 pass, 1 skip" in [a.get("title") for a in parsed.attributes("button")]


def test_a_group_opens_on_what_is_unexpected(tmp_path: Path) -> None:
    cases = [case(f"shared_kv/zero_length_kv[n={n}]") for n in range(3)]
    results = [
        result(cases[0].id, verdict="crash", unexpected=False, expectation=expected("crash")),
        result(cases[1].id, verdict="pass", unexpected=True, expectation=expected("crash")),
        result(cases[2].id, verdict="unsupported", unexpected=True, vague=True),
    ]
    run = read(write(tmp_path / "a.jsonl", cases, results))
    (theme,) = page(join([run]))[0].themes
    (tally,) = theme.groups[0].tallies
    assert tally
    assert tally.verdict == "crash"
    assert tally.row == 2
    assert (tally.unexpected, tally.known, tally.vague) == (2, 1, 1)
    parsed = Parsed(render([run]))
    assert "crash 1 of 31 vague2 unexpected" in parsed.row("shared_kv/zero_length_kv")
    assert parsed.row(cases[0].id).endswith("crashknown")
    assert parsed.row(cases[1].id).endswith("passunexpected")
    assert parsed.row(cases[2].id).endswith("unsupportedvagueunexpected")


def test_a_group_all_alike_says_all(tmp_path: Path) -> None:
    parsed = Parsed(render([run_of(tmp_path / "a.jsonl", "pass", "pass", "pass")]))
    assert parsed.row("shared_kv/zero_length_kv").endswith("pass all 3")


def test_a_case_alone_is_one_row(tmp_path: Path) -> None:
    run = read(write(tmp_path / "a.jsonl", [case("decode/alone")], [result("decode/alone")]))
    assert Parsed(render([run])).row("decode/alone").startswith("alone")
    assert len(Parsed(render([run])).rows) == 1


def test_axes_of_a_group_line_up(tmp_path: Path) -> None:
    cases = [
        case(f"decode/one[dtype={dtype},past_sequence_length={n}]")
        for dtype, n in product(("float32", "bfloat16"), (7, 64))
    ]
    run = read(write(tmp_path / "a.jsonl", cases, [result(one.id) for one in cases]))
    (theme,) = page(join([run]))[0].themes
    widths = {tuple(axis.width for axis in row.axes) for row in theme.groups[0].rows}
    assert widths == {(len("bfloat16"), len("sequence"))}


def test_unexpected_results_are_listed_first_worst_on_top(tmp_path: Path) -> None:
    cases = [case("a/x[n=1]"), case("a/x[n=2]"), case("a/y"), case("a/z")]
    results = [
        result("a/x[n=1]", verdict="wrong"),
        result("a/x[n=2]", verdict="wrong"),
        result("a/y", verdict="crash"),
        result("a/z", verdict="wrong", unexpected=False, expectation=expected()),
    ]
    run = read(write(tmp_path / "a.jsonl", cases, results))
    shown, _ = page(join([run]))
    assert [(f.verdict, f.id, f.number, f.row) for f in shown.unexpected] == [
        ("crash", "a/y", 1, 2),
        ("wrong", "a/x", 2, 0),
    ]
    assert [(f.verdict, f.id, f.reason) for f in shown.known] == [
        ("wrong", "a/z", "Reads past the end of the cache.")
    ]
    text = Parsed(render([run])).text
    assert "Unexpected: 3 of 4 results" in text
    assert text.index("a/y") < text.index("a/x") < text.index("Known defects: 1")


def test_known_causes_of_one_group_are_told_apart(tmp_path: Path) -> None:
    cases = [case(f"a/x[n={n}]") for n in range(3)]
    why = ("No softcap.", "No sinks.", "No softcap.")
    results = [
        result(one.id, verdict="wrong", unexpected=False, expectation=expected(why=each))
        for one, each in zip(cases, why, strict=True)
    ]
    shown, _ = page(join([read(write(tmp_path / "a.jsonl", cases, results))]))
    assert [(f.reason, f.number, f.first) for f in shown.known] == [
        ("No softcap.", 2, "a/x[n=0]"),
        ("No sinks.", 1, "a/x[n=1]"),
    ]


def test_many_findings_are_folded(tmp_path: Path) -> None:
    cases = [case(f"a/x{n}") for n in range(11)]
    run = read(
        write(tmp_path / "a.jsonl", cases, [result(one.id, verdict="wrong") for one in cases])
    )
    assert "3 more" in Parsed(render([run])).text


def test_nothing_unexpected_is_said(tmp_path: Path) -> None:
    text = Parsed(render([small(tmp_path / "a.jsonl")])).text
    assert "Nothing unexpected" in text
    assert "in what was judged" not in text
    assert "Read with care" not in text


def test_several_files_give_columns_side_by_side(tmp_path: Path) -> None:
    old = read(write(tmp_path / "old.jsonl", [case()], [result(verdict="wrong")]))
    new = read(write(tmp_path / "new.jsonl", [case(), case("a/b")], [result(), result("a/b")]))
    parsed = Parsed(render([old, new]))
    assert parsed.details["columns"] == ["cpu@1.31.1 (old.jsonl)", "cpu@1.31.1 (new.jsonl)"]
    assert parsed.row(case().id).endswith("wrongunexpected pass")
    assert parsed.row("a/b").endswith("no result pass")


def test_a_column_says_its_adapter(tmp_path: Path) -> None:
    name = "webgpu@1.30.0+lavapipe"
    run = read(write(tmp_path / "a.jsonl", [case()], [result(target=name)], targets=[target(name)]))
    shown, details = page(join([run]))
    (head,) = shown.heads
    assert (head.label, head.version, head.adapter) == (name, "", "lavapipe")
    assert details["devices"] == ["AMD EPYC 7R13, 2 cores"]
    html = render([run])
    assert f'<bdi class="target">{name}</bdi> <small>on <bdi>lavapipe</bdi></small></th>' in html
    foot = " ".join(Parsed(html).text.split())
    assert "CPUExecutionProvider, adapter lavapipe, AMD EPYC 7R13, 2 cores" in foot
    assert "<small>on <bdi>" not in render([small(tmp_path / "b.jsonl")])


def test_no_files_are_refused() -> None:
    with pytest.raises(ResultsError):
        render([])


def test_details_hold_all_that_is_known_of_a_result(tmp_path: Path) -> None:
    judged = result(
        verdict="accepted",
        message="ran",
        code="FAIL",
        stage="run",
        stderr="last words",
        expectation=expected("accepted"),
        errors=(error(), error(output="present_key", step=1, got=float("nan"))),
        vague=True,
    )
    run = read(write(tmp_path / "a.jsonl", [case()], [judged]))
    details = Parsed(render([run])).details
    pool = details["pool"]
    (one,) = details["cases"]
    (cell,) = one["results"]
    about = run.cases[case().id]
    assert pool[one["contract"]] == about.contract.model_dump(mode="json")
    assert pool[one["why"]] == about.why
    assert pool[one["links"]] == list(about.links)
    call = pool[one["call"]]
    assert pool[call["inputs"][0]]["shape"] == [1, 1, 256]
    assert pool[call["inputs"][2]] == {"name": "position_ids", "state": "omitted"}
    assert call["attributes"] == {"num_heads": 8, "kv_num_heads": 4, "scale": 0.125}
    assert pool[cell["message"]] == "ran"
    assert pool[cell["stderr"]] == "last words"
    assert pool[cell["expectation"]]["line"] == 12
    assert (cell["code"], cell["stage"], cell["vague"], cell["values_right"]) == (
        "FAIL",
        "run",
        True,
        False,
    )
    first, second = (
        dict(zip(details["error_fields"], values, strict=True)) for values in pool[cell["errors"]]
    )
    assert first == error().model_dump(mode="json") | {"index": [0, 0, 17]}
    assert (second["output"], second["step"], second["got"]) == ("present_key", 1, "nan")
    assert cell["reproduce"] == judged.reproduce
    assert cell["ms"] == {"load": 0.31, "run": 0.09, "total": 1.2}


def test_what_many_cases_share_stands_once(real: Run) -> None:
    html = render([real])
    assert html.count("Input 'key' and 'value' shall be both present") == 1


# ── Trouble ─────────────────────────────────────────────────────────────────────────────────────


def test_an_incomplete_run_says_so_at_the_top(tmp_path: Path) -> None:
    run = read(write(tmp_path / "a.jsonl", [case()], [result()], complete=False))
    html = render([run])
    text = Parsed(html).text
    assert "The run was stopped before its end." in text
    assert "Nothing unexpected in what was judged" in text
    assert html.index("Read with care") < html.index('id="matrix"')
    assert text.index("Read with care") < text.index("total")


def test_a_run_cut_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    small(path)
    path.write_bytes(path.read_bytes()[:-9])
    text = Parsed(render([read(path)])).text
    assert "It has no footer: the run was cut short." in text
    assert "none: the run was cut short" in text


def test_targets_that_are_not_there_and_infrastructure_are_told_with_their_fix(
    tmp_path: Path,
) -> None:
    cuda = target("cuda", unavailable="No NVIDIA driver.", fix="apt-get install driver")
    problem = Infrastructure(
        target="cpu@1.31.1", case="a/b", message="Half a line.", fix="look at the runner"
    )
    run = read(
        write(
            tmp_path / "a.jsonl",
            [case()],
            [result()],
            targets=[target(), cuda],
            problems=[problem],
        )
    )
    text = " ".join(Parsed(render([run])).text.split())
    assert "cuda: Not tried: No NVIDIA driver. To mend it: apt-get install driver" in text
    assert "cpu@1.31.1, a/b: Half a line. To mend it: look at the runner" in text


def test_results_without_a_described_case_are_shown(tmp_path: Path) -> None:
    results = [result(), result("lost/case", verdict="wrong")]
    run = read(write(tmp_path / "a.jsonl", [case()], results))
    parsed = Parsed(render([run]))
    assert parsed.row("lost/case") == "lost/case wrongunexpected"
    assert "Results for cases not described here" in parsed.text
    assert "Results for cases that are not described: lost/case." in parsed.text


def test_an_empty_run_is_a_page_all_the_same(tmp_path: Path) -> None:
    parsed = Parsed(render([read(write(tmp_path / "a.jsonl", [], [], targets=[target()]))]))
    assert "0 ways to call" in parsed.text
    assert parsed.details["cases"] == []


def test_the_foot_tells_where_it_comes_from(real: Run) -> None:
    text = " ".join(Parsed(render([real])).text.split())
    for told in (
        str(real.path),
        "sha256:4be1c0ffee",
        "2026-11-21 10:29 UTC",
        "Linux 6.1 x86_64",
        "onnxruntime 1.26.0, CPUExecutionProvider, AMD EPYC 7R13, 2 cores",
        "python 3.11.7, numpy 2.4.6",
        "complete, 10 unexpected",
    ):
        assert told in text


# ── One safe file ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Hostile text wherever text can stand."""
    bad = case(
        f"evil/{HOSTILE}",
        HOSTILE,
        why=HOSTILE,
        file=HOSTILE,
        tags=(HOSTILE,),
        links=("javascript:document.title='pwned'", "https://example.org/?<script>", HOSTILE),
        axes={HOSTILE: HOSTILE, "n": "1"},
        contract=Contract(source=HOSTILE.replace("\x00", ""), why="x", mentions=(HOSTILE,)),
    )
    one = target(HOSTILE, fix=HOSTILE)
    judged = result(
        bad.id,
        HOSTILE,
        "unsupported",
        unexpected=True,
        vague=True,
        message=HOSTILE + "x" * 1_000_000 + "THE END",
        reason=HOSTILE,
        code=HOSTILE,
        stderr=HOSTILE,
        placement=HOSTILE,
        reproduce=HOSTILE,
        expectation=expected(link="javascript:alert(1)", why=HOSTILE, file=HOSTILE),
        errors=(error(output=HOSTILE),),
    )
    second = case(f"evil/{HOSTILE}[n=2]", HOSTILE, name=bad.name)
    path = tmp_path_factory.mktemp("hostile") / "a.jsonl"
    problem = Infrastructure(target=HOSTILE, case=HOSTILE, message=HOSTILE, fix=HOSTILE)
    gone = target("gone", unavailable=HOSTILE, fix=HOSTILE)
    results = [judged, result(second.id, HOSTILE)]
    return read(write(path, [bad, second], results, targets=[one, gone], problems=[problem]))


def test_text_is_never_markup(hostile: Run, tmp_path: Path) -> None:
    plain = Parsed(render([run_of(tmp_path / "a.jsonl", "pass", "wrong")]))
    html = render([hostile])
    parsed = Parsed(html)
    assert {tag for tag, _ in parsed.elements} <= {tag for tag, _ in plain.elements} | {"ul"}
    assert len(parsed.scripts) == 2
    assert "<img" not in html
    assert "THE END" in parsed.scripts[1]
    assert "<" not in parsed.scripts[1]
    assert not re.search(
        "[\x00\x1b\u202a-\u202e\u2066-\u2069\u200b\u2028]", html.replace("_\u200b", "")
    )
    for _, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert len(html) < 200_000


def test_only_fragments_are_linked_before_the_script_looks(hostile: Run, real: Run) -> None:
    for run in (hostile, real):
        for link in Parsed(render([run])).attributes("a"):
            assert link["href"].startswith("#")


def test_the_page_needs_nothing_else(real: Run) -> None:
    html = render([real])
    parsed = Parsed(html)
    for tag, attributes in parsed.elements:
        assert not {"src", "srcset", "data", "action", "poster"} & attributes.keys()
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert "style" not in attributes
    assert "@import" not in parsed.style
    assert "url(" not in parsed.style


def test_its_policy_allows_just_its_own_script_and_style(real: Run) -> None:
    parsed = Parsed(render([real]))
    policy = next(
        meta["content"]
        for meta in parsed.attributes("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest(parsed.style)}'; "
        f"script-src 'sha256-{digest(parsed.scripts[0])}'; base-uri 'none'; form-action 'none'"
    )


def test_the_script_never_makes_markup_of_text() -> None:
    script = (data_path("reports") / "report.js").read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in script


def test_every_row_is_an_anchor_that_links_to_itself(real: Run) -> None:
    parsed = Parsed(render([real]))
    ids = [attributes["id"] for attributes in parsed.attributes("tr") if "data-r" in attributes]
    assert ids == list(real.cases)
    links = [a["href"] for a in parsed.attributes("a") if "data-r" not in a and "class" not in a]
    assert {unquote(href[1:]) for href in links} <= set(ids)
    assert all(re.fullmatch(r"#[\w/=,:@.~%-]+", href) for href in links)
    every = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(every) == len(set(every))


def test_every_verdict_has_a_shape_a_colour_and_a_meaning() -> None:
    template = (data_path("reports") / "report.html.j2").read_text()
    style = (data_path("reports") / "report.css").read_text()
    assert tuple(MEANING) == VERDICTS
    for verdict in VERDICTS:
        assert f'<symbol id="{verdict}"' in template
        assert f".{verdict} {{" in style


def colours(style: str) -> list[dict[str, str]]:
    """The style's custom properties that are colours, in light and in dark."""
    light, dark = re.findall(r":root \{(.*?)\n *\}", style, re.S)[:2]
    first = dict(re.findall(r"--([\w-]+): (#\w+);", light))
    return [first, first | dict(re.findall(r"--([\w-]+): (#\w+);", dark))]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_enough_in_light_and_dark() -> None:
    for palette in colours((data_path("reports") / "report.css").read_text()):
        pairs = [("text", "page"), ("soft", "page"), ("soft", "raised"), ("link", "page")]
        for verdict in VERDICTS:
            pairs += [(f"{verdict}-ink", "page"), (f"{verdict}-ink", f"{verdict}-tint")]
            pairs += [("on-loud", f"{verdict}-loud")]
        for ink, ground in pairs:
            high, low = sorted((luminance(palette[ink]), luminance(palette[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground, palette[ink], palette[ground])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of 300 cases, with long ids, on two targets."""
    cases = [
        case(f"decode/one_token_{n // 12}[dtype=float16,batch_size=2,past_sequence_length={n}]")
        for n in range(300)
    ]
    names = ("cpu@1.31.1", "cpu@1.26.0")
    results = [
        result(one.id, name, "wrong" if n % 10 == 0 else "pass")
        for n, one in enumerate(cases)
        for name in names
    ]
    path = write(tmp_path_factory.mktemp("large") / "a.jsonl", cases, results)
    return render([read(path)])


def test_300_cases_on_two_targets_are_less_than_a_megabyte(large: str) -> None:
    assert len(large.encode()) < 1_000_000


def test_the_same_run_gives_the_same_page(real: Run) -> None:
    assert render([real]) == render([real])


# ── In a browser ────────────────────────────────────────────────────────────────────────────────

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE = {"width": 1400, "height": 900}
WHERE = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, started once."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, WHERE)), None)
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Any) -> Any:
    """What tests share that want nothing special of the browser."""
    return browser.new_context(viewport=SIZE)


@pytest.fixture
def show(browser: Any, context: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from a file; fails if it complained or asked for anything else."""
    tabs: list[Any] = []
    complaints: list[str] = []

    def note(request: Any) -> None:
        if not request.url.startswith(path.as_uri()):
            complaints.append(f"asked for {request.url}")

    path = tmp_path / "report.html"

    def open_(html: str, fragment: str = "", **options: Any) -> Any:
        path.write_text(html, encoding="utf-8")
        tab = (browser.new_context(viewport=SIZE, **options) if options else context).new_page()
        tabs.append(tab)
        tab.set_default_timeout(3_000)
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.on("request", note)
        tab.goto(path.as_uri() + fragment)
        return tab

    yield open_
    for tab in tabs:
        tab.close()
    assert complaints == []


def cell(tab: Any, id: str, column: int = 0) -> Any:
    """The button of a case on a target."""
    return tab.locator(f'tr[id="{id}"] td button').nth(column)


def visible(tab: Any) -> list[str]:
    """Ids of the rows that can be seen."""
    rows = "[...document.querySelectorAll('#matrix tr[id]')]"
    found: list[str] = tab.evaluate(f"{rows}.filter(tr => tr.offsetParent).map(tr => tr.id)")
    return found


def test_groups_are_folded_and_unfold(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    groups = visible(tab)
    assert "shared_kv/zero_length_kv" in groups
    assert "decode/borrowed_full_length_kv" in groups
    assert not [id for id in groups if "[" in id]
    fold = tab.get_by_role("button", name="zero_length_kv", exact=True)
    assert fold.get_attribute("aria-expanded") == "false"
    fold.click()
    assert fold.get_attribute("aria-expanded") == "true"
    assert len(visible(tab)) == len(groups) + 12
    fold.click()
    assert visible(tab) == groups
    tab.get_by_role("button", name="Unfold all").click()
    assert set(real.cases) <= set(visible(tab))
    tab.get_by_role("button", name="Fold all").click()
    assert visible(tab) == groups


def test_a_click_opens_all_about_a_cell(show: Open, real_page: str) -> None:
    tab = show(real_page)
    panel = tab.locator("#panel")
    assert not panel.is_visible()
    id = "presents/omitted_with_past_and_new_kv[dtype=float32,past_sequence_length=7,batch_size=1]"
    tab.get_by_role("button", name="omitted_with_past_and_new_kv").click()
    cell(tab, id).click()
    text = " ".join(panel.inner_text().split())
    for told in (
        "accepted on cpu@1.31.1",
        id,
        "It ran, and the contract asks for a refusal; its values were wrong.",
        "Known: accepted is expected (expectations/cpu.yaml, line 12).",
        "Reads past the end of the cache. microsoft/onnxruntime#28242",
        "The call must be refused, with a message that helps.",
        "one of: present_key, present_value, past_key",
        "query 1 × 1 × 256 float32 uniform in [-1, 1], seed 0",
        "position_ids omitted: an empty name",
        "left off at the end: head_sink",
        "num_heads = 8",
        "device AMD EPYC 7R13, 2 cores",
        "placed on CPUExecutionProvider",
        "values wrong",
        "load 0.31 ms, run 0.09 ms, total 1.2 ms",
        f"gqa run --ep cpu@1.31.1 -k '{id}'",
    ):
        assert told in text
    links = panel.locator("a").evaluate_all("links => links.map(link => link.href)")
    assert "https://github.com/microsoft/onnxruntime/issues/28242" in links
    struck = panel.locator("s").all_inner_texts()
    assert {"position_ids", "head_sink", "present_key"} <= set(struck)


def test_numbers_are_told_worst_first(show: Open, tmp_path: Path) -> None:
    numbers = (
        error(share=0.5, output="present_key"),
        error(got=0.026869399, want=0.026869401, absolute=5.0, undefined=3),
        error(share=0.1, output="present_value", step=1),
        error(share=0.2, output="output", step=1),
        error(share=float("inf"), got=float("nan"), output="output", step=2),
    )
    run = small(tmp_path / "a.jsonl", "wrong", errors=numbers)
    tab = show(render([run]))
    cell(tab, case().id).click()
    rows = tab.locator("#panel table").first.locator("tbody tr").all_inner_texts()
    assert [" ".join(row.split()) for row in rows[1:]] == [
        "output of call 2 [0, 0, 17] nan 0.25 0.0371 0.001 inf × 0.0371",
        "output of call 0 [0, 0, 17] 0.026869399 0.026869401 2e-9 0.001 37 × 0.0371",
        "present_key of call 0 [0, 0, 17] 0.2871 0.25 0.0371 0.001 0.5 × 0.0371",
    ]
    text = tab.locator("#panel").inner_text()
    assert "2 more, all within their budget" in text
    assert "1280 elements compared, 3 left alone" in text


def test_the_message_is_shown_in_full_and_can_be_selected(show: Open, tmp_path: Path) -> None:
    message = "first line\n  second line\n" + "long " * 1000
    run = small(tmp_path / "a.jsonl", "unsupported", message=message, vague=True, stderr="the end")
    tab = show(render([run]))
    cell(tab, case().id).click()
    shown = tab.locator("#panel pre").first
    assert shown.evaluate("pre => pre.textContent") == message
    assert "What the runtime said at run, INVALID_ARGUMENT" in tab.locator("#panel").inner_text()
    assert "it names none of key, value" in tab.locator("#panel").inner_text()
    assert tab.locator("#panel pre").last.inner_text() == "the end"
    shown.evaluate("pre => getSelection().selectAllChildren(pre)")
    assert tab.evaluate("getSelection().toString()").startswith("first line\n  second line\n")


def test_hostile_text_does_nothing(show: Open, hostile: Run) -> None:
    tab = show(render([hostile]))
    before = tab.title()
    tab.locator("#unfold").click()
    for button in tab.locator("#matrix td button").all():
        button.click()
    tab.locator(".findings a").first.click()
    panel = tab.locator("#panel")
    assert "<img src=x onerror=" in panel.locator("pre").first.inner_text()
    assert "THE END" in panel.locator("pre").first.inner_text()
    assert tab.locator("img, #panel script, #panel pre *").count() == 0
    schemes = panel.locator("a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(schemes) == {"https:"}
    assert tab.title() == before
    # A message does not make the page wider than the window.
    assert tab.evaluate("document.querySelector('#panel').scrollWidth <= innerWidth")


def test_filtering_by_verdict_by_words_and_by_mark(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    everything = visible(tab)

    def shown() -> list[str]:
        return [id for id in visible(tab) if id in real.cases]

    def having(verdict: str) -> list[str]:
        return [id for id in real.cases if (id, verdict) in verdicts]

    verdicts = {(result.case, result.verdict) for result in real.results}
    chip = tab.locator(".chips")
    chip.get_by_text("wrong").click()
    assert shown() == having("wrong")
    assert tab.locator("#shown").inner_text() == f"{len(having('wrong'))} of 125 cases"
    chip.get_by_text("timeout").click()
    assert set(shown()) == {*having("wrong"), *having("timeout")}
    chip.get_by_text("wrong").click()
    tab.get_by_label("Search case ids").fill("FLOAT16 rotary=yes")
    assert (
        shown() == [id for id in having("timeout") if "float16" in id and "rotary=yes" in id] != []
    )
    tab.get_by_role("button", name="Show all").click()
    assert visible(tab) == everything
    chip.get_by_text("only unexpected").click()
    unexpected = {result.case for result in real.results if result.unexpected}
    assert set(shown()) == unexpected
    # Its unexpected results are timeouts: a pass beside them is no reason to show a row.
    chip.get_by_text("pass").click()
    assert shown() == []
    assert tab.locator("#nothing").is_visible()
    assert not tab.get_by_text("Which presents may be left out?").is_visible()


def test_everything_works_by_keyboard(show: Open, real_page: str) -> None:
    tab = show(real_page)
    tab.locator("#search").focus()
    tab.keyboard.type("several_tokens sequence_length=33,rotary=none")
    wanted = "decode/several_tokens[dtype=float16,sequence_length=33,rotary=none]"
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.closest('tr')?.id") == wanted and tab.evaluate(
            "document.activeElement.tagName === 'BUTTON'"
        ):
            break
    focused = "document.activeElement.closest('td').cellIndex"
    assert tab.evaluate(focused) == 1
    tab.keyboard.press("Enter")
    assert tab.locator("#panel").is_visible()
    assert tab.evaluate("document.activeElement.id") == "panel"
    assert cell(tab, wanted).get_attribute("aria-current") == "true"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Close"
    tab.keyboard.press("Escape")
    assert not tab.locator("#panel").is_visible()
    assert tab.evaluate("document.activeElement.closest('tr').id") == wanted
    tab.keyboard.press("Space")
    assert tab.locator("#panel").is_visible()


def test_opening_and_closing_keeps_the_row_where_it_is(show: Open, real_page: str) -> None:
    tab = show(real_page)
    button = tab.locator('tr[id="presents/only_key"] td button').first
    button.scroll_into_view_if_needed()
    tab.mouse.wheel(0, 200)
    before = button.bounding_box()["y"]
    button.click()
    assert abs(button.bounding_box()["y"] - before) < 2
    tab.get_by_role("button", name="Close").click()
    assert abs(button.bounding_box()["y"] - before) < 2


def test_a_group_cell_opens_the_case_to_look_at_first(show: Open, real_page: str) -> None:
    tab = show(real_page)
    tab.locator('tr[id="decode/several_tokens"] td button').nth(1).click()
    text = tab.locator("#panel").inner_text()
    assert "timeout" in text
    assert "one of 12 cases, and the one to look at first" in text
    first = "decode/several_tokens[dtype=float32,sequence_length=5,rotary=none]"
    assert first in visible(tab)
    assert cell(tab, first, 1).get_attribute("aria-current") == "true"


def test_addresses_lead_to_rows_and_cells(show: Open, real_page: str) -> None:
    id = "shared_kv/omitted_kv_with_past[dtype=float16,batch_size=2,heads=8:1]"
    html = real_page
    href = next(
        a["href"] for a in Parsed(html).attributes("a") if unquote(a.get("href", "")) == f"#{id}"
    )
    tab = show(html, href)
    row = tab.locator(f'tr[id="{id}"]')
    assert row.is_visible()
    box = row.bounding_box()
    assert 0 < box["y"] < 900
    assert not tab.locator("#panel").is_visible()
    cell(tab, id, 1).click()
    address = tab.evaluate("location.hash")
    assert unquote(address) == f"#{id}@cpu@1.26.0"
    again = show(html, address)
    assert again.locator("#panel h2").inner_text() == id
    assert cell(again, id, 1).get_attribute("aria-current") == "true"
    again.get_by_role("button", name="Close").click()
    assert unquote(again.evaluate("location.hash")) == f"#{id}"
    # An address that leads nowhere, or is none, does no harm.
    show(html, "#nobody/knows[it=1]")
    show(html, "#%E0%A4%A")


def test_an_address_is_followed_though_a_filter_hides_its_row(show: Open, real_page: str) -> None:
    tab = show(real_page)
    tab.locator("#search").fill("nothing like this")
    tab.evaluate("location.hash = '#ground/prefill'")
    tab.locator('tr[id="ground/prefill"]').wait_for()
    tab.locator("#search").fill("nothing like this")
    tab.locator(".findings a").first.click()
    assert tab.locator("#panel").is_visible()
    assert cell(tab, tab.locator("#panel h2").inner_text(), 1).is_visible()


def test_findings_open_their_first_case(show: Open, real_page: str) -> None:
    tab = show(real_page)
    found = tab.locator(".findings a").first
    found.click()
    assert "timeout" in tab.locator("#panel .top").inner_text()
    box = tab.locator("#matrix [aria-current]").bounding_box()
    assert 0 < box["y"] < 900
    tab.keyboard.press("Escape")
    assert found.evaluate("link => link === document.activeElement")


def test_the_reproduction_can_be_copied(show: Open, real_page: str) -> None:
    tab = show(real_page, permissions=["clipboard-read", "clipboard-write"])
    tab.locator(".findings a").first.click()
    tab.get_by_role("button", name="Copy").click()
    tab.get_by_text("Copied").wait_for()
    command = tab.locator("#panel .command pre").inner_text()
    assert command.startswith("gqa run --ep cpu@1.26.0 -k 'decode/several_tokens")
    assert tab.evaluate("navigator.clipboard.readText()") == command


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.closest("script, style")) continue;
    const pair = [parse(getComputedStyle(element).color), ground(element)];
    const [high, low] = pair.map(luminance).sort((a, b) => b - a);
    if ((high + 0.05) / (low + 0.05) < 4.5) poor.push(element.outerHTML.slice(0, 200));
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(show: Open, real_page: str, scheme: str) -> None:
    tab = show(real_page, color_scheme=scheme)
    tab.locator("#unfold").click()
    tab.locator(".findings a").nth(1).click()
    tab.locator(".chips .wrong").click()
    page_colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}[scheme]
    assert tab.evaluate(CONTRAST) == []
    tab.locator(".chips .wrong").click()
    assert tab.evaluate(CONTRAST) == []


def test_it_fits_a_phone(show: Open, real_page: str) -> None:
    tab = show(real_page)
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.locator("#unfold").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    cell(tab, "decode/borrowed_full_length_kv").click()
    assert tab.locator("#panel").bounding_box()["width"] <= 390


def test_without_a_script_the_table_can_be_read(show: Open, real_page: str) -> None:
    tab = show(real_page, java_script_enabled=False)
    assert tab.locator("#matrix tr.member").last.is_visible()
    assert not tab.locator("#search").is_visible()
    row = tab.locator('tr[id="ground/head_sink[dtype=float16]"]')
    assert " ".join(row.inner_text().split()) == "dtype float16 skip skip"


def test_300_cases_are_there_at_once(show: Open, large: str) -> None:
    tab = show(large)
    ready = tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    assert ready < 2_000, f"{ready:.0f} ms to load"
    took = tab.evaluate(
        """() => {
          const search = document.querySelector("#search");
          const start = performance.now();
          search.value = "past_sequence_length=1";
          search.dispatchEvent(new Event("input"));
          document.body.offsetHeight;
          return performance.now() - start;
        }"""
    )
    assert took < 500, f"{took:.0f} ms to filter"
