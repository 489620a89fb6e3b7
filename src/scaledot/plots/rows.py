"""Pictures of what rows and keys have: entropy, largest weight, received weight, products."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scaledot import arrays, checks
from scaledot.histograms import ScoreHistogram
from scaledot.layout import by_head
from scaledot.plots import drawing
from scaledot.plots.drawing import STYLES, AnyAxes, Names
from scaledot.results import Observation
from scaledot.views import step_of, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 4
"""Heads that are drawn as lines, in the styles there are; more of them become rows of colours."""

MOST_MARKS = 40
"""Keys that each get a mark on their line."""


def concentration(result: Observation, ax: AnyAxes | None = None) -> "list[Axes]":
    """Draw the entropy and the largest weight of the rows of each head.

    Parameters
    ----------
    result : Observation
        What `scaledot.observe` returned, with `entropy` and `max_weight`; with `received` the
        entropy of a row that weighs all keys alike is drawn too. Axes before the heads are taken
        together. Rows that see no key, a NaN or an infinite score are left out.
    ax : two Axes, optional
        Where to draw, in a sequence or an array; by default a figure of their own.

    Returns
    -------
    list of Axes
        That of the entropy, and that of the largest weight.

    Raises
    ------
    TypeError
        A result of another function; `ax` that are no Axes.
    ValueError
        A statistic that was not asked for; a number of axes that is not two.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import observe, plots
    >>> query, key = np.random.default_rng(0).normal(size=(2, 8, 100, 64))
    >>> axes = plots.concentration(observe(query, key))
    >>> axes[0].get_ylabel()
    'entropy, nats'
    """
    found = _seen(result, "entropy", "max_weight")
    axes = drawing.panels(ax, 2, (8.4, 3.2))
    seeing = found["max_weight"] > 0
    names = {"entropy": "entropy, nats", "max_weight": "largest weight"}
    for one, (name, label), style in zip(axes, names.items(), STYLES, strict=False):
        _spreads(one, [x[sees] for x, sees in zip(found[name], seeing, strict=True)], style)
        one.set_ylabel(label)
        one.grid(axis="y", alpha=0.3)
        drawing.legend_above(one)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0, 1.03)
    n_keys = 0 if result.received is None else result.received.shape[-1]
    if n_keys > 1:
        most = math.log(n_keys)
        axes[0].set_ylabel(f"entropy, nats (at most {most:.2f})")
        axes[0].axhline(most, color="0.5", linewidth=0.8, linestyle="--")
        axes[0].set_ylim(0, 1.03 * most)
    return axes


def received(result: Observation, ax: "Axes | None" = None, *, keys: Names = None) -> "Axes":
    """Draw the weight that each key receives, the sum over all queries, for each head.

    Up to four heads are lines, more of them rows of colours. Where there are more keys than pixels,
    the mean of neighbours is drawn; the label says of how many. What is NaN is hatched, or a gap in
    a line, and the legend says of how many keys.

    Parameters
    ----------
    result : Observation
        What `scaledot.observe` returned, with `received`. Axes before the heads are summed.
    ax : Axes, optional
        Where to draw; by default a figure of its own.
    keys : names, optional
        S names of tokens, written on the axis as far as they fit.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    TypeError
        A result of another function; `ax` that is no Axes.
    ValueError
        `received` was not asked for; a wrong number of names; more than one Axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import observe, plots
    >>> query, key = np.random.default_rng(0).normal(size=(2, 8, 100, 64))
    >>> ax = plots.received(observe(query, key, statistics="received"))
    """
    found = _seen(result, "received")["received"]
    n_keys = found.shape[-1]
    checks.token_names("keys", keys, n_keys)
    (ax,) = drawing.panels(ax, 1, (6.0, 3.2))
    mass = found.sum(axis=tuple(range(1, found.ndim - 1)))  # (H, S)
    step = step_of(n_keys, drawing.room(ax)[1])
    cells = together(mass, step, axis=1) / together(np.ones(n_keys), step, axis=0)  # (H, cells)
    each = "" if step == 1 else f", means of {step:,} keys"
    ax.set_xlabel(f"key (sums over all queries{each})")
    if len(mass) > MOST_LINES:
        shape = len(mass), n_keys
        drawn = drawing.image(ax, cells, (1, step), shape, drawing.largest_of(cells))
        drawing.colour_bar([drawn], "weight received")
        drawing.count_ticks(ax.yaxis)
        ax.set_ylabel("head")
    else:
        _lines(ax, cells, step, np.isnan(mass).sum(axis=1))
        ax.set_ylabel("weight received")
    drawing.token_axis(ax.xaxis, keys)
    return ax


def _lines(ax: "Axes", cells: np.ndarray, step: int, n_nan: np.ndarray) -> None:
    """Draw what keys receive as a line for each head, and say of how many keys that is NaN."""
    middles = np.arange(cells.shape[1]) * step + (step - 1) / 2
    apart = 1 if len(middles) <= MOST_MARKS else len(middles) // 12
    for number, (line, style) in enumerate(zip(cells, STYLES, strict=False)):
        label = f"head {number}" + (f" (NaN at {n_nan[number]:,} keys)" if n_nan[number] else "")
        ax.plot(middles, line, label=label, markevery=apart, markersize=4, linewidth=1, **style)
    ax.set_xlim(-0.5, max(1, len(middles) * step) - 0.5)
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    if len(cells) > 1 or n_nan.any():
        drawing.legend_above(ax)


def scores(result: ScoreHistogram, ax: "Axes | None" = None) -> "Axes":
    """Draw the histogram of the products query · key, before and after the scale.

    Parameters
    ----------
    result : ScoreHistogram
        What `scaledot.histograms.score_histogram` returned.
    ax : Axes, optional
        Where to draw; by default a figure of its own.

    Returns
    -------
    Axes
        The axes, with densities on a logarithmic axis: a normal distribution is a parabola.

    Raises
    ------
    TypeError
        A result of another function; `ax` that is no Axes.
    ValueError
        More than one Axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import plots
    >>> from scaledot.histograms import score_histogram
    >>> query, key = np.random.default_rng(0).normal(size=(2, 8, 100, 64))
    >>> ax = plots.scores(score_histogram(query, key))
    >>> print(ax.get_xlabel())
    product
    all 800 rows, 80,000 products
    """
    checks.made_by(result, "scaledot.histograms.score_histogram", ScoreHistogram)
    (ax,) = drawing.panels(ax, 1, (5.2, 3.4))
    scale = result.scale
    for factor, name, style, thick in (  # the first shows beneath the second where they agree
        (1.0, "query · key", STYLES[0], 2.2),
        (scale, f"times the scale {scale:.4g}", STYLES[1], 1.1),
    ):
        edges, counts = result.edges * factor, result.counts
        if factor < 0:
            edges, counts = edges[::-1], counts[::-1]
        width = np.diff(edges)
        if result.n_products and width.all():
            density = counts / (result.n_products * width)
            label = f"{name}: spread {abs(factor) * result.std:.3g}"
            ax.stairs(density, edges, label=label, color=style["color"], linewidth=thick)
    if result.n_products:
        ax.set_yscale("log")
        drawing.legend_above(ax)
    drawing.number_ticks(ax.xaxis)
    ax.set_xlabel(f"product\n{drawing.lines_of(result.label, drawing.inches(ax)[1])}")
    ax.set_ylabel("density")
    ax.grid(alpha=0.3)
    return ax


def _seen(result: Observation, *names: str) -> dict[str, np.ndarray]:
    """Return statistics by head, (H, ...), or refuse to draw what was not asked for."""
    checks.made_by(result, "scaledot.observe", Observation)
    checks.observed({name: getattr(result, name) for name in names})
    return {name: by_head(arrays.on_host(getattr(result, name))) for name in names}


def _spreads(ax: "Axes", heads: Sequence[np.ndarray], style: Mapping[str, Any]) -> None:
    """Draw the median, the middle half and the range of some numbers of each head."""
    shares = (0, 25, 50, 75, 100)
    found = [np.percentile(x, shares) if x.size else np.full(5, np.nan) for x in heads]
    least, low, median, high, most = np.array(found).reshape(-1, 5).T
    numbers = np.arange(len(heads))
    ink = style["color"]
    ax.plot(numbers, median, style["marker"], color=ink, markersize=5, label="median")
    ax.vlines(numbers, low, high, color=ink, linewidth=5, alpha=0.4, label="half of the rows")
    ax.vlines(numbers, least, most, color=ink, linewidth=1, label="all of them")
    ax.set_xlim(-0.5, max(1, len(heads)) - 0.5)
    ax.set_xlabel("head")
    drawing.count_ticks(ax.xaxis)
