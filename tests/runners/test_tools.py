"""Which program a target uses if there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.base.paths import cache_root
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import target_for, targets_for
from conformance.targets.tools import (
    ONNXRUNTIME_WEB_VERSION,
    TRACT_VERSION,
    RuntimeProgram,
    find_onnxruntime_web,
    find_tract,
    folder_of,
)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path / "tools"))
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"))
    monkeypatch.chdir(tmp_path)


def test_the_search_order_of_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(tmp_path / "on_path" / "tract")
    assert find_tract() == RuntimeProgram(on_path, "PATH")
    built = program(tmp_path / "tools" / f"tract-{TRACT_VERSION}" / "bin" / "tract")
    assert find_tract() == RuntimeProgram(built, "gqa setup tract")
    assert find_tract("other/tract") == RuntimeProgram(tmp_path / "other" / "tract", "--tract")


def test_a_name_alone_is_looked_up_as_a_shell_does(tmp_path: Path) -> None:
    other = program(tmp_path / "on_path" / "tract-0.22")
    assert find_tract("tract-0.22") == RuntimeProgram(other, "--tract")
    assert find_tract("tract-0.21") == RuntimeProgram(tmp_path / "tract-0.21", "--tract")


def test_interpreters_are_looked_up_as_well(tmp_path: Path) -> None:
    python = program(tmp_path / "on_path" / "python-of-tract")
    target = target_for("tract-wheel", OptionValues(tract_python="python-of-tract"))
    assert target.command.argv[0] == str(python)


# onnxruntime-web


def packages(folder: Path) -> Path:
    """A folder into which npm has installed it."""
    (folder / "node_modules" / "onnxruntime-web").mkdir(parents=True)
    return folder


def test_web_is_named_by_folder_or_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-web is named by folder or release."""
    assert find_onnxruntime_web() is None
    packages(folder_of("onnxruntime-web", "1.27.0"))
    assert find_onnxruntime_web() is None
    built = packages(tmp_path / "tools" / f"onnxruntime-web-{ONNXRUNTIME_WEB_VERSION}")
    assert find_onnxruntime_web() == RuntimeProgram(built, "gqa setup webgpu")
    option = "--onnxruntime-web"
    assert find_onnxruntime_web("own") == RuntimeProgram(tmp_path / "own", option)
    assert find_onnxruntime_web("own/node_modules/") == RuntimeProgram(tmp_path / "own", option)
    for release in ("1.27.0", "1.31.0-dev.20261101-0a1b2c3"):
        there = tmp_path / "tools" / f"onnxruntime-web-{release}"
        assert find_onnxruntime_web(release) == RuntimeProgram(there, option, release)


def test_the_runner_gets_the_named_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner of onnxruntime-web gets the named package."""
    driver = tmp_path / "driver.json"
    driver.write_text("{}")
    own = OptionValues(onnxruntime_web="own", adapter="driver.json")
    target = target_for("webgpu", own)
    again = ("--onnxruntime-web", "own", "--adapter", "driver.json")
    assert target.arguments == ("--ep", "webgpu", *again)
    launched = ("--ep", "webgpu", "--modules", str(tmp_path / "own"), "--named")
    shaders = ("--shaders", f"{cache_root()}/shaders")
    assert target.command.argv[2:] == (*launched, "--adapter", str(driver), *shaders)
    # A CPU has no adapter.
    wasm = next(target for target in targets_for(["webgpu", "wasm"], own) if target.ep == "wasm")
    assert wasm.arguments == ("--ep", "wasm", "--onnxruntime-web", "own")
    assert not {"--adapter", "--shaders"} & set(wasm.command.argv)
    release = target_for("webgpu-jsep", OptionValues(onnxruntime_web="1.27.0", adapter="gpu"))
    assert release.command.argv[-6:-2] == ("--release", "1.27.0", "--adapter", "gpu")
