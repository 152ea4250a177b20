"""The catalogue of targets is the only list of them: everything else follows from its entries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import LAUNCH, Desk, Gqa

from conformance.base.paths import ROOT, data_path
from conformance.cli import setup
from conformance.targets import catalogue
from conformance.targets.catalogue import (
    COMPUTE_SANITIZER,
    SANITIZED,
    TARGETS,
    Programs,
    RunnerStart,
    StandaloneProgram,
    TargetEntry,
    TargetOption,
    entry_of,
    target_names,
    target_options,
)
from conformance.targets.registry import target_for
from conformance.targets.setup.programs import Ready

#: A target that nothing but this file knows.
FAKE = TargetEntry(
    name="fake",
    runner=str(LAUNCH),
    arguments=("correct",),
    options=(
        TargetOption(
            "--fake-library",
            "FILE",
            "The library of the fake target.",
            lambda typed: RunnerStart(arguments=("--library", typed) if typed else ()),
        ),
    ),
    target_class="cpu",
    needs="nothing but this test",
    setup="tract",
    kernel_variant_of="cpu",
    script=StandaloneProgram("tract.py", "nothing", options="--fake"),
)


# A new entry


def test_runs_and_exports_take_a_new_entry(
    desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "TARGETS", (*TARGETS, FAKE))
    target = target_for("fake", Programs(fake_library="x"))
    assert target.arguments == ("--ep", "fake", "--fake-library", "x")
    assert target.command.argv == (sys.executable, str(LAUNCH), "correct", "--library", "x")
    assert [file.name for file in target.expectations] == ["fake.yaml", "cpu.yaml"]
    folder = desk.folder / "exported"
    done = gqa("export", "smoke/decode[dtype=float32]", str(folder), "--ep", "fake")
    assert (done.status, done.err) == (0, "")
    assert '"options": "--fake"' in (folder / "repro.py").read_text()


# The entries


def test_every_expectations_file_belongs_to_an_entry() -> None:
    files = {file.stem for file in data_path("expectations").glob("*.yaml")}
    sanitized = {entry.name + SANITIZED for entry in TARGETS if COMPUTE_SANITIZER in entry.options}
    assert files - {entry.name for entry in TARGETS} - sanitized == set()


def test_entries_and_options_have_names_of_their_own() -> None:
    assert len({entry.name for entry in TARGETS}) == len(TARGETS)
    assert len({option.flag for option in target_options()}) == len(target_options())


@pytest.mark.parametrize("entry", TARGETS, ids=lambda entry: entry.name)
def test_what_an_entry_names_exists(entry: TargetEntry) -> None:
    assert (data_path("runners") / entry.runner).is_file()
    assert not entry.setup or entry.setup in setup._PINNED
    assert entry.kernel_variant_of is None or entry_of(entry.kernel_variant_of)


def test_the_catalogue_imports_nothing_that_takes_time() -> None:
    heavy = {"click", "jinja2", "numpy", "onnx", "pydantic", "rich", "yaml"}
    script = (
        "import json, sys, conformance.targets.catalogue;"
        f"print(json.dumps(sorted({heavy!r} & sys.modules.keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == []


def targets_in(page: Path) -> dict[str, str]:
    """The rows of the table of targets on a page, by their first column."""
    if not page.is_file():
        pytest.skip("not a checkout")
    table = page.read_text(encoding="utf-8").partition("\n| target | ")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", table, re.MULTILINE))


def test_the_page_on_targets_lists_all_and_their_options() -> None:
    rows = targets_in(ROOT / "docs" / "targets.md")
    names = list(target_names())
    assert list(rows) == names, f"Edit docs/targets.md: the rows are {', '.join(names)}"
    for option in target_options():
        named = any(f"`{option.flag}" in row for row in rows.values())
        assert named, f"Edit docs/targets.md: the row of its target names {option.flag}"


def test_the_readme_lists_targets_that_there_are() -> None:
    rows = targets_in(ROOT / "README.md")
    assert rows
    assert [name for name in rows if name not in target_names()] == []


def test_a_dispute_can_be_about_any_target() -> None:
    form = ROOT / ".github" / "ISSUE_TEMPLATE" / "disputed-verdict.yml"
    if not form.is_file():
        pytest.skip("not a checkout")
    assert f"options: [{', '.join(target_names())}" in form.read_text().replace('"', "")


# gqa setup


def test_setup_takes_the_name_of_a_target(gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready(Path("there"), new=False)
    fakes = {
        name: (name, "1.2.3", lambda *_: ready, lambda _: ["use it"]) for name in setup._PINNED
    }
    monkeypatch.setattr(setup, "_PINNED", fakes)
    for entry in TARGETS:
        if entry.setup:
            said = f"{entry.setup} 1.2.3 is already installed: there\nuse it\n"
            assert gqa("setup", entry.name).out == said
        else:
            done = gqa("setup", entry.name)
            assert done.status == 0
            first, second = done.out.splitlines()
            assert first == f"gqa setup installs nothing for {entry.name}. It needs {entry.needs}."
            assert second == f"in a checkout of this suite: pip install -e '.[{entry.extra}]'"
