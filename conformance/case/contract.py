"""The demands of a case on a runtime, and the basis of these demands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from pydantic import Field

from conformance.operator.call import Model
from conformance.operator.contracts import STRENGTH, STRICTNESS, contract_of
from conformance.operator.part import Basis, Demands
from conformance.operator.readings import ReadingName

#: The meaning of each basis, as a sentence.
BASES: Final[dict[Basis, str]] = {
    "specified": "A released text or a merged decision says it in words.",
    "established": "Undocumented; ONNX Runtime's kernels agree.",
    "requested": "An issue asks for it; nobody promised it.",
}


#: Features without a listed value that leave the contract of a call as it is: a window that is
#: invalid, and scales that are not the same for keys and values.
_MAY_BE_UNLISTED: Final = ("window", "quantised")


class ProviderContract(Model):
    """The differences of a contract for targets of one execution provider.

    The contract itself holds for fields that are left out.
    """

    demands: Demands | None = None
    basis: Basis | None = None
    source: str | None = None
    why: str | None = None
    mentions: tuple[str, ...] | None = None


class Contract(Model):
    """The demands of a case on a runtime, and their source."""

    demands: Demands = "computes"
    """`computes`: the oracle's values. `rejects`: an error that a user can act on. `either`: the
    specification is silent, or kernels disagree; correct values and a rejection are both
    accepted."""
    basis: Basis = "specified"
    """`specified`: a released text or a merged decision says it in words, which `why` quotes.
    `established`: undocumented; ONNX Runtime's kernels agree.
    `requested`: an issue asks for it. Only where it is specified is a clean rejection red."""
    source: str
    """The source of the demand: a link, or a document and its section."""
    why: str = ""
    """One sentence: the reason for this contract."""
    mentions: tuple[str, ...] = ()
    """A rejection must mention one of these words; otherwise it is marked vague."""
    readings: tuple[ReadingName, ...] = ()
    """Other readings of the source, whose values are correct, too."""
    disputed: str = ""
    """A link to a merged decision that contradicts the contract. It holds nevertheless."""
    providers: dict[str, ProviderContract] = Field(default_factory=dict)
    """What is different on an execution provider (`CUDAExecutionProvider`), where the source says
    that it must behave differently from all others."""

    @property
    def terms(self) -> str:
        """The demand with its basis, such as `computes (established)`.

        `either` has no basis: it is for questions on which the texts are silent.
        """
        return self.demands if self.demands == "either" else f"{self.demands} ({self.basis})"

    def on(self, execution_provider: str | None) -> Contract:
        """The contract for a target with this execution provider; None: it has none."""
        own = self.providers.get(execution_provider or "")
        if own is None:
            return self
        return self.model_copy(update={**own.model_dump(exclude_none=True), "providers": {}})


def contract_by_features(features: Mapping[str, str | None]) -> Contract | None:
    """The contract of a node with these features; None if one has a value that is not listed."""
    if any(value is None for name, value in features.items() if name not in _MAY_BE_UNLISTED):
        return None
    return _validated(tuple(features.items()))


def contract_of_calls(features: Sequence[Mapping[str, str | None]]) -> Contract | None:
    """The contract of calls on one session, also for each execution provider.

    None if a call has no contract.
    """
    contracts = [found for each in reversed(features) if (found := contract_by_features(each))]
    if len(contracts) < len(features):
        return None
    if len(contracts) == 1:
        return contracts[0]
    names = sorted({name for contract in contracts for name in contract.providers})
    providers = {name: _together([contract.on(name) for contract in contracts]) for name in names}
    fields = {*ProviderContract.model_fields}
    return _together(contracts).model_copy(
        update={
            "providers": {
                name: ProviderContract(**contract.model_dump(include=fields))
                for name, contract in providers.items()
            }
        }
    )


def _together(contracts: Sequence[Contract]) -> Contract:
    """The contract that demands least, the first of equal ones, with what the others allow.

    All readings are right, and a refusal that is allowed for several reasons may name any.
    """
    least = max(contracts, key=_leniency)
    words = [each.mentions for each in contracts if each.demands == least.demands]
    changes: dict[str, object] = {"readings": _union(each.readings for each in contracts)}
    if least.demands != "computes":
        changes["mentions"] = _union(words) if all(words) else ()
    return least.model_copy(update=changes)


def _leniency(contract: Contract) -> tuple[int, int]:
    return STRICTNESS.index(contract.demands), STRENGTH.index(contract.basis)


def _union(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


@lru_cache(maxsize=4096)  # drawn calls have ever new features
def _validated(features: tuple[tuple[str, str | None], ...]) -> Contract:
    row = {name: value for name, value in features if value is not None}
    return Contract.model_validate(contract_of(row))
