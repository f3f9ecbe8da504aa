# SPDX-License-Identifier: Apache-2.0
"""kvferry check, and what every verb does with hostile files."""
import json
import random
import unittest

from documents import document
from harness import FAILED, FINE, CommandTest


class TwoFiles(CommandTest):
    def check(self, status, a, b):
        self.write("a.json", a)
        self.write("b.json", b)
        return self.expect_json(status, "check", "a.json", "b.json")

    def test_what_may_differ(self):
        for other in (document("d"), document(rank=1, size=2), document(block=8), document(page=2),
                      document(blocks=99)):
            self.assertEqual(self.check(FINE, document(), other),
                             {"ok": True, "streams_compared": 5, "streams": [5, 5]})

    def test_layers_of_one_stage_only(self):
        value = self.check(FINE, document(stage=0, stages=2, layers=4), document(stage=1, stages=2, layers=4))
        self.assertEqual(value, {"ok": True, "streams_compared": 0, "streams": [5, 4]})
        value = self.check(FINE, document(layers=4), document(layers=2))
        self.assertEqual(value, {"ok": True, "streams_compared": 4, "streams": [9, 5]})
        out = self.expect(FINE, "check", "a.json", "b.json").out
        self.assertIn("4 streams compared, of 9 and 5", out)

    def test_every_difference(self):
        other = document(model="other")
        other["streams"][0]["dtype"] = "float16"
        other["streams"][2]["format"] = "nvfp4"
        value = self.check(FAILED, document(), other)
        self.assertGreaterEqual(len(value["reasons"]), 3)
        self.assertLessEqual({"layers.0.attn", "layers.1.attn"}, {r["layer"] for r in value["reasons"]})

    def test_text(self):
        self.check(FINE, document(), document("d"))
        out = self.expect(FINE, "check", "a.json", "b.json").out
        self.assertIn("no difference that matters", out)
        self.write("b.json", document(model="other"))
        out = self.expect(FAILED, "check", "a.json", "b.json").out
        self.assertTrue(out.startswith("these documents differ (1 reason):\n"), out)


class Sides(CommandTest):
    def setUp(self):
        super().setUp()
        for rank in range(2):
            self.write(f"p{rank}.json", document(rank=rank, size=2))
            self.write(f"d{rank}.json", document("d", rank, 2))

    def test_fits(self):
        words = ("check", "--source", "p0.json", "--source", "p1.json", "--target", "d0.json", "--target",
                 "d1.json")
        self.assertEqual(self.expect_json(FINE, *words), {"ok": True})
        self.assertIn("2 sources can serve 2 targets", self.expect(FINE, *words).out)

    def test_missing_worker_in_every_target(self):
        """Source worker 1 alone has nothing of what target worker 0 needs, and all that 1 needs."""
        self.expect_json(FINE, "check", "-s", "p1.json", "-t", "d1.json")
        value = self.expect_json(FAILED, "check", "-s", "p1.json", "-t", "d0.json", "-t", "d1.json")
        self.assertEqual(self.codes(value), {"coverage_hole"})
        self.assertEqual({r["stream"] for r in value["reasons"]}, {"k", "v", "conv.q"})
        self.assertEqual({r["worker"] for r in value["reasons"]}, {"d tp0/2 pp0/1"})

    def test_folded_text(self):
        for rank in range(4):
            self.write(f"d{rank}.json", document("d", rank, 4, heads=4, layers=8))
        words = [word for rank in range(4) for word in ("-t", f"d{rank}.json")]
        self.write("p.json", document(heads=4, layers=4))
        out = self.expect(FAILED, "check", "-s", "p.json", *words).out
        self.assertIn("tp{0..3}/4", out)
        self.assertIn("layers.{4..7}.attn", out)
        self.assertIn("streams k, v", out)
        self.assertIn("over all layers and workers", out)


class Hostile(CommandTest):
    """Files of any content are refused with reasons; nothing crashes, hangs or writes to a terminal."""

    def setUp(self):
        super().setUp()
        self.write("good.json", document())
        self.write("request.json", {"transfer_id": "t", "tokens": 4, "source": {}, "target": {}})

    def everywhere(self, content):
        self.write("bad", content)
        for words in (("check", "good.json", "bad"), ("check", "-s", "bad", "-t", "good.json"),
                      ("plan", "-s", "bad", "-t", "good.json", "-r", "request.json"),
                      ("plan", "-s", "good.json", "-t", "bad", "-r", "request.json"),
                      ("plan", "-s", "good.json", "-t", "good.json", "-r", "bad"),
                      ("explain", "-s", "bad", "-t", "good.json"),
                      ("layout", "--model", "./bad")):
            value = self.expect_json(FAILED, *words)
            self.expect(FAILED, *words)
            yield words, value

    def test_not_json(self):
        for content in (b"", b" ", b"{", b"nul", b"\xff\xfe", b'{"format": "\xff"}', b"\x00",
                        b'{"a": 1} x', b"[" * 100000, b'{"a":' * 100000, b"1e999", b"9" * 10000,
                        b'{"a": 1, "a": 2', bytes(range(256))):
            for words, value in self.everywhere(content):
                if words[0] == "check":
                    self.assertTrue(all("bad" in r["place"] for r in value["reasons"]), value)

    def test_json_of_another_kind(self):
        for content in ("null", "[]", "{}", "0", '"text"', "true", '{"format": 1}',
                        '{"format": "kvferry-layout/1"}', '{"model_type": 7}', '{"model_type": "other"}'):
            for _ in self.everywhere(content):
                pass

    def test_damaged_documents(self):
        text = json.dumps(document())
        chance = random.Random(7)
        for _ in range(60):
            at, size = chance.randrange(len(text)), chance.randrange(1, 20)
            damaged = text[:at] + chance.choice(["", "0", "-1", "1e30", '"', "18446744073709551615", "[]"]) \
                + text[at + size:]
            self.write("bad", damaged)
            for words in (("check", "good.json", "bad"), ("explain", "-s", "good.json", "-t", "bad")):
                result = self.run_here(*words, "--json")
                self.assertIn(result.status, (FINE, FAILED, 2), damaged)
                json.loads(result.out)

    def test_a_message_does_not_steer_the_terminal(self):
        other = document("\x1b[31m\n")
        other["streams"][0]["layer"] = "\x1b]0;x\x07"
        other["streams"][0]["dtype"] = "\x1b[2J"
        self.write("other.json", other)
        self.write("p.json", document())
        for words in (("check", "-s", "p.json", "-t", "other.json"), ("explain", "-s", "p.json", "-t",
                      "other.json"), ("explain", "-s", "other.json", "-t", "other.json", "-v"),
                      ("check", "p.json", "\x1b[1m")):
            result = self.run_here(*words)
            self.assertNotIn("\x1b", result.out, words)
            self.assertNotIn("\x1b", result.err, words)


if __name__ == "__main__":
    unittest.main()
