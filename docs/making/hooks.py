"""What `mkdocs build` does of our own: figures, formulas, what commands print, parts of files."""

from pathlib import Path
from typing import Any

from fences import fill
from parts import include

ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with its parts of other files, and its fences, filled."""
    return fill(include(markdown, ROOT))
