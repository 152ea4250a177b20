"""What the faulty runners of the tests lead to, and what interrupted runs leave behind.

All of it happens with an empty /dev/shm of its own (`unshare`), which nobody else writes to.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from adapter import faulty_on
from common import GQA, SHM, environment, gqa, plain, program, records, write

HEAD = "format: gqa-cases/2\nquestion: Q?\ndefaults:\n  contract: {source: a document}\ncases:\n"
#: The runners have their fault in the case named faulty.
SEVEN = HEAD + "".join(
    f"  - {{name: {name}, seed: {seed}, time_limit_seconds: 1.5}}\n"
    for seed, name in enumerate(("one", "two", "faulty", "four", "five", "six", "seven"))
)
TWENTY = HEAD + "  - {name: slow, matrix: {seed: [1, 2, 3, 4, 5], sequence_length: [1, 2, 3, 4]}}\n"
#: These are no runners, or want a folder or a text, or wait for limits of minutes.
LEFT_OUT = ("miniature", "launch", "counts_peers", "escapes", "never_described")
#: What runners want in their environment. Those of chance count their cases, so they repeat.
WAYS = {
    "exits": ["FAULT_STATUS=0", "FAULT_STATUS=3"],
    "half_line": ["FAULT_BYTES=0", "FAULT_STATUS=3"],
    "released": [f"RELEASE={release}" for release in ("1.0", "3.0", "4.0", "5.0")],
    "poisons_the_next": ["FAULT_STICKY=rejected", "FAULT_STICKY=crashed"],
    "poisons_its_context": ["FAULT_STICKY=rejected", "FAULT_STICKY=crashed"],
    "dies_at_random": ["FAULT_SHARE=0.2"],
    "flips_bits": ["FAULT_SHARE=0.2"],
}
MEDDLING = "_cases|forges|of_another|all_inputs|of_each_process"
LIES = "tests/faulty/lies.py"
PLACES = ("tests/faulty", "tests/runners_for_cli")
GROUPS = 4


class Desk:
    """A folder with two case files, and what is left there and elsewhere by what runs in it."""

    def __init__(self, root: Path, name: str) -> None:
        base = Path(tempfile.mkdtemp(prefix="instrument-"))
        self.root, self.folder, self.temporary = root, base / name, base / "tmp"
        for folder in (self.folder, self.temporary):
            folder.mkdir()
        for file, text in (("seven.yaml", SEVEN), ("twenty.yaml", TWENTY)):
            (self.folder / file).write_text(text)
        self.env = environment(
            base / "cache",
            TMPDIR=str(self.temporary),
            INSTRUMENT=str(base),
            FAULT_ON=faulty_on(self.folder / "seven.yaml", "faulty"),
        )

    def target(self, runner: str, *settings: str) -> list[str]:
        """The options for a target."""
        name = re.sub(r"[^a-z0-9]+", "-", "-".join([runner, *settings]).lower())[:40].strip("-")
        launch = str(self.root / "tests/runners_for_cli/launch.py")
        mark = f"FAULT_MARK={self.folder.parent / name}"
        command = ("env", *settings, mark, sys.executable, "-S", launch, runner)
        return ["--ep", program(self.folder / "runners" / name, *command), "--name", name]

    def living(self) -> list[int]:
        """The processes that were started here and still live."""
        found, mark = [], self.env["INSTRUMENT"].encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and b"INSTRUMENT=" + mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def left(self) -> dict[str, Any]:
        """Files, and processes after at most ten seconds, which are ended."""
        until = time.monotonic() + 10
        while (alive := self.living()) and time.monotonic() < until:
            time.sleep(0.1)
        for number in alive:
            os.kill(number, signal.SIGKILL)
        places = {"tmp": self.temporary, "here": self.folder, "shm": SHM}
        return {"processes": len(alive), **{name: names(of) for name, of in places.items()}}

    def results(self) -> list[dict[str, Any]]:
        return [*records(self.folder / "r.jsonl", self.folder.parent, self.root)]

    def verdicts(self) -> Counter[str]:
        return Counter(line["verdict"] for line in self.results() if "verdict" in line)


def names(folder: Path) -> list[str]:
    """The entries of a folder, but for what the instrument puts there; a star is for chance."""
    own = ("runners", "seven.yaml", "twenty.yaml")
    return sorted(re.sub(r"[0-9a-z_]{8,}$", "*", n) for n in os.listdir(folder) if n not in own)


def of_miniatures(root: Path, number: int, tasks: list[list[str]]) -> list[dict[str, Any]]:
    desk = Desk(root, f"group {number}")
    targets = [word for task in tasks for word in desk.target(*task)]
    run = ("run", "seven.yaml", "--jobs", "1", "--results", "r.jsonl")
    done = gqa(*run, *targets, cwd=desk.folder, env=desk.env)
    printed = plain(done.stdout, desk.folder.parent, root)
    about = {"id": f"group {number}", "status": done.returncode, "printed": printed.splitlines()}
    # The header and the footer have no target in their id.
    found = desk.results()
    for line in found:
        line["id"] += "" if " " in line["id"] else f" {number}"
    return [{**about, **desk.left()}, *found]


def interrupted(desk: Desk, jobs: int, how: str) -> dict[str, Any]:
    """A run of twenty slow cases to which something happens after the first results."""
    run = ("run", "twenty.yaml", *desk.target("waits"), "--jobs", str(jobs))
    command = (*GQA, *run, "--results", "r.jsonl", "--html", "r.html")
    slow = {**desk.env, "FAULT_ON": "/", "FAULT_SECONDS": "0.4"}
    err = desk.folder.parent / "err"
    with err.open("w") as file:
        process = subprocess.Popen(
            command, cwd=desk.folder, env=slow, stdout=file, stderr=file, start_new_session=True
        )
    until = time.monotonic() + 60
    while not desk.verdicts() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    for number in SIGNALS[how]:
        (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
        time.sleep(0.05)
    status = process.wait(60)
    left, some = desk.left(), 0 < desk.verdicts().total() < 20
    again = gqa(*run, "--resume", "r.jsonl", cwd=desk.folder, env=desk.env)
    resumed = {"status": again.returncode, "verdicts": desk.verdicts(), **desk.left()}
    trace = "Traceback" in err.read_text()
    return {"status": status, "traceback": trace, "some": some, **left, "resumed": resumed}


#: Kill -9 is for the parent alone, the others are for its group, as a terminal sends them.
SIGNALS = {
    "kill -9": [signal.SIGKILL],
    "Ctrl-C": [signal.SIGINT],
    "Ctrl-C twice": [signal.SIGINT, signal.SIGINT],
    "SIGTERM": [signal.SIGTERM],
    "hang-up": [signal.SIGHUP],
}


def full(root: Path, where: str) -> dict[str, Any]:
    """A run while there are only 16 KB for its results, for temporary files or in memory."""
    desk = Desk(root, f"full {where}")
    place = {"results": desk.folder / "full", "tmp": desk.temporary, "shm": SHM}[where]
    place.mkdir(exist_ok=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=16k", "full", str(place)), check=True)
    run = ("run", "twenty.yaml", *desk.target("correct"), "--jobs", "2", "--results")
    file = "full/r.jsonl" if where == "results" else "r.jsonl"
    done = gqa(*run, file, cwd=desk.folder, env=desk.env)
    about = {"status": done.returncode, "verdicts": desk.verdicts(), "inside": names(place)}
    about |= desk.left()
    subprocess.run(("umount", str(place)), check=True)
    said = plain(done.stdout + done.stderr, desk.folder.parent, root).splitlines()
    printed = [line for line in said if not re.match(r"\d+/\d+ ", line)]
    return {"id": f"full disk: {where}", "printed": printed, **about}


def take(root: Path, out: Path) -> None:
    if "INSTRUMENT_OWN_SHM" not in os.environ:
        own = f'mount -t tmpfs -o size=12g own {SHM} && exec "$@"'
        again = (sys.executable, sys.argv[0], str(out), "miniatures", "--root", str(root))
        os.environ["INSTRUMENT_OWN_SHM"] = "1"
        os.execvp("unshare", ("unshare", "-rm", "sh", "-c", own, "sh", *again))
    lies = re.findall(r'^@lie\ndef (\w+)|^    "(\w+)": ', (root / LIES).read_text(), re.M)
    # Those that meddle with the files of other cases find them in the order of their digests.
    words = sorted({a or b for a, b in lies if not re.search(MEDDLING, a or b)})
    ways = {**WAYS, "lies": [f"LIE={word}" for word in words]}
    files = [file for place in PLACES for file in sorted((root / place).glob("*.py"))]
    stems = [file.stem for file in files if file.stem not in LEFT_OUT]
    tasks = [[stem, *([way] if way else [])] for stem in stems for way in ways.get(stem, [""])]
    with tempfile.TemporaryDirectory(prefix="instrument-") as folder:
        tempfile.tempdir = folder
        with ThreadPoolExecutor(GROUPS) as pool:
            groups = [tasks[number::GROUPS] for number in range(GROUPS)]
            found = pool.map(of_miniatures, [root] * GROUPS, range(GROUPS), groups)
            lines = [line for each in found for line in each]
        lines.append({"id": "left by the miniatures", "shm": names(SHM)})
        for how, jobs in product(SIGNALS, (1, 2)):
            lines.append({"id": f"{how}, {jobs} jobs", **interrupted(Desk(root, how), jobs, how)})
        lines += [full(root, where) for where in ("results", "tmp", "shm")]
    write(out, "miniatures", lines)
