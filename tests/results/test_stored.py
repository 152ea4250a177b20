"""Results files of any size, in flat memory: as they are read into memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from synthetic_runs import case, header, realistic, result, target, writing

from conformance.results.reader import read
from conformance.results.records import InfrastructureRecord
from conformance.results.store import stored
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
    whole = tabulate([read(path)])
    assert len(whole.results) > 4
    with stored(path) as alone:
        assert list(alone.cases.items()) == list(whole.cases.items())
        assert dict(alone.results) == whole.results
        assert len(alone.results) == len(whole.results)
        for name in ("totals", "problems", "infrastructure", "instability"):
            assert getattr(alone, name) == getattr(whole, name)
        columns = [[(c.label, c.target) for c in each.columns] for each in (alone, whole)]
        assert columns[0] == columns[1]
