# SPDX-License-Identifier: Apache-2.0
"""Hosts and ports in one text."""

from __future__ import annotations


def with_port(host: str, port: int | str) -> str:
    """ "HOST:PORT", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
