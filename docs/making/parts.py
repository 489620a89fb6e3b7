"""Parts of other files that a page shows, so that nothing stands twice.

- `<!-- from README.md: speed -->` stands for what is between `<!-- speed -->` and
  `<!-- end of speed -->` there;
- `<!-- from README.md: benchmarks, Small calls -->` for the one table of it whose title begins so;
- `<!-- from src/….py: name -->` for the source of a function.
"""

import ast
import re
from pathlib import Path

PLACE = re.compile(r"^<!-- from ([\w./]+): (\w+)(?:, (.+?))? -->$", re.M)


def include(markdown: str, root: Path) -> str:
    """Return a page with the parts it names, their links made relative to `docs`."""

    def part(match: re.Match[str]) -> str:
        file, name, title = match.groups()
        text = (root / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            return function(text, name)
        found = between(text, name)
        return (table(found, title) if title else found).replace("](docs/", "](")

    return PLACE.sub(part, markdown)


def between(text: str, name: str) -> str:
    """Return what stands between the marks of a part."""
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    start, end = (text.index(mark) for mark in marks)
    return text[start + len(marks[0]) : end].strip()


def table(text: str, title: str) -> str:
    """Return the table under a line that begins so, that line included."""
    found = re.search(rf"^{re.escape(title)}.*\n\n(?:\|.*\n?)+", text, re.M)
    if found is None:
        raise ValueError(f"there is no table {title!r}")
    return found[0].strip()


def function(text: str, name: str) -> str:
    """Return a fence with the source of a function."""
    named = {x.name: x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)}
    return f"```python\n{ast.get_source_segment(text, named[name])}\n```"
