"""``.ci/gpu-pack``: what a GPU machine without a network needs to run the suite, in parts.

The parts are one ``.tar.xz`` of a folder with ONNX Runtime's wheel for CUDA, compute-sanitizer and
the suite's own dependencies, as pip unpacks them, license texts included. ``.ci/gpu-day --parts``
unpacks them there. Standard library only: that machine has nothing else yet.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
MANIFEST: Final = "manifest.json"
FORMAT: Final = "gqa-gpu-pack/2"

#: The most of a part: with the repository, it fits into 64 MiB.
PART_MB: Final = 42

#: A wheel names the oldest C library that it works with, and pip compares the name.
OLDEST_GLIBC, NEWEST_GLIBC = 17, 28

#: Kills pip and removes the folder, however the process that reads from it ends.
GUARD: Final = 'read -r ended || kill -s KILL -- "-$2"; rm -rf -- "$1"'


class PartsError(ValueError):
    """Parts that cannot be made or used; the message says why."""


def pack(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the parts and then the manifest; about each part. Raises `PartsError` and `OSError`."""
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in (out / MANIFEST, *out.glob("part-*")):
        old.unlink(missing_ok=True)
    work, site = out / "unfinished", out / "unfinished" / "site"
    shutil.rmtree(work, ignore_errors=True)
    site.mkdir(parents=True)
    command, environment = pip_command(site, options), {**os.environ, "TMPDIR": str(work)}
    null = subprocess.DEVNULL
    pip = subprocess.Popen(command, stdin=null, env=environment, start_new_session=True)
    command = ["/bin/sh", "-c", GUARD, "sh", str(work), str(pip.pid)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        if pip.wait():
            raise PartsError("pip could not install what the pack consists of; it says why above.")
        # With the presets 0 to 3, it is twice as fast and needs a part more.
        with tarfile.open(work / "site.tar.xz", "w:xz", preset=6) as archive:
            archive.add(site, ".")
        parts: list[dict[str, Any]] = []
        with (work / "site.tar.xz").open("rb") as whole:
            while content := whole.read(round(options.part_mb * 1e6)):
                name, digest = f"part-{len(parts):02}", hashlib.sha256(content).hexdigest()
                (out / name).write_bytes(content)
                parts.append({"name": name, "bytes": len(content), "sha256": digest})
    finally:
        pip.kill()
        guard.communicate(b"\n")
    about = {"format": FORMAT, "python": options.python, "machine": options.machine}
    manifest = {**about, "parts": parts}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return parts


def unpack(folder: Path) -> Path:
    """``folder/site``, unpacked from the parts in ``folder`` unless it is there already.

    Raises `PartsError`, which names every missing or damaged part, and `OSError`.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(text := file.read_bytes())
        if manifest["format"] != FORMAT:
            raise ValueError
    except FileNotFoundError:
        raise PartsError(f"{file} is missing; .ci/gpu-pack writes it.") from None
    except (ValueError, TypeError, KeyError):
        sentence = f"{file} is not a manifest of this .ci/gpu-pack ({FORMAT})."
        raise PartsError(sentence) from None
    site, unpacked = folder / "site", folder / "site" / MANIFEST
    if unpacked.is_file() and unpacked.read_bytes() == text:
        return site
    packed = manifest["python"], manifest["machine"]
    if packed != (f"{sys.version_info.major}.{sys.version_info.minor}", os.uname().machine):
        raise PartsError(
            f"{folder} is for Python {packed[0]} on {packed[1]}; start .ci/gpu-day with "
            f"PYTHON=python{packed[0]}."
        )
    contents, wrong = [], []
    for part in manifest["parts"]:
        path, size = folder / part["name"], part["bytes"]
        contents.append(content := path.read_bytes() if path.is_file() else b"")
        if len(content) != size:
            wrong.append(f"{part['name']} has {len(content):,} of {size:,} bytes")
        elif hashlib.sha256(content).hexdigest() != part["sha256"]:
            wrong.append(f"{part['name']} is damaged")
    if wrong:
        raise PartsError(f"{folder}: {', '.join(wrong)}; copy it again.")
    shutil.rmtree(site, ignore_errors=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(contents)), mode="r|xz") as archive:
            # Pythons before 3.11.4 have no filter.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(site, _plain(archive))
    except (EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise PartsError(f"{folder} cannot be unpacked: {error}.") from None
    unpacked.write_bytes(text)
    return site


def pip_command(site: Path, options: argparse.Namespace) -> list[str]:
    """The command that installs the suite's dependencies and the runtime into ``site``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if os.environ.get("EP") == "cpu":
        [pinned] = project["optional-dependencies"]["cpu"]
        runtime = [f"onnxruntime=={options.version}" if options.version else pinned]
    else:
        extras = "[cuda,cudnn]" if options.libraries else ""
        version = options.version or _pinned()
        runtime = [f"onnxruntime-gpu{extras}=={version}", "nvidia-cuda-sanitizer-api"]
    libraries = [f"_2_{minor}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    return [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={options.python}"),
        *(f"--platform=manylinux{each}_{options.machine}" for each in (*libraries, "2014")),
        *(f"--target={site}", *options.pip, *project["dependencies"], *runtime),
    ]


def _pinned() -> str:
    """The release of onnxruntime-gpu that the suite pins; its packages may not be here."""
    text = (ROOT / "conformance" / "targets" / "tools.py").read_text(encoding="utf-8")
    found = re.search(r'^ONNXRUNTIME_GPU_VERSION: Final = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def _plain(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files and folders of the archive. Raises `PartsError` for what a pack never has."""
    for member in archive:
        path = Path(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise PartsError(f"The parts cannot be unpacked: {member.name!r} is in them.")
        yield member


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pack; 0 if it is there, 2 for wrong arguments, 3 if it cannot be made."""
    parser = argparse.ArgumentParser(
        prog=".ci/gpu-pack",
        description="Pack ONNX Runtime for CUDA, and what the suite needs, for a machine without a "
        "network; .ci/gpu-day --parts OUT uses it there. EP=cpu packs ONNX Runtime for CPUs.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the parts")
    parser.add_argument("--version", metavar="X.Y.Z", help="ONNX Runtime's; default: the pinned")
    parser.add_argument("--python", default="3.12", metavar="3.N", help="default: 3.12")
    parser.add_argument("--machine", default="x86_64", help="default: x86_64")
    parser.add_argument("--libraries", action="store_true", help="with CUDA's and cuDNN's, 1.4 GB")
    parser.add_argument(
        "--part-mb", type=float, default=PART_MB, metavar="MB", help=f"default: {PART_MB}"
    )
    parser.add_argument(
        "--pip", nargs=argparse.REMAINDER, default=[], help="further arguments of pip install"
    )
    options = parser.parse_args(arguments)
    if not options.part_mb * 1e6 >= 1:
        parser.error("argument --part-mb: a part needs at least a byte")
    try:
        parts = pack(options)
    except (PartsError, OSError) as error:
        print(f".ci/gpu-pack: {error}", file=sys.stderr)
        return 3
    for part in parts:
        print(f"{options.out / part['name']}  {part['bytes'] / 1e6:.1f} MB")
    total = sum(part["bytes"] for part in parts) / 1e6
    print(f"{total:.1f} MB in {len(parts)} parts, for Python {options.python} on {options.machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
