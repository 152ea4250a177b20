#!/usr/bin/env python3
"""How `gqa check` judges pairs of small decoders: a valid one, and one that is wrong in one thing.

Plain onnxruntime and NumPy say what is true of each in each way of calling. Counted are answers
that call a wrong decoder right and say nothing, and false alarms: exit status 1 for a valid one, or
words that call a way wrong which is right. The decoders follow from ``--seed``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from twin_decoders import Decoder, graph_of  # type: ignore[import-not-found]
from twin_faults import (  # type: ignore[import-not-found]
    FAULTS,
    Fault,
    Files,
    asked,
    files_for,
    text_of,
    valid_for,
)
from twin_programs import (  # type: ignore[import-not-found]
    Truth,
    established,
    promised,
    tolerance,
)

#: Ways of calling that are wrong in one chat, if they are wrong.
CHAT = ("chat", "long", "pipeline")
#: How an answer names a way of calling, in small letters.
NAMES = {
    "chat": "one chat|single token|conversation|one token on",
    "long": "one chat|single token|conversation|one token on",
    "chunks": "chunk",
    "right": "padded at the right|right-padded|padding at the right|in batches|ragged|^batches ",
    "left": "padded at the left|left-padded|padding at the left",
    "zero": "zero inside|zero in the mask|a zero",
    "window": "caches of a window",
    "back": "taken back|takes back|take back|going back|rewind",
    "beams": "beam|reorder",
    "shared": "one buffer|shared|fixed length",
    "types": "token type|token_type|types",
    "pipeline": "pipeline|iterator|context.onnx",
}
BAD = "silently wrong|✗|refused|is wrong|are wrong|wrong if"
CONTRADICTION = "note|config.json|contradict|mistake|differ"
#: Notes that say nothing of a model.
NEUTRAL = "hardly show|does not check"


@dataclass
class Twin:
    """One decoder with its files and its truth."""

    name: str
    valid: bool
    fault: Fault
    decoder: Decoder
    models: dict[str, onnx.ModelProto]
    files: Files
    truth: Truth

    @property
    def path(self) -> str:
        """What is given to `gqa check`, in the folder of all."""
        return f"{self.name}/model.onnx" if "model.onnx" in self.models else self.name

    @property
    def must_fail(self) -> bool:
        """Whether the exit status must be 1."""
        bad = {way for way, answer in self.truth.ways.items() if answer != "right"}
        return not self.by_notes and bool(bad & {*CHAT, *asked(self.files)})

    @property
    def by_notes(self) -> bool:
        """Whether a note is the right answer, since each result follows from the graph."""
        return not self.valid and self.fault.seen != "results"

    def write(self, folder: Path) -> None:
        place = folder / self.name
        place.mkdir(parents=True, exist_ok=True)
        for file, model in self.models.items():
            onnx.save(model, place / file)
        for file, content in self.files.items():
            (place / file).write_text(text_of(content))
        truth = {
            "valid": self.valid,
            "fault": "" if self.valid else self.fault.name,
            "seen": "" if self.valid else self.fault.seen,
            "ways": self.truth.ways,
            "promised": promised(self.decoder),
            "asked": asked(self.files),
            "exit_status": int(self.must_fail),
        }
        (place / "truth.json").write_text(json.dumps(truth, indent=1))


def models_of(d: Decoder, wrong: Decoder) -> dict[str, onnx.ModelProto]:
    if d.pipeline:
        return {"context.onnx": graph_of(d, 8), "iterator.onnx": graph_of(wrong, 1)}
    return {"model.onnx": graph_of(wrong)}


def problem_of(valid: Twin, wrong: Twin, own: Truth | None) -> str:
    """Why a pair is no pair, or ""."""
    d = valid.decoder
    for way in promised(d):
        if valid.truth.ways.get(way) != "right":
            return f"the valid one: {way} is {valid.truth.ways.get(way)} {valid.truth.message}"
        if valid.truth.errors[way] > tolerance(d) * 0.8:
            return f"the valid one: {way} is nearly wrong"
    ways = {*promised(d), *asked(wrong.files)}
    errors = [wrong.truth.errors.get(way, 1.0) for way in ways if wrong.truth.ways[way] != "right"]
    if not errors or max(errors) < tolerance(d) * 2:
        return "the wrong one is right, or nearly so"
    if any(tolerance(d) / 2 < e < tolerance(d) * 2 for e in wrong.truth.errors.values()):
        return "the wrong one is nearly right in a way"
    if wrong.fault.seen == "config":
        config = wrong.files.get("config.json", {})
        of_family = wrong.fault.name.startswith(("sink", "pairs", "norm"))
        if not config or (of_family and "model_type" not in config):
            return "no configuration"
        if own and any(own.ways.get(way) != "right" for way in promised(d)):
            return "the wrong one contradicts itself"
    if wrong.fault.seen == "inspection" and wrong.truth.seen_by_results:
        return "results of the wrong one differ"
    # One prompt is wrong, too, where codes are, and a pipeline cannot take one of any length.
    free = wrong.fault.in_iterator or wrong.fault.name.startswith("scale")
    free |= any(wrong.truth.ways[way] != "right" for way in asked(wrong.files))
    if wrong.fault.seen == "results" and not (wrong.truth.seen_by_results or free):
        return "results of the wrong one do not differ"
    return ""


def pairs(seed: int, number: int, told: bool) -> Iterator[tuple[Twin, Twin]]:
    """Pairs with each fault in turn, and why others are none, if ``told``."""
    for n in range(number):
        fault = FAULTS[n % len(FAULTS)]
        for attempt in range(12):
            rng = np.random.default_rng([seed, n, attempt])
            d = valid_for(fault, rng)
            changed = fault.made_in(d)
            right_files, wrong_files = files_for(fault, d, rng)
            made = []
            for valid, of, files in ((True, d, right_files), (False, changed, wrong_files)):
                models = models_of(d, of)
                truth = established(d, [*models.values()], not valid)
                name = f"{n:03}_{re.sub(r'[^a-z0-9]+', '_', fault.name)}_{'vb'[not valid]}"
                made.append(Twin(name, valid, fault, d, models, files, truth))
            own = None
            if fault.seen == "config" and fault.change:
                own = established(changed, [*made[1].models.values()])
            problem = problem_of(made[0], made[1], own)
            if not problem:
                yield made[0], made[1]
                break
            if told:
                print(f"{made[1].name}, draw {attempt}: {problem}", file=sys.stderr)
        else:
            print(f"no pair for {fault.name}: {problem}", file=sys.stderr)


# The answers


def answer_of(twin: Twin, folder: Path, ep: str) -> tuple[str, str, str]:
    """What an answer is worth, why, and what was printed."""
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}
    command = command_of(twin, folder, ep)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    said = done.stdout.lower()
    if "traceback" in done.stderr.lower() or done.returncode not in (0, 1):
        return "not judged", f"exit {done.returncode}: {done.stderr[-300:]}", done.stdout
    worth, why = judged(twin, done.returncode, said)
    return worth, why, done.stdout


def command_of(twin: Twin, folder: Path, ep: str) -> list[str]:
    program = [sys.executable, "-m", "conformance", "check", str(folder / twin.path)]
    return [*program, "--ep", ep, "--json", str(folder / twin.name / "answers.json")]


def judged(twin: Twin, status: int, said: str) -> tuple[str, str]:
    """What an answer in small letters is worth: correct, misleading, or which error it is."""
    lines = [line for line in said.splitlines() if line.strip() and not re.search(NEUTRAL, line)]
    bad = [line for line in lines if re.search(BAD, line)]
    notes = [line for line in lines if re.search(CONTRADICTION, line)]
    if re.search("not judged|not compared|was not run|cannot be checked", said) and not bad:
        return "not judged", "says that it does not judge"
    false = [line for line in bad if not names_a_bad_way(twin, line)]
    if not twin.by_notes and twin.must_fail and status == 0:
        return ("misleading", "exit 0 with a note") if bad or notes else ("called right", "")
    if twin.by_notes:
        if twin.fault.seen == "config" and status == 1:
            return "misleading", "exit 1 where a note is due"
        seen = [each for each in notes if twin.fault.seen != "config" or "config.json" in each]
        return ("correct", "") if seen or bad else ("called right", "")
    if status == 1 and not twin.must_fail:
        return "false alarm", "exit 1"
    if twin.valid and false:
        return "false alarm", false[0].strip()
    if twin.valid and [line for line in notes if "config.json" in line and line not in bad]:
        return "false alarm", notes[0].strip()
    if not twin.valid and status == 0 and not (bad or notes):
        return "called right", ""
    return "correct", ""


def names_a_bad_way(twin: Twin, line: str) -> bool:
    """Whether a line that calls something wrong names a way that is not right."""
    ways = twin.truth.ways
    bad = [way for way in NAMES if ways.get(way, "not established") != "right"]
    return any(re.search(NAMES[way], line.strip()) for way in bad)


def parts_of(d: Decoder) -> list[str]:
    """What is unusual in a decoder."""
    parts = [f"cache: {d.cache}", f"rotation: {d.rotary}", f"lengths: {d.lengths}"]
    named = {
        "window": d.window, "packed": d.packed, "softcap": d.softcap, "beams": d.beams,
        "standard Attention": d.standard, "embeds": d.embeds, "pipeline": d.pipeline,
        "float16": d.half, "interleaved": d.interleaved, "part of a head": d.partial < 1,
    }  # fmt: skip
    parts += [name for name, has in named.items() if has]
    for name in ("scaling", "norm", "sink", "bias", "borrow", "wrap", "types"):
        parts += [f"{name}: {value}"] if (value := getattr(d, name)) else []
    return parts


def printed(title: str, rows: dict[str, Counter[str]], columns: Sequence[str]) -> None:
    print(f"\n| {title} | graphs | {' | '.join(columns)} |")
    print(f"| --- | {' | '.join('---:' for _ in range(len(columns) + 1))} |")
    for name, counts in rows.items():
        print(f"| {name} | {counts.total()} | {' | '.join(str(counts[c]) for c in columns)} |")


COLUMNS = ("correct", "called right", "false alarm", "misleading", "not judged")


def main() -> None:
    read = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    read.add_argument("--seed", type=int, default=0)
    read.add_argument("--graphs", type=int, default=400, help="Valid and wrong ones together.")
    read.add_argument("--write", type=Path, help="Keep the graphs, their truth and the answers.")
    read.add_argument("--jobs", type=int, default=1, help="Checks at once.")
    read.add_argument("--ep", default="cpu")
    read.add_argument(
        "--truth", action="store_true", help="Establish the truth, and check nothing."
    )
    read.add_argument("-k", default="", help="Only graphs with this in their name.")
    read.add_argument("--explain", action="store_true", help="Say why draws are no pairs.")
    given = read.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.write or Path(temporary)).absolute()
        begin = time.monotonic()
        twins = [t for p in pairs(given.seed, given.graphs // 2, given.explain) for t in p]
        twins = [twin for twin in twins if given.k in twin.name]
        for twin in twins:
            twin.write(folder)
        seconds = time.monotonic() - begin
        print(f"{len(twins)} graphs; what is true of them took {seconds:.0f} s")
        if given.truth:
            of_truth(twins)
            return
        begin = time.monotonic()
        with ThreadPoolExecutor(given.jobs) as pool:
            answers = [*pool.map(lambda twin: answer_of(twin, folder, given.ep), twins)]
        print(f"their checks took {time.monotonic() - begin:.0f} s")
        of_answers(twins, answers, folder, given.ep)


def of_truth(twins: Sequence[Twin]) -> None:
    """Print how many graphs are right, wrong and refused in each way, by fault."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for twin in twins:
        kind = "valid" if twin.valid else f"{twin.fault.seen}: {twin.fault.name}"
        for way, answer in twin.truth.ways.items():
            rows[kind][f"{way} {answer}"] += 1
        rows[kind]["exit 1" if twin.must_fail else "exit 0"] += 1
    for kind, counts in rows.items():
        print(
            f"{kind}: {', '.join(f'{key} {n}' for key, n in counts.items() if 'right' not in key)}"
        )


def of_answers(
    twins: Sequence[Twin], answers: Sequence[tuple[str, str, str]], folder: Path, ep: str
) -> None:
    """Print the tables, and each answer that is no good."""
    faults: defaultdict[str, Counter[str]] = defaultdict(Counter)
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for twin, (worth, _, _) in zip(twins, answers, strict=True):
        kind = "valid" if twin.valid else f"{twin.fault.seen}: {twin.fault.name}"
        faults["all"][worth] += 1
        faults[kind][worth] += 1
        for part in parts_of(twin.decoder):
            parts[part][worth] += 1
    printed("fault", faults, COLUMNS)
    printed("part", dict(sorted(parts.items())), COLUMNS)
    for twin, (worth, why, said) in zip(twins, answers, strict=True):
        (folder / twin.name).mkdir(exist_ok=True)
        (folder / twin.name / "answer.txt").write_text(f"{worth}: {why}\n{said}")
        if worth in ("called right", "false alarm", "misleading"):
            ways = ", ".join(f"{way} {answer}" for way, answer in twin.truth.ways.items())
            print(f"\n{worth}: {twin.name}{': ' if why else ''}{why[:300]}\n  true: {ways}")
            print(f"  {shlex.join(command_of(twin, folder, ep)[1:5])} --ep {ep}")


if __name__ == "__main__":
    main()
