# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/command.md, run again in one folder, print what the page says.

In a ```console block, lines that start with "$ " are commands (one that goes on ends with a backslash),
and the lines behind them what they print; "..." on a line of its own stands for any lines.
"""
import os
import re
import subprocess
import unittest

from harness import BINARY, SOURCE, CommandTest


def examples():
    with open(os.path.join(SOURCE, "docs", "command.md"), encoding="utf-8") as file:
        page = file.read()
    for block in re.findall(r"^```console\n(.*?)^```", page, flags=re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part).group()
            yield command, part[len(command):]


class Examples(CommandTest):
    def test_examples(self):
        shown = 0
        bin_folder = os.path.join(self.folder, "bin")
        os.mkdir(bin_folder)
        os.symlink(BINARY, os.path.join(bin_folder, "kvferry"))
        env = dict(os.environ, PATH=f"{bin_folder}:{os.environ['PATH']}",
                   KVFERRY_MODELS=os.path.join(SOURCE, "models"))
        os.mkdir(os.path.join(self.folder, "here"))
        for command, expected in examples():
            process = subprocess.run(["sh", "-c", command], cwd=os.path.join(self.folder, "here"), env=env,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            printed = "\n".join(line.rstrip() for line in process.stdout.decode().splitlines())
            pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + "\n"
                              for line in expected.splitlines())
            self.assertTrue(re.fullmatch(pattern, printed + "\n" if printed else ""),
                            f"{command}prints\n{printed}\nand the page has\n{expected}")
            shown += 1
        self.assertGreater(shown, 8)


if __name__ == "__main__":
    unittest.main()
