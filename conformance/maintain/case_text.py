"""The text of a generated case file: fields and contracts in YAML."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.case.basis import contract_on
from conformance.case.formats import FORMAT


class MadeEntry(NamedTuple):
    """One entry of a generated file, with its matrix over ``dtypes``."""

    name: str
    fields: Mapping[str, Any]
    contract: Mapping[str, Any]
    dtypes: Sequence[str]


def written(value: Any) -> str:
    """A field's value in YAML's flow style."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {written(part)}' for key, part in value.items())}}}"
    if isinstance(value, str) and (value[:1] in "\"'`[{" or ": " in value or " #" in value):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def block(
    fields: Mapping[str, Any], indent: int, anchors: Mapping[str, str], seen: set[str]
) -> Iterator[str]:
    """The lines of a mapping in YAML's block style.

    A mapping inside it that has an anchor is written once and then as an alias; ``seen`` has the
    anchors that are written already.
    """
    for field, value in fields.items():
        if isinstance(value, dict):
            anchor = anchors.get(json.dumps(value))
            if anchor in seen:
                yield f"{indent * ' '}{field}: *{anchor}"
                continue
            yield f"{indent * ' '}{field}:{f' &{anchor}' if anchor else ''}"
            seen |= {anchor} if anchor else set()
            yield from block(value, indent + 2, anchors, seen)
        else:
            yield f"{indent * ' '}{field}: {written(value)}"


def anchors_of(contracts: Iterable[Mapping[str, Any]], prefix: str) -> dict[str, str]:
    """A name for each contract, and each provider's part of one, that occurs more than once.

    By its JSON. The names begin with the prefix.
    """
    counts: Counter[str] = Counter()
    for contract in contracts:
        key = json.dumps(contract)
        counts[key] += 1
        if counts[key] == 1:
            counts.update(json.dumps(part) for part in contract.get("providers", {}).values())
    repeated = [key for key, number in counts.items() if number > 1]
    return {key: f"{prefix}_{number}" for number, key in enumerate(repeated, 1)}


def file_text(
    theme: str, question: str, comment: str, entries: Sequence[MadeEntry], command: str = ""
) -> str:
    """The generated file cases/THEME.yaml; ``comment`` ends the line on how it is written.

    ``command``: the module and its arguments that write it, if it is not the usual one.
    """
    command = command or f"generate cases/{theme}.yaml"
    usual = contract_on({})
    lines = [
        "# yaml-language-server: $schema=schema.json",
        f"format: {FORMAT}",
        f"question: {question}",
        f"# Written by `python -m conformance.maintain.{command}`; {comment}.",
        f"tags: [{theme}]",
        "defaults:",
        "  contract:",
        *block(usual, 4, {}, set()),
        "cases:",
        *entry_lines(entries),
    ]
    return "\n".join(lines)


def entry_lines(entries: Sequence[MadeEntry], prefix: str = "contract") -> Iterator[str]:
    """The lines of a case file's entries. The anchors of contracts begin with ``prefix``."""
    usual = contract_on({})
    anchors = anchors_of((one.contract for one in entries if one.contract != usual), prefix)
    seen: set[str] = set()
    for entry in entries:
        yield f"  - name: {entry.name}"
        yield from (f"    {field}: {written(value)}" for field, value in entry.fields.items())
        if entry.contract != usual:
            yield from block({"contract": entry.contract}, 4, anchors, seen)
        yield from ("    matrix:", f"      dtype: {written(entry.dtypes)}", "")
