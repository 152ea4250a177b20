"""The npm packages of the tests, installed once for each lock file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import platformdirs
import pytest

from conformance.targets.setup.installed import locked_command
from conformance.targets.setup.programs import SetupError, find_npm, run_installer

FOLDER = Path(__file__).parent / "packages"


@pytest.fixture(scope="session")
def packages() -> Path:
    """A folder with node_modules; skips, with the reason, if it cannot be created."""
    npm = find_npm()
    if npm is None or shutil.which("node") is None:
        pytest.skip("there is no Node with npm")
    digest = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = platformdirs.user_cache_path("gqa-conformance") / f"test-packages-{digest}"
    if not (folder / "node_modules").is_dir():
        working = folder.with_name(f"{folder.name}.{os.getpid()}")
        working.mkdir(parents=True)
        try:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(FOLDER / name, working)
            run_installer(locked_command(npm), working)
            with contextlib.suppress(OSError):  # another process was faster
                working.rename(folder)
        except SetupError as error:
            pytest.skip(f"npm could not install the packages of the tests: {error}")
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return folder
