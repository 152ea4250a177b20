"""``gqa setup lavapipe``, on its own file system with a fake apt that records its calls."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from as_user import Desk, Gqa, in_this_process

from conformance.targets.setup import apt_sources, lavapipe
from conformance.targets.setup.lavapipe import last_error, major

OLD, NEW = "22.3.6-1+deb12u2", "25.0.7-2~bpo12+1"

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\nID=debian\n'
UBUNTU = 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_CODENAME=jammy\nID=ubuntu\nID_LIKE=debian\n'

STANZAS = """\
Types: deb
# http://snapshot.test/20250520T000000Z
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
DERIVED = """\
# Written by gqa setup lavapipe, after /etc/apt/sources.list.d/debian.sources.
Types: deb
URIs: http://mirror.test/debian
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""

UPDATE = "apt-get update"
PLAIN = "apt-get install --no-install-recommends -y mesa-vulkan-drivers libvulkan1"
BACKPORTED = (
    "apt-get install --no-install-recommends -y -t bookworm-backports "
    "mesa-vulkan-drivers libdrm2 libdrm-amdgpu1 libvulkan1"
)
NO_SUITE = "E: The repository '{} bookworm-backports Release' does not have a Release file."

#: Each answers from files in $STATE, and apt-get runs $ON_UPDATE or $ON_INSTALL after recording it.
PROGRAMS = {
    "apt-get": 'echo "apt-get $@" >> "$STATE/calls"\n'
    'case $1 in update) eval "$ON_UPDATE";; install) eval "$ON_INSTALL";; esac',
    "apt-cache": "name=policy\n"
    'case "$1 $2" in "-o APT::Default-Release="*) name=policy-${2#*=};; esac\n'
    'if [ -f "$STATE/$name" ]; then cat "$STATE/$name"; fi',
    "dpkg-query": 'for package; do :; done\ncat "$STATE/installed-$package"',
    "sudo": 'exec "$@"',
    "tee": 'echo "tee $@" >> "$STATE/calls"\ncat > "$STATE/teed"',
}

INSTALLS = (
    f'echo "installed {NEW}" > "$STATE/installed-mesa-vulkan-drivers"\n'
    'echo "installed 1.3.239.0-1" > "$STATE/installed-libvulkan1"\n'
    'mkdir -p "$ROOT/usr/share/vulkan/icd.d"\n'
    'echo {} > "$ROOT/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"'
)


def policy(version: str, *offers: str) -> str:
    """Output of ``apt-cache policy``; an offer is like ``http://mirror.test/debian bookworm``."""
    lines = [f"        500 {offer}/main amd64 Packages\n" for offer in offers]
    table = f"     {version} 500\n{''.join(lines)}"
    return f"mesa-vulkan-drivers:\n  Candidate: {version}\n  Version table:\n{table}"


class Machine:
    """A file system, installed packages and apt's state; only the fake programs are on PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.state = folder / "state"
        self.programs = folder / "programs"
        self.tools = folder / "tools"
        self.parts = self.root / "etc" / "apt" / "sources.list.d"
        for made in (self.state, self.programs, self.parts):
            made.mkdir(parents=True)
        for name in ("cat", "mkdir", "sleep"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        for name, script in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.programs / name).chmod(0o755)
        self.is_system(DEBIAN)
        self.knows("policy", policy(OLD, "http://mirror.test/debian bookworm"))
        self.knows("policy-bookworm-backports", policy(NEW))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": str(self.programs),
            "STATE": str(self.state),
            "ROOT": str(self.root),
            "GQA_TOOLS": str(self.tools),
            "ON_UPDATE": "",
            "ON_INSTALL": INSTALLS,
        }

    @property
    def derived(self) -> Path:
        return self.parts / "gqa-backports.sources"

    @property
    def log(self) -> Path:
        return self.tools / "lavapipe-apt.log"

    def is_system(self, os_release: str) -> None:
        (self.root / "etc" / "os-release").write_text(os_release)

    def knows(self, name: str, text: str) -> None:
        (self.state / name).write_text(text)

    def has(self, package: str, version: str, status: str = "installed") -> None:
        self.knows(f"installed-{package}", f"{status} {version}\n")

    def has_driver(self) -> Path:
        file = self.root / "usr/share/vulkan/icd.d/lvp_icd.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        return file

    def calls(self) -> list[str]:
        file = self.state / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lavapipe, "SYSTEM", made.root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


@pytest.fixture
def debian(machine: Machine) -> Machine:
    """A fresh Debian 12: its own archive, in stanzas, and no driver."""
    (machine.parts / "debian.sources").write_text(STANZAS)
    return machine


@pytest.fixture
def user(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.fixture
def gqa(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    with in_this_process(monkeypatch, capsys) as call:
        yield call


# Nothing to do


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_an_installed_driver_is_reported_and_nothing_is_done(
    gqa: Gqa, debian: Machine, arguments: tuple[str, ...]
) -> None:
    driver = debian.has_driver()
    debian.has("mesa-vulkan-drivers", NEW)
    debian.has("libvulkan1", "1.3.239.0-1")
    done = gqa("setup", "lavapipe", *arguments)
    assert (done.status, done.err) == (0, "")
    assert done.out == (
        f"lavapipe of Mesa {NEW} is already installed: {driver}\n"
        "use it with: gqa run --ep webgpu --adapter lavapipe\n"
    )
    assert debian.calls() == []
    assert not debian.tools.exists()


@pytest.mark.parametrize(
    ("mesa", "loader", "driver"),
    [
        (f"installed {OLD}", "installed 1.3", True),
        (f"config-files {NEW}", "installed 1.3", True),
        (f"installed {NEW}", "", True),
        (f"installed {NEW}", "config-files 1.3", True),
        (f"installed {NEW}", "installed 1.3", False),
    ],
)
def test_an_incomplete_driver_does_not_count(
    gqa: Gqa, debian: Machine, mesa: str, loader: str, driver: bool
) -> None:
    debian.knows("installed-mesa-vulkan-drivers", mesa + "\n")
    debian.knows("installed-libvulkan1", loader + "\n")
    if driver:
        debian.has_driver()
    done = gqa("setup", "lavapipe")
    assert done.status == 0
    assert "is installed" in done.out
    assert debian.calls()[-1] == BACKPORTED


# From the release itself


@pytest.mark.parametrize("version", [NEW, "1:26.0.0-1", "25.2.8-0ubuntu0.24.04.1"])
def test_the_driver_comes_from_the_release_itself(gqa: Gqa, debian: Machine, version: str) -> None:
    debian.knows("policy", policy(version))
    done = gqa("setup", "lavapipe")
    assert done.status == 0
    assert done.err == (
        "Installing mesa-vulkan-drivers and libvulkan1 from this system's release with apt-get.\n"
    )
    assert debian.calls() == [UPDATE, PLAIN]
    assert not debian.derived.exists()


@pytest.mark.parametrize("system", [DEBIAN, UBUNTU])
def test_empty_package_lists_are_updated_first(
    gqa: Gqa, debian: Machine, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian.is_system(system)
    (debian.state / "policy").unlink()
    monkeypatch.setenv("ON_UPDATE", f"cat > \"$STATE/policy\" <<'EOF'\n{policy(NEW)}EOF")
    assert gqa("setup", "lavapipe").status == 0
    assert debian.calls() == [UPDATE, UPDATE, PLAIN]


def test_package_lists_that_stay_empty_are_reported_with_apts_message(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (debian.state / "policy").unlink()
    failed = "W: Failed to fetch http://mirror.test/debian  Could not resolve 'mirror.test'"
    ignored = "W: Some index files failed to download. They have been ignored."
    monkeypatch.setenv("ON_UPDATE", f'echo "{failed}"; echo "{ignored}"')
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert done.err == (
        "apt does not know the package mesa-vulkan-drivers, even after apt-get update: "
        f"{failed}\n"
        f"  full output       {debian.log}\n"
        "  its sources       /etc/apt/sources.list and /etc/apt/sources.list.d\n"
    )


# From backports


def test_backports_are_added_after_the_machines_own_source(gqa: Gqa, debian: Machine) -> None:
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err) == (
        0,
        "Installing mesa-vulkan-drivers and libvulkan1 from bookworm-backports with apt-get.\n",
    )
    assert done.out == (
        f"lavapipe of Mesa {NEW} is installed: "
        f"{debian.root}/usr/share/vulkan/icd.d/lvp_icd.x86_64.json\n"
        "use it with: gqa run --ep webgpu --adapter lavapipe\n"
    )
    assert debian.calls() == [UPDATE, BACKPORTED]
    assert debian.derived.read_text() == DERIVED
    assert debian.derived.stat().st_mode & 0o777 == 0o644


def test_the_source_exists_when_apt_updates_its_lists(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "etc/apt/sources.list.d/gqa-backports.sources"
    monkeypatch.setenv("ON_UPDATE", f'cat "$ROOT/{name}" > "$STATE/seen"')
    assert gqa("setup", "lavapipe").status == 0
    assert (debian.state / "seen").read_text() == DERIVED


def test_a_line_of_sources_list_works_as_well(gqa: Gqa, machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list").write_text(
        "deb http://mirror.test/debian-security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main contrib\n"
    )
    assert gqa("setup", "lavapipe").status == 0
    assert machine.derived.read_text() == (
        "# Written by gqa setup lavapipe, after /etc/apt/sources.list.\n"
        "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm-backports\n"
        "Components: main\nArchitectures: amd64\nSigned-By: /k.gpg\n"
    )


def test_another_archive_with_the_same_suite_name_is_not_used(gqa: Gqa, debian: Machine) -> None:
    other = "deb http://other.test/prod bookworm main\n"
    (debian.parts / "another.list").write_text(other)
    assert gqa("setup", "lavapipe").status == 0
    assert debian.derived.read_text() == DERIVED


def test_a_private_source_gives_a_private_derived_source(gqa: Gqa, debian: Machine) -> None:
    (debian.parts / "debian.sources").chmod(0o600)
    assert gqa("setup", "lavapipe").status == 0
    assert debian.derived.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("backports.sources", DERIVED),
        ("backports.list", "deb http://b.test/debian bookworm-backports main\n"),
        ("gqa-backports.sources", DERIVED),
    ],
)
def test_backports_that_are_configured_are_not_added_again(
    gqa: Gqa, debian: Machine, name: str, text: str
) -> None:
    (debian.parts / name).write_text(text)
    before = sorted(debian.parts.iterdir())
    assert gqa("setup", "lavapipe").status == 0
    assert debian.calls() == [UPDATE, BACKPORTED]
    assert sorted(debian.parts.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("backports.sources", "Enabled: no\n" + DERIVED),
        ("backports.list", "# deb http://b.test/debian bookworm-backports main\n"),
        ("backports.list", "deb http://b.test/debian bookworm-backports contrib\n"),
        ("backports.list", "deb http://b.test/debian bullseye-backports main\n"),
    ],
)
def test_other_sources_do_not_count_as_these_backports(
    gqa: Gqa, debian: Machine, name: str, text: str
) -> None:
    (debian.parts / name).write_text(text)
    assert gqa("setup", "lavapipe").status == 0
    assert debian.derived.read_text() == DERIVED


# Failures


def test_a_missing_suite_is_reported_and_its_source_removed(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (debian.state / "policy-bookworm-backports").unlink()
    error = NO_SUITE.format("http://mirror.test/debian")
    monkeypatch.setenv("ON_UPDATE", f'echo "{error}" >&2; echo "N: See apt-secure(8)."; exit 100')
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert done.err.splitlines()[1:] == [
        "This machine's archive has no bookworm-backports; that source was removed again: " + error,
        "  without float16   apt-get install chromium libvulkan1, then gqa run --ep webgpu "
        "--adapter swiftshader",
        f"  full output       {debian.log}",
    ]
    assert debian.calls() == [UPDATE]
    assert not debian.derived.exists()
    assert debian.log.read_text() == f"$ {UPDATE}\n{error}\nN: See apt-secure(8).\n"


def test_another_failing_source_is_ignored(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ON_UPDATE", 'echo "E: The repository of others is gone."; exit 100')
    assert gqa("setup", "lavapipe").status == 0
    assert debian.derived.exists()


def test_backports_that_are_too_old_are_reported(gqa: Gqa, debian: Machine) -> None:
    debian.knows("policy-bookworm-backports", policy("24.2.8-1~bpo12+1"))
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert (
        "bookworm-backports has lavapipe of Mesa 24.2.8-1~bpo12+1, not 25 or later; "
        "that source was removed again.\n"
    ) in done.err
    assert not debian.derived.exists()


def test_backports_that_cannot_be_fetched_are_reported(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (debian.state / "policy-bookworm-backports").unlink()
    failed = "W: Failed to fetch http://mirror.test/debian/dists/bookworm-backports/InRelease  gone"
    monkeypatch.setenv("ON_UPDATE", f'echo "{failed}"; echo "W: Some were ignored."')
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert (
        "apt-get update found no mesa-vulkan-drivers in bookworm-backports; "
        f"that source was removed again: {failed}\n"
    ) in done.err
    assert not debian.derived.exists()


def test_a_source_that_we_did_not_add_is_never_removed(gqa: Gqa, debian: Machine) -> None:
    theirs = debian.parts / "backports.sources"
    theirs.write_text(DERIVED)
    (debian.state / "policy-bookworm-backports").unlink()
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert "apt-get update found no mesa-vulkan-drivers in bookworm-backports.\n" in done.err
    assert theirs.exists()


def test_apts_last_message_is_quoted_if_it_cannot_install(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "E: Could not get lock /var/lib/dpkg/lock-frontend."
    monkeypatch.setenv("ON_INSTALL", f'echo "E: first"; echo "{last}" >&2; echo "N: b"; exit 100')
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert done.err.splitlines()[1:] == [
        f"apt-get could not install mesa-vulkan-drivers: {last}",
        f"  full output       {debian.log}",
        f"  try it by hand    {BACKPORTED}",
    ]
    assert not debian.derived.exists()
    assert debian.log.read_text() == f"$ {UPDATE}\n$ {BACKPORTED}\nE: first\n{last}\nN: b\n"


def test_only_the_messages_of_the_install_itself_explain_a_failure(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ON_UPDATE", 'echo "E: The repository of others is gone."')
    monkeypatch.setenv("ON_INSTALL", 'echo "dpkg is gone"; exit 100')
    done = gqa("setup", "lavapipe")
    assert "apt-get could not install mesa-vulkan-drivers: dpkg is gone\n" in done.err


def test_apt_runs_without_questions_in_a_fixed_language(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("ON_UPDATE", 'echo "$LC_ALL $DEBIAN_FRONTEND"')
    gqa("setup", "lavapipe")
    assert "\nC noninteractive\n" in debian.log.read_text()


def test_an_install_without_a_driver_is_a_failure(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ON_INSTALL", "")
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert "there is no lavapipe of Mesa 25 or later in" in done.err


def test_an_interrupt_ends_apt_and_removes_the_source(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "ON_INSTALL", 'trap "echo ended; exit 1" TERM; sleep 0.3; kill -INT $PPID; sleep 1; :'
    )
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err.splitlines()[-1]) == (130, "Interrupted.")
    assert not debian.derived.exists()
    assert debian.log.read_text().endswith("ended\n")


def test_a_release_with_an_old_driver_and_no_backports_is_reported(
    gqa: Gqa, debian: Machine
) -> None:
    debian.is_system(UBUNTU)
    debian.knows("policy", policy("23.2.1-1ubuntu3.1~22.04.3"))
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err) == (
        3,
        "Ubuntu 22.04.5 LTS has lavapipe of Mesa 23.2.1-1ubuntu3.1~22.04.3, but Dawn needs Mesa 25 "
        "or later. Update apt's lists and try again (sudo apt-get update, then gqa setup "
        "lavapipe), or use a newer release of the system.\n",
    )
    assert debian.calls() == [UPDATE]


def test_a_source_with_another_suite_name_is_reported(gqa: Gqa, machine: Machine) -> None:
    (machine.parts / "debian.list").write_text("deb http://mirror.test/debian oldstable main\n")
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err) == (
        3,
        "No file in /etc/apt has a source with suite bookworm and component main, from which a "
        "source of bookworm-backports could be derived. Add a source of bookworm-backports there, "
        "then run gqa setup lavapipe again.\n",
    )
    assert machine.calls() == []


@pytest.mark.parametrize("program", ["apt-get", "apt-cache", "dpkg-query"])
def test_without_apt_the_requirement_is_printed(
    gqa: Gqa, machine: Machine, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    (machine.programs / program).unlink()
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err) == (
        3,
        f"gqa setup lavapipe needs {program}, which is not installed. Install lavapipe of Mesa 25 "
        "or later and Vulkan's loader by hand (Fedora: dnf install "
        "mesa-vulkan-drivers vulkan-loader; Arch: pacman -S vulkan-swrast vulkan-icd-loader).\n",
    )


def test_macos_needs_none(gqa: Gqa, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (machine.programs / "apt-get").unlink()
    done = gqa("setup", "lavapipe")
    assert (done.status, done.err) == (
        3,
        "macOS needs no lavapipe, since Dawn uses Metal there: gqa run --ep webgpu.\n",
    )


def test_a_folder_that_cannot_be_written_is_reported(
    gqa: Gqa, debian: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian.tools.write_text("a file")
    done = gqa("setup", "lavapipe")
    assert done.status == 3
    assert done.err == (
        f"Cannot use {debian.tools}: File exists. Set GQA_TOOLS to another folder.\n"
    )


# Printing commands instead of running them

COMMANDS = f"""\
{{0}}tee /etc/apt/sources.list.d/gqa-backports.sources >/dev/null <<'EOF'
{DERIVED}EOF
{{0}}{UPDATE}
{{0}}{BACKPORTED}
"""


def test_a_dry_run_prints_the_commands_and_does_nothing(gqa: Gqa, debian: Machine) -> None:
    done = gqa("setup", "lavapipe", "--dry-run")
    assert (done.status, done.out, done.err) == (0, COMMANDS.format(""), "")
    assert debian.calls() == []
    assert not debian.derived.exists()
    assert not debian.tools.exists()


@pytest.mark.usefixtures("user")
def test_users_other_than_root_get_commands_with_sudo(gqa: Gqa, debian: Machine) -> None:
    done = gqa("setup", "lavapipe", "--dry-run")
    assert (done.status, done.out, done.err) == (0, COMMANDS.format("sudo "), "")
    done = gqa("setup", "lavapipe")
    assert (done.status, done.out) == (3, "")
    assert done.err == (
        "Only root can install lavapipe; the commands are:\n" + COMMANDS.format("sudo ")
    )
    assert debian.calls() == []
    assert not debian.derived.exists()


@pytest.mark.usefixtures("user")
def test_the_printed_commands_have_the_effect_of_a_run_as_root(
    gqa: Gqa, debian: Machine, tmp_path: Path, shared_cache: Path
) -> None:
    printed = gqa("setup", "lavapipe", "--dry-run").out
    (tmp_path / "desk").mkdir()
    desk = Desk(tmp_path / "desk", shared_cache)
    shell = shutil.which("sh", path=os.defpath)
    assert shell is not None
    done = desk.run(shell, "-c", printed, environment=debian.environment)
    assert (done.status, done.both) == (0, "")
    assert debian.calls() == [
        "tee /etc/apt/sources.list.d/gqa-backports.sources",
        UPDATE,
        BACKPORTED,
    ]
    assert (debian.state / "teed").read_text() == DERIVED


@pytest.mark.parametrize(
    ("known", "commands"),
    [
        (policy(NEW), [f"sudo {UPDATE}", f"sudo {PLAIN}"]),
        ("", [f"sudo {UPDATE}", "gqa setup lavapipe"]),
    ],
)
@pytest.mark.usefixtures("user")
def test_the_commands_depend_on_the_state_of_apt(
    gqa: Gqa, debian: Machine, known: str, commands: list[str]
) -> None:
    debian.knows("policy", known)
    assert gqa("setup", "lavapipe", "--dry-run").out.splitlines() == commands


# Helpers


@pytest.mark.parametrize(
    ("version", "number"),
    [(OLD, 22), (NEW, 25), ("1:25.0-1", 25), ("(none)", 0), ("", 0), ("100.1", 100)],
)
def test_the_first_number_of_a_version_counts(version: str, number: int) -> None:
    assert major(version) == number


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("E: a\nE: b\nW: Failed to fetch c\nN: d\n", "E: b"),
        ("W: Failed to fetch c\nW: Some index files\n", "W: Failed to fetch c"),
        ("\nlast\n\n", "last"),
        ("", "it ended with status 100 and said nothing"),
    ],
)
def test_apts_last_error_is_found(said: str, error: str) -> None:
    assert last_error(said, 100) == error


def test_the_program_contains_no_archive_address() -> None:
    for module in (lavapipe, apt_sources):
        assert module.__file__ is not None
        assert "://" not in Path(module.__file__).read_text(encoding="utf-8")
