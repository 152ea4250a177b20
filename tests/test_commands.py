"""The commands of ``gqa`` and its errors: tables name them, each is imported when it is needed."""

from __future__ import annotations

import inspect
import subprocess
import sys
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


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from conformance.cli.commands import gqa;"
        " gqa.main(['--help'], standalone_mode=False);"
        " print(*sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())
    assert "history" in told.stdout
    assert not loaded & {"numpy", "onnx", "pydantic", "rich", "conformance.cli.run"}
