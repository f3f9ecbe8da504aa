# SPDX-License-Identifier: Apache-2.0
"""Why something was refused: every reason, as include/kvferry/report.h has it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields

from kvferry import _library


@dataclass(frozen=True)
class Reason:
    """One reason. Strings are "" where they do not apply; docs/reasons.md lists the codes."""

    code: str
    message: str
    worker: str = ""
    layer: str = ""
    stream: str = ""
    axis: str = ""
    place: str = ""
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Error(Exception):
    """A call of the library that failed: `status` is the status's name, e.g. "no_space", with what reasons there
    are. `dropped` counts reasons beyond those that a report keeps."""

    def __init__(self, message: str, status: str = "", reasons: Sequence[Reason] = (), dropped: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reasons = tuple(reasons)
        self.dropped = dropped

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(reason.code for reason in self.reasons)


class Refused(Error):
    """The input cannot be served (status "refused") or read ("malformed")."""

    @classmethod
    def of(cls, reasons: Sequence[Reason]) -> Refused:
        """With these reasons, found in Python."""
        return cls("\n".join(str(reason) for reason in reasons), "refused", reasons)


def reasons_of(report: int | ctypes.c_void_p | None) -> list[Reason]:
    """All reasons of a report of the library."""
    library = _library.library()
    found = []
    for index in range(library.kvferry_report_count(report)):
        reason = library.kvferry_report_get(report, index).contents
        found.append(Reason(**{field.name: _library.text(getattr(reason, field.name)) for field in fields(Reason)}))
    return found


class Report:
    """A report of the library, for one call."""

    def __init__(self) -> None:
        self._library = _library.library()
        self.handle = ctypes.c_void_p()
        if self._library.kvferry_report_create(ctypes.byref(self.handle)) != _library.OK:
            raise MemoryError("kvferry: no memory for a report")

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.kvferry_report_free(self.handle)

    def check(self, status: int) -> None:
        """Raises what the status of a call with this report says, if it is not "ok"."""
        reasons = reasons_of(self.handle) if status != _library.OK else []
        if not reasons:
            check(status)
            return
        dropped = self._library.kvferry_report_dropped(self.handle)
        lines = [str(reason) for reason in reasons] + ([f"and {dropped} more"] if dropped else [])
        kind = Refused if status in (_library.REFUSED, _library.MALFORMED) else Error
        raise kind("\n".join(lines), _library.text(self._library.kvferry_status_name(status)), reasons, dropped)


def check(status: int) -> None:
    """Raises MemoryError, Refused or Error if the status of a call is not "ok"."""
    if status == _library.OK:
        return
    library = _library.library()
    sentence = _library.text(library.kvferry_status_describe(status))
    if status == _library.NO_MEMORY:
        raise MemoryError(f"kvferry: {sentence}")
    kind = Refused if status in (_library.REFUSED, _library.MALFORMED) else Error
    raise kind(f"kvferry: {sentence}", _library.text(library.kvferry_status_name(status)))
