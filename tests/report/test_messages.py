"""How a pasted message finds what it means and where it was given: in Python, and in the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browsing import Open
from synthetic_runs import case, of_results, result, small
from tables import tables

from conformance.base.paths import ROOT
from conformance.operator.signature import ATTRIBUTES, INPUTS, OUTPUTS
from conformance.report.html import render
from conformance.report.message_page import meanings, meanings_of, recorded_results
from conformance.results.messages import message_words
from conformance.results.table import tabulate

TABLES = tables(__file__)

OLDER = "The release is older than the model"

#: Messages as people paste them, and the heading of what they mean.
PASTED = TABLES["pasted"]


@pytest.mark.parametrize(("text", "heading"), PASTED)
def test_a_pasted_message_has_its_meaning(text: str, heading: str) -> None:
    assert heading in [one.heading for one in meanings_of(text)]


def test_what_is_no_message_has_no_meaning() -> None:
    assert meanings_of("gemma 4 float16 decode on webgpu") == []


def test_messages_are_alike_without_numbers_names_and_wrapping() -> None:
    recorded = message_words(
        "failed to call OrtRun(). ERROR_CODE: 2, ERROR_MESSAGE: Non-zero status code returned while"
        " running GroupQueryAttention node. Name:'gqa' Status Message: Input 'past_key' dimension 3"
        " should be same as head_size, got 40 expected 80"
    )
    other = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Input 'past_key' dimension 3 should be"
    assert recorded.is_like(message_words(f"{other} same as head_size, got 64 expected 128"))
    assert not recorded.is_like(message_words(f"{other} batch_size, got 3"))
    assert not recorded.is_like(message_words("got expected"))


def test_the_page_says_since_when_each_part_exists() -> None:
    (older,) = (one for one in meanings() if one.heading == OLDER)
    listed = {
        name: row[1]
        for row in re.finditer(r"^\| (1\.\d+) (\|.*)$", older.text, re.M)
        for name in re.findall(r"`(\w+)`", row[2])
    }
    parts = (*ATTRIBUTES, *INPUTS, *OUTPUTS)
    assert listed == {part.name: part.since for part in parts if part.since != "1.20"}


@pytest.mark.push
@pytest.mark.skipif(
    not (ROOT / "reports" / "recorded" / "history").is_dir(), reason="no recorded results here"
)
def test_all_recorded_releases_are_searched() -> None:
    found = [*recorded_results(PASTED[0][0])]
    assert len(found) > 4_000
    newest = {"cpu@1.28.0", "wasm@1.27.0", "webgpu@1.27.0+lavapipe"}
    assert newest < {one.target for one in found}
    assert not any(one.target.startswith("cpu@1.29") for one in found)
    assert [*recorded_results(PASTED[2][0])]
    assert not [*recorded_results(PASTED[1][0])]


def test_the_page_has_the_same_rule(show: Open, tmp_path: Path) -> None:
    tab = show(render(tabulate([small(tmp_path / "a", "pass")])))
    texts = [text for text, _ in PASTED] + [one.text for one in meanings()]
    rule = "texts => texts.map(text => Object.values(messageWords(text)).map(set => [...set]))"
    for text, (every, core) in zip(texts, tab.evaluate(rule, texts), strict=True):
        words = message_words(text)
        assert (set(every), set(core)) == (words.every, words.core), text


def test_the_page_finds_a_message_of_an_older_release(show: Open, tmp_path: Path) -> None:
    said = "[E] : 1 : FAIL : Load model failed: Unrecognized attribute: causal for operator GQA"
    results = [
        result("a/x", "cpu@1.29.0", verdict="unsupported", unexpected=False, message=said),
        result("a/x", "cpu@1.30.0"),
        result("a/y", "cpu@1.29.0"),
        result("a/y", "cpu@1.30.0"),
    ]
    about = [case("a/x"), case("a/y")]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, about)])))
    tab.locator("#find").fill("Unrecognized attribute: causal for operator GQA")
    tab.locator('#matrix tr[id="a/x"]').wait_for()
    assert tab.locator('#matrix tr[id="a/y"]').count() == 0
    assert tab.locator(".meanings article:visible h3").all_inner_texts() == [OLDER]
    assert tab.locator(".which, .summary, .findings").locator("visible=true").count() == 0
    assert tab.locator('#matrix tr[id="a/x"]').bounding_box()["y"] < 900
    tab.locator("#find").fill("")
    assert tab.locator(".meanings").is_hidden()
    assert tab.locator(".summary").is_visible()
