"""The bundle of a call: a directory in the cache, in the layout of the ONNX backend tests.

::

    model.onnx
    test_data_set_K/input_N.pb     inputs of call K of a loop (0 alone for a single call)
    test_data_set_K/output_N.pb    the oracle's values in the output's dtype; 0 where undefined
    case.json                      the call's fields
    oracle.f64, oracle.where.z     the oracle's values and error units in float64, for the judge,
                                   and which elements they are: most are copies and zeros
                                   (:mod:`conformance.bundle.float_arrays`)
    manifest.json                  size and SHA-256 of each file and of the manifest, and the
                                   layout of the oracle's arrays

Of the oracle's arrays, the usual values are followed by those of each other reading of the
documentation that is asked for and gives the call a meaning. For each step and output there are
these arrays: the values, the units, for a variant the units of its arithmetic, and for each reason
to watch undefined elements (:data:`conformance.oracle.attention.Watched`) the units of those
elements. The .pb files are those of the usual reading, whose values are near theirs.

Most of the time that a bundle takes goes into the oracle, and a call that a runtime rejects needs
none of it. So for a runner that reads only what it is told of, a bundle is kept in two parts: its
inputs, which are written before the case runs, and what is expected, which is computed when it is
first asked for. Each part is a directory of its own with a manifest: the former, with the model and
``case.json``, below ``inputs/`` of the cache, the latter, with the outputs and the oracle's arrays,
below ``expected/``. Whole bundles are below ``bundles/``.

The directory's name is a digest of everything that determines its content, so a bundle never
changes. It is written under a temporary name and then renamed, so any number of processes can share
one cache. Every use reads the whole bundle and compares the digests, so a damaged bundle is noticed
and written again; unless no file of it has changed since it was last found whole
(:mod:`conformance.bundle.found_whole`). What this process has made is always compared.

Digests without a key do not stop a runner that rewrites a bundle together with them. Therefore,
once a process has called `guard`, which it does before it starts a runner, it accepts only a
manifest that it has made itself, or one that was there before: in a folder of the cache as it was
then, with no change since to the manifest or to the names in the bundle's folder, by the time at
which the system says that a file was last changed (``st_ctime``, which no program can set). All
else in a bundle, and so what is compared, follows from its manifest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from pydantic import TypeAdapter

from conformance.base.code_digest import digest_of_code
from conformance.base.files import open_folder, open_with_stat, read_plain, write_new
from conformance.base.interrupts import undisturbed
from conformance.base.kept import kept_for, write_kept
from conformance.base.memory import reuse_memory
from conformance.base.paths import CACHE_VARIABLE, KEPT, SHADERS, cache_root
from conformance.base.readings import ReadingName
from conformance.bundle.contents import (
    ORACLE,
    WHERE,
    Answers,
    Wanted,
    answers_to,
    expected_files,
    expected_of,
    input_files,
    output_file,
    plan,
)
from conformance.bundle.expected import Expected
from conformance.bundle.found_whole import FoundWhole, state_of
from conformance.bundle.script import Script, script_of
from conformance.bundle.sensitivity import combined, effects, sufficient
from conformance.case.call import Call, GivenCall, GraphCall
from conformance.case.given import GivenError
from conformance.case.tensors import Step
from conformance.case.variants import RelationName
from conformance.harness.protocol import StepFiles

#: The packages whose code, together with the call, determines the content of a bundle.
_SOURCES: Final = ("base", "bundle", "case", "oracle")


#: The folders of the cache: those of bundles, and those of the two parts of a bundle.
Kind = Literal["bundles", "inputs", "expected"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True)
class RunnerFiles:
    """The verified files of a call that a runner reads: the model and the inputs of its steps.

    ``tensor_bytes`` is the size of all inputs, and of the expected outputs if they are there,
    ``changed`` the time of the last change to a file (``st_ctime_ns``), and ``files`` has the size
    and the SHA-256 of each.
    """

    path: Path
    steps: tuple[StepFiles, ...]
    tensor_bytes: int
    changed: int
    files: Mapping[str, tuple[int, str]]

    def answered(self) -> Bundle:
        """The same with what the oracle expects, which is computed when it is first asked for.

        Raises :class:`BundleError`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Bundle(RunnerFiles):
    """A verified bundle.

    ``expected`` maps each output name to :class:`Expected`, for each step. The mappings are empty
    if the call has no defined meaning; ``unjudged`` then says why. ``readings`` has the same for
    each other reading that is asked for and gives the call a meaning, and ``reading`` the one that
    ``expected`` is by (None: the usual one).
    """

    expected: tuple[dict[str, Expected], ...]
    unjudged: str | None
    readings: Mapping[ReadingName, tuple[dict[str, Expected], ...]] = field(default_factory=dict)
    reading: ReadingName | None = None

    def by(self, reading: ReadingName) -> Bundle:
        """The bundle with what is expected by one of its ``readings``."""
        return replace(self, expected=self.readings[reading], unjudged=None, reading=reading)

    def answered(self) -> Bundle:
        """The bundle itself."""
        return self


class BundleError(Exception):
    """The cache cannot be used; the message says why and names the path."""


@cache
def generator_digest() -> str:
    """Digest of the code and libraries that determine the content of a bundle."""
    libraries = f"numpy {np.__version__} onnx {version('onnx')}"
    return hashlib.sha256(f"{digest_of_code(*_SOURCES)} {libraries}".encode()).hexdigest()


def digest_of(
    call: Call, relation: RelationName | None = None, readings: Sequence[ReadingName] = ()
) -> str:
    """The name of the bundle of ``call``, or of its variant by ``relation``."""
    text = "\n".join(filter(None, (generator_digest(), _json_of(call), relation, *readings)))
    return hashlib.sha256(text.encode()).hexdigest()


def _json_of(call: Call, indent: int | None = None) -> str:
    with undisturbed():  # pydantic's serializers take an interrupt for a value that does not fit
        return call.model_dump_json(indent=indent)


def bundle_for(
    call: Call,
    root: Path | None = None,
    relation: RelationName | None = None,
    readings: Sequence[ReadingName] = (),
) -> Bundle:
    """The bundle of ``call``, or of its variant; written if it is missing or damaged.

    ``readings`` are the other readings whose values it has, too; a variant has none. Raises
    :class:`BundleError` if the cache cannot be read or written.
    """
    digest = digest_of(call, relation, readings)
    return _found_or_made(
        root, "bundles", digest, lambda folder: write_bundle(call, folder, relation, readings)
    )


def inputs_for(
    call: Call,
    root: Path | None = None,
    readings: Sequence[ReadingName] = (),
    steps: tuple[Step, ...] = (),
) -> RunnerFiles:
    """As `bundle_for`, but what is expected is computed only when it is asked for.

    ``steps`` are those of the call, where they are known.

    The files that a runner gets do not include the expected outputs, unless the whole bundle is
    there. Most of the time that a bundle takes goes into the oracle, and a call that a runtime
    rejects needs none of it.
    """
    digest = digest_of(call, None, readings)
    whole = _open(_place(root, "bundles", digest))
    return whole or _Parts(root, digest, Wanted(call, None, tuple(readings), steps)).inputs()


class _Parts:
    """The two parts of a bundle. The inputs are drawn once for both."""

    def __init__(self, root: Path | None, digest: str, wanted: Wanted) -> None:
        self._root = root
        self._digest = digest
        self._wanted = wanted
        self._script: Script | None = None

    def inputs(self) -> RunnerFiles:
        """The runner's files."""
        found = _found_or_made(self._root, "inputs", self._digest, self._write_inputs)
        return _Inputs(
            found.path, found.steps, found.tensor_bytes, found.changed, found.files, self
        )

    def expected(self) -> Bundle:
        """What is expected."""
        found = _found_or_made(self._root, "expected", self._digest, self._write_expected)
        self._script = None
        return found

    def _drawn(self) -> Script:
        self._script = self._script or self._wanted.script()
        return self._script

    def _write_inputs(self, folder: Path) -> dict[str, bytes]:
        script = self._drawn()
        manifest = {"bundle": self._digest, "steps": plan(script)}
        return _write(folder, manifest, _runner_files(self._wanted.call, script))

    def _write_expected(self, folder: Path) -> dict[str, bytes]:
        script = self._drawn()
        expected = expected_files(self._wanted, script, answers_to(script))
        steps: list[dict[str, Any]] = [{"files": {}} for _ in script.steps]
        manifest = {"bundle": self._digest, "steps": steps, **expected.told}
        return _write(folder, manifest, expected.files)


@dataclass(frozen=True)
class _Inputs(RunnerFiles):
    """A runner's files without what is expected."""

    _parts: _Parts = field(compare=False, repr=False)

    @cached_property
    def _answered(self) -> Bundle:
        expected = self._parts.expected()
        return replace(
            expected,
            path=self.path,
            steps=self.steps,
            tensor_bytes=self.tensor_bytes + expected.tensor_bytes,
            changed=self.changed,
            files=self.files,
        )

    def answered(self) -> Bundle:
        return self._answered


def _place(root: Path | None, kind: Kind, digest: str) -> Path:
    return (root or cache_root()) / kind / digest[:2] / digest


def _found_or_made(
    root: Path | None, kind: Kind, digest: str, write: Callable[[Path], dict[str, bytes]]
) -> Bundle:
    """What is in the cache, or what ``write`` writes into a folder there."""
    place = _place(root, kind, digest)
    found = _open(place)
    if found is not None:
        return found
    try:
        return _make(place, write)
    except GivenError as error:
        raise BundleError(f"{error}.") from None
    except OSError as error:
        raise BundleError(
            f"The bundle cache cannot be written: {place.parents[2]}: {error.strerror}."
            f" Set {CACHE_VARIABLE} to a writable folder with enough space."
        ) from None


def intact(bundle: RunnerFiles) -> bool:
    """Whether the bundle is still in the cache and unchanged."""
    return untouched(bundle) and _open(bundle.path) is not None


def untouched(bundle: RunnerFiles) -> bool:
    """Whether no file that a runner reads was changed or replaced since the bundle was verified.

    Much cheaper than `intact`: nothing is read, unless this process has just made the bundle, where
    a change can be in the same tick of the file system's clock.
    """
    folder = f"{bundle.path}/"
    names = ["model.onnx", *(name for step in bundle.steps for name in step.files.values())]
    try:
        if any(os.lstat(folder + name).st_ctime_ns > bundle.changed for name in ("", *names)):
            return False
        return bundle.path not in _own or _have_digests(bundle, names)
    except OSError:
        return False


def _have_digests(bundle: RunnerFiles, names: Iterable[str]) -> bool:
    """Whether these files of a bundle have the content that they had when it was verified."""
    folder = open_folder(bundle.path)
    try:
        for name in names:
            size, digest = bundle.files[name]
            content, _ = _content(name, size, folder)
            if hashlib.sha256(content).hexdigest() != digest:
                return False
        return True
    finally:
        os.close(folder)


@dataclass(frozen=True)
class _Before:
    """A cache as it was before the first runner started.

    Changes at ``time`` (``st_ctime_ns``) or later are not trusted, nor are bundles outside of
    ``folders``: the device and inode of each folder that holds bundles. The time of a folder that
    holds others does not show that it was put in the place of another.
    """

    time: int
    folders: frozenset[tuple[int, int]]

    def has(self, bundle: int, changed: int) -> bool:
        """Whether the folder with the descriptor ``bundle`` was there, if last changed then."""
        return changed < self.time and _identity(os.stat("..", dir_fd=bundle)) in self.folders


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


#: The caches that are guarded.
_guarded: Final[dict[Path, _Before]] = {}

#: The digest of the manifest of each bundle that this process has made.
_own: Final[dict[Path, bytes]] = {}


def guard(root: Path | None = None) -> None:
    """Accept only bundles that are there now and do not change, or that this process has made.

    Call it before a runner is started; later calls change nothing.
    """
    root = root or cache_root()
    if root in _guarded:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            now = os.fstat(file.fileno()).st_ctime_ns
    except OSError:  # a cache that cannot be written; nor can a runner
        now = time.time_ns()
    folders = set()
    for kind in KINDS:
        with contextlib.suppress(OSError):
            folders |= {_identity(folder.stat()) for folder in (root / kind).iterdir()}
    _guarded[root] = _Before(now, frozenset(folders))


@cache
def _found_whole(root: Path) -> FoundWhole:
    return FoundWhole(root)


def keep_found_whole(root: Path | None = None) -> None:
    """Keep in the cache which bundles were found whole, for the next process."""
    _found_whole(root or cache_root()).save()


def content_digest(call: Call, folder: Path) -> str:
    """Digest of the files that a runner reads (model, inputs, outputs); equal on every machine."""
    digest = hashlib.sha256()
    write_bundle(call, folder)
    for name in sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*")):
        if name.endswith((".onnx", ".pb")):
            digest.update(f"{name}\n".encode() + (folder / name).read_bytes())
    return digest.hexdigest()


def write_bundle(
    call: Call,
    folder: Path,
    relation: RelationName | None = None,
    readings: Sequence[ReadingName] = (),
) -> dict[str, bytes]:
    """Writes the bundle of ``call``, or of its variant, into ``folder``, which is made or empty.

    Returns the content of each file.
    """
    wanted = Wanted(call, relation, tuple(readings))
    folder.mkdir(parents=True, exist_ok=True)
    script = wanted.script()
    usual = answers_to(script)
    expected = expected_files(wanted, script, usual)
    digest = digest_of(call, relation, readings)
    manifest = {"bundle": digest, "steps": plan(script), **expected.told}
    return _write(folder, manifest, _runner_files(call, script, usual) | expected.files)


def _runner_files(call: Call, script: Script, answers: Answers | None = None) -> dict[str, bytes]:
    """The fields of the call, its model and its inputs; see `input_files`."""
    return {
        "case.json": _json_of(call, indent=1).encode(),
        **dict(input_files(script, answers)),
    }


def _write(folder: Path, manifest: dict[str, Any], files: dict[str, bytes]) -> dict[str, bytes]:
    """Writes ``files`` and their manifest into ``folder``, which is empty; returns all."""
    listed = {
        name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()
    }
    files = {**files, "manifest.json": _sealed({**manifest, "files": listed})}
    descriptor = open_folder(folder)
    try:
        for parent in {name.rpartition("/")[0] for name in files} - {""}:
            os.mkdir(parent, dir_fd=descriptor)
        for name, content in files.items():
            write_new(name, content, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    return files


def required_effects(call: Call) -> dict[str, float]:
    """The required effects of the active features of ``call``, in error budgets.

    In the cache once they were measured (:mod:`conformance.bundle.sensitivity`). Raises
    :class:`BundleError` as `bundle_for`.
    """
    return _kept_effects(call, every=False)


def every_effect(call: Call) -> dict[str, float]:
    """As `required_effects`, with those effects that only count as coverage."""
    return _kept_effects(call, every=True)


def _kept_effects(call: Call, *, every: bool) -> dict[str, float]:
    name = digest_of(call) + ("" if every else "-required")
    try:
        return kept_for(name, lambda: _effects(call, every=every))
    except GivenError as error:
        raise BundleError(f"{error}.") from None


def _effects(call: Call, *, every: bool) -> dict[str, float]:
    """The effects of a call: the largest over its steps. Values of a model are as they are."""
    found: dict[str, float] = {}
    if isinstance(call, GivenCall | GraphCall):
        return found
    script = script_of(call)
    usual = answers_to(script)
    if usual.unjudged is not None or script.attributes is None:
        return found
    for inputs, answer in zip(usual.inputs, usual.steps, strict=True):
        skipped = sufficient(found)
        references, units = answer.references, answer.units
        moved = effects(inputs, script.attributes, references, units, skipped, every=every)
        found = combined((found, moved))
    return found


#: More than any manifest has.
_MANIFEST_BYTES: Final = 16 << 20
_SEAL: Final = b', "sha256": "'


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest as JSON; its last field is the digest of everything before that field."""
    body = json.dumps(manifest).encode().removesuffix(b"}")
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}'


def _unsealed(content: bytes) -> Any:
    """The manifest that :func:`_sealed` wrote. Raises ValueError if it has been changed."""
    body, _, seal = content.rpartition(_SEAL)
    if hashlib.sha256(body).hexdigest().encode() + b'"}' != seal:
        raise ValueError("the manifest is damaged")
    return json.loads(body + b"}")


def _open(place: Path) -> Bundle | None:
    """The bundle at ``place``, or the part of one (a `Kind`) that is kept there.

    None if it is missing, damaged or not to be trusted.
    """
    root, kind = place.parents[2], place.parts[-3]
    try:
        # Everything is read from this one folder, whatever takes its place meanwhile.
        folder = open_folder(place)
    except OSError:
        return None
    try:
        sealed, file = _content("manifest.json", _MANIFEST_BYTES, folder)
        changed = max(file.st_ctime_ns, os.fstat(folder).st_ctime_ns)
        before = _guarded.get(root)
        is_own = _own.get(place) == hashlib.sha256(sealed).digest()
        if before is not None and not is_own and not before.has(folder, changed):
            return None
        manifest = _unsealed(sealed)
        if manifest["bundle"] != place.name or not _is_whole(manifest, kind):
            return None
        kept: dict[str, bytes] = {}
        files: dict[str, os.stat_result] = {}
        for name, (size, _) in manifest["files"].items():
            if "/output_" in name or name in (ORACLE, WHERE):
                kept[name], files[name] = _content(name, size, folder)
            else:
                files[name] = os.stat(name, dir_fd=folder, follow_symlinks=False)
        changed = max(changed, *(file.st_ctime_ns for file in files.values()))
        found_whole, noted = _found_whole(root), f"{place.name} {kind}"
        state = state_of(sealed, files.values())
        since = None if before is None else before.time
        if is_own or not found_whole.has(noted, state, since):
            for name, (size, digest) in manifest["files"].items():
                content = kept.get(name)
                if content is None:
                    content, files[name] = _content(name, size, folder)
                if hashlib.sha256(content).hexdigest() != digest:
                    return None
            if state_of(sealed, files.values()) != state:
                return None
            found_whole.add(noted, state, changed)
        return _bundle(place, manifest, kept, changed)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, zlib.error):
        return None
    finally:
        os.close(folder)


def _bundle(place: Path, manifest: Any, files: Mapping[str, bytes], changed: int) -> Bundle:
    """The bundle of a manifest and of at least the ``files`` that are expected.

    Raises ValueError and others if these are not what the manifest says.
    """
    steps = tuple(StepFiles(**step) for step in manifest["steps"])
    usual: tuple[dict[str, Expected], ...] = ()
    readings: dict[ReadingName, tuple[dict[str, Expected], ...]] = {}
    if "oracle" in manifest:
        usual, readings = expected_of(manifest["oracle"], len(steps), files)
    return Bundle(
        place,
        steps,
        sum(size for name, (size, _) in manifest["files"].items() if name.endswith(".pb")),
        changed,
        manifest["files"],
        usual,
        manifest.get("unjudged"),
        readings,
    )


def _is_whole(manifest: Any, kind: str) -> bool:
    """Whether a manifest lists all files that its steps need, and expects all outputs of each."""
    needed = set() if kind == "expected" else {"case.json", "model.onnx"}
    for step in manifest["steps"]:
        needed.update(step["files"].values())
    if kind == "inputs":
        return needed <= manifest["files"].keys() and bool(manifest["steps"])
    needed |= {ORACLE, WHERE}
    outputs: list[list[str]] = [[] for _ in manifest["steps"]]
    for entry in manifest["oracle"]:
        if entry["reading"] is not None:
            continue
        names = outputs[entry["step"]]
        needed.add(output_file(entry["step"], len(names)))
        names.append(entry["output"])
    is_judged = manifest["unjudged"] is None
    return (
        needed <= manifest["files"].keys()
        and bool(outputs)
        and all(names == outputs[0] and bool(names) == is_judged for names in outputs)
    )


def _content(name: str, size: int, folder: int) -> tuple[bytes, os.stat_result]:
    """The content of a file, at most ``size`` + 1 bytes of it, and what the system says of it.

    ``folder`` is the descriptor of the bundle.

    Uses system calls directly: this runs for a dozen files of every case, where buffers and path
    objects would cost as much time as the digests.
    """
    descriptor, before = open_with_stat(name, follow_links=False, dir_fd=folder)
    try:
        content = os.read(descriptor, size + 1)
        after = os.fstat(descriptor)
        if after.st_ctime_ns != before.st_ctime_ns:
            raise OSError(errno.EBUSY, "changed while it was read", name)
        return content, after
    finally:
        os.close(descriptor)


def _make(place: Path, write: Callable[[Path], dict[str, bytes]]) -> Bundle:
    """Writes a bundle, or a part of one, beside ``place`` and renames it to ``place``.

    Its files are not read again: what a runner reads is compared after each case (`untouched`). If
    another process was faster, its bundle is used, or removed if it is damaged.
    """
    reuse_memory()
    for _ in range(8):
        aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        try:
            aside.mkdir(parents=True)
            files = write(aside)
            _own[place] = hashlib.sha256(files["manifest.json"]).digest()
            with contextlib.suppress(OSError):
                place.unlink()  # a link or a file, in whose place no folder can be renamed
            aside.rename(place)
            changed = _changed(place, files)
            if changed is not None:
                return _bundle(place, _unsealed(files["manifest.json"]), files, changed)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        found = _open(place)
        if found is not None:
            return found
        with contextlib.suppress(OSError):
            _remove(place)
    raise BundleError(
        f"Files written to the bundle cache do not stay intact: {place.parents[2]}."
        f" Set {CACHE_VARIABLE} to another folder."
    )


def _changed(place: Path, files: Mapping[str, bytes]) -> int | None:
    """When a bundle was last changed; None if a file has not the size of what was written."""
    found = {name: os.lstat(f"{place}/{name}") for name in files}
    if any(found[name].st_size != len(content) for name, content in files.items()):
        return None
    times = (about.st_ctime_ns for about in (os.lstat(place), *found.values()))
    return max(times)


def _remove(place: Path) -> None:
    """Removes a folder. It is renamed first, so that no other process sees a part of it."""
    aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    place.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


_HEX: Final = "[0-9a-f]"
#: A folder with the bundles whose digests begin so.
_FOLDER: Final = 2 * _HEX
_DIGEST: Final = 64 * _HEX
#: What this suite, or a driver that it starts, makes in each folder; unfinished if hidden.
_MADE: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(KINDS, (f"{_FOLDER}/{_DIGEST}", f"{_FOLDER}/.{_DIGEST}.{32 * _HEX}")),
    KEPT: (f"{32 * _HEX}*.pickle", "sizes.json", f"whole/{_FOLDER}.json", ".gqa-*"),
    SHADERS: (f"built-{16 * _HEX}", "mesa_shader_cache*"),
}

#: When each folder of bundles was last changed (``st_ctime_ns``), its bundles, and their size.
_NOTES: Final = TypeAdapter(dict[str, tuple[int, int, int]])
#: More than these notes take.
_MOST_NOTES: Final = 1 << 20


@dataclass(frozen=True)
class CacheSize:
    """Bundles in the cache, also without what is expected, and their size in bytes."""

    bundles: int
    size: int


def cache_size(root: Path | None = None) -> CacheSize:
    """The number and size of the bundles in the cache; other processes may be using it.

    What was measured of each folder of bundles is kept until bundles are added to it or removed:
    to look at a million files takes seconds.
    """
    root = root or cache_root()
    notes = root / KEPT / "sizes.json"
    known: dict[str, tuple[int, int, int]] = {}
    with contextlib.suppress(OSError, ValueError):
        known = _NOTES.validate_json(read_plain(notes, _MOST_NOTES))
    found = {}
    for kind in KINDS:
        with contextlib.suppress(OSError):
            for folder in (root / kind).glob(_FOLDER):
                name, changed = f"{kind}/{folder.name}", folder.lstat().st_ctime_ns
                found[name] = known.get(name, (0, 0, 0))
                if found[name][0] != changed:
                    found[name] = changed, *_measured(folder)
    if found != known:
        write_kept(notes, json.dumps(found).encode())
    return CacheSize(
        sum(bundles for name, (_, bundles, _) in found.items() if not name.startswith("expected")),
        sum(size for _, _, size in found.values()),
    )


def _measured(folder: Path) -> tuple[int, int]:
    """The number of bundles in a folder of them, and the size of all its files."""
    bundles = size = 0
    for place, _, files in os.walk(folder):
        bundles += "manifest.json" in files and not os.path.basename(place).startswith(".")
        for file in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, file)).st_size
    return bundles, size


def clear_cache(root: Path | None = None) -> CacheSize:
    """Removes all bundles, what is kept of files, and compiled shaders.

    The folder may be the user's, too, so only what has a name that this suite gives is removed, and
    folders that are empty then. Returns the number and size of the bundles. Raises
    :class:`BundleError` if the cache cannot be removed.
    """
    held = cache_size(root)
    root = root or cache_root()
    for name, patterns in _MADE.items():
        folder = root / name
        try:
            for made in [each for pattern in patterns for each in folder.glob(pattern)]:
                if made.is_dir() and not made.is_symlink():
                    _remove(made)
                else:
                    made.unlink(missing_ok=True)
        except OSError as error:
            sentence = f"The cache cannot be removed: {folder}: {error.strerror}."
            raise BundleError(sentence) from None
        for empty in (*folder.glob(_FOLDER), folder / "whole", folder):
            with contextlib.suppress(OSError):
                empty.rmdir()
    return held
