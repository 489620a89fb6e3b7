"""What is PyTorch's own: gradients that record, tensors without data, half types, memory."""

import numpy as np
import pytest
import torch

from scaledot import attend, attention, observe, vjp


def tensors(*shape, dtype=torch.float32):
    return [torch.randn(*shape, dtype=dtype) for _ in range(3)]


def test_a_tensor_that_records_gradients_is_refused_with_the_remedy():
    query, key, value = tensors(2, 5, 4)
    query.requires_grad_()
    with pytest.raises(TypeError, match=r"records gradients.*query\.detach\(\).*vjp"):
        attend(query, key, value)
    with torch.no_grad():
        attend(query, key, value)
    attend(query.detach(), key, value)


def test_tensors_without_data_are_refused():
    query, key, value = tensors(2, 5, 4)
    with pytest.raises(TypeError, match="meta"):
        attend(query.to("meta"), key, value)
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode,
        pytest.raises(TypeError, match="FakeTensor"),
    ):
        attend(mode.from_tensor(query), key, value)
    with pytest.raises(TypeError, match="transform"):
        torch.func.vmap(lambda q: attend(q, key[0], value[0]))(query)
    with pytest.raises(TypeError, match="to_dense"):
        attend(query[0].to_sparse(), key[0], value[0])


def test_agrees_with_scaled_dot_product_attention():
    query, key, value = tensors(2, 8, 300, 64)
    ours = attend(query, key, value)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert float((ours - theirs).abs().max()) < 16 * torch.finfo(torch.float32).eps
    ours = attend(query, key[:, :, :200], value[:, :, :200], causal=True, query_offset=0)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        query, key[:, :, :200], value[:, :, :200], is_causal=True
    )
    assert float((ours - theirs).abs().max()) < 16 * torch.finfo(torch.float32).eps


def test_gradients_agree_with_autograd():
    query, key, value = tensors(2, 3, 50, 16, dtype=torch.float64)
    grad = torch.randn(2, 3, 50, 16, dtype=torch.float64)
    output, pullback = vjp(query, key, value, causal=True)
    ours = pullback(grad)
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    theirs.backward(grad)
    torch.testing.assert_close(output, theirs.detach())
    for mine, leaf in zip(ours[:3], leaves, strict=True):
        torch.testing.assert_close(mine, leaf.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("engine", ["textbook", "blockwise", "fused"])
def test_half_types_are_summed_in_float32(dtype, engine):
    query, key, value = tensors(2, 4, 70, 16, dtype=dtype)
    exact = attention(*(x.double() for x in (query, key, value)))
    output, weights = attention(query, key, value, engine=engine)
    assert output.dtype == weights.dtype == dtype
    unit = torch.finfo(dtype).eps
    assert float((output.double() - exact.output).abs().max()) <= unit * float(
        exact.output.abs().max()
    )
    seen = observe(query, key, value, engine=engine)
    assert seen.log_sum_exp.dtype == torch.float32
    assert seen.argmax.dtype == torch.int64


def test_float16_with_bfloat16_gives_float32():
    query, key, value = tensors(5, 4)
    assert attend(query.half(), key.bfloat16(), value.half()).dtype == torch.float32


def test_out():
    query, key, value = tensors(4, 60, 8)
    out = torch.empty(4, 60, 8)
    assert attend(query, key, value, out=out) is out
    torch.testing.assert_close(out, attend(query, key, value))
    with pytest.raises(ValueError, match="shares memory with `query`"):
        attend(query, key, value, out=query)
    with pytest.raises(TypeError, match="inputs' library"):
        attend(query, key, value, out=np.empty((4, 60, 8), np.float32))


def test_strides_are_taken():
    query, key, value = (x.transpose(1, 2) for x in tensors(2, 30, 4, 8))
    expected = attend(query.contiguous(), key.contiguous(), value.contiguous())
    torch.testing.assert_close(attend(query, key, value), expected)
    one_key = key[:, :1].expand(-1, 4, -1, -1)
    torch.testing.assert_close(attend(query, one_key, value), attend(query, one_key.clone(), value))


@pytest.mark.parametrize("engine", ["blockwise", "fused"])
def test_shared_keys_are_not_copied_for_each_head(engine):
    """Key (1, 1, S, D) against query (8, 8, T, D): one copy a head would be 64 of them."""
    n_keys, size = 32768, 64
    query = torch.randn(8, 8, 4, size)
    key, value = (torch.randn(1, 1, n_keys, size) for _ in range(2))
    attend(query, key, value, engine=engine)
    with torch.profiler.profile(profile_memory=True) as profile:
        attend(query, key, value, engine=engine)
    total = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    one_copy_a_head = 64 * key.numel() * 4
    assert peak < one_copy_a_head / 8, f"{peak / 2**20:.1f} MiB"


def test_the_fused_engine_copies_nothing():
    """Inputs of 96 MiB; what is allocated beside the output is scratch."""
    query = torch.randn(1, 1, 200, 128)
    key, value = (torch.randn(1, 1, 98304, 128) for _ in range(2))
    attend(query, key, value)
    with torch.profiler.profile(profile_memory=True) as profile:
        attend(query, key.transpose(1, 2).transpose(1, 2), value)
    events = profile.profiler.kineto_results.events()
    allocated = sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")
    assert allocated < 2**21
