# SPDX-License-Identifier: Apache-2.0
"""Running workers of the real vLLM: the document of what their connector is handed."""

import json
import os
from pathlib import Path

import pytest
from vllm_models import HERE, check, check_equal, has, parse_all, run, served

import kvferry

#: Of each kind of caches the largest topology; the others take half an hour more.
CASES = [("llama-recall", "tp4"), ("deepseek-v4", "tp2"), ("gemma3", "tp2")]
if os.environ.get("KVFERRY_VLLM_ALL") == "1":
    CASES += [("llama-recall", one) for one in ("tp1", "tp2", "tp2pp2")] + [("deepseek-v4", "tp1")]
    CASES += [("gemma3", one) for one in ("tp1", "tp4", "tp2pp2")]
if has("avx512_bf16"):  # vLLM's GDN takes no other CPU
    CASES.append(("qwen35-recall", "tp2pp2"))
    if os.environ.get("KVFERRY_VLLM_ALL") == "1":
        CASES += [("qwen35-recall", one) for one in ("tp1", "tp2", "tp4", "pp2")]


@pytest.mark.parametrize(("model", "topology"), CASES)
def test_as_derived_and_as_offline(model, topology, tmp_path):
    environment = {
        "KVFERRY_LAYOUT_DIR": str(tmp_path),
        "PYTHONPATH": HERE,
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    run("start", *served(model, topology), **environment)
    files = sorted(tmp_path.glob("*.json"))
    live = [kvferry.Layout.parse(file.read_text()) for file in files]
    check(model, live, topology)
    connector = '{"kv_connector":"LayoutRecorder","kv_connector_module_path":"recorder","kv_role":"kv_both"}'
    offline = parse_all(
        run("kvferry.vllm.layout", *served(model, topology), "--kv-transfer-config", connector, **environment)
    )
    for one, other in zip(live, offline, strict=True):
        check_equal(one, other)
        assert [group.name for group in one.groups] == [group.name for group in other.groups]
    for file, layout in zip(files, live, strict=True):
        said = json.loads(Path(f"{file}.said").read_text())
        assert said["segments"] == said["storages"]
        assert len(said["segments"]) == 1
        assert said["groups"] == [group.name for group in layout.groups]
        for name, layers in zip(said["groups"], said["vllm_groups"], strict=True):
            assert {one.layer for one in layout.streams if one.group == name} == set(layers)
