"""The two small functions: the stable softmax, and the joining of parts."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from oracle import agree
from scaledot import Part, merge, softmax

INF, NAN = np.inf, np.nan
bfloat16 = ml_dtypes.bfloat16


def softmax_of(line):
    """The definition for one list of numbers."""
    top = max(line, default=-INF)
    if top == -INF:
        return [0.0 for _ in line]
    if top == INF or any(math.isnan(z) for z in line):
        return [NAN for _ in line]
    grown = [math.exp(z - top) for z in line]
    return [x / math.fsum(grown) for x in grown]


def along(z, axes):
    """The definition along these axes, in loops over the others."""
    z = np.asarray(z).astype(np.float64)
    others = [a for a in range(z.ndim) if a not in axes]
    moved = z.transpose(*others, *axes)
    n_lines = math.prod(z.shape[a] for a in others)
    n_each = math.prod(z.shape[a] for a in axes)
    lines = moved.reshape(n_lines, n_each)
    result = np.array([softmax_of(line.tolist()) for line in lines]).reshape(moved.shape)
    return result.transpose(np.argsort([*others, *axes]))


@settings(max_examples=150)
@given(data=st.data())
def test_softmax_is_the_definition(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    negative = data.draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
    named = tuple(a - len(shape) if n else a for a, n in zip(axes, negative, strict=True))
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    dtype = data.draw(st.sampled_from((np.float32, np.float64)))
    z = (data.draw(st.sampled_from((1, 30, 1000))) * numbers.standard_normal(shape)).astype(dtype)
    z[numbers.random(shape) < data.draw(st.sampled_from((0, 0.3, 0.9)))] = -INF
    axis = named[0] if len(named) == 1 and data.draw(st.booleans()) else named
    want = along(z, axes)
    got = softmax(z, axis=axis)
    assert got.dtype == dtype
    top = z.max(axis=tuple(axes), keepdims=True)
    below = np.subtract(top, z, where=want > 0, out=np.zeros(shape))
    steps = z.size + 8 + below  # exp makes of an absolute error of z - top a relative one
    agree(got, want, steps * oracle.epsilon(dtype) * want + np.finfo(dtype).tiny)
    assert not got[z == -INF].any()


def test_softmax_over_all_axes():
    z = np.arange(6.0).reshape(2, 3)
    agree(softmax(z, axis=None), along(z, [0, 1]), 1e-15)
    agree(softmax(z), along(z, [1]), 1e-15)
    agree(softmax(z, axis=()), np.ones((2, 3)))
    agree(softmax(2.0, axis=None), 1.0)


def test_softmax_of_extremes():
    for level in (1e308, -1e308, 1e4, -1e4):
        agree(softmax([level, level]), [0.5, 0.5])
    agree(softmax([1.7e308, -1.7e308]), [1, 0])
    agree(softmax([-INF, -INF]), [0, 0])
    agree(softmax([-INF, 3.0]), [0, 1])
    agree(softmax([[NAN, 0.0], [0.0, 0.0], [INF, 0.0]]), [[NAN] * 2, [0.5] * 2, [NAN] * 2])
    agree(softmax([0.0, -40.0])[1], 4.248354255291589e-18, 1e-32)


def test_softmax_of_nothing():
    assert softmax(np.zeros((3, 0))).shape == (3, 0)
    assert softmax(np.zeros((0, 3))).shape == (0, 3)
    assert softmax(np.zeros((0, 3)), axis=None).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_softmax_of_half_types_sums_in_float32(dtype):
    z = np.zeros(4096, dtype)
    got = softmax(z)
    assert got.dtype == dtype
    agree(got, np.full(4096, 2.0**-12))
    z = np.linspace(-3, 3, 50).astype(dtype)
    want = along(z, [0])
    agree(softmax(z), want, oracle.epsilon(dtype) * want)


def test_softmax_leaves_its_argument_alone():
    z = np.arange(12.0).reshape(3, 4).T[::-1]
    z.flags.writeable = False
    before = z.copy()
    agree(softmax(z), along(z.copy(), [1]), 1e-15)
    np.testing.assert_array_equal(z, before)
    agree(softmax(z.astype(">f4")), along(z.copy(), [1]), 1e-6)
    assert softmax(np.array([1, 2])).dtype == np.float64
    assert not np.shares_memory(softmax(np.zeros((3, 1))), np.zeros((3, 1)))


def test_softmax_refuses_axes_that_are_not_there():
    for axis in (2, -3, (0, 2)):
        with pytest.raises(ValueError, match="axis"):
            softmax(np.zeros((2, 2)), axis=axis)
    with pytest.raises(ValueError, match="axis"):
        softmax(np.zeros((2, 2)), axis=(0, 0))
    for axis in (1.0, "rows", True):
        with pytest.raises(TypeError, match="axis"):
            softmax(np.zeros((2, 2)), axis=axis)


# ------------------------------------------------------------------------ merge


def joined(parts):
    """The definition for parts of one row: weights exp(lse), natural logarithm."""
    real = [(o, lse) for o, lse in parts if lse != -INF]
    if not real:
        return 0.0, -INF
    top = max(lse for _, lse in real)
    grown = [math.exp(lse - top) for _, lse in real]
    total = math.fsum(grown)
    mean = math.fsum(o * g / total for (o, _), g in zip(real, grown, strict=True))
    return mean, top + math.log(total)


def part(output, log_sum_exp, dtype=np.float64):
    return np.array([[output]], dtype), np.array([log_sum_exp], dtype)


def test_the_logarithm_is_natural():
    output, log_sum_exp = merge([part(1, 0), part(3, 1)])
    agree(output, [[2.4621171572600096]], 1e-15)
    agree(log_sum_exp, [1.3132616875182228], 4e-16)


@settings(max_examples=100)
@given(
    parts=st.lists(
        st.tuples(st.floats(-9, 9), st.floats(-800, 800) | st.just(-INF)), min_size=1, max_size=5
    ),
    data=st.data(),
)
def test_parts_join_in_any_order(parts, data):
    output, log_sum_exp = joined(parts)
    got = merge([part(*p) for p in data.draw(st.permutations(parts))])
    assert isinstance(got, Part)
    agree(got.output, [[output]], 1e-13 * 10)
    agree(got.log_sum_exp, [log_sum_exp], 1e-15 * 10 * max(1, abs(log_sum_exp)))


@settings(max_examples=50)
@given(data=st.data())
def test_parts_join_in_any_grouping(data):
    numbers = np.random.default_rng(data.draw(st.integers(0, 999)))
    parts = [
        (numbers.standard_normal((2, 3, 4)), 5 * numbers.standard_normal((2, 3))) for _ in range(5)
    ]
    cut = data.draw(st.integers(1, 4))
    whole = merge(parts)
    nested = merge([merge(parts[:cut]), merge(parts[cut:])])
    one_by_one = parts[0]
    for other in parts[1:]:
        one_by_one = merge((one_by_one, other))
    for got in (nested, one_by_one, merge(iter(parts)), merge(Part(*p) for p in parts)):
        agree(got.output, whole.output, 1e-14)
        agree(got.log_sum_exp, whole.log_sum_exp, 1e-14)
    for row in itertools.product(range(2), range(3)):
        for e in range(4):
            output, log_sum_exp = joined([(o[(*row, e)], lse[row]) for o, lse in parts])
            agree(whole.output[(*row, e)], output, 1e-14)
            agree(whole.log_sum_exp[row], log_sum_exp, 1e-14)


def test_empty_parts_are_neutral():
    nothing, nan = part(0, -INF), part(NAN, -INF)
    for parts in ([nothing, nothing], [nan, nan], [nan], [nothing, nan]):
        output, log_sum_exp = merge(parts)
        np.testing.assert_array_equal(output, [[0]])
        np.testing.assert_array_equal(log_sum_exp, [-INF])
    for empty in (nothing, nan, part(INF, -INF)):
        for parts in ([part(2, 1), empty], [empty, part(2, 1)]):
            output, log_sum_exp = merge(parts)
            np.testing.assert_array_equal(output, [[2]])
            np.testing.assert_array_equal(log_sum_exp, [1])


def test_a_nan_is_not_lost():
    output, log_sum_exp = merge([part(1, 0), part(NAN, NAN)])
    assert np.isnan(output).all()
    assert np.isnan(log_sum_exp).all()
    output, log_sum_exp = merge([part(1, 0), part(NAN, 0)])
    assert np.isnan(output).all()
    agree(log_sum_exp, [np.log(2)], 1e-15)
    output, _ = merge([part(1, 0), part(INF, -2000)])
    np.testing.assert_array_equal(output, [[INF]])


def test_a_sink_is_in_one_part_only():
    """Scores 0 and 1, values 1 and 3, a sink of 2 with the first key."""
    first_total, second_total = 1 + math.exp(2), math.exp(1)
    output, _ = merge([part(1 / first_total, math.log(first_total)), part(3, 1)])
    agree(output, [[0.8242159863347734]], 1e-15)
    agree(output, [[(1 + 3 * math.e) / (first_total + second_total)]], 1e-15)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.float64])
def test_parts_keep_their_types(dtype):
    sums = np.float64 if dtype is np.float64 else np.float32
    parts = [(np.ones((3, 2), dtype), np.arange(3).astype(sums)) for _ in range(4096)]
    output, log_sum_exp = merge(parts)
    assert output.dtype == dtype
    assert log_sum_exp.dtype == sums
    agree(output, np.ones((3, 2)))
    agree(log_sum_exp, np.arange(3) + np.log(4096), 8 * oracle.epsilon(sums) * 12)


def test_a_single_part_is_itself_in_fresh_memory():
    output, log_sum_exp = np.array([[1.5], [NAN]]), np.array([0.25, -INF])
    got = merge([(output, log_sum_exp)])
    np.testing.assert_array_equal(got.output, [[1.5], [0]])
    np.testing.assert_array_equal(got.log_sum_exp, log_sum_exp)
    assert not np.shares_memory(got.output, output)
    assert not np.shares_memory(got.log_sum_exp, log_sum_exp)


def test_merge_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="part"):
        merge([])
    with pytest.raises(ValueError, match="shape"):
        merge([(np.ones((2, 1)), np.ones(2)), (np.ones((3, 1)), np.ones(3))])
    with pytest.raises(ValueError, match="log_sum_exp"):
        merge([(np.ones((2, 1)), np.ones(3))])
    with pytest.raises(TypeError, match="pair"):
        merge([np.ones((2, 1))[0]])
