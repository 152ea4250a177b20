"""``.ci/gpu-pack``: what a GPU machine without a network needs to run the suite, in parts.

The folder that is packed has ONNX Runtime's wheel for CUDA and the suite's own dependencies, as pip
unpacks them, license texts included. ``.ci/gpu-day --parts FOLDER`` unpacks and uses it there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

from split_archive import write_parts

ROOT: Final = Path(__file__).resolve().parents[2]

#: A wheel names the oldest C library that it works with, and pip compares the name.
OLDEST_GLIBC, NEWEST_GLIBC = 17, 28


class PackError(Exception):
    """The pack cannot be made; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pack; 0 if it is there, 2 for wrong arguments, 3 if it cannot be made."""
    options = _parser().parse_args(arguments)
    try:
        manifest = pack(options)
    except (PackError, OSError) as error:
        print(f".ci/gpu-pack: {error}", file=sys.stderr)
        return 3
    for part in manifest["parts"]:
        print(f"{options.out / part['name']}  {part['bytes'] / 1e6:.1f} MB")
    print(
        f"{manifest['bytes'] / 1e6:.1f} MB in {len(manifest['parts'])} parts, "
        f"{manifest['unpacked_bytes'] / 1e6:.1f} MB unpacked, for Python {manifest['python']} on "
        f"{manifest['machine']}: onnxruntime-gpu {manifest['packages']['onnxruntime-gpu']}"
    )
    return 0


def pack(options: argparse.Namespace) -> dict[str, Any]:
    """Make the pack; its manifest. Raises `PackError` and :class:`OSError`."""
    with tempfile.TemporaryDirectory(prefix="gqa-gpu-pack-") as name:
        site = Path(name)
        _install(site, requirements(options), options)
        packages = _packages(site)
        about = {
            "python": options.python,
            "machine": options.machine,
            "packages": packages,
        }
        return write_parts(site, options.out, round(options.part_mb * 1e6) - 1, about)


def requirements(options: argparse.Namespace) -> list[str]:
    """What pip installs: the suite's dependencies and the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = options.version or pinned()
    extras = "[cuda,cudnn]" if options.libraries else ""
    return [*project["dependencies"], f"onnxruntime-gpu{extras}=={version}"]


def pinned() -> str:
    """The release of onnxruntime-gpu that the suite pins, whose packages may not be here."""
    text = (ROOT / "conformance" / "targets" / "tools.py").read_text(encoding="utf-8")
    found = re.search(r'^ONNXRUNTIME_GPU_VERSION: Final = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def _install(site: Path, what: Sequence[str], options: argparse.Namespace) -> None:
    platforms = [
        f"--platform=manylinux_2_{minor}_{options.machine}"
        for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)
    ]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={options.python}"),
        *(*platforms, f"--platform=manylinux2014_{options.machine}"),
        *(f"--target={site}", *options.pip, *what),
    ]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise PackError("pip could not install what the pack consists of; it says why above.")


def _packages(site: Path) -> dict[str, str]:
    """Name and version of everything that pip has installed."""
    found = {}
    for file in sorted(site.glob("*.dist-info/METADATA")):
        about = HeaderParser().parsestr(file.read_text(encoding="utf-8"))
        found[str(about["Name"])] = str(about["Version"])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".ci/gpu-pack",
        description="Pack ONNX Runtime for CUDA, and what the suite needs, for a machine without a "
        "network; .ci/gpu-day --parts OUT uses it there.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the parts")
    parser.add_argument("--version", metavar="X.Y.Z", help="onnxruntime-gpu; default: the pinned")
    parser.add_argument("--python", default="3.12", metavar="3.N", help="default: 3.12")
    parser.add_argument("--machine", default="x86_64", help="default: x86_64")
    parser.add_argument(
        "--libraries", action="store_true", help="with CUDA's and cuDNN's libraries"
    )
    parser.add_argument(
        "--part-mb", type=float, default=56, metavar="MB", help="each part is below; default: 56"
    )
    parser.add_argument(
        "--pip", nargs=argparse.REMAINDER, default=[], help="further arguments of pip install"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
