"""Cited threads: ``docs/citations.yaml`` says what each is."""

from __future__ import annotations

from citations import citations
from known_bugs import known_bugs

from conformance.targets.releases import is_in_range


def test_each_thread_was_found_or_says_how_it_was_looked_for() -> None:
    threads, _ = citations()
    for name, thread in threads.items():
        assert thread.found == bool(thread.title and thread.state) != bool(thread.tried), name
        assert thread.state == "merged" or not thread.in_release, name
        assert thread.kind == "pull" or thread.state != "merged", name


def test_a_known_bug_affects_no_release_that_has_its_correction() -> None:
    threads, _ = citations()
    for bug in known_bugs():
        owner, repository, _, number = bug.link.split("/")[3:7]
        thread = threads.get(f"{owner}/{repository}#{number}")
        if thread is None or thread.in_release is None or "<" not in bug.versions:
            continue
        assert not is_in_range(thread.in_release, bug.versions), bug.id
        assert not is_in_range("9999", bug.versions), bug.id
