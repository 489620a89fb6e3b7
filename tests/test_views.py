"""What pictures show: weights in cells and scores in bins are those of the whole."""

import math
import tracemalloc

import array_api_strict
import ml_dtypes
import numpy as np
import pytest

from scaledot import attention, histograms, observe, views
from scaledot.histograms import score_histogram
from scaledot.views import in_cells, overview, view_weights

MASK = np.random.default_rng(1).random((7, 9)) < 0.6
MASK[2] = False
BIAS = np.where(MASK, np.random.default_rng(2).normal(size=(4, 7, 9)), -np.inf)

# name: shapes of query and key, keywords
CASES = {
    "two axes": ((7, 5), (9, 5), {}),
    "heads, causal": ((4, 7, 5), (4, 9, 5), {"causal": True}),
    "grouped heads, window": ((4, 7, 5), (2, 9, 5), {"window": (2, 1)}),
    "one key head, mask": ((4, 7, 5), (9, 5), {"mask": MASK}),
    "one query head": ((1, 7, 5), (4, 9, 5), {"causal": True, "query_offset": -2}),
    "bias, softcap": ((4, 7, 5), (2, 9, 5), {"bias": BIAS, "softcap": 1.5}),
    "batches, lengths, sinks": (
        (3, 1, 4, 7, 5),
        (2, 2, 9, 5),
        {
            "key_lengths": [[4, 9], [0, 3], [7, 7]],
            "query_lengths": [[7, 7], [7, 7], [2, 0]],
            "causal": True,
            "sinks": np.array([0.5, -1, 0, 2]),
        },
    ),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    query, key, how = CASES[request.param]
    rng = np.random.default_rng(0)
    return rng.normal(size=query), rng.normal(size=key), how


def weights_of(query, key, how):
    return attention(query, key, key, **how).weights


def by_hand(weights, step):
    """Cells by the words of their label."""
    n_queries, n_keys = weights.shape[-2:]
    rows = [
        np.stack(
            [
                weights[..., i : i + step[0], j : j + step[1]].sum(-1).mean(-1)
                for j in range(0, n_keys, step[1])
            ],
            axis=-1,
        )
        for i in range(0, n_queries, step[0])
    ]
    return np.stack(rows, axis=-2)


@pytest.mark.parametrize("scores", [1, 50, 2**22])
@pytest.mark.parametrize(
    ("cells", "step"),
    [((99, 99), (1, 1)), ((3, 99), (3, 1)), ((7, 4), (1, 3)), ((2, 5), (4, 2)), ((1, 1), (7, 9))],
)
def test_cells_are_the_weights_of_the_whole(case, monkeypatch, cells, step, scores):
    query, key, how = case
    monkeypatch.setattr(views, "SCORES_A_BLOCK", scores)
    weights = weights_of(query, key, how)
    done = []
    view = view_weights(query, key, cells=cells, advance=done.append, **how)
    assert view.step == step
    assert (view.n_queries, view.n_keys) == (7, 9)
    assert sum(done) == 7
    np.testing.assert_allclose(view.cells, by_hand(weights, step), rtol=1e-12, atol=1e-15)
    again = in_cells(weights).coarser(cells)
    np.testing.assert_allclose(again.cells, view.cells, rtol=1e-12, atol=1e-15)
    assert (again.label, again.step) == (view.label, view.step)


def test_one_head_is_that_of_all(case, any_engine):
    query, key, how = case
    how = how | {"engine": any_engine}
    weights = weights_of(query, key, how)
    for place in np.ndindex(weights.shape[:-2]):
        one = view_weights(query, key, head=place, **how)
        np.testing.assert_allclose(one.cells, weights[place], rtol=1e-12, atol=1e-15)
    if weights.ndim == 3:
        last = view_weights(query, key, head=-1, **how).cells
        np.testing.assert_allclose(last, weights[-1], rtol=1e-12, atol=1e-15)


def test_a_row_of_cells_sums_to_one():
    query, key = np.random.default_rng(0).normal(size=(2, 3, 101, 8))
    view = view_weights(query, key, cells=(30, 17), causal=True)
    np.testing.assert_allclose(view.cells.sum(-1), 1, rtol=1e-12)
    finer = view_weights(query, key, cells=(101, 34), causal=True)
    assert finer.coarser((26, 17)).step == view.step == (4, 6)
    np.testing.assert_allclose(finer.coarser((26, 17)).cells, view.cells, rtol=1e-12)


def test_weights_of_any_type_are_seen():
    weights = np.array([[0.25, 0.75], [1, 0]])
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16, np.dtype(">f8"), np.int8):
        view = in_cells(weights.astype(dtype)).coarser((1, 2))
        np.testing.assert_array_equal(view.cells, weights.astype(dtype).mean(0, np.float64)[None])
    assert in_cells(weights.tolist()).cells.tolist() == weights.tolist()
    with pytest.raises(TypeError, match="`weights` must hold real numbers, got complex128"):
        in_cells(weights * 1j)
    with pytest.raises(TypeError, match=r"`weights` must be an array .*, got NoneType"):
        in_cells(None)


def test_a_label_says_what_a_cell_is():
    query, key = np.zeros((2000, 1)), np.zeros((5000, 1))

    def label(*cells):
        return view_weights(query, key, cells=cells).label

    assert label(2000, 5000) == "weight"
    assert label(2000, 500) == "weight given to 10 keys"
    assert label(1000, 5000) == "weight, mean of 2 queries"
    assert label(1, 1) == "weight given to 5,000 keys, mean of 2,000 queries"


def test_a_nan_stays_in_its_cell_and_a_row_without_a_key_is_zero():
    query, key = np.random.default_rng(0).normal(size=(2, 8, 4))
    query[5] = np.nan
    mask = np.ones((8, 8), bool)
    mask[:2] = False
    cells = view_weights(query, key, mask=mask, cells=(4, 4)).cells
    assert np.isnan(cells).any(axis=-1).tolist() == [False, False, True, False]
    assert (cells[0] == 0).all()


@pytest.mark.parametrize(
    ("query", "key"), [((0, 4), (5, 4)), ((3, 4), (0, 4)), ((0, 3, 4), (0, 5, 4)), ((3, 0), (5, 0))]
)
def test_nothing_to_see(query, key):
    query, key = np.zeros(query), np.zeros(key)
    view, seen = view_weights(query, key), score_histogram(query, key)
    assert view.cells.shape == (*query.shape[:-1], key.shape[-2])
    assert seen.counts.sum() == seen.n_products == math.prod(view.cells.shape)


def test_long_sequences_need_little_memory():
    query, key = np.random.default_rng(0).normal(size=(2, 20_000, 8)).astype(np.float32)
    view_weights(query[:5000], key[:5000])  # compiled apart
    tracemalloc.start()
    try:
        view = view_weights(query, key)
        seen = score_histogram(query, key)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(view.cells.sum(-1), 1, rtol=1e-5)
    assert view.label == "weight given to 58 keys, mean of 58 queries"
    assert seen.label == "838 of 20,000 rows, drawn by seed 0; 16,760,000 products"
    assert peak < 2**28  # the scores alone would be 1.5 GiB


# -------------------------------------------------------------------------------------- scores


def test_bins_hold_the_products_of_visible_keys(case, monkeypatch):
    query, key, how = case
    weights = weights_of(query, key, how)
    if query.ndim > 2 and key.ndim > 2 and query.shape[-3] > key.shape[-3]:
        key_heads = np.repeat(key, query.shape[-3] // key.shape[-3], axis=-3)
    else:
        key_heads = key
    products = np.broadcast_to(query @ key_heads.swapaxes(-1, -2), weights.shape)[weights > 0]
    for scores in (1, 2**22):
        monkeypatch.setattr(histograms, "SCORES_A_BLOCK", scores)
        seen = score_histogram(query, key, bins=6, **how)
        assert seen.counts.tolist() == np.histogram(products, 6)[0].tolist()
        assert seen.edges == pytest.approx(np.histogram(products, 6)[1])
        assert seen.std == pytest.approx(products.std())
        assert seen.n_products == products.size
        assert seen.n_rows == seen.of_rows == weights[..., 0].size
        assert seen.label == f"all {seen.n_rows:,} rows, {products.size:,} products"


def test_rows_are_taken_once_each_and_by_the_seed(monkeypatch):
    query, key = np.arange(3000.0).reshape(3, 1000, 1), np.ones((3, 4, 1))

    def rows(**more):
        seen = score_histogram(query, key, bins=3000, **more)
        assert seen.counts.sum() == seen.n_products == 4 * seen.n_rows
        return seen

    assert rows().label == "all 3,000 rows, 12,000 products"
    some = rows(rows=500)
    assert some.label == "500 of 3,000 rows, drawn by seed 0; 2,000 products"
    by_generator = rows(rows=500, rng=np.random.default_rng(0)).label
    assert by_generator == "500 of 3,000 rows, drawn at random; 2,000 products"
    assert rows(rows=500, rng=np.int64(7)).label.startswith("500 of 3,000 rows, drawn by seed 7;")
    assert set(np.unique(score_histogram(query, key, rows=500, bins=44).counts % 4)) == {0}
    assert 600 < some.std < 1100  # of all three heads, not of the first rows
    assert np.array_equal(some.counts, rows(rows=500, rng=0).counts)
    assert np.array_equal(some.counts, rows(rows=500, rng=np.random.default_rng(0)).counts)
    assert not np.array_equal(some.counts, rows(rows=500, rng=1).counts)
    monkeypatch.setattr(histograms, "MOST_PRODUCTS", 40)
    assert rows().n_rows == 10


def test_bins_are_no_more_than_the_products_fill():
    query, key = np.random.default_rng(0).normal(size=(2, 10, 4))
    assert len(score_histogram(query, key).counts) == 10
    assert len(score_histogram(query, key, bins=3).counts) == 3


@pytest.mark.parametrize("scale", [None, 0.0, -2.0, 0.5])
def test_the_scale_is_beside_the_products(scale):
    query, key = np.random.default_rng(0).normal(size=(2, 30, 16))
    seen = score_histogram(query, key, scale=scale)
    assert seen.scale == (0.25 if scale is None else scale)
    assert seen.std == pytest.approx((query @ key.T).std())


def test_products_that_are_alike_or_not_finite():
    seen = score_histogram(np.full((4, 1), 3.0), np.full((5, 1), 1e8), bins=3)
    assert seen.counts.tolist() == [0, 20, 0]
    assert seen.edges[0] < 3e8 < seen.edges[-1]
    assert seen.std == 0
    query, key = np.random.default_rng(0).normal(size=(2, 6, 4))
    query[1], key[2, 0] = np.nan, np.inf
    seen = score_histogram(query, key)
    above = int((query[:, 0] > 0).sum())  # the others score -inf there, which masks
    assert (seen.n_products, seen.n_unsound) == (25, 6 + above)
    assert seen.label.endswith(f"25 products; {6 + above} not finite")
    hidden = score_histogram(query, key, mask=np.arange(6) != 2)
    assert (hidden.n_products, hidden.n_unsound) == (25, 5)
    huge = score_histogram(np.full((2, 1), 1e200), np.array([[-1e108], [1e108]]), bins=2)
    assert huge.counts.tolist() == [2, 2]
    assert np.isfinite(huge.edges).all()


# ------------------------------------------------------------------------------------- together


def test_an_overview_is_its_parts():
    query, key = np.random.default_rng(0).normal(size=(2, 2, 3, 20, 8))
    look = overview(query, key, head=2, causal=True)
    assert look.head == (0, 2)
    np.testing.assert_array_equal(
        look.weights.cells, weights_of(query, key, {"causal": True})[0, 2]
    )
    seen = observe(query, key, statistics=views.SEEN, causal=True)
    for name in views.SEEN:
        np.testing.assert_array_equal(getattr(look.seen, name), getattr(seen, name))
    assert look.scores.n_products == 6 * 210
    assert overview(query, key).head == (0, 0)
    assert overview(query, key, head=(1, -1)).head == (1, 2)
    assert overview(query[0, 0], key[0, 0]).head == ()
    assert overview(query, key, seen=seen).seen is seen


def test_arrays_of_another_library(case):
    query, key, how = case
    theirs = {
        name: array_api_strict.asarray(x) if isinstance(x, np.ndarray) else x
        for name, x in how.items()
    }
    look = overview(query, key, head=0 if query.ndim > 2 else None, **how)
    strict = overview(
        *map(array_api_strict.asarray, (query, key)), head=look.head or None, **theirs
    )
    np.testing.assert_allclose(strict.weights.cells, look.weights.cells, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(strict.scores.counts, look.scores.counts)
    weights = attention(*map(array_api_strict.asarray, (query, key, key)), **theirs).weights
    np.testing.assert_array_equal(in_cells(weights).cells, np.asarray(weights))
