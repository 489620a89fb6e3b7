"""What is said of a head in numbers, and from where on a number is worth a word."""

from typing import NamedTuple

__all__ = ["HALF_LIMIT", "SATURATED", "Head", "Thresholds"]

HALF_LIMIT = 65504.0
"""The largest finite float16 (IEEE 754)."""
SATURATED = 0.99
"""The largest weight from which on a row counts as saturated: the norm of its Jacobian is then at
most 0.0198, 4 % of the 0.5 of an even choice between two keys."""


class Thresholds(NamedTuple):
    """From where on something is worth a word; each can be set in `diagnose`."""

    saturated: float = SATURATED
    """Largest weight of a row whose gradient is as good as dead: ‖Jacobian‖ ≤ 0.0198."""
    flat: float = 0.05
    """Spread of the scaled products of a row below which no two weights that lie one spread apart
    differ by more than e^0.05, 5 %."""
    most: float = 0.9
    """Share of rows that makes a property one of the head. Of random vectors of size 4, the worst,
    7 % of the rows are flat at two keys, 1 % at three; 1 % are saturated."""
    low_spread: float = 1 / 3
    """Where the spread falls out of the neighbourhood of 1 that 1/√d gives random vectors (Vaswani
    et al. 2017, section 3.2.1, footnote 4): weights one spread apart differ by 40 % at most."""
    high_spread: float = 3.0
    """Where it rises out of it: weights one spread apart differ by a factor of 20."""
    sink: float = 0.3
    """Mean weight of a key over the queries that makes it a sink (Gu et al. 2024, "When Attention
    Sink Emerges in Language Models", section 3.2)."""
    excess: float = 3.0
    """How many times what it would receive if all scores were equal a sink receives at least: where
    a bias as good as hides most keys, the others have large shares without being sinks. Of a
    thousand heads of random vectors, 16 tokens of size 4, no more than one has such a key."""
    cap: float = 100.0
    """Largest score that QK-Clip allows (Kimi Team 2025, "Kimi K2", section 2.1)."""
    growth: float = 2.0
    """Factor from the first to the last layer from which on scores grow: a layer that doubles the
    spread squares the ratios of weights."""
    noise: float = 4.0
    """Standard errors that a growth must exceed."""
    least: int = 16
    """Rows with a choice that it takes to judge a place, and for sinks keys in each: the spread of
    so many normal rows and keys of 4 numbers is known to 14 % (one standard deviation)."""


class Head(NamedTuple):
    """The numbers of one head, over all batches and rows that see a key; 0 where there is none."""

    spread: float
    """Standard deviation of the scaled products of a row, before cap and bias:
    √(Σ n·σ² / Σ (n - 1)) over rows that see n keys, two or more."""
    spread_before: float
    """The same before the scale."""
    saturated: float
    """Share of saturated rows, among those that see two keys or more."""
    flat: float
    """Share of rows whose scaled products hardly differ, and their weights neither."""
    gradient: float
    """Mean norm of the softmax Jacobian."""
    largest_score: float
    """Largest absolute scaled product."""
    overflows: int
    """Rows with a product that float16 could not hold, before the scale."""
    one_key: float
    """Share of rows whose largest weight is on the key that most rows of their sequence choose."""
    sinks: tuple[int, ...]
    """Keys that receive far more than their share, in some entry of the axes before the heads."""
    sink_weight: float
    """The largest mean weight of a key over the queries of a sequence."""
    rows: int
    """Rows that see a key, and neither NaN nor infinity."""
    unsound: int
    """Rows that see a NaN or an infinite score; they are left out of all other numbers."""
    clip: float
    """QK-Clip's factor γ = min(1, cap / largest score) for the scores of this head."""
