"""Contracts promise no more than the features of their calls do."""

from __future__ import annotations

import pytest
from goldens import check_golden
from shipped import cases_of_theme
from tables import tables

from conformance.case.contract import Contract
from conformance.case.corpus import shipped_files
from conformance.operator.contracts import (
    DECISIONS,
    STRENGTH,
    contract_of,
    contract_on,
    grounds_of,
    weakest_of,
)
from conformance.operator.features import BY_NAME, features_of
from conformance.operator.part import has

TABLES = tables(__file__)

#: The themes at the limits of the operator weigh each of their contracts on its own.
THEMES = sorted(
    file.stem for file in shipped_files().values() if not file.stem.startswith("bounds_")
)
PROVIDERS = ("CUDA", "WebGpu", "CPU", "Js", "Another")
PLAIN = {feature.name: feature.plain for feature in BY_NAME.values()}


@pytest.mark.parametrize("theme", THEMES)
def test_no_contract_promises_more_than_the_features_of_its_call(theme: str) -> None:
    more = [
        f"{case.id}: {case.contract.basis}, but {[ground.words for ground in grounds]}"
        for case in cases_of_theme(theme)
        if case.contract.demands == "computes"
        and (grounds := grounds_of(features_of(case.call, case.steps)))
        and STRENGTH.index(case.contract.basis)
        < max(STRENGTH.index(ground.basis) for ground in grounds)
    ]
    assert not more, "\n".join(more)


@pytest.mark.parametrize("theme", THEMES)
def test_no_contract_demands_of_a_provider_what_its_text_refuses(theme: str) -> None:
    more = []
    for case in cases_of_theme(theme):
        features = features_of(case.call, case.steps)
        rows, window = case.call.max_sequence_length, case.call.local_window_size
        for decision in DECISIONS:
            of_cache = "cache" in dict(decision.values)
            if decision.demands == "rejects" and of_cache and rows == window:
                continue  # CUDA refuses only a sliding-window cache that is longer than its window
            if has(features, decision.values):
                more += [
                    f"{case.id} computes on {name}, but {decision.why}"
                    for name in decision.providers
                    if case.contract.on(name).demands == "computes"
                ]
    assert not more, "\n".join(more)


#: In which features calls differ from a plain one.
ROWS: tuple[dict[str, str], ...] = TABLES["features"]


def test_what_a_contract_says_of_features() -> None:
    """The weakest feature counts, and each provider's documentation."""
    assert weakest_of({**PLAIN, "phase": None, "rotary": None}) == "specified"
    told = []
    for row in ROWS:
        features = {**PLAIN, **row}
        made = contract_of(features)
        contract, alone = Contract.model_validate(made), contract_on(features)
        assert weakest_of(features) == alone.get("basis", "specified")
        on = {name: contract.on(f"{name}ExecutionProvider") for name in PROVIDERS}
        told += [
            f"=== {', '.join(f'{name} {value}' for name, value in row.items()) or 'plain'}",
            *(f"{name}: {each.demands} ({each.basis})" for name, each in on.items()),
            *(f"{name}: {alone[name]}" for name in ("basis", "source", "why") if name in alone),
            *([f"disputed: {made['disputed']}"] if "disputed" in made else []),
        ]
    check_golden("contracts.txt", "\n".join(told) + "\n")
