"""Weights and statistics from the kernels: what sizes, threads, widths and memory bring out."""

import numpy as np
import pytest

from scaledot import attend, attention, observe
from scaledot.statistics import DEFAULT
from test_bounds import peak_megabytes
from test_fused import draw, restrictions, run

pytest.importorskip("numba", reason="Numba has no wheels for this platform")


from scaledot.fused import engine, launch, target

WIDTHS = target.VECTOR_BYTES
LONG = 5600
"""More keys than a tile keeps the exponentials of."""


def same(got, want, times=1.0):
    """Assert that two observations agree, in float32 against float64."""
    for name, x in got._asdict().items():
        other = getattr(want, name)
        if x is None:
            assert other is None
        elif name == "top_k":
            np.testing.assert_allclose(x.values, other.values, rtol=1e-4 * times, atol=1e-6)
        elif name != "argmax":  # equal scores may round to either side
            np.testing.assert_allclose(x, other, rtol=1e-4 * times, atol=2e-6 * times, err_msg=name)


@pytest.mark.parametrize("n_keys", [15, 16, 95, 96, 97, 200, LONG])
@pytest.mark.parametrize("name", restrictions(1, 1000))
def test_every_statistic(name, n_keys):
    how = restrictions(50, n_keys)[name]
    query, key, value = draw((2, 4, 50, 8), (2, 2, n_keys, 8), (2, 2, n_keys, 5))
    exact = [x.astype(np.float64) for x in (query, key, value)]
    asked = {"statistics": "all", "rows": [3, -1], **how}
    same(
        observe(query, key, value, engine="fused", **asked),
        observe(*exact, engine="blockwise", **asked),
    )
    got = attention(query, key, value, engine="fused", **how).weights
    want = attention(*exact, engine="blockwise", **how).weights
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-9)
    np.testing.assert_array_equal(got == 0, want.astype(np.float32) == 0)


@pytest.mark.parametrize("k", [1, 3, 8, 9, 40, 1000])
def test_the_largest_weights_are_those_of_a_sort(k):
    query, key = draw((3, 33, 4), (3, 130, 4))
    key[:, 50:60] = key[:, 40:50]  # equal scores: the lowest key comes first
    weights = attention(query, key, key, engine="fused").weights
    found = observe(query, key, statistics="top_k", k=k, engine="fused").top_k
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(found.indices, order)
    np.testing.assert_allclose(found.values, np.take_along_axis(weights, order, -1), rtol=1e-6)


@pytest.mark.parametrize("shape", [((8, 8), 130), ((8, 2), 70), ((1, 1), 500)])
def test_the_same_bits_for_any_number_of_threads(shape, monkeypatch):
    monkeypatch.setattr(launch, "ALONE_FLOPS", 0)  # small work is shared too
    (many, few), n = shape
    query, key, value = draw((many, n, 16), (few, n, 16), (few, n, 16))
    how = {"statistics": "all", "rows": [0], "causal": True, "engine": "fused"}
    whole = [observe(query, key, value, threads=t, **how) for t in (1, 2, 3, 8)]
    for other in whole[1:]:
        for one, x in zip(whole[0], other, strict=True):
            pairs = zip(one, x, strict=True) if isinstance(one, tuple) else [(one, x)]
            for a, b in pairs:
                np.testing.assert_array_equal(a, b)


def test_weights_are_written_past_the_caches_wherever_they_lie(monkeypatch):
    query, key, value = draw((2, 100, 8), (2, 176, 8), (2, 176, 8))
    want = attention(query, key, value, window=(60, 3))
    monkeypatch.setattr(engine, "STREAM_BYTES", 0)
    for shift in range(0, 17):
        room = np.full(2 * 100 * 176 + 40, np.nan, np.float32)
        start = -room.ctypes.data % 64 // 4 + shift
        weights = room[start : start + 2 * 100 * 176].reshape(2, 100, 176)
        attention(query, key, value, window=(60, 3), out=(None, weights))
        # blocks begin where lines of memory do, so that the last bit may differ
        np.testing.assert_allclose(weights, want.weights, rtol=1e-6)
        assert np.isnan(room[:start]).all()
        assert np.isnan(room[start + weights.size :]).all()


def test_weights_in_any_strides():
    query, key, value = draw((2, 50, 8), (2, 70, 8), (2, 70, 8))
    want = attention(query, key, value, engine="fused").weights
    for weights in (
        np.empty((2, 70, 50), np.float32).swapaxes(-1, -2),
        np.empty((2, 50, 140), np.float32)[..., ::2],
        np.empty((2, 50, 70), np.float32)[:, ::-1],
        np.empty((50, 2, 70), np.float32).swapaxes(0, 1),
    ):
        attention(query, key, value, out=(None, weights), engine="fused")
        np.testing.assert_array_equal(weights, want)


def test_what_else_is_asked_for_does_not_change_the_output():
    query, key, value = draw((4, 300, 16), (2, 300, 16), (2, 300, 16))
    want = attend(query, key, value)
    for asked in ("entropy", "received", "top_k", "all"):
        rows = [0] if asked == "all" else None
        got = observe(query, key, value, statistics=asked, rows=rows).output
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_values_that_are_not_finite_beside_statistics():
    query, key, value = draw((2, 70, 8), (2, 90, 8), (2, 90, 4))
    value[0, 80, 1], value[1, 3, 2] = np.nan, np.inf
    got = observe(query, key, value, causal=True, statistics="all", rows=[0], engine="fused")
    want = observe(query, key, value, causal=True, statistics="all", rows=[0], engine="textbook")
    np.testing.assert_array_equal(np.isnan(got.output), np.isnan(want.output))
    np.testing.assert_array_equal(np.isposinf(got.output), np.isposinf(want.output))
    np.testing.assert_allclose(got.received, want.received, rtol=1e-4, atol=1e-6)


def test_scores_that_are_not_finite_stay_in_their_rows():
    query, key, value = draw((1, 60, 4), (1, 80, 4), (1, 80, 4))
    query[0, 7, 0], query[0, 20] = np.nan, [np.inf, 0, 0, 0]
    for n_keys in (80, 5):
        mask = np.arange(n_keys) % 3 > 0
        for how in ({"mask": mask}, {"causal": True, "query_offset": 10}):
            got = attention(query, key[:, :n_keys], value[:, :n_keys], engine="fused", **how)
            want = attention(query, key[:, :n_keys], value[:, :n_keys], engine="textbook", **how)
            np.testing.assert_allclose(got.weights, want.weights, rtol=1e-4, atol=1e-7)
            asked = {"statistics": ("received", "entropy", "top_k"), **how}
            seen = observe(query, key[:, :n_keys], engine="fused", **asked)
            right = observe(query, key[:, :n_keys], engine="textbook", **asked)
            np.testing.assert_allclose(seen.received, right.received, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(seen.entropy, right.entropy, rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(seen.top_k.indices[0, [7, 20]], -1)


def test_products_that_overflow_or_are_infinite_beneath_a_cap():
    query, key = np.ones((1, 4), np.float32), np.ones((150, 4), np.float32)
    key[2] = -np.inf
    for how in ({"softcap": 2.0}, {"softcap": 2.0, "scale": -1.0}):
        got, want = (observe(query, key, engine=e, **how) for e in ("fused", "textbook"))
        np.testing.assert_array_equal(got.score_mean, want.score_mean)
    query, key = (1e10 * x for x in draw((1, 16), (50, 16)))
    got, want = (observe(query, key, engine=e) for e in ("fused", "textbook"))
    np.testing.assert_array_equal(got.score_std, want.score_std)


@pytest.mark.parametrize("asked", [DEFAULT, "received", "top_k", (*DEFAULT, "received", "top_k")])
def test_statistics_of_long_sequences_need_two_megabytes_a_thread(asked):
    query, key = draw((8, 8192, 64), (8, 8192, 64))

    def call(n=8192, size=64):
        few = query[:, :n, :size], key[:, :n, :size]
        return observe(*few, statistics=asked, window=(256, 0), engine="fused")

    call(200, 32)  # compiles; another scratch is then needed for what is measured
    peak, seen = peak_megabytes(call)
    results = sum(
        y.nbytes for x in seen if x is not None for y in (x if isinstance(x, tuple) else (x,))
    )
    assert peak * 1e6 < results + 2e6 * target.n_threads()


@pytest.mark.parametrize("noted", [1, 180_000])
@pytest.mark.parametrize("name", restrictions(1, 1000))
def test_heads_and_rows_in_parts_are_those_of_the_whole(name, noted, monkeypatch):
    n_rows, n_keys = 150, 130
    how = restrictions(n_rows, n_keys)[name]
    query, key, value = draw((2, 10, n_rows, 8), (2, 5, n_keys, 8), (2, 5, n_keys, 5))
    asked = {"statistics": "all", "rows": [3, -1, 100], "engine": "fused", **how}
    whole = observe(query, key, value, **asked)
    weights = attention(query, key, value, engine="fused", **how).weights
    monkeypatch.setattr(engine, "NOTED_BYTES", noted)  # some rows of a head, or 3 of 5 groups
    monkeypatch.setattr(engine, "FINISHED", 100)
    parts = observe(query, key, value, **asked)
    same(parts, whole)
    np.testing.assert_array_equal(parts.argmax, whole.argmax)
    np.testing.assert_array_equal(parts.top_k.indices, whole.top_k.indices)
    got = attention(query, key, value, engine="fused", **how).weights
    np.testing.assert_allclose(got, weights, rtol=1e-5, atol=1e-9)


SIGHT = """
    import numpy as np
    from numba import njit
    from scaledot.fused.simd import *
    from scaledot.fused.sight import *

    @njit
    def words(x, y, at, out, added, bits):
        one, three = blank(x, 1), blank(x, 3)
        n = width(one)
        a, b = loads(x, 0, one), loads(y, 0, one)
        s = mark(a, b)
        stores(out, 0, 0, absolute(a), one)
        stores(out, n, 0, div(a, splat(3.0, one)), one)
        stores(out, 2 * n, 0, seen(a, b, splat(7.0, one)), one)
        stores(out, 3 * n, 0, same(a, b, splat(1.0, one), splat(2.0, one)), one)
        stores(out, 4 * n, 0, above(a, b, splat(1.0, one), splat(2.0, one)), one)
        stores(out, 5 * n, 0, s, one)
        stores(out, 6 * n, 0, weigh(s, splat(np.nan, one)), one)
        stores(out, 7 * n, 0, at_least(a, splat(0.25, one)), one)
        stores(out, 8 * n, 0, fold_add(loads(x, n, three), a), one)
        stores(out, 9 * n, n, steps(three), one)
        stores(out, 12 * n, 0, bottom(loads(x, n, three)), one)
        lists, keys = loads(y, n, three), loads(x, n, three)
        stores(out, 13 * n, n, sink(lists, lists, a, a), one)
        stores(out, 16 * n, n, sink(lists, keys, a, b), one)
        stores(out, 19 * n, 0, displaced(lists, keys, a, b), one)
        stores(out, 20 * n, 0, tag(123456789, one), one)
        bits[0] = untag(out, 20 * n)
        bits[1] = lanes_above(a, b)
        bits[2] = lowest(bits[1]) if bits[1] else -1
        rows = tile(x, 0, n, square(one), one)
        scatter_add(added, at, 0, 3, rows)
        stream(added, at, 0, 4 * n, rows)

    @njit
    def on_a_line(a):
        return 0

    for sums in (np.float32, np.float64):
        n = VECTOR_BYTES // np.dtype(sums).itemsize
        rng = np.random.default_rng(3)
        x, y = rng.standard_normal((2, 40 * n)).astype(sums)
        y[:2], y[n:4 * n] = [-np.inf, x[1]], -np.sort(-rng.standard_normal((3, n)), axis=0).ravel()
        at = rng.permutation(n).astype(np.int64) * 8 * n
        results = []
        for dialect in ("words", "twins"):
            out, bits = np.zeros(21 * n, sums), np.zeros(3, np.int64)
            room = np.zeros(9 * n * n + 64, sums)
            start = -room.ctypes.data % VECTOR_BYTES // room.itemsize
            added = room[start : start + 8 * n * n + n]
            if dialect == "words":
                words(x, y, at, out, added, bits)
            else:
                names = dict(globals())
                for name, found in list(names.items()):
                    if hasattr(found, "twin"):
                        names[name] = found.twin
                exec(SOURCE, names)
                names["words"](x, y, at, out, added, bits)
            results.append((out, added.copy(), bits))
        for mine, theirs in zip(*results):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
            np.testing.assert_array_equal(np.signbit(mine), np.signbit(theirs))
    print("ok")
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_words_of_sight_are_their_twins(width):
    """The same function runs twice: compiled, and as Python with every word its twin."""
    start, stop = SIGHT.index("    def words"), SIGHT.index("    @njit\n    def on_a_line")
    source = "\n".join(line[4:] for line in SIGHT[start:stop].splitlines())
    code = SIGHT.replace("    @njit\n    def on_a_line(a):\n        return 0\n", "")
    code = code.replace("    for sums in", f"    SOURCE = {source!r}\n    for sums in", 1)
    assert run(code, SCALEDOT_VECTOR_BYTES=width) == "ok"


EVERYWHERE = """
    import numpy as np
    from scaledot import attention, observe
    rng = np.random.default_rng(0)
    n = {n}
    for dtype in ("f2", "f4", "f8"):
        query, key, value = rng.standard_normal((3, 2, n, 6)).astype(dtype)
        exact = [x.astype("f8") for x in (query, key, value)]
        mask = rng.random((2, 1, n)) > 0.3
        for how in ({{}}, dict(causal=True, mask=mask), dict(softcap=2.0, sinks=0.5)):
            asked = dict(statistics="all", rows=[0], k=3, **how)
            got = observe(query, key, value, engine="fused", **asked)
            want = observe(*exact, engine="textbook", **asked)
            budget = 256 * max(np.finfo(dtype).eps, 1e-15)
            for name, x in got._asdict().items():
                if name not in ("argmax", "top_k"):
                    right = getattr(want, name)
                    np.testing.assert_allclose(x, right, rtol=budget, atol=budget, err_msg=name)
            one, other = got.top_k.values, want.top_k.values
            np.testing.assert_allclose(one, other, rtol=budget, atol=budget)
            weights = attention(query, key, value, engine="fused", **how).weights
            right = attention(*exact, engine="textbook", **how).weights
            np.testing.assert_allclose(weights, right, rtol=budget, atol=budget)
    print("ok")
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(width):
    assert run(EVERYWHERE.format(n=70), SCALEDOT_VECTOR_BYTES=width) == "ok"


def test_without_the_jit():
    assert run(EVERYWHERE.format(n=6), SCALEDOT_VECTOR_BYTES=16, NUMBA_DISABLE_JIT=1) == "ok"
