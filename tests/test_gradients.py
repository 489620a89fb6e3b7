"""Gradients are finite differences of the oracle, and nothing masked takes part in them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracle
from oracle import agree, expect
from scaledot import Gradients, observe, vjp
from strategies import ENGINES, RESTRICTIONS, calls

INF, NAN = np.inf, np.nan
BLOCKS = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
NAMES = ("query", "key", "value", "bias", "sinks")


def example(numbers, lead=(2, 4), kv=(1, 2), T=3, S=4, D=2, E=2, dtype=np.float64):
    shapes = (*lead, T, D), (*kv, S, D), (*kv, S, E)
    return [numbers.standard_normal(shape).astype(dtype) for shape in shapes]


def given_names(how):
    return [*NAMES[:3], *(name for name in NAMES[3:] if name in how)]


def reach(arrays, how, cotangents):
    """A bound of the size of every product on the way back."""
    query, key, value = (np.abs(np.asarray(x, np.float64)).max(initial=1) for x in arrays)
    want, _ = expect(*arrays, **how)
    scores = np.abs(want.scores, where=np.isfinite(want.scores), out=np.zeros(want.scores.shape))
    scale = how.get("scale")
    scale = abs(scale) if scale is not None else 1
    size = np.shape(arrays[0])[-1]
    sums = [np.abs(x).sum() for x in cotangents]
    pulled = (
        sums[0] * value
        + sums[1]
        + 2 * sums[2] * (1 + scores.max(initial=0) + want.reach.max(initial=0))
    )
    return max(size, 1) * pulled * max(scale * max(query, key), 1)


def hold(arrays, cotangents, wrt=None, engines=ENGINES, **how):
    """Assert that pullbacks give the oracle's differences for these three cotangents."""
    names = given_names(how) if wrt is None else wrt
    grad_output, log_sum_exp, entropy = cotangents
    want = oracle.gradients(
        *arrays, names, grad_output=grad_output, log_sum_exp=log_sum_exp, entropy=entropy, **how
    )
    unit = oracle.epsilon(oracle.type_of_sums(*arrays))
    unit = max(unit, 1e-13)  # the differences themselves are right to about this
    n_terms = 8 + np.shape(arrays[0])[-2] + np.shape(arrays[1])[-2]
    allowed = unit * n_terms * reach(arrays, how, cotangents)
    arguments = dict(zip(NAMES, arrays, strict=False)) | how
    for engine in engines:
        _, pullback = vjp(*arrays, wrt=wrt, **how, engine=engine)
        got = pullback(grad_output, log_sum_exp=log_sum_exp, entropy=entropy)
        for name in names:
            slopes, doubts = want[name]
            gradient = getattr(got, name)
            assert gradient.dtype == arguments[name].dtype, name
            agree(gradient, slopes, allowed + doubts, f"{name} of {engine}")
        assert all(getattr(got, name) is None for name in set(NAMES) - set(names))


def cotangents_of(numbers, arrays, how, dtype=np.float64):
    want, _ = expect(*arrays, **how)
    shapes = want.output.shape, want.log_sum_exp.shape, want.log_sum_exp.shape
    return [numbers.standard_normal(shape).astype(dtype) for shape in shapes]


@settings(max_examples=60)
@given(call=calls(types=(np.float64,), longest=3, largest=1.5), seed=st.integers(0, 99))
def test_gradients_are_differences(call, seed):
    how = {k: v for k, v in call.how.items() if k != "sinks" or v.dtype == np.float64}
    arrays = [np.array(x) for x in call.arrays]
    assume(sum(x.size for x in arrays) < 80)
    hold(arrays, cotangents_of(np.random.default_rng(seed), arrays, how), **how)


@settings(max_examples=40)
@given(
    call=calls(types=(np.float64,), longest=3, largest=1.5),
    seed=st.integers(0, 99),
    block=BLOCKS,
)
def test_any_block_size_gives_the_same_gradients(blocks, call, seed, block):
    assume(sum(x.size for x in call.arrays) < 80)
    cotangents = cotangents_of(np.random.default_rng(seed), call.arrays, call.how)
    with blocks(*block):
        hold(call.arrays, cotangents, engines=("blockwise",), **call.how)


def restrictions(numbers, T, S, dtype):
    bias = np.where(numbers.random((4, 1, S)) < 0.8, numbers.standard_normal((4, 1, S)), -INF)
    return {
        "mask": numbers.random((2, 1, T, S)) < 0.7,
        "bias": bias.astype(dtype),
        "causal": True,
        "query_offset": np.array([1, -1]),
        "window": (2, 1),
        "key_lengths": np.array([S, 2]),
        "query_lengths": np.array([2, T]),
        "scale": -0.8,
        "softcap": 1.5,
        "sinks": numbers.standard_normal((2, 4)).astype(dtype),
    }


@pytest.mark.parametrize(("T", "S"), [(2, 4), (4, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*RESTRICTIONS, "all"])
def test_gradients_under_each_restriction(name, dtype, T, S, numbers):
    arrays = example(numbers, T=T, S=S, dtype=dtype)
    how = restrictions(numbers, T, S, dtype)
    how = how if name == "all" else {name: how[name]}
    hold(arrays, cotangents_of(numbers, arrays, how, dtype), **how)


SHAPES = {
    "two axes": ((3, 2), (4, 2), (4, 1)),
    "grouped": ((4, 2, 2), (2, 3, 2), (2, 3, 2)),
    "one key head": ((3, 2, 2), (1, 3, 2), (3, 3, 2)),
    "one value head": ((4, 2, 2), (2, 3, 2), (1, 3, 2)),
    "one query head": ((1, 2, 2), (3, 3, 2), (3, 3, 2)),
    "shared keys": ((3, 2, 2, 2), (2, 3, 2), (1, 1, 3, 2)),
    "shared query": ((2, 2), (2, 2, 3, 2), (2, 1, 3, 2)),
    "wide value": ((1, 2, 2), (1, 3, 2), (1, 3, 5)),
    "five axes": ((2, 1, 2, 2, 2), (1, 2, 1, 3, 2), (2, 1, 3, 1)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_gradient_has_the_shape_of_its_argument(shapes, numbers):
    arrays = [numbers.standard_normal(shape) for shape in shapes]
    hold(arrays, cotangents_of(numbers, arrays, {}))


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (3, 4), (4, 3, 4), (4, 1, 1), (2, 1, 1, 4)])
def test_a_bias_gets_the_sum_over_what_it_was_spread_over(shape, numbers):
    arrays = example(numbers)
    how = {"bias": numbers.standard_normal(shape)}
    hold(arrays, cotangents_of(numbers, arrays, how), wrt=("bias",), **how)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 1), (2, 4)])
def test_sinks_get_the_sum_over_what_they_were_spread_over(shape, numbers):
    arrays = example(numbers)
    how = {"sinks": numbers.standard_normal(shape)}
    hold(arrays, cotangents_of(numbers, arrays, how), wrt=("sinks",), **how)


def test_rows_of_a_bias_gradient_sum_to_zero(engine, numbers):
    arrays = example(numbers)
    bias = numbers.standard_normal((2, 4, 3, 4))
    output, pullback = vjp(*arrays, bias=bias, wrt="bias", engine=engine)
    total = pullback(np.ones_like(output)).bias.sum(axis=-1)
    agree(total, np.zeros_like(total), 64 * np.finfo(float).eps)


@pytest.mark.parametrize("cotangent", ["grad_output", "log_sum_exp", "entropy"])
def test_each_cotangent_alone(engine, cotangent, numbers):
    arrays, how = example(numbers), {"causal": True, "sinks": numbers.standard_normal(4)}
    cotangents = cotangents_of(numbers, arrays, how)
    alone = ["grad_output", "log_sum_exp", "entropy"].index(cotangent)
    cotangents = [x if n == alone else np.zeros_like(x) for n, x in enumerate(cotangents)]
    hold(arrays, cotangents, **how)
    _, pullback = vjp(*arrays, **how, engine=engine)
    with_zeros = pullback(cotangents[0], log_sum_exp=cotangents[1], entropy=cotangents[2])
    without = pullback(**{cotangent: cotangents[alone]})
    for name, got, want in zip(NAMES, without, with_zeros, strict=True):
        if want is not None:
            agree(got, want, 1e-13, name)


def test_a_pullback_can_be_called_again(engine, numbers):
    arrays = example(numbers)
    output, pullback = vjp(*arrays, engine=engine)
    first, other = pullback(np.ones_like(output)), pullback(2 * np.ones_like(output))
    again = pullback(np.ones_like(output))
    for name in NAMES[:3]:
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
        agree(getattr(other, name), 2 * getattr(first, name), 1e-13)


def test_wrt_says_which(engine, numbers):
    arrays = example(numbers)
    how = {"bias": np.zeros((3, 4)), "sinks": np.zeros(4)}
    for wrt, names in (
        (None, NAMES),
        ("key", ("key",)),
        (["value", "query"], ("query", "value")),
        (iter(["sinks"]), ("sinks",)),
        ({"bias"}, ("bias",)),
    ):
        output, pullback = vjp(*arrays, wrt=wrt, **how, engine=engine)
        gradients = pullback(np.ones_like(output))
        assert isinstance(gradients, Gradients)
        given_back = {name for name in NAMES if getattr(gradients, name) is not None}
        assert given_back == set(names)
    output, pullback = vjp(*arrays, engine=engine)
    assert pullback(np.ones_like(output)).bias is None


def test_wrt_that_is_not_there_is_refused(engine, numbers):
    arrays = example(numbers)
    with pytest.raises(ValueError, match=r"mask.*query"):
        vjp(*arrays, wrt="mask", engine=engine)
    with pytest.raises(ValueError, match="bias"):
        vjp(*arrays, wrt=("query", "bias"), engine=engine)
    with pytest.raises(TypeError, match="wrt"):
        vjp(*arrays, wrt=3, engine=engine)


def test_a_cotangent_of_the_wrong_shape_is_refused(engine, numbers):
    arrays = example(numbers)
    output, pullback = vjp(*arrays, engine=engine)
    with pytest.raises(ValueError, match="grad_output"):
        pullback(np.ones((2, 4, 3, 3)))
    with pytest.raises(ValueError, match="log_sum_exp"):
        pullback(np.ones_like(output), log_sum_exp=np.ones((2, 4, 4)))
    with pytest.raises(ValueError, match="entropy"):
        pullback(entropy=np.ones((4, 3, 1)))


def test_rows_without_keys_add_exactly_nothing(engine, numbers):
    query, key, value = arrays = example(numbers, T=4, S=4)
    mask = np.ones((4, 4), bool)
    mask[1] = mask[3] = mask[:, 2] = False
    cotangents = cotangents_of(numbers, arrays, {"mask": mask})
    bias = np.zeros((4, 4))
    results = []
    for row_value in (1.0, 1e6):
        moved = query.copy()
        moved[..., [1, 3], :] = row_value
        _, pullback = vjp(moved, key, value, mask=mask, bias=bias, engine=engine)
        results.append(pullback(cotangents[0], log_sum_exp=cotangents[1], entropy=cotangents[2]))
    for gradients in results:
        assert not gradients.query[..., [1, 3], :].any()
        assert not gradients.key[..., 2, :].any()
        assert not gradients.value[..., 2, :].any()
        assert not gradients.bias[~mask].any()
    for name in ("key", "value", "bias"):
        one, other = (getattr(gradients, name) for gradients in results)
        assert one.tobytes() == other.tobytes()


def test_nan_in_masked_places_reaches_no_gradient(engine, numbers):
    arrays = example(numbers, kv=(2, 2), S=5)
    lengths = np.array([3, 2])
    cotangents = cotangents_of(numbers, arrays, {"key_lengths": lengths})
    spoiled = [x.copy() for x in arrays]
    for batch, length in enumerate(lengths):
        for x, bad in zip(spoiled[1:], (NAN, INF), strict=True):
            x[batch, :, length:] = bad
    got = []
    for query, key, value in (arrays, spoiled):
        _, pullback = vjp(query, key, value, key_lengths=lengths, engine=engine)
        got.append(pullback(cotangents[0], log_sum_exp=cotangents[1], entropy=cotangents[2]))
    for name in NAMES[:3]:
        clean, with_nan = (getattr(gradients, name) for gradients in got)
        agree(with_nan, clean, 0.0, name)
    for batch, length in enumerate(lengths):
        assert not got[1].key[batch, :, length:].any()
        assert not got[1].value[batch, :, length:].any()


def test_nan_in_a_padded_query_reaches_no_gradient(engine, numbers):
    query, key, value = example(numbers)
    cotangent = np.ones((2, 4, 3, 2))
    how = {"query_lengths": 2, "sinks": np.zeros(4), "engine": engine}
    clean = vjp(query, key, value, **how)[1](cotangent)
    query[..., 2, :] = NAN
    cotangent[..., 2, :] = NAN
    spoiled = vjp(query, key, value, **how)[1](cotangent)
    for name in (*NAMES[:3], "sinks"):
        agree(getattr(spoiled, name), getattr(clean, name), 0.0, name)


def test_a_visible_nan_reaches_who_saw_it_and_no_other(engine, numbers):
    query, key, value = example(numbers, lead=(), kv=(), T=4, S=4)
    query[2, 0] = NAN
    cotangent = np.ones((4, 2))
    got = vjp(query, key, value, causal=True, engine=engine)[1](cotangent)
    np.testing.assert_array_equal(np.isnan(got.query).all(axis=-1), [False, False, True, False])
    for gradient in (got.key, got.value):
        np.testing.assert_array_equal(np.isnan(gradient).all(axis=-1), [True] * 3 + [False])
        assert np.isfinite(gradient[3]).all()


def test_the_output_is_that_of_attend(engine, numbers):
    arrays = example(numbers, dtype=np.float32)
    how = {"causal": True, "softcap": 2.0}
    want, budget = expect(*arrays, **how)
    output, _ = vjp(*arrays, **how, engine=engine)
    assert output.dtype == np.float32
    agree(output, want.output, budget.output())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_come_in_the_types_of_the_arguments(engine, dtype, numbers):
    arrays = example(numbers, dtype=dtype)
    arrays[2] = arrays[2].astype(np.float32)
    how = {"bias": np.zeros((3, 4)), "sinks": np.zeros(4, np.float16)}
    output, pullback = vjp(*arrays, **how, engine=engine)
    gradients = pullback(np.ones_like(output))
    for got, argument in zip(gradients, [*arrays, *how.values()], strict=True):
        assert got.shape == argument.shape
        assert got.dtype == argument.dtype


def test_the_entropy_of_the_pullback_is_that_of_observe(engine, numbers):
    """One step along the gradient of the entropy raises it by the squared length of the step."""
    query, key, value = example(numbers, lead=(), kv=())
    _, pullback = vjp(query, key, value, wrt="query", engine=engine)
    slope = pullback(entropy=np.ones(3)).query
    step = 1e-4
    before, after = (
        observe(query + sign * step * slope, key, statistics="entropy", engine=engine).entropy
        for sign in (-0.5, 0.5)
    )
    agree((after - before).sum() / step, (slope**2).sum(), 1e-6 * (slope**2).sum())
