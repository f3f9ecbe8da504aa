# SPDX-License-Identifier: Apache-2.0
"""serve and send between two hosts, which are network namespaces: root and `ip` are needed."""
import os
import subprocess
import unittest

from harness import BINARY, FINE, CommandTest
from test_try import MODELS, SMALL, Serve

SPACES = [f"kvferry-try-{os.getpid()}-{side}" for side in "ab"]
HOSTS = ["10.78.0.1", "10.78.0.2"]
ROUTED = "10.79.0.1"


def ip(*words):
    return subprocess.run(["ip", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def make_spaces():
    """Two namespaces with an Ethernet between them; False: that is not allowed here."""
    if not all(ip("netns", "add", space) for space in SPACES):
        return False
    ip("-n", SPACES[0], "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", SPACES[1])
    for space, host in zip(SPACES, HOSTS):
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "address", "add", f"{host}/24", "dev", "link0")
        ip("-n", space, "link", "set", "link0", "up")
    return True


class TryBetweenHosts(CommandTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(lambda: [ip("netns", "delete", space) for space in SPACES])
        if os.geteuid() != 0 or not make_spaces():
            self.skipTest("network namespaces need root and ip")

    def within(self, side):
        """Hosts are told apart by what the kernel says of its start; each namespace has a word of its own."""
        word = os.path.join(self.folder, f"boot_id-{side}")
        with open(word, "w", encoding="ascii") as file:
            file.write(f"{side:08d}-1111-4111-8111-111111111111\n")
        begin = f'mount --bind "{word}" /proc/sys/kernel/random/boot_id && exec "$0" "$@"'
        return ["ip", "netns", "exec", SPACES[side], "sh", "-c", begin, BINARY]

    def expect_sent(self, host):
        server = Serve(self, *SMALL, "--listen", f"{host}:0", "--insecure", "--transport", "tcp", binary=self.within(0))
        result = subprocess.run([*self.within(1), "send", server.address, *SMALL, "--tokens", "100", "--insecure",
                                 "--transport", "tcp"], env=dict(os.environ, **MODELS), capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(result.returncode, FINE, result.stdout + result.stderr)
        self.assertIn("1 of 1 requests: every byte right", result.stdout)

    def test_no_device_is_named(self):
        self.expect_sent(HOSTS[0])

    def test_the_address_is_of_the_loopback_device(self):
        """As where each host tells the network a route to its own address."""
        self.assertTrue(ip("-n", SPACES[0], "address", "add", f"{ROUTED}/32", "dev", "lo"))
        self.assertTrue(ip("-n", SPACES[1], "route", "add", f"{ROUTED}/32", "via", HOSTS[0]))
        self.expect_sent(ROUTED)


if __name__ == "__main__":
    unittest.main()
