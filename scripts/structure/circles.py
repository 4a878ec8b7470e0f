"""Circles of includes between the files of a component."""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Iterable

from structure.tree import Finding, Include, Tree

Graph = dict[str, dict[str, Include]]  # from, to, and an include that makes the arrow


def graph_of(arrows: Iterable[tuple[str, str, Include]]) -> Graph:
    graph: Graph = {}
    for begin, end, include in arrows:
        if begin != end:
            graph.setdefault(begin, {}).setdefault(end, include)
            graph.setdefault(end, {})
    return graph


def shortest_path(graph: Graph, begin: str, end: str) -> list[str]:
    """The nodes from begin to end, both included; empty when no path leads there."""
    before = {begin: begin}
    waiting = deque([begin])
    while waiting and end not in before:
        node = waiting.popleft()
        for following in sorted(graph[node]):
            if following not in before:
                before[following] = node
                waiting.append(following)
    if end not in before:
        return []
    path = [end]
    while path[-1] != begin:
        path.append(before[path[-1]])
    return path[::-1]


def circles_of(graph: Graph) -> list[list[str]]:
    """For each arrow that lies on a circle, the shortest such circle; each circle once, its least node first."""
    found = set()
    for begin in graph:
        for end in graph[begin]:
            path = shortest_path(graph, end, begin)
            if path:
                least = path.index(min(path))
                found.add(tuple(path[least:] + path[:least]))
    return [list(circle) for circle in sorted(found, key=lambda circle: (len(circle), circle))]


def name_without_suffix(file: str) -> str:
    folder, name = posixpath.split(file)
    return posixpath.join(folder, name.split(".")[0])


def node_of(component: str, file: str) -> str:
    """x.hpp and x.cpp of src/ are one node.

    A public header is a node of its own: the source behind it may use parts that build on what the header declares.
    """
    private = f"{component}/src/"
    if file.startswith(private):
        return name_without_suffix(file[len(private) :])
    return file.removeprefix(f"{component}/include/")


def describe(graph: Graph, circle: list[str], verb: str = "includes") -> str:
    lines = [" -> ".join([*circle, circle[0]])]
    for begin, end in zip(circle, [*circle[1:], circle[0]]):
        include = graph[begin][end]
        lines.append(f"    {include.file}:{include.line} {verb} {include.target}")
    return "\n".join(lines)


def is_header(file: str) -> bool:
    return file.endswith((".hpp", ".h", ".cuh"))


def check_circles(tree: Tree) -> list[Finding]:
    findings = []
    for component in tree.components:
        includes = tree.includes_within(component)
        files = graph_of((node_of(component, one.file), node_of(component, one.target), one) for one in includes)
        headers = graph_of(
            (one.file, one.target, one) for one in includes if is_header(one.file) and is_header(one.target)
        )
        for rule, graph in (("circle of files", files), ("circle of headers", headers)):
            findings += [Finding(rule, component, describe(graph, circle)) for circle in circles_of(graph)]
    return findings
