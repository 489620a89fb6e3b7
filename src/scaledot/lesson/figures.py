"""The figures of the lesson: numbers of the package as small charts and tables.

A figure is asked for by its name and words, as pages and hints write it: "spread 1024 none".
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from html import escape
from typing import Any

import numpy as np

from scaledot.lesson import numbers
from scaledot.lesson.numbers import Array
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
    title = say(f"scale.{_word(scale)}", language, n=numbers.N_KEYS, d_v=numbers.D_V)
    return (
        f"<figcaption>{say('figure.at', language, d=d, scale=title)}</figcaption>"
        f'<div class="panels">{charts}</div><dl>{rows}</dl>'
    )


def _word(scale: str) -> str:
    """Return the id of a scale's name."""
    return {
        "1/sqrt(d)": "sqrt",
        "none": "none",
        "1/d": "d",
        "sqrt(d)": "times",
        "1/sqrt(n)": "length",
        "1/sqrt(d_v)": "d_v",
    }[scale]


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
    tables = [_attention("figure.weights", language, *numbers.small_weights())]
    if kind == "causal":
        masked = numbers.small_weights(causal=True)
        tables.append(_attention("figure.causal", language, *masked))
    return _panels(tables)


def mistake(family: str, language: str, name: str) -> str:
    """Show what a function of `recipes` returns beside what it returns with a mistake."""
    found = numbers.compared(family, name)
    assert found is not None, f"{name} changes none of the examples of {family}"
    given = ", ".join(
        f"<code>{key} = {np.asarray(x).astype(int).tolist()}</code>"
        for key, x in found.arguments.items()
    )
    table: Callable[..., str] = _attention
    if family == "softmax":
        table = partial(_softmax, axis=found.arguments["eksen"])
    elif family == "merge":
        table = _merge
    return f"<figcaption>{given}</figcaption>" + _panels(
        [
            table("figure.right", language, *found.right),
            table("figure.mistaken", language, *found.wrong),
        ]
    )


def _attention(caption: str, language: str, output: Array, weights: Array) -> str:
    """Return weights with their sums, and the output."""
    head = [
        "",
        *(say("figure.key", language, n=n + 1) for n in range(weights.shape[1])),
        "Σ",
        say("figure.output", language),
    ]
    rows = [
        [*(_weight(x, language) for x in row), _cell(_short(row.sum(), language)),
         _cell("; ".join(_shown(x, language) for x in out))]
        for row, out in zip(weights, output, strict=True)
    ]  # fmt: skip
    names = [say("figure.query", language, n=n + 1) for n in range(len(rows))]
    return _table(say(caption, language), head, names, rows)


def _softmax(caption: str, language: str, weights: Array, *, axis: int) -> str:
    """Return weights with their sums along an axis."""
    head = ["", *map(str, range(weights.shape[1]))]
    names = list(map(str, range(len(weights))))
    rows = [[_weight(x, language) for x in row] for row in weights]
    sums = [_cell(_short(x, language)) for x in weights.sum(axis=axis)]
    if axis == 0:
        return _table(say(caption, language), head, [*names, "Σ"], [*rows, sums])
    rows = [[*row, x] for row, x in zip(rows, sums, strict=True)]
    return _table(say(caption, language), [*head, "Σ"], names, rows)


def _merge(caption: str, language: str, output: Array, log_sum: Array) -> str:
    """Return the output of the whole, and the log of its sum."""
    head = [say("figure.output", language), say("figure.log_sum", language)]
    rows = [
        [_cell("; ".join(_shown(x, language) for x in out)), _cell(_shown(total, language))]
        for out, total in zip(output, log_sum, strict=True)
    ]
    return _table(say(caption, language), head, [""] * len(rows), rows)


def _panels(parts: Iterable[str]) -> str:
    """Set parts side by side, as far as there is room."""
    return f'<div class="panels">{"".join(parts)}</div>'


def _table(
    caption: str, head: Iterable[str], names: Iterable[str], rows: Iterable[Iterable[str]]
) -> str:
    """Return a table; a row has a head of its own where it has a name."""
    first = "".join(
        f'<th scope="col">{escape(text)}</th>' if text else "<td></td>" for text in head
    )
    body = ""
    for name, cells in zip(names, rows, strict=True):
        title = f'<th scope="row">{escape(name)}</th>' if name else ""
        body += f"<tr>{title}{''.join(cells)}</tr>"
    return (
        f"<table><caption>{caption}</caption><thead><tr>{first}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _cell(text: str) -> str:
    """Return a cell."""
    return f"<td>{text}</td>"


def _weight(x: float, language: str) -> str:
    """Return a cell that is the darker the more of 1 its weight is."""
    share = float(np.clip(np.nan_to_num(x), 0, 1))
    return f'<td class="weight" style="--share:{share:.3f}">{_shown(x, language)}</td>'


def _shown(x: float, language: str) -> str:
    """Return a number of a table, of three decimals, or what became of it."""
    if math.isnan(x):
        return "NaN"
    return "∞" if math.isinf(x) else number(x, 3, language)


def _short(x: float, language: str) -> str:
    """Return a number of a table without zeros at its end."""
    return _shown(x, language).rstrip("0").rstrip(".,") if math.isfinite(x) else _shown(x, language)


FIGURES: dict[str, Callable[..., str]] = {
    "spread": spread,
    "training": training,
    "weights": weights,
} | {family: partial(mistake, family) for family in numbers.EXAMPLES}
"""Figures by the name that pages and hints give them."""
WORDS: Mapping[str, tuple[Collection[str], ...]] = {
    "spread": (tuple(map(str, numbers.SIZES)), tuple(numbers.FACTORS)),
    "training": (),
    "weights": (("causal",),),
} | {family: (tuple(numbers.visible(family)),) for family in numbers.EXAMPLES}
"""Words that each figure takes, in their order; but for the name of a mistake all may be left
out."""
NEEDED = dict.fromkeys(numbers.EXAMPLES, 1)
"""How many words a figure needs."""
