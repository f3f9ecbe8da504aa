# SPDX-License-Identifier: Apache-2.0
"""Layouts without an engine: what vLLM 0.32 would allocate for a config.json (docs/models.md)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any

from kvferry import _library, _values
from kvferry.layout import Layout
from kvferry.report import Report


def derive(config: str | Mapping[str, Any], **options: str | int | None) -> Layout:
    """The layout of one worker, from config.json's text or values.

    Options are those of kvferry_model_options in include/kvferry/model.h, e.g. tp_size=2, tp_rank=1,
    platform="cpu"; None is the default. TypeError, ValueError: no such
    option, or not such a value. Refused: see docs/models.md.
    """
    raw = (config if isinstance(config, str) else json.dumps(config)).encode()
    given = _library.CModelOptions(size=ctypes.sizeof(_library.CModelOptions))
    known = {field[0] for field in given._fields_} - {"size"}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"expected options {', '.join(sorted(known))}, found {name}")
        if value is not None:
            _values.set_field(given, name, value)
    handle = ctypes.c_void_p()
    with Report() as report:
        report.check(
            _library.library().kvferry_model_layout(
                raw, len(raw), ctypes.byref(given), ctypes.byref(handle), report.handle
            )
        )
    assert handle.value is not None
    return Layout(handle.value)
