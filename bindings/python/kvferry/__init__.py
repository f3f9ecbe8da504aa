# SPDX-License-Identifier: Apache-2.0
"""kvferry: LLM cache state from prefill workers to decode workers.

Thin ctypes over the C library's public headers; docs/python.md is the page of this package.
Importing it loads nothing: the library is opened by the first call that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.layout import Layout
from kvferry.plan import Plan, Request
from kvferry.report import Error, Reason, Refused

if TYPE_CHECKING:
    __version__: str

__all__ = ["Error", "Layout", "Plan", "Reason", "Refused", "Request", "__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from kvferry._library import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
