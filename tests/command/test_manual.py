# SPDX-License-Identifier: Apache-2.0
"""Manual pages and help say what is there: prototypes of headers, options of verbs."""
import glob
import os
import re
import subprocess
import shutil
import unittest

from harness import FINE, SOURCE, CommandTest

VERBS = ("layout", "explain", "plan", "check", "serve", "send", "status", "declare-dead", "keygen")


def text(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def squeeze(source):
    return re.sub(r"\s*([(),*;])\s*", r"\1", re.sub(r"\s+", " ", source)).strip()


class Manual(CommandTest):
    def test_prototypes(self):
        """Section 3 has each public prototype as its header has it."""
        count = 0
        for header in glob.glob(os.path.join(SOURCE, "include", "kvferry", "*.h")):
            source = re.sub(r"/\*.*?\*/", "", text(header), flags=re.S)
            for prototype in re.findall(r"^KVFERRY_API\b([^;{]*?\bkvferry_\w+\s*\([^;]*\);)", source,
                                        flags=re.M):
                page = text("man", "kvferry_" + os.path.basename(header)[:-2] + ".3")
                lines = re.findall(r'^\.B "(.*)"$', page, flags=re.M)
                synopsis = squeeze(" ".join(lines).replace("\\-", "-"))
                self.assertIn(squeeze(prototype), synopsis)
                count += 1
        self.assertGreater(count, 50)

    def test_pages_are_well_formed(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for page in glob.glob(os.path.join(SOURCE, "man", "*.[1-7]")):
            process = subprocess.run(["groff", "-man", "-ww", "-z", page], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, timeout=60)
            self.assertEqual(process.stdout, b"", page)

    def test_options(self):
        """Every option that help lists is in kvferry(1) and in docs/command.md."""
        page = text("man", "kvferry.1").replace("\\-", "-")
        docs = text("docs", "command.md")
        for verb in VERBS:
            options = re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", self.expect(FINE, verb, "--help").out)
            self.assertGreaterEqual(len(options), 2)  # --help and --json at least
            for option in options:
                self.assertRegex(page, rf"{option}\b(?!-)", f"kvferry.1: {verb}")
                self.assertRegex(docs, rf"{option}\b(?!-)", f"docs/command.md: {verb}")


if __name__ == "__main__":
    unittest.main()
