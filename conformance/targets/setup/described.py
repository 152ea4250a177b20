"""Starts the runner of a target to check that it is set up."""

from __future__ import annotations

from conformance.harness.protocol import DescribeAnswer
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.targets.registry import Target
from conformance.targets.setup.programs import SetupError


def described(target: Target) -> DescribeAnswer:
    """The runner's answer to ``describe``. Raises :class:`SetupError` if it gives none."""
    try:
        with Session(target.command) as session:
            return session.start()
    except RunnerFailed as failure:
        raise SetupError(with_fix(failure.sentence, failure.fix)) from None


def with_fix(reason: str, fix: str | None) -> str:
    """The reason, and on another line the fix if there is one."""
    return f"{reason}\n  fix: {fix}" if fix else reason
