"""What is worth a word in the numbers of heads, and the words."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaledot.heads import HALF_LIMIT, Thresholds
from scaledot.places import Places

__all__ = ["Case", "Finding", "find", "layer_spreads", "typical_spread"]

Place = tuple[int, ...]


class Finding(NamedTuple):
    """Something worth a word."""

    kind: str
    """One of: no-scale, wrong-size, spread, collapsed, uniform, growing, overflow, sink, clip,
    not-finite, no-key."""
    heads: tuple[int, ...]
    """The heads it is about; all of them where empty."""
    message: str
    """What it is, and what to do."""
    places: tuple[Place, ...] = ()
    """Where these heads are so: places in (..., H), the first of those that were judged together;
    all of them where empty."""


class Case(NamedTuple):
    """What is judged."""

    places: Places
    limits: Thresholds
    scale: float
    n_queries: int
    size: int
    """D, the size of a head."""
    layers: bool
    """The first axis counts layers."""
    biased: bool
    softcap: float | None

    @property
    def sized(self) -> np.ndarray:
        """Which places have rows enough to be judged."""
        return np.asarray(self.places.choosing >= max(1, self.limits.least))


def find(case: Case) -> tuple[Finding, ...]:
    """Return what is worth a word."""
    rows, unsound = case.places.rows, case.places.unsound
    if case.n_queries and rows.size and not rows.any():
        if unsound.any():
            return (Finding("not-finite", (), "every row that sees a key sees a NaN or an infinite "
                            "score; look for what made it in queries, keys and bias"),)  # fmt: skip
        return (Finding("no-key", (), "no row sees a key: everything is masked; in `mask` True "
                        "means may attend, and lengths count what is real"),)  # fmt: skip
    of_scale, of_layers = _of_scale(case), _of_layers(case)
    return (*of_scale, *_of_places(case, explained=bool(of_scale + of_layers)), *of_layers)


def typical_spread(case: Case) -> float | None:
    """Return the spread of the median place; None where there are too few rows to tell."""
    choosing = case.places.choosing
    if choosing.sum() < case.limits.least or not choosing.any():
        return None
    judged = case.sized if case.sized.any() else choosing > 0
    return float(np.median(case.places.spread[judged]))


def layer_spreads(case: Case) -> tuple[float, ...]:
    """Return the spread of the median place of each layer; 0 where there are too few rows."""
    if not case.layers:
        return ()
    return tuple(
        float(np.median(spread[sized])) if sized.any() else 0.0
        for spread, sized in zip(case.places.spread, case.sized, strict=True)
    )


# ------------------------------------------------------------------------------------ the scale


def _of_scale(case: Case) -> list[Finding]:
    """Return what there is to say of the scale as a whole."""
    spread, scale, limits = typical_spread(case), case.scale, case.limits
    right = math.copysign(1 / math.sqrt(max(1, case.size)), scale)
    remedy = f"use 1/sqrt({case.size}) = {right:.4g}"
    if not scale:
        return [Finding("uniform", (), "the scale is 0, so all scaled products are, and nothing of "
                        f"queries and keys is left; {remedy}")]  # fmt: skip
    if not spread:
        return []
    healed = spread * right / scale
    heals = limits.low_spread <= healed <= limits.high_spread
    if heals and abs(math.log(healed)) < abs(math.log(spread)):
        found = _of_known_scale(case, spread, healed, remedy)
        if found:
            return found
    if limits.low_spread <= spread <= limits.high_spread:
        return []
    if spread < limits.low_spread and (case.biased or spread < limits.flat):
        return []  # a bias may do the work; heads whose scores hardly differ are named themselves
    word = "far" if spread > limits.high_spread else "little"
    return [Finding("spread", (), f"scaled products spread {word} ({spread:.3g}, about 1 is "
                    f"healthy); a scale of {scale / spread:.4g} would bring them to 1, or "
                    "normalise queries and keys")]  # fmt: skip


def _of_known_scale(case: Case, spread: float, healed: float, remedy: str) -> list[Finding]:
    """Return which slip the scale is, where 1/√D would bring the spread nearer to 1."""
    scale, width = case.scale, case.size * case.places.rows.shape[-1]
    # Within 1 %, as one types a scale with two or three digits.
    if width > case.size and abs(abs(scale) * math.sqrt(width) - 1) < 0.01:
        kind, origin = "wrong-size", f"is 1/sqrt({width}), that of the model's width"
    elif spread < case.limits.low_spread:
        kind, origin = "spread", "is too small"
    elif abs(scale) == 1 or spread > case.limits.high_spread:
        kind, origin = "no-scale", "looks forgotten or too large"
    else:
        return []
    return [Finding(kind, (), f"scaled products spread by {spread:.3g}, with 1/sqrt({case.size}) "
                    f"they would by {healed:.3g}: the scale {scale:.4g} {origin}; "
                    f"{remedy}")]  # fmt: skip


# ----------------------------------------------------------------------------------- the places


def _of_places(case: Case, *, explained: bool) -> list[Finding]:
    """Return what there is to say of single places; `explained`: why some of them spread far."""
    its, limits, sized = case.places, case.limits, case.sized
    choices = np.maximum(1, its.choosing)
    found: list[Finding] = []

    def add(kind: str, chosen: np.ndarray, message: str) -> None:
        if chosen.any():
            places = tuple(tuple(place) for place in np.argwhere(chosen).tolist())
            heads = tuple(sorted({place[-1] for place in places}))
            there = chosen if kind == "not-finite" else sized
            message = f"{_named(places, there | chosen, case.layers)}: {message}"
            found.append(Finding(kind, heads, message, places))

    add("not-finite", its.unsound > 0, "rows that see a NaN or an infinite score, "
        f"{its.unsound.sum()} of them, are left out of all other numbers; look for what made "
        "it")  # fmt: skip
    # A key that less than half of the rows can see is no matter of the head.
    collapsed = sized & (2 * its.tempted >= choices)
    collapsed &= its.collapsed >= limits.most * its.tempted
    add("collapsed", collapsed, "nearly every query gives all its weight to the same key; shrink "
        "the queries and keys of the head, or start it anew")  # fmt: skip
    uniform = sized & (its.flat >= limits.most * choices) & (case.scale != 0)
    add("uniform", uniform, "all keys are weighed alike, because the scaled products hardly "
        "differ; queries or keys may have shrunk to nothing")  # fmt: skip
    if not explained:
        far = sized & (its.spread > limits.high_spread) & ~collapsed
        add("spread", far, f"scaled products spread far, up to {_most(its.spread, far):.3g} where "
            f"others have about {typical_spread(case) or 0.0:.3g}; normalise queries and "
            "keys")  # fmt: skip
    add("overflow", its.overflows > 0, f"products would overflow float16 (beyond {HALF_LIMIT:g}) "
        "before the scale; scale the queries first, or multiply in float32 or "
        "bfloat16")  # fmt: skip
    sinks = its.is_sink & ~collapsed[..., None]
    keys = np.unique(np.argwhere(sinks)[:, -1]).tolist()
    add("sink", sinks.any(-1), f"attention sinks, keys that take {limits.sink:.0%} of the weight "
        f"or more ({_counted('key', keys)}); keep them when a cache is cut, or give the head a "
        "learned sink")  # fmt: skip
    clip = (its.largest > limits.cap) & (case.softcap is None)  # a cap of scores does that work
    peak = _most(its.largest, clip)
    add("clip", clip, f"scores up to {peak:.3g}, beyond {limits.cap:g}; QK-Clip would multiply "
        f"query and key projections by sqrt({limits.cap:g} / the largest score of the head), down "
        f"to {math.sqrt(limits.cap / max(limits.cap, peak)):.3g}")  # fmt: skip
    return found


def _most(x: np.ndarray, chosen: np.ndarray) -> float:
    """Return the largest number of some places; 0 without any."""
    return float(np.max(x, where=chosen, initial=0.0))


def _named(places: Sequence[Place], there: np.ndarray, layers: bool) -> str:
    """Return places in words: heads, and the entries they are in where it is not all there are."""
    by_head: dict[int, list[Place]] = {}
    for *entry, head in places:
        by_head.setdefault(head, []).append(tuple(entry))
    by_entries: dict[str, list[int]] = {}
    for head, entries in sorted(by_head.items()):
        by_entries.setdefault(_entries(entries, there[..., head], layers), []).append(head)
    parts = [_counted("head", heads) + where for where, heads in by_entries.items()]
    return "; ".join(parts[:4]) + ("; and more" if len(parts) > 4 else "")


def _entries(entries: Sequence[Place], there: np.ndarray, layers: bool) -> str:
    """Return entries of the axes before the heads in words; nothing where it is all of them."""
    if len(entries) == np.count_nonzero(there):
        return ""
    if layers:  # a layer in all its entries is just that layer
        chosen = sorted({layer for layer, *_ in entries})
        if len(entries) == np.count_nonzero(there[chosen]):
            return " of " + _counted("layer", chosen)
        names = [f"layer {layer}, entry {_joined(rest)}" for layer, *rest in entries]
    elif there.ndim == 1:
        return " of " + _counted("entry", [entry for (entry,) in entries])
    else:
        names = [f"entry {_joined(entry)}" for entry in entries]
    return " of " + "; ".join(names[:3]) + ("; and more" if len(names) > 3 else "")


def _counted(name: str, numbers: Sequence[int]) -> str:
    """Return a noun with its numbers, eight at most."""
    plural = {"entry": "entries"}.get(name, f"{name}s")
    more = " and more" if len(numbers) > 8 else ""
    return f"{name if len(numbers) == 1 else plural} {_joined(numbers[:8])}{more}"


def _joined(numbers: Sequence[int]) -> str:
    """Return numbers with commas between them."""
    return ", ".join(map(str, numbers))


# ----------------------------------------------------------------------------------- the layers


def _of_layers(case: Case) -> list[Finding]:
    """Return whether scores grow from layer to layer: by a line through the logarithms.

    The line must rise by the threshold, and by more than noise: that of the layers about the line,
    and that of so many normal numbers. The variance of products of T queries and S keys of size D
    is known to √(2/TD + 2/SD) of itself, the logarithm of the spread to half of that.
    """
    spreads = np.array(layer_spreads(case))
    number = np.flatnonzero(spreads > 0).astype(np.float64)
    if len(number) < 2:
        return []
    spreads = spreads[spreads > 0]
    log, away = np.log(spreads), number - number.mean()
    slope = float(away @ log / (away @ away))
    residual = log - log.mean() - slope * away
    n_rows, degrees = (x[case.sized].mean() for x in (case.places.choosing, case.places.degrees))
    drawn = (1 / n_rows + 1 / (1 + degrees / n_rows)) / (2 * max(1, case.size))
    about = float(residual @ residual) / max(1, len(number) - 2)
    error = math.sqrt((drawn + about) / (away @ away))
    rise = slope * float(number[-1] - number[0])
    if rise < math.log(case.limits.growth) or slope < case.limits.noise * error:
        return []
    return [Finding("growing", (), f"scores grow from layer to layer, by {math.exp(slope):.3g} "
                    f"each (spread {spreads[0]:.3g} to {spreads[-1]:.3g}): normalise queries and "
                    "keys before they are multiplied")]  # fmt: skip
