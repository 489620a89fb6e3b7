"""The figures of the lesson: numbers of the package as small charts and tables.

A figure is asked for by its name and words, as pages and hints write it: "spread 1024 none".
"""

import math
from collections.abc import Callable, Collection, Iterable
from html import escape
from typing import Any

import numpy as np

from scaledot.lesson import numbers
from scaledot.lesson.svg import BLUE, ORANGE, Chart, smooth
from scaledot.lesson.texts import number, say

HALF = 0.5
"""Height of the chart of the gradient: the largest norm of a softmax's Jacobian, of two equal
weights."""


def draw(wanted: str, language: str) -> str:
    """Return a figure as HTML."""
    name, *words = wanted.split()
    return f'<figure class="{name}">{FIGURES[name](language, *words)}</figure>'


def spread(language: str, size: str = "1024", scale: str = "none") -> str:
    """Draw scores, one row of weights, and what is left of the gradient, at a size and a scale."""
    d = int(size)
    found = numbers.spread(d, scale)
    facts = {
        "d": d,
        "measured": number(found.measured, 2, language),
        "predicted": number(found.predicted, 2, language),
        "entropy": number(found.entropy, 2, language),
        "most": number(math.log(numbers.N_KEYS), 2, language),
        "weight": number(float(found.weights.max()), 2, language),
        "gradient": number(found.gradient, 4, language),
    }
    charts = _histogram(found, language, facts) + _weights(found, language, facts)
    rows = "".join(
        f"<div><dt>{say(f'figure.{name}', language)}</dt><dd>{value}</dd></div>"
        for name, value in (
            ("spread_both", f"{facts['measured']} / {facts['predicted']}"),
            ("entropy_of", f"{facts['entropy']} / {facts['most']}"),
            ("largest", facts["weight"]),
            ("gradient", _meter(found.gradient) + f" {facts['gradient']}"),
        )
    )
    title = say(f"scale.{_word(scale)}", language)
    return (
        f"<figcaption>{say('figure.at', language, d=d, scale=title)}</figcaption>"
        f'<div class="panels">{charts}</div><dl>{rows}</dl>'
    )


def _word(scale: str) -> str:
    """Return the id of a scale's name."""
    return {"1/sqrt(d)": "sqrt", "none": "none", "1/d": "d", "sqrt(d)": "times"}[scale]


def _histogram(found: numbers.Spread, language: str, facts: dict[str, Any]) -> str:
    """Draw the scores, with the bell that theory predicts."""
    reach = _round_up(4 * max(found.measured, found.predicted))
    edges = np.linspace(-reach, reach, 41)
    share = np.histogram(found.scores, edges)[0] / len(found.scores)
    x = np.linspace(-reach, reach, 81)
    bell = np.exp(-((x / found.predicted) ** 2) / 2) / (found.predicted * math.sqrt(2 * math.pi))
    bell *= edges[1] - edges[0]
    top = 1.1 * max(share.max(), bell.max())
    chart = Chart(say("figure.scores", language), x=(-reach, reach), y=(0, top),
                  below=say("figure.score", language))  # fmt: skip
    chart.bars(edges.tolist(), share.tolist(), BLUE)
    chart.line(x.tolist(), bell.tolist(), ORANGE)
    chart.ticks(_numbers((-reach, 0, reach), 0 if reach >= 10 else 1, language), {})
    return chart.svg(say("figure.scores_say", language, **facts))


def _weights(found: numbers.Spread, language: str, facts: dict[str, Any]) -> str:
    """Draw one row of weights."""
    chart = Chart(say("figure.row", language), x=(0.5, numbers.N_KEYS + 0.5), y=(0, 1),
                  below=say("figure.keys", language))  # fmt: skip
    edges = (np.arange(numbers.N_KEYS + 1) + 0.5).tolist()
    keys = _numbers((1, numbers.N_KEYS // 2, numbers.N_KEYS), 0, language)
    chart.ticks(keys, _numbers((0, 0.5, 1), 1, language))
    chart.bars(edges, found.weights.tolist(), BLUE)
    return chart.svg(say("figure.row_say", language, **facts))


def _meter(gradient: float) -> str:
    """Return a bar for the gradient, as a share of the most there can be."""
    share = min(gradient / HALF, 1)
    return f'<span class="meter" aria-hidden="true"><span style="width:{share:.1%}"></span></span>'


def _round_up(x: float) -> float:
    """Return a number of one or two digits that is not much larger."""
    power: float = 10.0 ** math.floor(math.log10(x))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= x)


def _numbers(values: Iterable[float], digits: int, language: str) -> dict[float, str]:
    """Return the texts of numbers on an axis."""
    minus = "\N{MINUS SIGN}"
    return {value: number(value, digits, language).replace("-", minus) for value in values}


def training(language: str) -> str:
    """Draw the losses of the training with and without the scale."""
    found = numbers.training()
    steps = np.arange(1, len(found.scaled.loss) + 1)
    with_scale, without = smooth(found.scaled.loss), smooth(found.unscaled.loss)
    top = math.ceil(2 * max(with_scale.max(), without.max())) / 2
    chart = Chart(say("figure.loss", language), x=(1, len(steps)), y=(0, top),
                  below=say("figure.step", language))  # fmt: skip
    chart.ticks(
        _numbers((1, len(steps) // 2, len(steps)), 0, language),
        _numbers(range(int(top) + 1), 0, language),
    )
    chart.line(steps.tolist(), without.tolist(), ORANGE, dash="6 3")
    chart.line(steps.tolist(), with_scale.tolist(), BLUE)
    facts = {
        "d": found.d,
        "scaled": number(float(found.scaled.loss[-20:].mean()), 2, language),
        "unscaled": number(float(found.unscaled.loss[-20:].mean()), 2, language),
    }
    key = "".join(
        f'<span class="{name}">{say(f"figure.{name}", language)}</span>'
        for name in ("with_scale", "without_scale")
    )
    return (
        f"<figcaption>{say('figure.training', language, **facts)}</figcaption>"
        f'<div class="panels">{chart.svg(say("figure.training_say", language, **facts))}</div>'
        f'<p class="key">{key}</p>'
    )


def weights(language: str, kind: str = "") -> str:
    """Show queries, weights and output of the small arrays; with "causal", both ways."""
    tables = [_table(language, causal=False)]
    if kind == "causal":
        tables.append(_table(language, causal=True))
    return f'<div class="panels">{"".join(tables)}</div>'


def _table(language: str, *, causal: bool) -> str:
    """Return the weights of the small arrays with their sums, and the output."""
    output, found = numbers.small_weights(causal=causal)
    head = "".join(
        f'<th scope="col">{escape(text)}</th>'
        for text in ("", *(say("figure.key", language, n=n + 1) for n in range(len(found))),
                     "Σ", say("figure.output", language))
    )  # fmt: skip
    rows = "".join(
        f'<tr><th scope="row">{say("figure.query", language, n=place + 1)}</th>'
        + "".join(
            f'<td class="weight" style="--share:{x:.3f}">{number(x, 3, language)}</td>' for x in row
        )
        + f"<td>{number(row.sum(), 0, language)}</td>"
        + f"<td>{'; '.join(number(x, 3, language) for x in out)}</td></tr>"
        for place, (row, out) in enumerate(zip(found, output, strict=True))
    )
    name = "figure.causal" if causal else "figure.weights"
    return (
        f"<table><caption>{say(name, language)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


FIGURES: dict[str, Callable[..., str]] = {
    "spread": spread,
    "training": training,
    "weights": weights,
}
"""Figures by the name that pages and hints give them."""
WORDS: dict[str, tuple[Collection[str], ...]] = {
    "spread": (tuple(map(str, numbers.SIZES)), tuple(numbers.FACTORS)),
    "training": (),
    "weights": (("causal",),),
}
"""Words that each figure takes, in their order; all may be left out."""
