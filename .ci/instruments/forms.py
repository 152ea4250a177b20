"""All reports of the recorded history, and what changed between each two releases in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import lzma
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapter import POOLED, embedded
from common import JOBS, environment, gqa, plain, scratch, write

REPORTS = ("html", "markdown", "junit", "csv", "json", "badges", "support")


def unpooled(value: Any, pool: list[Any], key: str = "") -> Any:
    """A value of the page's data with what its indexes stand for."""
    if key in POOLED and isinstance(value, int):
        return unpooled(pool[value], pool)
    if isinstance(value, dict):
        return {name: unpooled(each, pool, name) for name, each in value.items()}
    if isinstance(value, list):
        of = key if key in POOLED and all(isinstance(each, int) for each in value) else ""
        return [unpooled(each, pool, of) for each in value]
    return value


def canonical(packed: str) -> str:
    """The data in a page: a line of JSON for each entry of each list."""
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    pool = data.pop("pool", [])
    if "reports" in data:  # programs and texts of issues, of paragraphs
        texts = ["\n\n".join(pool[i] for i in text) for one in data["reports"] for text in one]
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        data, pool = {"reports": digests, "paragraphs": sorted(pool)}, []
    lines = []
    for key, value in unpooled(data, pool).items():
        for entry in value if isinstance(value, list) else [value]:
            lines.append(f"{key} {json.dumps(entry, sort_keys=True, ensure_ascii=False)}\n")
    return "".join(lines)


def releases(recorded: Path, folder: Path) -> list[str]:
    """A results file for each target of a recorded one, in their order; returns their names."""
    lines = lzma.decompress(recorded.read_bytes()).splitlines()
    header, *rest, footer = map(json.loads, lines)
    cases = {line["id"]: line for line in rest if line["kind"] == "case"}
    files = []
    for target in header["targets"]:
        name = target["name"]
        of = [line for line in rest if line.get("target") == name]
        those = [cases[id] for id in dict.fromkeys(line["case"] for line in of)]
        kinds = Counter(line["kind"] for line in of)
        ends = {"unexpected": sum(line.get("unexpected", False) for line in of)}
        ends |= {"counts": {name: footer["counts"].get(name, {})}}
        ends |= {kind: kinds[kind] for kind in ("infrastructure", "instability")}
        about = {**header["selection"], "results": kinds["result"]}
        top = {**header, "targets": [target], "selection": about}
        made = [top, *those, *of, {**footer, **ends}]
        files.append(f"{name}.jsonl")
        text = "".join(json.dumps(line) + "\n" for line in made)
        (folder / files[-1]).write_text(text, encoding="utf-8")
    return files


def take(root: Path, out: Path) -> None:
    texts = out / "forms.texts"
    shutil.rmtree(texts, ignore_errors=True)
    texts.mkdir()
    lines: list[dict[str, Any]] = []

    def add(id: str, text: str) -> None:
        data = text.encode()
        (texts / f"{id}.gz").write_bytes(gzip.compress(data, 1, mtime=0))
        digest = hashlib.sha256(data).hexdigest()
        lines.append({"id": id, "sha256": digest, "bytes": len(data)})

    with scratch() as folder, ThreadPoolExecutor(JOBS) as pool:

        def do(id: str, *arguments: str) -> None:
            """Run a command in a folder of its own; what it prints and writes there is added."""
            here = folder / id
            here.mkdir()
            done = gqa(*arguments, cwd=here, env=environment(folder / "cache"))
            said = f"{done.stdout}\n{done.stderr}\nexit status {done.returncode}\n"
            add(f"{id}, printed", plain(said, folder, root))
            for file in sorted(each for each in here.rglob("*") if each.is_file()):
                name, text = f"{id}, {file.name}", file.read_text(encoding="utf-8")
                for part, packed in embedded(text) if file.suffix == ".html" else ():
                    add(f"{name}, data of {part}", canonical(packed))
                    text = text.replace(packed, "")
                add(name, text)
                file.unlink()

        work = []
        for file in sorted((root / "reports/recorded/history").glob("*.xz")):
            name = file.name.partition(".")[0]
            (folder / file.name).write_bytes(file.read_bytes())
            these = [f"--{form}=made.{form}" for form in REPORTS]
            work.append((f"{name} report", "report", f"../{file.name}", *these))
            history = ("--json", "made.json", "--all")
            work.append((f"{name} history", "history", "--from", f"../{file.name}", *history))
            each = releases(file, folder)
            for old, new in pairwise(each):
                id = f"{Path(old).stem} to {Path(new).stem}"
                work.append((id, "diff", f"../{old}", f"../{new}", "--markdown", "made.md"))
            if len(each) > 1:
                pages = ("--html=made.html", "--markdown=made.md")
                change = ("report", f"../{each[-1]}", "--against", f"../{each[0]}", *pages)
                work.append((f"{name} against", *change))
        for task in [pool.submit(do, *arguments) for arguments in work]:
            task.result()
    write(out, "forms", lines)
