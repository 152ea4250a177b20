"""The data of the page: headings, causes, problems, and the cells with their details."""

from __future__ import annotations

from pathlib import Path

from reported import decoded
from synthetic_runs import case, of_results, result, small, target

from conformance.report.encoding import Encoder
from conformance.report.html import render
from conformance.report.view import page
from conformance.results.table import tabulate


def test_only_what_is_bad_has_a_bug_report(tmp_path: Path) -> None:
    for verdict in ("pass", "skip"):
        data, told = map(decoded, page(tabulate([small(tmp_path / "b", verdict)]))[1:])
        assert not data["cases"][0]["results"][0]["look"]["reported"]
        assert told["reports"] == []
    data, _ = map(decoded, page(tabulate([small(tmp_path / "d", "pass", vague=True)]))[1:])
    assert data["cases"][0]["results"][0]["look"]["reported"]


def test_a_row_has_a_title_and_a_reason_where_there_is_one(tmp_path: Path) -> None:
    cases = [case("a/x[n=1]", title="Borrow", why="one"), case("a/x[n=2]", why="two"), case("a/y")]
    _, data, _ = page(tabulate([of_results(tmp_path / "a", [result(c.id) for c in cases], cases)]))
    groups = decoded(data)["groups"]
    rows = [(group["title"], group["name"], group["why"]) for group in groups]
    assert rows == [("Borrow", "x", ""), ("y", "y", case().why)]


def test_why_cases_were_not_tried_is_counted(tmp_path: Path) -> None:
    reasons = ("no float16", "no float16", "no time")
    results = [result(f"a/{n}", verdict="skip", reason=why) for n, why in enumerate(reasons)]
    shown, *_ = page(tabulate([of_results(tmp_path / "a", [*results, result("a/3")])]))
    assert [*shown.skipped.items()] == [
        (("cpu@1.31.1", "no float16"), 2),
        (("cpu@1.31.1", "no time"), 1),
    ]


def test_an_adapter_or_version_in_the_name_is_not_repeated(tmp_path: Path) -> None:
    described = target("webgpu@1.30.0+lavapipe")
    for name in (described.name, "webgpu"):
        one = described.model_copy(update={"name": name})
        html = render(tabulate([of_results(tmp_path / "a", [result(target=name)], targets=[one])]))
        for shown in ("<small><bdi>1.30.0</bdi></small>", "<small>on <bdi>lavapipe</bdi></small>"):
            assert (shown in html) == (name == "webgpu")


def test_equal_parts_are_written_once_and_others_stay_what_they_are() -> None:
    part = {"text": "a", "numbers": [1, 1.0, True, -0.0, 0.0, None], "2": "1"}
    value = {"first": part, "again": [dict(part), "a", [], {}, ""], "number": 1}
    encoder = Encoder()
    place = encoder.add(part)
    encoded = encoder.whole({**value, "first": place})
    assert repr(decoded(encoded)) == repr(value)
    assert [*map(repr, encoded["values"])].count(repr("a")) == 1
    assert len({repr(each) for each in encoded["values"]}) == len(encoded["values"])
