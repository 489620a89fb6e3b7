"""Laws that reviews asked for, each of them once broken or in doubt."""

import numpy as np
import pytest

from scaledot import attend, attention, merge, observe, softmax, vjp

INF, NAN = np.inf, np.nan
LARGE = np.float32(3e38)
"""Four of them are more than float32 holds."""
TYPES = (np.float16, np.float32, np.float64)


def example(numbers, T=3, S=4, D=2, E=5, dtype=np.float64):
    return [numbers.standard_normal(shape).astype(dtype) for shape in ((T, D), (S, D), (S, E))]


def gradients(query, key, value, **how):
    output, pullback = vjp(query, key, value, **how)
    ones = np.ones_like(output)
    return pullback(ones, log_sum_exp=ones[..., 0], entropy=ones[..., 0])


def hidden(kind):
    """Restrictions of (3, 4) scores that hide key 1."""
    seen = np.arange(4) != 1
    if kind == "mask":
        return {"mask": seen}
    return {"bias": np.where(seen, 0.0, -INF)}


# ------------------------------------------------------------------------------------------- NaN


@pytest.mark.parametrize("wrong", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("kind", ["mask", "bias"])
def test_what_a_hidden_key_holds_is_in_no_gradient_under_a_cap(kind, wrong, engine, numbers):
    query, key, value = example(numbers)
    how = {**hidden(kind), "softcap": 2.0, "engine": engine}
    clean = gradients(query, key, value, **how)
    key[1] = value[1] = wrong
    for name, got, want in zip(
        clean._fields, gradients(query, key, value, **how), clean, strict=True
    ):
        if want is not None:
            assert np.isfinite(got).all(), name
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13, err_msg=name)
            assert name not in ("key", "value") or not got[1].any()


@pytest.mark.parametrize("softcap", [None, 2.0], ids=str)
@pytest.mark.parametrize("kind", ["mask", "bias", "query_lengths"])
def test_a_nan_query_that_sees_no_key_is_in_no_gradient(kind, softcap, engine, numbers):
    query, key, value = example(numbers)
    seen = np.array([[True], [True], [False]])
    how = {
        "mask": {"mask": seen},
        "bias": {"bias": np.where(seen, 0.0, -INF)},
        "query_lengths": {"query_lengths": 2},
    }[kind] | {"softcap": softcap, "engine": engine}
    clean = gradients(query, key, value, **how)
    query[2] = NAN
    for name, got, want in zip(
        clean._fields, gradients(query, key, value, **how), clean, strict=True
    ):
        if want is not None:
            assert np.isfinite(got).all(), name
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13, err_msg=name)
    assert not gradients(query, key, value, **how).query[2].any()


# --------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_an_array_is_no_number(name, engine, numbers):
    for x in (np.array(0.5), np.array([0.5]), np.array(1), [0.5]):
        with pytest.raises(TypeError, match=rf"`{name}` must be a number, .*float\({name}\)"):
            attend(*example(numbers), **{name: x}, engine=engine)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("name", "x"), [("scale", 1e300), ("softcap", 1e300), ("softcap", 1e-320)])
def test_a_number_that_float32_cannot_hold_is_refused(name, x, dtype, engine, numbers):
    with pytest.raises(ValueError, match=rf"`{name}` .*float32, the type of the sums, .*1e[+-]3"):
        attend(*example(numbers, dtype=dtype), **{name: x}, engine=engine)


@pytest.mark.parametrize(
    ("name", "x"), [("scale", 1e300), ("scale", -1e300), ("softcap", 1e300), ("softcap", 1e-300)]
)
def test_float64_holds_what_float32_cannot(name, x, engine, numbers):
    arrays = example(numbers)
    output = attend(*arrays, **{name: x}, engine=engine)
    assert np.isfinite(output).all()
    if name == "softcap":
        want = attend(*arrays, scale=0.0 if x < 1 else None, engine=engine)
        np.testing.assert_allclose(output, want, rtol=1e-13, atol=1e-13)


def test_a_cap_below_the_normal_numbers_is_refused(engine, numbers):
    with pytest.raises(ValueError, match=r"`softcap` .*float64, the type of the sums"):
        attend(*example(numbers), softcap=1e-320, engine=engine)


# ------------------------------------------------------------------------------------ large values


def test_the_mean_of_large_values_is_one_of_them(engine, blocks):
    query, key = np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32)
    value = np.full((4, 2), LARGE)
    value[:, 1] *= -1
    want = np.array([[LARGE, -LARGE]] * 2)
    np.testing.assert_array_equal(attend(query, key, value, engine=engine), want)
    np.testing.assert_array_equal(attention(query, key, value, engine=engine).output, want)
    for n_keys in (1, 3):
        with blocks(1, n_keys):
            np.testing.assert_array_equal(attend(query, key, value, engine=engine), want)


def test_merged_large_outputs_are_one_of_them():
    parts = [(np.full((2, 3), LARGE), np.zeros(2, np.float32))] * 4
    np.testing.assert_array_equal(merge(parts).output, np.full((2, 3), LARGE))


# -------------------------------------------------------------------------------------- warnings


def test_nothing_is_raised_where_numpy_raises_all(engine, numbers):
    """Underflow, overflow and -inf - -inf are meant; see `scaledot.call`."""
    half, single = example(numbers, dtype=np.float16), example(numbers, dtype=np.float32)
    half[2] *= np.float16(1e-6)  # an output of subnormal numbers
    with np.errstate(all="raise"):
        attend(*single, sinks=np.array(1e-300), engine=engine)
        attend(*single, bias=np.array(-1e-300), engine=engine)
        output, pullback = vjp(*half, engine=engine)
        pullback(np.ones(output.shape, np.float16))
        output, pullback = vjp(*single, engine=engine)
        pullback(np.full(output.shape, 1e300))
        pullback(log_sum_exp=np.full(3, 1e-300), entropy=np.full(3, 1e300))
        observe(*single, statistics="all", mask=np.zeros((3, 1), bool), engine=engine)
        softmax(np.array([-INF, -INF, 0, -1e4], np.float32))
        merge([(np.ones(2, np.float16), np.array(-INF)), (np.full(2, 6e4, np.float16), 9e4)])


# ---------------------------------------------------------------------------------------- memory


def test_the_output_of_vjp_is_the_callers(engine, numbers):
    arrays = example(numbers)
    output, pullback = vjp(*arrays, engine=engine)
    grad = numbers.standard_normal(output.shape)
    before = pullback(grad, entropy=grad[:, 0])
    output[...] = NAN
    after = pullback(grad, entropy=grad[:, 0])
    for got, want in zip(after[:3], before[:3], strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_aligned(dtype, engine, numbers):
    """A cache line is 64 bytes; odd sizes between the rounds move NumPy's own memory about."""
    kept = []
    for n in range(1, 8):
        kept.append(np.empty(13 * n, np.uint8))
        query, key, value = example(numbers, T=n, S=n + 2, dtype=dtype)
        output, pullback = vjp(query, key, value, engine=engine)
        lse = np.zeros(n, np.float32)
        results = {
            "attend": attend(query, key, value, engine=engine),
            "vjp": output,
            "softmax": softmax(query),
            **attention(query, key, value, engine=engine)._asdict(),
            **pullback(output)._asdict(),
            **{f"merge {k}": x for k, x in merge([(output, lse)])._asdict().items()},
        }
        for name, x in results.items():
            if x is not None:
                assert x.ctypes.data % 64 == 0, name
                assert x.flags.c_contiguous, name
        kept.append(results)


def test_a_result_that_overlaps_itself_is_refused(engine, numbers):
    arrays = example(numbers, T=2, E=3)
    memory = np.full(9, 7.0)
    stride = np.lib.stride_tricks.as_strided
    for strides in ((0, 8), (8, 8), (16, 8), (8, 0)):
        out = stride(memory, (2, 3), strides)
        with pytest.raises(ValueError, match="two of its elements share memory"):
            attend(*arrays, out=out, engine=engine)
        with pytest.raises(ValueError, match="two of its elements share memory"):
            attention(*arrays, out=(out, None), engine=engine)
    assert (memory == 7).all()
    for strides in ((24, 8), (8, 16), (32, 8)):
        out = stride(memory, (2, 3), strides)
        assert attend(*arrays, out=out, engine=engine) is out
        np.testing.assert_array_equal(out, attend(*arrays, engine=engine))


# ------------------------------------------------------------------------------------ subclasses


def test_lists_of_masked_arrays_are_refused(engine):
    rows = [np.ma.array([1.0, 2.0], mask=[True, False]), np.ma.array([3.0, 4.0])]
    plain = np.ones((2, 2))
    for wrong in (rows, tuple(rows), [rows[1], [3.0, 4.0]]):
        for name, arrays in {
            "query": (wrong, plain, plain),
            "key": (plain, wrong, plain),
            "value": (plain, plain, wrong),
        }.items():
            with pytest.raises(TypeError, match=rf"`{name}` .*MaskedArray.*{name}\.filled\(0\)"):
                attend(*arrays, engine=engine)
    with pytest.raises(TypeError, match=r"`bias` .*MaskedArray"):
        attend(plain, plain, plain, bias=rows, engine=engine)
    with pytest.raises(TypeError, match=r"`z` .*MaskedArray"):
        softmax([rows])
    with pytest.raises(TypeError, match=r"`output` .*MaskedArray"):
        merge([(rows, [0.0, 0.0])])


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, np.matrix])
def test_a_subclass_is_no_place_for_a_result(kind, engine, numbers):
    arrays = example(numbers)
    output, weights = np.zeros((3, 5)).view(kind), np.zeros((3, 4)).view(kind)
    with pytest.raises(TypeError, match=f"`out` must be a plain .*{kind.__name__}"):
        attend(*arrays, out=output, engine=engine)
    for out in ((output, None), (None, weights)):
        with pytest.raises(TypeError, match="`out` must be a plain"):
            attention(*arrays, out=out, engine=engine)
    assert not np.asarray(output).any()


# ------------------------------------------------------------------------------------- positions


def test_the_distance_of_far_positions_is_exact(engine, blocks):
    query, key = np.zeros((2, 3)), np.zeros((4, 3))

    def distance(query_offset):
        how = {"query_offset": query_offset, "engine": engine}
        return observe(query, key, statistics="distance", **how).distance

    for offset in (2**40, -(2**40)):
        want = [abs(row + offset - 1.5) for row in (0, 1)]  # halves: exact in float64
        np.testing.assert_array_equal(distance(offset), want)
        with blocks(1, 2):
            np.testing.assert_array_equal(distance(offset), want)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("key_lengths", "key_lengths - 3"), ("query_lengths", "4 - query_lengths")],
)
@pytest.mark.parametrize("use", ["causal", "window"])
def test_lengths_of_one_side_are_named(given, remedy, use, engine, numbers):
    arrays = example(numbers)
    how = {given: 2, "engine": engine} | (
        {"causal": True} if use == "causal" else {"window": (1, 0)}
    )
    message = f"`{use}` .*`{given}` alone does not .*query_offset=0 .*query_offset={remedy} where"
    for function in (attend, attention, observe, vjp):
        with pytest.raises(ValueError, match=message) as refused:
            function(*arrays, **how)
        other = "query_lengths" if given == "key_lengths" else "key_lengths"
        assert other not in str(refused.value)
    attend(*arrays, **how, query_offset=0)
    with pytest.raises(ValueError, match=f"`distance` .*`{given}` alone"):
        observe(*arrays[:2], statistics="distance", **{given: 2}, engine=engine)
