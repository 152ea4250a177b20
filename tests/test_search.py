"""``gqa search`` and ``-k`` as a user sees them: what is found, and why nothing is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from as_user import Desk, Gqa, in_this_process
from case_files import entries, write

from conformance.cli.search import _FEW

CALLS = """
- {name: one, title: First, softcap: 30.0, tags: [pretty], matrix: {dtype: [float32, float16]}}
- {name: two, title: Second, sequence_length: 9, local_window_size: 4, head_size: 256}
- {name: three, title: Third, contract: {source: x, demands: either}, softcap: 5.0, head_size: 8}
"""


@pytest.fixture
def gqa(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    monkeypatch.chdir(desk.folder)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    write(desk.folder, entries(CALLS), "calls.yaml")
    with in_this_process(monkeypatch, capsys) as call:
        yield call


def test_cases_are_listed_below_their_titles(gqa: Gqa) -> None:
    done = gqa("search", "softcap", "calls.yaml")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "First  computes (specified)",
        "  calls/one[dtype=float32]",
        "  calls/one[dtype=float16]",
        "Third  either",
        "  calls/three",
        "",
        "3 of 4 cases.",
    ]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("softcap and head_size<=8", ["calls/three"]),
        ("window or pretty and dtype=float16", ["calls/one[dtype=float16]", "calls/two"]),
        ("not softcap", ["calls/two"]),
        ("softcap = 5 or two", ["calls/two", "calls/three"]),
        ("sequence_length=2..16", ["calls/two"]),
        ("float32 and not pretty", ["calls/two", "calls/three"]),
    ],
)
def test_gqa_list_and_search_agree(gqa: Gqa, expression: str, names: list[str]) -> None:
    listed = gqa("list", "calls.yaml", "-k", expression)
    assert listed.out.splitlines() == names
    found = gqa("search", expression, "calls.yaml", "--json")
    assert [json.loads(line)["id"] for line in found.out.splitlines()] == names
    assert found.out == gqa("list", "calls.yaml", "-k", expression, "--json").out
    assert f"\n{len(names)} of 4 cases.\n" in gqa("search", expression, "calls.yaml").out


def test_of_many_cases_the_themes_are_listed(gqa: Gqa, desk: Desk) -> None:
    seeds = list(range(_FEW))
    write(desk.folder, entries(f"- {{name: a, matrix: {{seed: {seeds}}}}}"), "many.yaml")
    done = gqa("search", "float32", "calls.yaml", "many.yaml")
    assert done.out.splitlines() == [
        f"{_FEW:5}  many   What is asked?",
        "    3  calls  What is asked?",
        "",
        f"{_FEW + 3} of {_FEW + 4} cases; --all lists them, and a PATH narrows it.",
    ]
    every = gqa("search", "float32", "calls.yaml", "many.yaml", "--all").out.splitlines()
    assert len([line for line in every if line.startswith("  ")]) == _FEW + 3
    assert every[-1] == f"{_FEW + 3} of {_FEW + 4} cases."


def test_the_parts_of_an_expression_that_finds_nothing_are_counted(gqa: Gqa) -> None:
    done = gqa("search", "softcap and (widow or three) and head_size>=256", "calls.yaml")
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines() == [
        "'softcap and (widow or three) and head_size>=256' selects none of 4 cases.",
        "  cases  without it  part",
        "      3           0  softcap",
        "      1           0  (widow or three)",
        "      1           1  head_size>=256",
        "No case has 'widow'; did you mean 'window'?",
    ]
    assert gqa("search", "widow or softcap and ragged", "calls.yaml").err.splitlines() == [
        "'widow or softcap and ragged' selects none of 4 cases.",
        "  cases  part",
        "      0  widow",
        "      0  (softcap and ragged)",
        "No case has 'widow'; did you mean 'window'?",
    ]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("sofcap", "No case has 'sofcap'; did you mean 'softcap'?"),
        ("prety", "No case has 'prety'; did you mean 'pretty'?"),
        ("thre", ""),
        ("thref", "No case has 'thref'; did you mean 'three'?"),
        (
            "dtype=flaot16",
            "No case has 'dtype=flaot16': 'dtype' has no value 'flaot16'; did you mean 'float16'?",
        ),
        (
            "head_sise=256",
            "No case has 'head_sise=256': a call has no 'head_sise'; did you mean 'head_size'?",
        ),
        ("head_size=200", "No case has 'head_size=200'; the nearest are 16 and 256."),
        ("head_size>1000", "No case has 'head_size>1000'; the nearest is 256."),
        ("seed=1..9", "No case has 'seed=1..9'; the nearest is 0."),
        ("batch_size=2", "No case has 'batch_size=2'; the nearest is 1."),
        ("quxly", ""),
    ],
)
def test_what_may_be_meant(gqa: Gqa, expression: str, told: str) -> None:
    found = gqa("search", expression, "calls.yaml")
    listed = gqa("list", "calls.yaml", "-k", expression)
    if expression == "thre":
        assert (found.status, listed.status) == (0, 0)
        return
    assert (found.status, listed.status) == (2, 2)
    first = f"'{expression}' selects none of 4 cases."
    assert found.err.splitlines() == [first, *([told] if told else [])]
    assert listed.err == f"-k {first} {told}".rstrip() + "\n"


def test_minus_k_counts_the_parts_in_one_line(gqa: Gqa, desk: Desk) -> None:
    says = "-k 'softcap and window' selects none of 4 cases (softcap 3, window 1).\n"
    for command in (("list",), ("run", "--ep", desk.runner("correct")), ("power",)):
        done = gqa(*command, "calls.yaml", "-k", "softcap and window")
        assert (done.status, done.out, done.err) == (2, "", says)


def test_a_word_that_no_case_has_is_told_beside_what_others_find(gqa: Gqa) -> None:
    done = gqa("search", "two or prety", "calls.yaml")
    assert done.status == 0
    assert "1 of 4 cases." in done.out
    assert done.err == "No case has 'prety'; did you mean 'pretty'?\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "The expression is empty; name what to search for: softcap."),
        (("softcap and",), "'softcap and': expected a word, 'not' or '(', found the end"),
        (("softcap", "and", "window"), "'and' is not a file, a folder or a theme of the corpus."),
        (("head_siz>3",), "'head_siz>3': a call has no 'head_siz'; did you mean 'head_size'?"),
        (("softcap", "nowhere.yaml"), "nowhere.yaml: no such file or folder"),
    ],
)
def test_bad_input_is_a_sentence(gqa: Gqa, arguments: tuple[str, ...], says: str) -> None:
    done = gqa("search", *arguments)
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(says)
    assert ("in quotes" in line) == ("and" in arguments)


def test_gqa_run_selects_by_the_call(gqa: Gqa, desk: Desk) -> None:
    arguments = ("run", "calls.yaml", "--ep", desk.runner("correct"), "--results", "found.jsonl")
    assert gqa(*arguments, "-k", "softcap and head_size<16").status == 0
    lines = (desk.folder / "found.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["case"] for record in records if "verdict" in record] == ["calls/three"]


def test_the_corpus_has_the_call_that_help_and_readme_ask_for(gqa: Gqa) -> None:
    done = gqa("search", "softcap and window and head_size=256 and shared_kv")
    assert done.status == 0
    assert int(done.out.splitlines()[-1].partition(" of ")[0]) >= 2


def test_long_expressions_are_not_told_part_by_part(gqa: Gqa) -> None:
    done = gqa("list", "calls.yaml", "-k", " or ".join(f"sofcap{n}x" for n in range(900)))
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert done.err.count("No case has") <= 20
