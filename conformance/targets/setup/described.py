"""Starts the runner of a target to check that it is set up."""

from __future__ import annotations

import shlex

from conformance.harness.protocol import UnavailableAnswer
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.targets.catalogue import OptionValues, TargetEntry
from conformance.targets.registry import target_for
from conformance.targets.setup.programs import SetupError, with_fix


def how_to_use(entry: TargetEntry, release: str) -> list[str]:
    """Lines with the device, or why there is none, and the command that runs cases on a release.

    Starts the runner. Raises :class:`SetupError` if it does not start.
    """
    package = entry.package
    assert package is not None
    default, programs = target_for(entry.name).program, OptionValues()
    places = package.folder(release), package.installed_file(release)
    if default is None or default.path not in places:
        programs = OptionValues(**{package.option.name: package.value(release)})
    target = target_for(entry.name, programs)
    use = shlex.join(("gqa", "run", *target.arguments))
    try:
        with Session(target.command) as session:
            answer = session.start()
    except RunnerFailed as failure:
        raise SetupError(with_fix(failure.sentence, failure.fix)) from None
    if isinstance(answer, UnavailableAnswer):
        reason = with_fix(answer.reason, answer.fix)
        return [f"{entry.name} cannot be used yet: {reason}", f"Once that is fixed: {use}"]
    lacks = f", without {', '.join(answer.lacks)}" if answer.lacks else ""
    fix = next(filter(None, answer.lacks.values()), None)
    return [with_fix(f"device: {answer.device}{lacks}", fix), f"use it with: {use}"]
