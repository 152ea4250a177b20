"""A command leaves nothing in the user's folders but what the README names, and asks no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attention_models import Layer, decoder, saved

from conformance.base.paths import CACHE_VARIABLE, ROOT
from conformance.base.processes import ask
from conformance.targets.tools import TOOLS_VARIABLE, tools_root

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Where programs keep what they write for themselves.
FOLDERS = (
    *("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    "XDG_RUNTIME_DIR",
)
#: The cache folder that the README names: the last failed cases, and the shaders of a driver.
NAMED = re.compile(r"XDG_CACHE_HOME/gqa-conformance/(last_failed|shaders)/.+")
SWITCH = "ORT_DISABLE_TELEMETRY"


class Away:
    """A user with new folders, whose programs are watched where strace is installed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.log = place / "trace"
        for name in (*FOLDERS, "work"):
            (place / name).mkdir()
        kept = {k: v for k, v in os.environ.items() if k not in (CACHE_VARIABLE, SWITCH)}
        self.environment = {
            **kept,
            **{name: str(place / name) for name in FOLDERS},
            TOOLS_VARIABLE: str(tools_root()),
            "PYTHONPATH": str(ROOT),
        }
        strace = shutil.which("strace")
        options = ("-f", "-qq", "-e", "trace=socket", "-o", str(self.log))
        self.watched = () if strace is None else (strace, *options)

    def run(self, *command: str) -> str:
        """What the command prints; skips where its target is not here."""
        done = subprocess.run(
            [*self.watched, sys.executable, "-P", *command],
            cwd=self.place / "work",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if done.returncode == 3:
            pytest.skip(done.stdout.strip().splitlines()[0])
        assert done.returncode in (0, 1), done.stdout
        return done.stdout

    def check(self) -> None:
        files = (file for name in FOLDERS for file in (self.place / name).rglob("*"))
        left = [str(file.relative_to(self.place)) for file in files if not file.is_dir()]
        assert [name for name in left if not NAMED.fullmatch(name)] == []
        if self.watched:
            assert [each for each in self.log.read_text().splitlines() if "AF_INET" in each] == []


@pytest.fixture
def away(tmp_path: Path) -> Away:
    return Away(tmp_path)


@pytest.mark.parametrize(
    "target",
    [
        *("cpu", "cpu-noflash", "tract-wheel", "tract", "openvino", "qnn"),
        *("wasm", "node", "node-webgpu", "webgpu", "webgpu-jsep"),
    ],
)
def test_a_run_leaves_nothing_but_what_is_named(away: Away, target: str) -> None:
    away.run("-m", "conformance", "run", "smoke", "-k", "float32 and packed", "--ep", target)
    away.check()


@pytest.mark.push
def test_a_model_that_is_run_with_its_weights_leaves_nothing(away: Away) -> None:
    """Its graph and its nodes have names, which the runtime records if it may."""
    model = str(saved(decoder(Layer()), away.place / "work", "model.onnx"))
    away.run("-m", "conformance", "check", model, "--ep", "cpu", "--lengths", "3")
    away.check()


@pytest.mark.push
def test_an_exported_program_leaves_nothing(away: Away) -> None:
    case = "smoke/decode[dtype=float32]"
    away.run("-m", "conformance", "export", case, "out")
    (program,) = (away.place / "work" / "out").glob("*.py")
    assert "verdict: pass" in away.run(str(program))
    away.check()


def test_a_users_own_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import os; print(os.environ[{SWITCH!r}])"
    for chosen, got in ((None, b"1\n"), ("0", b"0\n")):
        monkeypatch.delenv(SWITCH, raising=False)
        if chosen is not None:
            monkeypatch.setenv(SWITCH, chosen)
        assert ask((sys.executable, "-c", code)).stdout == got
