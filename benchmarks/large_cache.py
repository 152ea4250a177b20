"""What a large cache adds to the commands that show its size.

    python benchmarks/large_cache.py [--bundles 20000] [--markdown]

A bundle is repeated under other names, by hard links. The ratios are to the same command where the
cache is empty; the time beyond that is the figure. The first look at a cache measures each bundle,
later ones only what has changed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ratio import GQA, Ratio, parser_for, print_table, timed

from conformance.base.paths import CACHE_VARIABLE, data_path
from conformance.bundle.cache import bundle_for
from conformance.case.load import load


def repeated(bundle: Path, root: Path, number: int) -> None:
    """``number`` bundles in the cache ``root``, with the files of ``bundle``."""
    files = [file.relative_to(bundle) for file in bundle.rglob("*") if file.is_file()]
    for n in range(number):
        digest = hashlib.sha256(str(n).encode()).hexdigest()
        place = root / "bundles" / digest[:2] / digest
        for folder in {place / file.parent for file in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            os.link(bundle / file, place / file)


def measure(number: int) -> Iterator[Ratio]:
    """`gqa cache` and `gqa doctor`, the first time and from then on."""
    with tempfile.TemporaryDirectory() as name:
        empty, full = Path(name, "empty"), Path(name, "full")
        call = load([data_path("cases") / "smoke.yaml"])[0].call
        repeated(bundle_for(call, Path(name, "one")).path, full, number)
        for command in ("cache", "doctor"):
            both = [
                [timed([*GQA, command], {CACHE_VARIABLE: str(root)}, (0, 1)) for _ in range(2)]
                for root in (empty, full)
            ]
            for which, (without, done) in zip(
                ("first", "later"), zip(*both, strict=True), strict=True
            ):
                more = done.seconds - without.seconds
                what = f"`gqa {command}`, {number:,} bundles, {which}"
                yield Ratio(what, done.seconds / without.seconds, None, f"{more:+.2f} s")


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--bundles", type=int, default=20_000)
    options = parser.parse_args()
    print_table(measure(options.bundles), markdown=options.markdown)


if __name__ == "__main__":
    main()
