"""The summary of a day on a GPU: what was done, what was left out and why. OUT/summary.md."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from gathered import Found, replace
from tasks import Ended

#: The end of each run's output that OUT/log.txt keeps.
_LOG_CHARACTERS: Final = 4000


class Summary:
    """Collects what is to be said; it is written at once, and printed at the end.

    ``until`` is when the day has to end (`time.monotonic`). Nothing is written before `open`.
    """

    def __init__(self, out: Path, ep: str, until: float) -> None:
        self._out = out
        self._ep = ep
        self._until = until
        self._since = time.monotonic()
        self._open = False
        self._lock = threading.Lock()
        self._planned: dict[str, list[str]] = {}
        self._steps: list[str] = []
        self._left: list[str] = []
        self._troubles: dict[str, None] = {}
        self._found: dict[str, Found] = {}
        self._nothing = ""
        self._stopped = False
        self._ended = False
        self._log = ""

    def open(self) -> None:
        """Make the folder, and write from now on. Raises OSError."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._open = True

    def say(self, what: str) -> None:
        """Print a line on standard error, with the time that has passed and the time left."""
        now = time.monotonic()
        left = max(0, self._until - now)
        tell(f"{_clock(now - self._since)} ({_clock(left)} left)  {what}")

    def plan(self, file: str, targets: list[str]) -> None:
        """The targets of a results file."""
        self._planned[file] = targets
        self._write()

    def step(self, what: str, seconds: float) -> None:
        """Something was done."""
        self._steps.append(f"{what}: {seconds:.0f} s")
        self._write()

    def left_out(self, sentence: str) -> None:
        """Something that was planned was not done."""
        self._left.append(sentence)
        self._write()

    def trouble(self, sentence: str) -> None:
        """Something could not be written."""
        self._troubles[sentence] = None

    def nothing(self, sentence: str) -> None:
        """Nothing can be run. Raises OSError."""
        self.open()
        self._nothing = sentence
        self._write()

    def so_far(self, file: str, found: Found | None) -> None:
        """What a results file holds now."""
        if found is not None:
            self._found[file] = found
        self._write()

    def stopped(self, by: str, missing: int | None = None) -> None:
        """A signal ended it, with so many cases left to run if runs had begun."""
        if not self._stopped:
            self._stopped = True
            rest = "" if missing is None else f"; {plural(missing, 'case')} not run"
            self.left_out(f"Stopped by {by}{rest}.")

    def log(self, what: str, ended: Ended) -> None:
        """Add the end of a command's output to OUT/log.txt."""
        how = f"stopped after {ended.seconds:.0f} s" if ended.stopped else f"{ended.seconds:.0f} s"
        self._log += f"── {what}: status {ended.status}, {how}\n{ended.said[-_LOG_CHARACTERS:]}\n"
        with suppress(OSError):
            (self._out / "log.txt").write_text(self._log, encoding="utf-8")

    def end(self, seconds: float) -> int:
        """Write and print the summary; the exit status."""
        self._ended = True
        self.step("total", seconds)
        with suppress(OSError):  # standard output may be gone
            print(self.text(), end="", flush=True)
        sentences = [self._nothing] if self._nothing else [*self._left, *self._troubles]
        for sentence in sentences:
            tell(sentence)
        if self._nothing:
            return 3
        return 1 if sentences else 0

    def text(self) -> str:
        """The summary as Markdown."""
        lines = [f"# {self._ep}"]
        if self._nothing:
            lines += ["", self._nothing]
        elif not self._ended:
            lines += ["", "It is still running, or was killed."]
        for file, found in self._found.items():
            lines += ["", f"## {file}", ""]
            lines += self._about(file, found)
        if self._left or self._troubles:
            lines += ["", "## Left out", ""]
            lines += [f"- {sentence}" for sentence in (*self._left, *self._troubles)]
        if self._steps:
            lines += ["", "## Time", "", *(f"- {step}" for step in self._steps)]
        return "\n".join(lines) + "\n"

    def _about(self, file: str, found: Found) -> list[str]:
        """Device, versions, and a row for each target."""
        lines = []
        described = [target for target in found.targets.values() if target.get("describe")]
        if described:
            about = described[0]["describe"]
            versions = ", ".join(f"{name} {text}" for name, text in about["versions"].items())
            lines += [f"{about['device']}; {versions}", ""]
        verdicts = Counter[str]()
        counts, unexpected = found.counts(), found.unexpected()
        for count in counts.values():
            verdicts += count
        columns = [name for name, _ in verdicts.most_common()]
        head = ["target", "results", *columns, "unexpected", "infrastructure"]
        lines += [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
        for name in found.targets:
            count = counts[name]
            numbers = [count.total(), *(count[column] for column in columns)]
            numbers += [unexpected[name], found.infrastructure[name]]
            lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
        there = {target["ep"] for target in found.targets.values()}
        missing = [ep for ep in self._planned.get(file, [])[1:] if ep not in there]
        if missing:
            lines += ["", f"Without any result: {', '.join(missing)}."]
        return lines

    def _write(self) -> None:
        if not self._open:
            return
        with self._lock:
            try:
                replace(self._out / "summary.md", [self.text().encode()])
            except OSError as error:
                self._troubles.setdefault(f"{self._out / 'summary.md'}: {error}.")


def tell(sentence: str) -> None:
    """Print a line on standard error, if there is one."""
    with suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)


def plural(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _clock(seconds: float) -> str:
    """``8:05``, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
