"""An interrupt ends a command wherever it comes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from conformance.base import interrupts
from conformance.base.interrupts import undisturbed
from conformance.bundle.prepare import digest_of
from conformance.cli import commands
from conformance.operator.call import Call


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command's handlers, and the old ones afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_is_held_back_until_the_outermost_block_ends() -> None:
    interrupts.install()
    done = []

    def blocks() -> None:
        with undisturbed():
            with undisturbed():
                os.kill(os.getpid(), signal.SIGINT)
            done.append("the inner block")

    with pytest.raises(KeyboardInterrupt):
        blocks()
    assert done == ["the inner block"]


def test_no_interrupt_is_lost_while_the_digest_of_a_call_is_made() -> None:
    """pydantic lost half of those that came in its serializer."""
    call = Call(sequence_length=5, rotary="half_split")

    def interrupted(seconds: float) -> None:
        until = time.monotonic() + 1
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while time.monotonic() < until:
            digest_of(call)

    for delay in range(100):
        interrupts.install()
        with pytest.raises(KeyboardInterrupt):
            interrupted(5e-5 + delay * 5e-6)


def test_an_interrupt_waits_until_a_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic makes it an error of a model that is being defined."""
    interrupts.install()
    done = []

    def interrupted(name: str) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(name)
        return import_module(name)

    monkeypatch.setattr(commands, "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commands.command("doctor")
    assert done == ["conformance.cli.doctor"]
