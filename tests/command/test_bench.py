# SPDX-License-Identifier: Apache-2.0
"""bench node: that it measures what it says, in the form that is documented; never how fast this machine is."""
import json
import unittest

from harness import FINE, WRONG_USE, CommandTest
from test_try import MODELS

ROW = {"name", "requests", "window", "requests_per_s", "cpu_us_per_side", "cpu_us_beyond_engine", "p50_us", "p90_us",
       "p99_us", "max_us"}


class BenchNodeTest(CommandTest):
    SMALL = ("bench", "node", "--requests", "20", "--window", "4", "--workers", "1")

    def check(self, engine):
        result = self.expect_plain_json(*self.SMALL, "--engine", engine)
        self.assertEqual(set(result), {"engine", "goal_us_beyond_engine", "requests", "handshake"})
        self.assertEqual((result["engine"], result["goal_us_beyond_engine"]), (engine, 100))
        self.assertEqual([row["window"] for row in result["requests"]], [1, 4, 4])
        for row in result["requests"]:
            self.assertEqual(set(row), ROW)
            self.assertEqual(row["requests"], 20)
            self.assertGreater(row["requests_per_s"], 0)
            self.assertGreater(row["cpu_us_per_side"], 0)
            self.assertLessEqual(row["cpu_us_beyond_engine"], row["cpu_us_per_side"])
            times = [row[name] for name in ("p50_us", "p90_us", "p99_us", "max_us")]
            self.assertEqual(times, sorted(times))
        self.assertEqual(set(result["handshake"]), {"workers_per_side", "model", "cpu_s", "clock_s"})
        self.assertEqual(result["handshake"]["workers_per_side"], 1)

    def expect_plain_json(self, *arguments):
        return json.loads(self.expect(FINE, *arguments, "--json", env=MODELS).out)

    def test_memory(self):
        self.check("memory")

    def test_ucx(self):
        self.check("ucx")

    def test_table(self):
        lines = self.expect(FINE, *self.SMALL, "--engine", "memory", env=MODELS).out.splitlines()
        for line, name in zip(lines[1:4], ("one at a time", "several  ", "several, nothing to move")):
            self.assertTrue(line.startswith(name), line)
        self.assertTrue(all(line.split()[-1] == "100" for line in lines[1:4]))
        self.assertTrue(lines[4].startswith("handshake of 1 and 1 workers of Qwen3.5-35B-A3B: "))

    def test_wrong_use(self):
        self.expect(WRONG_USE, "bench", "node", "--workers", "3")
        self.expect(WRONG_USE, "bench", "node", "--requests", "1")


if __name__ == "__main__":
    unittest.main()
