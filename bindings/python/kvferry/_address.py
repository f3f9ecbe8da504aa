# SPDX-License-Identifier: Apache-2.0
"""Hosts and ports in one text."""

from __future__ import annotations


def with_port(host: str, port: int | str) -> str:
    """ "HOST:PORT", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def for_rank(address: str, rank: int) -> str:
    """ "HOST:PORT" of a worker where each of several on a host needs a port of its own: its rank is added. 0 stays."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}" if port.isdecimal() and int(port) else address
