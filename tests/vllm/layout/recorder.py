# SPDX-License-Identifier: Apache-2.0
"""A connector that moves nothing: each worker writes the document of what it was handed.

Beside each document it writes the addresses of the segments and of the storages that vLLM handed over.
"""

import json
import os

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from kvferry.vllm.layout import document_from_vllm, write_layout


class LayoutRecorder(KVConnectorBase_V1, SupportsHMA):
    def register_kv_caches(self, kv_caches):
        found = document_from_vllm(self._vllm_config, self._kv_cache_config, kv_caches, "live")
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kv_caches.values()
        }
        path = write_layout(found.layout)
        said = {
            "segments": [[one.address, one.bytes] for one in found.segments],
            "storages": sorted(storages.items()),
            "groups": found.groups,
            "vllm_groups": [list(group.layer_names) for group in self._kv_cache_config.transfer_groups],
        }
        with open(os.fspath(path) + ".said", "w") as file:
            json.dump(said, file)

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request, block_ids):
        return False, None
