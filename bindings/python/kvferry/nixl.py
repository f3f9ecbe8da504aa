# SPDX-License-Identifier: Apache-2.0
"""Where NIXL's wheel has the C interface that the library's engine "nixl" loads."""

from __future__ import annotations

import importlib.metadata
import os
import re

VARIABLE = "KVFERRY_NIXL_LIBRARY"
LIBRARY = "libnixl_capi.so"


def find_library() -> None:
    """Has the engine load the library of a wheel that is installed here; what the environment names comes first.
    Without either, the engine looks on the loader's path."""
    if os.environ.get(VARIABLE):
        return
    for wheel in importlib.metadata.distributions():
        if not re.fullmatch(r"nixl[-_]cu\d+", wheel.metadata["Name"] or ""):
            continue
        for file in wheel.files or ():
            if file.name == LIBRARY:
                os.environ[VARIABLE] = str(file.locate())
                return
