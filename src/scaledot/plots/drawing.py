"""How pictures are drawn, whatever they show: axes, styles, colours, names of tokens."""

import math
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from scaledot import checks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

AnyAxes = Any
"""Axes, in a sequence or an array of any shape."""
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
MARGINS = 1.0, 1.34
"""Inches that names and title may take of the height of the axes, and names and a colour bar of
their width, once the figure is laid out."""
LEAST = 1 / 3
"""Share of the axes that is left of small ones."""
FEW_ROWS = 0.1
"""Share of rows whose weights may lie beyond the last colour."""
DARK = 4.0
"""How many times larger a few rows must be for that: by the square roots of the weights, all others
would be left with the lower half of the colours."""
LABEL_LETTER = 0.07
"""Width of a letter in the label of an axis, in inches: about half of its 10 points."""
LEGEND_LETTER, LEGEND_MARK = 0.062, 0.46
"""Width of a letter in a legend, and of the mark and the gap before it, in inches."""
TOKEN_SIZE = 8
"""Font size of the names of tokens, in points."""
TOKEN_HEIGHT = 1.25
"""Height of a line of text, in font sizes: names closer than that would touch."""
TOKEN_LETTERS = 18
"""Longest name that is written out."""


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return a figure of so many inches, wide and high, that no window manager knows of."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        checks.library_missing("a picture", "matplotlib", "plots", error)
    return Figure(figsize=size, layout="constrained")


def new_axes(n: int, size: tuple[float, float], columns: int | None = None) -> "list[Axes]":
    """Return the axes of a new figure, side by side, or in so many columns."""
    columns = columns or n
    rows = max(1, -(-n // columns))
    axes = list(new_figure(size).subplots(rows, columns, squeeze=False).flat)
    for spare in axes[n:]:
        spare.remove()
    return axes[:n]


def panels(
    ax: AnyAxes | None, n: int, size: tuple[float, float], columns: int | None = None
) -> "list[Axes]":
    """Return the axes that a caller gave, one for each of n panels, or else new ones."""
    return new_axes(n, size, columns) if ax is None else given_axes(ax, n)


def given_axes(ax: AnyAxes, n: int) -> "list[Axes]":
    """Return the axes that a caller gave, one for each of n panels."""
    axes = axes_of(ax)
    checks.panels(len(axes), n)
    return axes


def axes_of(ax: AnyAxes) -> "list[Axes]":
    """Return axes one after the other, those of nested lists and of arrays too."""
    from matplotlib.axes import Axes

    axes = list(np.array(ax, dtype=object).flat)
    for one in axes:
        if not isinstance(one, Axes):
            checks.not_axes(one)
    return axes


def figure_of(ax: AnyAxes) -> "Figure":
    """Return the whole figure of some axes, those of a subfigure too."""
    axes = axes_of(ax)
    if not axes:
        checks.panels(0, 1)
    figure: Figure = axes[0].figure.figure
    return figure


def room(ax: "Axes") -> tuple[int, int]:
    """Return how many rows and columns of cells the axes have pixels for, whatever is beside them.

    Each cell then has a pixel at least, and none is left out where the picture is drawn.
    """
    high, wide = (
        max(1, int(max(side - margin, LEAST * side) * PIXELS_AN_INCH))
        for side, margin in zip(inches(ax), MARGINS, strict=True)
    )
    return high, wide


def inches(ax: "Axes") -> tuple[float, float]:
    """Return height and width of axes as they are now, in inches."""
    box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    return box.height, box.width


def image(
    ax: "Axes", cells: np.ndarray, step: tuple[int, int], shape: tuple[int, int], most: float
) -> "AxesImage":
    """Draw cells where their tokens stand: token n around n, the last cell cut to its tokens.

    `most` is the number for which the last colour stands. Colours go by the square root, so that
    weights far below it are told from 0; places that are NaN are hatched.
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
        norm=PowerNorm(0.5, 0, most or 1),
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


def end_of_colours(cells: np.ndarray) -> float:
    """Return the number for which the last colour stands, of cells (..., rows, columns).

    It is the largest, but where few rows have all that is large: there the end is the largest cell
    of all other rows, and the colour bar says so. In causal weights the first queries have few keys
    to choose from, and would leave the others in the dark.
    """
    peaks = np.max(cells, axis=-1, where=np.isfinite(cells), initial=0.0)
    peaks = peaks[peaks > 0]
    if not peaks.size:
        return 0.0
    largest = float(peaks.max())
    usual = float(np.quantile(peaks, 1 - FEW_ROWS, method="higher"))
    return usual if largest > DARK * usual else largest


def colour_bar(images: "Sequence[AxesImage]", label: str) -> None:
    """Say beside images which colour is which number."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    axes, cells = [image.axes for image in images], [image.get_array() for image in images]
    most = images[0].get_clim()[1]
    figure = axes[0].figure
    how: dict[str, Any] = {"ticks": MaxNLocator(5), "ax": axes[0], "pad": 0.02}
    if len(axes) > 1 and isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        how["ax"] = axes
    elif len(axes) > 1:  # no other layout keeps room for what belongs to several axes
        how = how | {"ax": None, "cax": axes[-1].inset_axes((1.04, 0, 0.05, 1))}
    if any(largest_of(np.ma.filled(x, 0)) > most for x in cells if x is not None):
        label += f"; colours end at {most:.3g}"
        how["extend"] = "max"
    if any(one.patch.get_hatch() for one in axes):
        label += "; hatched: NaN"
    figure.colorbar(images[0], label=lines_of(label, inches(axes[-1])[0]), **how)


def head_title(place: tuple[int, ...]) -> str:
    """Return which head is shown, in words."""
    *lead, head = place or (0,)
    return f"head {head}" + (f" of entry {', '.join(map(str, lead))}" if lead else "")


def legend_above(ax: "Axes") -> None:
    """Put the legend above the axes, where it hides nothing, in as many columns as fit there."""
    _, names = ax.get_legend_handles_labels()
    widths = [LEGEND_MARK + LEGEND_LETTER * len(name) for name in names]
    wide = inches(ax)[1]
    columns = next(
        (n for n in range(len(names), 1, -1)
         if sum(max(part) for part in np.array_split(widths, n)) <= wide),
        1,
    )  # fmt: skip
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize="small",
              frameon=False, borderaxespad=0.2, columnspacing=1.2)  # fmt: skip


def lines_of(label: str, wide: float) -> str:
    """Return the label of an axis in lines that are no longer than so many inches."""
    letters = max(12, int(wide / LABEL_LETTER))
    parts = [label] if len(label) <= letters else label.split("; ")
    return ";\n".join(fill(part, letters) for part in parts)


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
