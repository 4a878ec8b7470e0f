"""Fields of the structs in public headers."""

from __future__ import annotations

import re

from structure.prose import without_strings
from structure.tree import Finding, Tree

MOST_FIELDS = 20
STRUCT = re.compile(r"\bstruct\s+(\w+)(?:\s+final)?(?:\s*:[^;{]*)?\s*\{")
# Statements at the top of a struct that are no field; a field's type has no bracket before its initial value.
NO_FIELD = re.compile(r"\s*(?:using|friend|static|typedef|enum|struct|class|template)\b")


def code_of(text: str) -> str:
    """The text without comments and the contents of strings, with its lines."""
    return "\n".join(without_strings(line).split("//", 1)[0] for line in text.splitlines())


def count_fields(code: str, start: int) -> int:
    """Fields of the struct whose body begins at `start`."""
    count, depth, statement = 0, 1, ""
    for character in code[start:]:
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                break
            if depth == 1 and "(" in statement:  # the end of a function's body
                statement = ""
        elif depth == 1 and character == ";":
            count += bool(statement.strip()) and not NO_FIELD.match(statement) and "(" not in statement.split("=")[0]
            statement = ""
        elif depth == 1:
            statement += character
    return count


def check_fields(tree: Tree) -> list[Finding]:
    findings = []
    for component in tree.components:
        for file in tree.sources[component]:
            if not file.startswith(f"{component}/include/"):
                continue
            code = code_of((tree.root / file).read_text(errors="replace"))
            for match in STRUCT.finditer(code):
                count = count_fields(code, match.end())
                if count > MOST_FIELDS:
                    place = f"{file}:{code.count(chr(10), 0, match.start()) + 1}"
                    text = f"{match[1]} has {count} fields, allowed are {MOST_FIELDS}"
                    findings.append(Finding("too many fields", place, text))
    return findings
