# SPDX-License-Identifier: Apache-2.0
"""serve and send, in two processes: requests that arrive, and every reason why one does not; status, keygen."""
import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
import unittest

from documents import document
from harness import BINARY, FAILED, FINE, SOURCE, CommandTest

MODELS = {"KVFERRY_MODELS": os.path.join(SOURCE, "models")}
SMALL = ("--model", "Llama-3.1-8B", "--blocks", "8")


class Serve:
    """A `kvferry serve` that runs, with what it says on stderr."""

    def __init__(self, test, *arguments, binary=(BINARY,)):
        self.process = subprocess.Popen([*binary, "serve", *arguments], cwd=test.folder, text=True,
                                        env=dict(os.environ, **MODELS), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        test.addCleanup(self.end)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"waiting at (\S+) \(status: (\S+)\)", line)
            if found:
                self.address, self.control = found.groups()
                return
        test.fail("".join(self.said))

    def interrupt(self):
        """Its exit status, and what it printed."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self):
        out, err = self.process.communicate(timeout=60)
        self.said.append(err)
        return self.process.returncode, out

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Try(CommandTest):
    def serve(self, *arguments):
        return Serve(self, *arguments)

    def send(self, status, server, *arguments):
        return self.expect(status, "send", server.address, *arguments, env=MODELS)

    def send_json(self, status, server, *arguments):
        return self.expect_json(status, "send", server.address, *arguments, env=MODELS)

    def test_a_request_arrives(self):
        server = self.serve(*SMALL, "--topology", "tp2")
        result = self.send_json(FINE, server, *SMALL, "--tokens", "100", "--requests", "3")
        self.assertIs(result["ok"], True)
        self.assertEqual(result["right"], 3)
        self.assertEqual(len(result["requests"]), 3)
        for request in result["requests"]:
            self.assertEqual((request["tokens"], request["right"], request["released"]), (100, True, True))
            self.assertEqual([worker["check"] for worker in request["workers"]], ["right", "right"])
            self.assertEqual([worker["outcome"] for worker in request["workers"]], ["done", "done"])
            self.assertTrue(all(worker["bytes"] > 0 and worker["released"] for worker in request["workers"]))
            self.assertEqual(request["sources"][0]["outcome"], "done")
        result = self.send(FINE, server, *SMALL, "--tokens", "20")  # another sender, for a person
        self.assertIn("1 of 1 requests: every byte right", result.out)
        self.assertRegex(result.out, r"receiver  2 workers of decode at tcp://127\.0\.0\.1:\d+, kvferry ")
        status, out = server.interrupt()
        self.assertEqual(status, FINE)
        self.assertEqual(out.count("every byte right"), 4)

    def silent(self, server):
        host, port = server.address.rsplit(":", 1)
        connection = socket.create_connection((host.strip("[]"), int(port)))
        self.addCleanup(connection.close)

    def test_who_says_nothing_holds_up_no_interrupt(self):
        server = self.serve(*SMALL, "--timeout", "1000")
        self.silent(server)
        self.assertEqual(server.interrupt()[0], FINE)

    def test_who_says_nothing_holds_up_nobody_for_long(self):
        server = self.serve(*SMALL, "--timeout", "1000")
        self.silent(server)
        self.assertEqual(self.send_json(FINE, server, *SMALL)["right"], 1)
        server.interrupt()
        self.assertRegex("".join(server.said), r"it said nothing for 5 s and is not waited for any more")

    def test_states_over_stages(self):
        model = ("--model", "Qwen3.5-35B-A3B", "--blocks", "6")
        server = self.serve(*model, "--topology", "tp2", "--once", "--verify", "--json")
        result = self.send_json(FINE, server, *model, "--topology", "tp1pp2", "--tokens", "600")
        self.assertEqual(result["right"], 1)
        status, out = server.wait()
        self.assertEqual(status, FINE)
        self.assertEqual(json.loads(out), {"ok": True, "address": server.address, "requests": 1, "right": 1})

    def test_documents_instead_of_a_model(self):
        self.write("p.json", document("p"))
        self.write("d.json", document("d"))
        server = self.serve("--layout", "d.json", "--once")
        result = self.send(FINE, server, "--layout", "p.json", "--tokens", "8")
        self.assertIn("1 of 1 requests: every byte right", result.out)
        self.assertEqual(result.err, "")  # that the receiver ends is nothing to warn of

    def test_more_tokens_than_the_memory_holds(self):
        server = self.serve(*SMALL)
        for options, who in ((SMALL, "sender"), (("--model", "Llama-3.1-8B", "--blocks", "64"), "receiver")):
            result = self.send(FINE, server, *options, "--tokens", "5000")
            self.assertIn(f"requests of 112 tokens instead of 5,000: the memory of the {who} holds no more", result.err)
        self.assertEqual(self.send(FINE, server, *SMALL).err, "")  # where nobody said how many

    def test_layouts_that_do_not_fit(self):
        server = self.serve(*SMALL)
        value = self.send_json(FAILED, server, *SMALL, "--kv-cache-dtype", "fp8")
        self.assertIn("dtype_differs", self.codes(value))
        out = self.send(FAILED, server, *SMALL, "--kv-cache-dtype", "fp8").out
        self.assertIn("the two engines do not fit", out)
        self.assertEqual(self.send_json(FINE, server, *SMALL)["right"], 1)  # the server has lived on

    def test_keys(self):
        for name in ("prefill", "decode", "stranger"):
            self.expect(FINE, "keygen", name)
        server = self.serve(*SMALL, "--key", "decode", "--allow", "prefill.pub", "--timeout", "5")
        self.assertRegex(server.control, r"^tcp://127\.0\.0\.1:\d+/[0-9a-f]{64}$")
        result = self.send_json(FINE, server, *SMALL, "--key", "prefill", "--allow", "decode.pub")
        self.assertEqual(result["right"], 1)
        value = self.expect_json(FINE, "status", server.control, "--key", "prefill")
        self.assertTrue(value)
        result = self.expect(FAILED, "send", server.address, *SMALL, "--key", "prefill", "--allow",
                             "stranger.pub", "--timeout", "5", "--json", env=MODELS)
        self.assertIs(json.loads(result.out)["ok"], False)  # the decode engine's key is not allowed
        with open(os.path.join(self.folder, "decode.pub")) as file:
            key = file.read().strip()
        reasons = json.loads(result.out)["requests"][0]["workers"][0]["reasons"]
        self.assertEqual([(reason["code"], reason["expected"], reason["found"]) for reason in reasons],
                         [("key_refused", "the decode side's key in the prefill side's --allow",
                           f"the key {key}, which is not there")])
        result = self.send(FAILED, server, *SMALL, "--insecure", "--json")  # refused, so nothing is waited for
        source = json.loads(result.out)["requests"][0]["sources"][0]
        self.assertEqual(self.codes(source), {"source_aborted"})
        status, out = server.interrupt()
        self.assertEqual(status, FAILED)
        self.assertIn("receiver tp0: the sender's address: the two sides cannot talk", out)

    def test_a_key_that_is_refused_is_named_with_whose_list(self):
        for name in ("a", "b", "c"):
            self.expect(FINE, "keygen", name)
        server = self.serve(*SMALL, "--key", "a", "--allow", "b.pub", "--timeout", "5", "--once", "--json")
        value = self.send_json(FAILED, server, *SMALL, "--key", "c", "--allow", "a.pub", "--timeout", "5")
        with open(os.path.join(self.folder, "c.pub")) as file:
            key = file.read().strip()
        wanted = ("key_refused", "the prefill side's key in the decode side's --allow",
                  f"the key {key}, which is not there")
        status, out = server.wait()
        self.assertEqual(status, FAILED)
        ended = json.loads(out)
        self.assertEqual((ended["ok"], ended["requests"], ended["right"]), (False, 1, 0))
        for reasons in (value["reasons"], ended["reasons"]):
            found = [(reason["code"], reason["expected"], reason["found"]) for reason in reasons]
            self.assertIn(wanted, found)
            self.assertNotIn("allowed_keys", str(reasons))

    def test_status(self):
        server = self.serve(*SMALL)
        self.send(FINE, server, *SMALL)
        value = self.expect_json(FINE, "status", server.control)
        self.assertIsInstance(value, dict)
        self.assertTrue(self.expect(FINE, "status", server.control).out.strip())
        self.assertRegex(self.expect(FINE, "status", server.control).out, r"(?m)^  refused_by_code  none$")

    def test_status_of_an_unknown_host(self):
        reason, = self.expect_json(FAILED, "status", "tcp://no.such.host.invalid:5")["reasons"]
        self.assertEqual((reason["code"], reason["expected"]), ("no_answer", "a host that can be looked up"))
        self.assertIn("tcp://no.such.host.invalid:5", self.expect(FAILED, "status", "tcp://no.such.host.invalid:5").err)

    def send_on(self, server, *options):
        sender = subprocess.Popen([BINARY, "send", server.address, *SMALL, "--tokens", "120", "--requests", "100000",
                                   *options], cwd=self.folder, env=dict(os.environ, **MODELS),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(sender.wait)
        self.addCleanup(sender.kill)
        return sender

    def hold(self, server, *options):
        """Stops a sender while it writes: who that is, once what it may still write is in quarantine."""
        sender = self.send_on(server, *options)
        while True:
            status = self.expect_json(FINE, "status", server.control, *options[:2])
            if status["quarantine"]:
                return status["quarantine"][0]["incarnation"]
            if any(transfer["state"] in ("asking", "quarantined") for transfer in status["transfers"]):
                time.sleep(0.1)
                continue
            if sender.poll() is not None:  # it was stopped for too long
                sender = self.send_on(server, *options)
            sender.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            sender.send_signal(signal.SIGSTOP)

    def held(self, server, *keys):
        return self.expect_json(FINE, "status", server.control, *keys)["quarantine"]

    def test_declare_dead(self):
        server, other = self.serve(*SMALL, "--timeout", "1"), self.serve(*SMALL)
        unknown = "0123456789abcdef"
        value = self.expect_json(FAILED, "declare-dead", server.control, "--incarnation", unknown)
        self.assertEqual(self.codes(value), {"peer_unknown"})
        self.assertEqual(value["declared"], [])
        self.assertIn(unknown, value["reasons"][0]["found"])
        self.assertIn("there is none", value["reasons"][0]["expected"])
        name = self.hold(server)
        text = self.expect(FINE, "status", server.control).out
        self.assertIn(f"  kvferry declare-dead {server.control} --incarnation {name}\n", text)
        self.assertTrue(self.held(server))
        value = self.expect_json(FINE, "declare-dead", server.control, other.control, "--incarnation", name)
        first, second = value["declared"]
        self.assertGreater(first.pop("blocks"), 0)
        self.assertEqual(first, {"address": server.control, "incarnation": name, "known": True, "transfers": 1,
                                 "waiting": 0})
        self.assertEqual(second, {"address": other.control, "incarnation": name, "known": False})
        while self.held(server):  # the last bytes are waited for
            time.sleep(0.1)
        out = self.expect(FINE, "declare-dead", server.control, other.control, "-i", name).out  # again
        self.assertIn(f"{server.control}: {name} is dead: 0 blocks of 0 transfers are released; 0 transfers wait", out)
        self.assertIn(f"{other.control}: {name} is not known there", out)
        result = self.expect(FAILED, "declare-dead", server.control, "-i", name, "-i", unknown)
        self.assertIn(f"{server.control}: {name} is dead", result.out)
        self.assertIn(f"found {unknown}", result.err)
        value = self.expect_json(FAILED, "declare-dead", server.control, "-i", name, "-i", unknown)
        self.assertEqual([(row["incarnation"], row["known"]) for row in value["declared"]], [(name, True)])
        self.assertEqual([reason["found"] for reason in value["reasons"]], [unknown])

    def test_declare_dead_is_the_operators(self):
        for name in ("prefill", "decode"):
            self.expect(FINE, "keygen", name)
        server = self.serve(*SMALL, "--key", "decode", "--allow", "prefill.pub", "--timeout", "1")
        name = self.hold(server, "--key", "prefill", "--allow", "decode.pub")
        words = ("declare-dead", server.control, "--incarnation", name)
        value = self.expect_json(FAILED, *words, "--key", "prefill")
        self.assertEqual(self.codes(value), {"not_operator"})
        self.assertEqual(self.codes(self.expect_json(FAILED, *words)), {"address_key"})
        self.assertTrue(self.held(server, "--key", "decode"))
        self.assertEqual(self.expect_json(FINE, *words, "--key", "decode")["declared"][0]["transfers"], 1)
        while self.held(server, "--key", "decode"):
            time.sleep(0.1)

    def test_nobody_there(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        result = self.expect(FAILED, "send", f"127.0.0.1:{port}", *SMALL, env=MODELS)
        self.assertIn("nobody listens there", result.err)
        self.expect_json(FAILED, "status", f"tcp://127.0.0.1:{port}", "--timeout", "1")

    def test_a_stranger_is_sent_away(self):
        server = self.serve(*SMALL, "--timeout", "2")
        host, port = server.address.rsplit(":", 1)
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x02\0\0\0{}", b""):
            with socket.create_connection((host, int(port)), timeout=30) as stranger:
                try:
                    stranger.sendall(data)
                    stranger.shutdown(socket.SHUT_WR)
                    self.assertEqual(stranger.recv(100), b"")
                except OSError as error:  # closed already, with bytes that it had not read
                    self.assertIn(error.errno, (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN))
        self.assertEqual(self.send_json(FINE, server, *SMALL)["right"], 1)

    def test_keygen(self):
        value = self.expect_json(FINE, "keygen", "key")
        self.assertEqual(value, {"ok": True, "key": "key", "public": "key.pub"})
        path = os.path.join(self.folder, "key")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        with open(path, "rb") as file:
            before = file.read()
        self.expect(FAILED, "keygen", "key")  # what is there stays
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertIn("kept secret", self.expect(FINE, "keygen", "other").out)

    def test_wrong_use(self):
        self.expect_misuse("serve", says=["--model", "neither"])
        self.expect_misuse("serve", "--model", "m", "--layout", "f", says=["both"])
        self.expect_misuse("serve", *SMALL, "--topology", "tp", env=MODELS, says=["--topology"])
        for wrong in ("here", "127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:http"):
            self.expect_misuse("serve", *SMALL, "--listen", wrong, env=MODELS, says=["--listen", "HOST:PORT", wrong])
        self.expect_misuse("serve", *SMALL, "--listen", "::1:5", env=MODELS, says=["brackets"])
        self.expect_misuse("serve", *SMALL, "--key", "k", env=MODELS, says=["--allow"])
        self.expect_misuse("send", says=["ADDRESS"])
        self.expect_misuse("send", "a:1", "b:2", says=["ADDRESS", "b:2"])
        self.expect_misuse("status", says=["ADDRESS"])
        self.expect_misuse("declare-dead", says=["ADDRESS"])
        self.expect_misuse("declare-dead", "tcp://127.0.0.1:1", says=["--incarnation"])
        for wrong in ("1", "0123456789ABCDEF", "0123456789abcdefa"):
            self.expect_misuse("declare-dead", "tcp://127.0.0.1:1", "--incarnation", wrong,
                               says=["--incarnation", "16", wrong])
        self.expect_misuse("keygen", says=["FILE"])

    def test_addresses_that_are_none(self):
        for wrong in ("foo", "", "tcp://127.0.0.1:1/zz", "tcp://127.0.0.1:65536", "127.0.0.1:1"):
            for verb in (("status",), ("declare-dead", "-i", "0" * 16)):
                self.expect_misuse(*verb, wrong, says=["ADDRESS: expected tcp://HOST:PORT", f'found "{wrong}"'])
        for wrong in ("foo", "", "tcp://127.0.0.1:1", "127.0.0.1:65536"):
            self.expect_misuse("send", wrong, *SMALL, env=MODELS, says=["ADDRESS: expected HOST:PORT"])
        self.expect(FAILED, "status", "tcp://127.0.0.1:1", "--timeout", "1")

    def test_nobody_is_told_where_one_address_is_none(self):
        with socket.create_server(("127.0.0.1", 0)) as node:
            node.settimeout(0)
            address = "tcp://127.0.0.1:%d" % node.getsockname()[1]
            self.expect_misuse("declare-dead", address, "foo", "-i", "0" * 16, "--timeout", "1", says=["ADDRESS", "foo"])
            with self.assertRaises(BlockingIOError):
                node.accept()

    def test_options_of_a_model_beside_documents(self):
        self.write("d.json", document("d"))
        for verb in (("serve",), ("send", "127.0.0.1:1")):
            for words, name in ((("--topology", "tp2"), "--topology"), (("--engine-id", "e"), "--engine-id"),
                                (("--blocks", "9"), "--num-gpu-blocks-override (--blocks)"),
                                (("--kv-cache-dtype", "fp8"), "--kv-cache-dtype (--kv-dtype)"),
                                (("-t", "tp2", "--platform", "cpu"), "--topology, --platform")):
                self.expect_misuse(*verb, "--layout", "d.json", *words, says=[f"{name}: expected", "--layout"])

    def test_no_keys_and_no_loopback(self):
        value = self.expect_json(FAILED, "serve", *SMALL, "--listen", "0.0.0.0:0", env=MODELS)
        self.assertTrue(value["reasons"])


if __name__ == "__main__":
    unittest.main()
