"""A page that says what was found in queries and keys: one file, without script or network."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import scaledot
from scaledot import plots
from scaledot.diagnosis import COLUMNS, Diagnosis
from scaledot.plots.drawing import head_title, new_axes, room
from scaledot.plots.files import inline_svg
from scaledot.views import Overview

CAPTIONS = {
    "scores": "How far the products query · key lie apart: they spread by {before}, and by {after} "
    "times the scale {scale}. From {sample}. On the logarithmic axis a normal distribution is a "
    "parabola.",
    "weights": "Weights of {head}, a row for each query and a column for each key. Colour: {cell}.",
    "entropy": "Entropy of the rows of each head. The dashed line is that of a row that weighs all "
    "keys alike.",
    "largest": "Largest weight of the rows of each head. At 1 a single key has all the weight, and "
    "no gradient comes through.",
    "received": "The weight that each key receives from all queries together. A peak that stands "
    "alone is an attention sink.",
}
"""The pictures, and what they show in words."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1d21; --paper: #fdfdfc; --faint: #5b616b;
  --line: #d6d8dc; --card: #f3f4f5; --accent: #0062a3 }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8e9eb; --paper: #16181c;
  --faint: #a5abb5; --line: #3a3e46; --card: #1f2228; --accent: #6db8f2 } }
* { box-sizing: border-box }
body { margin: 0; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, sans-serif }
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.6rem 0 .4rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem }
.findings { margin: 0; padding: 0; list-style: none; max-width: 46rem }
.findings li { margin: 0 0 .6rem; padding: .6rem .9rem; background: var(--card);
  border-left: .25rem solid var(--accent) }
.kind { display: block; font-weight: 600 }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .2rem 1rem;
  margin: 0 }
dt { color: var(--faint) }
dd { margin: 0; overflow-wrap: anywhere }
.table { overflow-x: auto; max-width: 100%; outline-offset: 2px; margin-bottom: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }
caption { text-align: left; color: var(--faint); padding-bottom: .4rem }
.figures { columns: 24rem 2; column-gap: 1.5rem }
figure { margin: 0 0 1.5rem; break-inside: avoid }
figure svg { display: block; width: 100%; height: auto; max-width: 34rem }
figure svg text { font-family: inherit !important }
@media screen and (prefers-color-scheme: dark) { /* a blue that is seen on dark paper */
  figure svg [style*="stroke: #0072b2"] { stroke: #56b4e9 !important }
  figure svg [style*="fill: #0072b2"] { fill: #56b4e9 !important } }
figcaption { color: var(--faint); font-size: .92rem; max-width: 34rem }
footer { color: var(--faint); font-size: .9rem; margin-top: 2rem; padding-bottom: 2rem }
@media print { body { font-size: .85rem } .table { overflow: visible }
  table { font-size: .8rem } th, td { padding: .15rem .3rem } li, tr { break-inside: avoid } }
"""


def page(facts: Sequence[tuple[str, str]], found: Diagnosis, look: Overview) -> str:
    """Return the page: findings first, then heads, pictures and facts, of which the first names it.

    `facts` are what was looked at, each with its name.
    """
    title = f"Queries and keys of {Path(facts[0][1]).name}"
    sections = (
        ("Findings", _findings(found)),
        ("Heads", _table(found)),
        ("Pictures", _figures(look)),
        ("What was looked at", _list(facts)),
    )
    body = "\n".join(
        f'<section aria-labelledby="part-{number}">\n<h2 id="part-{number}">{heading}</h2>\n'
        f"{content}\n</section>"
        for number, (heading, content) in enumerate(sections)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
</header>
<main>
{body}
</main>
<footer>Made by scaledot {escape(scaledot.__version__)}, explain.</footer>
</body>
</html>
"""


def _findings(found: Diagnosis) -> str:
    """Return what to do, or that there is nothing."""
    lines = [
        f'<li><span class="kind">{escape(one.kind)}</span> {escape(one.message)}</li>'
        for one in found.findings
    ]
    if not lines:
        return "<p>Nothing stands out.</p>"
    return '<ul class="findings">\n' + "\n".join(lines) + "\n</ul>"


def _table(found: Diagnosis) -> str:
    """Return the numbers of the heads, and what they mean."""
    heads = "".join(f'<th scope="col">{escape(column.name)}</th>' for column in COLUMNS)
    rows = "\n".join(
        f'<tr><th scope="row">{number}</th>'
        + "".join(f"<td>{escape(column.cell(head))}</td>" for column in COLUMNS)
        + "</tr>"
        for number, head in enumerate(found.heads)
    )
    remedy = ""
    if found.suggested_scale is not None:
        remedy = (
            f"<p>A scale of {found.suggested_scale:.6g} would bring the spread of the median head "
            "to 1.</p>\n"
        )
    if found.layers:
        spreads = ", ".join(f"{spread:.3g}" for spread in found.layers)
        remedy += f"<p>Spread of the scaled products by layer, from the first: {spreads}.</p>\n"
    return (
        '<div class="table" role="region" aria-label="Numbers of each head" tabindex="0">\n'
        "<table>\n"
        "<caption>Over all batches and rows</caption>\n"
        f'<thead><tr><th scope="col">head</th>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        f"</table>\n</div>\n{remedy}" + _list((column.name, column.meaning) for column in COLUMNS)
    )


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    """Return terms and what they mean."""
    items = "\n".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs)
    return f"<dl>\n{items}\n</dl>"


def _figures(look: Overview) -> str:
    """Return the pictures, each with what it shows in words."""
    scores, seen = look.scores, look.seen
    places = {
        name: new_axes(1, (5.2, 5.6) if name == "weights" else (4.6, 3.1))[0] for name in CAPTIONS
    }
    shown = look.weights.coarser(room(places["weights"]))
    plots.scores(scores, places["scores"])
    plots.weights(shown, places["weights"])
    plots.concentration(seen, (places["entropy"], places["largest"]))
    plots.received(seen, places["received"])
    facts = {
        "before": f"{scores.std:.3g}",
        "after": f"{abs(scores.scale) * scores.std:.3g}",
        "scale": f"{scores.scale:.4g}",
        "sample": scores.label,
        "head": head_title(look.head),
        "cell": shown.label,
    }
    captions = {name: text.format_map(facts) for name, text in CAPTIONS.items()}
    figures = (
        f"<figure>\n{inline_svg(places[name], name, text)}\n"
        f"<figcaption>{escape(text)}</figcaption>\n</figure>"
        for name, text in captions.items()
    )
    return '<div class="figures">\n' + "\n".join(figures) + "\n</div>"
