"""YAML with positions: the data, and the line and column of each path in it.

Loading is safe: plain data only, a limit on nesting, and a limit on size after alias expansion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from conformance.base.paths import shown

MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 40
MAX_NODES: Final = 200_000

_PLAIN_TAGS: Final = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")

Key = tuple[str | int, ...]

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, order=True)
class Problem:
    """One error in a file, ``file:line:column: sentence``; line 0 stands for the whole file."""

    file: Path
    line: int
    column: int
    sentence: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        return f"{shown(self.file)}{place}: {self.sentence}"


class InputError(Exception):
    """The user's files contain errors; ``problems`` lists them all, sorted by file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass
class Source:
    """A YAML file's data, and the line and column of each key and of each value, by path."""

    file: Path
    data: Any = None
    keys: dict[Key, tuple[int, int]] = field(default_factory=dict)
    values: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def problem(self, path: Key, sentence: str, *, at_key: bool = False) -> Problem:
        """``sentence`` at ``path``, or at the nearest enclosing element that is in the file.

        Parts of ``path`` that are not in the file, such as pydantic's names of union alternatives,
        are skipped.
        """
        known: Key = ()
        for part in path:
            if (*known, part) in self.values:
                known = (*known, part)
        table = self.keys if at_key and known in self.keys else self.values
        line, column = table.get(known, (1, 1))
        return Problem(self.file, line, column, sentence)


def read_yaml(file: Path) -> Source:
    """Reads ``file``. Raises :class:`InputError` unless it is plain YAML within the limits."""
    source = Source(file)
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError([Problem(file, 0, 0, f"cannot be read: {error.strerror}")]) from None
    if len(raw) > MAX_BYTES:
        raise InputError([Problem(file, 0, 0, f"larger than {MAX_BYTES >> 20} MiB")])
    try:
        text = raw.decode("utf-8-sig")
        _check_depth(source, text)
        root = yaml.compose(text, Loader=_LOADER)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError([Problem(file, line, 1, "is not UTF-8 text")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(filter(None, (error.context, error.problem)))
        raise InputError([Problem(file, line, column, f"bad YAML: {what}")]) from None
    except yaml.reader.ReaderError as error:
        line, column = _place(text, error)
        sentence = f"bad YAML: the character U+{error.character:04X} is not allowed"
        raise InputError([Problem(file, line, column, sentence)]) from None
    if root is None:
        raise InputError([Problem(file, 0, 0, "is empty")])
    walk = _Walk(source)
    source.data = walk.convert(root, (), ())
    if walk.problems:
        raise InputError(walk.problems)
    return source


def _place(text: str, error: yaml.reader.ReaderError) -> tuple[int, int]:
    """Line and column of a forbidden character; libyaml counts in bytes, PyYAML in characters."""
    if _LOADER is yaml.SafeLoader:
        before = text[: error.position]
    else:
        before = text.encode()[: error.position].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _check_depth(source: Source, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            mark = event.start_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            sentence = f"nested more than {MAX_DEPTH} deep"
            raise InputError([Problem(source.file, line, column, sentence)])


class _Walk:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.nodes = 0
        self.scalars = yaml.constructor.SafeConstructor()

    def note(self, node: yaml.Node, sentence: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.source.file, mark.line + 1, mark.column + 1, sentence))

    def convert(self, node: yaml.Node, path: Key, above: tuple[int, ...]) -> Any:
        """Python data of ``node``. ``above``: the enclosing nodes, to detect a cyclic alias."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.note(node, f"expands to more than {MAX_NODES} values")
            raise InputError(self.problems)
        self.source.values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if id(node) in above:
            self.note(node, "an alias refers to an element that contains it")
            return None
        if len(above) > MAX_DEPTH:  # through aliases: literal nesting was checked before
            self.note(node, f"nested more than {MAX_DEPTH} deep")
            raise InputError(self.problems)
        inside = (*above, id(node))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            self.note(node, f"the tag '{node.tag}' is not supported; use plain lists and mappings")
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*path, i), inside) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, inside)
        try:
            return self.scalars.construct_object(node)
        except yaml.MarkedYAMLError as error:
            self.note(node, f"bad YAML: {error.problem}")
        except (ValueError, LookupError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            self.note(node, f"bad YAML: '{node.value[:40]}' is not a valid {kind}")
        return None

    def mapping(self, node: yaml.MappingNode, path: Key, inside: tuple[int, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.note(key_node, "merge keys (<<) are not supported; write the fields out")
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.note(key_node, "a key must be a string, not a list or mapping")
                continue
            key = key_node.value
            if key in made:
                self.note(key_node, f"duplicate key '{key}'; the first is on line {first[key]}")
                continue
            first[key] = key_node.start_mark.line + 1
            self.source.keys[(*path, key)] = (
                key_node.start_mark.line + 1,
                key_node.start_mark.column + 1,
            )
            made[key] = self.convert(value_node, (*path, key), inside)
        return made
