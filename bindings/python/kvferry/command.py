# SPDX-License-Identifier: Apache-2.0
"""The command `kvferry` of a wheel: the program that lies beside the modules, in place of this process."""

from __future__ import annotations

import os
import sys

from kvferry._library import own_file


def main() -> None:
    """Does not return: the program's exit status is this process's."""
    program = own_file("_command/kvferry")
    if not program:
        print(
            "kvferry: the program is not beside the modules: install with pip, or call that of a build", file=sys.stderr
        )
        sys.exit(3)
    os.execv(program, ["kvferry", *sys.argv[1:]])
