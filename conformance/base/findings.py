"""What commands know about the findings, the pages of ``docs/findings``, apart from their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from conformance.base.paths import data_path
from conformance.base.target_names import split_adapter
from conformance.base.words import listed
from conformance.base.yaml_source import read_yaml

#: The prefix of an expectation's link to a finding.
PREFIX: Final = "docs/findings/"

#: The adapters that render in software, where shaders can behave as they do on no GPU.
SOFTWARE_ADAPTERS: Final = ("swiftshader", "lavapipe")


@dataclass(frozen=True)
class Workaround:
    """A way round a defect, and where it was tried.

    ``advice`` is a sentence or two of the page. ``calls`` has the id of a call with the defect, and
    that of the same call with the way round; ``tried`` says how advice was tried that is no call.
    ``holds`` has the targets that it is for, with the versions in which it helps, and ``worse`` the
    releases in which following it makes a call worse, in the words of
    `conformance.maintain.workarounds`.
    """

    advice: str
    calls: Mapping[str, str] = field(default_factory=dict)
    tried: str = ""
    holds: Mapping[str, str] = field(default_factory=dict)
    worse: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The advice with a warning."""
        warning = f" This makes the call worse on {listed(self.worse)}." if self.worse else ""
        return f"{self.advice}{warning}"


@dataclass(frozen=True)
class FindingFacts:
    """The entry of one finding in ``docs/findings/findings.yaml``.

    ``depends_on_adapter``: the defect is known on software adapters, and whether a real GPU has
    it is not known. ``from_tokens``: the new tokens of a call from which on it shows, 0 for any.
    """

    depends_on_adapter: bool = False
    from_tokens: int = 0
    workarounds: Sequence[Workaround] = ()


@cache
def finding_facts() -> Mapping[str, FindingFacts]:
    """The entries of all findings that have one, by the link that expectations use."""
    data = read_yaml(data_path("docs") / "findings" / "findings.yaml").data
    return {f"{PREFIX}{page}.md": _facts(**entry) for page, entry in data.items()}


def _facts(workarounds: Sequence[Mapping[str, Any]] = (), **rest: Any) -> FindingFacts:
    return FindingFacts(workarounds=[Workaround(**each) for each in workarounds], **rest)


def on_software_only(link: str, target: str) -> FindingFacts | None:
    """The entry of the finding at ``link`` if its defect depends on the adapter.

    None if it does not, or if ``target``, such as ``webgpu@1.30.0+lavapipe``, is on no software
    adapter.
    """
    facts = finding_facts().get(link) if split_adapter(target)[1] in SOFTWARE_ADAPTERS else None
    return facts if facts and facts.depends_on_adapter else None


def workaround(link: str) -> str:
    """All advice of the finding at ``link``, with its warnings; "" if it has none."""
    facts = finding_facts().get(link, FindingFacts())
    return " ".join(each.text for each in facts.workarounds)
