# SPDX-License-Identifier: Apache-2.0
"""What may stand in kv_connector_extra_config. docs/vllm.md says what each is for."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

#: Numbers of milliseconds: up to a year.
_TIME = range(1, 365 * 24 * 3600 * 1000 + 1)

#: Names with the type of their values, for numbers the range.
OPTIONS: dict[str, type[str] | type[bool] | range] = {
    "engine": str,
    "transport": str,
    "net_devices": str,
    "key_file": str,
    "allowed_keys": str,
    "insecure": bool,
    "bootstrap_server_address": str,
    "kv_cache_layout": str,
    "metrics_listen": str,
    "peer_layouts": str,
    "verify": bool,
    "lease_ms": _TIME,
    "transfer_ms": _TIME,
    "early_ms": _TIME,
    "connect_ms": _TIME,
    "retry_ms": _TIME,
    "silence_ms": _TIME,
    "linger_ms": _TIME,
    "max_transfers": range(1, 1 << 32),
    "max_peer_copies": range(1, 1 << 63),
}

#: Those that are not the node's, by their names in include/kvferry/node.h.
NOT_THE_NODES = ("bootstrap_server_address", "kv_cache_layout", "peer_layouts")


def _expected(kind: type[str] | type[bool] | range) -> str:
    if isinstance(kind, range):
        return f"an integer from {kind.start} to {kind.stop - 1}"
    return "true or false" if kind is bool else "text"


def _fits(kind: type[str] | type[bool] | range, value: Any) -> bool:
    if isinstance(kind, range):
        return type(value) is int and value in kind
    return type(value) is kind


def _fault(name: str, value: Any) -> str:
    """What is wrong with an entry, or ""."""
    if name not in OPTIONS:
        near = difflib.get_close_matches(str(name), OPTIONS, n=1)
        meant = f"{near[0]!r}?" if near else f"one of {', '.join(OPTIONS)}"
        return f"{name!r}: there is no such option: expected {meant}"
    if _fits(OPTIONS[name], value):
        return ""
    return f"{name}: expected {_expected(OPTIONS[name])}, found {value!r:.100} ({type(value).__name__})"


def options_of(config: KVTransferConfig) -> dict[str, Any]:
    """The options that are given; null stands for one that is not. ValueError names all that are none."""
    given = {name: value for name, value in config.kv_connector_extra_config.items() if value is not None}
    faults = [fault for name, value in given.items() if (fault := _fault(name, value))]
    if faults:
        raise ValueError(f"kvferry: kv_connector_extra_config: {'; '.join(faults)}")
    return given


def node_options_of(config: KVTransferConfig) -> dict[str, Any]:
    """Those that are handed to the node."""
    return {name: value for name, value in options_of(config).items() if name not in NOT_THE_NODES}
