"""The table of models in a real browser, in the report and on the site, and the site's pages."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import fromstring

import pytest
from browsing import Open
from model_searches import SEARCHES
from report_page import rows, violations
from reported import Parsed
from synthetic_runs import case, of_results, result, target

from conformance.cli.report import FORMS, Material
from conformance.report.html import render
from conformance.report.model_pages import load_models
from conformance.report.model_table import ModelTable
from conformance.report.site import FeedEntry, Site
from conformance.results.reader import Run
from conformance.results.records import InfrastructureRecord
from conformance.results.table import tabulate

THEMES = ["dense", "decode", "models", "shared_kv", "exports", "omitted_kv", "omitted_present"]
FIRST = ["models", "exports", "omitted_kv", "shared_kv", "omitted_present"]
WIDTHS = (1500, 1280, 820, 390)
PAGES = ("report.html", "index.html", "models/gemma-4-e2b.html", "findings/index.html",
         "findings/dawn-zeros-in-loops.html")  # fmt: skip
CHANGES = [
    FeedEntry("2026-11-20", "A <new> release", "It & others."),
    FeedEntry("2026-11-20", "B", ""),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over the themes, with something unexpected and a failure, on a newer release."""
    cases = [case(f"{theme}/{name}") for theme in THEMES for name in ("gemma4_prompt", "other")]
    name = "cpu@99.33.0"
    results = [result(one.id, name, "wrong" if n == 3 else "pass") for n, one in enumerate(cases)]
    failed = InfrastructureRecord(target=name, case="a/b", message="A line.")
    path = tmp_path_factory.mktemp("models") / "a"
    return of_results(path, results, cases, targets=[target(name)], problems=[failed])


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return render(tabulate([run]))


@pytest.fixture(scope="module")
def site(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the run, with an address."""
    folder = tmp_path_factory.mktemp("site") / "site"
    folder.mkdir()
    lines = (json.dumps(asdict(change)) for change in CHANGES)
    (folder / "changes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    form = next(form for form in FORMS if form.option == "site")
    material = Material([run], tabulate([run]), address="https://a.example/gqa")
    form.write(folder, form.files(material, folder))
    return folder


def shown(tab: Any) -> list[str]:
    """The models whose rows are visible."""
    rows = tab.locator(".models .exported:visible")
    found = rows.evaluate_all("all => all.map(row => row.closest('.family').dataset.name)")
    return [*dict.fromkeys(found)]


# ── The order of the page ───────────────────────────────────────────────────────────────────────


def test_models_come_before_scores_what_is_wrong_and_the_table(run: Run, page: str) -> None:
    order = ('id="find"', 'id="which-model"', 'id="score"', 'id="troubles"', 'id="findings"',
             'id="search"', 'id="matrix"')  # fmt: skip
    places = [page.index(f" {part}") for part in order]
    assert places == sorted(places)
    themes = [theme["name"] for theme in Parsed(page).cells["themes"]]
    assert themes == [*FIRST, "decode", "dense"]  # `dense` is generated


def test_a_checked_model_comes_first_and_nothing_recorded_beside_it(run: Run, show: Open) -> None:
    html = render(tabulate([run]), model=ModelTable("mine.onnx", (), (), (), (), (), ()))
    assert html.index(' id="model"') < html.index(' id="score"')
    assert 'class="models"' not in html
    tab = show(html)
    tab.locator("#find").fill("gemma4")
    assert tab.locator("#found").inner_text() == "7 calls"


def test_a_release_that_is_newer_than_those_tried_is_named(run: Run, page: str) -> None:
    assert Parsed(page).words.count("99.33 not tried yet") == 1
    models = load_models().beside([target("cpu@1.20.1"), target("webgpu@99.0.0+lavapipe")])
    assert models.newer == {"webgpu+lavapipe": "99.0.0"}
    assert load_models().beside([target("webgpu", unavailable="no adapter")]).newer == {}


# ── Search ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("typed", ["gemma4", " GEMMA-4 e2b  "])
def test_the_search_leaves_the_models_it_names(show: Open, page: str, typed: str) -> None:
    tab = show(page)
    families = [*load_models().families]
    assert shown(tab) == families
    tab.locator("#find").fill(typed)
    assert shown(tab) == ["Gemma 4 E2B"]
    assert tab.locator("#found").inner_text().startswith("1 model, ")
    tab.locator("#find").fill("")
    assert shown(tab) == families
    assert tab.locator("#found").inner_text() == ""


@pytest.mark.night
def test_the_address_keeps_the_search_and_enter_goes_to_the_found(show: Open, page: str) -> None:
    tab = show(page, "#?q=gemma4")
    tab.set_viewport_size({"width": 1280, "height": 300})
    assert shown(tab) == ["Gemma 4 E2B"]
    assert tab.locator("#found").inner_text() == "1 model, 7 calls"
    tab.locator("#find").press("Enter")
    assert 0 <= tab.locator("#which-model").bounding_box()["y"] < 150
    tab.locator("#to-calls").click()
    assert 0 <= tab.locator("#matrix").bounding_box()["y"] < 150
    tab.locator("#find").fill("shared_kv/other")
    assert tab.locator("#no-models").inner_text().startswith("No recorded model has these words.")
    assert (shown(tab), rows(tab, "theme")) == ([], ["shared_kv"])
    assert unquote(tab.evaluate("location.hash")) == "#?q=shared_kv/other"
    tab.locator("#find").press("Enter")
    assert 0 <= tab.locator("#matrix").bounding_box()["y"] < 150


@pytest.mark.night
def test_a_search_for_a_row_hides_the_others_and_what_they_unfolded(show: Open) -> None:
    """Two rows of one model, of which the name is beside the first one that is visible."""
    one = next(row for row in load_models().rows if row.family == "Llama 3.2 1B")
    two = replace(one, graph="other", weights="int4")
    models = replace(load_models(), rows=[one, two])
    index = dict(Site(models).files())["index.html"]
    tab = show(index, wait=False)
    tab.locator(".unfold").first.click()
    assert tab.locator(".about:visible").count() == 1
    tab.locator("#find").fill("llama int4")
    assert tab.locator(".exported:visible").count() == 1
    assert tab.locator(".about:visible").count() == 0
    assert tab.locator(".exported:visible [scope=rowgroup]").inner_text() == "Llama 3.2 1B"
    assert tab.locator("#found").inner_text() == "1 model, 0 findings"
    tab.locator("#find").fill("")
    assert tab.locator(".exported:visible").count() == 2
    assert tab.locator(".about:visible").count() == 1
    assert tab.locator(".exported").first.locator("[scope=rowgroup]").count() == 1


@pytest.mark.parametrize(("typed", "graphs", "columns"), SEARCHES)
def test_the_page_understands_a_search_as_the_command_does(
    show: Open, site: Path, typed: str, graphs: set[str], columns: set[str]
) -> None:
    tab = show((site / "index.html").read_text(encoding="utf-8"), wait=False)
    tab.locator("#find").fill(typed)
    found = tab.locator(".exported:visible + .about")
    assert {*found.evaluate_all("all => all.map(row => row.id)")} == graphs
    heads = tab.locator("thead [data-runtime]:visible")
    there = {*heads.evaluate_all("all => all.map(head => head.dataset.runtime.split('+')[0])")}
    if graphs:
        every = {name.partition("+")[0] for name in load_models().runtimes}
        assert there == (columns & every or every)


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.night
def test_a_row_unfolds_by_its_button_by_a_cell_and_by_keyboard(show: Open, page: str) -> None:
    tab = show(page)
    row = tab.locator(".family", has_text="Gemma 4 E2B")
    about, unfold = row.locator(".about").first, row.locator(".unfold").first
    for act in (
        unfold.click,
        row.locator(".exported").first.locator("td button").last.click,
        lambda: unfold.press("Enter"),
    ):
        for expanded in ("true", "false"):
            act()
            assert about.is_visible() is (expanded == "true")
            for button in row.locator(".exported").first.locator("button").all():
                assert button.get_attribute("aria-expanded") == expanded
    unfold.press("Space")
    for part in (
        "one chat",
        "Workaround:",
        "refused in layers 15–34",
        "99.33 was not tried yet",
        "Run it: gqa check cases/exported/graphs/gemma4_e2b_mobius_cpu.onnx --ep cpu",
    ):
        assert part in about.inner_text()
    pull = about.locator("a", has_text="microsoft/onnxruntime/pull/28242").first
    assert pull.get_attribute("href") == "https://github.com/microsoft/onnxruntime/pull/28242"


@pytest.mark.night
def test_a_cell_shows_its_own_runtime_first_and_in_sight(show: Open, page: str) -> None:
    tab = show(page)
    row = tab.locator(".family", has_text="Gemma 4 E2B")
    about, cells = row.locator(".about").first, row.locator(".exported").first.locator("td")
    tab.set_viewport_size({"width": 390, "height": 800})
    for number in (3, 2):
        cells.nth(number).locator("button").click()
        first = about.locator("section").first
        assert first.get_attribute("data-runtime") == cells.nth(number).get_attribute(
            "data-runtime"
        )
        assert 0 <= first.locator("h3").bounding_box()["y"] < 700
    cells.nth(2).locator("button").click()
    assert about.is_hidden()


@pytest.mark.night
@pytest.mark.parametrize("place", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_widths_and_axe(show: Open, site: Path, packages: Path, place: str, scheme: str) -> None:
    """A page fits each width and axe finds no violation."""
    html = (site / place).read_text(encoding="utf-8")
    tab = show(html, wait=place == "report.html", color_scheme=scheme, bypass_csp=True)
    for row in tab.locator(".unfold").all():
        row.click()
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        if width in (1280, 390):
            assert violations(tab, packages) == []


# ── The site ────────────────────────────────────────────────────────────────────────────────────


def test_each_page_of_the_site_has_a_title_a_description_and_its_address(site: Path) -> None:
    pages = {str(file.relative_to(site)): file for file in site.rglob("*.html")}
    assert {*PAGES} <= {*pages}
    titles, descriptions = set(), set()
    for place, file in pages.items():
        parsed = Parsed(file.read_text(encoding="utf-8"))
        (about,) = (tag for tag in parsed.attributes("meta") if tag.get("name") == "description")
        links = [tag["href"] for tag in parsed.attributes("link") if tag["rel"] == "canonical"]
        assert links == [f"https://a.example/gqa/{place}"]
        assert len(parsed.attributes("h1")) == 1, place
        titles.add(re.findall("<title>(.+)</title>", file.read_text(encoding="utf-8"))[0])
        descriptions.add(about["content"])
    assert len(titles) == len(descriptions) == len(pages)
    assert not any('rel="canonical"' in text for _, text in Site(load_models()).files())


def test_each_relative_link_of_the_site_leads_to_a_file(site: Path) -> None:
    for file in site.rglob("*.html"):
        parsed = Parsed(file.read_text(encoding="utf-8"))
        for tag, attributes in parsed.elements:
            assert not any(name.startswith("on") for name in attributes), (file, tag)
        for link in [*parsed.attributes("a"), *parsed.attributes("link")]:
            parts = urlsplit(link["href"])
            if not parts.scheme and parts.path:
                assert (file.parent / parts.path).is_file(), (file, link)
    assert {"findings/webgpu-small-subgroups.html", "../findings/webgpu-small-subgroups.html"} == {
        link["href"]
        for place in ("index.html", "models/gemma-4-e2b.html")
        for link in Parsed((site / place).read_text(encoding="utf-8")).attributes("a")
        if "small-subgroups" in link["href"]
    }


def test_a_model_has_its_answer_in_standard_operators(site: Path, show: Open) -> None:
    tab = show((site / "models/gemma-4-e2b.html").read_text(encoding="utf-8"), wait=False)
    for runtime, words in (("tract-wheel", "right"), ("cpu", "")):
        dl = tab.locator(f"section[data-runtime={runtime}] dl").first
        told = dl.locator("dt", has_text="in standard operators (gqa rewrite)")
        found = told.locator("xpath=following-sibling::dd[1]").all_inner_texts()
        assert "".join(found).strip() == words


def test_a_page_of_the_site_opens_without_a_message(show: Open, site: Path) -> None:
    for place in PAGES[1:]:  # `show` fails if the policy stops a script or style
        tab = show((site / place).read_text(encoding="utf-8"), "#?q=gemma4", wait=False)
        assert tab.evaluate("getComputedStyle(document.body).marginTop") == "0px"  # has its style
        if place == "index.html":
            assert shown(tab) == ["Gemma 4 E2B"]
            tab.locator("#find").fill("llama")
            assert tab.evaluate("location.hash") == "#?q=llama"


def test_the_sites_search_finds_findings_and_leads_to_the_report(show: Open, site: Path) -> None:
    tab = show((site / "index.html").read_text(encoding="utf-8"), wait=False)
    tab.locator("#find").fill("borrowed WINDOW")
    links = tab.locator("#findings > li:visible a")
    hrefs = links.evaluate_all("all => all.map(link => link.getAttribute('href'))")
    assert "findings/webgpu-borrowed-window.html" in hrefs
    assert tab.locator("#found").inner_text() == f"0 models, {len(hrefs)} findings"
    report = tab.locator("#in-report").get_attribute("href")
    assert report == "report.html#?q=borrowed%20WINDOW"
    # A message as a program prints it: numbers and nodes are its own.
    tab.locator("#find").fill("/model/layers.3/GQA: the window of a borrowed cache, 77, is xyzzy")
    hrefs = links.evaluate_all("all => all.map(link => link.getAttribute('href'))")
    assert "findings/webgpu-borrowed-window.html" in hrefs
    tab.locator("#find").fill("xyzzy")
    assert links.count() == 0
    tab.locator("#find").fill("")
    assert tab.locator("#in-report").is_hidden()


def test_a_search_is_an_entry_of_the_history_and_explains_a_message(show: Open, site: Path) -> None:
    """A search of the site is an entry of the history and says what a message means."""
    tab = show((site / "index.html").read_text(encoding="utf-8"), wait=False)
    before = tab.evaluate("history.length")
    tab.locator("#find").press_sequentially("Unrecognized attribute: xyz")
    assert tab.evaluate("history.length") == before + 1
    heading = "The release is older than the model"
    assert tab.locator(".meanings article:visible h3").all_inner_texts() == [heading]
    tab.go_back()
    tab.locator(".meanings").wait_for(state="hidden")
    assert tab.locator("#find").input_value() == ""


def test_only_the_report_of_a_site_links_to_the_other_pages(site: Path, page: str) -> None:
    assert Parsed((site / "report.html").read_text(encoding="utf-8")).attributes("nav") == [{}]
    assert Parsed(page).attributes("nav") == []


def test_the_feed_is_well_formed_atom(site: Path) -> None:
    atom = "{http://www.w3.org/2005/Atom}"
    for text in ((site / "feed.xml").read_text(), dict(Site(load_models()).files())["feed.xml"]):
        feed = fromstring(text.encode())
        assert feed.tag == f"{atom}feed"
        entries = feed.findall(f"{atom}entry")
        for one in (feed, *entries):
            assert all(one.findtext(f"{atom}{name}") for name in ("id", "title", "updated"))
        ids = [one.findtext(f"{atom}id") for one in entries]
        assert len({*ids}) == len(ids)
    feed = fromstring((site / "feed.xml").read_bytes())
    assert [one.text for one in feed.iter(f"{atom}title")][1:] == [one.title for one in CHANGES]
