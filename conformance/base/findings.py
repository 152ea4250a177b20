"""What commands know about the findings, the pages of ``docs/findings``, apart from their text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from conformance.base.paths import data_path
from conformance.base.yaml_source import read_yaml

#: The prefix of an expectation's link to a finding.
PREFIX: Final = "docs/findings/"


class Workaround(BaseModel):
    """A way round a defect: calls that have it, and the same calls with the way round."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advice: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class FindingFacts(BaseModel):
    """The entry of one finding in ``docs/findings/findings.yaml``.

    ``depends_on_adapter``: the defect is known on software adapters, and whether a real GPU has
    it is not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    depends_on_adapter: bool = False
    workarounds: tuple[Workaround, ...] = ()


@cache
def finding_facts() -> Mapping[str, FindingFacts]:
    """The entries of all findings that have one, by the link that expectations use."""
    data = read_yaml(data_path("docs") / "findings" / "findings.yaml").data
    entries = TypeAdapter(dict[str, FindingFacts]).validate_python(data)
    return {f"{PREFIX}{page}.md": facts for page, facts in entries.items()}
