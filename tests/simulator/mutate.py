#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong versions of the core: mutate.py LIST names | mutate.py LIST NAME SOURCE_FOLDER OUTPUT.

LIST has entries of lines: "mutant NAME FILE", then any number of replacements: lines that begin with "-" (what is in
FILE, once) and then lines that begin with "+" (what takes its place). "#" begins a comment.
"""
import sys


def read(path):
    """{name: (file, [(old, new)])}"""
    found, replacements, last = {}, [], ""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            mark, rest = line[:1], line[1:]
            if line.startswith("mutant "):
                _, name, file = line.split()
                replacements = []
                found[name] = (file, replacements)
            elif mark == "-":
                if last != "-":
                    replacements.append(["", ""])
                replacements[-1][0] += rest
            elif mark == "+":
                replacements[-1][1] += rest
            last = mark
    return found


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    mutants = read(sys.argv[1])
    if len(sys.argv) == 3:
        print(";".join(f"{name}:{file}" for name, (file, _) in mutants.items()), end="")
        return
    file, replacements = mutants[sys.argv[2]]
    with open(f"{sys.argv[3]}/{file}", encoding="utf-8") as source:
        text = source.read()
    for old, new in replacements:
        if text.count(old) != 1:
            sys.exit(f"mutant {sys.argv[2]}: {file} has its lines {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    with open(sys.argv[4], "w", encoding="utf-8") as output:
        output.write(text)


if __name__ == "__main__":
    main()
