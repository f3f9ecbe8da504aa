# SPDX-License-Identifier: Apache-2.0
"""The command `kvferry` of a wheel: the program that lies beside the modules, in place of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Does not return: the program's exit status is this process's."""
    program = Path(__file__).with_name("_command") / "kvferry"
    os.execv(program, ["kvferry", *sys.argv[1:]])
