# SPDX-License-Identifier: Apache-2.0
"""Prints what an installed distribution requires, but for the distributions that are named after it.

python requirements.py DISTRIBUTION [LEFT-OUT...]
"""

import importlib.metadata
import re
import sys


def main() -> None:
    name, *left_out = sys.argv[1:]
    for requirement in importlib.metadata.requires(name) or []:
        project = re.match(r"[\w.-]+", requirement).group().lower()
        if project not in left_out and "extra ==" not in requirement:
            print(requirement)


main()
