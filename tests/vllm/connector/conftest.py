# SPDX-License-Identifier: Apache-2.0
"""Requests and cache configurations of the installed vLLM, without a model."""

from types import SimpleNamespace

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.bfloat16)
STATE = MambaSpec(
    block_size=16,
    shapes=((4, 3), (2, 8, 8)),
    dtypes=(torch.bfloat16, torch.float32),
    mamba_type="gdn_attention",
    num_speculative_blocks=2,
)


def cache_config(*specs):
    groups = [KVCacheGroupSpec([f"layers.{index}"], spec) for index, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=groups)


@pytest.fixture(name="attention")
def attention_config():
    return cache_config(ATTENTION)


@pytest.fixture(name="hybrid")
def hybrid_config():
    return cache_config(STATE, ATTENTION)


def engine(role, **options):
    """What the scheduler's half reads of a VllmConfig."""
    transfer = KVTransferConfig(kv_connector="KvferryConnector", kv_role=role, kv_connector_extra_config=options)
    return SimpleNamespace(kv_transfer_config=transfer, cache_config=SimpleNamespace(enable_prefix_caching=True))


def request(tokens, params, *, embeds=False, name="r1", **sampling):
    return Request(
        request_id=name,
        prompt_token_ids=None if embeds else list(range(tokens)),
        prompt_embeds=torch.zeros(tokens, 4) if embeds else None,
        sampling_params=SamplingParams(
            max_tokens=sampling.pop("max_tokens", 8), extra_args={"kv_transfer_params": params}, **sampling
        ),
        pooling_params=None,
    )


def decode_params(transfer_id="t1"):
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": transfer_id,
        "remote_engine_id": "prefill-0",
        "remote_bootstrap_addr": "http://127.0.0.1:8998",
    }


def prefill_params(transfer_id="t1"):
    return {"do_remote_prefill": False, "do_remote_decode": True, "transfer_id": transfer_id}


def blocks(*tables):
    """As much of a KVCacheBlocks as the connector looks at."""
    return SimpleNamespace(get_block_ids=lambda: tuple(list(table) for table in tables))
