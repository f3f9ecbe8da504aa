# SPDX-License-Identifier: Apache-2.0
"""kvferry plan: the contract's shape, the right bytes, every reason at once."""
import json
import random
import unittest

from documents import cells, document, play
from harness import FAILED, FINE, CommandTest


class PlanTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("p.json", document())
        self.write("d.json", document("d"))
        self.write("r.json", self.request())

    def request(self, **changes):
        return dict({"transfer_id": "t1", "tokens": 10,
                     "source": {"attn": {"first_token": 0, "blocks": [3, 5, 4]}, "gdn": {"blocks": [6]}},
                     "target": {"attn": {"first_token": 4, "blocks": [2, 7]}, "gdn": {"blocks": [1]}}},
                    **changes)

    def plan(self, status=FINE, sources=("p.json",), target="d.json", request="r.json", **more):
        options = [word for source in sources for word in ("--source", source)]
        return self.expect_json(status, "plan", *options, "--target", target, "--request", request, **more)


class Plan(PlanTest):
    def test_shape(self):
        value = self.plan()
        self.assertEqual(set(value), {"ok", "transfers", "copies", "bytes"})
        self.assertIs(value["ok"], True)
        self.assertEqual([t["source"] for t in value["transfers"]], ["p.json"])
        copies = value["transfers"][0]["copies"]
        for copy in copies:
            self.assertEqual(set(copy), {"source_segment", "source_offset", "target_segment",
                                         "target_offset", "bytes"})
            self.assertEqual((copy["source_segment"], copy["target_segment"]), ("kv", "kv"))
        self.assertEqual(value["copies"], len(copies))
        self.assertEqual(value["bytes"], sum(copy["bytes"] for copy in copies))

    def test_copies_by_hand(self):
        """One layer, one head: block 3 to block 2 is the whole page of 4 tokens * 16 bytes."""
        for name in ("p", "d"):
            self.write(f"{name}.json", document(name, heads=1, layers=1, states=0))
        self.write("r.json", {"transfer_id": "t", "tokens": 4, "source": {"attn": {"blocks": [3]}},
                              "target": {"attn": {"blocks": [2]}}})
        self.assertEqual(self.plan(), {
            "ok": True, "copies": 1, "bytes": 64,
            "transfers": [{"source": "p.json", "copies": [
                {"source_segment": "kv", "source_offset": 192, "target_segment": "kv",
                 "target_offset": 128, "bytes": 64}]}]})
        out = self.expect(FINE, "plan", "--source", "p.json", "--target", "d.json", "--request", "r.json").out
        self.assertIn("1 copy, 64 bytes, from 1 source to d.json\n\nfrom p.json: 1 copy, 64 bytes\n", out)

    def test_sources_are_named_as_given(self):
        self.write("sub dir p.json", document())
        names = ["./p.json", "sub dir p.json"]
        for rank, name in enumerate(names):
            self.write(name, document(rank=rank, size=2))
        value = self.plan(sources=names)
        self.assertEqual([t["source"] for t in value["transfers"]], names)

    def test_name_that_is_no_text(self):
        """A file's name is bytes; JSON is not."""
        name = "p\udcff.json"
        self.write(name, document())
        self.plan(sources=[name])

    def test_stdin(self):
        for place, content in (("--source", document()), ("--target", document("d")),
                               ("--request", self.request())):
            given = {"--source": "p.json", "--target": "d.json", "--request": "r.json", place: "-"}
            words = [word for pair in given.items() for word in pair]
            value = self.expect_json(FINE, "plan", *words, stdin=json.dumps(content).encode())
            self.assertGreater(value["copies"], 0)

    def test_short_options(self):
        self.expect(FINE, "plan", "-s", "p.json", "-t", "d.json", "-r", "r.json", "-v")

    def test_table(self):
        value = self.plan()
        out = self.expect(FINE, "plan", "-s", "p.json", "-t", "d.json", "-r", "r.json", "-v").out
        self.assertTrue(out.startswith(f"{value['copies']} copies, {value['bytes']} bytes, from 1 source"))
        for copy in value["transfers"][0]["copies"]:
            self.assertRegex(out, rf"kv +{copy['source_offset']:,} kv +{copy['target_offset']:,} "
                                  rf"+{copy['bytes']:,}\n")

    def test_table_of_many_copies(self):
        blocks = 40
        for name in ("p", "d"):
            self.write(f"{name}.json", document(name, blocks=100, layers=1, states=0))
        self.write("r.json", {"transfer_id": "t", "tokens": 4 * blocks,
                              "source": {"attn": {"blocks": list(range(1, 2 * blocks, 2))}},
                              "target": {"attn": {"blocks": list(range(1, 2 * blocks, 2))}}})
        count = self.plan()["copies"]
        self.assertEqual(count, blocks)
        words = ("plan", "-s", "p.json", "-t", "d.json", "-r", "r.json")
        short, long = self.expect(FINE, *words).out, self.expect(FINE, *words, "--verbose").out
        self.assertIn("and 24 more", short)
        self.assertNotIn("more", long)
        self.assertEqual(long.count("\n") - short.count("\n"), 24 - 1)

    def test_nothing_to_move(self):
        self.write("r.json", self.request(target={}))
        value = self.plan()
        self.assertEqual((value["copies"], value["bytes"]), (0, 0))
        self.assertEqual(value["transfers"], [{"source": "p.json", "copies": []}])


class Bytes(CommandTest):
    """Copies played on bytes: wanted cells arrive, and nothing that a request does not name changes."""

    def check(self, sources, targets, request, seed):
        chance = random.Random(seed)
        self.write("r.json", request)
        memories = []
        for index, source in enumerate(sources):
            self.write(f"p{index}.json", source)
            memories.append(bytearray(chance.randbytes(source["segments"][0]["bytes"])))
        for target in targets:
            self.write("d.json", target)
            words = [w for i in range(len(sources)) for w in ("--source", f"p{i}.json")]
            value = self.expect_json(FINE, "plan", *words, "--target", "d.json", "--request", "r.json")
            memory = bytearray(chance.randbytes(target["segments"][0]["bytes"]))
            before = bytes(memory)
            for transfer in value["transfers"]:
                play(transfer["copies"], memories[int(transfer["source"][1:-5])], memory)
            self.compare(sources, memories, target, memory, before, request)

    def compare(self, sources, memories, target, memory, before, request):
        first = request["target"]["attn"].get("first_token", 0)
        tokens = request["tokens"]
        have = {}
        for source, bytes_of in zip(sources, memories):
            for key, address in cells(source, request["source"], first, tokens).items():
                have.setdefault(key, (bytes_of, address))
        wanted = cells(target, request["target"], first, tokens)
        self.assertGreater(len(wanted), 0)
        for key, address in wanted.items():
            size = 8 if key[1] in "kv" else 2
            bytes_of, at = have[key]
            self.assertEqual(memory[address:address + size], bytes_of[at:at + size], key)
        named = self.named_bytes(target, request["target"])
        for at, (old, new) in enumerate(zip(before, memory)):
            if old != new:
                self.assertIn(at, named)

    @staticmethod
    def named_bytes(target, tables):
        named = set()
        for stream in target["streams"]:
            group = next(g for g in target["groups"] if g["name"] == stream["group"])
            ratio = group["block_tokens"] // stream["page_tokens"] if "block_tokens" in group else 1
            base = min(s["offset"] for s in target["streams"] if s["layer"] == stream["layer"])
            for block in tables[stream["group"]]["blocks"]:
                begin = base + block * ratio * stream["page_stride"]
                named |= set(range(begin, begin + ratio * stream["page_stride"]))
        return named

    def request(self, tokens, first, source, target):
        return {"transfer_id": "t", "tokens": tokens,
                "source": {"attn": {"blocks": source}, "gdn": {"blocks": [6]}},
                "target": {"attn": {"first_token": first, "blocks": target}, "gdn": {"blocks": [1]}}}

    def test_one_to_one(self):
        self.check([document()], [document("d")], self.request(10, 4, [3, 5, 4], [2, 7]), 1)

    def test_scatter_and_gather(self):
        one, two = [document(heads=4)], [document("d", r, 2, heads=4) for r in range(2)]
        self.check(one, two, self.request(12, 0, [1, 2, 3], [4, 5, 6]), 2)
        self.check(two, one, self.request(12, 0, [1, 2, 3], [4, 5, 6]), 3)

    def test_replicated_heads(self):
        four = [document("d", r, 4, heads=2) for r in range(4)]
        self.check([document("p", r, 2) for r in range(2)], four,
                   self.request(9, 0, [7, 1, 4], [2, 3, 5]), 4)

    def test_unequal_blocks_and_kernel_blocks(self):
        self.check([document(block=8, page=4)], [document("d", block=4, page=2)],
                   self.request(14, 4, [5, 2], [3, 1, 7]), 5)
        self.check([document(block=4)], [document("d", block=6, page=3)],
                   self.request(14, 6, [5, 2, 3, 7], [4, 1]), 6)

    def test_stages(self):
        staged = [document(stage=s, stages=2, rank=r, size=2, layers=4, states=2)
                  for s in range(2) for r in range(2)]
        self.check(staged, [document("d", layers=4, states=2)], self.request(8, 0, [3, 1], [2, 4]), 7)


class Refused(PlanTest):
    def test_every_bad_file_at_once(self):
        self.write("a.json", "{")
        self.write("b.json", {"format": "kvferry-layout/2"})
        self.write("r.json", {"tokens": "many"})
        value = self.plan(FAILED, sources=("a.json",), target="b.json")
        places = {reason["place"].split(":")[0] for reason in value["reasons"]}
        self.assertEqual(places, {"a.json", "b.json", "r.json"})

    def test_every_difference_at_once(self):
        other = document("d", model="other")
        for stream in other["streams"][:2]:
            stream["dtype"] = "float8_e4m3fn"
        other["streams"][2]["layer"] = "layers.9.attn"
        self.write("d.json", other)
        value = self.plan(FAILED)
        self.assertLessEqual({"identity_differs", "dtype_differs", "stream_missing"}, self.codes(value))
        for reason in value["reasons"]:
            if reason["code"] == "dtype_differs":
                self.assertEqual(reason["layer"], "layers.0.attn")
                self.assertIn("bfloat16", reason["expected"] + reason["found"])
                self.assertIn("float8_e4m3fn", reason["expected"] + reason["found"])

    def test_rules_of_requests(self):
        for code, source, target, more in (
                ("source_null", {"attn": {"blocks": [3, 0, 4]}}, {"attn": {"blocks": [1, 2, 3]}}, {}),
                ("source_null", {"attn": {"blocks": [3]}}, {"attn": {"blocks": [1, 2, 3]}}, {}),
                ("group_missing", {"gdn": {"blocks": [6]}}, {"attn": {"blocks": [1, 2, 3]}}, {}),
                ("group_unknown", {"other": {"blocks": [6]}}, {}, {}),
                ("first_token_misaligned", {"attn": {"blocks": [1, 2, 3]}},
                 {"attn": {"first_token": 3, "blocks": [1, 2]}}, {}),
                ("block_range", {"attn": {"blocks": [1, 2, 99]}}, {"attn": {"blocks": [1, 2, 3]}}, {}),
                ("state_position", {"gdn": {"blocks": [6]}}, {"gdn": {"blocks": [1]}},
                 {"source_tokens": 11}),
                ("state_blocks", {"gdn": {"blocks": [6, 7]}}, {"gdn": {"blocks": [1]}}, {}),
                ("target_block_twice", {"attn": {"blocks": [1, 2, 3]}}, {"attn": {"blocks": [1, 2, 1]}},
                 {})):
            self.write("r.json", self.request(source=source, target=target, **more))
            self.assertIn(code, self.codes(self.plan(FAILED)))

    def test_whole_blocks(self):
        """Blocks of 1 token to blocks of 4; of 10 tokens the window's are 5 to 9, and its first block has 4 too."""
        self.write("p.json", document(block=1, heads=1, layers=1, states=0, blocks=16))
        self.write("d.json", document("d", heads=1, layers=1, states=0, window=5))
        for whole, first in ((False, 5), (True, 4)):
            source = {"attn": {"first_token": first, "blocks": list(range(1, 11 - first))}}
            request = self.request(source=source, target={"attn": {"blocks": [3, 1, 2]}}, whole_blocks=whole)
            self.write("r.json", request)
            self.assertEqual(self.plan()["bytes"], (10 - first) * 16)
        source["attn"] = {"first_token": 5, "blocks": [1, 2, 3, 4, 5]}
        self.write("r.json", request)
        reason = self.plan(FAILED)["reasons"][0]
        self.assertEqual(reason["code"], "source_null")
        self.assertIn("token 4", reason["expected"])
        self.write("r.json", dict(request, whole_blocks=1))
        self.assertEqual(self.plan(FAILED)["reasons"][0]["place"], "r.json: whole_blocks")

    def test_text(self):
        self.write("r.json", self.request(source={}))
        out = self.expect(FAILED, "plan", "-s", "p.json", "-t", "d.json", "-r", "r.json").out
        self.assertTrue(out.startswith("no plan ("), out)
        self.assertIn("group_missing", out)

    def test_worker_named_twice(self):
        self.assertEqual(self.codes(self.plan(FAILED, sources=("p.json", "p.json"))), {"worker_duplicate"})


if __name__ == "__main__":
    unittest.main()
