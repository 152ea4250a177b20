"""Which model runs where: cells from recorded answers, names, configurations, and profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from model_searches import SEARCHES
from recorded_models import two_models
from tables import tables

from conformance.base.paths import ROOT, data_path
from conformance.case.corpus import NothingMeant, find, profile_files
from conformance.cli.commands import gqa
from conformance.cli.models import differences
from conformance.maintain.exported import profiles, real_models, recipes
from conformance.maintain.models import merged, on_runtimes, readme_table, row, text, with_table
from conformance.model.config.config_calls import read_configuration
from conformance.report.model_pages import Models, OnRuntime, UseAnswer, load_models, models_of
from conformance.report.model_query import matching
from conformance.report.model_table import USES

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

CHAT = USES[0]


def on(**answers: str) -> OnRuntime:
    """Answers for one chat by release, written ``v1_20``: a word, or `wrong` with its place."""
    found: dict[str, Mapping[str, UseAnswer]] = {}
    for name, told in answers.items():
        answer, _, where = told.partition(" ")
        one = UseAnswer(answer, where)  # type: ignore[arg-type]
        found[name.removeprefix("v").replace("_", ".")] = {CHAT: one} if answer != "none" else {}
    return OnRuntime(found, name="cpu")


@pytest.mark.parametrize(("answers", "words", "verdict"), TABLES["cells"])
def test_the_words_of_a_cell(answers: dict[str, str], words: str, verdict: str) -> None:
    """A cell says what the newest release does and since when."""
    cell = on(**answers).cell(CHAT)
    assert (cell.words, cell.verdict) == (words, verdict)


def test_a_cell_has_what_every_release_does() -> None:
    cell = on(v1_20="refused", v1_21_0="refused", v1_22="right").cell(CHAT)
    assert cell.releases == (("1.20–1.21", "refused"), ("1.22", "right"))


@pytest.mark.parametrize(("runtime", "dtype", "version", "words"), TABLES["in_node_24"])
def test_what_is_right_in_node_20_only_says_so(
    runtime: str, dtype: str, version: str, words: str
) -> None:
    data = two_models()
    fact = {"runtime": "node", "release": "1.30.0", "dtype": "float16", "is": "refused in Node 24"}
    data["besides"] = [fact]
    one = {"answers": [{"uses": {CHAT: {"answer": "right"}}, "releases": [version]}], "causes": []}
    data["rows"] = [data["rows"][0] | {"dtype": dtype, "runtimes": {runtime: one}}]
    cell = models_of(data).rows[0].runtimes[runtime].cell(CHAT)
    assert (cell.words, cell.verdict) == (words, "pass")


def test_uses_that_come_out_unlike_one_chat_are_named_beside_it() -> None:
    right, wrong = UseAnswer("right"), UseAnswer("wrong", "from 9 tokens on")
    there = OnRuntime({"1.20": dict(zip(USES, (right, wrong, UseAnswer("untried")), strict=True))})
    told = [(use, cell.words) for use, cell in there.otherwise()]
    assert told == [(USES[1], "silently wrong from 9 tokens on")]


SUBGROUPS = "docs/findings/webgpu-small-subgroups.md"


@pytest.mark.parametrize(
    ("runtime", "links", "where", "words", "verdict"),
    TABLES["software"],
)  # fmt: skip
def test_a_software_gpu_proves_nothing_by_a_defect_that_depends_on_the_adapter(
    runtime: str, links: list[str], where: str, words: str, verdict: str
) -> None:
    data = two_models()
    (there,) = data["rows"][1]["runtimes"].values()
    data["rows"][1]["runtimes"] = {runtime: there}
    there["answers"][0]["uses"][CHAT] = {"answer": "wrong", "where": where}
    about = {"verdict": "wrong", "what": "silently wrong in layer 0", "said": "y", "example": "z"}
    there["causes"] = [{**about, "where": "webgpu 1.19", "link": "x"}]
    there["causes"] += [{**about, "where": "webgpu 1.18–1.20", "link": link} for link in links]
    on = models_of(data).rows[1].runtimes[runtime]
    assert [cause.link for cause in on.causes] == [*links, "x"]  # the newest release comes first
    assert (on.cell(CHAT).words, on.cell(CHAT).verdict) == (words, verdict)
    assert (on.causes[0].what == "wrong on a software GPU in layer 0") is (
        SUBGROUPS in links and runtime.endswith("lavapipe")
    )


def test_the_finding_decides_and_not_the_record() -> None:
    """What ``gqa check`` says of a software GPU is recorded as it is: wrong."""
    software = answered("cpu@1.20", **{CHAT: [part("software", "from 32 tokens")]})
    cause = {"where": "w", "verdict": "software", "said": "s", "link": SUBGROUPS,
             "what": "wrong on a software GPU in layer 0"}  # fmt: skip
    made = on_runtimes(document(software) | {"causes": [cause]})["cpu"]
    assert made["answers"]["1.20"][CHAT]["answer"] == "wrong"
    assert made["causes"] == [{**cause, "verdict": "wrong", "what": "silently wrong in layer 0"}]


def answered(target: str, **uses: list[dict[str, Any]]) -> dict[str, Any]:
    return {"answers": {target: {"answer": "", "unseen": "", "uses": uses}}}


def part(answer: str, where: str = "", message: str = "") -> dict[str, Any]:
    return {"answer": answer, "where": where, "message": message, "cases": ["t/c"]}


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    """A document of ``gqa check`` on one release."""
    target = {"name": "cpu@1.20", "base": "cpu", "version": "1.20", "adapter": None}
    about = {"layers": [0, 1], "whole": False}
    nothing = {"causes": [], "in_standard_operators": {"kinds": {}}}
    return {"targets": [target], "rows": [about | one for one in rows], **nothing}


def test_the_worst_layer_is_recorded_and_the_model_itself_only_if_it_alone_fails() -> None:
    good = answered("cpu@1.20", **{CHAT: [part("right")]})
    bad = answered("cpu@1.20", **{CHAT: [part("right"), part("refused", "for prompts", "no")]})
    worse = answered("cpu@1.20", **{CHAT: [part("wrong")]}) | {"whole": True}

    def recorded(*rows: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = on_runtimes(document(*rows))["cpu"]["answers"]["1.20"][CHAT]
        return found

    assert recorded(good) == {"answer": "right"}
    assert recorded(good, bad, worse) == {
        "answer": "refused", "where": "for prompts", "layers": "0–1", "message": "no",
        "case": "t/c",
    }  # fmt: skip
    assert recorded(good, worse)["answer"] == "wrong"
    unseen = json.loads(json.dumps(good).replace('"unseen": ""', '"unseen": "why"'))
    assert recorded(unseen) == {"answer": "untried"}
    without, whole = answered("cpu@1.20"), good | {"whole": True}
    assert recorded(good, without) == {"answer": "untried"}  # layers that take no such calls
    assert recorded(good, without, whole) == {"answer": "right"}


def test_a_new_release_is_added_to_those_recorded_before() -> None:
    cause = {"said": "no", "where": "cpu@1.9"}
    old = {"answers": {"1.9": {}, "1.10": {}}, "causes": [cause]}
    both = merged(old, {"answers": {"1.11": {}, "1.10": {"x": 1}}, "causes": []})
    assert [*both["answers"].items()] == [("1.9", {}), ("1.10", {"x": 1}), ("1.11", {})]
    assert both["causes"] == [cause]


def test_the_answer_in_standard_operators_is_that_of_the_newest_release() -> None:
    rewritten = {"in_standard_operators": {"kinds": {"cpu@1.20": "right"}}}
    bad = answered("cpu@1.20", **{CHAT: [part("refused", "for prompts", "no")]})
    made = on_runtimes(document(bad) | rewritten)["cpu"]
    assert made["rewritten"] == {"1.20": "right"}
    older = merged({"answers": {"1.19": {}}, "causes": [], "rewritten": {"1.19": "wrong"}}, made)
    assert older["rewritten"] == {"1.20": "right"}
    assert "rewritten" not in merged(older, {"answers": {"1.21": {}}, "causes": []})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Models:
    """Two recorded models, which the command answers from."""
    file = tmp_path / "models.json"
    file.write_text(json.dumps(two_models()))
    monkeypatch.setenv("GQA_MODELS", str(file))
    return load_models()


def test_the_words_of_a_refusal_find_a_model() -> None:
    data = two_models()
    data["rows"][1]["runtimes"]["webgpu+lavapipe"]["causes"] = [
        {
            "where": "w",
            "verdict": "unsupported",
            "what": "x",
            "said": "No [4] heads",
            "example": "e",
        }
    ]
    llama, gemma = models_of(data).rows
    assert matching(models_of(data), "heads no").rows == [gemma]
    assert llama.right_on == {"cpu": "since ≤1.20"}


def said(*words: str) -> Result:
    return CliRunner().invoke(gqa, ["models", *words])


def test_models_are_found_by_any_part_of_their_names(known: Models) -> None:
    llama, gemma = known.rows
    for wanted, found in {
        "gemma4": [gemma], "Llama 3.2": [llama], "llama genai": [llama], "float32": [llama, gemma],
        "mobius": [gemma], "int4": [], "gemma 4 webgpu": [gemma],
    }.items():  # fmt: skip
        graphs = {row.graph for row in matching(known, wanted).rows}
        assert graphs == {row.graph for row in found}, wanted


@pytest.mark.parametrize(("typed", "graphs", "columns"), SEARCHES)
def test_a_search_chooses_rows_and_columns(typed: str, graphs: set[str], columns: set[str]) -> None:
    """Words of a search choose rows, columns and releases."""
    found = matching(load_models(), typed)
    assert {row.graph for row in found.rows} == graphs
    assert {*found.runtimes} == columns


def test_a_release_in_a_search_shows_what_it_does() -> None:
    (row, *_) = matching(load_models(), "llama 3.2 cpu 1.23").rows
    assert [*row.runtimes["cpu"].answers] == ["1.23.2"]
    told = said("llama 3.2 cpu int4 1.22").output
    assert "refused" in told
    assert "right" not in told.replace("right in one", "")


@pytest.mark.parametrize("family", [*load_models().families])
def test_the_answer_is_a_few_lines_and_comes_first(family: str) -> None:
    lines = said(family).output.splitlines()
    exports = len(load_models().families[family])
    assert lines[1].startswith(family), lines
    assert len(lines) <= (10 if exports <= 4 else 15)
    assert "-v" in lines[-2]
    assert len(said(family, "-v").output.splitlines()) > len(lines)


# Configurations


REAL = sorted(real_models())
#: Graphs whose exporter lost the window of the configuration (cases/exported/README.md), or wrote
#: one that is longer than the context.
OTHER_WINDOW = {"phi3_genai_cpu", "mistral_genai_cpu", "phi4_mobius_cpu"}


@pytest.mark.parametrize("graph", REAL)
def test_a_configuration_has_the_calls_that_its_exporters_write(graph: str, tmp_path: Path) -> None:
    recipe = recipes()["models"][real_models()[graph]["model"]]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": recipe["model_type"], **recipe["configuration"]}))
    written = [call["features"] for call in row(graph)["calls"]]
    for call in read_configuration(tmp_path).calls:
        told = [differences(call, features) for features in written]
        assert [] in told or graph in OTHER_WINDOW, told
    assert len(read_configuration(config).calls) <= len(written)  # some rotate in the call


def test_the_configuration_of_genai_says_the_same(tmp_path: Path) -> None:
    decoder = {
        "head_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1,
        "num_hidden_layers": 3, "sliding_window": {"window_size": 512, "layers": [0, 1]},
    }  # fmt: skip
    file = tmp_path / "genai_config.json"
    file.write_text(json.dumps({"model": {"type": "gemma3", "decoder": decoder}}))
    local, whole = read_configuration(file).calls
    assert (local.layers, local.what) == (2, "window of 512, 4:1 heads of 256")
    assert (whole.layers, whole.what) == (1, "global, 4:1 heads of 256")


def test_layers_that_are_not_attention_are_counted_apart(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_5_text", "num_attention_heads": 24, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 32, "full_attention_interval": 4, "rope_wobble": 2,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    lines = said(str(file)).output.splitlines()
    what = "8 layers of attention; 24 of linear attention, which this suite does not test"
    assert lines[0].endswith(f"config.json: qwen3_5_text, {what}")
    assert lines[1] == "  not read, so that calls may differ: rope_wobble"
    assert lines[2] == "  8 layers: global, 24:8 heads of 128"
    config |= {"num_attention_heads": 40}
    file.write_text(json.dumps(config))
    nearest = [line for line in said(str(file)).output.splitlines() if line.startswith("      ")]
    assert len({*nearest}) == len(nearest) > 1


# Profiles


@pytest.mark.night
def test_the_profiles_are_those_of_the_graphs() -> None:
    made = dict(profiles())
    files = {file.stem: file for file in (data_path("cases") / "profiles").glob("*.yaml")}
    assert made.keys() == files.keys()
    stale = [n for n, file in files.items() if file.read_text(encoding="utf-8") != made[n]]
    assert not stale, "python -m conformance.maintain.exported writes them"


def test_a_profile_is_found_by_a_part_of_its_name_and_is_no_part_of_the_corpus() -> None:
    (file,) = profile_files("Gemma4")
    assert file.stem == "gemma_4_e2b"
    with pytest.raises(NothingMeant, match="did you mean 'gemma_4_e2b'"):
        profile_files("gema_4_e2b")
    assert not any(case.theme == "gemma_4_e2b" for case in find(()).named)
    assert len(find([str(file)]).named) > 40


# The recorded answers


def test_readme_has_the_table_of_the_recorded_answers() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme_table(load_models())
    assert table in readme
    assert with_table(readme, table) == readme, "python -m conformance.maintain.models writes it"
    assert len(table.splitlines()) <= 16
    assert {
        family
        for line in table.splitlines()[2:]
        for family in line.split("|")[1].strip().split(", ")
    } == {*load_models().families}


def test_models_that_do_the_same_are_one_line_of_the_table(known: Models) -> None:
    *_, gemma, llama = readme_table(known).splitlines()
    nothing = "not tried: no GPU so far | not tried | not tried"
    assert gemma == f"| Gemma 4 E2B | not tried | {nothing} | silently wrong \\* | not tried |"
    assert llama == f"| Llama 3.2 1B | right since ≤1.20 | {nothing} | not tried | not tried |"
    twin = replace(known.rows[0], family="A twin")
    both = replace(known, rows=(*known.rows, twin))
    assert "| A twin, Llama 3.2 1B | right since" in readme_table(both)
    refusing = replace(known.rows[0], exporter="olive 1", runtimes={"cpu": on(v1_20="refused")})
    both = replace(known, rows=(*known.rows, refusing, replace(refusing, made_for="cuda")))
    cell = "right since ≤1.20 (onnxruntime-genai); refused (olive)"
    assert f"| Llama 3.2 1B | {cell} |" in readme_table(both)


def test_the_colour_of_a_cell_follows_its_words() -> None:
    drawn = {"right": "pass", "software": "software", "silently": "wrong", "not": "skip"}
    cells = {
        (cell.words, cell.verdict)
        for row in load_models().rows
        for on in row.runtimes.values()
        for cell in map(on.cell, USES)
    }
    assert {verdict for _, verdict in cells} >= {"pass", "software", "wrong", "unsupported"}
    for words, verdict in cells:
        assert drawn.get(words.split()[0], "unsupported") == verdict, words


@pytest.mark.night
def test_the_recorded_models_are_those_of_the_graphs() -> None:
    data = json.loads((ROOT / "reports" / "recorded" / "models.json").read_text(encoding="utf-8"))
    models = models_of(data)
    assert {one.graph for one in models.rows} <= {*REAL}
    there = {"cpu", "node", "openvino", "tract-wheel", "wasm", "webgpu+lavapipe"}
    assert there <= {*models.runtimes}
    for one in models.rows:
        now = row(one.graph)
        assert {name: now[name] for name in ("family", "exporter", "dtype", "weights")} == {
            name: getattr(one, name) for name in ("family", "exporter", "dtype", "weights")
        }
    assert json.loads(text([], [], data["besides"])) | {"recorded": data["recorded"]} == {
        "format": data["format"], "recorded": data["recorded"], "suite": data["suite"],
        "runtimes": {}, "software": [], "besides": data["besides"], "rows": [],
    }  # fmt: skip
