"""Small charts as inline SVG: text in the page's colour and language, readable at 320 pixels."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np

WIDTH, HEIGHT = 320, 210
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 26, 38

# Okabe and Ito's palette: told apart by all eyes.
BLUE, ORANGE = "#0072B2", "#D55E00"


class Chart:
    """A chart with axes; x and y are the ranges that it shows."""

    def __init__(
        self, title: str, *, x: tuple[float, float], y: tuple[float, float], below: str = ""
    ) -> None:
        self.title, self.x, self.y, self.below = title, x, y, below
        self.marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies, in pixels."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP), 1),
        )

    def bars(self, edges: Sequence[float], heights: Sequence[float], colour: str) -> None:
        """Add bars between edges."""
        for (start, stop), height in zip(pairwise(edges), heights, strict=True):
            left, top = self.at(start, height)
            right, bottom = self.at(stop, self.y[0])
            self.marks.append(
                f'<rect x="{left}" y="{top}" width="{max(right - left - 0.6, 0.4):.1f}" '
                f'height="{max(bottom - top, 0):.1f}" fill="{colour}"/>'
            )

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        *,
        width: float = 2,
        dash: str = "",
    ) -> None:
        """Add a line."""
        points = " ".join(f"{a},{b}" for a, b in map(self.at, x, y))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.marks.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dashes}/>'
        )

    def ticks(self, x: Mapping[float, str], y: Mapping[float, str]) -> None:
        """Add texts along the axes, at their values."""
        for value, text in x.items():
            across, _ = self.at(value, self.y[0])
            self.text(across, HEIGHT - BOTTOM + 15, text, "middle")
        for value, text in y.items():
            _, up = self.at(self.x[0], value)
            self.text(LEFT - 5, up + 4, text, "end")
            self.marks.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up}" y2="{up}" '
                'stroke="currentColor" stroke-opacity="0.2"/>'
            )

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Add a text at a place in pixels."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.marks.append(f'<text {place} fill="currentColor">{escape(text)}</text>')

    def svg(self, description: str) -> str:
        """Return the chart; the description says in words what it shows."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12.5" '
            f'aria-label="{escape(self.title)}: {escape(description)}">'
            f'<text x="{LEFT}" y="15" font-weight="600" fill="currentColor">{escape(self.title)}'
            f"</text>{''.join(self.marks)}"
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" text-anchor="middle" '
            f'fill="currentColor">{escape(self.below)}</text></svg>'
        )


def smooth(y: np.ndarray, n: int = 5) -> np.ndarray:
    """Return means of n neighbours on each side, as far as there are."""
    return np.array([y[max(0, i - n) : i + n + 1].mean() for i in range(len(y))])
