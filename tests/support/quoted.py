"""Quotations: each stands word for word in the source that it is taken from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from citations import Thread, link_to

from conformance.case.case import Case
from conformance.case.contract import Contract

#: The text of the operator, as contracts name it.
OPERATOR: Final = (
    "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"
    "#com.microsoft.GroupQueryAttention"
)

#: Double quotes around words, within one paragraph.
_QUOTED = re.compile(r'"((?:[^"\n]|\n(?!\s*\n))+)"')
_MARKS = str.maketrans("", "", "`*")


def quotations(text: str) -> list[str]:
    """The words that ``text`` has in double quotes. Code is left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", lambda code: code[0].replace('"', ""), text, flags=re.S)
    return _QUOTED.findall(prose)


def stands_in(quotation: str, source: str) -> bool:
    """Whether ``source`` has the words, in this order; ``…`` stands for any that are left out.

    White space and the marks of Markdown do not count.
    """
    text, position = _plain(source), 0
    for words in map(_plain, quotation.split("…")):
        found = text.find(words, position)
        if found < 0:
            return False
        position = found + len(words)
    return True


def sources(
    threads: Mapping[str, Thread], documents: Mapping[str, Sequence[str]], operator: str
) -> dict[str, str]:
    """What can be quoted of each source, by its link."""
    texts = {link_to(name, thread): "\n".join(thread.quotes) for name, thread in threads.items()}
    texts |= {link: "\n".join(quotes) for link, quotes in documents.items()}
    return {**texts, OPERATOR: operator}


def unfounded(
    cases: Iterable[Case], threads: Mapping[str, Thread], texts: Mapping[str, str]
) -> list[str]:
    """The contracts that their sources do not carry, one sentence for each entry of a case file.

    Every quotation stands in the contract's source. One is needed where the contract is specified,
    except where it is `either`: that is what the sources leave open.
    """
    by_link = {link_to(name, thread): thread for name, thread in threads.items()}
    sentences: dict[str, None] = {}
    for case in cases:
        entry = case.id.partition("[")[0]
        own = case.contract
        for provider in (None, *own.providers):
            where = f"{entry} on {provider}" if provider else entry
            for sentence in _of_contract(own.on(provider), by_link, texts):
                sentences[f"{where}: {sentence}"] = None
    return list(sentences)


def _of_contract(
    contract: Contract, threads: Mapping[str, Thread], texts: Mapping[str, str]
) -> Iterable[str]:
    thread = threads.get(contract.source)
    if thread is not None and not thread.found:
        yield f"{contract.source} was not found, so nothing can rest on it"
    if contract.disputed:
        decision = threads.get(contract.disputed)
        if decision is None or decision.state != "merged":
            yield f"disputed: {contract.disputed} is not a merged pull request"
    quoted = quotations(contract.why)
    for words in quoted:
        if not stands_in(words, texts.get(contract.source, "")):
            yield f'"{words}" is not in {contract.source}'
    if contract.basis == "specified" and contract.demands != "either":
        if thread is not None and thread.state != "merged":
            yield f"{contract.source} is not merged, so it specifies nothing"
        if not quoted:
            yield f"`why` quotes nothing from {contract.source}"


@cache
def _plain(text: str) -> str:
    return " ".join(text.translate(_MARKS).split())
