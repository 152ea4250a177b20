"""A day on a GPU: what it runs in which order, and what remains of it whatever fails."""

from __future__ import annotations

import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from as_user import Desk, wait_for

from conformance.base.paths import CACHE_VARIABLE, ROOT
from conformance.bundle.cache import digest_of
from conformance.case.corpus import find
from conformance.results.reader import read

SCRIPTS = ROOT / ".ci" / "gpu"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not a checkout")
sys.path.insert(0, str(SCRIPTS))

day = pytest.importorskip("day")
split_archive = pytest.importorskip("split_archive")
tasks = pytest.importorskip("tasks")
themes = pytest.importorskip("themes")

FAKE = Path(__file__).with_name("fake_gqa.py")
COMMAND = ROOT / ".ci" / "gpu-day"


# ── The order ────────────────────────────────────────────────────────────────────────────────────


def test_every_theme_has_a_place_and_a_reason() -> None:
    corpus = sorted(file.stem for file in ROOT.glob("cases/*.yaml"))
    assert sorted(themes.THEMES) == corpus, "Edit .ci/gpu/themes.py"
    assert all(themes.THEMES.values())
    assert next(iter(themes.THEMES)) == "smoke"
    assert {*themes.BOUNDARY_THEMES, *themes.TIMED_THEMES} <= themes.THEMES.keys()


def test_cases_are_ordered_by_their_themes() -> None:
    ids = ["power/a", "mine/a", "smoke/b", "smoke/a", "known_bugs/c[x=1]"]
    assert themes.in_order(ids) == [
        "smoke/b",
        "smoke/a",
        "known_bugs/c[x=1]",
        "power/a",
        "mine/a",
    ]


# ── With a stand-in for gqa ──────────────────────────────────────────────────────────────────────


class FakeDay:
    """Calls the command with a stand-in for gqa, which knows 20 cases of four themes."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.out = folder / "out"
        self.once = folder / "once"
        self._patch = patch
        self.targets = ["cuda", "cuda-flash"]
        self.timing = False
        for variable in ("PYTHONPATH", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS", "PATH"):
            patch.setenv(variable, os.environ.get(variable, ""))
        patch.setattr(day.signal, "signal", lambda *_: None)
        patch.setattr(day, "_gqa", lambda *words: [sys.executable, str(FAKE), *words])
        patch.setattr(day, "_plan", lambda *words: [sys.executable, str(FAKE), "plan", *words])
        patch.setattr(tasks, "GRACE_SECONDS", 0.5)
        patch.setenv("ONCE", str(self.once))

    def __call__(self, *arguments: str, **behaviour: str) -> int:
        names = {name.replace("_", "-"): what for name, what in behaviour.items()}
        self._patch.setenv("BEHAVIOUR", json.dumps(names))
        self._patch.setenv("TARGETS", json.dumps(self.targets))
        words = [*([] if self.timing else ["--no-timing"]), "--workers", "2", *arguments]
        return int(day.main([str(self.out), *words]))

    def records(self, kind: str, file: str = "results.jsonl.xz") -> list[dict[str, Any]]:
        lines = lzma.decompress((self.out / file).read_bytes()).splitlines()
        return [record for line in lines if (record := json.loads(line))["kind"] == kind]

    def done(self) -> dict[str, list[str]]:
        """The cases with a result, by target."""
        found: dict[str, list[str]] = {}
        for record in self.records("result"):
            found.setdefault(record["target"].removesuffix("@1.0"), []).append(record["case"])
        return found

    @property
    def summary(self) -> str:
        return (self.out / "summary.md").read_text()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDay:
    return FakeDay(tmp_path, monkeypatch)


ALL = [f"{theme}/{name}" for theme in ("smoke", "ragged", "causal", "new") for name in "abcde"]


def test_all_cases_run_on_the_target_and_its_variants(
    fake: FakeDay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake("--sanitize-seconds", "1000") == 1
    assert fake.done().keys() == {"cuda", "cuda-flash"}
    assert all(sorted(ids) == sorted(ALL) for ids in fake.done().values())
    assert fake.done()["cuda"][:5] == ALL[:5]
    (header,) = fake.records("header")
    assert header["corpus"] == "of all"
    assert header["selection"] == {"text": "whole corpus", "cases": 20, "results": 40}
    assert [target["name"] for target in header["targets"]] == ["cuda@1.0", "cuda-flash@1.0"]
    assert len(fake.records("case")) == 20
    (footer,) = fake.records("footer")
    assert footer["complete"]
    assert footer["counts"] == {"cuda@1.0": {"pass": 20}, "cuda-flash@1.0": {"pass": 20}}
    assert "a device; driver 5" in fake.summary
    assert "| cuda-flash@1.0 | 20 | 20 | 0 | 0 |" in fake.summary
    assert "still running" not in fake.summary
    said = capsys.readouterr()
    assert said.out == fake.summary
    *told, last = said.err.splitlines()
    assert last == "compute-sanitizer: time ran out."
    assert [line.partition(")  ")[2] for line in told] == [
        "Reading the cases.",
        "A first run of 5 cases on cuda.",
        "All 20 cases on each of 2 targets, 2 runs at a time.",
    ]
    assert all(re.match(r"0:0\d \(8:[345]\d left\)  ", line) for line in told)


def test_a_run_has_a_limited_number_of_cases(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day, "MOST_CASES", 4)
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu") == 0
    assert sorted(fake.done()["cpu"]) == sorted(ALL)
    runs = re.findall(r"── cpu, (\d+) case", (fake.out / "log.txt").read_text())
    assert sorted(runs) == ["3", "4", "4", "4", "5"]  # that of the smoke theme has five


def test_a_selection_without_smoke_begins_with_a_single_case(fake: FakeDay) -> None:
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", "-k", "causal") == 0
    assert sorted(fake.done()["cpu"]) == ALL[10:15]
    assert fake.records("header")[0]["selection"]["text"] == "causal"


def test_nothing_is_run_where_the_target_is_not_available(
    fake: FakeDay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho no devices were found\n")
    tool.chmod(0o755)
    monkeypatch.setattr(day.shutil, "which", lambda name: str(tmp_path / name))
    assert fake(cuda="unavailable") == 3
    sentence = "cuda cannot be used here: there is no GPU. Fix: buy one"
    assert capsys.readouterr().err.splitlines()[-1] == sentence
    assert fake.summary.count(sentence) == fake.summary.count("there is no GPU") == 1
    assert fake.done() == {"cuda": ALL[:5]}
    assert "no devices were found" in (fake.out / "log.txt").read_text()


def test_a_variant_that_is_not_available_is_no_reason_to_stop(fake: FakeDay) -> None:
    fake.targets = ["cpu", "cpu-a", "cpu-b"]
    assert fake("--ep", "cpu", cpu_a="unavailable") == 1
    assert {target: len(ids) for target, ids in fake.done().items()} == dict.fromkeys(
        fake.targets, 20
    )
    assert "- results.jsonl.xz: cpu-a@1.0: there is no GPU" in fake.summary


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", pytest.param("cpu-a", marks=pytest.mark.slow)])
def test_a_hang_does_not_stop_the_rest(fake: FakeDay, target: str) -> None:
    fake.targets = ["cpu", "cpu-a", "cpu-b"]
    at = "smoke/c" if target == "cpu" else "causal/c"
    behaviour = {target.replace("-", "_"): f"hangs {at}"}
    assert fake("--ep", "cpu", "--minutes", "0.25", **behaviour) == 1
    done = fake.done()
    for name in fake.targets:
        missing = {at} if name == target else set()
        assert sorted(done[name]) == sorted(set(ALL) - missing), name
    assert f"{target}: 1 case not run, from {at}: time ran out." in fake.summary
    assert not fake.records("footer")[0]["complete"]


def test_what_dies_is_begun_again_behind_its_case(fake: FakeDay) -> None:
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", cpu="dies ragged/b") == 1
    assert sorted(fake.done()["cpu"]) == sorted(set(ALL) - {"ragged/b"})
    assert "cpu: 1 case not run, from ragged/b: a run ended with status -9: Killed." in fake.summary


def test_what_died_once_is_complete(fake: FakeDay) -> None:
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", **{"cpu": "once ragged/b"}) == 0
    assert sorted(fake.done()["cpu"]) == sorted(ALL)
    assert len(fake.done()["cpu"]) == 20


def test_a_target_that_does_not_start_is_left_out(fake: FakeDay) -> None:
    assert fake("--minutes", "0.5", cuda_flash="broken") == 1
    assert fake.done() == {"cuda": fake.done()["cuda"]}
    said = "a run ended with status 3: the runner does not start."
    assert f"cuda-flash: 20 cases not run, from smoke/a: {said}" in fake.summary
    assert "Without any result: cuda-flash." in fake.summary


@pytest.mark.slow
def test_a_slow_target_leaves_time_for_its_variant(fake: FakeDay) -> None:
    """20 cases take 10 seconds with two workers; there are 8, and 60 % of them for the target."""
    fake.targets = ["cpu", "cpu-a"]
    assert fake("--ep", "cpu", "--minutes", "0.2", cpu="slow") == 1
    assert 2 < len(fake.done()["cpu"]) < 20
    assert len(fake.done()["cpu-a"]) == 20
    assert "time ran out." in fake.summary


def test_the_boundary_themes_run_under_compute_sanitizer(fake: FakeDay) -> None:
    assert fake("--minutes", "2") == 0
    ids = [record["case"] for record in fake.records("result", "sanitizer.jsonl.xz")]
    boundary = themes.at_the_boundary(ALL)
    assert boundary[:4] == ["smoke/a", "ragged/a", "smoke/b", "ragged/b"]
    assert sorted(ids) == sorted(boundary) == sorted(ALL[:10])
    assert fake.records("header", "sanitizer.jsonl.xz")[0]["corpus"] == "of the boundary"
    assert "## sanitizer.jsonl.xz" in fake.summary


def test_without_compute_sanitizer_or_time_for_it(fake: FakeDay) -> None:
    assert fake("--minutes", "2", sanitized="unavailable") == 1
    assert "- sanitizer.jsonl.xz: sanitized@1.0: there is no GPU" in fake.summary
    fake.out = fake.out.with_name("second")
    assert fake("--minutes", "0.5") == 1
    assert "compute-sanitizer: time ran out." in fake.summary


def test_a_run_that_fills_the_disk(fake: FakeDay) -> None:
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", cpu="full ragged/c") == 1
    assert sorted(fake.done()["cpu"]) == sorted(set(ALL) - {"ragged/c"})
    said = "a run ended with status 3: Cannot write results: No space left on device."
    assert f"cpu: 1 case not run, from ragged/c: {said}" in fake.summary


def test_what_cannot_be_written_is_said(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = day.Summary.open

    def open(summary: Any) -> None:
        opened(summary)
        (fake.out / "results.jsonl.xz.new").mkdir()

    monkeypatch.setattr(day.Summary, "open", open)
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu") == 1
    assert "results.jsonl.xz: [Errno 21] Is a directory" in capsys.readouterr().err


def test_an_earlier_recording_is_not_touched(
    fake: FakeDay, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.out.mkdir()
    earlier = fake.out / "timing.md"
    earlier.write_text("an hour's work")
    assert fake() == 2
    said = f"{fake.out} is not empty; name a folder that is, or none yet.\n"
    assert capsys.readouterr() == ("", said)
    assert list(fake.out.iterdir()) == [earlier]
    assert earlier.read_text() == "an hour's work"


def test_an_empty_folder_is_taken(fake: FakeDay) -> None:
    fake.out.mkdir()
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", "-k", "causal") == 0


def test_an_output_that_is_no_folder(fake: FakeDay, capsys: pytest.CaptureFixture[str]) -> None:
    fake.out.touch()
    assert fake() == 2
    assert capsys.readouterr().err == f"Cannot use the folder {fake.out}: Not a directory.\n"


def test_an_output_that_cannot_be_made(fake: FakeDay, capsys: pytest.CaptureFixture[str]) -> None:
    fake.out = Path("/proc/out")
    assert fake() == 3
    assert capsys.readouterr().err.endswith(
        "Cannot continue: /proc/out: No such file or directory.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--minutes", "0"),
        ("--minutes", "nan"),
        ("--minutes", "ten"),
        ("--sanitize-seconds", "inf"),
        ("--workers", "0"),
        ("--workers", "-1"),
        ("--workers", "1.5"),
    ],
)
def test_numbers_that_are_none(
    fake: FakeDay, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        fake(*words)
    assert ended.value.code == 2
    number = "whole number" if words[0] == "--workers" else "number"
    said = f"argument {words[0]}: '{words[1]}' is not a {number} above 0.\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_time_that_is_over_when_the_cases_are_read(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_one = day.run_one
    monkeypatch.setattr(day, "run_one", lambda command, until: run_one(command, until + 60))
    assert fake("--minutes", "0.0001") == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "Time ran out before the cases were read; give more --minutes."
    ]


def test_too_little_time_to_begin(fake: FakeDay, capsys: pytest.CaptureFixture[str]) -> None:
    assert fake("--minutes", "0.0001") == 2
    assert not fake.out.exists()
    said = "Time ran out before the cases were read; give more --minutes."
    assert capsys.readouterr().err.splitlines()[1:] == [said]


def test_a_tool_of_the_driver_that_hangs(
    fake: FakeDay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr(day.shutil, "which", lambda name: str(tmp_path / name))
    monkeypatch.setattr(day, "TOOL_SECONDS", 0.3)
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu") == 0
    assert re.search("── nvidia-smi: status .*, stopped after", (fake.out / "log.txt").read_text())


def test_a_day_under_nohup_outlives_its_terminal(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.out.touch()  # so that nothing is run
    handled: list[int] = []
    monkeypatch.setattr(day.signal, "signal", lambda number, _: handled.append(number))
    for ignored, expected in ((signal.SIG_IGN, 2), (signal.SIG_DFL, 3)):
        monkeypatch.setattr(day.signal, "getsignal", lambda _, ignored=ignored: ignored)
        handled.clear()
        assert fake() == 2
        assert len(handled) == expected
        assert (signal.SIGHUP in handled) == (expected == 3)


def test_the_device_is_passed_on(fake: FakeDay) -> None:
    assert fake("--device", "1", "--minutes", "2") == 0
    assert fake.done().keys() == {"cuda on 1", "cuda-flash on 1"}


def test_the_time_is_measured_on_the_device(fake: FakeDay, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    run_one = day.run_one

    def run(command: list[str], until: float) -> Any:
        if "overhead.py" not in " ".join(command):
            return run_one(command, until)
        measured.append(command[2:6])
        return tasks.Ended(0, False, 1.0, "a table")

    monkeypatch.setattr(day, "run_one", run)
    fake.timing = True
    assert fake("--device", "1", "--minutes", "2") == 0
    assert measured == [["--ep", "cuda", "--device=1", "--markdown"]]
    assert (fake.out / "timing.md").read_text() == "a table"


def test_progress_is_told(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(day, "FIRST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(day, "PAUSE_SECONDS", 0.4)
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", "-k", "causal", cpu="slow") == 0
    said = capsys.readouterr().err
    told = re.findall(r"  (\d+) of 5 results, 0 unexpected, .*; running: (.*)", said)
    assert len(told) > 2
    counts = [int(count) for count, _ in told]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert "cpu (2)" in [runs for _, runs in told]


@pytest.mark.slow
def test_the_first_results_are_written_at_once(
    fake: FakeDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a writing comes every 10 seconds, a run of 5 has its first results in OUT."""
    written: list[int] = []
    write = day.Gathered.write

    def noted(gathered: Any, footer: bool = False) -> Any:
        found = write(gathered, footer)
        written.append(len(found.verdicts))
        return found

    monkeypatch.setattr(day.Gathered, "write", noted)
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", "-k", "smoke", cpu="slow") == 0
    assert 0 < next(filter(None, written)) < 5


def test_a_run_that_cannot_be_killed_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that waits for a driver does not end, whatever signal it gets."""
    monkeypatch.setattr(tasks, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(tasks, "GONE_SECONDS", 0.2)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda _: None)
    begun = time.monotonic()
    ended = tasks.run_one([sys.executable, "-c", "0"], begun)
    assert time.monotonic() - begun < 5
    assert (ended.status, ended.stopped) == (-signal.SIGKILL, True)
    assert re.search(r"Process \d+ cannot be killed\.", ended.said)


def here() -> dict[str, Any]:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, "machine": os.uname().machine}


def test_packages_and_libraries_of_the_parts_are_used(fake: FakeDay, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "nvidia" / "cudnn" / "lib").mkdir(parents=True)
    split_archive.write_parts(site, tmp_path / "parts", 1000, here())
    fake.targets = ["cpu"]
    assert fake("--ep", "cpu", "--parts", str(tmp_path / "parts")) == 0
    assert os.environ["PYTHONPATH"].split(os.pathsep)[:2] == [
        folder := os.environ["PYTHONPATH"].split(os.pathsep)[0],
        str(ROOT),
    ]
    assert not folder.startswith(str(ROOT))
    assert os.environ["LD_LIBRARY_PATH"].startswith(f"{folder}/nvidia/cudnn/lib")
    assert not Path(folder).exists()  # removed in the end
    assert "unpacked the parts" in fake.summary


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "part-00").unlink(), "part-00 is missing; copy it again."),
        (lambda folder: (folder / "part-00").write_bytes(b""), "part-00 has 0 of "),
        (lambda folder: (folder / "manifest.json").unlink(), ".ci/gpu-pack writes it."),
    ],
    ids=["missing", "damaged", "without a manifest"],
)
def test_parts_that_cannot_be_used(
    fake: FakeDay,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    said: str,
) -> None:
    folder = tmp_path / "parts"
    split_archive.write_parts(tmp_path, folder, 10**6, here())
    spoil(folder)
    assert fake("--parts", str(folder)) == 3
    assert said in capsys.readouterr().err
    assert said in fake.summary


def test_parts_for_another_python(
    fake: FakeDay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split_archive.write_parts(tmp_path, tmp_path / "parts", 10**6, {**here(), "python": "3.99"})
    assert fake("--parts", str(tmp_path / "parts")) == 3
    assert "start .ci/gpu-day with PYTHON=python3.99." in capsys.readouterr().err


# ── With gqa itself ──────────────────────────────────────────────────────────────────────────────


#: Two cases, of one theme.
SOME = "prompt and causal and float32 and not relations"
#: Six cases.
TWO_THEMES = "(smoke or causal) and prompt and float32 and not relations"


def command(out: Path, *arguments: str) -> list[str]:
    return [str(COMMAND), str(out), "--workers", "1", *arguments]


@pytest.fixture
def place(desk: Desk, shared_cache: Path) -> Desk:
    """Where the command finds this Python and the shared cache."""
    desk.environment |= {"PYTHON": sys.executable, CACHE_VARIABLE: str(shared_cache)}
    return desk


@pytest.mark.slow
def test_a_day_with_the_cpu(place: Desk, tmp_path: Path) -> None:
    split_archive.write_parts(tmp_path, tmp_path / "parts", 10**6, here())
    done = place.run(
        *command(tmp_path / "out", "--ep", "cpu", "-k", TWO_THEMES),
        *("--no-timing", "--parts", str(tmp_path / "parts")),
    )
    assert done.status == 0, done.both
    assert all(line.startswith("0:") for line in done.err.splitlines()), done.err
    run = read(tmp_path / "out" / "results.jsonl.xz")
    assert run.problems == ()
    assert [target.ep for target in run.header.targets] == ["cpu", "cpu-noflash"]
    assert {count["pass"] for count in run.counts().values()} == {len(run.cases)}
    assert run.footer is not None
    assert run.footer.complete
    assert done.out == (tmp_path / "out" / "summary.md").read_text()
    device = run.header.targets[0].describe
    assert device is not None
    assert f"{device.device}; python " in done.out
    written = lzma.decompress(run.path.read_bytes()).decode()
    assert not [folder for folder in (ROOT, tmp_path, Path.home()) if f"{folder}/" in written]
    assert {case.partition("/")[0] for case in run.cases} == {"smoke", "causal"}
    once = str(tmp_path / "once.jsonl")
    place.gqa("run", "--ep", "cpu", "-k", TWO_THEMES, "--results", once)
    assert run.header.corpus == read(Path(once)).header.corpus
    report = place.gqa("report", str(run.path), "--csv", str(tmp_path / "table.csv"))
    assert report.status == 0, report.both


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ep", "nonsense"), "Unknown target 'nonsense'; known: cpu, "),
        (("--device", "-1"), "--device '-1' is not the number of a device, such as 0 or 1."),
        (("--ep", "cpu", "--device", "1"), "--device is for cuda, "),
        (("-k", "nosuch"), "-k 'nosuch' selects none of "),
    ],
    ids=["target", "device", "no device", "selection"],
)
def test_what_gqa_run_does_not_take(
    place: Desk, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    done = place.run(*command(out, *words))
    assert done.status == 2, done.both
    _, sentence = done.err.splitlines()
    assert sentence.startswith(said)
    assert not out.exists()


def test_an_old_python(place: Desk, tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = place.run(*command(tmp_path / "out"), environment={"PYTHON": str(old)})
    assert done.status == 2
    assert done.err.startswith(".ci/gpu-day needs Python 3.11 or later; ")
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_time_of_a_call_is_measured(place: Desk, tmp_path: Path) -> None:
    done = place.run(*command(tmp_path / "out", "--ep", "cpu", "-k", SOME))
    assert done.status == 0, done.both
    table = (tmp_path / "out" / "timing.md").read_text()
    assert "| runner and harness |" in table


def test_a_day_without_the_suites_dependencies(place: Desk, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = {"PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    done = place.run(*command(tmp_path / "out"), environment=bare)
    assert done.status == 3
    assert "The suite does not start in " in done.err
    assert done.err.endswith("install it (pip install -e .), or give --parts.\n")


def test_an_unavailable_runner(place: Desk, tmp_path: Path) -> None:
    runner = place.runner("unavailable")
    done = place.run(*command(tmp_path / "out", "--ep", runner, "-k", SOME))
    assert done.status == 3
    assert done.err.splitlines()[-1] == (
        f"{runner} cannot be used here: there is no device. Fix: pip install miniature"
    )


@pytest.mark.parametrize(("name", "status"), [("dies", 0), ("not_json", 0)])
def test_a_faulty_runner(place: Desk, tmp_path: Path, name: str, status: int) -> None:
    """A case that ends its runner each time is a result, or an infrastructure failure."""
    first, second = find(["causal/prompt[dtype=float32]"]).named
    done = place.run(
        *command(tmp_path / "out", "--ep", place.runner(name), "-k", SOME),
        "--no-timing",
        environment={"FAULT_ON": digest_of(first.call)},
    )
    assert done.status == status, done.both
    run = read(tmp_path / "out" / "results.jsonl.xz")
    assert run.problems == () if name == "dies" else len(run.problems) == 1
    verdicts = {result.case: result.verdict for result in run.results}
    assert verdicts.pop(second.id) == "pass"
    assert verdicts == ({first.id: "crash"} if name == "dies" else {})
    assert [trouble.case for trouble in run.infrastructure] == [first.id] * (name != "dies")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends what a killed process started")
def test_what_a_killed_day_leaves(place: Desk, tmp_path: Path) -> None:
    """SIGKILL, while a runner hangs: what was there a few seconds before can be read."""
    out = tmp_path / "out"
    cases = ("-k", "window", "--minutes", "5")
    day = place.start(
        *command(out, "--ep", place.runner("hangs"), *cases, "--no-timing"),
        environment={"FAULT_ON": place.faulty},
        start_new_session=True,
    )
    results = out / "results.jsonl.xz"
    wait_for(results.exists, 60)
    day.send_signal(signal.SIGKILL)
    day.wait(timeout=10)
    run = read(results)
    assert run.results
    assert "It has no footer: the run was cut short." in run.problems
    assert "It is still running, or was killed." in (out / "summary.md").read_text()
    wait_for(lambda: not running(str(tmp_path)), 20)


def running(word: str) -> list[str]:
    """Command lines of processes that have ``word``."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if word in line and " ps " not in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_day_says_so(place: Desk, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    day = place.start(*command(out, "--ep", "cpu", "-k", "smoke", "--no-timing"))
    wait_for((out / "summary.md").exists, 60)
    time.sleep(0.5)
    day.send_signal(number)
    said, errors = day.communicate(timeout=60)
    assert day.returncode == 1
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert re.search(rf"\nStopped by {name}; \d\d cases not run\.\n", errors)
    assert f"- Stopped by {name}; " in said
    assert "Traceback" not in said + errors
