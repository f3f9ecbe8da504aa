# SPDX-License-Identifier: Apache-2.0
"""Which block of a request has its state: of vLLM's own block tables, where vLLM's own kernels look for it."""

from dataclasses import replace

import pytest
import torch
from conftest import ATTENTION, STATE, cache_config, decode_params, prefill_params, request
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

from kvferry.vllm.scheduler import live_state_block

BLOCK = 16
ALIGNED = replace(STATE, mamba_cache_mode="align")
DRAFTS = ALIGNED.num_speculative_blocks


@pytest.fixture(name="manager")
def manager_of_state_and_attention():
    return KVCacheManager(
        cache_config(ALIGNED, ATTENTION),
        max_model_len=256,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_caching=True,
        use_eagle=True,
    )


def hashed(tokens, params):
    init_none_hash(sha256)
    one = request(tokens, params)
    one._block_hasher = get_request_block_hasher(BLOCK, sha256)
    one.update_block_hashes()
    return one


def read_by_kernels(table, length):
    """The block that the state is in after a step that ends at so many tokens, drafts included."""
    rows = mamba_get_block_table_tensor(torch.tensor([table]), torch.tensor([length]), ALIGNED, "align")
    return rows[0, 0].item()


@pytest.mark.parametrize(
    ("steps", "drafts"),
    [
        ([15], 0),
        ([16], 0),
        ([33], 0),
        ([16, 16], 0),
        ([16, 16, 1], 0),
        ([32, 1], DRAFTS),  # the last step is a single token, and vLLM fills it up with drafts
        ([30, 1], DRAFTS),  # which may reach into another block
    ],
)
def test_what_is_offered_is_where_the_last_step_wrote(manager, steps, drafts):
    one = hashed(sum(steps), prefill_params())
    for number, step in enumerate(steps):
        extra = drafts if number == len(steps) - 1 else 0
        assert manager.allocate_slots(one, step + extra, num_lookahead_tokens=DRAFTS) is not None
        one.num_computed_tokens += step
    table, _ = manager.get_blocks(one.request_id).get_block_ids()
    assert live_state_block(table, ALIGNED) == [read_by_kernels(table, one.num_computed_tokens + drafts)]
    assert live_state_block(table, ALIGNED) != [0]


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 33])
def test_what_is_loaded_is_where_the_next_step_reads(manager, tokens):
    one = hashed(tokens + 1, decode_params())
    manager.allocate_slots(one, 0, num_external_computed_tokens=tokens, delay_cache_blocks=True)
    table, _ = manager.get_blocks(one.request_id).get_block_ids()
    # vLLM moves a state on from the block of the last computed token.
    assert live_state_block(table, ALIGNED) == [table[(tokens - 1) // BLOCK]]
    assert live_state_block(table, ALIGNED) != [0]
