# SPDX-License-Identifier: Apache-2.0
"""What serve and send say when there is nothing to move: workers that are not there, another program, nobody."""
import contextlib
import json
import os
import re
import socket
import threading
import unittest

from documents import document
from harness import FAILED, FINE, SOURCE, CommandTest
from test_try import MODELS, SMALL, Serve


def read_message(connection):
    """One message of the line between `send` and `serve`, as bytes; b"" at its end."""
    size = connection.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        return b""
    return size + connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)


def message(value):
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "little") + text


HELLO = message({"try": "kvferry-try/1", "version": "0.0.0"})


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


class Listener:
    """Something that listens, and does `what` with the first connection."""

    def __init__(self, test, what):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        self.what = what
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        test.addCleanup(self.end)

    def run(self):
        connection, _ = self.socket.accept()
        with connection, contextlib.suppress(ConnectionError):  # `send` may be the first to go
            self.what(connection)

    def end(self):
        self.thread.join(60)
        self.socket.close()


class Workers(CommandTest):
    """--layout has each worker of one engine once; else nothing begins."""

    def expect_refused(self, files, *says):
        words = [word for file in files for word in ("--layout", file)]
        self.expect_misuse("send", "127.0.0.1:1", *words, says=["--layout", *says])  # nobody would be there
        self.expect_misuse("serve", *words, says=["--layout", *says])

    def test_each_once(self):
        for rank in range(2):
            for stage in range(2):
                self.write(f"{stage}{rank}.json", document("p", rank=rank, size=2, stage=stage, stages=2))
        self.write("again.json", document("p", rank=1, size=2, stage=0, stages=2))
        self.expect_refused(["00.json", "01.json", "10.json"], "4 of them", "none of tp1 pp1 dp0")
        self.expect_refused(["00.json"], "none of tp1 pp0 dp0; none of tp0 pp1 dp0; none of tp1 pp1 dp0")
        self.expect_refused(["00.json", "01.json", "again.json", "10.json", "11.json"],
                            "tp1 pp0 dp0 twice, in 01.json and again.json")
        self.expect_refused(["00.json", "01.json", "again.json", "10.json"], "tp1 pp0 dp0 twice, in 01.json and again.json",
                            "none of tp1 pp1 dp0")
        self.expect_refused(["01.json", "00.json", "10.json", "11.json"], "lowest ranks first", "01.json first")

    def test_many_that_are_missing(self):
        self.write("0.json", document("p", rank=0, size=4))
        value = document("p", rank=0, size=4)
        value["worker"]["tp_size"] = 64
        self.write("64.json", value)
        self.expect_refused(["64.json"], "none of tp8 pp0 dp0; none of 55 more")
        value["worker"].update(tp_size=65536, pp_size=65536, dp_size=65536)
        self.write("huge.json", value)
        self.expect_refused(["huge.json"], "at most 4096 workers", "huge.json of tp65536 pp65536 dp65536")

    def test_one_engine(self):
        self.write("p.json", document("p", rank=0, size=2))
        self.write("other.json", document("q", rank=1, size=2))
        self.write("four.json", document("p", rank=1, size=4))
        self.expect_refused(["p.json", "other.json"], "p.json of engine p, other.json of q")
        self.expect_refused(["p.json", "four.json"], "p.json of tp2 pp1 dp1, four.json of tp4 pp1 dp1")


class NoAnswer(CommandTest):
    """`send` says what is known of why there is none, and with --json what a script can tell apart."""

    def expect_reason(self, address, code, *says, options=()):
        words = ("send", address, *SMALL, *options)
        value = self.expect_json(FAILED, *words, env=MODELS)
        self.assertEqual(self.codes(value), {code})
        self.assertEqual(value["reasons"][0]["place"], address)
        for text in says:
            self.assertIn(text, value["reasons"][0]["message"])
        return value

    def test_nobody_listens(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]
        self.expect_reason(address, "serve_unreachable", "refused", "nobody listens there")
        result = self.expect(FAILED, "send", address, *SMALL, env=MODELS)
        self.assertEqual(result.out, "")
        self.assertIn(f"kvferry send: {address}: expected a 'kvferry serve' that can be reached", result.err)

    def test_no_word(self):
        listener = Listener(self, lambda connection: read_message(connection) and connection.recv(1))
        self.expect_reason(listener.address, "serve_silent", "within 1 s", "busy", options=("--timeout", "1"))

    def test_it_is_busy(self):
        server = Serve(self, *SMALL)
        with connect(server.address) as first:
            first.sendall(HELLO)
            read_message(first)  # it waits for what this one wants now
            self.expect_reason(server.address, "serve_silent", "another sender", options=("--timeout", "1"))
        self.assertEqual(self.expect_json(FINE, "send", server.address, *SMALL, env=MODELS)["right"], 1)

    def test_it_ends(self):
        listener = Listener(self, lambda connection: read_message(connection))
        self.expect_reason(listener.address, "serve_gone", "the end of the connection")

    def test_another_program(self):
        for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", message({"hello": 1}), message({"try": "kvferry-try/0"}),
                       message({"try": "kvferry-try/1"})):
            listener = Listener(self, lambda connection, answer=answer: read_message(connection) and
                                (connection.sendall(answer), connection.recv(1)))
            self.expect_reason(listener.address, "serve_unknown")

    def test_it_ends_in_the_middle(self):
        """A relay passes on who both sides are, and ends with the request."""
        server = Serve(self, *SMALL)

        def relay(connection):
            with connect(server.address) as beyond:
                beyond.sendall(read_message(connection))
                connection.sendall(read_message(beyond))
                beyond.sendall(read_message(connection))
                read_message(connection)

        listener = Listener(self, relay)
        words = ("send", listener.address, *SMALL, "--timeout", "5")
        value = self.expect_json(FAILED, *words, env=MODELS)
        self.assertIn("serve_gone", self.codes(value))
        self.assertEqual((value["right"], len(value["requests"])), (0, 1))
        result = self.expect(FAILED, "send", Listener(self, relay).address, *words[2:], env=MODELS)
        self.assertIn("expected the outcome of a request, found the end of the connection", result.err)
        self.assertIn("0 of 1 requests: every byte right", result.out)

    def test_no_memory_for_a_token(self):
        server = Serve(self, "--model", "Llama-3.1-8B", "--blocks", "1")
        value = self.expect_json(FAILED, "send", server.address, *SMALL, env=MODELS)
        self.assertEqual([(reason["code"], reason["place"]) for reason in value["reasons"]],
                         [("memory_small", server.address)])


class Server(CommandTest):
    def test_once_is_not_for_who_is_no_sender(self):
        server = Serve(self, *SMALL, "--once")
        connect(server.address).close()  # is the port open?
        with connect(server.address) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        self.expect(FAILED, "send", server.address, *SMALL, "--kv-cache-dtype", "fp8", env=MODELS)  # does not fit
        self.assertEqual(self.expect_json(FINE, "send", server.address, *SMALL, env=MODELS)["right"], 1)
        self.assertEqual(server.wait()[0], FINE)

    def test_who_said_hello_has_the_whole_timeout(self):
        server = Serve(self, *SMALL, "--timeout", "6")
        with connect(server.address) as sender:
            sender.sendall(HELLO)
            read_message(sender)
            self.assertEqual(sender.recv(1), b"")  # it is sent away
        server.interrupt()
        self.assertIn("it said nothing for 6 s", "".join(server.said))

    def test_documents_that_cannot_be_read_are_no_output(self):
        server = Serve(self, *SMALL, "--json")
        with connect(server.address) as sender:
            sender.sendall(HELLO)
            read_message(sender)
            sender.sendall(message({"try": "kvferry-try/1", "address": "tcp://127.0.0.1:1", "documents": ["{}"]}))
            self.assertEqual(sender.recv(1), b"")
        status, out = server.interrupt()
        self.assertEqual((status, json.loads(out)["requests"]), (FINE, 0))
        self.assertIn("a value is missing", "".join(server.said))

    def test_requests_that_are_none_cost_no_blocks(self):
        """There is room for one block beside the null block; what is wrong is said with the sender's name."""
        server = Serve(self, "--model", "Llama-3.1-8B", "--blocks", "2")
        says = []
        for request, why in (({"tokens": 16}, "source: "), ({"tokens": 17}, "expected a request of 1 to 16 tokens"),
                             ("no object", "expected a request of 1 to 16 tokens")):
            with connect(server.address) as sender:
                sender.sendall(HELLO)
                read_message(sender)
                sender.sendall(message({"try": "kvferry-try/1", "address": "tcp://127.0.0.1:1",
                                        "documents": [json.dumps(document("p"))]}))
                sender.sendall(message({"request": request, "seed": 1}))
                self.assertEqual(sender.recv(1), b"")
                says.append("kvferry serve: %s:%d: %s" % (*sender.getsockname(), why))
        value = self.expect_json(FINE, "send", server.address, *SMALL, env=MODELS)
        self.assertEqual((value["right"], value["requests"][0]["tokens"]), (1, 16))
        server.interrupt()
        for line in says:
            self.assertIn(line, "".join(server.said))

    def test_every_worker_has_a_status(self):
        server = Serve(self, *SMALL, "--topology", "tp2pp2")
        named = re.findall(r"kvferry serve: (pp\d tp\d): status: (\S+)", "".join(server.said))
        self.assertEqual([name for name, _ in named], ["pp0 tp0", "pp0 tp1", "pp1 tp0", "pp1 tp1"])
        self.assertEqual(named[0][1], server.control)
        for name, address in named:
            worker = self.expect_json(FINE, "status", address)["worker"]
            self.assertEqual(f"pp{worker['pp_rank']} tp{worker['tp_rank']}", name)

    def test_an_address_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            self.expect_misuse("serve", *SMALL, "--listen", address, env=MODELS,
                               says=["--listen", "port is free", f"{address} (Address already in use)"])
        self.expect_misuse("serve", *SMALL, "--listen", "no.such.host.invalid:5", env=MODELS,
                           says=["--listen", "no.such.host.invalid:5 ("])

    def test_messages_name_options_of_the_command(self):
        self.expect(FINE, "keygen", "key")
        self.expect(FINE, "keygen", "where")
        keyed = f"tcp://127.0.0.1:1/{'0' * 64}"
        cases = [(("serve", *SMALL, "--listen", "0.0.0.0:0"), "address_insecure", "--listen", "--key", "or --insecure"),
                 (("serve", *SMALL, "--listen", "0.0.0.0:0", "--insecure"), "advertise_missing", "--listen"),
                 (("serve", *SMALL, "--key", "key", "--allow", "where"), "key_malformed", "where line 1"),
                 (("serve", *SMALL, "--transport", "none"), "engine_failed", "--transport", "that UCX has here"),
                 (("status", keyed), "address_key", "ADDRESS", "expected --key FILE"),
                 (("status", "tcp://127.0.0.1:1", "--key", "key"), "address_key", "ADDRESS"),
                 (("declare-dead", keyed, "-i", "0" * 16), "address_key", f"{keyed}: ADDRESS", "expected --key FILE")]
        for words, code, place, *says in cases:
            reason, = self.expect_json(FAILED, *words, env=MODELS)["reasons"]
            self.assertEqual((reason["code"], reason["place"]), (code, place))
            self.assertTrue(reason["message"].startswith(f"{place}: "), reason)
            for text in says:
                self.assertIn(text, reason["message"])
            self.assertNotIn("key_file", str(reason))
        self.assertIn("--key", self.expect(FAILED, "status", keyed).err)

    def test_options_that_the_command_has_not_are_words(self):
        """Each name of a field in a sentence of a node or engine has words in the command, or is one of its places."""
        fields = set()
        for name, kind in (("node.h", "kvferry_node_options"), ("engine.h", "kvferry_engine_options")):
            with open(os.path.join(SOURCE, "include", "kvferry", name)) as file:
                body = re.search(r"typedef struct %s \{(.*?)\n\}" % kind, file.read(), re.S)[1]
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            fields |= {field for field in re.findall(r"(\w+);", body) if "_" in field}
        self.assertLessEqual({"silence_ms", "net_devices", "max_peer_copies", "connect_ms"}, fields)
        with open(os.path.join(SOURCE, "tools", "tool_words.c")) as file:
            known = set(re.findall(r'\{"(\w+)", "', file.read()))
        for folder in ("node", "engine"):
            folder = os.path.join(SOURCE, "src", folder)
            for name in os.listdir(folder):
                if not name.endswith(".c") or name.endswith("_test.c"):
                    continue
                with open(os.path.join(folder, name)) as file:
                    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', file.read())
                for text in texts:
                    words = set(re.findall(r"\w+", text)) & fields
                    if " " in text and words:
                        self.assertLessEqual(words, known, f"{name}: {text}")

    def test_names_of_files_stay_in_messages(self):
        self.expect(FINE, "keygen", "key")
        for name in ("allowed_keys", "key_file"):
            self.write(name, {})
            for words, place in ((("--key", name, "--allow", "key.pub"), name), (("--key", "key", "--allow", name), f"{name} line 1")):
                reason, = self.expect_json(FAILED, "serve", *SMALL, *words, env=MODELS)["reasons"]
                self.assertEqual((reason["code"], reason["place"]), ("key_malformed", place))
                self.assertTrue(reason["message"].startswith(f"{place}: "), reason)

    def test_files_of_keys_that_are_not_there(self):
        self.expect(FINE, "keygen", "key")
        for words, option in ((("serve", *SMALL, "--key", "none", "--allow", "key.pub"), "--key"),
                              (("serve", *SMALL, "--key", "key", "--allow", "none"), "--allow"),
                              (("send", "127.0.0.1:1", *SMALL, "--key", "key", "--allow", "none"), "--allow"),
                              (("status", "tcp://127.0.0.1:1", "--key", "none"), "--key"),
                              (("declare-dead", "tcp://127.0.0.1:1", "-i", "0" * 16, "--key", "none"), "--key")):
            self.expect_misuse(*words, env=MODELS, says=[option, "none (No such file or directory)"])
        self.expect_misuse("status", "tcp://127.0.0.1:1", "--key", ".", says=["--key", ". (Is a directory)"])
        self.expect_misuse("serve", *SMALL, "--allow", "key.pub", env=MODELS, says=["--key: expected", "--allow alone"])

    def test_help_says_how_many_blocks(self):
        for verb, text in (("serve", "16"), ("send", "16"), ("layout", "1024"), ("explain", "what the request needs")):
            self.assertIn(f"blocks in the pool; default {text}\n", self.expect(FINE, verb, "--help").out)


if __name__ == "__main__":
    unittest.main()
