"""``.ci/gpu-day``: records every case on a GPU within some minutes, the most telling ones first.

``OUT/NAME.jsonl.xz`` has all results of a target, or of a few kernel variants. It is written anew
after each theme, so that little is lost with the machine; the same command goes on with it.
"""

from __future__ import annotations

import argparse
import glob
import lzma
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from parts import ROOT, PartsError, unpack

#: Variants that run side by side, as many as `gqa run` has runners for in each process.
SIDE_BY_SIDE: Final = 4
#: The least that a run can be given, and that is kept for its end, in seconds; and the most.
LEAST, MOST = 4.0, 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; 0, or 2 for wrong arguments, or 3 if a target could not be run."""
    end = time.monotonic()
    parser = argparse.ArgumentParser(
        prog=".ci/gpu-day",
        description="Record every case on a GPU. Further arguments are those of gqa run. The same "
        "command with the same OUT goes on where it stopped.",
        allow_abbrev=False,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the results")
    parser.add_argument("--minutes", type=float, default=9, metavar="N", help="default: 9")
    parser.add_argument("--parts", type=Path, metavar="DIR", help="what .ci/gpu-pack has packed")
    parser.add_argument("--no-variants", action="store_true", help="only the target itself")
    options, others = parser.parse_known_args(arguments)
    if not 0 < options.minutes < 1e6:
        parser.error("argument --minutes: a number above 0 is needed")
    end += 60 * options.minutes
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        environment = environment_with(options.parts)
        ep = os.environ.get("EP") or "cuda"
        if not (runs := runs_of(ep)):
            parser.error(f"EP={ep} is no target; gqa run --help lists them")
        if options.no_variants:
            runs = dict([*runs.items()][:1])
        worst = 0
        for number, (name, eps) in enumerate(runs.items()):
            now = time.monotonic()
            share = end - now if number == 0 else (end - now) / (len(runs) - number)
            file = options.out / f"{name}.jsonl"
            if not Recording(file, now + share, environment).record(eps, others):
                worst = 3
                if not Path(f"{file}.xz").exists() and number == 0:
                    break  # gqa has said why; its variants cannot be run either
    except (PartsError, OSError) as error:
        print(f".ci/gpu-day: {error}", file=sys.stderr)
        return 3
    except ImportError as error:
        why = f"{error.name} is missing: install the suite, or give --parts"
        print(f".ci/gpu-day: {why}.", file=sys.stderr)
        return 3
    return worst


def runs_of(ep: str) -> dict[str, list[str]]:
    """The targets of each run by its name: ``ep`` alone, then its kernel variants.

    Nothing if there is no such target. Raises `ImportError`.
    """
    from conformance.targets.catalogue import TARGETS

    own = next((entry for entry in TARGETS if entry.name == ep), None)
    if own is None:
        return {}
    variants = [e.name for e in TARGETS if e.kernel_variant_of == ep and e.runner == own.runner]
    runs = {ep: [ep]}
    for at in range(0, len(variants), SIDE_BY_SIDE):
        runs[f"variants-{at // SIDE_BY_SIDE + 1}"] = variants[at : at + SIDE_BY_SIDE]
    return runs


def environment_with(parts: Path | None) -> dict[str, str]:
    """The variables with which Python, also this one, finds the suite and what was packed.

    ``env.sh`` beside the parts sets them in a shell. Raises `PartsError` and `OSError`.
    """
    sys.path.insert(0, str(ROOT))
    if parts is None:
        return {"PYTHONPATH": _joined([str(ROOT)], "PYTHONPATH")}
    site = str(unpack(parts).resolve())
    sys.path.insert(1, site)
    folders = [folder for path in sys.path for folder in glob.glob(f"{path}/nvidia/*/lib")]
    variables = {
        "PYTHONPATH": _joined([str(ROOT), site], "PYTHONPATH"),
        "LD_LIBRARY_PATH": _joined(folders, "LD_LIBRARY_PATH"),
        "PATH": _joined(glob.glob(f"{site}/nvidia/*/bin"), "PATH"),
    }
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    (parts / "env.sh").write_text("".join(lines), encoding="utf-8")
    return variables


def _joined(paths: Sequence[str], variable: str) -> str:
    """The paths, and those that the variable has already."""
    there = os.environ.get(variable, "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in (*paths, *there) if path))


class Recording:
    """The results file of a run, ``NAME.jsonl``, which is packed as ``NAME.jsonl.xz``."""

    def __init__(self, file: Path, until: float, environment: Mapping[str, str]) -> None:
        self._file = file
        self._packed = file.with_name(f"{file.name}.xz")
        self._until = until
        self._environment = {**os.environ, **environment}
        self._themes: set[bytes] = set()
        self._read = 0
        self._again = math.inf

    def record(self, eps: Sequence[str], arguments: Sequence[str]) -> bool:
        """Run the cases that have no result, until the time is over; whether they could be run."""
        if self._left() < LEAST:
            print(f"{', '.join(eps)}: no time was left.")
            return True
        if self._packed.exists() and not self._file.exists():
            part = self._file.with_name(f"{self._file.name}.unpacked")
            try:
                part.write_bytes(lzma.decompress(self._packed.read_bytes()))
            except lzma.LZMAError as error:
                raise PartsError(f"{self._packed} cannot be read: {error}.") from None
            part.replace(self._file)
        listed = (Path(__file__).parent / "themes.txt").read_text(encoding="utf-8")
        jobs = (len(os.sched_getaffinity(0)) + 1) // 2
        command = [
            *(sys.executable, "-P", "-m", "conformance", "run"),
            *re.findall(r"^(\w+) ", listed, re.MULTILINE),
            *(word for ep in eps for word in ("--ep", ep)),
            *("--jobs", str(jobs), "--no-explain", "--no-shrink", "--resume", str(self._file)),
        ]
        status = -1
        try:
            for _ in range(3):  # one that the system killed is gone on with
                if 0 <= status <= 3 or self._left() < LEAST:
                    break
                status = self._run(command, arguments)
        finally:
            if self._file.exists() and (status != 3 or self._has_tried()):
                self._pack()
            for file in (self._file, self._file.with_name(f"{self._file.name}.part")):
                file.unlink(missing_ok=True)
        if self._packed.exists():
            print(f"{self._packed}: {self._packed.stat().st_size / 1e6:.1f} MB", flush=True)
        return status in (0, 1)

    def _run(self, command: Sequence[str], arguments: Sequence[str]) -> int:
        """Run gqa, and pack its results after each theme; its status, or 0 if it was late."""
        late = kill = False
        spare = self._spare()
        minutes = f"--minutes={(self._left() - spare) / 60:.4f}"
        process = subprocess.Popen([*command, minutes, *arguments], env=self._environment)
        try:
            while process.poll() is None and not kill:
                time.sleep(0.2)
                if self._left() < spare * 2 / 3 and not late:
                    late = True
                    process.send_signal(signal.SIGINT)
                kill = self._left() < spare / 3
                if self._left() > 2 * MOST and self._has_new_theme() and self._has_tried():
                    self._pack()
        finally:
            process.kill()
            process.wait()
        return 0 if late else process.returncode

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _spare(self) -> float:
        """Seconds to keep for what comes after the last case."""
        return min(MOST, LEAST / 2 + self._left() / 20)

    def _has_new_theme(self) -> bool:
        """Whether a theme has begun since the file was packed, which takes a tenth of the time."""
        if not self._file.exists() or self._left() > self._again:
            return False
        with self._file.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
        before = len(self._themes)
        self._themes |= set(re.findall(rb'^\{"kind":"result","case":"(\w+)/', new, re.MULTILINE))
        return 0 < before < len(self._themes)

    def _has_tried(self) -> bool:
        """Whether any case could be tried on any target."""
        tried = rb'^\{"kind":"result","case":"[^"]*","target":"[^"]*","verdict":"(?!skip)'
        return bool(re.search(tried, self._file.read_bytes(), re.MULTILINE))

    def _pack(self) -> None:
        """Pack the whole lines that there are."""
        before = self._left()
        content = self._file.read_bytes()
        part = self._packed.with_name(f"{self._packed.name}.part")
        part.write_bytes(lzma.compress(content[: content.rfind(b"\n") + 1], preset=1))
        part.replace(self._packed)
        self._again = self._left() - 9 * (before - self._left())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
