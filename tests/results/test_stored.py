"""The store of results: the same in flat memory as in memory, and all that is counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from synthetic_runs import case, header, realistic, result, target, writing

from conformance.results.reader import read
from conformance.results.records import InfrastructureRecord
from conformance.results.table import tabulate

NEW, OLD = "cpu@1.31.1", "cpu@1.26.0"
IDS = tuple(f"decode/one_token[seed={number}]" for number in range(5))


def odd(path: Path, footer: bool = False) -> Path:
    """A file with all that can be odd: replaced and repeated results, and others that are missing.

    It has a case that is described twice, a target without results, and ends too early, or has a
    ``footer`` that counts something else.
    """
    targets = [target("tract@0.23.8"), target(OLD), target(NEW)]
    with writing(path, header(targets, 9, 9)) as writer:
        for id in IDS[:-1]:
            writer.case(case(id))
        other = case().contract.model_copy(update={"demands": "either"})
        writer.case(case(IDS[0], contract=other))
        for judged in (
            result(IDS[2], NEW),
            result(IDS[0], NEW),
            result(IDS[0], NEW, "wrong"),
            result(IDS[0], NEW, "wrong", reason="It is as wrong, for another reason."),
            result(IDS[2], NEW),
            result(IDS[0], NEW),
            result(IDS[1], NEW),
            result(IDS[1], NEW, "wrong"),
            result(IDS[2], OLD, "wrong"),
            result(IDS[2], OLD),
            result(IDS[3], OLD, "wrong"),
            result(IDS[3], OLD),
            result(IDS[3], OLD, "crash"),
            result(IDS[4], OLD),
            result(IDS[4], "tract@0.23.9"),
        ):
            writer.result(judged)
        writer.infrastructure(InfrastructureRecord(target=NEW, case=IDS[4], message="It is gone."))
        if footer:
            writer.finish(True)
    if footer:
        path.write_text(re.sub(r'"(pass|wrong)":\d', r'"\1":9', path.read_text()))
    return path


@pytest.mark.parametrize("write", [odd, partial(odd, footer=True), realistic])
def test_a_file_is_as_it_is_read_into_memory(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    path = tmp_path / "run.jsonl"
    write(path)
    run = read(path)
    whole = tabulate([run])
    assert len(whole.results) > 4
    alone = tabulate([read(path, bounded=False)], in_memory=False)
    assert list(alone.cases.items()) == list(whole.cases.items())
    assert list(alone.results.items()) == list(whole.results.items())
    assert len(alone.results) == len(whole.results)
    for name in ("totals", "problems", "infrastructure", "instability"):
        assert getattr(alone, name) == getattr(whole, name)
    columns = [[(c.label, c.target) for c in each.columns] for each in (alone, whole)]
    assert columns[0] == columns[1]

    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    every = [line for line in lines if line["kind"] == "result"]
    counts = Counter((line["target"], line["verdict"]) for line in every)
    assert counts == {(t, v): n for t, found in run.counts.items() for v, n in found.items()}
    worst = Counter((result.target, result.verdict) for result in whole.results.values())
    assert worst == {(t, v): n for t, found in run.totals.items() for v, n in found.items()}
    assert run.store.unexpected(str(path)) == sum(line["unexpected"] for line in every)
    pairs = Counter((line["case"], line["target"]) for line in every)
    assert {*run.store.repeated()} == {pair for pair, n in pairs.items() if n > 1}
