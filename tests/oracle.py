"""The definition of attention as float64 loops, and what rounding may add to it.

Knows nothing of the package. One row at a time, one key at a time, sums by `math.fsum`; slow and
plain on purpose. `attend` is the value, `gradients` its finite differences, `Budget` how far an
honest engine in a given type may be from it, and `agree` holds the two together.
"""

import math
from itertools import product
from types import SimpleNamespace

import ml_dtypes
import numpy as np

INF, NAN = math.inf, math.nan

PER_ROW = (
    "log_sum_exp",
    "max_score",
    "argmax",
    "max_weight",
    "entropy",
    "effective_keys",
    "jacobian_norm",
    "score_mean",
    "score_std",
    "peak_product",
    "distance",
)
WITHOUT_KEYS = {
    "log_sum_exp": -INF,
    "max_score": -INF,
    "argmax": -1,
    "score_mean": NAN,
    "score_std": NAN,
    "distance": NAN,
}


def attend(
    query,
    key,
    value=None,
    *,
    mask=None,
    bias=None,
    causal=False,
    query_offset=None,
    window=None,
    key_lengths=None,
    query_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    k=8,
    described=True,
):
    """Everything there is to know of one call: output, weights, statistics and the scores.

    With `described` false the statistics after the entropy are left out, for speed.
    """
    sums = type_of_sums(query, key, *([] if value is None else [value]))
    bias, sinks = _joined(bias, sums), _joined(sinks, sums)
    if value is None:
        value = np.zeros((*np.shape(key)[:-1], 0))
    query, key, value = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    rank = max(x.ndim for x in (query, key, value))
    query, key, value = (_deepen(x, max(rank, 3)) for x in (query, key, value))
    lead, n_heads = _outer_shape(query, key, value)
    n_queries, size, n_keys, width = *query.shape[-2:], *value.shape[-2:]
    if scale is None:
        scale = 1 / math.sqrt(size) if size else 1.0
    left, right = window or (None, None)
    if query_offset is None:
        both = key_lengths is not None and query_lengths is not None
        query_offset = (
            np.asarray(key_lengths) - np.asarray(query_lengths) if both else n_keys - n_queries
        )
    result = _empty(lead, n_heads, n_queries, n_keys, width, min(k, n_keys))

    for row in product(*map(range, (*lead, n_heads, n_queries))):
        *batch, h, i = row
        q = _of_head(query, batch, h, n_heads)[i]
        keys = _of_head(key, batch, h, n_heads)
        values = _of_head(value, batch, h, n_heads)
        position = i + int(_entry(query_offset, batch))
        padded = query_lengths is not None and i >= _entry(query_lengths, batch)
        n_real = n_keys if key_lengths is None else _entry(key_lengths, batch)
        products, scores, seen, reach = [], [], [], 0.0
        for j in range(n_keys):
            terms = [float(a) * float(b) for a, b in zip(q, keys[j], strict=True)]
            products.append(scale * _total(terms))
            score = products[j]
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            added = 0.0 if bias is None else float(_entry(bias, (*row, j)))
            score += added
            visible = not padded and j < n_real and added != -INF and score != -INF
            if mask is not None:
                visible = visible and bool(_entry(mask, (*row, j)))
            if causal:
                visible = visible and j <= position
            if left is not None:
                visible = visible and j >= position - left
            if right is not None:
                visible = visible and j <= position + right
            scores.append(score if visible else -INF)
            if visible:
                seen.append(j)
                reach = max(reach, sum(abs(scale * t) for t in (*terms, added) if math.isfinite(t)))
        sink = -INF if sinks is None else float(_entry(sinks, (*batch, h)))
        found = _row(scores, seen, sink, min(k, n_keys))
        if described and found.argmax >= 0:
            distances = [abs(position - j) for j in range(n_keys)]
            _describe(found, scores, products, seen, sink, distances)
        result.scores[row], result.reach[row] = scores, reach + abs(sink if sink > -INF else 0)
        result.weights[row] = found.weights
        for name in PER_ROW:
            getattr(result, name)[row] = getattr(found, name)
        result.top_k.values[row], result.top_k.indices[row] = found.top_k
        result.received[(*batch, h)] += found.weights
        for e in range(width):
            column = [float(values[j][e]) for j in range(n_keys)]
            result.output[(*row, e)] = _mix(found.weights, column, seen)
            result.span[(*row, e)] = math.fsum(
                found.weights[j] * abs(column[j]) for j in seen if math.isfinite(column[j])
            )
    return _without_heads(result) if rank == 2 else result


def _row(scores, seen, sink, n_top):
    """The softmax of one row; all that is said of a row without keys, or with a NaN."""
    row = SimpleNamespace(**{name: WITHOUT_KEYS.get(name, 0.0) for name in PER_ROW})
    row.weights = [0.0] * len(scores)
    row.top_k = [0.0] * n_top, [-1] * n_top
    if not seen:
        row.log_sum_exp = sink
        return row
    if any(math.isnan(scores[j]) or scores[j] == INF for j in seen):
        for name in PER_ROW:
            setattr(row, name, -1 if name == "argmax" else NAN)
        row.weights = [NAN if j in seen else 0.0 for j in range(len(scores))]
        row.top_k = [NAN] * n_top, [-1] * n_top
        return row

    row.max_score = max(scores[j] for j in seen)
    row.argmax = scores.index(row.max_score)
    peak = max(row.max_score, sink)
    grown = {j: math.exp(scores[j] - peak) for j in seen}
    terms = [math.exp(sink - peak), *grown.values()]  # one of them is exactly 1
    total = math.fsum(terms)
    log_total = math.log1p(math.fsum(sorted(terms)[:-1]))
    for j in seen:
        row.weights[j] = grown[j] / total
    row.log_sum_exp = peak + log_total
    row.entropy = math.fsum(row.weights[j] * (log_total - (scores[j] - peak)) for j in seen)
    return row


def _describe(row, scores, products, seen, sink, distances):
    """The other statistics of a row that has keys and is finite."""
    p = row.weights
    row.max_weight = max(p)
    shares = {j: math.exp(scores[j] - row.max_score) for j in seen}
    all_shares = math.fsum(shares.values())
    row.effective_keys = all_shares**2 / math.fsum(s * s for s in shares.values())
    row.distance = math.fsum(shares[j] * distances[j] for j in seen) / all_shares
    rest = math.exp(sink - row.log_sum_exp)  # the share of the sink
    others = {j: rest + math.fsum(p[i] for i in seen if i != j) for j in seen}
    row.jacobian_norm = math.sqrt(
        math.fsum((p[j] * others[j]) ** 2 for j in seen)
        + math.fsum((p[i] * p[j]) ** 2 for i in seen for j in seen if i != j)
    )

    row.score_mean = math.fsum(products[j] for j in seen) / len(seen)
    squares = math.fsum((products[j] - row.score_mean) ** 2 for j in seen)
    row.score_std = math.sqrt(squares / len(seen))
    row.peak_product = max(abs(products[j]) for j in seen)
    best = sorted(seen, key=lambda j: -scores[j])
    for place, j in enumerate(best[: len(row.top_k[0])]):
        row.top_k[0][place], row.top_k[1][place] = p[j], j


def _mix(weights, column, seen):
    """Weights times one column of the values; what is not finite counts if it is seen."""
    if any(math.isnan(weights[j]) or math.isnan(column[j]) for j in seen):
        return NAN
    signs = {column[j] for j in seen if math.isinf(column[j])}
    if signs:
        return signs.pop() if len(signs) == 1 else NAN
    return math.fsum(weights[j] * column[j] for j in seen)


def type_of_sums(*arrays):
    """float32 for inputs of 16 and 32 bits, float64 for float64, integers, bools and lists."""
    types = [np.asarray(x).dtype for x in arrays]
    narrow = all(t.itemsize <= 4 and t.kind not in "biu" for t in types)
    return np.dtype(np.float32 if narrow else np.float64)


def _joined(array, sums):
    """A bias or a sink in the type of the sums, its finite values kept finite."""
    if array is None:
        return None
    array = np.asarray(array).astype(np.float64)
    limit = np.finfo(sums).max
    kept = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
    return kept.astype(sums).astype(np.float64)


def _deepen(array, rank):
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _outer_shape(query, key, value):
    """The leading axes and the number of heads of the result."""
    lead = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    groups = key.shape[-3] if value.shape[-3] == 1 else value.shape[-3]
    return lead, groups if query.shape[-3] == 1 else query.shape[-3]


def _of_head(array, batch, h, n_heads):
    """The matrix that head h of this batch reads: h // (n_heads // own heads)."""
    own = array.shape[-3]
    index = [0 if n == 1 else b for b, n in zip(batch, array.shape[:-3], strict=True)]
    return array[(*index, 0 if own == 1 else h // (n_heads // own))]


def _entry(array, index):
    """The entry of an array that broadcasts from the right."""
    array = np.asarray(array)
    index = index[len(index) - array.ndim :]
    return array[tuple(0 if n == 1 else i for i, n in zip(index, array.shape, strict=True))]


def _total(terms):
    return math.fsum(terms) if all(math.isfinite(t) for t in terms) else sum(terms)


def _empty(lead, n_heads, n_queries, n_keys, width, n_top):
    rows = (*lead, n_heads, n_queries)
    result = SimpleNamespace(**{name: np.zeros(rows) for name in PER_ROW})
    result.argmax = np.zeros(rows, np.int64)
    result.output, result.span = np.zeros((*rows, width)), np.zeros((*rows, width))
    result.weights, result.scores = np.zeros((*rows, n_keys)), np.zeros((*rows, n_keys))
    result.received = np.zeros((*lead, n_heads, n_keys))
    result.reach = np.zeros(rows)
    result.top_k = SimpleNamespace(
        values=np.zeros((*rows, n_top)), indices=np.zeros((*rows, n_top), np.int64)
    )
    return result


def _without_heads(result):
    for name, array in vars(result).items():
        if name != "top_k":
            setattr(result, name, array[0])
    result.top_k = SimpleNamespace(values=result.top_k.values[0], indices=result.top_k.indices[0])
    return result


def gradients(query, key, value, wrt, *, grad_output, log_sum_exp=None, entropy=None, **how):
    """Differences of <grad_output, output> + <log_sum_exp, lse> + <entropy, entropy>.

    By argument: the derivatives by seven points, and how far those by five points are from them,
    which is more than they can be wrong by.
    """
    arguments = {"query": query, "key": key, "value": value}
    arguments |= {name: how.pop(name) for name in ("bias", "sinks") if name in how}
    arguments = {name: np.array(x, np.float64) for name, x in arguments.items()}

    def loss():
        found = attend(**arguments, **how, described=False)
        parts = [np.asarray(grad_output, np.float64) * found.output]
        for weight, statistic in ((log_sum_exp, found.log_sum_exp), (entropy, found.entropy)):
            if weight is not None:
                parts.append(np.where(np.isfinite(statistic), weight * statistic, 0.0))
        return math.fsum(np.concatenate([part.ravel() for part in parts]))

    return {name: _slopes(loss, arguments[name]) for name in wrt}


def _slopes(loss, array, step=2e-3):
    """The derivative by every entry of an array that is moved in place; infinite ones have 0."""
    slopes, doubts = np.zeros(array.shape), np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        here, rises = array[index], []
        for move in (step, 2 * step, 3 * step):
            array[index] = here + move
            above = loss()
            array[index] = here - move
            rises.append((above - loss()) / step)
        array[index] = here
        slopes[index] = (45 * rises[0] - 9 * rises[1] + rises[2]) / 60
        doubts[index] = abs(slopes[index] - (8 * rises[0] - rises[1]) / 12)
    return slopes, doubts


def epsilon(dtype):
    """The spacing at one of a floating type."""
    return float(ml_dtypes.finfo(dtype).eps)


class Budget:
    """First-order bounds of what rounding in the sums and in the result can change.

    A score is a sum of D products that are together as large as `reach`; each step of it, the
    bias and the scale included, is off by one unit of the sums at most. exp turns the error of
    the scores, twice over (the score and the row's maximum), into a relative error of the weights.
    """

    def __init__(self, want, size, sums, result=None):
        self.want, unit = want, epsilon(sums)
        self.unit = unit
        self.steps = 8 + max(want.weights.shape[-1], want.weights.shape[-2])
        self.result = epsilon(sums if result is None else result)
        self.least = float(ml_dtypes.finfo(sums if result is None else result).smallest_normal)
        self.score = unit * (size + 8) * want.reach
        self.weight = 2 * self.score + unit * self.steps

    def weights(self):
        relative = self.weight[..., None] + self.result
        return relative * np.nan_to_num(self.want.weights) + self.least

    def output(self):
        relative = (self.weight + self.unit * self.steps)[..., None] + self.result
        return relative * self.want.span + self.least

    def log_sum_exp(self):
        lse = np.where(np.isfinite(self.want.log_sum_exp), self.want.log_sum_exp, 0)
        return self.score + self.unit * (self.steps + 2 * np.maximum(1, abs(lse)))

    def statistic(self, name):
        """The bound of a statistic with one entry a row, or of `received`."""
        value = np.nan_to_num(getattr(self.want, name), posinf=0, neginf=0)
        relative = {"max_weight": 1, "effective_keys": 4, "distance": 2}
        if name in relative:
            return relative[name] * self.weight * value + self.unit * value + self.least
        if name == "log_sum_exp":
            return self.log_sum_exp()
        if name == "entropy":
            return (self.weight + self.unit * self.steps) * (value + 1)
        if name == "jacobian_norm":
            return 3 * self.weight
        if name == "received":
            return self.weights().sum(axis=-2) + self.unit * self.steps * value
        return 2 * self.score + self.unit * self.steps * abs(value)


def expect(query, key, value=None, **how):
    """The right answer of a call, and how far from it an honest one may be."""
    arrays = [query, key, *([] if value is None else [value])]
    sums = type_of_sums(*arrays)
    types = {np.asarray(x).dtype for x in arrays}
    result = types.pop() if len(types) == 1 else sums  # float16 with bfloat16 is float32
    want = attend(query, key, value, **how)
    return want, Budget(want, np.shape(query)[-1], sums, result)


def agree(got, want, allowed=0.0, what=""):
    """Assert the same shape, the same NaNs and infinities, and the rest as close as allowed."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], what)
    assert np.isfinite(got[finite]).all(), f"{what}: not finite where {want[finite]} is right"
    off = np.abs(np.subtract(got, want, where=finite, out=np.zeros(got.shape)))
    over = off > np.broadcast_to(allowed, off.shape)
    assert not over.any(), (
        f"{what}: got {got[over][:4]}, want {want[over][:4]}, "
        f"off by {off[over][:4]}, allowed {np.broadcast_to(allowed, off.shape)[over][:4]}"
    )


def agree_on(observed, want, budget, names):
    """Assert that the named fields of an observation are those of the oracle."""
    for name in names:
        got = np.asarray(getattr(observed, name)) if name != "top_k" else observed.top_k
        if name == "argmax":
            assert got.dtype == np.int64
            _agree_on_choice(got[..., None], want, 2 * budget.score)
        elif name == "top_k":
            agree(got.values, want.top_k.values, _spread(budget, got.values), name)
            assert np.asarray(got.indices).dtype == np.int64
            _agree_on_choice(np.asarray(got.indices), want, 2 * budget.score)
        elif name == "output":
            agree(got, want.output, budget.output(), name)
        elif name == "weights":
            agree(got, want.weights, budget.weights(), name)
            assert not got[want.scores == -INF].any(), "a masked key weighs something"
        else:
            agree(got, getattr(want, name), budget.statistic(name), name)


def _spread(budget, values):
    """The bound of the largest weights: that of the largest holds for all after it."""
    largest = np.nan_to_num(budget.want.max_weight)
    return np.broadcast_to((budget.weight * largest + budget.least)[..., None], values.shape)


def _agree_on_choice(indices, want, slack):
    """Indices are of the keys with the largest scores, as far as rounding lets one tell."""
    n_chosen = indices.shape[-1]
    for row in np.ndindex(want.scores.shape[:-1]):
        scores, chosen = want.scores[row], indices[row]
        seen = np.flatnonzero(scores > -INF) if want.argmax[row] >= 0 else []
        n_seen = min(n_chosen, len(seen))
        assert (chosen[n_seen:] == -1).all(), f"{row}: {chosen} beyond {n_seen} keys"
        assert len(set(chosen[:n_seen])) == n_seen, f"{row}: {chosen} repeats a key"
        best = sorted(scores[seen], reverse=True)[:n_seen] if n_seen else []
        for j, score in zip(chosen[:n_seen], best, strict=True):
            assert j in seen, f"{row}: key {j} is not visible"
            assert scores[j] >= score - slack[row], f"{row}: key {j} is not among the largest"
