"""The known bugs: each has cases with its link, or a reason why it has none."""

from __future__ import annotations

from known_bugs import known_bugs
from shipped import shipped_cases

from conformance.expectations.known import id_pattern


def test_every_known_bug_has_cases_with_its_link_or_a_reason() -> None:
    bugs = known_bugs()
    assert len(bugs) >= 70
    for bug in bugs:
        assert bool(bug.cases) != bool(bug.not_covered), bug.id
        for pattern in map(id_pattern, bug.cases):
            found = [case for case in shipped_cases() if pattern.fullmatch(case.id)]
            assert found, (bug.id, pattern)
            assert all(bug.link in (*case.links, case.contract.source) for case in found), bug.id


def test_every_case_of_the_theme_belongs_to_a_known_bug() -> None:
    """So each case has a documented reason."""
    links = {bug.link for bug in known_bugs()}
    for case in shipped_cases():
        if case.theme == "known_bugs":
            assert links & set(case.links), case.id
