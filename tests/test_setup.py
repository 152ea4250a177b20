"""``gqa setup``, with a cargo that writes a small script instead of compiling for minutes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from as_user import Desk, Gqa, in_this_process, wait_for

from conformance.cli import terminal
from conformance.targets.setup.cargo import why_it_failed
from conformance.targets.tools import TRACT_VERSION

#: Reads its options, records its call, and prints cargo's output; then runs $FAKE.
CARGO = """\
#!/bin/sh
echo "$@" >> "$CALLS"
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=$2;;
    --version) version=$2;;
    --target-dir) target=$2;;
  esac
  shift
done
compiled() {
  echo "    Updating crates.io index" >&2
  echo "   Compiling libc v0.2.1" >&2
  echo "   Compiling tract-core v$version" >&2
  mkdir -p "$target" && echo half > "$target/half"
}
binary() {
  mkdir -p "$root/bin"
  printf '#!/bin/sh\\n%s\\n' "$1" > "$root/bin/tract"
  chmod +x "$root/bin/tract"
}
eval "$FAKE"
"""

BUILDS = 'compiled; binary "echo tract-cli $version"'


class Place:
    """A folder of tools, only cargo on PATH, and the environment to use both."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.calls = folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()
        # Nothing else is on PATH, so no mistake can start a real cargo.
        for name in ("chmod", "mkdir", "sleep"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        (self.programs / "cargo").write_text(CARGO)
        (self.programs / "cargo").chmod(0o755)
        self.environment = {
            "GQA_TOOLS": str(self.tools),
            "CALLS": str(self.calls),
            "FAKE": BUILDS,
            "CARGO_HOME": str(folder / "no_cargo_home"),
            "PATH": str(self.programs),
        }

    @property
    def building(self) -> Path:
        return self.tools / "building" / f"tract-{TRACT_VERSION}"

    @property
    def binary(self) -> Path:
        return self.tools / f"tract-{TRACT_VERSION}" / "bin" / "tract"

    def put(self, script: str) -> None:
        """A binary that is already installed."""
        self.binary.parent.mkdir(parents=True)
        self.binary.write_text(f"#!/bin/sh\n{script}\n")
        self.binary.chmod(0o755)

    def called(self) -> list[str]:
        """The arguments of each call of cargo."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("GQA_TRACT", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
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


def test_tract_is_built_and_its_use_is_explained(gqa: Gqa, place: Place) -> None:
    done = gqa("setup", "tract")
    assert (done.status, done.out) == (
        0,
        f"tract {TRACT_VERSION} is built: {place.binary}\nuse it with: gqa run --ep tract\n",
    )
    assert done.err == (
        f"Building tract {TRACT_VERSION} with cargo: 9 to 15 minutes on 2 cores "
        f"(here: {os.cpu_count()}), and 1 GB of temporary disk space.\n"
    )
    assert place.called() == [
        f"install tract-cli --version {TRACT_VERSION} --locked --force "
        f"--root {place.building}/root --target-dir {place.building}/target"
    ]
    assert not place.building.exists()


def test_a_second_time_there_is_nothing_to_do(gqa: Gqa, place: Place) -> None:
    gqa("setup", "tract")
    done = gqa("setup", "tract")
    assert done.out.startswith(f"tract {TRACT_VERSION} is already installed: {place.binary}\n")
    assert (done.status, done.err, len(place.called())) == (0, "", 1)


def test_an_installed_binary_needs_no_cargo(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put(f"echo tract {TRACT_VERSION}")
    monkeypatch.setenv("PATH", "/nowhere")
    assert gqa("setup", "tract").status == 0


def test_the_path_is_named_if_another_binary_would_be_used(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = gqa("setup", "tract", "--version", "0.22.3")
    other = place.tools / "tract-0.22.3" / "bin" / "tract"
    assert done.out.splitlines()[-1] == f"use it with: gqa run --ep tract --tract {other}"
    monkeypatch.setenv("GQA_TRACT", "/some/tract")
    done = gqa("setup", "tract")
    assert done.out.splitlines()[-1] == f"use it with: gqa run --ep tract --tract {place.binary}"


@pytest.mark.parametrize(
    ("version", "crate"),
    [("0.19.2", "tract"), ("0.22.3", "tract"), ("0.23.0", "tract-cli"), ("1.0.0", "tract-cli")],
)
def test_older_releases_use_the_older_crate_name(
    gqa: Gqa, place: Place, version: str, crate: str
) -> None:
    assert gqa("setup", "tract", "--version", version).status == 0
    assert place.called()[0].startswith(f"install {crate} --version {version} ")


def test_cargo_is_found_in_rustups_folder(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place.programs.parent / "cargo_home"
    (home / "bin").mkdir(parents=True)
    (place.programs / "cargo").rename(home / "bin" / "cargo")
    monkeypatch.setenv("CARGO_HOME", str(home))
    assert gqa("setup", "tract").status == 0
    monkeypatch.setenv("FAKE", "exit 1")
    by_hand = gqa("setup", "tract", "--version", "0.22.3").err.splitlines()[-1]
    assert by_hand.startswith(f"  try it by hand    {home}/bin/cargo install tract ")


#: A cargo that refuses the locked dependencies of a release and builds those of a source.
PARTICULAR = f"""
case "$version" in
  0.22.5) echo "error: failed to compile" >&2; echo "Caused by:" >&2
    echo "  rustc 1.95.0 is not supported by the following packages:" >&2
    echo "    kstring@2.0.5 requires rustc 1.96.0" >&2; exit 101;;
  "") if [ -n "$root" ]; then version=0.22.5; {BUILDS}
      else echo "$CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS $PWD" >> "$CALLS"; fi;;
esac"""


@pytest.mark.parametrize("downloaded", [True, False])
def test_a_release_that_locks_what_needs_a_newer_rust(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, downloaded: bool
) -> None:
    home = place.programs.parent / "cargo_home"
    if downloaded:
        kept = home / "registry" / "src" / "somewhere" / "tract-0.22.5"
        kept.mkdir(parents=True)
        for name in ("Cargo.toml", "Cargo.lock"):
            (kept / name).touch()
    monkeypatch.setenv("CARGO_HOME", str(home))
    monkeypatch.setenv("FAKE", PARTICULAR)
    done = gqa("setup", "tract", "--version", "0.22.5")
    why = "kstring@2.0.5 requires rustc 1.96.0"
    assert why in done.err
    assert done.status == (0 if downloaded else 3)
    if downloaded:
        source = place.tools / "building" / "tract-0.22.5" / "source"
        _, locks, *settings, again = place.called()
        assert (locks, settings) == ("generate-lockfile", [f"fallback {source}"])
        assert again.startswith(f"install --path {source} --locked --force --root ")
        assert (kept / "Cargo.lock").exists()


# Broken binaries


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo tract-cli 0.22.3", f"reports version 'tract-cli 0.22.3', not {TRACT_VERSION}"),
        ("echo no libc >&2; exit 127", "does not start (exit status 127: no libc)"),
        ("", f"reports version '', not {TRACT_VERSION}"),
    ],
)
def test_a_broken_binary_is_built_again(gqa: Gqa, place: Place, script: str, why: str) -> None:
    place.put(script)
    done = gqa("setup", "tract")
    assert done.status == 0
    assert done.err.splitlines()[0] == f"{place.binary} {why}, so it is built again."
    assert done.out.startswith(f"tract {TRACT_VERSION} is built: ")
    assert gqa("setup", "tract").out.startswith(f"tract {TRACT_VERSION} is already installed: ")


def test_a_truncated_binary_is_built_again(gqa: Gqa, place: Place) -> None:
    place.put("")
    place.binary.write_bytes(b"\x7fELF")
    done = gqa("setup", "tract")
    assert done.status == 0
    assert f"{place.binary} does not start (Exec format error), so" in done.err


def test_a_built_binary_that_does_not_work_is_not_installed(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", 'compiled; binary "exit 1"')
    done = gqa("setup", "tract")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines()[-1] == (
        f"cargo built tract {TRACT_VERSION}, but {place.building}/root/bin/tract "
        "does not start (exit status 1); it is not used."
    )
    assert not place.binary.exists()


# Failures


def test_without_cargo(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = gqa("setup", "tract")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines() == [
        f"Building tract {TRACT_VERSION} needs cargo of Rust 1.91 or later, which is not "
        "installed.",
        "  install it    https://rustup.rs, or apt-get install cargo if that is 1.91 or later",
        f"  without Rust  {sys.executable} -m pip install tract=={TRACT_VERSION}, "
        "then gqa run --ep tract-wheel",
    ]
    assert not place.tools.exists()
    other = gqa("setup", "tract", "--version", "0.22.3").err
    assert other.startswith("Building tract 0.22.3 needs cargo, which is not installed.\n")


def test_a_failure_is_reported_with_its_log_and_a_command_to_try(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "compiled; echo 'error: No space left' >&2; exit 101")
    done = gqa("setup", "tract")
    assert (done.status, done.out) == (3, "")
    log = place.building / "cargo.log"
    by_hand = f"cargo install tract-cli --version {TRACT_VERSION} --locked --force --root "
    assert done.err.splitlines()[1:] == [
        f"cargo could not build tract {TRACT_VERSION}: No space left",
        f"  full output       {log}",
        f"  try it by hand    {by_hand}{place.tools}/tract-{TRACT_VERSION}",
    ]
    assert "Compiling libc v0.2.1\n" in log.read_text()
    assert log.read_text().endswith("error: No space left\n")
    assert not place.binary.exists()

    # The build folder is kept for the second try, and removed when it is no longer needed.
    monkeypatch.setenv("FAKE", f'[ -f "$target/half" ] || exit 1; {BUILDS}')
    assert gqa("setup", "tract").status == 0
    assert not place.building.exists()


def test_the_command_to_try_works(
    gqa: Gqa, place: Place, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "exit 1")
    by_hand = gqa("setup", "tract").err.splitlines()[-1].removeprefix("  try it by hand    ")
    fake = {**place.environment, "FAKE": 'binary "echo tract-cli $version"'}
    done = desk.run(*shlex.split(by_hand), environment=fake)
    assert done.status == 0, done.err
    assert gqa("setup", "tract").out.startswith(f"tract {TRACT_VERSION} is already installed: ")
    assert not place.building.exists()


def test_a_cargo_that_does_not_start(gqa: Gqa, place: Place) -> None:
    (place.programs / "cargo").write_bytes(b"\x7fELF")
    done = gqa("setup", "tract")
    assert done.status == 3
    assert f"build tract {TRACT_VERSION}: {place.programs}/cargo does not start: " in done.err
    assert not place.binary.exists()


def test_a_folder_that_cannot_be_written(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.tools.write_text("a file")
    done = gqa("setup", "tract")
    assert (done.status, done.out) == (3, "")
    assert done.err == (
        f"Cannot write {place.tools}/building: Not a directory. Set GQA_TOOLS to another folder.\n"
    )


@pytest.mark.parametrize("version", ["0.23", "v0.23.9", "0.23.9/../x", "latest", "", "1.2.3\n"])
def test_an_invalid_release_is_rejected(gqa: Gqa, place: Place, version: str) -> None:
    done = gqa("setup", "tract", "--version", version)
    assert (done.status, done.out) == (2, "")
    wanted = f"' is not a release of tract; expected three numbers, such as {TRACT_VERSION}.\n"
    assert done.err == f"'{version}{wanted}"
    assert not place.tools.exists()


def test_the_available_setups_are_listed(gqa: Gqa) -> None:
    for command in (("setup",), ("setup", "-h")):
        done = gqa(*command)
        assert done.status in (0, 2)
        assert re.search(r"^  cuda +Install onnxruntime-gpu", done.both, re.MULTILINE)
        assert re.search(r"^  tract +Build the tract binary", done.both, re.MULTILINE)
        assert re.search(r"^  webgpu +Install onnxruntime-web", done.both, re.MULTILINE)
    done = gqa("setup", "onnx")
    assert (done.status, done.out) == (2, "")
    known = "cuda, tract, webgpu, and the targets of gqa run"
    assert done.err == f"gqa setup does not know 'onnx'; known: {known}.\n"


# cargo's messages on failure, shortened to one sentence

FAILURES = {
    "unknown_version": (
        """\
    Updating crates.io index
error: could not find `tract-cli` in registry `crates-io` with version `=9.9.9`
""",
        "could not find `tract-cli` in registry `crates-io` with version `=9.9.9`",
    ),
    "no_network": (
        """\
    Updating crates.io index
warning: spurious network error (1 try remaining): [7] Could not connect to server
error: download of config.json failed

Caused by:
  failed to download from `https://example.org/config.json`

Caused by:
  [7] Could not connect to server (Failed to connect to 127.0.0.1 port 1 after 0 ms)
""",
        "download of config.json failed: [7] Could not connect to server "
        "(Failed to connect to 127.0.0.1 port 1 after 0 ms)",
    ),
    "old_rust": (
        """\
  Installing tract-cli v0.23.9
error: failed to compile `tract-cli v0.23.9`, intermediate artifacts can be found at `/tmp/x`.
To reuse those artifacts with a future compilation, set `CARGO_TARGET_DIR` to that path.

Caused by:
  rustc 1.85.0 is not supported by the following packages:
    tract-core@0.23.9 requires rustc 1.91
    tract-data@0.23.9 requires rustc 1.91
""",
        "rustc 1.85.0 is not supported by the following packages: "
        "tract-core@0.23.9 requires rustc 1.91",
    ),
    "compile_error": (
        """\
   Compiling tract-core v0.23.9
error[E0432]: unresolved import `x`
  --> src/lib.rs:1:5
error: could not compile `tract-core` (lib) due to 1 previous error
warning: build failed, waiting for other jobs to finish...
error: failed to compile `tract-cli v0.23.9`, intermediate artifacts can be found at `/tmp/x`.
""",
        "unresolved import `x`",
    ),
    "no_linker": (
        """\
error: linker `cc` not found
  |
  = note: No such file or directory (os error 2)

error: could not compile `libc` (build script) due to 1 previous error
""",
        "linker `cc` not found",
    ),
    "other_words": ("rustup: no default toolchain\n\n", "rustup: no default toolchain"),
    "nothing": ("", "it ended with status 101 and said nothing"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_cargos_output_is_reduced_to_one_sentence(name: str) -> None:
    said, told = FAILURES[name]
    assert why_it_failed(said, 101) == told


def test_a_long_sentence_is_shortened_and_a_signal_is_named() -> None:
    killed = (
        f"error: could not compile `a`\n\nCaused by:\n  rustc {'x' * 999} (signal: 9, SIGKILL)\n"
    )
    told = why_it_failed(killed, 101)
    assert told.startswith("could not compile `a`: rustc xxx")
    assert told.endswith("xxx (signal: 9, SIGKILL)")
    assert len(told) < 300
    assert why_it_failed("   Compiling a v1.0.0\n", -9) == "it was ended by SIGKILL"


# Progress


def test_without_a_terminal_a_line_is_written_periodically(
    gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_BUILD_LINE_EVERY", 0.9)
    monkeypatch.setenv("FAKE", f"compiled; sleep 2.2; {BUILDS.removeprefix('compiled; ')}")
    lines = gqa("setup", "tract").err.splitlines()[1:]
    assert 1 <= len(lines) <= 3
    for line in lines:
        assert re.fullmatch(
            rf"2 crates started, Compiling tract-core v{TRACT_VERSION}, 0:0[0-9]", line
        )


def test_a_terminal_shows_the_progress(place: Place, desk: Desk) -> None:
    from test_cli import in_terminal

    fake = {**place.environment, "FAKE": f"compiled; sleep 1.2; {BUILDS}"}
    status, written = in_terminal(desk, "setup", "tract", **fake)
    assert status == 0
    assert f"2 crates started, Compiling tract-core v{TRACT_VERSION}" in written
    assert "0:00:0" in written
    assert written.index("Building tract") < written.index("crates started")
    assert "use it with: gqa run --ep tract" in written.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fake"),
    [
        (signal.SIGINT, "compiled; sleep 61.5 & sleep 61.5"),
        (signal.SIGTERM, "compiled; trap '' TERM; sleep 61.5 & sleep 61.5; sleep 61.5"),
    ],
    ids=["SIGINT", "SIGTERM_that_cargo_ignores"],
)
def test_an_interruption_ends_cargo_too_and_leaves_no_binary(
    desk: Desk, place: Place, gqa: Gqa, number: signal.Signals, fake: str
) -> None:
    process = desk.start(
        *(sys.executable, "-m", "conformance", "setup", "tract"),
        environment={**place.environment, "FAKE": fake, "GQA_TEST_MARK": str(place.tools)},
    )
    wait_for(lambda: (place.building / "target" / "half").exists())
    wait_for(lambda: len(_living(place)) >= 4)  # gqa, cargo, and two that cargo started
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert _living(place) == []
    assert [line for line in err.splitlines() if line][1:] == [
        "What was compiled is kept; the same command continues from there.",
        "Interrupted.",
    ]
    assert not place.binary.exists()
    assert (place.building / "target" / "half").exists()
    assert gqa("setup", "tract").status == 0


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
    command = (sys.executable, "-m", "conformance", "setup", "tract")
    gate = place.tools.parent / "gate"
    fake = f"while [ ! -e {gate} ]; do sleep 0.05; done; {BUILDS}"
    environment = {**place.environment, "FAKE": fake}
    first = desk.start(*command, environment=environment)
    wait_for(place.called)
    second = desk.start(*command, environment=environment)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert said == "Another gqa setup is installing the same release; waiting for it.\n"
    gate.touch()
    for process, word in ((first, "built"), (second, "already installed")):
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out.startswith(f"tract {TRACT_VERSION} is {word}: {place.binary}\n")
    assert len(place.called()) == 1
