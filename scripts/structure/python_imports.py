"""Circles of imports between the modules of a Python package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from structure.circles import circles_of, describe, graph_of
from structure.tree import Finding, Include, Tree, files_below

FOLDER = "python"


def modules_below(root: Path) -> dict[str, str]:
    """The file of each module, by its dotted name. An extension has its stub."""
    files = [file for file in files_below(root, FOLDER) if file.endswith((".py", ".pyi"))]
    return {file.rpartition(".")[0].removesuffix("/__init__").removeprefix(FOLDER + "/").replace("/", "."): file for file in files}


def imports_of(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those at the top and in functions; none of `if TYPE_CHECKING`, which does not run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from imports_of(node)


def names_of(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[list[str]]:
    """What an import may name, in dotted parts: `from m import name` may name the module m.name, or m."""
    if isinstance(node, ast.Import):
        return [[name.name] for name in node.names]
    above = package[: len(package) - node.level + 1] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    return [[f"{module}.{name.name}", module] for name in node.names]


def arrows_of(tree: Tree) -> Iterator[tuple[str, str, Include]]:
    modules = modules_below(tree.root)
    for module, file in modules.items():
        package = module.split(".") if Path(file).stem == "__init__" else module.split(".")[:-1]
        for node in imports_of(ast.parse((tree.root / file).read_text(), file)):
            for names in names_of(node, package):
                target = next((name for name in names if name in modules), None)
                if target is not None:
                    yield module, target, Include(file, node.lineno, modules[target])


def check_imports(tree: Tree) -> list[Finding]:
    graph = graph_of(arrows_of(tree))
    return [Finding("circle of modules", FOLDER, describe(graph, circle, "imports")) for circle in circles_of(graph)]
