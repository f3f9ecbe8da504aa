# SPDX-License-Identifier: Apache-2.0
"""A start of the real vLLM with KvferryConnector beside the other side's documents, which vLLM has no part in."""

import json
import os

import pytest
from vllm_models import HERE, PLATFORM, run, served

#: Each test starts vLLM twice, once without weights: what is checked there, tests/vllm/connector/test_peers.py tests.
__test__ = os.environ.get("KVFERRY_VLLM_ALL") == "1"

#: In how many ways keys and values of bfloat16 are unlike those of float16. With AMX only the former lie in tiles.
KINDS = 9 if PLATFORM == "cpu-amx" else 2

ENVIRONMENT = {
    "PYTHONPATH": HERE,
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "0",
}


def connector(role, **options):
    given = {
        "kv_connector": "KvferryConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": role,
        "engine_id": "here",
        "kv_connector_extra_config": options,
    }
    return ["--kv-transfer-config", json.dumps(given)]


def documents(folder, *options):
    """Of a decode server's only worker."""
    arguments = [*served("llama-recall", "tp1"), *options, *connector("kv_consumer")]
    run("kvferry.vllm.layout", *arguments, "--engine-id", "there", "--layout-dir", str(folder), **ENVIRONMENT)
    return {"peer_layouts": str(folder)}


def begin(topology, options):
    return run("start", *served("llama-recall", topology), *connector("kv_producer", **options), **ENVIRONMENT)


def test_a_start_that_fits(tmp_path):
    assert "started" in begin("tp2", documents(tmp_path))


def test_a_start_that_does_not_fit(tmp_path):
    """All its workers are looked at, those of the second stage too: each has two layers' k and v."""
    with pytest.raises(AssertionError) as failed:
        begin("pp2", documents(tmp_path, "--dtype", "float16"))
    said = str(failed.value)
    assert "this server, engine here, cannot serve engine there in" in said
    assert f"({KINDS} reasons; {4 * KINDS} over all layers and workers)" in said
    assert 'stream k: the elements have another type: expected "float16", found "bfloat16"' in said
