"""YAML with positions: the data, and the line and column of each path in it.

Loading is safe: it reads plain data only, from a regular file of limited size.
"""

from __future__ import annotations

import json
from collections.abc import Sized
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from conformance.base.files import TOO_LARGE, read_plain
from conformance.base.paths import shown
from conformance.base.text import one_line

MAX_BYTES: Final = 1 << 20
#: Values of a file, with those that aliases repeat.
MAX_NODES: Final = 60_000
#: Problems that are listed.
MAX_PROBLEMS: Final = 100

_PLAIN_TAGS: Final = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")

Key = tuple[str | int, ...]

#: The texts at the beginning of the rows of a case file, and of each row.
_CASES: Final = "\ncases:\n"
_ROW: Final = "  - {"

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
        return f"{one_line(shown(self.file))}{place}: {one_line(self.sentence, 2_000)}"


class InputError(Exception):
    """The user's files contain errors; ``problems`` has them, sorted by file and line.

    The message lists at most `MAX_PROBLEMS` of them. Code that collects problems can stop when
    `too_many` is true.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(set(problems))
        lines = [str(problem) for problem in self.problems[:MAX_PROBLEMS]]
        if too_many(problems):
            lines.append("… and more; these are the first")
        super().__init__("\n".join(lines))


def too_many(problems: Sized) -> bool:
    """Whether there are more problems than the message lists."""
    return len(problems) > MAX_PROBLEMS


@dataclass
class Source:
    """A YAML file's text and data; line and column of each key and of each value, by path."""

    file: Path
    text: str = ""
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


class _Dumper(yaml.SafeDumper):
    """Indents the items of a list below its key, as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def yaml_text(data: object) -> str:
    """``data`` as YAML: mappings of plain values on one line, repeated values as aliases."""
    return str(
        yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=110,
            default_flow_style=None,
        )
    )


def read_yaml(file: Path, text: str | None = None) -> Source:
    """Reads ``file``, or what it is with this ``text``.

    Raises :class:`InputError` unless it is plain YAML within the limits.
    """
    source = Source(file)
    walk = _Walk(source)
    try:
        raw = read_plain(file, MAX_BYTES) if text is None else text.encode()
        source.text = raw.decode("utf-8-sig")
        head, rows = _rows(source.text)
        root = yaml.compose(head, Loader=_LOADER)
        source.data = None if root is None else walk.convert(root, (), ())
        wrong = (0, 0, "is empty") if root is None else None
    except OSError as error:
        too_large = error.errno == TOO_LARGE
        limit, why = f"larger than {MAX_BYTES >> 20} MiB", f"cannot be read: {error.strerror}"
        wrong = 0, 0, limit if too_large else why
    except UnicodeDecodeError as error:
        wrong = raw[: error.start].count(b"\n") + 1, 1, "is not UTF-8 text"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(filter(None, (error.context, error.problem)))
        wrong = line, column, f"bad YAML: {what}"
    except yaml.reader.ReaderError as error:
        sentence = f"bad YAML: the character U+{error.character:04X} is not allowed"
        wrong = *_place(source.text, error), sentence
    except RecursionError:
        wrong = 0, 0, "is nested too deep"
    if wrong:
        raise InputError([Problem(file, *wrong)])
    if walk.problems:
        raise InputError(walk.problems)
    if rows:
        source.data["cases"] = rows
        first = head.count("\n") + 1
        source.keys["cases",] = source.values["cases",] = first, 1
        for number in range(len(rows)):
            source.values["cases", number] = first + 1 + number, 5
    return source


def _rows(text: str) -> tuple[str, list[Any]]:
    """The text without its cases, and the cases, if each is a line that is also JSON.

    Otherwise the whole text. JSON is read thirty times faster.
    """
    head, mark, rest = text.partition(_CASES)
    lines = rest.splitlines()
    if mark and lines and all(line.startswith(_ROW) for line in lines):
        with suppress(ValueError, RecursionError):  # the reader of YAML says what is wrong
            return head + "\n", [_row(line.removeprefix(_ROW[:-1])) for line in lines]
    return text, []


def _row(line: str) -> Any:
    return json.loads(line, object_pairs_hook=_unique, parse_constant=float)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is twice")
    return dict(pairs)


def _place(text: str, error: yaml.reader.ReaderError) -> tuple[int, int]:
    """Line and column of a forbidden character; libyaml counts in bytes, PyYAML in characters."""
    if _LOADER is yaml.SafeLoader:
        before = text[: error.position]
    else:
        before = text.encode()[: error.position].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _position(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


class _Walk:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.nodes = 0
        self.scalars = yaml.constructor.SafeConstructor()

    def note(self, node: yaml.Node, sentence: str) -> None:
        self.problems.append(Problem(self.source.file, *_position(node), sentence))
        if too_many(self.problems):
            raise InputError(self.problems)

    def convert(self, node: yaml.Node, path: Key, above: tuple[int, ...]) -> Any:
        """Python data of ``node``. ``above``: the enclosing nodes, to detect a cyclic alias."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.note(node, f"expands to more than {MAX_NODES} values")
            raise InputError(self.problems)
        self.source.values[path] = _position(node)
        if id(node) in above:
            self.note(node, "an alias refers to an element that contains it")
            return None
        inside = (*above, id(node))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            self.note(node, f"the tag '{node.tag}' is not supported; use plain lists and mappings")
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*path, i), inside) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, inside)
        kind = node.tag.rpartition(":")[2]
        try:
            return self.scalars.construct_object(node)
        except yaml.MarkedYAMLError as error:
            self.note(node, f"bad YAML: {error.problem}")
        except (ValueError, LookupError, AttributeError, OverflowError):
            self.note(node, f"bad YAML: '{node.value[:40]}' is not a valid {kind}")
        return None

    def mapping(self, node: yaml.MappingNode, path: Key, inside: tuple[int, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.note(key_node, "merge keys (<<) are not supported; write the fields out")
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.note(key_node, "a key must be a string, not a list or mapping")
                continue
            key = key_node.value
            if key in made:
                first, _ = self.source.keys[*path, key]
                self.note(key_node, f"duplicate key '{key}'; the first is on line {first}")
                continue
            self.source.keys[*path, key] = _position(key_node)
            made[key] = self.convert(value_node, (*path, key), inside)
        return made
