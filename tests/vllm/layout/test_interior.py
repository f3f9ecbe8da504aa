# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own kernels and views put into a page lies where the document says."""

from types import SimpleNamespace

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowMLASpec

from kvferry.layout import Identity, Worker
from kvferry.vllm._facts import LayerFacts, ModelFacts, View
from kvferry.vllm.layout import describe

BLOCKS = 3


def streams_of(spec, tensor, key_value=False, **facts):
    """The streams of one layer with this spec and tensor, on rank 0 of 1."""
    group = SimpleNamespace(layer_names=["l.0"], kv_cache_spec=spec)
    config = SimpleNamespace(num_blocks=BLOCKS, transfer_groups=(group,))
    model = ModelFacts(
        identity=Identity("m"),
        worker=Worker(0, 1, 0, 1),
        layers={"l.0": LayerFacts(**facts)},
        key_value=key_value,
    )
    layout = describe(config, {"l.0": View.from_tensor(tensor)}, model, "").layout
    return {one.name: one for one in layout.streams}


def strided(stream, memory, dtype):
    """A stream as a tensor over the storage's bytes: [page, axes in the document's order, cell]."""
    size = torch.tensor([], dtype=dtype).element_size()
    shape = [stream.pages, *(axis.extent for axis in stream.axes), stream.cell_bytes // size]
    strides = [stream.page_stride, *(axis.stride for axis in stream.axes), size]
    assert all(stride % size == 0 for stride in (*strides, stream.offset))
    return memory.view(dtype).as_strided(shape, [stride // size for stride in strides], stream.offset // size)


@pytest.mark.parametrize(("heads", "head_size", "block"), [(2, 64, 128), (1, 32, 32), (3, 80, 64), (2, 128, 384)])
def test_cpu_attention(heads, head_size, block):
    """Keys and values of every token of two blocks, through the kernel that vLLM writes them with."""
    dtype = torch.bfloat16
    spec = FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=head_size, dtype=dtype)
    memory = torch.zeros(BLOCKS * spec.page_size_bytes, dtype=torch.int8)
    cache = memory.view(dtype).view(BLOCKS, heads, block, 2 * head_size)
    isa = _get_attn_isa(dtype, block, head_size)
    order, tokens = [2, 0], 2 * block
    slots = torch.cat([torch.arange(one * block, (one + 1) * block) for one in order])
    key, value = (torch.randn(tokens, heads, head_size).to(dtype) for _ in range(2))
    keys, values = cache.view(BLOCKS, heads, 2 * block, head_size).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, isa)
    found = streams_of(spec, cache, backend="CPU_ATTN", isa=isa, kv_heads=heads)
    got_key, got_value = strided(found["k"], memory, dtype)[order], strided(found["v"], memory, dtype)[order]
    if isa == "amx":  # k: [block, head, token / 16, (dim / 2, token % 16, dim % 2)]
        got_key = got_key.unflatten(3, (head_size // 2, 16, 2)).permute(0, 2, 4, 1, 3, 5)
        got_value = got_value.unflatten(4, (16, 2)).permute(0, 3, 5, 1, 2, 4)
    else:  # k: [block, head, dim, token, 1], v: [block, head, token, dim]
        got_key, got_value = got_key.permute(0, 3, 1, 2, 4), got_value.permute(0, 2, 1, 3)
    assert torch.equal(got_key.reshape(key.shape), key)
    assert torch.equal(got_value.reshape(value.shape), value)


@pytest.mark.parametrize("dim_first", [True, False])
def test_recurrent_states(dim_first):
    """Convolution and recurrent state, by the views that vLLM's layers take of a padded page."""
    heads, value_dim, key_dim, rows = 4, 16, 8, 3
    keys, channels = 2 * key_dim, 2 * 2 * key_dim + heads * value_dim
    shapes = ((channels, rows) if dim_first else (rows, channels), (heads, value_dim, key_dim))
    dtypes = (torch.bfloat16, torch.float32)
    spec = MambaSpec(
        block_size=64,
        shapes=shapes,
        dtypes=dtypes,
        page_size_padded=4096,
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
    )
    memory = torch.zeros(BLOCKS * 4096, dtype=torch.int8)
    content = spec.state_content_size_bytes
    tensor = memory.as_strided((BLOCKS, 1, 1, content), (4096, content, content, 1))
    layer = SimpleNamespace(get_state_shape=lambda: shapes, get_state_dtype=lambda: dtypes)
    MambaBase.bind_kv_cache(layer, tensor)
    conv, ssm = layer.kv_cache
    conv.copy_(torch.randn(conv.shape))
    ssm.copy_(torch.randn(ssm.shape))
    found = streams_of(spec, tensor, key_value=True, backend="GDN_ATTN")
    by_channel = conv if dim_first else conv.transpose(1, 2)
    first = 0
    for name, count in (("conv.q", keys), ("conv.k", keys), ("conv.v", heads * value_dim)):
        got = strided(found[name], memory, torch.bfloat16)
        assert torch.equal(got[..., 0], by_channel[:, first : first + count]), name
        first += count
    got = strided(found["ssm"], memory, torch.float32)
    assert torch.equal(got.unflatten(2, (value_dim, key_dim)), ssm)
    assert found["ssm"].format == "key_value"


def test_packed_latents():
    """DeepSeek-V4's kernel changes the data and the scales of the tokens that it inserts, and nothing else."""
    block, tokens = 64, 2
    spec = SlidingWindowMLASpec(
        block_size=block,
        num_kv_heads=1,
        head_size=512,
        dtype=torch.uint8,
        sliding_window=128,
        cache_dtype_str="fp8_ds_mla",
        alignment=576,
        model_version="deepseek_v4",
        state_content_bytes=584,
    )
    row = spec.page_size_bytes
    memory = torch.full((BLOCKS * row,), 0x55, dtype=torch.uint8)
    tensor = memory.as_strided((BLOCKS, 1, block, 584), (row, row, 584, 1))
    found = streams_of(spec, tensor, backend="DEEPSEEK_SPARSE_SWA")
    q, kv = torch.randn(tokens, 16, 512, dtype=torch.bfloat16), torch.randn(tokens, 512, dtype=torch.bfloat16)
    angles = torch.randn(8, 64)
    places = [(1, 5), (2, 63)]
    slots = torch.tensor([page * block + token for page, token in places])
    rows = memory.as_strided((BLOCKS, block * 584), (row, 1))
    ops.fused_qnorm_rope_kv_insert_cpu(q, kv, torch.arange(tokens), rows, slots, angles, 16, 1e-6, block)
    changed = memory != 0x55
    inside = torch.zeros_like(changed)
    for name, least in (("latent", 560), ("latent.scale", 7)):
        cells = strided(found[name], inside.view(torch.uint8), torch.uint8)
        seen = strided(found[name], changed.view(torch.uint8), torch.uint8)
        for page, token in places:
            cells[page, token] = 1
            assert seen[page, token].sum() >= least, name
    assert not (changed & ~inside).any()
