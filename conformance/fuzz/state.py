"""How far a campaign has come, and the file that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from conformance.base.files import read_plain
from conformance.base.text import safe_name
from conformance.fuzz.naming import NamedFault
from conformance.operator.call import Length
from conformance.results.results_error import ResultsError, cause_of
from conformance.run.shard import Shard

#: So many calls with a value of a feature must be refused or skipped before it is drawn seldom.
ENOUGH: Final = 50
#: The file of a campaign in its folder, and the most bytes that are read of a file there.
FILE: Final = "campaign.json"
MOST_BYTES: Final = 1 << 26


def _shard(text: str) -> Shard:
    shard = Shard.named(text)
    if shard is None or str(shard) != text:  # each has one spelling
        raise ValueError("no shard")
    return shard


_Shard = Annotated[Shard, PlainValidator(_shard), PlainSerializer(str)]


@dataclass
class CampaignState:
    """How far a campaign has come: the calls done, their verdicts and features, and the faults.

    ``settings`` must stay the same while it goes on. ``done`` has the number of calls of each
    shard, all of one division; ``verdicts`` are those of each target. ``known`` has the places of
    the expectations of each target that cover calls as they were drawn, and how many these are.
    ``unstable`` are the verdicts of each target that did not recur.
    ``features`` has how many legal calls had each value of a feature, and ``computed`` how many of
    these a target ran; ``avoided`` are values that are drawn seldom.
    """

    settings: dict[str, str]
    done: Annotated[dict[_Shard, Length], Field(min_length=1)]
    verdicts: dict[str, dict[str, Length]] = field(default_factory=dict)
    known: dict[str, dict[str, Length]] = field(default_factory=dict)
    unstable: dict[str, dict[str, Length]] = field(default_factory=dict)
    features: dict[str, Length] = field(default_factory=dict)
    computed: dict[str, Length] = field(default_factory=dict)
    avoided: list[str] = field(default_factory=list)
    faults: list[NamedFault] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """The number of calls done."""
        return sum(self.done.values())

    @property
    def refused(self) -> list[str]:
        """The values of features, as `name=value`, with which no call was run, but others were."""
        tried = (value for value, calls in self.features.items() if calls >= ENOUGH)
        return sorted(value for value in tried if self.computed and value not in self.computed)

    def difference(self, settings: Mapping[str, str | None]) -> str | None:
        """Half a sentence about a setting that differs: "--seed '0', not '1'"; None if none does.

        Settings that are not in ``settings`` are not compared.
        """
        for name, value in settings.items():
            if (was := self.settings.get(name)) != value:
                return safe_name(f"{name} {was!r}, not {value!r}")
        return None


def count(counts: dict[str, int], name: str) -> None:
    """Count one more of this name."""
    counts[name] = counts.get(name, 0) + 1


#: Reads and writes the file of a campaign.
STATE: Final = TypeAdapter(CampaignState)


def read_state(folder: Path) -> CampaignState | None:
    """The state of the campaign in a folder, None if there is none. Raises `ResultsError`."""
    file = folder / FILE
    try:
        return STATE.validate_json(read_plain(file, MOST_BYTES), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        place = safe_name(".".join(map(str, error.errors()[0]["loc"])))
        what = f"{place} is wrong" if place else "it is not the JSON of one"
        raise ResultsError(f"{file} is no campaign: {what}.") from None
    except OSError as error:
        raise ResultsError(f"{file} cannot be read: {cause_of(error)}.") from None
