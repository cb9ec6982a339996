#!/usr/bin/env python3
"""Tests of who is let in and what strangers can do: security_test.py MUSTER TASK. Certificates are real, and so are the ports."""
import contextlib
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import raw_grpc
from raw_grpc import Connection
from server_process import PATIENCE, ServerProcess, cluster_json, wait_until

MUSTER, TASK = sys.argv[1:3]  # TASK: examples/task
CORPUS = pathlib.Path(__file__).resolve().parent.parent / "muster/graph/fuzz_corpus"
CLUSTER = cluster_json(ps=["ps0.example:2222"], worker=["127.0.0.1:1", "[::1]:1"])
DTYPES = ((0, 1), (3, 4), (4, 8), (6, 4), (7, 8), (11, 1))  # numbers of muster/graph/dtype.h, with their bytes
# With one arena for all threads, resident memory is what a server holds, not what glibc keeps for each of its threads.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
WARM_UP, ROUNDS = 2, 5  # a server's memory is measured from its third look at everything on
MOST_GROWTH = 32 << 20
MOST_PER_CONNECTION = 256 << 10
HEALTH = "/grpc.health.v1.Health/Check"


def muster(*arguments, **options):
    return subprocess.run([MUSTER, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=PATIENCE,
                          **options)


def openssl(*arguments):
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def accepting(listener, context):
    """Shakes hands with whoever comes, until the `with` is left."""
    def accept():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(client, server_side=True) as shaken:
                    shaken.sendall(raw_grpc.frame(raw_grpc.SETTINGS))
                    shaken.recv(1 << 16)

    thread = threading.Thread(target=accept)
    thread.start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def status(server, *arguments):
    return muster("status", "--target", server.target, *arguments)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


class Scratch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("needs the command openssl")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    @classmethod
    def make_certs(cls, name, *arguments, cluster=CLUSTER):
        made = muster("certs", "--cluster", cluster, "--out", cls.folder / name, *arguments)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        return cls.folder / name


class Certs(Scratch):
    def test_every_task_and_client_gets_a_certificate_that_its_authority_has_signed(self):
        certs = self.make_certs("all", "--client", "ann", "--client", "bob")

        self.assertEqual({path.name for path in certs.iterdir()}, {"authority", "ps-0", "worker-0", "worker-1", "ann", "bob"})
        for name, where in (("ps-0", ["-verify_hostname", "ps0.example"]), ("worker-0", ["-verify_ip", "127.0.0.1"]),
                            ("worker-1", ["-verify_ip", "::1"])):
            for asked in (["-verify_hostname", name + ".muster"], where):
                for purpose in ("sslserver", "sslclient"):
                    done = self.verify(certs / name, purpose, *asked)
                    self.assertEqual(done.returncode, 0, done.stderr)
        for client in ("ann", "bob"):
            self.assertEqual(self.verify(certs / client, "sslclient").returncode, 0)

    def verify(self, part, purpose, *asked):
        return openssl("verify", "-x509_strict", "-purpose", purpose, *asked, "-CAfile", part / "ca.pem",
                       part / "certificate.pem")

    def test_a_certificate_is_that_of_one_task_and_a_client_has_none_of_a_server(self):
        certs = self.make_certs("one")

        for name in ("ps-0", "worker-1"):
            self.assertNotEqual(self.verify(certs / "worker-0", "sslserver", "-verify_hostname", name + ".muster").returncode, 0)
        self.assertNotEqual(self.verify(certs / "client", "sslserver").returncode, 0)

    def test_what_is_copied_to_a_machine_has_its_own_key_and_no_other(self):
        certs = self.make_certs("parts")

        for part in certs.iterdir():
            names = {"ca.pem", "ca.key", "token"} if part.name == "authority" else {"ca.pem", "certificate.pem", "key.pem", "token"}
            self.assertEqual({path.name for path in part.iterdir()}, names)
        keys = [path.read_bytes() for path in certs.rglob("*key*")]
        self.assertEqual(len(set(keys)), len(keys))

    def test_keys_and_the_token_are_for_their_owner_only(self):
        certs = self.make_certs("modes")

        for directory in (certs, *certs.iterdir()):
            self.assertEqual(mode(directory), 0o700, directory)
        for part in certs.iterdir():
            for path in part.iterdir():
                if path.name not in ("ca.pem", "certificate.pem"):
                    self.assertEqual(mode(path), 0o600, path)
            self.assertRegex((part / "token").read_text(), r"^[0-9a-f]{64}\n$")

    def test_a_second_call_adds_tasks_and_keeps_the_rest(self):
        certs = self.make_certs("grown", cluster=cluster_json(worker=["a:1"]))
        before = {path: path.read_bytes() for path in certs.rglob("*") if path.is_file()}

        done = muster("certs", "--cluster", cluster_json(worker=["a:1", "b:1"]), "--out", certs)

        self.assertEqual(done.returncode, 0, done.stderr)
        for path, content in before.items():
            self.assertEqual(path.read_bytes(), content, path)
        self.assertTrue((certs / "worker-1/certificate.pem").exists())
        self.assertRegex(done.stdout, r"worker-0 .* kept\n")
        self.assertRegex(done.stdout, r"worker-1 .* made\n")
        self.assertRegex(done.stdout, r"token .* kept\n")

    def test_a_certificate_that_does_not_fit_is_made_anew_and_that_is_said(self):
        certs = self.make_certs("moved", cluster=cluster_json(worker=["a:1", "b:1"]))
        shutil.copy(certs / "worker-0/key.pem", certs / "worker-1/key.pem")

        done = muster("certs", "--cluster", cluster_json(worker=["elsewhere:1", "b:1"]), "--out", certs)

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"worker-0 .* made anew: the old one does not name elsewhere\n")
        self.assertRegex(done.stdout, r"worker-1 .* made anew: the old one does not belong to its key\n")

    def test_half_an_authority_is_not_replaced(self):
        certs = self.make_certs("half")
        (certs / "authority/ca.key").unlink()

        done = muster("certs", "--cluster", CLUSTER, "--out", certs)

        self.assertEqual(done.returncode, 1)
        self.assertIn("has ca.pem without ca.key", done.stderr)

    def test_an_authority_that_has_expired_signs_no_more(self):
        certs = self.make_certs("old")
        ca = certs / "authority/ca.pem"
        renewed = openssl("x509", "-in", ca, "-signkey", certs / "authority/ca.key", "-days", "-1", "-out", ca)
        self.assertEqual(renewed.returncode, 0, renewed.stderr)

        done = muster("certs", "--cluster", CLUSTER, "--out", certs)

        self.assertEqual(done.returncode, 1)
        self.assertIn("ca.pem has expired", done.stderr)

    def test_a_certificate_is_valid_for_as_long_as_was_asked(self):
        certs = self.make_certs("short", "--days", "2")

        for name, seconds, valid in (("worker-0/certificate.pem", 86400, True), ("worker-0/certificate.pem", 3 * 86400, False),
                                     ("authority/ca.pem", 365 * 86400, True)):
            done = openssl("x509", "-checkend", seconds, "-noout", "-in", certs / name)
            self.assertEqual(done.returncode == 0, valid, (name, seconds))

    def test_the_next_command_can_be_typed_as_it_is_printed(self):
        cluster = self.folder / "a cluster.json"
        cluster.write_text(cluster_json(worker=["127.0.0.1:0"]))
        done = muster("certs", "--cluster", cluster, "--out", self.folder / "next")

        words = shlex.split(re.search(r"^  (muster server .*)$", done.stdout, re.MULTILINE)[1])

        self.assertEqual(words[:4], ["muster", "server", "--cluster", str(cluster)])
        with ServerProcess(MUSTER, "--credentials", words[words.index("--credentials") + 1], cluster=str(cluster),
                           address=None) as server:
            self.assertEqual(server.task, "/job:worker/replica:0/task:0")

    def test_what_is_asked_wrongly_is_refused_and_nothing_is_written(self):
        for arguments, code, words in ((["--cluster", CLUSTER, "--days", "0"], 2, "--days"),
                                       (["--cluster", CLUSTER, "--client", "../x"], 1, 'client "../x": expected a name'),
                                       (["--cluster", CLUSTER, "--client", "ps-0"], 1, "the name is taken"),
                                       (["--cluster", CLUSTER, "--client", "authority"], 1, "the name is taken"),
                                       (["--cluster", "{}"], 1, "which cluster?"),
                                       (["--cluster", "nowhere.json"], 1, "nowhere.json")):
            with self.subTest(arguments):
                done = muster("certs", *arguments, "--out", self.folder / "wrong")

                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertFalse((self.folder / "wrong").exists())


class Secured(Scratch):
    """One server with credentials, and everybody who should not reach it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.certs = cls.make_certs("certs")
        cls.other = cls.make_certs("other")
        cls.token = (cls.certs / "authority/token").read_text().strip()
        cls.make_expired()
        cls.server = cls.enterClassContext(ServerProcess(MUSTER, "--credentials", cls.certs))

    @classmethod
    def make_expired(cls):
        request, extensions = cls.folder / "expired.csr", cls.folder / "extensions"
        extensions.write_text("extendedKeyUsage=clientAuth\n")
        shutil.copytree(cls.certs / "client", cls.certs / "expired")
        authority, expired = cls.certs / "authority", cls.certs / "expired"
        for words in (["req", "-new", "-key", expired / "key.pem", "-subj", "/CN=expired", "-out", request],
                      ["x509", "-req", "-in", request, "-CA", authority / "ca.pem", "-CAkey", authority / "ca.key",
                       "-days", "-1", "-extfile", extensions, "-out", expired / "certificate.pem"]):
            done = openssl(*words)
            if done.returncode != 0:
                raise AssertionError(done.stderr)

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), self.server.errors())
        done = status(self.server, "--credentials", self.certs)
        self.assertEqual(done.returncode, 0, done.stderr)

    def shown(self, identity, *, by=None):
        """The flags with which openssl shows a certificate."""
        by = by or self.certs
        return ["-cert", by / identity / "certificate.pem", "-key", by / identity / "key.pem"]

    def s_client(self, *arguments):
        """What the server says first once the handshake is over: nothing if it hangs up instead."""
        command = ["openssl", "s_client", "-quiet", "-connect", self.server.address, "-alpn", "h2", "-CAfile",
                   str(self.certs / "authority/ca.pem"), "-verify_return_error", "-verify_hostname", "worker-0.muster",
                   *map(str, arguments)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            return client.stdout.read(9)
        finally:
            client.kill()
            client.communicate()

    def context(self, identity=None, by=None):
        context = ssl.create_default_context(cafile=self.certs / "authority/ca.pem")
        context.set_alpn_protocols(["h2"])
        if identity:
            part = (by or self.certs) / identity
            context.load_cert_chain(part / "certificate.pem", part / "key.pem")
        return context

    def test_openssl_is_let_in_with_a_certificate_of_the_cluster(self):
        for version in ("-tls1_2", "-tls1_3"):
            with self.subTest(version):
                said = self.s_client(version, *self.shown("client"))

                self.assertEqual(said[3:4], bytes([raw_grpc.SETTINGS]))

    def test_openssl_is_kept_out_without_a_certificate_of_the_cluster(self):
        for name, arguments in (("none", []), ("of a wrong authority", self.shown("client", by=self.other)),
                                ("expired", self.shown("expired")), ("old protocol", ["-tls1_1", *self.shown("client")])):
            for version in ("-tls1_2", "-tls1_3") if name != "old protocol" else ("-no_ticket",):
                with self.subTest(name, version=version):
                    self.assertEqual(self.s_client(version, *arguments), b"")

    def test_a_client_knows_a_server_of_another_authority(self):
        with ServerProcess(MUSTER, "--credentials", self.other) as server:
            done = status(server, "--credentials", self.certs)

        self.assert_refused(done, "signed by another authority", 'that of "worker-0"', "expected one", 'issued by "muster cluster')

    def assert_refused(self, done, *words):
        """It is an error for good, in one line that says what was wrong, and gRPC adds none of its own."""
        self.assertEqual(done.returncode, 1)
        for word in ("UNAUTHENTICATED", *words):
            self.assertIn(word, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertRegex(done.stdout, r" refused\n")

    def test_a_task_is_not_taken_for_another_one(self):
        with ServerProcess(MUSTER, "--credentials", self.certs) as worker:
            done = muster("status", "--cluster", cluster_json(ps=[worker.address]), "--credentials", self.certs)

        self.assertEqual(worker.task, "/job:worker/replica:0/task:0")
        self.assert_refused(done, '"worker-0", not of ps-0')

    def test_a_server_does_not_start_with_the_certificate_of_another_one(self):
        for part, words in (("worker-1", '"worker-1", not of worker-0'), ("client", "is for a client, not for a task")):
            with self.subTest(part):
                done = muster("server", "--cluster", CLUSTER, "--task_type", "worker", "--task_index", "0", "--address",
                              "127.0.0.1:0", "--credentials", self.certs / part)

                self.assertEqual(done.returncode, 1)
                self.assertIn("FAILED_PRECONDITION", done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_client_cannot_play_a_server(self):
        """With its certificate and key, at the address of a task."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certs / "client/certificate.pem", self.certs / "client/key.pem")
        context.set_alpn_protocols(["h2"])
        with socket.create_server(("127.0.0.1", 0)) as listener, accepting(listener, context):
            port = listener.getsockname()[1]
            done = muster("status", "--cluster", cluster_json(ps=[f"127.0.0.1:{port}"]), "--credentials", self.certs)

        self.assert_refused(done, "is for a client, not for a task")

    def test_a_client_with_a_wrong_certificate_is_refused(self):
        foreign = self.folder / "foreign"
        shutil.copytree(self.certs / "client", foreign)
        for name in ("certificate.pem", "key.pem"):
            shutil.copy(self.other / "client" / name, foreign / name)

        self.assert_refused(status(self.server, "--credentials", foreign), "this client's", "signed by another authority")
        self.assert_refused(status(self.server, "--credentials", self.certs / "expired"), "this client's", "has expired")

    def test_a_client_whose_authority_the_server_does_not_know_is_refused(self):
        """It trusts the server, and has a certificate of its own that is in order."""
        both = self.folder / "both"
        shutil.copytree(self.other / "client", both)
        with open(both / "ca.pem", "a", encoding="ascii") as text:
            text.write((self.certs / "client/ca.pem").read_text())

        self.assert_refused(status(self.server, "--credentials", both), "does not accept this client's", 'that of "client"')

    def test_a_client_in_plain_text_is_refused(self):
        self.assert_refused(status(self.server), "asks for TLS", 'that of "worker-0"', "this client has no credentials")

    def test_a_server_in_plain_text_is_refused(self):
        with ServerProcess(MUSTER) as server:
            self.assert_refused(status(server, "--credentials", self.certs), "does not speak TLS")

    def test_certificates_are_renewed_while_a_server_runs(self):
        certs = self.make_certs("renewed")
        old = self.folder / "before"
        shutil.copytree(certs / "client", old)
        with ServerProcess(MUSTER, "--credentials", certs / "worker-0") as server:
            before = ssl.get_server_certificate(("127.0.0.1", server.port))
            self.assertEqual(before, (certs / "worker-0/certificate.pem").read_text())
            self.assertEqual(status(server, "--credentials", old).returncode, 0)

            # With an authority that nobody has heard of, nothing of before is good any more.
            (certs / "authority/ca.pem").unlink()
            (certs / "authority/ca.key").unlink()
            made = muster("certs", "--cluster", CLUSTER, "--out", certs)

            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertRegex(made.stdout, r"worker-0 .* made anew: the old one is signed by another authority\n")
            self.assertEqual(status(server, "--credentials", certs).returncode, 0, server.errors())
            self.assertNotEqual(ssl.get_server_certificate(("127.0.0.1", server.port)), before)
            self.assert_refused(status(server, "--credentials", old), "signed by another authority")
            self.assertIsNone(server.process.poll())

    def test_a_client_without_the_token_is_refused(self):
        for token, words in ((None, "asks for a token"), ("0" * 64, "does not know this token"),
                             (self.token[:-1], "does not know this token"), ("", "asks for a token")):
            with self.subTest(token):
                certs = self.folder / "without"
                shutil.copytree(self.certs / "client", certs)
                (certs / "token").unlink()
                if token is not None:
                    (certs / "token").write_text(token + "\n")

                done = status(self.server, "--credentials", certs)

                shutil.rmtree(certs)
                self.assertEqual(done.returncode, 1)
                self.assertIn("UNAUTHENTICATED", done.stderr)
                self.assertIn(words, done.stderr)

    def test_the_token_is_checked_on_every_call(self):
        for method in (*raw_grpc.METHODS, HEALTH):
            for token in (None, "0" * 64, self.token + "0"):
                with self.subTest(method, token=token), Connection(self.server.address, self.context("client")) as connection:
                    connection.greet()
                    stream = connection.call(method, raw_grpc.message(raw_grpc.envelope()), token=token)

                    block, body = connection.answers([stream])[stream]

                    self.assertEqual(raw_grpc.grpc_status(block), raw_grpc.UNAUTHENTICATED, block)
                    self.assertEqual(body, b"")

    def assert_logged_once(self, attempt, network):
        """However often peers are refused, the log has one line for each of them, with its address."""
        peers = [f"127.0.{network}.1", f"127.0.{network}.2"]
        before = len(self.server.errors().splitlines())
        for _ in range(4):
            for peer in peers:
                attempt(peer)

        for peer in peers:
            wait_until(lambda: peer in self.server.errors(), 10, f"a line about {peer}")
        lines = self.server.errors().splitlines()[before:]
        self.assertEqual([sum(peer in line for line in lines) for peer in peers], [1, 1], lines)
        self.assertEqual(len(lines), len(peers), lines)

    def test_a_peer_without_the_token_is_logged_once(self):
        for network, token in ((1, None), (2, "0" * 64)):
            def attempt(peer):
                with Connection(self.server.address, self.context("client"), source=peer) as connection:
                    connection.greet()
                    stream = connection.call("/muster.Worker/Status", raw_grpc.message(raw_grpc.envelope()), token=token)
                    self.assertIn(stream, connection.answers([stream]))

            with self.subTest(token):
                self.assert_logged_once(attempt, network)

    def test_a_peer_whose_handshake_fails_is_logged_once(self):
        for network, name, context in ((3, "no certificate", self.context()),
                                       (4, "a foreign certificate", self.context("client", by=self.other)),
                                       (5, "an expired certificate", self.context("expired")), (6, "plain text", None)):
            def attempt(peer):
                try:
                    with Connection(self.server.address, context, source=peer) as connection:
                        connection.greet()
                        self.assertTrue(connection.closed())
                except OSError:
                    pass  # refused before the handshake was over

            with self.subTest(name):
                self.assert_logged_once(attempt, network)


class Listening(Scratch):
    def test_without_credentials_only_loopback_is_listened_on(self):
        for host in ("0.0.0.0", "[::]", "example.org", "127.0.0.1.example.org"):
            with self.subTest(host):
                done = muster("server", "--cluster", cluster_json(worker=["127.0.0.1:1"]), "--task_type", "worker",
                              "--task_index", "0", "--address", host + ":0")

                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn("FAILED_PRECONDITION", done.stderr)
                self.assertIn("refuses to listen beyond this machine without TLS", done.stderr)
                self.assertIn("--insecure", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_loopback_needs_no_credentials(self):
        for host in ("127.0.0.1", "localhost", "127.1.2.3"):
            with self.subTest(host), ServerProcess(MUSTER, address=host + ":0") as server:
                self.assertEqual(status(server).returncode, 0)
                self.assertEqual(server.errors(), "")

    def test_insecure_listens_everywhere_and_warns(self):
        with ServerProcess(MUSTER, "--insecure", address="0.0.0.0:0") as server:
            done = muster("status", "--target", f"127.0.0.1:{server.port}")

            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("without encryption", server.errors())

    def test_credentials_let_it_listen_everywhere(self):
        certs = self.make_certs("everywhere")

        with ServerProcess(MUSTER, "--credentials", certs, address="0.0.0.0:0") as server:
            done = muster("status", "--target", f"127.0.0.1:{server.port}", "--credentials", certs)

        self.assertEqual(done.returncode, 0, done.stderr)

    def test_credentials_that_are_not_there_are_named(self):
        done = muster("server", "--cluster", CLUSTER, "--task_type", "ps", "--task_index", "0", "--credentials",
                      self.folder / "nowhere")

        self.assertEqual(done.returncode, 1)
        self.assertIn("nowhere/ca.pem", done.stderr)

    def test_a_program_of_a_users_own_takes_credentials_and_insecure_as_well(self):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        cluster = cluster_json(worker=[f"0.0.0.0:{port}"])
        certs = self.make_certs("own", cluster=cluster)
        command = [TASK, "--cluster", cluster, "--task_type", "worker", "--task_index", "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--insecure", done.stderr)

        for flags, shown in ((["--credentials", certs / "worker-0"], ["--credentials", certs / "client"]), (["--insecure"], [])):
            with self.subTest(flags), subprocess.Popen([*command, *map(str, flags)], stderr=subprocess.PIPE) as task:
                try:
                    wait_until(lambda: muster("status", "--target", f"127.0.0.1:{port}", *shown).returncode == 0,
                               what="that the task is up")
                finally:
                    task.kill()

    def test_a_signal_ends_it_with_0_and_its_port_is_free(self):
        servers = {number: self.enterContext(ServerProcess(MUSTER)) for number in (signal.SIGTERM, signal.SIGINT)}
        for server in servers.values():
            self.enterContext(Connection(server.address)).greet()
            self.assertEqual(status(server).returncode, 0)

        for number, server in servers.items():  # both at once: each waits a while for who does not hang up
            server.process.send_signal(number)

        for number, server in servers.items():
            with self.subTest(number):
                self.assertEqual(server.process.wait(PATIENCE), 0)
                with ServerProcess(MUSTER, address=server.address) as next_one:
                    self.assertEqual(next_one.port, server.port)

    def test_a_signal_ends_it_while_calls_wait(self):
        with ServerProcess(MUSTER) as server, Connection(server.address) as connection:
            connection.greet()
            connection.call("/muster.Worker/Receive", receive(meeting=7, edge=1), timeout="1000S")
            with Connection(server.address) as gone:
                gone.greet()
                gone.call("/muster.Worker/Receive", receive(meeting=8, edge=1), timeout="1000S")
            wait_until(lambda: requests(server) >= 2, what="both calls")

            self.assertEqual(server.stop(signal.SIGTERM), 0)


def receive(meeting, edge, request=None):
    header = raw_grpc.fixed64(1, meeting) + raw_grpc.number(2, edge)
    return raw_grpc.message(raw_grpc.envelope(header, request=request))


def abort(meeting):
    why = raw_grpc.number(1, 10) + raw_grpc.text(2, "no more")
    return raw_grpc.message(raw_grpc.envelope(raw_grpc.fixed64(1, meeting) + raw_grpc.text(2, why)))


def requests(server, *arguments):
    """How many calls the server has seen."""
    done = status(server, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr + server.errors())
    return int(re.search(r'"requests": (\d+)', done.stdout)[1])


def hostile_inputs(rng):
    """(what it is, its bytes, whether the server must close the connection by itself)."""
    hello = raw_grpc.PREFACE + raw_grpc.frame(raw_grpc.SETTINGS)
    headers = raw_grpc.frame(raw_grpc.HEADERS, raw_grpc.END_HEADERS, 1, raw_grpc.request_headers("/muster.Worker/Run"))
    data = lambda payload: hello + headers + raw_grpc.frame(raw_grpc.DATA, raw_grpc.END_STREAM, 1, payload)
    for size in (1, 9, 1000, 100_000):
        yield f"{size} bytes of garbage", rng.randbytes(size), size >= 100
        yield f"{size} bytes of garbage in HTTP/2", hello + rng.randbytes(size), False
    yield "HTTP/1.1", b"GET / HTTP/1.1\r\nHost: muster\r\n\r\n", True
    yield "HTTP/1.1 with a body", b"POST /muster.Worker/Run HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 99, True
    yield "a TLS record of random bytes", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(508), True
    yield "a TLS record that is too long", b"\x16\x03\x03\xff\xff" + rng.randbytes(70_000), True
    for length in (10, 20, len(hello) - 1, len(hello) + 5, len(hello + headers) - 1, len(hello + headers) + 4):
        yield f"cut off after {length} bytes", (hello + headers + data(b""))[:length], False
    yield "a frame that says 16 MiB", hello + raw_grpc.frame(raw_grpc.DATA, 0, 1, b"x" * 100, length=0xFFFFFF), False
    yield "settings of 5 bytes", raw_grpc.PREFACE + raw_grpc.frame(raw_grpc.SETTINGS, payload=b"12345"), False
    most = struct.pack(">I", (1 << 31) - 1)
    yield "a window that overflows", hello + raw_grpc.frame(raw_grpc.WINDOW_UPDATE, payload=most) * 2, False
    block = b"\0\x7f" + b"\xff" * 20
    yield "a header of endless length", hello + raw_grpc.frame(raw_grpc.HEADERS, 4, 1, block), False
    block = b"\0\x01a" + raw_grpc.integer(1 << 30, 7) + b"x" * 1000
    yield "a header that says 1 GiB", hello + raw_grpc.frame(raw_grpc.HEADERS, 0, 1, block), False
    more = raw_grpc.frame(raw_grpc.CONTINUATION, 0, 1, raw_grpc.header_block([("a", "x" * 16_000)]))
    yield "headers without end", hello + raw_grpc.frame(raw_grpc.HEADERS, 0, 1) + more * 500, False
    yield "a message that says 4 GiB", data(raw_grpc.message(b"", length=0xFFFFFFFF)), False
    yield "an envelope that says 4 GiB", data(raw_grpc.message(b"abc", envelope_length=0xFFFFFFFF)), False
    for sizes in ([1 << 40], [1 << 62, 4], [-1], [1] * 1000, [1 << 31, 1 << 31, 1 << 31]):
        yield f"a tensor of {sizes[:3]}", data(raw_grpc.message(raw_grpc.envelope(tensors=[(0, sizes)]), b"1234")), False
    block = raw_grpc.request_headers("/muster.Worker/Run")
    begun = [raw_grpc.frame(raw_grpc.HEADERS, raw_grpc.END_HEADERS, stream, block) for stream in range(1, 4001, 2)]
    reset = [raw_grpc.frame(raw_grpc.RST_STREAM, 0, stream, struct.pack(">I", 8)) for stream in range(1, 4001, 2)]
    yield "2000 calls that are begun", hello + b"".join(begun), False
    yield "1000 calls that are taken back", hello + b"".join(map(bytes.__add__, begun[:1000], reset[:1000])), False
    yield "a flood of pings", hello + raw_grpc.frame(raw_grpc.PING, payload=b"12345678") * 5000, False
    yield "a flood of settings", hello + raw_grpc.frame(raw_grpc.SETTINGS) * 5000, False


class Fuzzer:
    """Calls that look right: each method gets a header of its kind, often with something wrong in it. Ids are few, so that
    calls meet: one repeats another's request, or aborts the step that a third waits for."""

    def __init__(self, seed, token):
        self.rng = random.Random(seed)
        self.token = token
        self.programs = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
        self.sessions = ["", "0"]
        self.requests = [(0, 0)]

    def small(self):
        return self.rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, (1 << 64) - 1])

    def request(self):
        """None, a new one, or one that is known: mostly the client's next, or one that is far ahead of it."""
        kind = self.rng.randrange(3)
        if kind == 1:
            client, latest = self.rng.choice(self.requests[-20:])
            client = self.rng.choice([client, client, self.small(), self.rng.randrange(1 << 64)])
            step = 1 if self.rng.random() < 0.9 else self.rng.randrange(1 << 64)
            self.requests.append((client, (latest + step) % (1 << 64)))
        return None if kind == 0 else self.rng.choice(self.requests[-20:]) if kind == 2 else self.requests[-1]

    def program(self):
        program = bytearray(self.rng.choice(self.programs))
        if self.rng.random() < 0.5:
            for _ in range(self.rng.randrange(1, 4)):
                program[self.rng.randrange(len(program))] = self.rng.randrange(256)
        return bytes(program)

    def header(self, method):
        name = method.rsplit("/", 1)[1]
        if name == "Register":
            return (raw_grpc.text(1, self.program()) + raw_grpc.text(2, self.rng.choice(["", "a", "b"])) +
                    raw_grpc.fixed64(3, self.small()))
        if name in ("Run", "RunStep", "Deregister"):
            return (raw_grpc.number(1, self.small()) + raw_grpc.number(2, self.small()) + raw_grpc.number(3, self.small()) +
                    raw_grpc.fixed64(4, self.small()) + raw_grpc.text(5, self.rng.choice(self.sessions)))
        if name == "Receive":
            return raw_grpc.fixed64(1, self.small()) + raw_grpc.number(2, self.small())
        if name == "Abort":
            why = raw_grpc.number(1, self.rng.randrange(-1, 20)) + raw_grpc.text(2, "why") + raw_grpc.text(3, "/job:x/task:1")
            return raw_grpc.fixed64(1, self.small()) + raw_grpc.text(2, why)
        if name == "Reset":
            return b"".join(raw_grpc.text(1, self.rng.choice(["", "a", "//"])) for _ in range(self.rng.randrange(3)))
        if name == "CreateSession":
            return (raw_grpc.text(1, self.rng.choice(["", "a", "a//b"])) + raw_grpc.number(2, self.rng.randrange(2)) +
                    raw_grpc.text(3, self.rng.choice(["/job:ps", "nonsense", ""])))
        return (raw_grpc.text(1, self.rng.choice(self.sessions)) + raw_grpc.text(2, self.program()) +
                raw_grpc.number(3, self.small()))

    def tensors(self):
        """Their headers and their bytes, of which there may be too many or too few."""
        headers, content = [], b""
        for _ in range(self.rng.choice([0, 0, 1, 2, 5])):
            sizes = [self.rng.choice([0, 1, 2, 3, 4]) for _ in range(self.rng.randrange(4))]
            count = 1
            for size in sizes:
                count *= size
            dtype, width = self.rng.choice([*DTYPES, (-1, 0)] if self.rng.random() < 0.95 else [(99, 1), (6, 3)])
            headers.append((dtype, sizes))
            content += self.rng.randbytes(count * width)
        return headers, content

    def message(self, method):
        header, (tensors, content) = self.header(method), self.tensors()
        if self.rng.random() < 0.2:
            header = self.damaged(header)
        wanted = [self.small() for _ in range(self.rng.randrange(8))]
        bytes_of_envelope = raw_grpc.envelope(header, tensors, request=self.request(), wanted=wanted,
                                              incarnation=self.rng.choice([0, 0, 0, 1]))
        if self.rng.random() < 0.1:
            bytes_of_envelope = self.damaged(bytes_of_envelope)
        lies = {}
        if self.rng.random() < 0.05:
            lies["envelope_length"] = self.rng.choice([0, 1, len(bytes_of_envelope) + 1, 0xFFFFFFFF])
        if self.rng.random() < 0.05:
            lies["compressed"] = self.rng.choice([1, 2, 255])
        return raw_grpc.message(bytes_of_envelope, content, **lies)

    def damaged(self, data):
        data = bytearray(data)
        for _ in range(self.rng.randrange(1, 4)):
            if data:
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        return bytes(data[:self.rng.randrange(len(data) + 1)] if self.rng.random() < 0.3 else data)

    def talk(self, connection, calls):
        """Makes that many calls at once. Mostly waits for what comes back, else hangs up in the middle."""
        connection.greet()
        connection.settled()
        if len(self.sessions) < 5:
            stream = connection.call("/muster.Master/CreateSession", raw_grpc.message(raw_grpc.envelope()), token=self.token)
            header = raw_grpc.header_of(connection.answers([stream])[stream][1])
            self.sessions.append(dict(raw_grpc.fields(header))[1])
        streams = []
        for _ in range(calls):
            method = self.rng.choice([*raw_grpc.METHODS, "/muster.Worker/Fly", HEALTH])
            stream, content = connection.new_stream(), self.message(method)
            timeout = self.rng.choice(["0n", "5m", "200m", "200m", "200m", "200m"])
            block = raw_grpc.request_headers(method, token=self.token, timeout=timeout)
            connection.send(raw_grpc.frame(raw_grpc.HEADERS, raw_grpc.END_HEADERS, stream, block))
            fate = self.rng.random()
            if fate < 0.05:
                connection.send(raw_grpc.frame(raw_grpc.RST_STREAM, 0, stream, struct.pack(">I", 8)))
                continue
            if fate < 0.1:
                content = content[:self.rng.randrange(len(content))]
            half = self.rng.randrange(len(content) + 1)
            connection.send(raw_grpc.frame(raw_grpc.DATA, 0, stream, content[:half]) +
                            raw_grpc.frame(raw_grpc.DATA, raw_grpc.END_STREAM, stream, content[half:]))
            streams.append(stream)
        if self.rng.random() < 0.7:
            return streams, connection.answers(streams)
        return [], {}


class Robust(Scratch):
    """Servers on a plain and on a TLS port, and what strangers may send them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.certs = cls.make_certs("certs")
        cls.token = (cls.certs / "client/token").read_text().strip()
        cls.context = ssl.create_default_context(cafile=cls.certs / "client/ca.pem")
        cls.context.set_alpn_protocols(["h2"])
        cls.context.load_cert_chain(cls.certs / "client/certificate.pem", cls.certs / "client/key.pem")

    def setUp(self):
        plain = self.enterContext(ServerProcess(MUSTER, environment=ONE_ARENA))
        tls = self.enterContext(ServerProcess(MUSTER, "--credentials", self.certs, environment=ONE_ARENA))
        # The server, how to connect to it, and the flags with which a good client does.
        self.ways = {"a plain port": (plain, None, [], None), "a TLS port": (tls, None, ["--credentials", self.certs], None),
                     "inside TLS": (tls, self.context, ["--credentials", self.certs], self.token)}

    def assert_answers(self, server, flags, words=""):
        self.assertIsNone(server.process.poll(), f"{words}: the server has ended\n{server.errors()}")
        done = status(server, *flags)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}\n{server.errors()}")

    def test_no_bytes_harm_a_server(self):
        open_ones = []
        for way, (server, context, flags, _) in self.ways.items():
            for seed in range(ROUNDS):
                for name, data, wrong in hostile_inputs(random.Random(seed)):
                    connection = self.enterContext(Connection(server.address, context))
                    connection.send(data)
                    if not wrong:
                        self.hang_up(connection)
                    if connection.closed(seconds=0.5):
                        connection.socket.close()
                    else:  # now and then only once it does not answer pings: those are waited for together
                        open_ones.append((way, name, connection))
                if seed == WARM_UP - 1:
                    before = server.resident_bytes()

            self.assert_answers(server, flags, way)
            self.assertLess(server.resident_bytes() - before, MOST_GROWTH)
        for way, name, connection in open_ones:
            with self.subTest(way, input=name):
                self.assertTrue(connection.closed(), "the connection stays")

    @staticmethod
    def hang_up(connection):
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server was first

    def test_who_only_begins_to_speak_keeps_nobody_else_waiting(self):
        for way, (server, context, flags, _) in self.ways.items():
            with self.subTest(way):
                before = server.resident_bytes()
                connections = [Connection(server.address, context) for _ in range(200)]
                hello = raw_grpc.PREFACE + raw_grpc.frame(raw_grpc.SETTINGS)
                half = raw_grpc.frame(raw_grpc.HEADERS, 0, 1, raw_grpc.request_headers("/muster.Worker/Run"))[:40]
                for number, connection in enumerate(connections):
                    connection.send([b"", hello[:10], hello, hello + half][number % 4])

                self.assert_answers(server, flags)

                self.assertLess(server.resident_bytes() - before, len(connections) * MOST_PER_CONNECTION)
                if way == "a plain port":  # one that does not answer pings is taken for dead
                    self.assertTrue(connections[3].closed(seconds=30))
                for connection in connections:
                    connection.socket.close()

    def test_who_has_no_token_cannot_fill_the_memory(self):
        server, context, flags, _ = self.ways["inside TLS"]
        before = server.resident_bytes()
        with contextlib.ExitStack() as connections:
            for _ in range(4):
                connection = connections.enter_context(Connection(server.address, context))
                connection.greet()
                connection.upload("/muster.Worker/Run", 64 << 20, token="0" * 64)

                self.assertLess(server.resident_bytes() - before, MOST_GROWTH)
        self.assert_answers(server, flags)

    def test_a_caller_that_has_gone_is_not_answered(self):
        for way in ("a plain port", "inside TLS"):
            server, context, flags, token = self.ways[way]
            with self.subTest(way):
                for meeting in range(1, 51):
                    seen = requests(server, *flags) if meeting == 1 else None
                    with Connection(server.address, context) as gone, Connection(server.address, context) as repeats:
                        for connection in (gone, repeats):
                            connection.greet()
                            connection.call("/muster.Worker/Receive", receive(meeting, edge=1, request=(1, meeting)),
                                            token=token)
                        if seen is not None:
                            wait_until(lambda: requests(server, *flags) >= seen + 3, what="both calls")
                    with Connection(server.address, context) as connection:
                        connection.greet()
                        stream = connection.call("/muster.Worker/Abort", abort(meeting), token=token)
                        self.assertIn(stream, connection.answers([stream]))

                self.assert_answers(server, flags)

    def test_who_gives_up_does_not_end_the_wait_of_another(self):
        for way in ("a plain port", "inside TLS"):
            server, context, _, token = self.ways[way]
            with self.subTest(way), Connection(server.address, context) as connection:
                connection.greet()
                # The server may see calls in another order than they were made: of these two, the one that is not refused waits.
                both = {connection.call("/muster.Worker/Receive", receive(meeting=1, edge=1), token=token) for _ in range(2)}
                (refused, answer), = connection.answers(both, enough=1).items()
                self.assertIn(b"has a reader", answer[1])
                waits, = both - {refused}
                others = [connection.call("/muster.Worker/Receive", receive(meeting=1, edge=1), token=token, timeout=timeout)
                          for timeout in ("0n", "1n", "1u", "1m", "10m") * 20]

                self.assertEqual(set(connection.answers(others)), set(others))
                stream = connection.call("/muster.Worker/Abort", abort(meeting=1), token=token)
                answers = connection.answers([waits, stream])

                self.assertIn(b"no more", answers[waits][1])

    def test_streams_over_the_limit_are_refused_and_the_server_goes_on(self):
        for way in ("a plain port", "inside TLS"):
            server, context, flags, token = self.ways[way]
            with self.subTest(way), Connection(server.address, context) as connection:
                connection.greet()
                settings = next(dict(struct.iter_unpack(">HI", payload)) for kind, ack, _, payload in connection.frames()
                                if kind == raw_grpc.SETTINGS and not ack)
                limit = settings[raw_grpc.MAX_CONCURRENT_STREAMS]
                self.assertLessEqual(limit, 10_000)

                streams = [connection.call("/muster.Worker/Receive", receive(meeting=2, edge=edge), token=token)
                           for edge in range(limit + 100)]

                ended = connection.answers(streams, enough=100)
                self.assertGreaterEqual(len(ended), 100)
                self.assert_answers(server, flags)

    def test_a_stream_of_fuzzed_calls_neither_crashes_a_server_nor_lets_it_grow(self):
        for way in ("a plain port", "inside TLS"):
            server, context, flags, token = self.ways[way]
            with self.subTest(way):
                fuzzer, made, before = Fuzzer(20, token), 0, None
                for round_number in range(150):
                    with Connection(server.address, context) as connection:
                        streams, answers = fuzzer.talk(connection, calls=20)
                    made += len(streams)
                    self.assertEqual(set(streams) - set(answers), set(),
                                     f"no answer in round {round_number}\n{server.errors()[-2000:]}")
                    if round_number == 50:
                        before = server.resident_bytes()

                self.assertGreaterEqual(requests(server, *flags), made // 2)
                self.assert_answers(server, flags)
                self.assertLess(server.resident_bytes() - before, MOST_GROWTH)
                self.assertEqual(server.stop(signal.SIGTERM), 0, server.errors()[-2000:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
