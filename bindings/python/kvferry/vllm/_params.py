# SPDX-License-Identifier: Apache-2.0
"""A request's kv_transfer_params. They are the client's: any JSON may stand in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: The longest text of each key, in bytes: ids as on the wire, addresses as the library reads them.
LIMITS = {"transfer_id": 255, "remote_engine_id": 255, "remote_bootstrap_addr": 334}


def _found(value: Any, limit: int) -> str:
    """What is wrong with a key's value, or ""."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    if "\0" in value:
        return "that has a NUL inside"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "that is no Unicode text"
    return f"of {size} bytes" if size > limit else ""


def fault(params: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Why the values of `keys` cannot be served, or ""."""
    keys = list(keys)
    missing = [key for key in keys if not params.get(key)]
    if missing:
        return f"kv_transfer_params without {', '.join(missing)}"
    for key in keys:
        if found := _found(params[key], LIMITS[key]):
            return f"kv_transfer_params with a {key} {found}: expected text of 1 to {LIMITS[key]} bytes"
    return ""


class Claims:
    """One side of an engine's transfers, prefill or decode, and whose the transfer ids are that are in use there:
    a node knows a transfer by its id alone."""

    def __init__(self, serves: bool, kv_role: str | None, keys: tuple[str, ...]) -> None:
        self._serves = serves
        self._kv_role = kv_role
        self._keys = keys
        self._owners: dict[str, str] = {}  # transfer id -> request id
        self._ids: dict[str, str] = {}  # the other way round

    def claim(self, request_id: str, params: Mapping[str, Any]) -> str:
        """Makes the transfer id that of this request, until it is released; why not, or ""."""
        if not self._serves:
            return f"this engine's kv_role is {self._kv_role}"
        if why := fault(params, self._keys):
            return why
        transfer_id = params["transfer_id"]
        owner = self._owners.setdefault(transfer_id, request_id)
        if owner != request_id:
            return f"transfer_id {transfer_id!r} is in use by request {owner}"
        self._ids[request_id] = transfer_id
        return ""

    def owns(self, request_id: str) -> bool:
        return request_id in self._ids

    def release(self, request_id: str) -> None:
        """The request has done with its id, if it had one."""
        if request_id in self._ids:
            del self._owners[self._ids.pop(request_id)]
