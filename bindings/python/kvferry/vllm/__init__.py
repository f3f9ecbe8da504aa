# SPDX-License-Identifier: Apache-2.0
"""What vLLM needs of kvferry; docs/vllm.md is the page. Importing this imports neither vLLM nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.vllm.connector import KvferryConnector

__all__ = ["KvferryConnector"]


def __getattr__(name: str) -> Any:
    if name == "KvferryConnector":
        from kvferry.vllm import _version

        with _version.importing():
            from kvferry.vllm.connector import KvferryConnector
        _version.warn_of_another()
        return KvferryConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
