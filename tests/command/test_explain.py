# SPDX-License-Identifier: Apache-2.0
"""kvferry explain of documents: numbers that can be worked out by hand, and words."""
import re
import unittest

from documents import document
from harness import FAILED, FINE, CommandTest


class Documents(CommandTest):
    """PP2 TP2 to TP4, 4 attention layers of 4 heads and 4 state layers of 8 channels."""

    def setUp(self):
        super().setUp()
        self.sources, self.targets = [], []
        for stage in range(2):
            for rank in range(2):
                self.sources.append(self.write(f"p{stage}{rank}.json", document(
                    "prefill", rank, 2, heads=4, layers=4, states=4, blocks=64, stage=stage, stages=2)))
        for rank in range(4):
            self.targets.append(self.write(f"d{rank}.json", document(
                "decode", rank, 4, heads=4, layers=4, states=4, blocks=64, block=8, page=4)))

    def words(self, *more, sources=None):
        return ["explain", *(w for s in sources or self.sources for w in ("--source", s)),
                *(w for t in self.targets for w in ("--target", t)), *more]

    def test_sides(self):
        value = self.expect_json(FINE, *self.words("--tokens", "40"))
        self.assertEqual([w["name"] for w in value["source"]["workers"]], self.sources)
        self.assertEqual([(w["pp_rank"], w["tp_rank"]) for w in value["source"]["workers"]],
                         [(0, 0), (0, 1), (1, 0), (1, 1)])
        groups = {g["group"]: g for g in value["target"]["groups"]}
        attn, gdn = groups["attn"], groups["gdn"]
        self.assertEqual((attn["kind"], attn["block_tokens"], attn["page_tokens"],
                          attn["pages_per_block"]), ("paged", 8, 4, 2))
        # A page: 1 head, 4 tokens, k and v of 8 bytes. A state: 2 channels of 3 rows of 2 bytes, and
        # one channel's worth of padding.
        self.assertEqual((attn["row_bytes"], attn["payload_bytes"], attn["padding_bytes"]), (64, 64, 0))
        self.assertEqual((gdn["kind"], gdn["row_bytes"], gdn["payload_bytes"], gdn["padding_bytes"]),
                         ("state", 18, 12, 6))
        self.assertEqual(attn["layers"], [f"layers.{i}.attn" for i in range(4)])
        self.assertEqual(attn["workers"], self.targets)

    def test_pieces(self):
        value = self.expect_json(FINE, *self.words())
        pieces = {(p["target"], p["source"], p["streams"][0]): p for p in value["pieces"]}
        self.assertEqual(len(pieces), 16)
        piece = pieces["d1.json", "p10.json", "k"]
        self.assertEqual(piece["streams"], ["k", "v"])
        self.assertEqual(piece["layers"], ["layers.2.attn", "layers.3.attn"])
        self.assertEqual(piece["ranges"], [{"axis": "kv_head", "start": 1, "extent": 1, "global": 4}])
        self.assertEqual((piece["state_bytes"], piece["tokens_per_state"]), (8, 1))
        piece = pieces["d2.json", "p01.json", "conv.q"]
        self.assertEqual(piece["ranges"][0], {"axis": "channel", "start": 4, "extent": 2, "global": 8})
        self.assertEqual((piece["state_bytes"], piece["tokens_per_state"], piece["kind"]),
                         (12, 0, "state"))

    def test_cuts(self):
        value = self.expect_json(FINE, *self.words())
        cuts = {tuple(c["streams"]): c for c in value["cuts"]}
        self.assertEqual(set(cuts), {("k", "v"), ("conv.q",)})
        cut = cuts["k", "v"]
        self.assertEqual((cut["axis"], cut["global"], cut["source"]["least"], cut["target"]["most"]),
                         ("kv_head", 4, 2, 1))
        self.assertEqual((cut["source"]["holders"], cut["target"]["holders"]), (1, 1))

    def test_request(self):
        for tokens in (1, 8, 40, 41):
            request = self.expect_json(FINE, *self.words("-n", str(tokens)))["request"]
            self.assertEqual(request["tokens"], tokens)
            wanted = 4 * (tokens * 4 * 2 * 8 + 8 * 3 * 2)
            self.assertEqual(request["wanted_bytes"], wanted)
            for order in ("consecutive", "shuffled"):
                total = request[order]
                self.assertGreaterEqual(total["bytes"], wanted)
                self.assertEqual(total["copies"], sum(p[order]["copies"] for p in request["pairs"]))
                self.assertEqual(total["bytes"], sum(p[order]["bytes"] for p in request["pairs"]))
            self.assertLessEqual(request["consecutive"]["copies"], request["shuffled"]["copies"])
            self.assertEqual(len(request["pairs"]), 16)

    def test_consecutive_blocks_become_one_copy(self):
        one = self.write("one.json", document(blocks=64, heads=1, layers=1, states=0))
        request = self.expect_json(FINE, "explain", "-s", one, "-t", one, "-n", "40")["request"]
        self.assertEqual(request["consecutive"], {"copies": 1, "bytes": 640})
        self.assertGreater(request["shuffled"]["copies"], 5)

    def test_whole_blocks(self):
        """Of a window of 9 tokens and blocks of 8: what is wanted of 40 tokens is 31 to 39, or 24 to 39."""
        source = self.write("one.json", document(block=2, blocks=64, heads=1, layers=1, states=0, window=9))
        target = self.write("two.json", document(block=8, blocks=64, heads=1, layers=1, states=0, window=9))
        words = ["explain", "-s", source, "-t", target, "-n", "40"]
        for more, wanted, said in (([], 9, "wanted."),
                                   (["--whole-blocks"], 16, "wanted, the block that they begin in whole.")):
            request = self.expect_json(FINE, *words, *more)["request"]
            self.assertIs(request["whole_blocks"], bool(more))
            self.assertEqual(request["wanted_bytes"], wanted * 16)
            self.assertEqual(request["consecutive"]["bytes"], wanted * 16)
            self.assertEqual(request["shuffled"]["bytes"], wanted * 16)
            self.assertIn("Only the last 9 tokens are " + said, re.sub(r"\s+", " ", self.expect(FINE, *words, *more).out))

    def test_words(self):
        out = self.expect(FINE, *self.words("--tokens", "40")).out
        flat = re.sub(r"\s+", " ", out)
        for words in ("source: small, TP2 PP2, 4 workers, engine prefill",
                      "target: small, TP4, 4 workers, engine decode", "can work together",
                      "k and v of 4 layers (layers.{0..3}.attn): blocks of 4 tokens at source, of 8 at "
                      "target; one target block has the tokens of 2 source blocks",
                      "works on pages of 4 tokens", "k and v are each cut by kv_head, 4 in all",
                      "Pipeline stages: 2 at source, 1 at target", "Padding at target",
                      "A request of 40 tokens needs 10,432 bytes", "kv_head 3..3 of 4"):
            self.assertIn(words, flat)

    def test_replication_in_words(self):
        targets = [self.write(f"r{rank}.json", document("decode", rank, 4, heads=2, states=0, blocks=64))
                   for rank in range(4)]
        two = [self.write(f"s{rank}.json", document("prefill", rank, 2, heads=2, states=0, blocks=64))
               for rank in range(2)]
        self.targets = targets
        flat = re.sub(r"\s+", " ", self.expect(FINE, *self.words("-n", "8", sources=two)).out)
        self.assertIn("wanted by 2 target workers and sent to each of them", flat)
        self.targets = two
        flat = re.sub(r"\s+", " ", self.expect(FINE, *self.words("-n", "8", sources=targets)).out)
        self.assertIn("Each part is held by 2 source workers", flat)

    def test_every_layer(self):
        short, long = self.expect(FINE, *self.words()).out, self.expect(FINE, *self.words("-v")).out
        self.assertIn("layers.{0,1}.attn", short)
        self.assertRegex(long, r"(?m)^d0.json .* layers\.0\.attn$")
        self.assertEqual(long.count("\n") - short.count("\n"), 16)

    def test_not_together(self):
        value = self.expect_json(FAILED, *self.words(sources=self.sources[:3]))
        self.assertEqual(self.codes(value), {"coverage_hole"})
        out = self.expect(FAILED, *self.words(sources=self.sources[:3])).out
        self.assertTrue(out.startswith("these two cannot work together (2 reasons; 12 over"), out)

    def test_pool_too_small(self):
        self.expect_misuse(*self.words("-n", "1000"), says=["--tokens", "pool"])


if __name__ == "__main__":
    unittest.main()
