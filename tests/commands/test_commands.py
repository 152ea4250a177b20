"""The commands of ``gqa`` and its errors: tables name them, each is imported when it is needed."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from conformance.cli.commands import COMMANDS, ERRORS, command


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    first, _, _ = inspect.cleandoc(command(name).help or "").partition("\n\n")
    assert COMMANDS[name] == " ".join(first.split())


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_each_error_is_there(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(import_module(module), kind), Exception)
