# SPDX-License-Identifier: Apache-2.0
"""Python's values as C takes them. What ctypes would cut, wrap or crash on raises an error that names what was
expected and found: TypeError, ValueError, and Error for text that C would read otherwise."""

from __future__ import annotations

import ctypes
import operator
from array import array
from collections.abc import Sequence
from ctypes import c_bool, c_char_p, c_int, c_uint32
from typing import Any

from kvferry.report import Error


def _wrong(what: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"kvferry: {what}: expected {expected}, found {value!r:.100} ({type(value).__name__})")


def text(what: str, value: Any) -> bytes:
    """Error: C would see it end where a NUL stands, or it has halves of characters."""
    if not isinstance(value, str):
        raise _wrong(what, "text", value)
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise Error(
            f"kvferry: {what}: {value!a}: expected text that UTF-8 can hold: {error.reason}", "invalid"
        ) from None
    if b"\0" in encoded:
        raise Error(f"kvferry: {what}: {value!a}: expected text without a NUL", "invalid")
    return encoded


def text_or_null(what: str, value: Any) -> bytes | None:
    """ "" is the default, for which C takes NULL too."""
    return text(what, value) or None


def flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def whole(what: str, value: Any, bits: int = 64) -> int:
    """A number without a sign, of so many bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong(what, "an integer", value) from None
    if isinstance(value, bool):
        raise _wrong(what, "an integer", value)
    if number < 0 or number >> bits:
        raise ValueError(f"kvferry: {what}: expected 0 to {(1 << bits) - 1}, found {number}")
    return number


def milliseconds(what: str, seconds: Any) -> int:
    """Of a time in seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise _wrong(what, "a number of seconds", seconds)
    if not 0 <= seconds < 1 << 53:
        raise ValueError(f"kvferry: {what}: expected seconds, 0 or more and less than 2^53, found {seconds}")
    return round(seconds * 1000)


def whole_array(what: str, values: Sequence[int]) -> ctypes.Array[c_uint32]:
    """Many numbers of 32 bits; made fast, since block tables are long."""
    try:
        packed = array("I", values)
    except (TypeError, OverflowError):
        for index, value in enumerate(values):
            whole(f"{what}[{index}]", value, 32)
        raise _wrong(what, "a sequence of integers", values) from None
    kind = c_uint32 * len(packed)
    return kind.from_buffer(packed) if packed else kind()


def set_field(structure: ctypes.Structure, name: str, value: Any) -> None:
    """Sets a text, a flag or a number by the type that the field has."""
    kind = dict((field[0], field[1]) for field in structure._fields_)[name]
    if kind is c_char_p:
        setattr(structure, name, text_or_null(name, value))
    elif kind is c_bool:
        setattr(structure, name, flag(name, value))
    else:
        bits = 8 * ctypes.sizeof(kind) - (kind is c_int)
        setattr(structure, name, whole(name, value, bits))
