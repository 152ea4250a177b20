"""No text from outside reaches a terminal raw: through the real command, on a real terminal.

Every path by which such text gets there:

- arguments: paths, case ids, ``-k``, commands and options that do not exist, values of options
  (``--ep``, ``-j``, ``--ort-python``, ``--results``, ``--html``, ``--mutant``, ``--version``);
- YAML files: keys, values and tags in messages about them; what ``gqa show`` prints of a
  case (question, why, source, links); what ``gqa list`` prints (ids are plain, the JSON is exact);
- names of files and folders, in messages and in the lines on what was written;
- runners: their name, version, device, adapter, messages, standard error, in ``gqa run`` and
  ``gqa export``, and later through results files in ``gqa diff`` and ``gqa report``;
- the environment: ``GQA_CACHE`` in ``gqa doctor``;
- the same messages in pytest.
"""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa, all_of
from case_files import HEAD, write
from endings import check_ending
from mutations import strange, whole

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: A title, concealed text, a cleared screen, another direction, a new line, and markup of rich.
NAME = "\x1b]0;PWN\x07\x1b[8mHID\x9b2J\u202eTXT\u2028[red]x[bold]"
TEXT = f"{NAME}[/red][/] [link=http://x]y[/link]"
#: The same in YAML's escapes.
YAML = TEXT.replace("\x1b", "\\e").replace("\x07", "\\a").replace("\x9b", "\\x9b")
YAML = YAML.replace("\u202e", "\\u202e").replace("\u2028", "\\L")

#: What rich itself sends: styles, and the cursor of a progress bar.
_OF_RICH = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r(?=[\n\x1b]|$)|\r")


def check(done: Done) -> None:
    """As `check_ending`, apart from what rich sends, which must not be the text's own."""
    check_ending(Done(done.status, _OF_RICH.sub("", done.both), ""))
    assert "\x1b[8m" not in done.both, ascii(done.both)
    assert "\x1b[31mx" not in done.both, ascii(done.both)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    desk.environment["HOSTILE"] = TEXT
    head = HEAD.replace("What is asked?", f'"{YAML}"').replace("a document", f'"{YAML}"')
    write(desk.folder, f'{head}  - {{name: one, why: "{YAML}", links: ["{YAML}"]}}\n', "own.yaml")
    wrong = {
        "key": f'{HEAD}  - {{name: a, "{YAML}": 1}}\n',
        "value": f'{HEAD}  - {{name: a, dtype: "{YAML}"}}\n',
        "label": f'{HEAD}  - {{name: a, matrix: {{own: {{"{YAML}": {{}}}}}}}}\n',
        "axis": f'{HEAD}  - {{name: a, matrix: {{"{YAML}": [1]}}}}\n',
        "twice": f'{HEAD}  - {{name: a, "{YAML}": 1, "{YAML}": 1}}\n',
        "format": f'format: "{YAML}"\n',
        "tag": f"{HEAD}  - !HID%E2%80%AE%1B%5B8m a\n",
    }
    for name, text in wrong.items():
        write(desk.folder, text, f"wrong_{name}.yaml")
    write(desk.folder, HEAD + "  - name: one\n", f"{NAME}.yaml")
    write(desk.folder, HEAD + "  - {name: one}\n", f"{NAME}/theme.yaml")
    new = strange(whole(desk.folder / "new.jsonl").read_bytes(), lambda text: text + TEXT)
    (desk.folder / "new.jsonl").write_bytes(new)
    old = new.replace(b"1.31.1", b"1.30.1").replace(
        b'"verdict": "unsupported"', b'"verdict": "pass"'
    )
    (desk.folder / "old.jsonl").write_bytes(old)
    return desk


@pytest.fixture
def on_terminal(gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``gqa``, on one terminal for both streams."""
    monkeypatch.setenv("HOSTILE", TEXT)
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: str) -> Done:
        master, slave = pty.openpty()
        with ThreadPoolExecutor(1) as readers:
            read = readers.submit(all_of, master)
            with (
                os.fdopen(slave, "w", 1) as terminal,
                redirect_stdout(terminal),
                redirect_stderr(terminal),
            ):
                status = gqa(*arguments).status
            return Done(status, read.result(), "")

    return call


WRONG = ("key", "value", "label", "axis", "twice", "format", "tag")
PATHS: dict[str, list[str]] = {
    "a path that is not there": ["list", f"{NAME}/no"],
    "a file with a bad name": ["list", f"{NAME}.yaml"],
    "a case that is not there": ["show", f"smoke/{TEXT}"],
    "a case in a file that is not there": ["list", f"{NAME}/own.yaml::one"],
    "-k that selects nothing": ["list", "smoke", "-k", "HID\x1b[8m\x9b\u202e"],
    "-k that is wrong": ["list", "smoke", "-k", f"({TEXT}"],
    "a search that finds nothing": ["list", "HID\x1b[8m\x9b\u202e or smoke=\u202e", "smoke/prompt"],
    "a search that is wrong": ["list", f"head_size>{TEXT}", "smoke"],
    "a search as JSON": ["list", "not softcap", "own.yaml", "--json"],
    "a command": [TEXT],
    "an option": ["list", f"--{TEXT}"],
    "an option's value": ["run", "-j", TEXT],
    "--ep": ["run", "smoke", "--ep", TEXT],
    "--ep exec": ["run", "own.yaml", "--ep", f"exec:./{NAME}"],
    "--ort-python": ["run", "own.yaml", "--ort-python", f"./{NAME}"],
    "--results": ["run", "own.yaml", "--results", f"{NAME}/no/results.jsonl"],
    "--html": ["run", "own.yaml", "--html", f"{NAME}/no/page.html"],
    "a release": ["setup", f"tract@{TEXT}"],
    "a subject of setup": ["setup", TEXT],
    "a results file": ["diff", NAME, NAME],
    "a report": ["report", NAME, "--html", "page.html"],
    **{f"a wrong {name}": ["list", f"wrong_{name}.yaml"] for name in WRONG},
    "a case": ["show", "own.yaml::one"],
    "a case in a folder": ["show", f"{NAME}/theme.yaml::one"],
    "a case as JSON": ["list", "own.yaml", "--json"],
    "changes": ["diff", "old.jsonl", "new.jsonl"],
    "histories": ["history", "--from", "old.jsonl", "--from", "new.jsonl", "--all"],
    "expectations": [
        *("expect", "--ep", "cpu", "--from", "new.jsonl"),
        *("--expectations", f"{NAME}/cpu.yaml", "--dry-run"),
    ],
    "what is merged": ["merge", "new.jsonl", "new.jsonl", "-o", f"{NAME}/merged.jsonl"],
}


@pytest.mark.parametrize("arguments", PATHS.values(), ids=PATHS)
def test_outside_text_is_not_obeyed(on_terminal: Callable[..., Done], arguments: list[str]) -> None:
    """Text from outside is shown and not obeyed."""
    done = on_terminal(*arguments)
    check(done)
    assert "HID" in done.out


#: Where ``gqa doctor`` looks for runtimes: nothing is there, so none is started.
ELSEWHERE = ("--ort-python", "--tract", "--tract-python", "--onnxruntime-web")


def test_the_name_of_the_cache(
    on_terminal: Callable[..., Done], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GQA_CACHE", str(desk.folder / f"{NAME}[" / "]"))
    nowhere = [word for option in ELSEWHERE for word in (option, "/no/such")]
    done = on_terminal("doctor", *nowhere)
    check(done)
    assert "HID" in done.out


def test_what_a_runner_says(on_terminal: Callable[..., Done], gqa: Gqa, desk: Desk) -> None:
    """In the run's own output, in what it says of its files, and later out of its results."""
    runner = desk.runner("escapes")
    file = f"{NAME}/results.jsonl"
    for command in (on_terminal, gqa):
        done = command(
            *("run", "own.yaml", "three.yaml", "--ep", runner),
            *("--results", file, "--html", f"{NAME}/page.html"),
        )
        check(done)
        assert done.status == 1
        assert "HID" in done.both
    for arguments in (
        ["diff", file, file],
        ["report", file, "--html", f"{NAME}/page.html", "--markdown", f"{NAME}/summary.md"],
        ["export", "three.yaml::faulty", f"{NAME}/exported", "--ep", runner],
    ):
        check(on_terminal(*arguments))


def test_colours_of_its_own_remain(on_terminal: Callable[..., Done]) -> None:
    assert "\x1b[1m" in on_terminal("show", "smoke/prompt[dtype=float32,sequence_length=5]").out


def test_json_is_exact_and_has_escapes(on_terminal: Callable[..., Done], gqa: Gqa) -> None:
    for command in (on_terminal, gqa):
        (case,) = map(json.loads, command("list", "own.yaml", "--json").out.splitlines())
        assert case["why"] == TEXT
        assert case["question"] == TEXT


def test_an_encoding_without_the_characters(desk: Desk) -> None:
    """click writes bytes then, and they are escaped, too."""
    done = desk.gqa("list", f"{NAME}/no", environment={"PYTHONIOENCODING": "ascii"})
    check(done)
    assert "HID" in done.err


@pytest.mark.push
def test_pytest_shows_the_same_messages(desk: Desk) -> None:
    files = ("own.yaml", "three.yaml", "wrong_key.yaml")
    plugin = ("-p", "no:cacheprovider", "-p", "conformance.pytest_plugin")
    command = (sys.executable, "-m", "pytest", *plugin, "-rA", *files)
    done = desk.run(*command, "--continue-on-collection-errors", "--ep", desk.runner("escapes"))
    assert "HID" in done.out
    check(done)
