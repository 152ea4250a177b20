"""What is shared says nothing of the folders of the machine that it was made on."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from as_user import Desk

from conformance.base.paths import ROOT, data_path
from conformance.cli.report import FORMS
from conformance.results.shareable import shared_command, without_folders, without_folders_in_json

TELLTALE = "telltale"


def texts(folder: Path) -> dict[str, str]:
    """The content of each file below ``folder``, with what is packed in pages."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "replace")
            packed = re.findall(r"H4sI[A-Za-z0-9+/=]{20,}", text)
            parts = [gzip.decompress(base64.b64decode(each)).decode() for each in packed]
            found[path.name] = "\n".join([text, *parts])
    return found


@pytest.mark.night
def test_no_output_names_a_local_folder(tmp_path: Path, shared_cache: Path) -> None:
    here = tmp_path / TELLTALE / "here"
    (here / "out").mkdir(parents=True)
    desk = Desk(here, shared_cache)
    home, elsewhere = tmp_path / TELLTALE / "home", tmp_path / TELLTALE / "elsewhere"
    (home / "bin").mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copy(here / "three.yaml", elsewhere / "other.yaml")
    program = desk.runner("dies").removeprefix("exec:")
    shutil.copy(program, home / "bin" / "runner")
    (home / "bin" / "python").symlink_to(sys.executable)
    eps = (desk.runner("wrong_values"), f"exec:{home}/bin/runner", f"exec:{elsewhere}/gone", "cuda")
    done = desk.gqa(
        *("run", f"{elsewhere}/other.yaml", "three.yaml"),
        "smoke/prompt[dtype=float16,sequence_length=5]",
        *(word for ep in (*eps, "cpu") for word in ("--ep", ep)),
        *(
            "--ort-python",
            f"{home}/bin/python",
            "--results",
            "out/r.jsonl",
            "--html",
            "out/run.html",
        ),
        environment={"HOME": str(home), "GQA_CACHE": str(tmp_path / TELLTALE / "cache")},
    )
    assert done.status == 3, done.both
    forms = [word for form in FORMS for word in (f"--{form.option}", f"out/{form.option}")]
    assert desk.gqa("report", "out/r.jsonl", *forms).status == 0
    assert desk.gqa("diff", "out/r.jsonl", "out/r.jsonl", "--markdown", "out/diff").status == 1
    case = ("three.yaml::faulty", "out/bug", "--ep", f"exec:{home}/bin/runner")
    exported = desk.gqa("export", *case, environment={"HOME": str(home)})
    assert exported.status == 0, exported.both
    found = texts(here / "out")
    assert {"r.jsonl", "run.html", "html", "junit", "issue.md"} < found.keys()
    for name, text in found.items():
        for local in (TELLTALE, str(tmp_path), f"{ROOT}/"):
            at = text.find(local)
            assert at < 0, f"{name}: {text[max(0, at - 200) : at + 200]}"


def test_paths_begin_where_others_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a b" / "sub")
    monkeypatch.setenv("HOME", "/srv/jane")
    here = os.getcwd()
    shorter = without_folders()
    for long, short in (
        (f"{here}/x.yaml:3 is wrong", "x.yaml:3 is wrong"),
        (f"in {here}.", "in ./."),
        (f"{here}side/x", "../subside/x"),
        (f"/mnt{here}/x", f"/mnt{here}/x"),
        (f"file://{here}/x", "file://x"),
        (f"--tract {Path(here).parent}/tract", "--tract ../tract"),
        ("exec:/srv/jane/run", "exec:~/run"),
        (f"{data_path('runners')}/tract/cli.py", "gqa-conformance/runners/tract/cli.py"),
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6"),
        ("kept", "kept"),
        ("a\n/srv/jane/x\t/srv/jane/y\r\n/srv/jane", "a\n~/x\t~/y\r\n~"),
        ("\x1b[1;31m/srv/jane/x\x1b[0m", "\x1b[1;31m~/x\x1b[0m"),
        ("\x1b[0m\x1b(B/srv/jane/x", "\x1b[0m\x1b(B~/x"),
        ("cc -I/srv/jane/i -L/srv/jane/l", "cc -I~/i -L~/l"),
        ("-isystem/srv/jane/i --sysroot/srv/jane", "-isystem~/i --sysroot~"),
        ("\x1b[0m-I/srv/jane/i", "\x1b[0m-I~/i"),
        (r"b'a\n/srv/jane/x\x1b[0m'", r"b'a\n~/x\x1b[0m'"),
        ("/mnt-x/srv/jane -/srv/jane", "/mnt-x/srv/jane -/srv/jane"),
        (f"-I{here}/x", "-Ix"),
    ):
        assert shorter(long) == short
        if long != short:
            in_json = without_folders_in_json()(json.dumps({"a": [long, 'say "\\'], long: 1}))
            assert json.loads(in_json) == {"a": [short, 'say "\\'], short: 1}


def test_the_name_of_the_machine_is_left_out() -> None:
    logged = "E: CUDA failure 700: … ; GPU=0 ; hostname=box-17.example ; file=/a.cc\nhostname=b"
    text = without_folders_in_json()(json.dumps({"stderr": logged}, ensure_ascii=False))
    assert json.loads(text) == {
        "stderr": "E: CUDA failure 700: … ; GPU=0 ; hostname=… ; file=/a.cc\nhostname=…"
    }


def test_a_command_for_others_has_no_absolute_path() -> None:
    for long, short in (
        ("gqa run 'a/b[c=1]' --ep cpu", "gqa run 'a/b[c=1]' --ep cpu"),
        ("gqa run a/b --ort-python /opt/x/python", "gqa run a/b --ort-python '…/python'"),
        ("gqa run '/mnt/a b/x.yaml::one'", "gqa run '…/x.yaml::one'"),
        ("gqa run a/b --ep exec:/opt/x/runner", "gqa run a/b --ep 'exec:…/runner'"),
        ("no 'command", "no 'command"),
    ):
        assert shared_command(long) == short
