"""Calls whose like was made before: the same bits, the same care, the same refusals."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from scaledot import attend, attention, planning, shortcut

SHAPES = {
    "tiny": ((2, 2), (2, 2), (2, 2)),
    "heads": ((3, 5, 4), (3, 7, 4), (3, 7, 6)),
    "groups": ((4, 20, 8), (2, 30, 8), (2, 30, 8)),
    "larger": ((2, 4, 40, 16), (2, 4, 40, 16), (2, 4, 40, 16)),
    "decoding": ((8, 1, 64), (8, 300, 64), (8, 300, 64)),
}
HOW = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "fused": {"engine": "fused"},
    "numbers": {"bias": 0.5, "sinks": 0.3, "threads": 1},
}


FUNCTIONS = {"attend": lambda *given, **how: (attend(*given, **how),), "attention": attention}


@pytest.fixture(autouse=True)
def nothing_known():
    """Begin without knowing any kind of call."""
    planning.clear()


def arrays(shape, dtype=np.float32):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(size).astype(dtype) for size in SHAPES[shape]]


def same(got, want):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_call_has_the_bits_of_the_first(function, shape, how, dtype):
    call, given = FUNCTIONS[function], arrays(shape, dtype)
    first = call(*given, **HOW[how])
    again = call(*given, **HOW[how])
    same(again, first)
    for x, y in zip(again, first, strict=True):
        assert x.ctypes.data % 64 == 0
        assert not np.shares_memory(x, y)
    doubled = [2 * x for x in given]
    got = call(*doubled, **HOW[how])
    planning.clear()
    same(got, call(*doubled, **HOW[how]))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_known_call_is_not_prepared_again(function, shape, how, monkeypatch):
    call, given = FUNCTIONS[function], arrays(shape)
    call(*given, **HOW[how])
    if how in ("causal", "softcap", "numbers") and shape in ("tiny", "heads"):
        assert not planning.known  # a handful of scores with restrictions: the definition itself
        return
    monkeypatch.setattr("scaledot.api.prepare", None)
    call(*given, **HOW[how])


def test_the_two_functions_are_not_taken_for_each_other():
    given = arrays("larger")
    output = attend(*given)
    both = attention(*given)
    assert isinstance(attend(*given), np.ndarray)
    same(attention(*given), both)
    np.testing.assert_allclose(both.output, output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_that_are_not_finite_have_the_care_of_a_first_call(function, shape, place, bad):
    call, given = FUNCTIONS[function], arrays(shape)
    call(*given)
    given[place][..., 0, 0] = bad
    got = call(*given)
    planning.clear()
    same(got, call(*given))


def test_weights_without_an_output_have_the_care_of_a_first_call():
    query, key, value = np.ones((2, 2)), np.ones((2, 2)), np.empty((2, 0))
    attention(query, key, value)
    query[0] = -np.inf  # its scores too, which masks them
    np.testing.assert_array_equal(attention(query, key, value).weights, [[0, 0], [0.5, 0.5]])


def test_weights_of_more_rows_than_are_done_at_once_are_not_remembered(monkeypatch):
    monkeypatch.setattr("scaledot.fused.engine.NOTED_BYTES", 12 * 100)
    given = arrays("larger")
    attention(*given)
    assert not planning.known
    attend(*given)
    assert planning.known


def test_sums_that_overflow_have_the_care_of_a_first_call():
    query, key, value = arrays("tiny")
    attend(query, key, value)
    huge = np.full_like(value, 3e38)
    np.testing.assert_allclose(attend(query, key, huge), huge, rtol=1e-6)


def test_what_is_refused_stays_refused():
    given = arrays("tiny")
    attend(*given, causal=True, engine="fused")
    with pytest.raises(TypeError, match="causal"):
        attend(*given, causal=1, engine="fused")
    attend(*given, scale=1.0)
    with pytest.raises(TypeError, match="scale"):
        attend(*given, scale=True)
    with pytest.raises(ValueError, match="head size"):
        attend(given[0], given[1][:, :1], given[2])


def test_the_same_shapes_in_other_strides_or_byte_order():
    query, key, value = arrays("larger")
    want = attend(query, key, value)
    turned = query.swapaxes(1, 2).copy().swapaxes(1, 2)
    others = turned, query[::-1].copy()[::-1], query.astype(">f4"), query.astype("f8")
    for other in others * 3:
        np.testing.assert_allclose(attend(other, key, value), want, rtol=1e-5, atol=1e-6)
    for dtype in (">f2", ">f4", ">f8"):
        foreign = [x.astype(dtype) for x in (query, key, value)]
        native = attend(*(x.astype(x.dtype.newbyteorder("=")) for x in foreign))
        for _ in range(3):
            np.testing.assert_array_equal(attend(*foreign), native)
    query.flags.writeable = False
    np.testing.assert_array_equal(attend(query, key, value), want)


def test_nobody_keeps_the_arrays_of_a_known_call():
    def call(n):
        key, value = np.ones((2, 8, n, 64), np.float32)
        attend(np.ones((8, 1, 64), np.float32), key, value)
        attend(*np.ones((3, n, 8)), scale=1.0, bias=0.5)

    call(600)
    tracemalloc.start()
    for n in range(601, 641):
        call(n)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(planning.known) > 80
    assert held < 2e6


def test_very_many_heads_are_not_remembered():
    x = np.ones((shortcut.MOST_HEADS + 1, 2, 4))
    attend(x, x, x)
    assert not planning.known


def test_so_many_kinds_are_remembered(monkeypatch):
    monkeypatch.setattr(shortcut, "KEPT", 3)
    for n in range(1, 8):
        x = np.ones((n, 4))
        attend(x, x, x)
        assert len(planning.known) <= 3


def test_long_calls_are_not_remembered(monkeypatch):
    monkeypatch.setattr(shortcut, "MOST_SCORES", 10)
    attend(*arrays("heads"))
    assert not planning.known
