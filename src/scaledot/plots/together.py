"""One picture of all that there is to see of queries and keys."""

from typing import TYPE_CHECKING

from scaledot import checks
from scaledot.plots import drawing
from scaledot.plots.drawing import AnyAxes
from scaledot.plots.heat_maps import weights
from scaledot.plots.rows import concentration, received, scores
from scaledot.views import Overview

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def overview(result: Overview, ax: AnyAxes | None = None) -> "list[Axes]":
    """Draw products, entropy, largest weight, received weight, and the weights of one head.

    Parameters
    ----------
    result : Overview
        What `scaledot.views.overview` returned.
    ax : five Axes, optional
        Where to draw, in a sequence or an array; by default a figure of their own.

    Returns
    -------
    list of Axes
        The five axes, in that order.

    Raises
    ------
    TypeError
        A result of another function; `ax` that are no Axes.
    ValueError
        A number of axes that is not five.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import plots
    >>> from scaledot.views import overview
    >>> query, key = np.random.default_rng(0).normal(size=(2, 8, 100, 64))
    >>> len(plots.overview(overview(query, key)))
    5
    """
    checks.made_by(result, "scaledot.views.overview", Overview)
    axes = _mosaic() if ax is None else drawing.given_axes(ax, 5)
    scores(result.scores, axes[0])
    concentration(result.seen, axes[1:3])
    received(result.seen, axes[3])
    weights(result.weights, axes[4])
    axes[4].set_title(drawing.head_title(result.head), fontsize="medium")
    return axes


def _mosaic() -> "list[Axes]":
    """Return the five axes of an overview."""
    panels: dict[str, Axes] = drawing.new_figure((15.0, 6.6)).subplot_mosaic(
        [["scores", "entropy", "map"], ["received", "largest", "map"]], width_ratios=(1, 1, 1.8)
    )
    return [panels[name] for name in ("scores", "entropy", "largest", "received", "map")]
