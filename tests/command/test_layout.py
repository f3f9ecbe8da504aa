# SPDX-License-Identifier: Apache-2.0
"""kvferry layout, and models by file and by name."""
import json
import os
import re
import shutil
import unittest

from harness import FAILED, FINE, SOURCE, CommandTest

MODELS = os.path.join(SOURCE, "models")
QWEN = "Qwen3.5-35B-A3B"

# A number that is a field of kvferry_model_options changes the document; a word that is none is refused
# by the field's name.
WORDS = {"--platform": ("platform", "sm100"), "--attention-backend": ("backend", None),
         "--kv-cache-dtype": ("kv_dtype", "fp8"), "--mamba-ssm-cache-dtype": ("state_dtype", "bfloat16"),
         "--indexer-dtype": ("indexer_dtype", None), "--conv-layout": ("conv_layout", "DS"),
         "--kv-cache-layout": ("memory_order", "BLHNC"), "--mamba-cache-mode": ("mamba_mode", "none"),
         "--kpool": ("kpool", "tail")}
ALIASES = {"--attention-backend": "--backend", "--kv-cache-dtype": "--kv-dtype",
           "--mamba-ssm-cache-dtype": "--state-dtype", "--conv-layout": "--ssm-conv-state-layout",
           "--kv-cache-layout": "--memory-order", "--mamba-cache-mode": "--mamba-mode",
           "--num-gpu-blocks-override": "--blocks", "--speculative-tokens": "--num-speculative-tokens"}


class Layout(CommandTest):
    def layout(self, *words, model=QWEN):
        text = self.expect(FINE, "layout", "--model", model, *words).out
        document = json.loads(text)
        self.assertEqual(document["format"], "kvferry-layout/1")
        return document

    def test_worker(self):
        worker = self.layout("--tp", "4", "--pp", "2", "--tp-rank", "3", "--pp-rank", "1")["worker"]
        self.assertEqual(worker, {"tp_rank": 3, "tp_size": 4, "pp_rank": 1, "pp_size": 2, "dp_rank": 0,
                                  "dp_size": 1})
        self.assertEqual(self.layout()["worker"]["tp_size"], 1)

    def test_known_numbers(self):
        """Pages of the attention groups as vLLM lays them out (block tokens, bytes of a block)."""
        for tp, tokens, page in ((1, 1056, 2162688), (2, 1056, 1081344), (4, 528, 540672), (8, 272, 278528)):
            document = self.layout("--tp", str(tp))
            group = next(g for g in document["groups"] if g["kind"] == "paged")
            self.assertEqual(group["block_tokens"], tokens)
            state = next(s for s in document["streams"] if s["name"] == "ssm")
            self.assertEqual(state["page_stride"], page)

    def test_json_is_the_same_document(self):
        self.assertEqual(self.expect_json(FINE, "layout", "--model", QWEN), self.layout())

    def test_what_it_prints_is_valid(self):
        self.write("a.json", json.dumps(self.layout("--tp", "2")))
        self.expect(FINE, "check", "a.json", "a.json")

    def test_words_of_options(self):
        for option, (field, good) in WORDS.items():
            for name in filter(None, (option, ALIASES.get(option))):
                value = self.expect_json(FAILED, "layout", "--model", QWEN, name, "nonsense")
                self.assertIn(field, {r["place"] for r in value["reasons"]})
                if good and field != "kpool":
                    self.layout(name, good)
        # As text the reasons go to stderr: a text on stdout would be taken for a document.
        result = self.expect(FAILED, "layout", "--model", QWEN, "--platform", "nonsense")
        self.assertEqual(result.out, "")
        self.assertIn("platform", result.err)

    def test_options_take_effect(self):
        plain = self.layout("--tp", "2")
        self.assertNotEqual(self.layout("--platform", "sm100", "--indexer-dtype", "mxfp4",
                                        model="DeepSeek-V4-Flash"),
                            self.layout("--platform", "sm100", model="DeepSeek-V4-Flash"))
        self.assertNotEqual(self.layout("--kpool", "tail", model="GLM-5.3-Flash"),
                            self.layout(model="GLM-5.3-Flash"))
        for words in (["--conv-layout", "DS"], ["--kv-dtype", "fp8"], ["--state-dtype", "bfloat16"],
                      ["--mtp-layers", "1"], ["--mtp-layers", "1", "--speculative-tokens", "3"],
                      ["--kv-cache-layout", "BLHNC"], ["--blocks", "2k"], ["--mamba-cache-mode", "none"],
                      ["--model-name", "other"], ["--engine-id", "e7"]):
            other = self.layout("--tp", "2", *words)
            if words[0] != "--mamba-cache-mode":  # changes what a block table is, not where bytes lie
                self.assertNotEqual(plain, other, words)
        self.assertEqual(self.layout("--engine-id", "e7")["engine_id"], "e7")
        self.assertEqual(self.layout("--model-name", "other")["identity"]["model"], "other")
        blocks = self.layout("--num-gpu-blocks-override", "2048")
        self.assertEqual(self.layout("--blocks", "2k"), blocks)
        self.assertEqual(min(s["pages"] for s in blocks["streams"] if s["name"] == "ssm"), 2048)

    def test_block_sizes(self):
        document = self.layout("--block-size", "32", model="Llama-3.1-8B")
        self.assertEqual(document["groups"][0]["block_tokens"], 32)
        document = self.layout("--block-size", "32", "--kernel-block-size", "16", model="Llama-3.1-8B")
        self.assertEqual({s.get("page_tokens", 32) for s in document["streams"]}, {16})


class Models(CommandTest):
    def test_every_model_of_the_folder(self):
        names = sorted(name[:-5] for name in os.listdir(MODELS) if name.endswith(".json"))
        self.assertGreaterEqual(len(names), 8)
        for name in names:
            self.expect_json(FINE, "layout", "--model", name, "--tp", "4")

    def test_unknown_name_lists_the_known(self):
        self.expect_misuse("layout", "--model", "Nope", says=["--model", "'Nope'", QWEN, "DeepSeek-V3"])

    def test_file_folder_stdin_and_hub_name(self):
        shutil.copy(os.path.join(MODELS, f"{QWEN}.json"), os.path.join(self.folder, "config.json"))
        by_name = self.expect(FINE, "layout", "--model", QWEN).out
        with open(os.path.join(self.folder, "config.json"), "rb") as file:
            config = file.read()
        for model in ("config.json", "./config.json", ".", os.path.join(self.folder, "config.json"), "-",
                      f"Qwen/{QWEN}"):
            self.assertEqual(self.expect(FINE, "layout", "--model", model, stdin=config).out, by_name)

    def test_folder_of_models(self):
        shutil.copy(os.path.join(MODELS, f"{QWEN}.json"), os.path.join(self.folder, "mine.json"))
        env = {"KVFERRY_MODELS": self.folder}
        self.expect(FINE, "layout", "--model", "mine", env=env)
        self.expect_misuse("layout", "--model", QWEN, env=env, says=["mine"])
        self.expect_misuse("layout", "--model", "mine", env={"KVFERRY_MODELS": "/nowhere"},
                           says=["/nowhere"])

    def test_paths_that_lead_nowhere(self):
        os.mkdir(os.path.join(self.folder, "empty"))
        self.write("file", "{}")
        self.expect_misuse("layout", "--model", "empty",
                           says=["--model", "a folder with a config.json", "empty/config.json (No such file"])
        self.expect_misuse("layout", "--model", "no/config.json", says=["--model", "'no/config.json' (No such file", QWEN])
        self.expect_misuse("layout", "--model", "file/config.json", says=["'file/config.json' (Not a directory)"])
        self.expect_misuse("explain", "--model", "empty", "--prefill", "tp1", "--decode", "tp1",
                           says=["--model", "empty/config.json (No such file"])

    def test_a_config_that_is_none_is_named(self):
        self.write("c.txt", "# no config")
        self.write("d.json", {"engine_id": "p"})
        for file, code in (("c.txt", "syntax"), ("d.json", "value_missing")):
            for words in (("layout",), ("explain", "--prefill", "tp2", "--decode", "tp1")):
                reason, = self.expect_json(FAILED, *words, "--model", file)["reasons"]
                self.assertEqual(reason["code"], code)
                self.assertTrue(reason["place"].startswith(f"{file}: "), reason)
                self.assertTrue(reason["message"].startswith(f"{file}: "), reason)

    def test_name_cannot_leave_the_folder(self):
        self.expect_misuse("layout", "--model", "../models/x", says=["'../models/x'"])

    def test_refused_config(self):
        self.write("c.json", {"model_type": "llama"})
        value = self.expect_json(FAILED, "layout", "--model", "c.json")
        self.assertGreater(len(value["reasons"]), 1)
        self.write("c.json", {"model_type": "mystery"})
        value = self.expect_json(FAILED, "layout", "--model", "c.json")
        self.assertTrue(any("mystery" in r["found"] for r in value["reasons"]), value)


class ExplainModels(CommandTest):
    def explain(self, status, *words, model=QWEN):
        return self.expect_json(status, "explain", "--model", model, *words)

    def test_main_example(self):
        value = self.explain(FINE, "--prefill", "tp2pp2", "--decode", "tp4")
        self.assertEqual([w["name"] for w in value["source"]["workers"]],
                         ["pp0 tp0", "pp0 tp1", "pp1 tp0", "pp1 tp1"])
        # 10 layers of k and v, 512 bytes a token and head; 30 states of 12,288 + 524,288 bytes.
        self.assertEqual(value["request"]["wanted_bytes"],
                         4 * (10 * 4096 * 2 * 512 + 30 * (12288 + 524288)))
        self.assertEqual({c["axis"] for c in value["cuts"]}, {"channel", "head", "kv_head"})
        heads = next(c for c in value["cuts"] if c["axis"] == "kv_head")
        self.assertEqual((heads["source"]["block_tokens"], heads["target"]["block_tokens"],
                          heads["target"]["holders"]), (1056, 528, 2))
        again = self.explain(FINE, "--prefill", "pp2tp2", "--decode", "tp4")
        self.assertEqual(value, again)

    def test_words_for_a_newcomer(self):
        out = self.expect(FINE, "explain", "-m", QWEN, "-p", "tp2pp2", "-d", "tp4").out
        flat = re.sub(r"\s+", " ", out)
        for words in ("blocks of 1,056 tokens at prefill, of 528 at decode; one prefill block has the "
                      "tokens of 2 decode blocks", "cut by kv_head, 2 in all",
                      "wanted by 2 decode workers and sent to each of them",
                      "lie in the same memory", "for 528 tokens or for one padded state",
                      "is 540,672 bytes, of which 536,576 are cells. The other 4,096",
                      "head 24..31 of 32"):
            self.assertIn(words, flat)

    def test_every_model_and_sizes_that_do_not_divide(self):
        for name in sorted(name[:-5] for name in os.listdir(MODELS) if name.endswith(".json")):
            for prefill, decode in (("tp4", "tp2"), ("tp1pp2", "tp8"), ("tp2", "tp2pp3")):
                if name.startswith("GLM") and decode == "tp8":
                    continue  # its indexer works on other pages there
                value = self.explain(FINE, "--prefill", prefill, "--decode", decode, model=name)
                request = value["request"]
                self.assertGreaterEqual(request["consecutive"]["bytes"], request["wanted_bytes"])
                self.assertEqual(value["unsent_layers"] + value["unused_layers"], [])

    def test_options_of_one_side(self):
        words = ("--prefill", "tp2", "--decode", "tp2", "--block-size", "32")
        value = self.explain(FINE, *words, "--decode-block-size", "64", model="Llama-3.1-8B")
        cut = value["cuts"][0]
        self.assertEqual((cut["source"]["block_tokens"], cut["target"]["block_tokens"]), (32, 64))
        value = self.explain(FINE, "--decode-blocks", "5000", *words, model="Llama-3.1-8B")
        self.assertEqual(value["target"]["groups"][0]["blocks"], 5000)
        value = self.explain(FAILED, *words, "--prefill-kv-cache-dtype", "fp8", model="Llama-3.1-8B")
        self.assertIn("dtype_differs", self.codes(value))

    def test_every_reason_of_both_sides(self):
        value = self.explain(FAILED, "--prefill", "tp3", "--decode", "tp5", "--decode-platform", "sm0")
        places = [reason["place"] for reason in value["reasons"]]
        self.assertTrue(any(place.startswith("prefill: ") for place in places), places)
        self.assertIn("decode: platform", places)
        self.assertTrue(any(place.startswith("decode: tp") for place in places), places)

    def test_two_set_ups_that_cannot_work(self):
        value = self.explain(FAILED, "--prefill", "tp2", "--decode", "tp4", "--decode-kv-dtype", "fp8",
                             "--decode-state-dtype", "bfloat16", "--decode-model-name", "other")
        self.assertLessEqual({"identity_differs", "dtype_differs", "cell_bytes_differ"}, self.codes(value))
        self.assertLessEqual({"k", "v", "ssm"}, {r["stream"] for r in value["reasons"]})
        out = self.expect(FAILED, "explain", "-m", QWEN, "-p", "tp2pp2", "-d", "tp4",
                          "--decode-kv-dtype", "fp8").out
        self.assertIn("layers.{3,7..39}.self_attn.attn, streams k, v", out)

    def test_many_tokens(self):
        value = self.explain(FINE, "--prefill", "tp1", "--decode", "tp1", "-n", "256k",
                             model="Llama-3.1-8B")
        self.assertEqual(value["request"]["wanted_bytes"], 262144 * 32 * 4096)
        self.assertEqual(value["request"]["consecutive"]["copies"], 32)


if __name__ == "__main__":
    unittest.main()
