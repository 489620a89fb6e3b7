"""Pictures of the effect of the scale: the study, and training with and without it."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from scaledot import checks
from scaledot.plots import drawing
from scaledot.plots.drawing import STYLES, AnyAxes
from scaledot.scaling import Study, StudyRow, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("spread", "spread of the scaled products"),
    ("entropy", "entropy, nats"),
    ("max_weight", "largest weight"),
    ("jacobian_norm", "gradient: ‖softmax Jacobian‖"),
)
AROUND = 10
"""Steps before and after one over which the loss of a training is smoothed."""


def study(result: Study, ax: AnyAxes | None = None) -> "list[Axes]":
    """Draw the four panels of a study: spread, entropy, largest weight and gradient against d.

    Parameters
    ----------
    result : Study
        What `scaledot.scaling.study` returned.
    ax : four Axes, optional
        Where to draw, in a sequence or an array; by default a figure of their own.

    Returns
    -------
    list of Axes
        The four axes.

    Raises
    ------
    TypeError
        A result of another function; `ax` that are no Axes.
    ValueError
        A number of axes that is not four.

    Examples
    --------
    >>> from scaledot import plots
    >>> from scaledot.scaling import study
    >>> axes = plots.study(study(dims=(4, 16), n_pairs=100, n_keys=8))
    >>> [line.get_label() for line in axes[0].get_lines()]
    ['scale none', 'scale 1/sqrt(d)', 'scale 1/d']
    """
    checks.made_by(result, "scaledot.scaling.study", Study)
    axes = drawing.panels(ax, 4, (11.0, 3.1))
    lines = _by_scale(result.rows)
    labels = _told_apart([rows[0].scale for rows in lines])
    for panel, (field, label) in zip(axes, PANELS, strict=True):
        for number, (rows, name) in enumerate(zip(lines, labels, strict=True)):
            sizes = [row.d for row in rows]
            style = STYLES[number % len(STYLES)]
            panel.plot(sizes, [getattr(row, field) for row in rows], label=name, **style)
        _powers_of_two(panel, "x", sorted({row.d for row in result}))
        panel.set_xlabel("size d of the vectors")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    _powers_of_two(axes[0], "y")
    axes[1].set_ylabel(f"entropy, nats (at most {math.log(result.n_keys):.2f})")
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(0, 1)
    axes[3].set_ylim(bottom=0)
    if ax is None:
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(labels),
                              loc="outside upper center", frameon=False)  # fmt: skip
    else:
        drawing.legend_above(axes[0])
    return axes


def training(result: Training, ax: AnyAxes | None = None) -> "Axes":
    """Draw the losses of a training with and without the scale, step by step.

    Parameters
    ----------
    result : Training
        What `scaledot.scaling.train` returned.
    ax : Axes, optional
        Where to draw; by default a figure of its own.

    Returns
    -------
    Axes
        The axes, with the loss of each step, and its mean over the steps around.

    Raises
    ------
    TypeError
        A result of another function; `ax` that is no Axes.
    ValueError
        More than one Axes.

    Examples
    --------
    >>> from scaledot import plots
    >>> from scaledot.scaling import train
    >>> plots.training(train(d=4, steps=50)).get_xlabel()
    'step (d = 4, learning rate 10)'
    """
    checks.made_by(result, "scaledot.scaling.train", Training)
    (ax,) = drawing.panels(ax, 1, (5.5, 3.4))
    faint: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.8}
    for curve, name, style in (
        (result.unscaled, "without scale", STYLES[0]),
        (result.scaled, "1/sqrt(d)", STYLES[1]),
    ):
        steps = np.arange(1, len(curve.loss) + 1)
        line = {key: style[key] for key in ("color", "linestyle")}
        ax.plot(steps, curve.loss, **faint, **line)
        ax.plot(steps, _smooth(curve.loss), label=name, marker=style["marker"], markevery=0.1,
                **line)  # fmt: skip
    ax.plot([], [], color="black", label="each step by itself", **faint)
    ax.axhline(1, color="0.5", linewidth=0.8)
    ax.annotate("all keys weighed alike", (0.98, 1), xycoords=("axes fraction", "data"),
                xytext=(0, -3), textcoords="offset points", ha="right", va="top",
                fontsize="small", color="0.35")  # fmt: skip
    ax.set_xlabel(f"step (d = {result.d}, learning rate {result.learning_rate:g})")
    ax.set_ylabel(f"loss, mean squared error\n(means of {2 * AROUND + 1} steps)")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    drawing.legend_above(ax)
    return ax


def _by_scale(rows: Sequence[StudyRow]) -> list[Sequence[StudyRow]]:
    """Return the rows of each scale, by its place: functions may have the same name."""
    n_scales = sum(1 for _ in takewhile(lambda row: row.d == rows[0].d, rows))
    return [rows[place::n_scales] for place in range(n_scales)]


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return labels of scales, numbered where two have the same name."""
    often, so_far = Counter(names), Counter[str]()
    labels = []
    for name in names:
        so_far[name] += 1
        labels.append(f"scale {name}" + (f" ({so_far[name]})" if often[name] > 1 else ""))
    return labels


def _powers_of_two(ax: "Axes", axis: str, places: Sequence[int] | None = None) -> None:
    """Let an axis be logarithmic, and write out powers of two, or some of the places given."""
    from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter

    getattr(ax, f"set_{axis}scale")("log", base=2)
    one: Any = getattr(ax, f"{axis}axis")
    if places is not None:
        one.set_major_locator(FixedLocator(places, nbins=6))
    one.set_major_formatter(StrMethodFormatter("{x:g}"))
    one.set_minor_formatter(NullFormatter())


def _smooth(x: np.ndarray) -> np.ndarray:
    """Return the mean of each number and of those around it."""
    sums = np.concatenate(([0.0], np.cumsum(x)))
    places = np.arange(len(x))
    start, stop = np.maximum(places - AROUND, 0), np.minimum(places + AROUND + 1, len(x))
    smooth: np.ndarray = (sums[stop] - sums[start]) / (stop - start)
    return smooth
