"""Reads apt's package sources, and derives a source for another suite from one of them.

Both of apt's formats are read: stanzas of fields (``*.sources``), and one line per source
(``sources.list`` and ``*.list``). A derived source is the same archive with another suite; it keeps
the address, keys and options of the original, which may be a mirror.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: apt's configuration, relative to the root of the file system.
FOLDER: Final = Path("etc", "apt")
PARTS: Final = FOLDER / "sources.list.d"

#: Option names of the line format that differ from the stanza format, see sources.list(5).
_FIELDS: Final = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}

#: Fields that a derived source does not copy from its original.
_OWN: Final = {"types", "uris", "suites", "components", "enabled", "description"}
_OFF: Final = {"no", "false", "without", "off", "disable", "0"}

#: The file names that apt reads.
_READ: Final = re.compile(r"[A-Za-z0-9_.-]+\.(list|sources)")

#: ``deb [options] address suite component…``
_LINE: Final = re.compile(r"deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s*(.*)")


@dataclass(frozen=True)
class AptSource:
    """A source of binary packages that apt uses.

    ``options`` are its other fields as (name, value); a value keeps its line breaks.
    """

    file: Path
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    def in_suite(self, suite: str, component: str, why: str) -> str:
        """A ``.sources`` file for another suite of this archive; ``why`` is its first comment."""
        fields = [
            ("Types", "deb"),
            ("URIs", " ".join(self.uris)),
            ("Suites", suite),
            ("Components", component),
            *self.options,
        ]
        lines = [f"# {why}", *(f"{name}: {value}" for name, value in fields)]
        return "\n".join(lines) + "\n"


def sources(root: Path) -> list[AptSource]:
    """Every source that apt uses on the system at ``root``. Raises OSError."""
    parts = sorted((root / PARTS).glob("*"))
    files = [
        root / FOLDER / "sources.list",
        *(file for file in parts if _READ.fullmatch(file.name)),
    ]
    found: list[AptSource] = []
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
            found += _stanzas(file, text) if file.suffix == ".sources" else _lines(file, text)
    return found


def having(known: Sequence[AptSource], suite: str, component: str) -> list[AptSource]:
    """The sources that have ``component`` of ``suite``; both are compared exactly.

    Security updates are another archive with another suite, so they are never among them.
    """
    return [source for source in known if suite in source.suites and component in source.components]


def _stanzas(file: Path, text: str) -> Iterator[AptSource]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n(?:[ \t]*\n)+", "\n".join(lines)):
        fields: dict[str, tuple[str, str]] = {}
        last = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and last:
                name, value = fields[last]
                fields[last] = (name, f"{value}\n{line}")
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = (name.strip(), value.strip())

        def words(name: str, known: dict[str, tuple[str, str]] = fields) -> tuple[str, ...]:
            return tuple(known.get(name, ("", ""))[1].split())

        off = bool({word.lower() for word in words("enabled")} & _OFF)
        if "deb" in words("types") and not off:
            rest = tuple(field for key, field in fields.items() if key not in _OWN)
            yield AptSource(file, words("uris"), words("suites"), words("components"), rest)


def _lines(file: Path, text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        found = _LINE.fullmatch(line.partition("#")[0].strip())
        # A CD-ROM has another syntax and no other suites.
        if found and not found[2].startswith("cdrom:"):
            options = tuple(_option(word) for word in (found[1] or "").split() if "=" in word)
            yield AptSource(file, (found[2],), (found[3],), tuple(found[4].split()), options)


def _option(word: str) -> tuple[str, str]:
    """``arch+=amd64,arm64`` as a field of a stanza."""
    name, _, value = word.partition("=")
    more = {"+": "-Add", "-": "-Remove"}.get(name[-1:], "")
    name = name.rstrip("+-").lower()
    return _FIELDS.get(name, name.title()) + more, value.replace(",", " ")
