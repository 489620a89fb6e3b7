"""What comes back: tuples with a fixed order, None where nothing was asked for."""

from typing import Any, NamedTuple

Array = Any
"""An array of the caller's library; the Array API has no common base class to name."""


class Attention(NamedTuple):
    """The result of `attention`: ``output, weights = attention(query, key, value)``."""

    output: Array
    """(..., H, T, E), in the promoted type of the inputs."""
    weights: Array
    """(..., H, T, S), in the promoted type of the inputs."""


class TopK(NamedTuple):
    """The largest weights of each row, descending; the lowest index first among equals."""

    values: Array
    """(..., H, T, min(k, S)), in the type of the sums; 0 where a row has fewer visible keys."""
    indices: Array
    """(..., H, T, min(k, S)), int64; -1 where a row has fewer visible keys."""


class Observation(NamedTuple):
    """The result of `observe`; what was not asked for is None.

    Every statistic but `received`, `top_k` and `weights_of` has shape (..., H, T). Floating ones
    come in the type of the sums. `scaledot.observe` says what each of them is.
    """

    output: Array | None = None
    log_sum_exp: Array | None = None
    max_score: Array | None = None
    argmax: Array | None = None
    max_weight: Array | None = None
    entropy: Array | None = None
    effective_keys: Array | None = None
    jacobian_norm: Array | None = None
    score_mean: Array | None = None
    score_std: Array | None = None
    peak_product: Array | None = None
    distance: Array | None = None
    received: Array | None = None
    top_k: TopK | None = None
    weights_of: Array | None = None


class Part(NamedTuple):
    """The attention of the same queries to some of the keys, to be joined by `merge`."""

    output: Array
    """(..., E); of no account where `log_sum_exp` is -inf."""
    log_sum_exp: Array
    """(...), natural logarithm; -inf where no key was visible."""


class Gradients(NamedTuple):
    """The result of a pullback: each has the shape and type of its argument, or is None."""

    query: Array | None = None
    key: Array | None = None
    value: Array | None = None
    bias: Array | None = None
    sinks: Array | None = None
