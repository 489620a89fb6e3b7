"""Results drawn as SVG that takes the colour of the text around it, so in light and dark.

An array of bools becomes a grid of what each query sees, one of numbers a grid of weights; axes of
matplotlib become a picture. Every picture says in words what it shows.
"""

import re
from html import escape
from typing import Any
from zlib import crc32

import numpy as np

from scaledot.plots.files import inline_svg

CELL = {"bool": (20, 20), "number": (38, 24)}
"""Width and height of a cell in pixels."""
LEFT, TOP = 26, 20
"""Room for the numbers of queries and keys, in pixels."""


def figure(expression: str, caption: str, names: dict[str, Any]) -> str:
    """Return what an expression is, drawn: arrays under their code, axes under their caption."""
    value = eval(compile(expression, "drawn", "eval"), names)
    if isinstance(value, np.ndarray):
        kind, words = "grids", f"<code>{escape(expression)}</code>"
        pictures = [grid(panel) for panel in value.reshape(-1, *value.shape[-2:])]
    else:
        kind, words = "chart", escape(caption)
        pictures = [chart(value, caption)]
    return (
        f'<figure class="{kind}"><div class="panels">{"".join(pictures)}</div>'
        f"<figcaption>{words}</figcaption></figure>"
    )


# ----------------------------------------------------------------------------------------- grids


def grid(panel: np.ndarray) -> str:
    """Return one matrix (T, S) as a grid: queries downwards, keys to the right."""
    kind = "bool" if panel.dtype == bool else "number"
    wide, high = CELL[kind]
    n_rows, n_columns = panel.shape
    cells = [
        _cell(panel[i, j], LEFT + j * wide, TOP + i * high, wide, high)
        for i in range(n_rows)
        for j in range(n_columns)
    ]
    numbers = [_text(LEFT + (j + 0.5) * wide, TOP - 6, j, "axis") for j in range(n_columns)]
    numbers += [_text(LEFT - 10, TOP + (i + 0.5) * high + 4, i, "axis") for i in range(n_rows)]
    width, height = LEFT + n_columns * wide + 1, TOP + n_rows * high + 1
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(_words(panel))}</title>{''.join(numbers + cells)}</svg>"
    )


def _cell(x: Any, left: float, top: float, wide: int, high: int) -> str:
    """Return what a query sees of a key as a square, or the weight that it gives as a shade."""
    box = f'x="{left + 1}" y="{top + 1}" width="{wide - 2}" height="{high - 2}" rx="2"'
    if isinstance(x, np.bool_):
        return f'<rect {box} class="{"seen" if x else "hidden"}"/>'
    shade = f'<rect {box} class="hidden"/>'
    if x:
        shade = f'<rect {box} class="weight" fill-opacity="{0.05 + 0.4 * float(x):.3f}"/>'
    return shade + (_text(left + wide / 2, top + high / 2 + 4, _short(x)) if x else "")


def _text(x: float, y: float, word: object, kind: str = "entry") -> str:
    """Return a word or number that stands around a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" class="{kind}">{word}</text>'


def _short(x: Any) -> str:
    """Return a weight in few letters; one that would round to nothing as 0+."""
    return f"{x:.2f}" if x >= 0.005 else "0+"


def _words(panel: np.ndarray) -> str:
    """Return what a grid shows in words, row by row."""
    rows = []
    for i, row in enumerate(panel):
        if row.dtype == bool:
            seen = ", ".join(map(str, np.flatnonzero(row)))
            rows.append(f"query {i} sees " + (f"keys {seen}" if seen else "no key"))
        else:
            rows.append(f"query {i} weighs " + ", ".join(_short(x) if x else "0" for x in row))
    return "; ".join(rows)


# ---------------------------------------------------------------------------------------- charts


def chart(ax: Any, caption: str) -> str:
    """Return the figure of some axes as inline SVG: greys become the colour of the text, faded."""
    svg = inline_svg(ax, f"chart-{crc32(caption.encode()):x}", caption)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"#([0-9a-f]{2})\1\1\b", _of_text, svg)
    return re.sub(r"\n\s*", " ", svg)


def _of_text(grey: re.Match[str]) -> str:
    """Return a grey as a share of the colour of the text; white is nothing."""
    dark = 1 - int(grey[1], 16) / 255
    return f"color-mix(in srgb, currentColor {dark:.0%}, transparent)" if dark else "none"
