"""Pictures of weights: of one head, and of all heads side by side."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scaledot import checks
from scaledot.plots import drawing
from scaledot.plots.drawing import AnyAxes, Names
from scaledot.results import Array, Attention
from scaledot.views import WeightsView, in_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

Weights = Attention | WeightsView | Array


def weights(
    result: Weights,
    ax: "Axes | None" = None,
    *,
    head: int | tuple[int, ...] | None = None,
    queries: Names = None,
    keys: Names = None,
) -> "Axes":
    """Draw the weights of one head as a heat map, a row for each query and a column for each key.

    Where there are more of them than the axes have pixels, neighbours share a cell: the weight that
    goes to its keys together, the mean over its queries. The colour bar says how many.
    Colours go by the square root of the weight, as its numbers show; what is NaN is hatched. Where
    few rows have weights far beyond those of all others, as the first ones of causal attention,
    the colours end before them; the bar says where, and ends in a point.

    Parameters
    ----------
    result : Attention, WeightsView, or array (..., H, T, S)
        What `scaledot.attention` or `scaledot.views.view_weights` returned, or weights.
    ax : Axes, optional
        Where to draw; by default a figure of its own.
    head : int or ints
        The place of the head in (..., H); not needed where there is but one.
    queries, keys : names, optional
        T and S names of tokens, written on the axes as far as they fit.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    TypeError
        A result of another function; `ax` that is no Axes.
    ValueError
        More than one head and no `head`, or one that is not there; a wrong number of names; more
        than one Axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import attention, plots
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 8, 100, 64))
    >>> ax = plots.weights(attention(query, key, value), head=2)
    """
    view = _view(result, queries, keys)
    place = checks.head(head, view.cells.shape[:-2])
    (ax,) = drawing.panels(ax, 1, _size(view, queries, keys))
    one = replace(view, cells=view.cells[place]).coarser(drawing.room(ax))
    drawn = _heat_map(ax, one, drawing.end_of_colours(one.cells), queries, keys)
    if head is not None:
        ax.set_title(drawing.head_title(place), fontsize="medium")
    drawing.colour_bar([drawn], one.label)
    return ax


def weights_by_head(
    result: Weights,
    ax: AnyAxes | None = None,
    *,
    queries: Names = None,
    keys: Names = None,
) -> "list[Axes]":
    """Draw the weights of every head as small heat maps in the same colours.

    Parameters
    ----------
    result, queries, keys
        As for `weights`.
    ax : Axes, one for each head, optional
        Where to draw, in a sequence or an array of any shape; by default a figure of their own.

    Returns
    -------
    list of Axes
        One for each head, in the order of (..., H).

    Raises
    ------
    TypeError
        A result of another function; `ax` that are no Axes.
    ValueError
        A number of axes that is not that of the heads; a wrong number of names.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import attention, plots
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 8, 100, 64))
    >>> len(plots.weights_by_head(attention(query, key, value)))
    8
    """
    view = _view(result, queries, keys)
    front = view.cells.shape[:-2]
    n = math.prod(front)
    columns = min(4, max(1, n))
    axes = drawing.panels(ax, n, (3.0 * columns + 0.9, 2.8 * -(-n // columns)), columns)
    if not axes:
        return axes
    view = view.coarser(drawing.room(axes[0]))
    most = drawing.end_of_colours(view.cells)
    images = []
    for place, one in zip(np.ndindex(front), axes, strict=True):
        head = replace(view, cells=view.cells[place])
        images.append(_heat_map(one, head, most, queries, keys))
        if place:
            one.set_title(drawing.head_title(place), fontsize="medium")
        if ax is None:
            one.label_outer()
    drawing.colour_bar(images, view.label)
    return axes


def _view(result: Weights, queries: Names, keys: Names) -> WeightsView:
    """Return weights in cells, and refuse names that are not theirs."""
    if isinstance(result, tuple) and hasattr(result, "_fields"):  # not nested ones of numbers
        checks.made_by(result, "scaledot.attention", Attention)
    if not isinstance(result, WeightsView):
        result = in_cells(result.weights if isinstance(result, Attention) else result)
    checks.token_names("queries", queries, result.n_queries)
    checks.token_names("keys", keys, result.n_keys)
    return result


def _size(view: WeightsView, queries: Names, keys: Names) -> tuple[float, float]:
    """Return the size of a figure for one heat map, in inches, that has room for the names."""
    line = drawing.TOKEN_SIZE * drawing.TOKEN_HEIGHT / 72
    wide, high = (
        min(9.0, max(5.4, line * n)) if names else 5.4
        for n, names in ((view.n_keys, keys), (view.n_queries, queries))
    )
    return wide + 1.8, high + (1.0 if keys else 0.5)


def _heat_map(
    ax: "Axes", view: WeightsView, most: float, queries: Names, keys: Names
) -> "AxesImage":
    """Draw the weights of one head, (rows, columns)."""
    shape = view.n_queries, view.n_keys
    drawn = drawing.image(ax, view.cells, view.step, shape, most)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    drawing.token_axis(ax.xaxis, keys)
    drawing.token_axis(ax.yaxis, queries)
    return drawn
