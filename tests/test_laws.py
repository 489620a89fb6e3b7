"""What must hold for every engine, whatever the sizes, restrictions, types and memory."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracle
from oracle import agree, expect
from scaledot import attend, attention, merge, observe, vjp
from strategies import RESTRICTIONS, calls

INF, NAN = np.inf, np.nan
BLOCKS = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
bfloat16 = ml_dtypes.bfloat16


def hold(arrays, engine=None, want=None, budget=None, **how):
    """Assert that every function gives the oracle's answer to a call."""
    if want is None:
        want, budget = expect(*arrays, **how)
    output, weights = attention(*arrays, **how, engine=engine)
    agree(output, want.output, budget.output(), "output")
    agree(weights, want.weights, budget.weights(), "weights")
    assert not weights[want.scores == -INF].any(), "a masked key weighs something"
    agree(attend(*arrays, **how, engine=engine), want.output, budget.output(), "attend")
    observed = observe(*arrays, **how, statistics="log_sum_exp", engine=engine)
    agree(observed.output, want.output, budget.output(), "observed output")
    agree(observed.log_sum_exp, want.log_sum_exp, budget.log_sum_exp(), "log_sum_exp")


def example(numbers, *, lead=(2, 4), kv=(2, 2), T=3, S=5, D=4, E=3, dtype=np.float64):
    """Query, key and value of these sizes."""
    shapes = (*lead, T, D), (*kv, S, D), (*kv, S, E)
    return [numbers.standard_normal(shape).astype(dtype) for shape in shapes]


# ------------------------------------------------------------------------ the definition


@settings(max_examples=200)
@given(call=calls())
def test_engine_is_the_definition(engine, call):
    hold(call.arrays, engine, **call.how)


@settings(max_examples=60)
@given(call=calls(types=(np.float16, bfloat16)))
def test_half_precision_is_the_definition_rounded_once(engine, call):
    hold(call.arrays, engine, **call.how)


@settings(max_examples=100)
@given(call=calls(), block=BLOCKS)
def test_any_block_size_is_the_whole(blocks, call, block):
    with blocks(*block):
        hold(call.arrays, "blockwise", **call.how)


@settings(max_examples=80)
@given(call=calls())
def test_engines_agree(call):
    output, weights = attention(*call.arrays, **call.how, engine="textbook")
    same = attention(*call.arrays, **call.how, engine="blockwise")
    _, budget = expect(*call.arrays, **call.how)
    agree(same.output, output, 2 * budget.output())
    agree(same.weights, weights, 2 * budget.weights())


def restrictions(numbers, T, S):
    """One value of every restriction for two batches of four heads."""
    return {
        "mask": numbers.random((2, 1, T, S)) < 0.7,
        "bias": np.where(numbers.random((4, T, S)) < 0.8, numbers.standard_normal((4, T, S)), -INF),
        "causal": True,
        "query_offset": np.array([1, -1]),
        "window": (2, 1),
        "key_lengths": np.array([S, 2]),
        "query_lengths": np.array([2, T]),
        "scale": -0.8,
        "softcap": 1.5,
        "sinks": numbers.standard_normal((2, 4)),
    }


@pytest.mark.parametrize(("T", "S"), [(3, 5), (5, 3)])
@pytest.mark.parametrize(
    "names",
    [*itertools.combinations(RESTRICTIONS, 1), *itertools.combinations(RESTRICTIONS, 2)],
    ids="-".join,
)
def test_restrictions_alone_and_in_pairs(engine, names, T, S, numbers):
    arrays = example(numbers, T=T, S=S)
    values = restrictions(numbers, T, S)
    how = {name: values[name] for name in names}
    one_sided = ("key_lengths" in how) != ("query_lengths" in how)
    if one_sided and {"causal", "window"} & set(names):
        how["query_offset"] = 1
    hold(arrays, engine, **how)
    want, budget = expect(*arrays, **how)
    plain, _ = expect(*arrays)
    output, _ = vjp(*arrays, **how, engine=engine)
    agree(output, want.output, budget.output(), "the output of vjp")
    if names != ("query_offset",):
        assert not np.array_equal(plain.output, want.output), "the restrictions restrict nothing"


def test_all_restrictions_at_once(engine, numbers):
    for T, S in ((3, 5), (5, 3), (4, 4)):
        hold(example(numbers, T=T, S=S), engine, **restrictions(numbers, T, S))


@settings(max_examples=60)
@given(call=calls())
def test_same_answer_whatever_is_asked(engine, call):
    want, budget = expect(*call.arrays, **call.how)
    for output in (
        attend(*call.arrays, **call.how, engine=engine),
        attention(*call.arrays, **call.how, engine=engine).output,
        observe(*call.arrays, **call.how, engine=engine).output,
        observe(*call.arrays, **call.how, statistics=("top_k", "received"), engine=engine).output,
        vjp(*call.arrays, **call.how, engine=engine)[0],
    ):
        agree(output, want.output, budget.output())


# ------------------------------------------------------------------------ keys and rows


def effective_offset(call):
    """Where query 0 stands, defaults worked out."""
    if "query_offset" in call.how:
        return np.asarray(call.how["query_offset"])
    if "key_lengths" in call.how and "query_lengths" in call.how:
        return np.asarray(call.how["key_lengths"]) - np.asarray(call.how["query_lengths"])
    return np.asarray(call.shape[-1] - call.shape[-2])


def last_axis(array, keys, n_keys):
    """These keys of a mask or bias that may be broadcast along them."""
    return array[..., keys] if array.ndim and array.shape[-1] == n_keys else array


@settings(max_examples=100)
@given(call=calls(empty=False), cuts=st.lists(st.integers(0, 6), max_size=3), data=st.data())
def test_keys_split_anywhere_and_merged_are_the_whole(engine, call, cuts, data):
    query, key, value = call.arrays
    n_keys = key.shape[-2]
    edges = sorted({0, n_keys, *(min(cut, n_keys) for cut in cuts)})
    parts = []
    for start, stop in itertools.pairwise(edges):
        keys = slice(start, stop)
        how = dict(call.how)
        how["query_offset"] = effective_offset(call) - start
        how["scale"] = call.how.get("scale")
        if "key_lengths" in how:
            how["key_lengths"] = np.clip(np.asarray(how["key_lengths"]) - start, 0, stop - start)
        for name in {"mask", "bias"} & set(how):
            how[name] = last_axis(how[name], keys, n_keys)
        if start:
            how.pop("sinks", None)
        part = observe(
            query,
            key[..., keys, :],
            value[..., keys, :],
            **how,
            statistics="log_sum_exp",
            engine=engine,
        )
        parts.append((part.output, part.log_sum_exp))
    want, budget = expect(*call.arrays, **call.how)
    output, log_sum_exp = merge(data.draw(st.permutations(parts)))
    agree(output, want.output, len(parts) * budget.output())
    agree(log_sum_exp, want.log_sum_exp, len(parts) * budget.log_sum_exp())


@settings(max_examples=60)
@given(
    call=calls(empty=False, restrictions=("mask", "bias", "scale", "softcap", "sinks")),
    data=st.data(),
)
def test_permuting_keys_permutes_the_weights(engine, call, data):
    query, key, value = call.arrays
    n_keys = key.shape[-2]
    order = data.draw(st.permutations(range(n_keys)))
    how = dict(call.how)
    for name in {"mask", "bias"} & set(how):
        how[name] = last_axis(how[name], order, n_keys)
    output, weights = attention(*call.arrays, **call.how, engine=engine)
    permuted = attention(query, key[..., order, :], value[..., order, :], **how, engine=engine)
    _, budget = expect(*call.arrays, **call.how)
    agree(permuted.output, output, 2 * budget.output())
    agree(permuted.weights, weights[..., order], 2 * budget.weights()[..., order])


@settings(max_examples=60)
@given(call=calls())
def test_weights_are_probabilities(engine, call):
    weights = attention(*call.arrays, **call.how, engine=engine).weights
    lse = observe(*call.arrays, **call.how, statistics="log_sum_exp", engine=engine).log_sum_exp
    want, budget = expect(*call.arrays, **call.how)
    assert weights.shape == call.shape
    assert ((weights >= 0) & (weights <= 1 + budget.result)).all()
    has_key = (want.scores > -INF).any(axis=-1)
    total = weights.astype(np.float64).sum(axis=-1)
    if "sinks" in call.how:
        assert (total <= 1 + budget.weights().sum(axis=-1)).all()
    else:
        agree(total, has_key, budget.weights().sum(axis=-1))
    shifted = np.where(has_key[..., None], want.scores - np.where(has_key, lse, 0)[..., None], -INF)
    agree(weights, np.exp(shifted), 3 * budget.weights() + budget.log_sum_exp()[..., None])


@settings(max_examples=40)
@given(call=calls(empty=False))
def test_a_batch_is_its_single_calls(engine, call):
    assume(len(call.shape) > 3)
    lead = call.shape[:-3]
    output = attend(*call.arrays, **call.how, engine=engine)
    _, budget = expect(*call.arrays, **call.how)
    allowed = np.broadcast_to(2 * budget.output(), output.shape)
    for batch in np.ndindex(*lead):
        how = {}
        for name, value in call.how.items():
            own = 3 - (name == "sinks") * 2
            if name in ("mask", "bias", "sinks"):
                how[name] = one_batch(value, lead, batch, own)
            elif name in ("key_lengths", "query_lengths", "query_offset"):
                how[name] = int(one_batch(np.asarray(value), lead, batch, 0))
            else:
                how[name] = value
        arrays = [one_batch(x, lead, batch, 3) for x in call.arrays]
        agree(attend(*arrays, **how, engine=engine), output[batch], allowed[batch])


def one_batch(array, lead, batch, own):
    """The last `own` axes of an array in this batch; they broadcast, as do the axes before."""
    n_lead = max(array.ndim - own, 0)
    index = [
        0 if n == 1 else b
        for b, n in zip(batch[len(lead) - n_lead :], array.shape[:n_lead], strict=True)
    ]
    return array[tuple(index)]


def test_query_head_reads_its_group(engine):
    query, key = np.zeros((1, 6, 1, 1)), np.zeros((1, 3, 1, 1))
    value = np.array([10.0, 20.0, 30.0]).reshape(1, 3, 1, 1)
    output = attend(query, key, value, engine=engine)
    np.testing.assert_array_equal(output.ravel(), [10, 10, 20, 20, 30, 30])


def test_nothing_is_averaged_over_heads(engine):
    query, key = np.array([[[1.0]], [[-1.0]]]), np.array([[[800.0], [0.0]]] * 2)
    weights = attention(query, key, key, scale=1.0, engine=engine).weights
    np.testing.assert_array_equal(weights, [[[1, 0]], [[0, 1]]])


def test_masks_broadcast_from_the_right(engine, numbers):
    arrays = example(numbers, lead=(2, 4), kv=(2, 4))
    with pytest.raises(ValueError, match="mask"):
        attend(*arrays, mask=np.ones((2, 3, 5), bool), engine=engine)
    with pytest.raises(ValueError, match="bias"):
        attend(*arrays, bias=np.zeros((2, 3, 5)), engine=engine)
    for shape in ((4, 3, 5), (2, 1, 3, 5), (5,), (3, 1), (4, 1, 1), (1, 1, 1, 1), ()):
        hold(arrays, engine, mask=numbers.random(shape) < 0.5)
        hold(arrays, engine, bias=numbers.standard_normal(shape))


# ------------------------------------------------------------------------ memory


def strided(array, axis):
    """The same entries, every third place in memory along an axis."""
    wide = np.repeat(array, 3, axis=axis)
    return wide[(*[slice(None)] * axis, slice(1, None, 3))]


VIEWS = {
    "transposed": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
    "last axis apart": lambda x: strided(x, 3),
    "rows apart": lambda x: strided(x, 2),
    "heads apart": lambda x: strided(x, 1),
    "fortran": np.asfortranarray,
    "swapped": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "batch backwards": lambda x: x[::-1].copy()[::-1],
    "rows backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "last axis backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "all backwards": lambda x: np.flip(np.flip(x).copy()),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_views_are_as_their_copies(engine, view, dtype, numbers):
    arrays = example(numbers, dtype=dtype)
    mask, bias = numbers.random((2, 4, 3, 5)) < 0.7, numbers.standard_normal((2, 4, 3, 5))
    views = [view(x) for x in arrays]
    assert all((a == b).all() for a, b in zip(arrays, views, strict=True))
    want, budget = expect(*arrays, mask=mask, bias=bias)
    hold(views, engine, want, budget, mask=view(mask), bias=view(bias))


@pytest.mark.parametrize("n_keys", [1, 31, 32, 33, 65])
def test_repeated_memory_is_as_its_copy(engine, n_keys, numbers):
    query, key, value = example(numbers, lead=(4,), kv=(1,), S=n_keys, D=8)
    mask = np.broadcast_to(numbers.random(n_keys) < 0.7, (4, 3, n_keys))
    shared = np.broadcast_to(key, (4, n_keys, 8)), np.broadcast_to(value, (4, n_keys, 3))
    want, budget = expect(query, *(x.copy() for x in shared), mask=mask.copy())
    hold((query, *shared), engine, want, budget, mask=mask)
    hold((np.broadcast_to(query[:1, :1], query.shape), *shared), engine, mask=mask)


@pytest.mark.parametrize("n_keys", [1, 5])
def test_inputs_are_read_only(engine, n_keys, numbers):
    arrays = example(numbers, S=n_keys)
    how = restrictions(numbers, 3, n_keys) | {"key_lengths": np.array([n_keys, 1])}
    inputs = [*arrays, *(x for x in how.values() if isinstance(x, np.ndarray))]
    for x in inputs:
        x.flags.writeable = False
    before = [x.tobytes() for x in inputs]
    results = [*attention(*arrays, **how, engine=engine), attend(*arrays, **how, engine=engine)]
    output, pullback = vjp(*arrays, **how, engine=engine)
    results += [output, *pullback(np.ones_like(output))]
    results += [x for x in observe(*arrays, **how, engine=engine) if x is not None]
    assert before == [x.tobytes() for x in inputs]
    for result in results:
        assert result.flags.writeable
        assert not any(np.shares_memory(result, x) for x in inputs)


def test_one_key_is_a_copy_of_the_value(engine):
    value = np.array([[1.0, 2.0]])
    output = attend(np.zeros((1, 3)), np.zeros((1, 3)), value, engine=engine)
    output += 1
    np.testing.assert_array_equal(value, [[1, 2]])


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f4", "<f8"])
def test_byte_order_is_no_matter(engine, kind, numbers):
    arrays = [x.astype(kind) for x in example(numbers)]
    bias = numbers.standard_normal((3, 5)).astype(">f8")
    offset = np.array([1, 0], ">i8")
    want, budget = expect(
        *(x.astype(x.dtype.newbyteorder("=")) for x in arrays),
        bias=bias,
        causal=True,
        query_offset=offset,
    )
    hold(arrays, engine, want, budget, bias=bias, causal=True, query_offset=offset)
    output, weights = attention(*arrays, engine=engine)
    assert output.dtype == weights.dtype == np.dtype(kind).newbyteorder("=")
    assert output.dtype.isnative


def test_results_are_aligned(engine, numbers):
    for n in range(1, 6):
        arrays = example(numbers, T=n, E=n)
        for result in (*attention(*arrays, engine=engine), attend(*arrays, engine=engine)):
            assert result.ctypes.data % 64 == 0


def test_out_is_filled_and_returned(engine, numbers):
    arrays = example(numbers, dtype=np.float32)
    want = attention(*arrays, engine=engine)
    out, strided_out = np.full((2, 4, 3, 3), NAN, np.float32), np.zeros((2, 4, 3, 6), np.float32)
    assert attend(*arrays, out=out, engine=engine) is out
    np.testing.assert_array_equal(out, attend(*arrays, engine=engine))
    view = strided_out[..., ::2]
    assert attend(*arrays, out=view, engine=engine) is view
    np.testing.assert_array_equal(view, out)
    assert not strided_out[..., 1::2].any()
    for places in itertools.product((True, False), repeat=2):
        pair = tuple(
            np.full(x.shape, NAN, x.dtype) if place else None
            for x, place in zip(want, places, strict=True)
        )
        got = attention(*arrays, out=pair, engine=engine)
        for place, given_out, result, right in zip(places, pair, got, want, strict=True):
            assert (result is given_out) == place
            np.testing.assert_array_equal(result, right)


def test_out_that_does_not_fit_is_refused(engine, numbers):
    query, key, value = example(numbers, E=4)
    read_only = np.zeros((2, 4, 3, 4))
    read_only.flags.writeable = False
    for out in (
        np.zeros((2, 4, 3, 5)),
        np.zeros((4, 3, 4)),
        np.zeros((2, 4, 3, 4), np.float32),
        read_only,
        query,
        query[...],
    ):
        with pytest.raises(ValueError, match="out"):
            attend(query, key, value, out=out, engine=engine)
    for out in (np.zeros((2, 4, 3, 4)), [None], 1):
        with pytest.raises(TypeError, match="out"):
            attention(query, key, value, out=out, engine=engine)


@pytest.mark.parametrize(
    "sizes",
    [{"T": 0}, {"S": 0}, {"D": 0}, {"E": 0}, {"T": 0, "S": 0}, {"D": 0, "E": 0}],
    ids=str,
)
def test_no_size_is_too_small(engine, sizes, numbers):
    for lead, kv in (((2, 4), (2, 2)), ((), ()), ((0, 2), (0, 1)), ((2, 0), (2, 0))):
        arrays = example(numbers, lead=lead, kv=kv, **sizes)
        hold(arrays, engine)
        hold(arrays, engine, causal=True, window=(1, None), softcap=2.0)
        output, pullback = vjp(*arrays, engine=engine)
        gradients = pullback(np.ones_like(output))
        shapes = [x.shape for x in (gradients.query, gradients.key, gradients.value)]
        assert shapes == [x.shape for x in arrays]


# ------------------------------------------------------------------------ types


PROMOTIONS = [
    ((np.float32, np.float16, np.float64), np.float64),
    ((np.float32, np.float16, np.float16), np.float32),
    ((np.float16, np.float16, np.float16), np.float16),
    ((bfloat16, bfloat16, bfloat16), bfloat16),
    ((bfloat16, np.float16, np.float16), np.float32),
    ((np.float16, bfloat16, bfloat16), np.float32),
    ((bfloat16, np.float32, bfloat16), np.float32),
    ((bfloat16, np.float64, np.float16), np.float64),
    ((np.float16, np.float16, np.float32), np.float32),
    ((np.int8, np.float32, np.float16), np.float64),
    ((np.uint16, np.int64, np.bool_), np.float64),
    ((np.float32, np.float32, np.int32), np.float64),
]


@pytest.mark.parametrize(
    ("kinds", "wanted"), PROMOTIONS, ids=lambda x: getattr(x, "__name__", None)
)
def test_types_promote(engine, kinds, wanted, numbers):
    arrays = example(numbers)
    arrays = [abs(2 * x).astype(kind) for x, kind in zip(arrays, kinds, strict=True)]
    hold(arrays, engine)
    output, weights = attention(*arrays, engine=engine)
    assert output.dtype == weights.dtype == attend(*arrays, engine=engine).dtype == wanted
    lse = observe(*arrays, statistics="log_sum_exp", engine=engine).log_sum_exp
    assert lse.dtype == (np.float64 if wanted is np.float64 else np.float32)


def test_lists_are_float64(engine):
    output, weights = attention([[1, 0]], [[1, 0], [0, 1]], [[1.5], [2]], engine=engine)
    assert output.dtype == weights.dtype == np.float64
    hold(([[1, 0]], [[1, 0], [0, 1]], [[1.5], [2]]), engine)


def test_bias_and_sinks_do_not_promote(engine, numbers):
    for dtype in (np.float16, bfloat16, np.float32):
        arrays = example(numbers, dtype=dtype)
        how = {"bias": numbers.standard_normal((3, 5)), "sinks": numbers.standard_normal(4)}
        hold(arrays, engine, **how)
        assert attend(*arrays, **how, engine=engine).dtype == dtype
        hold(arrays, engine, bias=np.arange(5), sinks=1)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
def test_no_finite_number_stands_for_minus_infinity(engine, dtype):
    query, key = np.zeros((2, 1), dtype), np.zeros((3, 1), dtype)
    value = np.array([[1], [2], [4]], dtype)
    bias = np.array([[-1e300] * 3, [0, -1e300, -INF]])
    hold((query, key, value), engine, bias=bias)
    weights = attention(query, key, value, bias=bias, engine=engine).weights
    assert (weights[0] > 0.3).all()
    value[1] = NAN
    output = attend(query, key, value, bias=bias, engine=engine)
    assert np.isnan(output.astype(np.float32)).all(), "a key at -1e300 is visible"
    value[1], value[2] = 2, NAN
    assert attend(query, key, value, bias=bias, engine=engine)[1] == 1


def test_a_huge_sink_is_finite(engine):
    arrays = [np.ones((1, 2, 1), np.float32)] * 3
    observed = observe(*arrays, sinks=np.array([1e300]), engine=engine)
    np.testing.assert_array_equal(observed.log_sum_exp, np.full((1, 2), np.finfo(np.float32).max))
    assert not observed.output.any()


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
@pytest.mark.parametrize("n_keys", [1000, 4096, 8000, 20000])
def test_values_of_one_come_back_as_one(engine, dtype, n_keys, numbers):
    query, key, _ = example(numbers, lead=(1, 2), kv=(1, 2), S=n_keys, D=16, dtype=dtype)
    value = np.ones((1, 2, n_keys, 2), dtype)
    output = attend(query, key, value, engine=engine).astype(np.float64)
    assert (abs(output - 1) <= oracle.epsilon(dtype)).all()
    flat = attend(np.zeros_like(query), key, value, engine=engine)
    np.testing.assert_array_equal(flat.astype(np.float64), 1)


def test_equal_half_keys_share_equally(engine):
    key = np.zeros((4096, 2), np.float16)
    weights = attention(key[:1], key, key, engine=engine).weights
    np.testing.assert_array_equal(weights, np.full((1, 4096), 2.0**-12))
    lse = observe(key[:1], key, statistics="log_sum_exp", engine=engine).log_sum_exp
    agree(lse, [np.log(4096)], 2 * np.spacing(np.float32(8)))


@pytest.mark.parametrize(("dtype", "low"), [(np.float32, -20.0), (np.float64, -40.0)])
def test_tails_keep_their_digits(engine, dtype, low):
    key = np.array([[0.0], [low]], dtype)
    value = np.array([[0.0], [1.0]], dtype)
    output, weights = attention(np.ones((1, 1), dtype), key, value, scale=1.0, engine=engine)
    right = np.exp(low) / (1 + np.exp(low))
    agree(weights[0, 1], right, 4 * oracle.epsilon(dtype) * right)
    agree(output[0, 0], right, 4 * oracle.epsilon(dtype) * right)


@pytest.mark.parametrize("size", [1, 3, 7, 9, 17, 80, 257, 300, 513])
def test_default_scale_is_of_the_head_size(engine, size, numbers):
    arrays = example(numbers, D=size)
    hold(arrays, engine)
    same = attend(*arrays, scale=1 / math.sqrt(size), engine=engine)
    np.testing.assert_array_equal(attend(*arrays, engine=engine), same)
    assert not np.array_equal(same, attend(*arrays, scale=1.1 / math.sqrt(size), engine=engine))


@pytest.mark.parametrize("level", [-6e4, 6e4, -1e30, 1e30])
def test_a_common_shift_of_the_scores_is_nothing(engine, level):
    bias = np.full((1, 3), level)
    key, value = np.zeros((3, 1)), np.array([[1.0], [2.0], [6.0]])
    output, weights = attention(np.zeros((1, 1)), key, value, bias=bias, engine=engine)
    agree(weights, np.full((1, 3), 1 / 3), np.finfo(float).eps)
    agree(output, [[3.0]], 8 * np.finfo(float).eps)


# ------------------------------------------------------------------------ what is not finite


@settings(max_examples=150)
@given(
    call=calls(
        empty=False,
        layouts=("contiguous",),
        restrictions=(
            "mask",
            "causal",
            "window",
            "key_lengths",
            "query_lengths",
            "query_offset",
            "scale",
            "sinks",
        ),
    ),
    data=st.data(),
)
def test_what_is_not_finite_reaches_those_who_see_it(engine, call, data):
    arrays = [x.copy() for x in call.arrays]
    for x in arrays:
        places = st.integers(0, x.size - 1)
        for place in data.draw(st.lists(places, max_size=2)):
            x.flat[place] = data.draw(st.sampled_from((NAN, INF, -INF)))
    hold(arrays, engine, **call.how)


@settings(max_examples=60)
@given(call=calls(empty=False, restrictions=("mask", "causal", "sinks")), data=st.data())
def test_what_is_not_finite_in_a_bias_stays_in_its_rows(engine, call, data):
    bias = np.zeros(call.shape)
    for place in data.draw(st.lists(st.integers(0, bias.size - 1), max_size=3)):
        bias.flat[place] = data.draw(st.sampled_from((NAN, INF, -INF)))
    hold(call.arrays, engine, **call.how, bias=bias)


def test_minus_infinity_in_a_bias_masks_whatever_is_there(engine):
    query, key = np.array([[1.0]]), np.array([[0.0], [NAN], [INF], [-INF]])
    value = np.array([[3.0], [NAN], [INF], [NAN]])
    bias = np.array([0.0, -INF, -INF, -INF])
    output, weights = attention(query, key, value, bias=bias, engine=engine)
    np.testing.assert_array_equal(output, [[3]])
    np.testing.assert_array_equal(weights, [[1, 0, 0, 0]])


def test_infinite_values_count_by_visibility_not_weight(engine):
    query, key = np.ones((1, 1)), np.array([[0.0], [-2000.0], [-2000.0]])
    value = np.array([[1.0, 1, 1, 1], [INF, INF, -INF, NAN], [INF, -INF, 2, 2]])
    output, weights = attention(query, key, value, scale=1.0, engine=engine)
    np.testing.assert_array_equal(output, [[INF, NAN, -INF, NAN]])
    np.testing.assert_array_equal(weights, [[1, 0, 0]])
    hidden = attend(
        query, key, value, scale=1.0, mask=np.array([True, False, False]), engine=engine
    )
    np.testing.assert_array_equal(hidden, np.ones((1, 4)))


@pytest.mark.parametrize("bad", [1e30, NAN, INF])
@pytest.mark.parametrize(("T", "S"), [(5, 5), (3, 5), (5, 3)])
def test_the_future_is_not_seen(engine, bad, T, S, numbers):
    query, key, value = example(numbers, T=T, S=S)
    before = attention(query, key, value, causal=True, engine=engine)
    for cut in range(S):
        later, later_value = key.copy(), value.copy()
        later[..., cut:, :] = later_value[..., cut:, :] = bad
        seen = max(cut - (S - T), 0)
        after = attention(query, later, later_value, causal=True, engine=engine)
        output = attend(query, later, later_value, causal=True, engine=engine)
        for got, want in (
            (after.output, before.output),
            (after.weights, before.weights),
            (output, before.output),
        ):
            agree(got[..., :seen, :], want[..., :seen, :], 8 * np.finfo(float).eps)
        i, j = np.indices((T, S))
        assert not after.weights[..., j > i + S - T].any()


def test_unused_capacity_may_hold_anything(engine, numbers):
    query, key, value = example(numbers, lead=(2, 4), kv=(2, 2), T=12, S=12)
    want, budget = expect(query, key, value, causal=True)
    wide = [np.full((2, 2, 256, x.shape[-1]), NAN) for x in (key, value)]
    for chunk in (1, 4, 8):
        for buffer in wide:
            buffer[...] = NAN
        for start in range(0, 12, chunk):
            stop = min(start + chunk, 12)
            wide[0][..., start:stop, :] = key[..., start:stop, :]
            wide[1][..., start:stop, :] = value[..., start:stop, :]
            output, weights = attention(
                query[..., start:stop, :],
                *wide,
                causal=True,
                key_lengths=stop,
                query_offset=start,
                engine=engine,
            )
            rows = slice(start, stop)
            agree(output, want.output[..., rows, :], 2 * budget.output()[..., rows, :])
            agree(weights[..., :12], want.weights[..., rows, :], 2 * budget.weights()[..., rows, :])
            assert not weights[..., 12:].any()


# ------------------------------------------------------------------------ positions


def test_chunks_equal_one_pass(engine, numbers):
    query, key, value = example(numbers, T=6, S=6)
    want, budget = expect(query, key, value, causal=True)
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, 6), n) for n in range(6)
    ):
        rows = [
            attend(
                query[..., start:stop, :],
                key[..., :stop, :],
                value[..., :stop, :],
                causal=True,
                engine=engine,
            )
            for start, stop in itertools.pairwise((0, *cuts, 6))
        ]
        agree(np.concatenate(rows, axis=-2), want.output, 2 * budget.output())


@pytest.mark.parametrize("left", [None, *range(8)])
@pytest.mark.parametrize("right", [None, 0, 1, 2, 7])
def test_a_decoding_step_is_its_row(engine, left, right, numbers):
    query, key, value = example(numbers, lead=(2,), kv=(1,), T=6, S=6)
    want, budget = expect(query, key, value, window=(left, right))
    for step in range(6):
        row = attend(
            query[..., step : step + 1, :],
            key,
            value,
            window=(left, right),
            query_offset=step,
            engine=engine,
        )
        agree(row, want.output[..., step : step + 1, :], budget.output()[..., step : step + 1, :])
    last = attend(query[..., 5:, :], key, value, window=(left, right), engine=engine)
    agree(last, want.output[..., 5:, :], budget.output()[..., 5:, :])


def test_positions_of_padded_queries_and_keys(engine, numbers):
    arrays = example(numbers, T=4, S=6)
    how = {"causal": True, "query_lengths": [4, 2], "key_lengths": [6, 3]}
    hold(arrays, engine, **how)
    output = attend(*arrays, **how, engine=engine)
    query, key, value = arrays
    alone = attend(query[1, :, :2], key[1, :, :3], value[1, :, :3], causal=True, engine=engine)
    agree(output[1, :, :2], alone, 16 * np.finfo(float).eps * abs(value).max())
    assert not output[1, :, 2:].any()


def test_lengths_of_one_side_need_an_offset(engine, numbers):
    arrays = example(numbers, T=4, S=6)
    for how in ({"key_lengths": [6, 3]}, {"query_lengths": 2}):
        for use in ({"causal": True}, {"window": (1, 1)}, {"window": (1, None)}):
            with pytest.raises(ValueError, match="query_offset"):
                attend(*arrays, **how, **use, engine=engine)
        hold(arrays, engine, **how)
        hold(arrays, engine, **how, causal=False, window=(None, None))


def test_lengths_and_offsets_are_ints_without_batches(engine, numbers):
    for arrays in (example(numbers, lead=(), kv=()), example(numbers, lead=(2,), kv=(2,))):
        hold(arrays, engine, key_lengths=3, query_lengths=np.int64(2), causal=True)
        hold(arrays, engine, query_offset=-1, causal=True)
        with pytest.raises(ValueError, match="query\\[:, None\\]"):
            attend(*arrays, key_lengths=[3, 4], engine=engine)


# ------------------------------------------------------------------------ again


@settings(max_examples=40)
@given(call=calls(types=(np.float16, np.float32, np.float64)))
def test_the_same_call_gives_the_same_bits(engine, call):
    first, again = (attention(*call.arrays, **call.how, engine=engine) for _ in range(2))
    assert [x.tobytes() for x in first] == [x.tobytes() for x in again]
    one, other = (attend(*call.arrays, **call.how, engine=engine, threads=n) for n in (1, 2))
    assert one.tobytes() == other.tobytes()
