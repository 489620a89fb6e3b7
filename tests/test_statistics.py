"""What `observe` says of the weights, against the oracle and to the digits that are promised."""

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracle import PER_ROW, agree, agree_on, expect, type_of_sums
from scaledot import Observation, attend, attention, observe
from strategies import calls, result_shape

INF, NAN = np.inf, np.nan
BLOCKS = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
DEFAULT = tuple(name for name in PER_ROW if name != "distance")
ALL = (*PER_ROW, "received", "top_k")


def example(numbers, T=3, S=5, dtype=np.float64):
    shapes = (2, 4, T, 4), (2, 2, S, 4), (2, 2, S, 3)
    return [numbers.standard_normal(shape).astype(dtype) for shape in shapes]


@settings(max_examples=150)
@given(call=calls(positions=True), k=st.integers(1, 4))
def test_statistics_are_the_definition(engine, call, k):
    want, budget = expect(*call.arrays, **call.how, k=k)
    rows = list(range(call.shape[-2]))
    observed = observe(*call.arrays, **call.how, statistics="all", k=k, rows=rows, engine=engine)
    agree_on(observed, want, budget, ("output", *ALL))
    agree(observed.weights_of, want.weights, budget.weights(), "weights_of")
    sums = type_of_sums(*call.arrays)
    floats = [getattr(observed, name) for name in PER_ROW if name != "argmax"]
    for x in (*floats, observed.received, observed.top_k.values, observed.weights_of):
        assert x.dtype == sums


@settings(max_examples=80)
@given(call=calls(positions=True), block=BLOCKS)
def test_any_block_size_gives_the_same_statistics(blocks, call, block):
    want, budget = expect(*call.arrays, **call.how, k=3)
    with blocks(*block):
        observed = observe(*call.arrays, **call.how, statistics="all", k=3, engine="blockwise")
    agree_on(observed, want, budget, ("output", *ALL))


@settings(max_examples=80)
@given(
    call=calls(
        positions=True,
        empty=False,
        layouts=("contiguous",),
        restrictions=("mask", "causal", "sinks"),
    ),
    data=st.data(),
)
def test_a_row_that_sees_what_is_not_finite(engine, call, data):
    arrays = [x.copy() for x in call.arrays]
    for x in arrays[:2]:
        for place in data.draw(st.lists(st.integers(0, x.size - 1), max_size=2)):
            x.flat[place] = data.draw(st.sampled_from((NAN, INF, -INF)))
    want, budget = expect(*arrays, **call.how, k=2)
    rows = list(range(call.shape[-2]))
    observed = observe(*arrays, **call.how, statistics="all", k=2, rows=rows, engine=engine)
    agree_on(observed, want, budget, ALL)
    agree(observed.weights_of, want.weights, budget.weights(), "weights_of")


@settings(max_examples=60)
@given(call=calls(positions=True))
def test_without_a_value_nothing_else_changes(engine, call):
    query, key, value = call.arrays
    assume(max(query.ndim, key.ndim) == max(query.ndim, key.ndim, value.ndim))
    assume(result_shape(query, key, key) == result_shape(query, key, value))
    observed = observe(query, key, **call.how, statistics="all", engine=engine)
    assert observed.output is None
    want, budget = expect(query, key, **call.how)
    agree_on(observed, want, budget, ALL)


# ------------------------------------------------------------------------ digits


def exact_scores(spread, mean, n_rows=24, n_keys=200):
    """Query 1 and keys that are the scores themselves, as float32 has them; one head a row."""
    numbers = np.random.default_rng(23)
    key = (mean + spread * numbers.standard_normal((n_rows, n_keys, 1))).astype(np.float32)
    return np.ones((n_rows, 1, 1), np.float32), key


@cache
def exact_statistics(spread, mean):
    """What is right for them."""
    return expect(*exact_scores(spread, mean), scale=1.0)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0, 32.0, 1000.0])
@pytest.mark.parametrize("causal", [False, True])
def test_statistics_keep_their_digits(engine, spread, mean, causal):
    query, key = exact_scores(spread, mean)
    want, budget = exact_statistics(spread, mean)
    observed = observe(query, key, scale=1.0, causal=causal, statistics="all", engine=engine)
    assert observed.entropy.dtype == np.float32
    for name in ("entropy", "effective_keys", "jacobian_norm", "score_std"):
        right = getattr(want, name)
        agree(getattr(observed, name), right, np.maximum(1e-5 * right, 1e-6), name)
    for name in ("max_weight", "score_mean", "peak_product", "max_score", "received"):
        agree(getattr(observed, name), getattr(want, name), budget.statistic(name), name)
    np.testing.assert_array_equal(observed.argmax, want.argmax)
    np.testing.assert_array_equal(observed.top_k.indices, want.top_k.indices)
    unit = np.maximum(np.spacing(np.float32(1)), np.spacing(abs(want.log_sum_exp).astype("f4")))
    agree(observed.log_sum_exp, want.log_sum_exp, 2.0 * unit, "log_sum_exp")


@pytest.mark.parametrize("spread", [0.1, 1.0, 32.0])
def test_statistics_keep_their_digits_in_blocks(blocks, spread):
    query, key = exact_scores(spread, 1e4)
    want, _ = exact_statistics(spread, 1e4)
    with blocks(8, 16):
        observed = observe(query, key, scale=1.0, engine="blockwise")
    for name in ("entropy", "effective_keys", "jacobian_norm", "score_std"):
        right = getattr(want, name)
        agree(getattr(observed, name), right, np.maximum(1e-5 * right, 1e-6), name)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 1.0, 32.0, 1000.0])
def test_log_sum_exp_in_float64(engine, spread, mean):
    query, key = (x.astype(np.float64) for x in exact_scores(spread, mean))
    want, _ = exact_statistics(spread, mean)
    observed = observe(query, key, scale=1.0, statistics="log_sum_exp", engine=engine)
    unit = np.spacing(np.maximum(1, abs(want.log_sum_exp)))
    agree(observed.log_sum_exp, want.log_sum_exp, 2 * unit)


def test_zero_times_the_logarithm_of_zero(engine):
    key = np.array([[0.0], [-800.0], [0.0]])
    observed = observe(np.ones((1, 1)), key, scale=1.0, statistics="entropy", engine=engine)
    agree(observed.entropy, [np.log(2)], 2 * np.finfo(float).eps)


def test_entropy_of_uniform_causal_rows(engine):
    zeros = np.zeros((3, 1))
    observed = observe(zeros, zeros, causal=True, engine=engine)
    agree(observed.entropy, np.log([1, 2, 3]), 4 * np.finfo(float).eps)
    agree(observed.effective_keys, [1, 2, 3], 8 * np.finfo(float).eps)
    agree(observed.max_weight, [1, 1 / 2, 1 / 3], np.finfo(float).eps)


def test_a_one_hot_row_has_a_small_jacobian(engine):
    """Two keys 20 apart: p (1 - p) in every entry, so twice that in norm."""
    key = np.array([[0.0], [-20.0]], np.float32)
    query = np.ones((1, 1), np.float32)
    observed = observe(query, key, scale=1.0, statistics="jacobian_norm", engine=engine)
    right = 2 * np.exp(-20.0) / (1 + np.exp(-20.0)) ** 2
    agree(observed.jacobian_norm, [right], 1e-5 * right)


# ------------------------------------------------------------------------ asking


def test_the_default_is_ten(engine, numbers):
    query, key, value = example(numbers)
    observed = observe(query, key, value, engine=engine)
    given_back = {name for name in Observation._fields if getattr(observed, name) is not None}
    assert given_back == {"output", *DEFAULT}
    assert len(DEFAULT) == 10
    for name in DEFAULT:
        assert getattr(observed, name).shape == (2, 4, 3)


@pytest.mark.parametrize("name", ALL)
def test_one_name_gives_that_alone(engine, name, numbers):
    query, key, value = example(numbers)
    together = observe(query, key, value, statistics="all", engine=engine)
    for asked in (name, [name], (name, name), iter([name]), {name}):
        observed = observe(query, key, value, statistics=asked, engine=engine)
        given_back = [n for n in Observation._fields if getattr(observed, n) is not None]
        assert given_back == ["output", name]
    want, budget = expect(query, key, value)
    agree_on(observed, want, budget, [name])
    agree_on(together, want, budget, [name])


def test_all_without_rows_leaves_weights_of_out(engine, numbers):
    observed = observe(*example(numbers), statistics="all", engine=engine)
    assert observed.weights_of is None
    assert not [name for name in ("output", *ALL) if getattr(observed, name) is None]


def test_no_statistics_at_all(engine, numbers):
    arrays = example(numbers)
    observed = observe(*arrays, statistics=(), engine=engine)
    assert all(x is None for name, x in observed._asdict().items() if name != "output")
    agree(observed.output, attend(*arrays, engine=engine), 1e-14)


def test_unknown_names_are_refused_with_the_known(engine, numbers):
    for statistics in ("entropie", ["entropy", "entropie"]):
        with pytest.raises(ValueError, match=r"entropie.*entropy.*top_k"):
            observe(*example(numbers), statistics=statistics, engine=engine)
    for statistics in (3, [3], None):
        with pytest.raises(TypeError, match="statistic"):
            observe(*example(numbers), statistics=statistics, engine=engine)


def test_weights_of_are_the_rows_of_the_weights(engine, numbers):
    arrays = example(numbers)
    weights = attention(*arrays, causal=True, engine=engine).weights
    for rows in ([0], [2, 0], np.array([1]), (0, 1, 2), range(3), [-1], []):
        observed = observe(*arrays, causal=True, statistics="weights_of", rows=rows, engine=engine)
        agree(observed.weights_of, weights[..., list(rows), :], 4 * np.finfo(float).eps)


def test_weights_of_needs_rows_that_exist(engine, numbers):
    arrays = example(numbers)
    with pytest.raises(ValueError, match="rows"):
        observe(*arrays, statistics="weights_of", engine=engine)
    with pytest.raises(ValueError, match="3"):
        observe(*arrays, statistics="weights_of", rows=[3], engine=engine)
    with pytest.raises(TypeError, match="rows"):
        observe(*arrays, statistics="weights_of", rows=[0.5], engine=engine)


def test_k_beyond_the_keys(engine, numbers):
    arrays = example(numbers)
    for k in (1, 5, 9):
        values, indices = observe(*arrays, statistics="top_k", k=k, engine=engine).top_k
        assert values.shape == indices.shape == (2, 4, 3, min(k, 5))
        assert (np.diff(values, axis=-1) <= 0).all()
    for k, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="`k`"):
            observe(*arrays, statistics="top_k", k=k, engine=engine)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (2, 2), (4, 3), (64, 64)])
def test_ties_go_to_the_lowest_index(blocks, engine, rows, keys):
    key = np.array([1.0, 3, 3, 1, 3, 0, 1])[:, None]
    with blocks(rows, keys):
        observed = observe(
            np.ones((2, 1)), key, scale=1.0, statistics=("argmax", "top_k"), k=6, engine=engine
        )
    np.testing.assert_array_equal(observed.argmax, [1, 1])
    np.testing.assert_array_equal(observed.top_k.indices, [[1, 2, 4, 0, 3, 6]] * 2)


def test_what_is_missing_is_zero_and_minus_one(engine):
    zeros = np.zeros((3, 1))
    mask = np.array([[False, False, False], [False, True, False], [True, False, True]])
    observed = observe(zeros, zeros, zeros, mask=mask, statistics="all", k=2, engine=engine)
    np.testing.assert_array_equal(observed.top_k.values, [[0, 0], [1, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(observed.top_k.indices, [[-1, -1], [1, -1], [0, 2]])
    np.testing.assert_array_equal(observed.argmax, [-1, 1, 0])
    empty = {name: np.asarray(getattr(observed, name))[0] for name in PER_ROW}
    assert empty["log_sum_exp"] == empty["max_score"] == -INF
    for name in ("max_weight", "entropy", "effective_keys", "jacobian_norm", "peak_product"):
        assert empty[name] == 0
    for name in ("score_mean", "score_std", "distance"):
        assert np.isnan(empty[name])
    np.testing.assert_array_equal(observed.received, [0.5, 1, 0.5])


def test_a_nan_stays_out_of_masked_keys(engine):
    query, key = np.ones((2, 1)), np.array([[0.0], [NAN], [0.0]])
    mask = np.array([[True, True, False], [True, False, True]])
    observed = observe(query, key, mask=mask, statistics="all", rows=[0, 1], k=2, engine=engine)
    np.testing.assert_array_equal(observed.weights_of, [[NAN, NAN, 0], [0.5, 0, 0.5]])
    np.testing.assert_array_equal(observed.received, [NAN, NAN, 0.5])
    np.testing.assert_array_equal(observed.argmax, [-1, 0])
    np.testing.assert_array_equal(observed.top_k.indices, [[-1, -1], [0, 2]])
    np.testing.assert_array_equal(observed.top_k.values, [[NAN, NAN], [0.5, 0.5]])
    for name in PER_ROW:
        if name != "argmax":
            assert np.isnan(getattr(observed, name)).tolist() == [True, False], name


def test_a_sink_is_in_the_weights_but_no_score(engine):
    """Scores 0 and 0 beside a sink of ln 2: weights of a quarter each."""
    zeros = np.zeros((1, 2, 1))
    observed = observe(zeros, zeros, sinks=np.log([2.0]), statistics="all", engine=engine)
    for name, right in {
        "max_score": 0,
        "max_weight": 0.25,
        "entropy": 0.5 * np.log(4),
        "effective_keys": 2,
        "jacobian_norm": np.sqrt(2 * (0.25 * 0.75) ** 2 + 2 * 0.25**4),
        "log_sum_exp": np.log(4),
        "distance": 0.5,
        "received": 0.5,
    }.items():
        got = getattr(observed, name)
        agree(got, np.full(got.shape, right), 8 * np.finfo(float).eps, name)


def test_distance_needs_positions(engine, numbers):
    arrays = example(numbers)
    for how in ({"key_lengths": 3}, {"query_lengths": [2, 3]}):
        with pytest.raises(ValueError, match="query_offset"):
            observe(*arrays, **how, statistics="distance", engine=engine)
        observe(*arrays, **how, engine=engine)


def test_rows_statistics_and_k_do_not_touch_the_output(engine, numbers):
    arrays = example(numbers, T=4, S=6)
    want, budget = expect(*arrays, causal=True)
    for asked in (
        {"statistics": "all", "rows": [1]},
        {"statistics": "received"},
        {"statistics": "top_k", "k": 1},
        {"statistics": ()},
    ):
        output = observe(*arrays, causal=True, **asked, engine=engine).output
        agree(output, want.output, budget.output())
