"""``python -m conformance.maintain.pin TARGET RELEASE``: moves a target to another pinned release.

Installs the release, runs every case on the old and on the new one, edits every place that the pin
stands in, and prints what a person must decide: new parts of the operator, verdicts that changed,
and texts that name the old release. Nothing is edited before the results are there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.base.files import replacing
from conformance.base.paths import ROOT, file_to_write
from conformance.base.processes import start
from conformance.base.words import listed, plural
from conformance.results.errors import ResultsError
from conformance.results.reader import stream
from conformance.results.records import Header, TargetRecord
from conformance.results.uncalled import uncalled_sentences
from conformance.targets.catalogue import TARGETS, Package, TargetEntry, TargetError
from conformance.targets.published import published
from conformance.targets.releases import releases
from conformance.targets.setup.installed import install
from conformance.targets.setup.onnxruntime_web import lock_command
from conformance.targets.setup.programs import (
    NoRelease,
    SetupError,
    find_npm,
    pip_command,
    run_installer,
)


@dataclass(frozen=True)
class Place:
    """Where a pin stands: the packages whose release it is, a file, and the text around it."""

    packages: tuple[str, ...]
    file: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The text, with the release as its group."""
        before, _, after = self.text.partition("{}")
        return re.compile(f'{re.escape(before)}([^"\\s]+){re.escape(after)}')


_CPU: Final = ("onnxruntime",)
_CUDA: Final = ("onnxruntime-gpu",)
_TRACT: Final = ("tract-cli", "tract")
_WEB: Final = ("onnxruntime-web",)
_TOOLS: Final = "conformance/targets/tools.py"
_MANIFEST: Final = "runners/onnxruntime_web/package.json"
#: Written by npm for the manifest, whose place comes before its own.
_LOCK: Final = "runners/onnxruntime_web/package-lock.json"

#: Every place of every pin. The first of a pin is the one whose release is the old one.
PLACES: Final = (
    Place(_CPU, _TOOLS, 'ONNXRUNTIME_VERSION: Final = "{}"'),
    Place(_CPU, "pyproject.toml", 'cpu = ["onnxruntime=={}"]'),
    Place(_CUDA, _TOOLS, 'ONNXRUNTIME_GPU_VERSION: Final = "{}"'),
    Place(_TRACT, _TOOLS, 'TRACT_VERSION: Final = "{}"'),
    Place(_TRACT, "pyproject.toml", 'tract = ["tract=={}"]'),
    Place(_TRACT, "runners/tract/wheel_availability.py", 'KNOWN_GOOD = "tract=={}"'),
    Place(_WEB, _TOOLS, 'ONNXRUNTIME_WEB_VERSION: Final = "{}"'),
    Place(_WEB, _MANIFEST, '"onnxruntime-web": "{}"'),
    Place(_WEB, _LOCK, '"onnxruntime-web": "{}"'),
)

#: What a person must look at beside, by the first of the packages.
ALSO: Final[Mapping[str, str]] = {
    "onnxruntime-gpu": "the sizes in `gqa setup cuda`, and docs/cuda.md.",
    "onnxruntime-web": "the release of Dawn, `webgpu` in runners/onnxruntime_web/package.json.",
}


class PinError(Exception):
    """The pin cannot be moved; the message is a sentence."""


@dataclass(frozen=True)
class Pin:
    """The release that several targets share, and the places that it stands in."""

    entries: tuple[TargetEntry, ...]
    places: tuple[Place, ...]

    @property
    def packages(self) -> list[Package]:
        """The packages of the targets."""
        return list(dict.fromkeys(entry.package for entry in self.entries if entry.package))

    @property
    def names(self) -> str:
        """The targets, in a sentence."""
        return listed([entry.name for entry in self.entries])

    def releases(self) -> dict[Place, str]:
        """The release in each place. Raises `PinError` for a place that is not there once."""
        found = {}
        for place in self.places:
            matches = place.pattern.findall(_read(place.file))
            if len(matches) != 1:
                raise PinError(
                    f"{place.file} has {place.text.strip()!r} {plural(len(matches), 'time')}, not "
                    "once; correct PLACES in conformance/maintain/pin.py."
                )
            found[place] = matches[0]
        return found


def pin_of(target: str) -> Pin:
    """The pin of a target. Raises `PinError` for a target that has none."""
    own = next((entry.package for entry in TARGETS if entry.name == target), None)
    if own is None:
        names = [entry.name for entry in TARGETS]
        raise PinError(
            f"'{target}' is no target that has a pinned release; those are {', '.join(names)}"
            f"{did_you_mean(target, names) or '.'}"
        )
    places = tuple(place for place in PLACES if own.name in place.packages)
    packages = places[0].packages
    return Pin(tuple(e for e in TARGETS if e.package and e.package.name in packages), places)


def main(arguments: Sequence[str] | None = None) -> int:
    """Move the pin; 0 if it stands at the release now, 2 for wrong arguments, 3 for a failure."""
    options = _parser().parse_args(arguments)
    try:
        pin = pin_of(options.target)
        (release, *others) = releases(options.release, pin.packages[0], published)
        if others:
            raise PinError(f"'{options.release}' is {len(others) + 1} releases; name one.")
        before = pin.releases()
    except (PinError, TargetError) as error:
        return _failed(error, 2)
    if {*before.values()} == {release}:
        print(f"{pin.names}: pinned to {release} already.")
        return 0
    old = next(version for version in before.values() if version != release)
    print(f"{pin.names}: {old} → {release}")
    try:
        texts = _edited(pin, release)
        results = options.results or _run(pin, old, release, options.gqa_run)
        for file, version in zip(results, (old, release), strict=True):
            _check(file, pin, version)
        _install_here(pin, old, release)
        with ExitStack() as stack:
            for name, text in texts.items():
                stack.enter_context(replacing(file_to_write(name))).write(text.encode())
    except (PinError, TargetError, SetupError, NoRelease, ResultsError) as error:
        return _failed(f"Nothing was edited: {error}", 3)
    except OSError as error:
        return _failed(f"Nothing was edited: {error.filename}: {error.strerror}.", 3)
    print(f"\nEdited: {', '.join(texts)}")
    for title, lines in _left(pin, old, *results):
        print(f"\n── {title}\n", flush=True)
        for line in lines:
            print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.pin",
        description="Moves a target, and those that share its pin, to another pinned release.",
    )
    parser.add_argument("target", metavar="TARGET", help="one of gqa run's --ep, such as cpu")
    parser.add_argument("release", metavar="RELEASE", help="such as 1.32.0, or latest")
    parser.add_argument(
        "--results",
        nargs=2,
        type=Path,
        metavar=("OLD", "NEW"),
        help="results of the old and of the new release, instead of running every case on both",
    )
    parser.add_argument(
        "gqa_run",
        nargs="*",
        default=(),
        metavar="-- …",
        help="options of these runs, such as -- -k float32",
    )
    return parser


def _failed(error: object, status: int) -> int:
    print(error, file=sys.stderr)
    return status


def _read(file: str) -> str:
    return file_to_write(file).read_text(encoding="utf-8")


# ── What has to run ──────────────────────────────────────────────────────────────────────────────


def _run(pin: Pin, old: str, new: str, more: Sequence[str]) -> list[Path]:
    """The results of every case on both releases. Raises `PinError`, `SetupError`."""
    for release, package in product((new, old), pin.packages):
        install(package, release, print)
    folder = Path(tempfile.mkdtemp(prefix="gqa-pin-"))
    files = []
    for release in (old, new):
        words = [word for entry in pin.entries for word in ("--ep", entry.name)]
        words += [w for p in pin.packages for w in (p.option.flag, p.value(release))]
        file = folder / f"{pin.entries[0].name}@{release}.jsonl"
        status = _gqa("run", *words, "--results", str(file), *more)
        if status not in (0, 1):
            raise PinError(
                f"{release} could not be run here: gqa run ended with status {status}. Pass "
                "results from another machine with --results OLD NEW."
            )
        files.append(file)
    return files


def _gqa(*arguments: str) -> int:
    """The exit status of a command of the suite, whose output is shown."""
    sys.stdout.flush()
    return subprocess.run((sys.executable, "-m", "conformance", *arguments)).returncode


def _check(file: Path, pin: Pin, release: str) -> None:
    """Raise `PinError` for results that are not of this release."""
    versions = _versions(file, pin)
    if {*versions.values()} != {release}:
        there = ", ".join(dict.fromkeys(versions.values())) or "none"
        raise PinError(f"{file} has results of {there}, not of {pin.names} {release}.")


def _targets(file: Path) -> tuple[TargetRecord, ...]:
    """The targets that have results in a file. Raises `ResultsError`."""
    _, header = next(iter(stream(file, [])))
    return header.targets if isinstance(header, Header) else ()


def _versions(file: Path, pin: Pin) -> dict[str, str]:
    """The release of each target of the pin that has results in a file. Raises `ResultsError`."""
    names = {entry.name for entry in pin.entries}
    return {
        target.ep.partition("@")[0]: target.describe.version
        for target in _targets(file)
        if target.describe is not None and target.ep.partition("@")[0] in names
    }


def _install_here(pin: Pin, old: str, new: str) -> None:
    """Install the release in this interpreter too, where it has the old one. Raises `PinError`."""
    for package in pin.packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            if package.manager != "pip" or importlib.metadata.version(package.name) != old:
                continue
            command = (*(pip_command() or ("pip",)), "--python", sys.executable, "install")
            requirement = f"{package.name}=={new}"
            print(f"Installing {requirement} in {sys.executable}.")
            if start((*command, "--quiet", requirement)).wait():
                raise PinError(f"pip could not install {requirement}; it says why above.")


# ── The edits ────────────────────────────────────────────────────────────────────────────────────


def _edited(pin: Pin, release: str) -> dict[str, str]:
    """The new text of each file that has a release. Raises `PinError`, `SetupError`."""
    texts: dict[str, str] = {}
    for place in pin.places:
        text = texts.get(place.file, _read(place.file))
        if place.file == _LOCK:
            texts[place.file] = _lock(texts[_MANIFEST])
        else:
            texts[place.file] = place.pattern.sub(place.text.format(release), text)
    return texts


def _lock(manifest: str) -> str:
    """The lock file that npm writes for a package.json. Raises `PinError`, `SetupError`."""
    npm = find_npm()
    if npm is None:
        raise PinError(f"{_LOCK} needs npm, which is not installed.")
    with tempfile.TemporaryDirectory(prefix="gqa-pin-") as name:
        folder = Path(name)
        (folder / "package.json").write_text(manifest)
        (folder / "package-lock.json").write_text(_read(_LOCK))
        run_installer(lock_command(npm), folder)
        return (folder / "package-lock.json").read_text()


# ── What a person decides ────────────────────────────────────────────────────────────────────────


def _left(pin: Pin, old: str, before: Path, after: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """What is left to decide, by headings; ``before`` and ``after`` are results."""
    uncalled = uncalled_sentences(_targets(after))
    yield "New parts of the operator", uncalled or ["None that the runtime reports."]
    yield "Quotations of the operator's text", ["pytest tests/test_quotations.py"]
    yield f"Verdicts that changed (gqa diff {before} {after})", ()
    _gqa("diff", f"{before}", f"{after}")
    yield "Expectations, as gqa expect would write them", ()
    for name in _versions(after, pin):
        _gqa("expect", "--ep", name, "--from", f"{before}", "--from", f"{after}", "--dry-run")
    yield f"Texts that name {old}", ()
    history = (f":!{name}" for name in ("CHANGELOG.md", "*package-lock.json"))
    subprocess.run(("git", "grep", "-nIwF", old, "--", ".", *history), cwd=ROOT)
    also = [ALSO[p.name] for p in pin.packages if p.name in ALSO]
    if also:
        yield "Also", also


if __name__ == "__main__":
    sys.exit(main())
