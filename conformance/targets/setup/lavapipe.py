"""``gqa setup lavapipe``: installs Mesa's software Vulkan driver with apt.

Dawn needs the driver of Mesa 25 or later. Where Debian's release has an older one, the driver comes
from backports, which are added as a source that is derived from the machine's own. Nothing else is
installed from backports. If anything fails, the source is removed again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.base.processes import ask, start
from conformance.targets.setup.apt_sources import PARTS, AptSource, having, sources
from conformance.targets.setup.build_process import without_words
from conformance.targets.setup.tract import SetupError, Tell
from conformance.targets.tools import TOOLS_VARIABLE, tools_root

#: The oldest Mesa whose lavapipe Dawn accepts.
OLDEST_MESA: Final = 25

#: The root of the file system.
SYSTEM: Final = Path("/")

#: The packages of the driver and of Vulkan's loader, through which Dawn finds it.
DRIVER: Final = "mesa-vulkan-drivers"
LOADER: Final = "libvulkan1"

#: The folder of the files that describe Vulkan drivers, relative to the root.
_ICD_FOLDER: Final = Path("usr", "share", "vulkan", "icd.d")
_OWN_SOURCE: Final = "gqa-backports.sources"

#: From backports, libdrm must be named, too: apt would keep the older one.
_FROM_RELEASE: Final = (DRIVER, LOADER)
_FROM_BACKPORTS: Final = (DRIVER, "libdrm2", "libdrm-amdgpu1", LOADER)

#: Time for an interrupted apt to end, in seconds. It is never killed, since dpkg may be half done.
_GRACE: Final = 60.0

#: apt's message about a suite that an archive does not have.
_NO_SUITE: Final = "does not have a Release file"


@dataclass(frozen=True)
class Lavapipe:
    """An installed driver: the version of its Debian package, and the file that describes it."""

    version: str
    driver: Path


@dataclass(frozen=True)
class InstallPlan:
    """What to install and from where.

    ``release`` is the name of backports if the driver comes from there. ``source`` is the text of
    the source file to write first; ``private`` says that only root may read it. ``again`` says that
    apt has no package lists yet, so that the plan can only be made after ``apt-get update``.
    """

    release: str = ""
    source: str = ""
    private: bool = False
    again: bool = False

    def install(self) -> tuple[str, ...]:
        """The command that installs."""
        command = ("apt-get", "install", "--no-install-recommends", "-y")
        if self.release:
            return (*command, "-t", self.release, *_FROM_BACKPORTS)
        return (*command, *_FROM_RELEASE)

    def commands(self) -> list[str]:
        """The whole plan as shell commands, with sudo unless the user is root."""
        sudo = "" if _is_root() else "sudo "
        lines = []
        if self.source:
            file = f"/{PARTS / _OWN_SOURCE}"
            lines.append(f"{sudo}tee {file} >/dev/null <<'EOF'\n{self.source}EOF")
        lines.append(f"{sudo}apt-get update")
        lines.append("gqa setup lavapipe" if self.again else sudo + shlex.join(self.install()))
        return lines


@dataclass(frozen=True)
class Done:
    """The result: the installed driver, or only the commands that would install it."""

    there: Lavapipe | None
    new: bool = False
    commands: tuple[str, ...] = ()


def set_up_lavapipe(tell: Tell, dry_run: bool = False) -> Done:
    """Install lavapipe and Vulkan's loader, unless they are installed.

    With ``dry_run``, return the commands and run none. Raises :class:`SetupError`, also for a user
    who is not root.
    """
    if there := installed():
        return Done(there)
    missing = [name for name in ("apt-get", "apt-cache", "dpkg-query") if not shutil.which(name)]
    if missing:
        raise SetupError(_without_apt(missing[0]))
    runs = _is_root() and not dry_run
    try:
        apt = _Apt() if runs else None
        if apt:
            _learn(apt)
        plan = _plan()
        if dry_run:
            return Done(None, commands=tuple(plan.commands()))
        if apt is None:
            raise SetupError(
                "Only root can install lavapipe; the commands are:\n" + "\n".join(plan.commands())
            )
        _carry_out(plan, apt, tell)
    except OSError as error:
        raise SetupError(_about(error)) from None
    there = installed()
    if there is None:
        raise SetupError(
            f"apt-get installed {DRIVER} and {LOADER}, but there is no lavapipe of Mesa "
            f"{OLDEST_MESA} or later in {SYSTEM / _ICD_FOLDER}; full output of apt: {apt.log}."
        )
    return Done(there, new=True)


def installed() -> Lavapipe | None:
    """The installed driver, if it is new enough and the loader is installed, too."""
    drivers = sorted((SYSTEM / _ICD_FOLDER).glob("lvp_icd*.json"))
    versions = _installed_versions(DRIVER)
    new_enough = [version for version in versions if major(version) >= OLDEST_MESA]
    if not (drivers and new_enough and _installed_versions(LOADER)):
        return None
    return Lavapipe(new_enough[0], drivers[0])


def major(version: str) -> int:
    """25 for Debian's ``1:25.0.7-2~bpo12+1``; 0 for anything that is no version."""
    found = re.match(r"(?:\d+:)?(\d+)", version)
    return int(found[1]) if found else 0


def candidate(release: str = "") -> str:
    """The version that apt would install by its present lists; empty if it knows none."""
    found = re.search(r"^ *Candidate: (\S+)", _policy(release), re.MULTILINE)
    return found[1] if found and found[1] != "(none)" else ""


def _learn(apt: _Apt) -> None:
    """Run ``apt-get update`` if the lists are empty, or could have a newer driver."""
    known = candidate()
    if major(known) >= OLDEST_MESA or (known and _backports()):
        return
    said = apt.update()
    if not candidate():
        raise SetupError(
            f"apt does not know the package {DRIVER}, even after apt-get update: "
            f"{last_error(said, 0)}\n"
            f"  full output       {apt.log}\n"
            f"  its sources       /{PARTS.parent}/sources.list and /{PARTS}"
        )


def _plan() -> InstallPlan:
    """The plan, by what apt knows now."""
    known = candidate()
    if major(known) >= OLDEST_MESA:
        return InstallPlan()
    if not known:
        return InstallPlan(again=True)
    suite = _backports()
    if not suite:
        raise SetupError(_too_old(known))
    every = sources(SYSTEM)
    if having(every, suite, "main"):
        return InstallPlan(suite)
    origin = _archive(every, suite.removesuffix("-backports"))
    if origin is None:
        codename = suite.removesuffix("-backports")
        raise SetupError(
            f"No file in /{PARTS.parent} has a source with suite {codename} and component main, "
            f"from which a source of {suite} could be derived. Add a source of {suite} there, "
            "then run gqa setup lavapipe again."
        )
    where = f"/{origin.file.relative_to(SYSTEM)}"
    text = origin.in_suite(suite, "main", f"Written by gqa setup lavapipe, after {where}.")
    # A file that others cannot read may have a password in the address.
    return InstallPlan(suite, text, private=not origin.file.stat().st_mode & 0o004)


def _archive(every: list[AptSource], codename: str) -> AptSource | None:
    """Debian's own archive, which also has the older version of the driver.

    Other archives can have suites of the same name. If apt knows none with the driver, it is the
    first source of that suite.
    """
    found = having(every, codename, "main")
    offers = set(re.findall(rf"^ +-?\d+ (\S+) {codename}/main ", _policy(""), re.MULTILINE))
    bare = {offer.rstrip("/") for offer in offers}
    best = [s for s in found if any(uri.rstrip("/") in bare for uri in s.uris)]
    return next(iter(best or found), None)


def _backports() -> str:
    """The name of backports for this Debian; empty on other systems."""
    about = _os_release()
    codename = about.get("VERSION_CODENAME", "")
    return f"{codename}-backports" if about.get("ID") == "debian" and codename else ""


def _carry_out(plan: InstallPlan, apt: _Apt, tell: Tell) -> None:
    """Carry out the plan; the source file stays only if the driver was installed."""
    origin = plan.release or "this system's release"
    tell(f"Installing {DRIVER} and {LOADER} from {origin} with apt-get.")
    written = SYSTEM / PARTS / _OWN_SOURCE if plan.source else None
    try:
        if written:
            _write(written, plan)
        said = apt.update()
        if plan.release and major(found := candidate(plan.release)) < OLDEST_MESA:
            raise SetupError(_no_backport(plan, found, said, apt.log))
        apt.run(plan.install())
    except BaseException:
        if written:
            written.unlink(missing_ok=True)
        raise


def _write(file: Path, plan: InstallPlan) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(made, "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(plan.source)
    file.chmod(0o600 if plan.private else 0o644)


class _Apt:
    """apt-get as root, without questions; ``log`` has all its output."""

    def __init__(self) -> None:
        self.log = tools_root() / "lavapipe-apt.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")

    def update(self) -> str:
        """Update the package lists and return the output. Failing sources are no error here."""
        return self._run(("apt-get", "update"))[1]

    def run(self, command: tuple[str, ...]) -> None:
        """Run ``command``. Raises :class:`SetupError` if it fails."""
        status, said = self._run(command)
        if status:
            raise SetupError(
                f"apt-get could not install {DRIVER}: {last_error(said, status)}\n"
                f"  full output       {self.log}\n"
                f"  try it by hand    {shlex.join(command)}"
            )

    def _run(self, command: tuple[str, ...]) -> tuple[int, str]:
        with self.log.open("a+b") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            begun = log.tell()
            process = start(
                command,
                {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                status = process.wait()
            except BaseException:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
                raise
            log.seek(begun)
            return status, log.read().decode(errors="replace")


def last_error(said: str, status: int) -> str:
    """apt's last error message, or else its last line or exit status."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for begins in ("E: ", "W: Failed to fetch"):
        if errors := [line for line in lines if line.startswith(begins)]:
            return errors[-1]
    return without_words(said, status)


def _no_backport(plan: InstallPlan, found: str, said: str, log: Path) -> str:
    """Why backports have no suitable driver, as a message."""
    about = [line for line in said.splitlines() if plan.release in line]
    removed = "; that source was removed again" if plan.source else ""
    if any(_NO_SUITE in line for line in about):
        why = f"This machine's archive has no {plan.release}{removed}: {last_error(said, 100)}"
    elif found:
        why = f"{plan.release} has lavapipe of Mesa {found}, not {OLDEST_MESA} or later{removed}."
    else:
        # Without a message from apt its lists are complete, and do not have the driver.
        words = f": {last_error(said, 0)}" if about else "."
        why = f"apt-get update found no {DRIVER} in {plan.release}{removed}{words}"
    return f"{why}\n{_INSTEAD}\n  full output       {log}"


#: What works on any Debian, without float16.
_INSTEAD: Final = (
    "  without float16   apt-get install chromium libvulkan1, "
    "then gqa run --ep webgpu --adapter swiftshader"
)


def _too_old(known: str) -> str:
    name = _os_release().get("PRETTY_NAME", "This system")
    return (
        f"{name} has lavapipe of Mesa {known}, but Dawn needs Mesa {OLDEST_MESA} or later. "
        "Update apt's lists and try again (sudo apt-get update, then gqa setup lavapipe), or use a "
        "newer release of the system."
    )


def _without_apt(missing: str) -> str:
    if sys.platform == "darwin":
        return "macOS needs no lavapipe, since Dawn uses Metal there: gqa run --ep webgpu."
    return (
        f"gqa setup lavapipe needs {missing}, which is not installed. Install lavapipe of Mesa "
        f"{OLDEST_MESA} or later and Vulkan's loader by hand (Fedora: dnf install "
        "mesa-vulkan-drivers vulkan-loader; Arch: pacman -S vulkan-swrast vulkan-icd-loader)."
    )


def _about(error: OSError) -> str:
    where = error.filename or tools_root()
    fix = (
        f"Set {TOOLS_VARIABLE} to another folder."
        if str(where).startswith(str(tools_root()))
        else "Run gqa setup lavapipe --dry-run as root, and run the printed commands by hand."
    )
    return f"Cannot use {where}: {error.strerror}. {fix}"


def _installed_versions(package: str) -> list[str]:
    """The version of the package for each architecture for which it is installed."""
    said = _say("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\\n", package)
    lines = [line.split() for line in said.splitlines()]
    return [words[1] for words in lines if len(words) == 2 and words[0] == "installed"]


def _policy(release: str) -> str:
    """apt's policy for the driver; with ``release``, as ``apt-get -t`` would choose."""
    option = ("-o", f"APT::Default-Release={release}") if release else ()
    return _say("apt-cache", *option, "policy", DRIVER)


def _say(*command: str) -> str:
    """The output of a query; empty if the command does not start."""
    try:
        done = ask(command, environment={"LC_ALL": "C"})
    except OSError:
        return ""
    return done.stdout.decode(errors="replace")


def _os_release() -> dict[str, str]:
    try:
        text = (SYSTEM / "etc" / "os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def _is_root() -> bool:
    return os.geteuid() == 0
