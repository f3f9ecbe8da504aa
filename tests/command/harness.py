# SPDX-License-Identifier: Apache-2.0
"""Runs the command. KVFERRY is the binary, KVFERRY_SOURCE the source tree; ctest sets both."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

BINARY = os.environ["KVFERRY"]
SOURCE = os.environ["KVFERRY_SOURCE"]

FINE, FAILED, WRONG_USE, UNEXPECTED = range(4)

REASON_KEYS = {"code", "layer", "stream", "axis", "expected", "found", "message"}


class Result:
    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout.decode("utf-8", "surrogateescape")
        self.err = process.stderr.decode("utf-8", "surrogateescape")


def run(*arguments, stdin=b"", cwd=None, env=None):
    environment = dict(os.environ, **(env or {}))
    process = subprocess.run([BINARY, *arguments], input=stdin, cwd=cwd, env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return Result(process)


class CommandTest(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvferry-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def run_here(self, *arguments, **more):
        return run(*arguments, cwd=self.folder, **more)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        with open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return name

    def expect(self, status, *arguments, **more):
        result = self.run_here(*arguments, **more)
        self.assertEqual(result.status, status, f"kvferry {' '.join(arguments)}: {result.err}{result.out[:2000]}")
        return result

    def expect_json(self, status, *arguments, **more):
        """stdout is one JSON value and nothing else; its "ok" fits the status."""
        result = self.expect(status, *arguments, "--json", **more)
        value = json.loads(result.out)
        self.assertTrue(result.out.endswith("\n"))
        if status != FINE:
            self.assertIs(value["ok"], False)
            self.assertTrue(value["reasons"])
            for reason in value["reasons"]:
                self.assertLessEqual(REASON_KEYS, set(reason))
                self.assertTrue(all(isinstance(text, str) for text in reason.values()))
                self.assertTrue(reason["code"])
                self.assertTrue(reason["message"])
        return value

    def codes(self, value):
        return {reason["code"] for reason in value["reasons"]}

    def expect_misuse(self, *arguments, says=(), **more):
        """Status 2, the cause and a hint on stderr, nothing on stdout, in JSON a reason "usage"."""
        result = self.expect(WRONG_USE, *arguments, **more)
        self.assertEqual(result.out, "")
        self.assertIn("--help", result.err)
        self.assertRegex(result.err, "expected .*, found ")
        for words in says:
            self.assertIn(words, result.err)
        value = self.expect_json(WRONG_USE, *arguments, **more)
        self.assertEqual(self.codes(value), {"usage"})
