"""How pictures are drawn, whatever they show: axes, styles, colours, names of tokens, files."""

import math
import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scaledot import checks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Names = Sequence[str] | None
"""Names of tokens."""

# Okabe and Ito's palette: told apart by all eyes, and in grey by the marks and lines beside it.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#D55E00", "marker": "s", "linestyle": "-"},
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#009E73", "marker": "^", "linestyle": "--"},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
)
COLOURS = "viridis"
"""Perceptually uniform, and its lightness only rises: it reads in grey too (Smith and van der Walt
2015, the default of matplotlib)."""
PIXELS_AN_INCH = 100
"""Those of a figure on a screen, of which files have more."""
MARGIN = 1.0
"""Inches that names and a colour bar may take of the axes once the figure is laid out."""
TOKEN_SIZE = 8
"""Font size of the names of tokens, in points."""
TOKEN_HEIGHT = 1.25
"""Height of a line of text, in font sizes: names closer than that would touch."""
TOKEN_LETTERS = 18
"""Longest name that is written out."""


def new_axes(n: int, size: tuple[float, float], columns: int | None = None) -> "list[Axes]":
    """Return axes side by side, or in so many columns, in a figure no window manager knows of."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        checks.library_missing("a picture", "matplotlib", "plots", error)

    columns = columns or n
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(max(1, -(-n // columns)), columns, squeeze=False).flat)
    for spare in axes[n:]:
        spare.remove()
    return axes[:n]


def given_axes(ax: "Sequence[Axes]", n: int) -> "list[Axes]":
    """Return the axes that a caller gave, one for each of n panels."""
    axes = list(ax)
    checks.panels(len(axes), n)
    return axes


def room(ax: "Axes") -> tuple[int, int]:
    """Return how many rows and columns of cells the axes have pixels for, whatever is beside them.

    Each cell then has a pixel at least, and none is left out where the picture is drawn.
    """
    box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    high, wide = (max(side - MARGIN, side / 2) * PIXELS_AN_INCH for side in (box.height, box.width))
    return max(1, int(high)), max(1, int(wide))


def image(
    ax: "Axes", cells: np.ndarray, step: tuple[int, int], shape: tuple[int, int], largest: float
) -> "AxesImage":
    """Draw cells where their tokens stand: token n around n, the last cell cut to its tokens.

    Colours go by the square root, so that weights far below the largest are told from 0; places
    that are NaN are hatched.
    """
    from matplotlib.colors import PowerNorm

    if not cells.size:
        cells = np.full((1, 1), np.nan)  # nothing to show is an empty picture
    elif not np.isfinite(cells).all():
        ax.patch.set(facecolor="none", hatch="////", edgecolor="0.5", linewidth=0)
    ends = cells.shape[0] * step[0] - 0.5, cells.shape[1] * step[1] - 0.5
    drawn = ax.imshow(
        np.ma.masked_invalid(cells),
        cmap=COLOURS,
        norm=PowerNorm(0.5, 0, largest or 1),
        interpolation="none",
        aspect="auto",
        extent=(-0.5, ends[1], ends[0], -0.5),
    )
    ax.set_xlim(-0.5, max(1, shape[1]) - 0.5)
    ax.set_ylim(max(1, shape[0]) - 0.5, -0.5)
    return drawn


def largest_of(x: np.ndarray) -> float:
    """Return the largest finite number; 0 without any."""
    return float(np.max(x, where=np.isfinite(x), initial=0.0))


def colour_bar(axes: "Sequence[Axes]", drawn: "AxesImage", label: str) -> None:
    """Say beside axes which colour is which number."""
    from matplotlib.ticker import MaxNLocator

    if any(ax.patch.get_hatch() for ax in axes):
        label += "; hatched: NaN"
    axes[0].figure.colorbar(drawn, ax=list(axes), label=label, ticks=MaxNLocator(5), pad=0.02)


def legend_above(ax: "Axes", columns: int) -> None:
    """Put the legend above the axes, where it hides nothing."""
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize="small",
              frameon=False, borderaxespad=0.2, columnspacing=1.2)  # fmt: skip


def token_axis(axis: Any, names: Names) -> None:
    """Count tokens along an axis, or name them."""
    if names is None:
        count_ticks(axis)
    else:
        name_ticks(axis, names)


def count_ticks(axis: Any) -> None:
    """Let an axis count in whole numbers."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def number_ticks(axis: Any) -> None:
    """Let an axis of any numbers have few ticks, each written out beside it."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Write the names of tokens on an axis, each at its own: all, or every n-th as they fit."""
    from matplotlib.ticker import FuncFormatter, Locator

    class Fitting(Locator):
        """Places as far apart as text is high, at whatever size the figure is drawn."""

        def __call__(self) -> Any:
            box = axis.axes.get_window_extent()
            pixels = box.width if axis.axis_name == "x" else box.height
            fit = pixels / axis.axes.figure.dpi * 72 / (TOKEN_SIZE * TOKEN_HEIGHT)
            return np.arange(0, len(names), max(1, math.ceil(len(names) / max(fit, 1))))

    plain = [_plain(name) for name in names]
    axis.set_major_locator(Fitting())
    axis.set_major_formatter(FuncFormatter(lambda x, _: plain[int(x)]))
    axis.set_tick_params(labelsize=TOKEN_SIZE, rotation=90 if axis.axis_name == "x" else 0)


def _plain(name: str) -> str:
    """Return the name of a token as text of one short line, which holds no formula."""
    name = name.replace("\n", "\\n").replace("$", r"\$")
    return name if len(name) <= TOKEN_LETTERS else name[: TOKEN_LETTERS - 1] + "…"


# --------------------------------------------------------------------------------------- files


def save(ax: "Axes", file: str | Path, suffix: str | None = None) -> None:
    """Write the figure of some axes to a .png, .svg or .pdf; the same bytes for the same figure.

    `suffix` says which, where the name of the file does not.
    """
    from matplotlib import rc_context

    figure: Figure = ax.figure  # type: ignore[assignment]  # ours has no subfigures
    kind = (suffix or Path(file).suffix).lower().removeprefix(".")
    dates: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "scaledot"}):
        figure.savefig(file, format=kind, dpi=150, metadata=dates.get(kind))


def inline_svg(ax: "Axes", name: str, description: str) -> str:
    """Return the figure of some axes as an element of a web page, in the page's ink and type.

    Its ids begin with `name`, so that no two figures of a page share one.
    """
    from matplotlib import rc_context

    figure: Figure = ax.figure  # type: ignore[assignment]  # ours has no subfigures
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawn = StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    text = drawn.getvalue()
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text[text.index("<svg") :])
    label = f'role="img" aria-label="{escape(description)}" fill="currentColor"'
    return text.replace("<svg ", f"<svg {label} ", 1).replace("#000000", "currentColor")
