"""What is JAX's own: tracers, immutable arrays, 32-bit integers, bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaledot import attend, attention, observe


def arrays(*shape, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, shape, dtype=dtype) for key in keys]


def test_tracers_are_refused_with_the_remedy():
    query, key, value = arrays(2, 5, 4)
    for transform in (jax.jit, lambda f: jax.grad(lambda *x: f(*x).sum()), jax.vmap):
        with pytest.raises(TypeError, match=r"JAX tracer.*vjp"):
            transform(attend)(query, key, value)


def test_agrees_with_dot_product_attention():
    query, key, value = arrays(2, 40, 4, 16)  # (batch, length, heads, size)
    theirs = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    ours = attend(*(x.swapaxes(1, 2) for x in (query, key, value)), causal=True).swapaxes(1, 2)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-6)


def test_many_blocks_of_an_immutable_result(monkeypatch):
    from scaledot import planning

    query, key, value = arrays(3, 50, 8)
    whole = attention(query, key, value, engine="textbook")
    for name, size in {"BLOCK_ROWS": 7, "BLOCK_KEYS": 9, "BLOCK_SCORES": 70}.items():
        monkeypatch.setattr(planning, name, size)
    planning.clear()
    blocks = attention(query, key, value, engine="blockwise")
    received = observe(query, key, statistics="received", engine="blockwise").received
    planning.clear()
    np.testing.assert_allclose(blocks.output, whole.output, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(blocks.weights, whole.weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(received, np.sum(whole.weights, -2), rtol=1e-5, atol=1e-6)


def test_out_is_refused():
    query, key, value = arrays(2, 5, 4)
    with pytest.raises(TypeError, match="immutable"):
        attend(query, key, value, out=query)


def test_bfloat16():
    query, key, value = arrays(2, 40, 16, dtype=jnp.bfloat16)
    output = attend(query, key, value)
    exact = attend(*(np.asarray(x).astype(np.float64) for x in (query, key, value)))
    assert output.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(output).astype(np.float64), exact, rtol=2**-7, atol=2**-8)


def test_indices_come_in_the_type_that_jax_has():
    seen = observe(*arrays(2, 5, 4), statistics=("argmax", "top_k"))
    assert seen.argmax.dtype == seen.top_k.indices.dtype == jnp.int32
