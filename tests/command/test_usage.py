# SPDX-License-Identifier: Apache-2.0
"""What every verb does alike: help, wrong use, JSON, output that cannot be written."""
import json
import os
import subprocess
import unittest

from documents import document
from harness import BINARY, FINE, UNEXPECTED, WRONG_USE, CommandTest

VERBS = ("layout", "explain", "plan", "check", "serve", "send", "status", "declare-dead", "keygen", "demo", "bench")


class Help(CommandTest):
    def test_help_lists_the_verbs(self):
        for word in ("--help", "-h", "help"):
            out = self.expect(FINE, word).out
            for verb in VERBS:
                self.assertRegex(out, rf"(?m)^  {verb} ")

    def test_version(self):
        self.assertRegex(self.expect(FINE, "--version").out, r"^kvferry \d+\.\d+\.\d+\n$")
        self.assertRegex(self.expect_json(FINE, "--version")["version"], r"^\d+\.\d+\.\d+$")

    def test_every_verb_has_help(self):
        for verb in VERBS:
            for word in ("--help", "-h"):
                result = self.expect(FINE, verb, word)
                self.assertTrue(result.out.startswith(f"usage: kvferry {verb} "), result.out)
                self.assertIn("--json", result.out)
                self.assertEqual(result.err, "")

    def test_help_of_a_verb(self):
        for verb in (*VERBS, "bench plan"):
            self.assertEqual(self.expect(FINE, "help", *verb.split()).out, self.expect(FINE, *verb.split(), "--help").out)
        self.expect_misuse("help", "explian", says=["explian"])
        self.assertEqual(self.expect(FINE, "help", "--json").out, self.expect(FINE, "--help").out)
        layout = self.expect(FINE, "layout", "--help").out
        for words in (("help", "--json", "layout"), ("help", "layout", "--json"), ("--json", "help", "layout")):
            self.assertEqual(self.expect(FINE, *words).out, layout)

    def test_help_wins_over_what_is_missing(self):
        self.expect(FINE, "plan", "--source", "p.json", "--help")


class WrongUse(CommandTest):
    def test_no_verb_and_unknown_verb(self):
        self.expect_misuse(says=["verb", "layout, explain, plan, check", "none"])
        self.expect_misuse("explian", says=["explian"])

    def test_unknown_options(self):
        for verb in VERBS:
            self.expect_misuse(verb, "--nonsense", says=["--nonsense"])
            self.expect_misuse(verb, "--nonsense=1", says=["--nonsense"])
            self.expect_misuse(verb, "-Z", says=["-Z"])

    def test_benchmarks(self):
        self.expect_misuse("bench", "nonsense", says=["plan", "nonsense"])
        self.expect_misuse("bench", "plan", "--nonsense", says=["--nonsense"])
        self.assertEqual(self.codes(self.expect_json(WRONG_USE, "bench")), {"usage"})
        for name in ("plan", "transfer", "node"):
            self.assertIn(f"usage: kvferry bench {name} ", self.expect(FINE, "bench", name, "--help").out)

    def test_handshakes(self):
        self.expect_misuse("bench", "node", "--handshakes", "6", says=["--handshakes", "a multiple of 4", "6"])
        value = self.expect_json(FINE, "bench", "node", "--handshakes", "8")
        self.assertEqual([(each["workers"], each["documents_known"]) for each in value["handshakes"]],
                         [(2, False), (6, True)])
        for each in value["handshakes"]:
            self.assertEqual(set(each), {"workers", "documents_known", "cpu_s", "cpu_s_of_them", "clock_s"})
            self.assertTrue(all(each[key] > 0 for key in ("cpu_s", "cpu_s_of_them", "clock_s")), each)
        out = self.expect(FINE, "bench", "node", "--handshakes", "132").out  # of two processes
        self.assertRegex(out, r"first of each engine, with its documents +33 ")
        self.assertRegex(out, r"others, documents known +99 ")

    def test_unknown_letter_after_a_known_one(self):
        self.expect_misuse("plan", "-vZ", says=["-Z"])

    def test_missing_value(self):
        self.expect_misuse("layout", "--model", says=["--model", "a value"])
        self.expect_misuse("plan", "-s", says=["-s", "a value"])

    def test_value_too_many(self):
        self.expect_misuse("plan", "--verbose=yes", says=["--verbose=yes", "without a value"])

    def test_ambiguous_option(self):
        self.expect_misuse("layout", "--tp-r", "--kv", "fp8", says=["--kv"])
        self.expect_misuse("layout", "--kv", "fp8", says=["--kv", "several"])

    def test_unwanted_operands(self):
        for verb in ("layout", "explain", "plan"):
            self.expect_misuse(verb, "surprise", says=["surprise"])

    def test_what_is_missing_is_named(self):
        self.expect_misuse("layout", says=["--model"])
        self.expect_misuse("explain", says=["--model"])
        self.expect_misuse("explain", "--model", "m", says=["--prefill"])
        self.expect_misuse("explain", "--model", "m", "--prefill", "tp1", says=["--decode"])
        self.expect_misuse("explain", "--source", "a", says=["--target"])
        self.expect_misuse("explain", "--target", "a", says=["--source"])
        self.expect_misuse("plan", says=["--source"])
        self.expect_misuse("plan", "--source", "a", says=["--target"])
        self.expect_misuse("plan", "--source", "a", "--target", "b", says=["--request"])
        self.expect_misuse("check", says=["two layout documents", "none"])
        self.expect_misuse("check", "a", says=["one document"])
        self.expect_misuse("check", "a", "b", "c", says=["more than two"])
        self.expect_misuse("check", "--source", "a", says=["--target"])
        self.expect_misuse("check", "--target", "a", says=["--source"])
        self.expect_misuse("check", "--source", "a", "--target", "b", "c", says=["c"])

    def test_models_and_documents_do_not_mix(self):
        self.expect_misuse("explain", "--model", "m", "--source", "a", "--target", "b",
                           says=["--source", "--model"])
        self.expect_misuse("explain", "--decode-block-size", "16", "--source", "a", "--target", "b",
                           says=["option of a model"])

    def test_numbers(self):
        for text in ("", "x", "-1", "0", "1x", "1kk", "99999999999999999999", "4097", " 4", "4 "):
            self.expect_misuse("layout", "--model", "m", "--tp", text, says=["--tp", f"'{text}'"])
        for option in ("--block-size", "--kernel-block-size", "--max-model-len", "--blocks",
                       "--num-gpu-blocks-override", "--mtp-layers", "--speculative-tokens"):
            self.expect_misuse("layout", "--model", self.write("m", "{}"), option, "many",
                               says=[option if option != "--blocks" else "blocks", "'many'"])
        self.expect_misuse("layout", "--model", "m", "--mtp-layers", "4294967296",
                           says=["--mtp-layers", "4294967295"])
        self.expect_misuse("explain", "--model", "m", "--prefill", "tp1", "--decode", "tp1", "--tokens",
                           "0", says=["--tokens"])

    def test_per_side_numbers_name_their_option(self):
        self.write("m.json", "{}")
        self.expect_misuse("explain", "--model", "m.json", "--prefill", "tp1", "--decode", "tp1",
                           "--decode-block-size", "x", says=["--decode-block-size"])

    def test_ranks(self):
        self.expect_misuse("layout", "--model", "m", "--tp", "4", "--tp-rank", "4",
                           says=["--tp-rank", "0 to 3", "4"])
        self.expect_misuse("layout", "--model", "m", "--pp-rank", "1", says=["--pp-rank", "0 to 0"])

    def test_topologies(self):
        for text in ("", "4", "tp", "tp0", "tp4tp4", "pp2pp2", "tp2x", "dp2", "tp-1", "tp 2", "tp4097",
                     "tp99999999999999999999", "tp65pp65", "TP2"):
            for option, other in (("--prefill", "--decode"), ("--decode", "--prefill")):
                self.expect_misuse("explain", "--model", "m", option, text, other, "tp1",
                                   says=[option, f"'{text}'"])


class Files(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("good.json", document())

    def test_missing_file_and_folder(self):
        self.expect_misuse("check", "good.json", "none.json", says=["none.json", "No such file"])
        self.expect_misuse("check", "good.json", ".", says=["directory"])

    def test_stdin_only_once(self):
        good = json.dumps(document()).encode()
        self.expect(FINE, "check", "-", "good.json", stdin=good)
        self.expect(FINE, "check", "good.json", "-", stdin=good)
        self.expect_misuse("check", "-", "-", stdin=good, says=["stdin", "once"])

    def test_file_without_end(self):
        self.expect_misuse("check", "good.json", "/dev/zero", says=["/dev/zero", "512 MiB"])


class Output(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("p.json", document())
        self.write("r.json", {"transfer_id": "t", "tokens": 4, "source": {"attn": {"blocks": [1]}},
                              "target": {"attn": {"blocks": [1]}}})
        self.runs = (["--help"], ["--version"], ["check", "p.json", "p.json"], ["check", "--help"],
                     ["plan", "-s", "p.json", "-t", "p.json", "-r", "r.json"],
                     ["explain", "-s", "p.json", "-t", "p.json", "-n", "8"])

    def run_into(self, out, arguments):
        return subprocess.run([BINARY, *arguments], cwd=self.folder, stdout=out, timeout=60,
                              stderr=subprocess.PIPE)

    def test_full_disk(self):
        for arguments in self.runs:
            for more in ([], ["--json"]):
                with open("/dev/full", "wb") as full:
                    process = self.run_into(full, arguments + more)
                self.assertEqual(process.returncode, UNEXPECTED, arguments + more)
                self.assertIn(b"stdout", process.stderr)

    def test_closed_output(self):
        for arguments in self.runs:
            process = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", BINARY, *arguments],
                                     cwd=self.folder, stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(process.returncode, UNEXPECTED, arguments)

    def test_reader_that_has_seen_enough(self):
        for ignored in (False, True):
            for arguments in self.runs:
                read, write = os.pipe()
                os.close(read)
                process = subprocess.run(
                    ["sh", "-c", ("trap '' PIPE; " if ignored else "") + 'exec "$@"', "sh", BINARY,
                     *arguments], cwd=self.folder, stdout=write, stderr=subprocess.PIPE, timeout=60)
                os.close(write)
                self.assertEqual(process.stderr, b"", arguments)
                self.assertIn(process.returncode, (FINE,) if ignored else (-13, 141), arguments)

    def test_memory_that_runs_out(self):
        def limited(*arguments):
            return subprocess.run(["sh", "-c", 'ulimit -v 200000; exec "$@"', "sh", BINARY, *arguments],
                                  cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=60)
        if limited("--version").returncode != FINE:
            self.skipTest("the program itself needs more (sanitizers)")
        self.write("large.json", document(blocks=2**28, layers=1, states=0, block=1))
        words = ("explain", "-s", "large.json", "-t", "large.json", "-n", "16M")
        process = limited(*words, "--json")
        self.assertEqual(process.returncode, UNEXPECTED, process.stderr)
        self.assertEqual(json.loads(process.stdout)["reasons"][0]["code"], "no_memory")
        process = limited(*words)
        self.assertEqual((process.returncode, process.stdout), (UNEXPECTED, b""))
        self.assertIn(b"out of memory", process.stderr)


if __name__ == "__main__":
    unittest.main()
