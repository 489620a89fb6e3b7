"""Pictures of the effect of the scale: the study, and training with and without it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scaledot.plots.drawing import STYLES, given_axes, new_axes
from scaledot.scaling import Study, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("spread", "spread of the scores"),
    ("entropy", "entropy, nats"),
    ("max_weight", "largest weight"),
    ("jacobian_norm", "gradient: ‖softmax Jacobian‖"),
)


def study(result: Study, ax: "Sequence[Axes] | None" = None) -> "list[Axes]":
    """Draw the four panels of a study: spread, entropy, largest weight and gradient against d.

    Parameters
    ----------
    result : Study
        What `scaledot.scaling.study` returned.
    ax : four axes, optional
        Where to draw; by default a figure of their own.

    Returns
    -------
    list of Axes
        The four axes.
    """
    axes = new_axes(4, (11.0, 3.1)) if ax is None else given_axes(ax, 4)
    names = list(dict.fromkeys(row.scale for row in result))
    for place, (field, label) in enumerate(PANELS):
        for number, name in enumerate(names):
            rows = [row for row in result if row.scale == name]
            sizes = [row.d for row in rows]
            style = STYLES[number % len(STYLES)]
            axes[place].plot(sizes, [getattr(row, field) for row in rows], label=name, **style)
        axes[place].set_xscale("log", base=2)
        axes[place].set_xlabel("size d of the vectors")
        axes[place].set_ylabel(label)
        axes[place].grid(alpha=0.3)
    axes[0].set_yscale("log", base=2)
    axes[1].set_ylabel(f"entropy, nats (at most {math.log(result.n_keys):.2f})")
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(0, 1)
    axes[3].set_ylim(bottom=0)
    if ax is None:
        lines, labels = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(lines, [f"scale {name}" for name in labels], ncols=len(labels),
                              loc="outside upper center", frameon=False)  # fmt: skip
    else:
        axes[0].legend(title="scale", fontsize="small")
    return axes


def training(result: Training, ax: "Axes | None" = None) -> "Axes":
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
        The axes.
    """
    ax = new_axes(1, (5.5, 3.2))[0] if ax is None else ax
    for curve, name, style in (
        (result.unscaled, "without scale", STYLES[0]),
        (result.scaled, "1/sqrt(d)", STYLES[1]),
    ):
        steps = np.arange(1, len(curve.loss) + 1)
        line = {key: style[key] for key in ("color", "linestyle")}
        ax.plot(steps, curve.loss, alpha=0.25, linewidth=0.8, **line)
        ax.plot(steps, _smooth(curve.loss), label=name, marker=style["marker"], markevery=0.1,
                **line)  # fmt: skip
    ax.axhline(1, color="0.5", linewidth=0.8)
    ax.annotate("all keys weighed alike", (0.98, 1), xycoords=("axes fraction", "data"),
                xytext=(0, -3), textcoords="offset points", ha="right", va="top",
                fontsize="small", color="0.35")  # fmt: skip
    ax.set_xlabel("step")
    ax.set_ylabel(f"loss, mean squared error (d = {result.d})")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    return ax


def _smooth(x: np.ndarray, n: int = 10) -> np.ndarray:
    """Return the mean of each number and those around it, n on each side at most."""
    sums = np.concatenate(([0.0], np.cumsum(x)))
    places = np.arange(len(x))
    start, stop = np.maximum(places - n, 0), np.minimum(places + n + 1, len(x))
    smooth: np.ndarray = (sums[stop] - sums[start]) / (stop - start)
    return smooth
