"""One name for one thing: no two types, and no two modules, of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from conformance.base.paths import PACKAGE


def types_in(tree: ast.Module) -> Iterator[str]:
    """The classes of a module, and its aliases of types."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        names = node.targets if isinstance(node, ast.Assign) else ()
        yield from (
            name.id
            for name in names
            if isinstance(name, ast.Name) and name.id[0].isupper() and not name.id.isupper()
        )


def test_a_module_name_has_one_sense() -> None:
    """Commands, and the parts of the operator, are called by what they are about."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        folder = file.parent.relative_to(PACKAGE).as_posix()
        if file.stem != "__init__" and folder not in ("cli", "maintain", "operator/parts"):
            places[file.stem].append(folder)
    twice = {name: folders for name, folders in places.items() if len(folders) > 1}
    assert not twice, f"rename one of each: {twice}"


def test_a_type_name_has_one_sense() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for name in types_in(ast.parse(file.read_text(encoding="utf-8"))):
            places[name].append(str(file.relative_to(PACKAGE)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, f"rename one of each: {twice}"
