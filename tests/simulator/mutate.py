#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong versions of the core: mutate.py LIST names | mutate.py LIST NAME SOURCE_FOLDER OUTPUT_FOLDER.

LIST has entries of lines: "mutant NAME", then "in FILE" and replacements in it: lines that begin with "-" (what FILE
has, once), then lines that begin with "+" (what takes their place). "#" begins a comment. `names` prints, for CMake,
NAME:FILE:FILE;NAME:FILE;...
"""
import sys


def read(path):
    """{name: {file: [[old, new], ...]}}"""
    found, replacements, last = {}, [], ""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            mark, rest = line[:1], line[1:]
            if line.startswith("mutant "):
                name = line.split()[1]
                found[name] = {}
            elif line.startswith("in "):
                replacements = found[name].setdefault(line.split()[1], [])
            elif mark == "-":
                if last != "-":
                    replacements.append(["", ""])
                replacements[-1][0] += rest
            elif mark == "+":
                replacements[-1][1] += rest
            last = mark
    return found


def write(name, file, replacements, source_folder, output_folder):
    with open(f"{source_folder}/{file}", encoding="utf-8") as source:
        text = source.read()
    for old, new in replacements:
        if text.count(old) != 1:
            sys.exit(f"mutant {name}: {file} has these lines {text.count(old)} times, not once:\n{old}"
                     "say in tests/simulator/mutants what stands there now")
        text = text.replace(old, new)
    with open(f"{output_folder}/{file}", "w", encoding="utf-8") as output:
        output.write(text)


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    mutants = read(sys.argv[1])
    if len(sys.argv) == 3:
        print(";".join(":".join([name, *files]) for name, files in mutants.items()), end="")
        return
    for file, replacements in mutants[sys.argv[2]].items():
        write(sys.argv[2], file, replacements, sys.argv[3], sys.argv[4])


if __name__ == "__main__":
    main()
