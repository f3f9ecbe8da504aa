# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libkvferry, and declares the functions of its public headers."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

#: The interface that the declarations below were written for: a library fits if its major and
#: minor version are these.
INTERFACE = (0, 1)

OK, REFUSED, INVALID, MALFORMED, NO_MEMORY, NO_SPACE, NOT_FOUND, UNSUPPORTED, BUSY, TIMEOUT = range(10)
PEER_LOST, ENGINE = 11, 13


class CWorker(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank", "dp_size")]


class CIdentity(ctypes.Structure):
    _fields_ = [("model", c_char_p), ("revision", c_char_p), ("draft", c_char_p)]


class CSegment(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("bytes", c_uint64)]


class CGroup(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int),
        ("block_tokens", c_uint64),
        ("window", c_uint64),
        ("null_block", c_int64),
    ]


class CAxis(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("start", c_uint64),
        ("extent", c_uint64),
        ("global", c_uint64),
        ("stride", c_uint64),
    ]


class CStream(ctypes.Structure):
    _fields_ = [
        ("layer", c_char_p),
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("format", c_char_p),
        ("group", c_uint32),
        ("segment", c_uint32),
        ("offset", c_uint64),
        ("pages", c_uint64),
        ("page_stride", c_uint64),
        ("page_tokens", c_uint64),
        ("tokens_per_state", c_uint64),
        ("cell_bytes", c_uint64),
        ("policy", c_int),
        ("axes", POINTER(CAxis)),
        ("axis_count", c_uint32),
        ("aliases", POINTER(c_char_p)),
        ("alias_count", c_uint32),
    ]


class CDigest(ctypes.Structure):
    _fields_ = [("layer", c_char_p), ("stream", c_char_p), ("policy", c_int), ("text", c_char * 33)]


class CReason(ctypes.Structure):
    _fields_ = [
        (name, c_char_p)
        for name in ("code", "worker", "layer", "stream", "axis", "place", "expected", "found", "message")
    ]


class CEngineOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("transport", c_char_p),
        ("net_devices", c_char_p),
        ("max_outstanding", c_uint64),
        ("own", c_void_p),
        ("name", c_char_p),
        ("host", c_char_p),
    ]


class CModelOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tp_size", c_uint32),
        ("pp_size", c_uint32),
        ("tp_rank", c_uint32),
        ("pp_rank", c_uint32),
        ("engine_id", c_char_p),
        ("model", c_char_p),
        ("platform", c_char_p),
        ("backend", c_char_p),
        ("kv_dtype", c_char_p),
        ("state_dtype", c_char_p),
        ("indexer_dtype", c_char_p),
        ("conv_layout", c_char_p),
        ("memory_order", c_char_p),
        ("mamba_mode", c_char_p),
        ("block_size", c_uint64),
        ("kernel_block_size", c_uint64),
        ("max_model_len", c_uint64),
        ("blocks", c_uint64),
        ("mtp_layers", c_uint32),
        ("speculative_tokens", c_uint32),
        ("kpool", c_char_p),
    ]


class CRange(ctypes.Structure):
    _fields_ = [("start", c_uint64), ("extent", c_uint64)]


class CPiece(ctypes.Structure):
    _fields_ = [
        ("source_stream", c_uint32),
        ("target_stream", c_uint32),
        ("ranges", POINTER(CRange)),
        ("range_count", c_uint32),
        ("state_bytes", c_uint64),
    ]


class CCopy(ctypes.Structure):
    _fields_ = [
        ("source_offset", c_uint64),
        ("target_offset", c_uint64),
        ("bytes", c_uint64),
        ("source_segment", c_uint32),
        ("target_segment", c_uint32),
    ]


_TEXT_OUT, _HANDLE_OUT, _SIZE_OUT = POINTER(c_void_p), POINTER(c_void_p), POINTER(c_size_t)

# name -> (result, arguments), in the order of the headers. Handles are void pointers.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kvferry_version": (c_char_p, []),
    "kvferry_status_name": (c_char_p, [c_int]),
    "kvferry_status_describe": (c_char_p, [c_int]),
    "kvferry_report_create": (c_int, [_HANDLE_OUT]),
    "kvferry_report_free": (None, [c_void_p]),
    "kvferry_report_count": (c_size_t, [c_void_p]),
    "kvferry_report_dropped": (c_size_t, [c_void_p]),
    "kvferry_report_get": (POINTER(CReason), [c_void_p, c_size_t]),
    "kvferry_free": (None, [c_void_p]),
    "kvferry_layout_read_json": (c_int, [c_char_p, c_size_t, _HANDLE_OUT, c_void_p]),
    "kvferry_layout_read_msgpack": (c_int, [c_char_p, c_size_t, _HANDLE_OUT, c_void_p]),
    "kvferry_layout_free": (None, [c_void_p]),
    "kvferry_layout_write_json": (c_int, [c_void_p, _TEXT_OUT, _SIZE_OUT]),
    "kvferry_layout_write_msgpack": (c_int, [c_void_p, _TEXT_OUT, _SIZE_OUT]),
    "kvferry_layout_engine_id": (c_char_p, [c_void_p]),
    "kvferry_layout_worker": (POINTER(CWorker), [c_void_p]),
    "kvferry_layout_identity": (POINTER(CIdentity), [c_void_p]),
    "kvferry_layout_segment_count": (c_uint32, [c_void_p]),
    "kvferry_layout_group_count": (c_uint32, [c_void_p]),
    "kvferry_layout_stream_count": (c_uint32, [c_void_p]),
    "kvferry_layout_segment": (POINTER(CSegment), [c_void_p, c_uint32]),
    "kvferry_layout_group": (POINTER(CGroup), [c_void_p, c_uint32]),
    "kvferry_layout_stream": (POINTER(CStream), [c_void_p, c_uint32]),
    "kvferry_layout_group_blocks": (c_uint64, [c_void_p, c_uint32]),
    "kvferry_layout_groups_share": (ctypes.c_bool, [c_void_p, c_uint32, c_uint32]),
    "kvferry_layout_digest": (POINTER(CDigest), [c_void_p, c_uint32]),
    "kvferry_layout_compare": (c_int, [c_void_p, c_void_p, c_void_p]),
    "kvferry_model_layout": (c_int, [c_char_p, c_size_t, POINTER(CModelOptions), _HANDLE_OUT, c_void_p]),
    "kvferry_plan_create": (c_int, [POINTER(c_void_p), c_size_t, c_void_p, _HANDLE_OUT, c_void_p]),
    "kvferry_plan_free": (None, [c_void_p]),
    "kvferry_plan_source_count": (c_size_t, [c_void_p]),
    "kvferry_plan_piece_count": (c_size_t, [c_void_p, c_size_t]),
    "kvferry_plan_piece": (POINTER(CPiece), [c_void_p, c_size_t, c_size_t]),
    "kvferry_plan_expand_bound": (c_size_t, [c_void_p, c_size_t, c_void_p]),
    "kvferry_plan_expand": (
        c_int,
        [c_void_p, c_size_t, c_void_p, POINTER(CCopy), c_size_t, _SIZE_OUT, c_void_p],
    ),
    "kvferry_request_read_json": (c_int, [c_char_p, c_size_t, _HANDLE_OUT, c_void_p]),
    "kvferry_request_free": (None, [c_void_p]),
}


class LibraryError(ImportError):
    """libkvferry is not there, or is of another version."""


def own_file(name: str) -> Path | None:
    """What the wheel carries beside the modules; of an editable install it lies in a folder of its own."""
    package = sys.modules["kvferry"]
    return next((path for folder in package.__path__ if (path := Path(folder) / name).exists()), None)


def _candidates() -> Iterable[str]:
    """KVFERRY_LIBRARY alone if it is set; else the wheel's own, else the system's."""
    named = os.environ.get("KVFERRY_LIBRARY")
    if named:
        return [named]
    own = own_file("libkvferry.so")
    return [str(own)] if own else [f"libkvferry.so.{INTERFACE[0]}"]


def declare(library: ctypes.CDLL, functions: dict[str, tuple[Any, list[Any]]]) -> None:
    """Gives each function its result and arguments; a name that is missing is a LibraryError."""
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryError(
                f"{library._name} has no {name}: expected a library of kvferry {INTERFACE[0]}.{INTERFACE[1]}"
            ) from None
        function.restype, function.argtypes = result, arguments


@functools.cache
def library() -> ctypes.CDLL:
    """The library, opened once. LibraryError says which files were tried and what was wrong."""
    failures = []
    for path in _candidates():
        try:
            opened = ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
            continue
        declare(opened, {"kvferry_version": _FUNCTIONS["kvferry_version"]})
        found = opened.kvferry_version().decode()
        if tuple(int(part) for part in found.split(".")[:2]) != INTERFACE:
            raise LibraryError(f"{path} is kvferry {found}: expected {INTERFACE[0]}.{INTERFACE[1]}")
        declare(opened, _FUNCTIONS)
        return opened
    raise LibraryError("libkvferry cannot be opened: " + "; ".join(failures))


def version() -> str:
    """The version of the library that is open, "major.minor.patch"."""
    return library().kvferry_version().decode()


def text(value: bytes | None) -> str:
    """A C string of the library, which are UTF-8."""
    return value.decode() if value else ""
