"""The numbers of each place in (..., H), from what `scaledot.observe` sees without a value.

A place is one head in one entry of the axes before the heads: a layer, a sequence of a batch. What
is wrong with a head there would be lost in a mean over all of them.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scaledot import api, arrays
from scaledot.heads import HALF_LIMIT, Head, Thresholds
from scaledot.results import Observation

__all__ = ["STATISTICS", "Places", "Seen", "seen_by_place"]

STATISTICS = (
    "max_score", "argmax", "max_weight", "effective_keys", "jacobian_norm", "score_std",
    "peak_product", "received",
)  # fmt: skip
"""What the numbers are made of."""
LENGTHS = ("query_offset", "key_lengths", "query_lengths")
RESTRICTIONS = (*LENGTHS, "causal", "window", "threads")
"""Keywords that say, beside masks, which keys a row sees; and on how many threads."""


class Places(NamedTuple):
    """Counts and sums over the rows of each place, each (..., H); what keys have is (..., H, S)."""

    rows: np.ndarray
    unsound: np.ndarray
    choosing: np.ndarray
    """Rows that see two keys or more, and so have a choice."""
    scatter: np.ndarray
    """Σ n·σ² over them, of scaled products."""
    degrees: np.ndarray
    """Σ (n - 1)."""
    saturated: np.ndarray
    flat: np.ndarray
    gradient: np.ndarray
    largest: np.ndarray
    """The largest, not a sum."""
    overflows: np.ndarray
    one_key: np.ndarray
    """Rows whose largest weight is on the key that most rows of the place choose."""
    tempted: np.ndarray
    """Rows with a choice from the first of those on: causal rows before it do not see the key."""
    collapsed: np.ndarray
    """Those of them that give that key all their weight."""
    share: np.ndarray
    """Mean weight of each key."""
    is_sink: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """The spread of each place; 0 without a choice."""
        found: np.ndarray = np.sqrt(self.scatter / np.maximum(1, self.degrees))
        return found

    def head(self, number: int, scale: float, cap: float) -> Head:
        """Return the numbers of one head, over all places that it has."""
        its = Places(*(x[..., number] for x in self[:-2]),
                     *(x[..., number, :] for x in self[-2:]))  # fmt: skip
        rows, choosing = int(its.rows.sum()), int(its.choosing.sum())
        spread = math.sqrt(its.scatter.sum() / max(1, its.degrees.sum()))
        largest = float(its.largest.max(initial=0.0))
        is_sink = its.is_sink.any(axis=tuple(range(its.is_sink.ndim - 1)))
        return Head(
            spread=spread,
            spread_before=spread / abs(scale) if scale else 0.0,
            saturated=float(its.saturated.sum() / max(1, choosing)),
            flat=float(its.flat.sum() / max(1, choosing)),
            gradient=float(its.gradient.sum() / max(1, rows)),
            largest_score=largest,
            overflows=int(its.overflows.sum()),
            one_key=float(its.one_key.sum() / max(1, rows)),
            sinks=tuple(np.flatnonzero(is_sink).tolist()),
            sink_weight=float(its.share.max(initial=0.0)),
            rows=rows,
            unsound=int(its.unsound.sum()),
            clip=min(1.0, cap / largest) if largest else 1.0,
        )


class Seen(NamedTuple):
    """What was observed, on the host; an axis of heads is there even where the arrays have none."""

    rows: dict[str, np.ndarray]
    """`STATISTICS` of rows and how many keys they see, `n_keys`, each (..., H, T)."""
    keys: dict[str, np.ndarray]
    """What keys receive, and would where rows weighed all keys `alike`, each (..., H, S)."""

    def together(self, n_apart: int) -> "Seen":
        """Return the same with the entries taken together, but for those of the first axes."""

        def join(x: np.ndarray) -> np.ndarray:
            apart, entries = x.shape[:n_apart], x.shape[n_apart:-2]
            ahead = np.moveaxis(x, -2, n_apart)  # (*apart, H, *entries, T)
            n_rows = math.prod(entries) * x.shape[-1]
            return ahead.reshape(*apart, *(1 for _ in entries), x.shape[-2], n_rows)

        axes = tuple(range(n_apart, self.keys["received"].ndim - 2))
        return Seen(
            {name: join(x) for name, x in self.rows.items()},
            {name: x.sum(axis=axes, keepdims=True) for name, x in self.keys.items()},
        )

    def places(self, scale: float, limits: Thresholds) -> Places:
        """Return the numbers of each place."""
        rows = self.rows
        unsound = np.isnan(rows["max_score"])
        seeing = ~unsound & (rows["max_score"] > -np.inf)
        weight, std, peak = rows["max_weight"], rows["score_std"], rows["peak_product"]
        n_keys = np.where(seeing, rows["n_keys"], 0)
        choosing = n_keys >= 2
        measured = choosing & np.isfinite(std)
        # Alike are products that hardly differ, and weights too: a bias may set them apart.
        even = (weight * rows["effective_keys"] < 1.5) & (weight <= 0.5 + limits.flat)
        n_rows = seeing.sum(-1)
        received, alike = self.keys["received"], self.keys["alike"]
        saturated = choosing & (weight >= limits.saturated)
        chose = _choose_the_most_chosen(rows["argmax"], seeing, received.shape[-1])
        tempted = choosing & np.logical_or.accumulate(chose, axis=-1)
        share = np.nan_to_num(received) / np.maximum(1, n_rows)[..., None]
        is_crowded = (n_keys >= limits.least).sum(-1) >= limits.least
        return Places(
            rows=n_rows,
            unsound=unsound.sum(-1),
            choosing=choosing.sum(-1),
            scatter=np.sum(n_keys * std**2, axis=-1, where=measured, initial=0.0),
            degrees=np.sum(n_keys - 1, axis=-1, where=measured, initial=0),
            saturated=saturated.sum(-1),
            flat=(choosing & (std < limits.flat) & even).sum(-1),
            gradient=np.sum(rows["jacobian_norm"], axis=-1, where=seeing, initial=0.0),
            largest=np.max(peak, axis=-1, where=seeing, initial=0.0),
            overflows=(seeing & (peak > abs(scale) * HALF_LIMIT)).sum(-1) * (scale != 0),
            one_key=chose.sum(-1),
            tempted=tempted.sum(-1),
            collapsed=(tempted & chose & saturated).sum(-1),
            share=share,
            is_sink=is_crowded[..., None]
            & (share >= limits.sink)
            & (np.nan_to_num(received) >= limits.excess * alike),
        )


def _choose_the_most_chosen(key: np.ndarray, seeing: np.ndarray, n_keys: int) -> np.ndarray:
    """Return which rows choose the key that most rows of their place do."""
    if not key.size or not n_keys:
        return np.zeros(key.shape, bool)
    number = np.arange(math.prod(key.shape[:-1])).reshape(*key.shape[:-1], 1)
    counts = np.bincount((number * n_keys + key)[seeing], minlength=number.size * n_keys)
    most = counts.reshape(*key.shape[:-1], n_keys).argmax(-1)
    found: np.ndarray = seeing & (key == most[..., None])
    return found


def seen_by_place(seen: Observation, n_queries: int, how: Mapping[str, Any]) -> Seen:
    """Return what was observed with `STATISTICS` and some keywords, and what belongs beside it."""
    found = {name: arrays.on_host(getattr(seen, name)) for name in STATISTICS}
    n_keys, alike = _without_scores(how, found["received"].shape, n_queries)
    found = {name: _wide(x) for name, x in found.items()}
    keys = {"received": found.pop("received"), "alike": alike}
    return Seen(found | {"n_keys": n_keys}, keys)


def _wide(x: np.ndarray) -> np.ndarray:
    """Return float64 for floats, which squares do not leave, and an axis of heads."""
    x = x if x.dtype.kind == "i" else x.astype(np.float64)
    return x if x.ndim > 1 else x[None]


def _without_scores(
    how: Mapping[str, Any], shape: tuple[int, ...], n_queries: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many keys rows see, (..., H, T), and what keys receive if all weigh alike.

    Queries and keys of size 0 have scores of 0, so that a row weighs all that it sees alike, or as
    the bias alone says. They have the axes that restrictions have, and no more.
    """
    given = {name: how[name] for name in RESTRICTIONS if how.get(name) is not None}
    mask, bias = (
        None if how.get(name) is None else arrays.on_host(how[name]) for name in ("mask", "bias")
    )
    lengths = (np.shape(given.get(name, 0)) for name in LENGTHS)
    front = np.broadcast_shapes(
        (1,) * (len(shape) - 1),
        *(x.shape[:-2] for x in (mask, bias) if x is not None),
        *((*sizes, 1) for sizes in lengths if sizes),
    )
    query = np.zeros((*front, n_queries, 0), np.float32)
    key = np.zeros((*(1 for _ in front), shape[-1], 0), np.float32)

    def seen(**more: Any) -> tuple[np.ndarray, np.ndarray]:
        found = api.observe(query, key, statistics=("max_weight", "received"), **given, **more)
        return arrays.on_host(found.max_weight), _wide(arrays.on_host(found.received))

    if bias is None:
        weight, alike = seen(mask=mask)
    else:  # -inf masks
        weight, _ = seen(mask=(bias != -np.inf) & (True if mask is None else mask))
        _, alike = seen(mask=mask, bias=bias)
    n_keys = np.zeros(weight.shape)
    np.divide(1, weight, out=n_keys, where=weight > 0)
    full = shape[:-1] or (1,)
    return (
        np.broadcast_to(n_keys.round().astype(np.int64), (*full, n_queries)),
        np.broadcast_to(alike, (*full, shape[-1])),
    )
