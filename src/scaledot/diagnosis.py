"""What the scores of arrays look like, head by head, and what to do about it.

All numbers come from `scaledot.observe` without a value: no score matrix, no second product.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from scaledot import api, arrays, checks
from scaledot.results import Array, Observation

__all__ = ["Diagnosis", "Finding", "Head", "Thresholds", "diagnose"]

HALF_LIMIT = 65504.0
"""The largest finite float16 (IEEE 754)."""
STATISTICS = (
    "max_score", "argmax", "max_weight", "effective_keys", "jacobian_norm", "score_std",
    "peak_product", "received",
)  # fmt: skip


class Thresholds(NamedTuple):
    """From where on something is worth a word; each can be set in `diagnose`."""

    saturated: float = 0.99
    """Largest weight of a row whose gradient is as good as dead: ‖Jacobian‖ ≤ 0.0198."""
    flat: float = 0.05
    """Spread of the scores of a row below which its weights differ by no more than some percent."""
    most: float = 0.9
    """Share of rows that makes a property one of the head."""
    low_spread: float = 1 / 3
    high_spread: float = 3.0
    """Where the spread of scores leaves the neighbourhood of 1 that 1/√d gives random vectors
    (Vaswani et al. 2017, section 3.2.1, footnote 4)."""
    sink: float = 0.3
    """Mean weight of a key over the queries that makes it a sink (Gu et al. 2024, "When Attention
    Sink Emerges in Language Models", section 3.2)."""
    cap: float = 100.0
    """Largest score that QK-Clip allows (Kimi Team 2025, "Kimi K2", section 2.1)."""
    growth: float = 1.2
    """Factor from layer to layer by which growing scores become worth a word."""
    least: int = 16
    """Rows, and for sinks keys, that it takes to say something of a head."""


class Head(NamedTuple):
    """The numbers of one head, over all batches and rows that see a key."""

    spread: float
    """Standard deviation of the scores of a row, after the scale; root of its mean square."""
    spread_before: float
    """The same of the products, before the scale."""
    saturated: float
    """Share of saturated rows."""
    flat: float
    """Share of rows that weigh all keys alike: scores and weights hardly differ."""
    gradient: float
    """Mean norm of the softmax Jacobian."""
    largest_score: float
    """Largest absolute scaled product."""
    overflows: int
    """Rows with a product that float16 could not hold, before the scale."""
    one_key: float
    """Share of rows whose largest weight is on the most frequent key."""
    sinks: tuple[int, ...]
    """Keys that receive far more than their share."""
    sink_weight: float
    """The largest mean weight of a key over the queries."""
    rows: int
    """Rows that see a key, and neither NaN nor infinity."""
    unsound: int
    """Rows that see a NaN or an infinite score; they are left out of all other numbers."""
    clip: float
    """QK-Clip's factor γ = min(1, cap / largest score) for the scores of this head."""


class Finding(NamedTuple):
    """Something worth a word."""

    kind: str
    """One of: no-scale, wrong-size, spread, collapsed, uniform, growing, overflow, sink, clip,
    not-finite."""
    heads: tuple[int, ...]
    """The heads it is about; all of them where empty."""
    message: str
    """What it is, and what to do."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`: ``print`` shows a table of the heads, and the findings."""

    scale: float
    """The scale that was used."""
    suggested_scale: float | None
    """The scale that would bring the spread of the median head to 1; None where scores hardly
    differ, so that none would."""
    heads: tuple[Head, ...]
    layers: tuple[float, ...]
    """The spread of each layer, where the first axis counts layers."""
    findings: tuple[Finding, ...]

    @property
    def striking(self) -> int | None:
        """The first head that a finding names; None where none does."""
        return next((finding.heads[0] for finding in self.findings if finding.heads), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, as JSON takes it."""
        return {
            "scale": self.scale,
            "suggested_scale": self.suggested_scale,
            "heads": [head._asdict() for head in self.heads],
            "layers": list(self.layers),
            "findings": [finding._asdict() for finding in self.findings],
        }

    def __str__(self) -> str:
        """Return the table and the findings."""
        lines = [f"{'head':>4} {'spread':>8} {'unscaled':>9} {'one-hot':>8} {'flat':>5} "
                 f"{'gradient':>9} {'largest':>9} {'sinks':>6}"]  # fmt: skip
        for number, head in enumerate(self.heads):
            lines.append(
                f"{number:>4} {head.spread:>8.3g} {head.spread_before:>9.3g} "
                f"{head.saturated:>8.0%} {head.flat:>5.0%} {head.gradient:>9.3g} "
                f"{head.largest_score:>9.3g} {len(head.sinks):>6}"
            )
        lines.append(f"scale {self.scale:.6g}")
        if self.suggested_scale is not None:
            lines[-1] += f"; {self.suggested_scale:.6g} would bring the spread to 1"
        if self.layers:
            lines.append("spread by layer: " + " ".join(f"{x:.3g}" for x in self.layers))
        for finding in self.findings or [Finding("", (), "nothing stands out")]:
            lines.append(fill(finding.message, 80, initial_indent="- ", subsequent_indent="  "))
        return "\n".join(lines)


def diagnose(
    query: Array,
    key: Array,
    *,
    layers: bool = False,
    thresholds: Thresholds | None = None,
    **how: Any,
) -> Diagnosis:
    """Say what the scores of queries and keys look like, head by head, and what to do.

    Parameters
    ----------
    query, key : array
        As for `scaledot.attention`.
    **how
        The keywords of `scaledot.attention` from `mask` on; `scale` is the one that your own code
        uses, 1/√D by default.
    layers : bool
        The first axis counts the layers of a model; scores that grow from layer to layer are found.
    thresholds : Thresholds
        From where on something is worth a word.

    Returns
    -------
    Diagnosis
        Numbers of each head, and findings in words, none for healthy arrays.

    Raises
    ------
    TypeError, ValueError
        As `scaledot.attention`; `layers` with fewer than four axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot.scaling import diagnose
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.normal(size=(2, 4, 100, 64))
    >>> print(diagnose(query, key, scale=1.0).findings[0].kind)
    no-scale
    """
    shape, of_key = (tuple(getattr(x, "shape", None) or np.shape(x)) for x in (query, key))
    if layers:
        checks.layers(shape, of_key)
    seen = api.observe(query, key, statistics=STATISTICS, **how)
    return judge(seen, shape, layers=layers, thresholds=thresholds, **how)


def judge(
    seen: Observation,
    shape: tuple[int, ...],
    *,
    layers: bool = False,
    thresholds: Thresholds | None = None,
    **how: Any,
) -> Diagnosis:
    """Return what `diagnose` does from what was observed, `STATISTICS` of queries of a shape."""
    limits = Thresholds() if thresholds is None else thresholds
    found = {name: arrays.on_host(getattr(seen, name)) for name in STATISTICS}
    scale = checks.scale(how.get("scale"), shape[-1])
    received = by_head(found.pop("received"))  # (H, ..., S)
    rows = {name: by_head(x) for name, x in found.items()}  # (H, ..., T)
    heads = tuple(
        _head({name: x[h].reshape(-1) for name, x in rows.items()}, received[h], scale, limits)
        for h in range(len(received))
    )
    spread = float(np.median([head.spread for head in heads])) if heads else 0.0
    by_layer = tuple(_root_mean_square(x) for x in found["score_std"]) if layers else ()
    findings = (
        *_of_scale(spread, scale, shape, limits, is_biased=how.get("bias") is not None),
        *_of_heads(heads, limits, spread),
        *_of_layers(by_layer, limits),
    )
    suggested = scale / spread if scale and spread >= limits.flat * abs(scale) else None
    return Diagnosis(scale, suggested, heads, by_layer, findings)


def by_head(x: np.ndarray) -> np.ndarray:
    """Return (..., H, T) as (H, ..., T)."""
    return np.moveaxis(x, -2, 0) if x.ndim > 1 else x[None]


def _root_mean_square(x: np.ndarray) -> float:
    """Return the root of the mean square of all that is a number; 0 without any."""
    x = x[np.isfinite(x)].astype(np.float64)
    return float(np.sqrt(np.mean(x**2))) if x.size else 0.0


def _head(
    rows: Mapping[str, np.ndarray], received: np.ndarray, scale: float, limits: Thresholds
) -> Head:
    """Return the numbers of one head, of its rows (rows,) and of what its keys receive (..., S)."""
    unsound = np.isnan(rows["max_score"])
    seeing = ~unsound & (rows["max_score"] > -np.inf)
    seen = {name: x[seeing] for name, x in rows.items()}
    n_rows, spread, weight = int(seeing.sum()), seen["score_std"], seen["max_weight"]
    largest = float(seen["peak_product"].max(initial=0.0))
    counts = np.bincount(seen["argmax"]) if n_rows else np.zeros(1, np.int64)
    # A row with a single key has nothing to choose: its weight is 1, and its scores do not spread.
    choice = (weight < 1) | (spread > 0)
    # Alike are scores that hardly differ, and weights too: a bias may set them apart.
    even = (weight * seen["effective_keys"] < 1.5) & (weight <= 0.5 + limits.flat)
    n_keys = received.shape[-1]
    share = np.nan_to_num(received).sum(axis=tuple(range(received.ndim - 1))) / max(1, n_rows)
    is_much = share >= limits.sink if min(n_rows, n_keys) >= limits.least else share < 0

    def part(condition: np.ndarray) -> float:
        return float(condition[choice].mean()) if choice.any() else 0.0

    return Head(
        spread=_root_mean_square(spread),
        spread_before=_root_mean_square(spread) / abs(scale) if scale else 0.0,
        saturated=part(weight >= limits.saturated),
        flat=part((spread < limits.flat) & even),
        gradient=float(seen["jacobian_norm"].mean()) if n_rows else 0.0,
        largest_score=largest,
        overflows=int((seen["peak_product"] > abs(scale) * HALF_LIMIT).sum()) if scale else 0,
        one_key=float(counts.max() / max(1, n_rows)),
        sinks=tuple(np.flatnonzero(is_much).tolist()),
        sink_weight=float(share.max(initial=0.0)),
        rows=n_rows,
        unsound=int(unsound.sum()),
        clip=min(1.0, limits.cap / largest) if largest else 1.0,
    )


def _of_scale(
    spread: float, scale: float, shape: tuple[int, ...], limits: Thresholds, *, is_biased: bool
) -> list[Finding]:
    """Return what there is to say of the scale as a whole."""
    if not spread or not scale or limits.low_spread <= spread <= limits.high_spread:
        return []
    size, n_heads = shape[-1], shape[-3] if len(shape) > 2 else 1
    right = math.copysign(1 / math.sqrt(size), scale)
    healed = spread * right / scale
    is_healed = limits.low_spread <= healed <= limits.high_spread
    remedy = f"use 1/sqrt({size}) = {right:.4g}"
    if is_healed and spread > limits.high_spread:
        return [
            Finding(
                "no-scale",
                (),
                f"scores spread by {spread:.3g}, with 1/sqrt({size}) they would by {healed:.3g}: "
                f"the scale {scale:.4g} looks forgotten or too large; {remedy}",
            )
        ]
    if is_healed:
        width = size * n_heads
        is_width = n_heads > 1 and abs(abs(scale) * math.sqrt(width) - 1) < 0.05
        origin = f"is 1/sqrt({width}), that of the model's width" if is_width else "is too small"
        return [
            Finding(
                "wrong-size" if is_width else "spread",
                (),
                f"scores spread by {spread:.3g} only: the scale {scale:.4g} {origin}; {remedy}",
            )
        ]
    if spread < limits.low_spread and (is_biased or spread < limits.flat):
        return []  # a bias may do the work; heads whose scores hardly differ are named themselves
    word = "far" if spread > limits.high_spread else "little"
    return [
        Finding(
            "spread",
            (),
            f"scores spread {word} ({spread:.3g}, about 1 is healthy); a scale of "
            f"{scale / spread:.4g} would bring them to 1, or normalise queries and keys",
        )
    ]


def _of_heads(heads: tuple[Head, ...], limits: Thresholds, typical: float) -> list[Finding]:
    """Return what there is to say of single heads; the typical spread is that of the median."""
    found = []
    numbered = [(n, head) for n, head in enumerate(heads) if head.rows >= limits.least]

    def add(kind: str, chosen: list[int], message: str) -> None:
        if chosen:
            found.append(Finding(kind, tuple(chosen), f"{_named(chosen)}: {message}"))

    unsound = [n for n, head in enumerate(heads) if head.unsound]
    add("not-finite", unsound, f"rows that see a NaN or an infinite score, "
        f"{sum(heads[n].unsound for n in unsound)} of them, are left out of all other numbers; "
        "look for what made it")  # fmt: skip
    collapsed = [n for n, h in numbered if h.saturated >= limits.most and h.one_key >= limits.most]
    add("collapsed", collapsed, "nearly every query gives all its weight to the same key; shrink "
        "the queries and keys of the head, or start it anew")  # fmt: skip
    uniform = [n for n, h in numbered if h.flat >= limits.most]
    add("uniform", uniform, "all keys are weighed alike, because the scores hardly differ; queries "
        "or keys may have shrunk to nothing")  # fmt: skip
    if limits.low_spread <= typical <= limits.high_spread:  # else the scale as a whole is named
        far = [n for n, h in numbered if h.spread > limits.high_spread and n not in collapsed]
        add("spread", far, f"scores spread far, up to {_most(heads, far, 'spread'):.3g} where the "
            f"other heads have about {typical:.3g}; normalise queries and keys")  # fmt: skip
    overflow = [n for n, h in numbered if h.overflows]
    add("overflow", overflow, f"products would overflow float16 (beyond {HALF_LIMIT:g}) before the "
        "scale; scale the queries first, or multiply in float32 or bfloat16")  # fmt: skip
    sinks = [n for n, h in numbered if h.sinks and n not in collapsed]
    keys = sorted({key for n in sinks for key in heads[n].sinks})[:5]
    add("sink", sinks, f"attention sinks, keys that take {limits.sink:.0%} of the weight or more "
        f"(keys {', '.join(map(str, keys))}); keep them when a cache is cut, or give the head a "
        "learned sink")  # fmt: skip
    clip = [n for n, h in numbered if h.clip < 1]
    peak = _most(heads, clip, "largest_score")
    add("clip", clip, f"scores up to {peak:.3g}, beyond {limits.cap:g}; QK-Clip would multiply "
        f"query and key projections by sqrt({limits.cap:g} / the largest score of the head), down "
        f"to {math.sqrt(min(1.0, limits.cap / peak)) if peak else 1.0:.3g}")  # fmt: skip
    return found


def _most(heads: tuple[Head, ...], chosen: list[int], field: str) -> float:
    """Return the largest number of some heads; 0 without any."""
    return max((float(getattr(heads[n], field)) for n in chosen), default=0.0)


def _named(numbers: list[int]) -> str:
    """Return heads in words."""
    head = "head" if len(numbers) == 1 else "heads"
    return f"{head} {', '.join(map(str, numbers[:8]))}{' and more' if len(numbers) > 8 else ''}"


def _of_layers(spreads: tuple[float, ...], limits: Thresholds) -> list[Finding]:
    """Return whether scores grow from layer to layer."""
    if len(spreads) < 2 or not all(spreads):
        return []
    rises = [after > before for before, after in pairwise(spreads)]
    factor = (spreads[-1] / spreads[0]) ** (1 / (len(spreads) - 1))
    if not all(rises) or factor < limits.growth:
        return []
    return [
        Finding(
            "growing",
            (),
            f"scores grow from layer to layer, by {factor:.3g} each (spread {spreads[0]:.3g} to "
            f"{spreads[-1]:.3g}): normalise queries and keys before they are multiplied",
        )
    ]
