"""Hostile case files: each is loaded, or refused by sentences with a place, soon."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutants_of_case_files
import pytest
from as_user import Desk
from case_bombs import bombs
from case_files import HEAD, write
from commands import Commands, commands
from endings import check_ending
from mutants_of_case_files import mutant
from shipped import cases_of_theme

from conformance.base import yaml_source
from conformance.base.paths import ROOT, data_path
from conformance.base.yaml_source import MAX_BYTES, MAX_NODES, MAX_TEXT, InputError, read_yaml
from conformance.case import load as loading
from conformance.case.corpus import shipped_files
from conformance.case.load import MAX_CASES, MAX_EFFORT, MAX_ELEMENTS, MAX_ID, load
from conformance.case.tensors import MAX_BATCH, MAX_INPUT_ELEMENTS, input_elements

#: What a hostile file may take: seconds of a processor, and memory.
SECONDS = 2.0
MEMORY_KIB = 300 << 10

_LOAD = """
import sys, time
from pathlib import Path
from conformance.case.load import InputError, load
from memory import peak_kib
before, start = peak_kib(), time.process_time()
for file in sys.argv[1:]:
    try:
        load([Path(file)])
    except InputError as error:
        print(str(error).count("\\n") + 1, len(str(error)), file)
    else:
        print(0, 0, file)
    now = time.process_time()
    print(now - start, peak_kib() - before)
    start = now
"""


def run_script(*command: str | Path) -> str:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, (ROOT, tests, Path(__file__).parent)))
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3_000,
    ).stdout


@pytest.mark.parametrize(
    "part", [slice(0, None, 4), pytest.param(slice(None), marks=pytest.mark.slow)]
)
def test_a_file_that_asks_for_too_much_is_refused_soon(tmp_path: Path, part: slice) -> None:
    """One process loads them all, so its peak is at least that of each."""
    chosen = [*bombs().items()][part]
    files = {write(tmp_path, text, f"f{n}.yaml"): name for n, (name, text) in enumerate(chosen)}
    said = run_script("-c", _LOAD, *files).splitlines()
    assert len(said) == 2 * len(files)
    for (file, name), told, used in zip(files.items(), said[::2], said[1::2], strict=True):
        lines, length, loaded = told.split(" ", 2)
        assert loaded == str(file)
        assert int(lines) <= yaml_source.MAX_PROBLEMS + 1, name
        assert int(length) < 250_000, name
        seconds, memory = map(float, used.split())
        assert seconds < SECONDS, (name, seconds)
        assert memory < MEMORY_KIB, (name, memory)


def test_the_shipped_corpus_is_far_from_every_limit() -> None:
    """Each limit is at least three times what the largest shipped file needs."""
    most: Counter[str] = Counter()
    for file in shipped_files().values():
        source, cases = read_yaml(file), cases_of_theme(file.stem)
        elements = [sum(map(input_elements, case.steps)) for case in cases]
        texts = [value for value in _scalars(source.data) if isinstance(value, str)]
        needs = {
            "bytes": file.stat().st_size,
            "nodes": len(source.values),
            "text": max(map(len, texts)),
            "cases": len(cases),
            "id": max(len(case.id) for case in cases),
            "input elements": max(elements),
            "elements": sum(elements),
            "batch": max(case.call.batch_size for case in cases),
        }
        most |= Counter(needs)
    limits = {
        "bytes": MAX_BYTES,
        "nodes": MAX_NODES,
        "text": MAX_TEXT,
        "cases": MAX_CASES,
        "input elements": MAX_INPUT_ELEMENTS,
        "elements": MAX_ELEMENTS,
        "batch": MAX_BATCH,
    }
    assert {
        name: limit // most[name] for name, limit in limits.items() if limit < 3 * most[name]
    } == {}
    assert 3 * most["id"] < MAX_ID


def test_the_shipped_files_take_little_of_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_EFFORT", MAX_EFFORT // 3)
    assert len(load([data_path("cases")])) > 3_000


def _scalars(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _scalars(item)
    else:
        yield value


def test_the_cases_of_all_files_together_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path, HEAD + "  - {name: x, matrix: {seed: [1, 2]}}\n", f"{name}.yaml")
    monkeypatch.setattr(loading, "MAX_LOADED", 3)
    with pytest.raises(InputError) as caught:
        load([tmp_path])
    assert str(caught.value) == (
        f"{tmp_path}/b.yaml: with this file, more than 3 cases are loaded; give fewer files"
    )


# Files that are none


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "round").mkdir()
    (tmp_path / "round" / "again").symlink_to("..")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="no case file"):
        load([tmp_path])
    good = write(tmp_path, HEAD + "  - name: x\n", "good.yaml")
    assert len(load([tmp_path])) == 1
    for name, why in (
        ("fifo.yaml", "cannot be read: not a regular file"),
        ("zero.yaml", "cannot be read: not a regular file"),
        ("loop.yaml", "cannot be read: Too many levels of symbolic links"),
        ("gone.yaml", "cannot be read: No such file or directory"),
        ("n" * 5_000, "no such file or folder"),
        ("a\0b", "no such file or folder"),
    ):
        with pytest.raises(InputError) as caught:
            load([tmp_path / name])
        assert str(caught.value).endswith(f": {why}")
    if os.geteuid():
        good.chmod(0)
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            load([good])


# Mutants


def try_mutants(folder: Path, first: int, count: int, jobs: int) -> None:
    """Loads the mutants in processes with limits, and counts what became of them."""
    program = Path(mutants_of_case_files.__file__)
    with ThreadPoolExecutor(jobs) as pool:
        each = count // jobs
        made = [folder / str(job) for job in range(jobs)]
        for one in made:
            one.mkdir()
        arguments = [(str(first + job * each), str(each), made[job]) for job in range(jobs)]
        results = [
            json.loads(text) for text in pool.map(lambda a: run_script(program, *a), arguments)
        ]
    became: Counter[str] = Counter()
    for result in results:
        became.update(result["became"])
        assert result["wrong"] == {}
        assert result["memory"] < MEMORY_KIB
    print(f"{became.total()} mutants of case files: {dict(became)}")
    assert became.total() == count
    assert {*became} == {"loaded", "refused"}
    assert min(became.values()) > count // 30


def test_mutants_load_or_are_refused(tmp_path: Path) -> None:
    try_mutants(tmp_path, 0, 300, jobs=1)


@pytest.mark.slow
def test_thousands_of_mutants_load_or_are_refused(tmp_path: Path) -> None:
    try_mutants(tmp_path, 1_000_000, 12_000, jobs=2)


def try_commands(server: Commands, folder: Path, seeds: range) -> None:
    """Gives mutants to the real commands, one after the other."""
    ended: Counter[int] = Counter()
    for seed in seeds:
        draw = random.Random(seed)
        file = folder / "theme.yaml"
        file.write_bytes(mutant(seed))
        command = draw.choice(
            (
                ("list", "theme.yaml"),
                ("list", "theme.yaml", "--json"),
                ("show", "theme.yaml"),
                ("run", "theme.yaml", "-k", "nothing_has_this_name"),
            )
        )
        done = server.gqa(*command)
        assert done.status in (0, 2, 3), (seed, command, done)
        check_ending(done)
        ended[done.status] += 1
    print(f"{ended.total()} commands on mutants: {dict(ended)}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Commands]:
    desk = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    with commands(desk.folder, desk.environment) as server:
        yield server


def test_commands_on_mutants_end_with_sentences(server: Commands) -> None:
    try_commands(server, server.folder, range(2_000, 2_060))


@pytest.mark.slow
def test_hundreds_of_commands_on_mutants_end_with_sentences(server: Commands) -> None:
    try_commands(server, server.folder, range(3_000_000, 3_000_600))
