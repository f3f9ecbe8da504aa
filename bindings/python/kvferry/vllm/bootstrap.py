# SPDX-License-Identifier: Apache-2.0
"""Where an engine's bootstrap server is: the same places and variables as vLLM's MooncakeConnector uses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm import envs

from kvferry._address import with_port
from kvferry.vllm._options import options_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Bootstrap:
    """`listen`: what this worker serves, "" if another does; `url`: where it registers, "" if nowhere."""

    listen: str
    url: str
    dp_rank: int

    @classmethod
    def of(cls, vllm_config: VllmConfig, host: str, tp_rank: int, pp_rank: int) -> Bootstrap:
        """For a worker whose own address is `host`. Decode-only engines have none: nobody looks for them."""
        config, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        assert config is not None
        local = parallel.local_engines_only
        dp_rank = parallel.data_parallel_rank_local if local else parallel.data_parallel_index
        if not config.is_kv_producer:
            return cls("", "", dp_rank or 0)
        port = envs.VLLM_MOONCAKE_BOOTSTRAP_PORT
        elsewhere = options_of(config).get("bootstrap_server_address")
        if elsewhere is not None:
            return cls("", f"http://{elsewhere}", dp_rank or 0)
        if local:
            place = host if _is_loopback(host) else "127.0.0.1"
        elif parallel.nnodes_within_dp > 1:
            place = parallel.master_addr
        else:
            place = parallel.data_parallel_master_ip
        serves = tp_rank == 0 and pp_rank == 0 and not dp_rank
        everywhere = "::" if ":" in host else "0.0.0.0"
        listen = with_port(host if _is_loopback(host) else everywhere, port) if serves else ""
        return cls(listen, f"http://{with_port(place, port)}", dp_rank or 0)
