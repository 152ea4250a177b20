"""Writes the site into a folder: ``python -m conformance.maintain.site OUT``.

``OUT`` may have the report, its support data and its badges, as ``gqa report`` writes them;
``.ci/site`` makes them first. ``--changes`` names a file with a JSON line for each night that
changed something, and ``--address`` is where the site will be.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from conformance.report.models import load_models
from conformance.report.site import Change, Site


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--address", default="")
    parser.add_argument("--changes", type=Path)
    parser.add_argument("--models", type=Path, help="recorded answers other than the project's")
    given = parser.parse_args()
    changes = []
    if given.changes is not None and given.changes.exists():
        lines = given.changes.read_text(encoding="utf-8").splitlines()
        changes = [Change(**json.loads(line)) for line in lines]
    badges = sorted(file.name for file in (given.out / "badges").glob("*.svg"))
    models = load_models(given.models)
    for place, text in Site(models, given.address.rstrip("/"), badges, changes).files():
        file = given.out / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
