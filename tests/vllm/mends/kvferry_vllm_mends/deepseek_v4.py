# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 on a CPU.

vLLM has CPU kernels for the model's arithmetic, but prepares their indices with Triton, which has no
driver on a CPU. Each function here fills the same outputs as the kernel whose launcher it takes the place
of, and takes the same arguments.
"""

import functools

import torch

PAD = -1


def mend() -> None:
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        replace_kernels()
    complete_tile_scheduler()
    allow_any_top_k()
    keep_chunks_and_prefixes()


# --- indices ---------------------------------------------------------------------------------------


def replace_kernels() -> None:
    from vllm.v1.attention.backends.mla import compressor_utils, indexer, sparse_swa
    from vllm.v1.attention.ops import metadata

    metadata.compute_token_to_req_indices = requests_of_tokens
    sparse_swa.compute_token_to_req_indices = requests_of_tokens
    sparse_swa.ComputeSWAIndicesAndLensKernel.__call__ = window_slots
    sparse_swa.ComputePrefillMetadataKernel.__call__ = prefill_lengths
    compressor_utils.CompressedSlotMappingKernel.__call__ = compressed_slots
    indexer.PrepareUniformDecodeKernel.__call__ = decode_rows
    indexer.BuildPrefillChunkMetadataKernel.__call__ = prefill_chunk


def owners(query_start_loc, tokens):
    """The request that each of the tokens belongs to; the last request for tokens past the end."""
    ends = query_start_loc[1:].long().contiguous()
    return torch.searchsorted(ends, tokens, right=True).clamp(max=len(ends) - 1)


def slots(block_table, requests, positions, block_size):
    """Where positions of requests are stored. Positions past a request's blocks give any of its slots."""
    blocks = (positions // block_size).clamp(0, block_table.shape[1] - 1)
    return block_table[requests, blocks].long() * block_size + positions % block_size


def requests_of_tokens(query_start_loc, out, num_mapped_tokens, num_tokens):
    tokens = torch.arange(num_tokens)
    found = owners(query_start_loc, tokens)
    out[:num_tokens] = torch.where(tokens < num_mapped_tokens, found, 0).to(out.dtype)
    return out[:num_tokens]


def window_slots(
    self,
    swa_indices,
    swa_lens,
    window_size,
    index_width,
    left_visible,
    right_visible,
    query_start_loc,
    seq_lens,
    token_to_req_indices,
    is_valid_token,
    block_table,
    block_size,
    replay_start,
    *,
    num_tokens,
    token_offset,
    has_image=False,
):
    if has_image:
        raise RuntimeError("windows that images widen are not mended: the tests have no images")
    if num_tokens == 0:
        return
    tokens = torch.arange(token_offset, token_offset + num_tokens)
    valid = is_valid_token[tokens].bool()
    requests = token_to_req_indices[tokens].long()
    # A token's position: its request's length, less the tokens of this step that follow it.
    positions = seq_lens[requests].long() - query_start_loc[requests + 1].long() + tokens
    first = (positions - window_size + 1).clamp(min=0).maximum(replay_start[requests].long())
    lengths = torch.where(valid, positions + 1 - first, 0)
    columns = torch.arange(index_width)
    found = slots(block_table, requests[:, None], first[:, None] + columns, block_size)
    rows = swa_indices.view(swa_indices.shape[0], -1)
    rows[:num_tokens, :index_width] = torch.where(columns < lengths[:, None], found, PAD).to(rows.dtype)
    swa_lens[:num_tokens] = lengths.to(swa_lens.dtype)


def prefill_lengths(
    self, prefill_gather_lens, seq_lens, query_start_loc, replay_start, num_prefills, num_decodes, window_size
):
    last = num_decodes + num_prefills
    queries = query_start_loc[num_decodes + 1 : last + 1] - query_start_loc[num_decodes:last]
    before = seq_lens[num_decodes:last] - queries - replay_start[num_decodes:last]
    prefill_gather_lens[:num_prefills] = queries + before.clamp(min=0, max=window_size - 1)


def compressed_slots(
    self,
    out,
    slot_mapping,
    query_start_loc,
    seq_lens,
    block_table,
    block_size,
    compress_ratio,
    dcp_world_size,
    cp_interleave,
):
    if dcp_world_size != 1:
        raise RuntimeError("decode context parallelism is not mended")
    count = block_table.shape[0]
    tokens = torch.arange(int(query_start_loc[count]))
    requests = owners(query_start_loc[: count + 1], tokens)
    positions = seq_lens[requests].long() - query_start_loc[requests + 1].long() + tokens
    own = torch.full_like(tokens, PAD)
    own[: len(slot_mapping)] = slot_mapping[: len(tokens)].long()
    # A state is stored with the last of the tokens that it compresses.
    complete = ((positions + 1) % compress_ratio == 0) & (own != PAD)
    found = slots(block_table, requests, positions // compress_ratio, block_size)
    out[: len(tokens)] = torch.where(complete, found, PAD).to(out.dtype)


def decode_rows(
    self, seq_lens, decode_seq_lens, block_table, expanded_block_table, decode_lens, num_decode_tokens, max_decode_len
):
    tokens = torch.arange(num_decode_tokens)
    requests = tokens // max_decode_len
    lengths = seq_lens[requests] - (max_decode_len - 1 - tokens % max_decode_len)
    decode_seq_lens[:num_decode_tokens] = lengths.clamp(min=0).to(decode_seq_lens.dtype)
    width = min(block_table.shape[1], expanded_block_table.shape[1])
    expanded_block_table[:num_decode_tokens, :width] = block_table[requests, :width]
    decode_lens[:num_decode_tokens] = 1


def prefill_chunk(
    self,
    query_start_loc,
    uncompressed_seq_lens,
    cu_compressed_seq_lens,
    row_start,
    token_to_seq,
    starts,
    ends,
    slice_start,
    slice_stop,
    dcp_rank,
    dcp_world,
    dcp_interleave,
    *,
    num_reqs,
    COMPRESS_RATIO,
    **_,
):
    if dcp_world != 1:
        raise RuntimeError("decode context parallelism is not mended")
    first, last = max(slice_start, int(query_start_loc[0])), min(slice_stop, int(query_start_loc[num_reqs]))
    if last > first:
        tokens = torch.arange(first, last)
        requests = owners(query_start_loc[: num_reqs + 1], tokens)
        tokens_before = uncompressed_seq_lens[requests].long() - query_start_loc[requests + 1].long() + tokens + 1
        visible = tokens_before // COMPRESS_RATIO
        # vLLM finds a row's request by its start, which behind the last state is that of no request.
        begin = torch.where(visible > 0, row_start[requests], 0)
        rows = slice(first - slice_start, last - slice_start)
        starts[rows] = begin.to(starts.dtype)
        ends[rows] = (begin + visible).to(ends.dtype)
    lengths = (cu_compressed_seq_lens[1 : num_reqs + 1] - cu_compressed_seq_lens[:num_reqs]).long()
    base = int(cu_compressed_seq_lens[0])
    token_to_seq[base : base + int(lengths.sum())] = torch.repeat_interleave(torch.arange(num_reqs), lengths).to(
        token_to_seq.dtype
    )


# --- the rest --------------------------------------------------------------------------------------


def complete_tile_scheduler() -> None:
    """The CPU's builder answers for three kinds of layers, and is asked for five."""
    from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder as Builder
    from vllm.v1.attention.backends.mla import sparse_swa

    kinds = [value for name, value in vars(sparse_swa).items() if name.startswith("_LAYER_TYPE_")]
    Builder.build_tile_scheduler = lambda self, num_decode_tokens: dict.fromkeys(kinds)


class _TopK(int):
    """A number of indices that is taken for the 512 which the CPU's kernel asks for."""

    def __eq__(self, other):
        return other == 512 or int(self) == other

    __hash__ = int.__hash__


def allow_any_top_k() -> None:
    """With few indices a short prompt already hangs on the indexer's own cache."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

    of_512 = ops.topk_transform_512_cpu
    forward = SparseAttnIndexer.forward_cpu

    @functools.wraps(of_512)
    def top_k(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices=None):
        wanted = out_page_indices.shape[1]
        if wanted == 512 or out_raw_indices is None:
            of_512(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)
            return
        columns = torch.arange(scores.shape[1])
        alive = torch.where(columns < seq_lens[:, None], scores, float("-inf"))
        values, indices = alive.topk(min(wanted, alive.shape[1]), dim=1)
        past_all = torch.iinfo(torch.int64).max
        indices = torch.where(values == float("-inf"), past_all, indices).sort(dim=1).values
        out_raw_indices.fill_(PAD)
        out_raw_indices[:, : indices.shape[1]] = torch.where(indices == past_all, PAD, indices).to(
            out_raw_indices.dtype
        )

    @functools.wraps(forward)
    def any_width(self, *args, **kwargs):
        self.topk_tokens = _TopK(self.topk_tokens)
        return forward(self, *args, **kwargs)

    ops.topk_transform_512_cpu = top_k
    SparseAttnIndexer.forward_cpu = any_width


def keep_chunks_and_prefixes() -> None:
    """Without AMX, vLLM switches chunked prefill and prefix caching off for this model, for speed only."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_but_keep(cls, vllm_config):
        scheduler, cache, model = (vllm_config.scheduler_config, vllm_config.cache_config, vllm_config.model_config)
        asked = (scheduler.enable_chunked_prefill, cache.enable_prefix_caching, scheduler.max_num_batched_tokens)
        check(cls, vllm_config)
        if model is not None and getattr(model.hf_config, "model_type", None) == "deepseek_v4":
            (scheduler.enable_chunked_prefill, cache.enable_prefix_caching, scheduler.max_num_batched_tokens) = asked

    CpuPlatform.check_and_update_config = classmethod(check_but_keep)
