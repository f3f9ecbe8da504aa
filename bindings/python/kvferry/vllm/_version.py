# SPDX-License-Identifier: Apache-2.0
"""Which vLLM is there, and which this was tested with."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
from collections.abc import Iterator

#: The versions of vLLM that this was tested with.
TESTED = ("0.32",)

log = logging.getLogger("vllm.kvferry")  # below the logger that vLLM sets up


class UnfitError(ImportError):
    """vLLM is not there, or has not got a name that is needed of it."""


def found_version() -> str:
    """The installed vLLM's version, "none" if there is none."""
    with contextlib.suppress(Exception):
        import vllm

        return str(vllm.__version__)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("vllm")
    return "none"


def _both() -> str:
    return f"kvferry was tested with vLLM {', '.join(TESTED)}, found {found_version()}"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Imports of vLLM's names inside: what is missing is told with the versions."""
    try:
        yield
    except UnfitError:
        raise
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "kvferry":
            raise
        raise UnfitError(f"{_both()}: {error}", name=error.name, path=error.path) from error


@functools.cache
def warn_of_another() -> None:
    """Warns, once, of a version that this was not tested with."""
    if ".".join(found_version().split(".")[:2]) not in TESTED:
        log.warning("%s", _both())
