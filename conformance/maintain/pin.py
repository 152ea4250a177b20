"""``python -m conformance.maintain.pin TARGET RELEASE``: moves a target to another pinned release.

Edits every file that names the pinned release, or none of them, and prints the commands that show
what a person must decide: new parts of the operator, verdicts that changed, and texts that name the
old release.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.base.files import replacing
from conformance.base.paths import file_to_write
from conformance.base.target_names import at_release
from conformance.base.words import listed
from conformance.harness.folders import temporary_folder
from conformance.maintain import BadInput, run_command
from conformance.targets.catalogue import TARGETS, Package, TargetEntry
from conformance.targets.published import published
from conformance.targets.releases import releases
from conformance.targets.setup.installed import lock_command
from conformance.targets.setup.programs import SetupError, find_npm, run_installer


@dataclass(frozen=True)
class PinnedPlace:
    """A place that names a pinned release: its packages, a file, and the text around it."""

    packages: tuple[str, ...]
    file: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the text, with the release as a group."""
        before, _, after = self.text.partition("{}")
        return re.compile(f'{re.escape(before)}([^"\\s]+){re.escape(after)}')


_CPU: Final = ("onnxruntime",)
_CUDA: Final = ("onnxruntime-gpu",)
_TRACT: Final = ("tract-cli", "tract")
_OPENVINO: Final = ("openvino",)
_QNN: Final = ("onnxruntime-qnn",)
_WEB: Final = ("onnxruntime-web",)
_NODE: Final = ("onnxruntime-node",)
_TOOLS: Final = "conformance/targets/tools.py"
_MANIFEST: Final = "package.json"
#: npm writes this file for the manifest, which must be edited before it.
_LOCK: Final = "package-lock.json"

#: All places that name pinned releases.
PLACES: Final = (
    PinnedPlace(_CPU, _TOOLS, 'ONNXRUNTIME_VERSION: Final = "{}"'),
    PinnedPlace(_CPU, "pyproject.toml", 'cpu = ["onnxruntime=={}"]'),
    PinnedPlace(_CPU, "pyproject.toml", 'qnn = ["onnxruntime=={}"'),
    PinnedPlace(_CUDA, _TOOLS, 'ONNXRUNTIME_GPU_VERSION: Final = "{}"'),
    PinnedPlace(_TRACT, _TOOLS, 'TRACT_VERSION: Final = "{}"'),
    PinnedPlace(_TRACT, "pyproject.toml", 'tract = ["tract=={}"]'),
    PinnedPlace(_TRACT, "runners/tract/wheel_availability.py", 'KNOWN_GOOD = "tract=={}"'),
    PinnedPlace(_OPENVINO, "pyproject.toml", 'openvino = ["openvino=={}"]'),
    PinnedPlace(_OPENVINO, "runners/openvino/openvino_runner.py", 'KNOWN_GOOD = "openvino=={}"'),
    PinnedPlace(_QNN, "pyproject.toml", '"onnxruntime-qnn=={}"'),
    PinnedPlace(_QNN, "runners/onnxruntime/ort_providers.py", '"onnxruntime-qnn=={}"'),
    PinnedPlace(_WEB, _TOOLS, 'ONNXRUNTIME_WEB_VERSION: Final = "{}"'),
    PinnedPlace(_WEB, f"runners/onnxruntime_web/{_MANIFEST}", '"onnxruntime-web": "{}"'),
    PinnedPlace(_WEB, f"runners/onnxruntime_web/{_LOCK}", '"onnxruntime-web": "{}"'),
    PinnedPlace(_NODE, _TOOLS, 'ONNXRUNTIME_NODE_VERSION: Final = "{}"'),
    PinnedPlace(_NODE, f"runners/onnxruntime_node/{_MANIFEST}", '"onnxruntime-node": "{}"'),
    PinnedPlace(_NODE, f"runners/onnxruntime_node/{_LOCK}", '"onnxruntime-node": "{}"'),
)

#: What else names the release or depends on it, by package.
ALSO: Final[Mapping[str, str]] = {
    "onnxruntime-gpu": "the sizes in `gqa setup cuda`, and docs/cuda.md.",
    "onnxruntime-web": "the release of Dawn, `webgpu` in runners/onnxruntime_web/package.json.",
}


@dataclass(frozen=True)
class Pin:
    """A pinned release: the targets that share it, and the places that name it."""

    entries: tuple[TargetEntry, ...]
    places: tuple[PinnedPlace, ...]

    @property
    def packages(self) -> list[Package]:
        """The packages of the targets."""
        return list(dict.fromkeys(entry.package for entry in self.entries if entry.package))

    def releases(self) -> dict[PinnedPlace, str]:
        """The release in each place, which has exactly one."""
        pinned = {}
        for place in self.places:
            (pinned[place],) = place.pattern.findall(_read(place.file))
        return pinned


def pin_of(target: str) -> Pin:
    """The pin of a target. Raises `BadInput` if it has none."""
    own = next((entry.package for entry in TARGETS if entry.name == target), None)
    if own is None:
        names = [entry.name for entry in TARGETS]
        raise BadInput(
            f"'{target}' is no target that has a pinned release; those are {', '.join(names)}"
            f"{did_you_mean(target, names) or '.'}"
        )
    places = tuple(place for place in PLACES if own.name in place.packages)
    packages = places[0].packages
    return Pin(tuple(e for e in TARGETS if e.package and e.package.name in packages), places)


def main(arguments: Sequence[str] | None = None) -> int:
    """Move the pin; returns 0 for success, 3 for a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.pin",
        description="Moves a target, and those that share its pin, to another pinned release.",
    )
    parser.add_argument("target", metavar="TARGET", help="one of gqa run's --ep, such as cpu")
    parser.add_argument("release", metavar="RELEASE", help="such as 1.32.0, or latest")
    options = parser.parse_args(arguments)
    pin = pin_of(options.target)
    (release, *others) = releases(options.release, pin.packages[0], published)
    if others:
        raise BadInput(f"'{options.release}' is {len(others) + 1} releases; name one.")
    before, names = pin.releases(), listed([entry.name for entry in pin.entries])
    if {*before.values()} == {release}:
        print(f"{names}: pinned to {release} already.")
        return 0
    old = next(version for version in before.values() if version != release)
    print(f"{names}: {old} → {release}")
    try:
        texts = _edited(pin, release)
        with ExitStack() as stack:
            for name, text in texts.items():
                stack.enter_context(replacing(file_to_write(name))).write(text.encode())
    except SetupError as error:
        print(f"Nothing was edited: {error}", file=sys.stderr)
        return 3
    print(f"Edited: {', '.join(texts)}\n\nNow run:")
    for command in _commands(pin, old, release):
        print(f"  {command}")
    for package in pin.packages:
        if package.name in ALSO:
            print(f"Look at {ALSO[package.name]}")
    return 0


def _commands(pin: Pin, old: str, new: str) -> Iterator[str]:
    """The commands that install the release, and show the decisions that are left."""
    for package in pin.packages:
        if package.manager == "pip":
            yield f"{sys.executable} -m pip install {package.name}=={new}"
    for release, file in ((old, "old.jsonl"), (new, "new.jsonl")):
        eps = " ".join(f"--ep {at_release(entry.name, release)}" for entry in pin.entries)
        yield f"gqa run {eps} --results {file}"
    yield "gqa diff old.jsonl new.jsonl"
    for entry in pin.entries:
        yield f"gqa expect --ep {entry.name} --from old.jsonl --from new.jsonl --dry-run"
    yield "pytest tests/case/test_quotations.py"
    yield f"git grep -nIwF {old} -- . ':!CHANGELOG.md' ':!*package-lock.json'"


def _read(file: str) -> str:
    return file_to_write(file).read_text(encoding="utf-8")


def _edited(pin: Pin, release: str) -> dict[str, str]:
    """The new texts of all files. Raises `SetupError`."""
    texts: dict[str, str] = {}
    for place in pin.places:
        text = texts.get(place.file, _read(place.file))
        if place.file.endswith(_LOCK):
            texts[place.file] = _lock(place.file, texts[place.file.replace(_LOCK, _MANIFEST)])
        else:
            texts[place.file] = place.pattern.sub(place.text.format(release), text)
    return texts


def _lock(lock: str, manifest: str) -> str:
    """npm's lock file for a package.json. Raises `SetupError`."""
    npm = find_npm()
    if npm is None:
        raise SetupError(f"{lock} needs npm, which is not installed.")
    with temporary_folder() as folder:
        (folder / _MANIFEST).write_text(manifest)
        (folder / _LOCK).write_text(_read(lock))
        run_installer(lock_command(npm), folder)
        return (folder / _LOCK).read_text()


if __name__ == "__main__":
    run_command(main)
