#!/usr/bin/env python3
"""Several hosts on one machine, and what happens to the cables between them: hosts_test.py MUSTER COUNT.

Every host is a network namespace with a cable (a veth) to a switch (a bridge). All of it is inside a namespace of its own,
so the test changes nothing outside, leaves nothing behind, and needs root or the right to make user namespaces."""
import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server_process import PATIENCE, ServerProcess, cluster_json, wait_until

MUSTER, COUNT = sys.argv[1:3]
INSIDE = "MUSTER_HOSTS_TEST_INSIDE"
KEEPALIVE = 5  # seconds, in muster/rpc/credentials/channel_arguments.cc: so long without a word until it asks, so long for the answer
HOSTS = {"client": "10.77.0.1", "ps": "10.77.0.2", "worker0": "10.77.0.3", "worker1": "10.77.0.4"}
TASKS = {"ps": "/job:ps/replica:0/task:0", "worker0": "/job:worker/replica:0/task:0", "worker1": "/job:worker/replica:0/task:1"}
# A cut that is to be noticed lasts at least so long; a soak sets 60.
CUT_SECONDS = float(os.environ.get("MUSTER_CUT_SECONDS", "0"))
CLUSTER = cluster_json(ps=["10.77.0.2:2222"], worker=["10.77.0.3:2222", "10.77.0.4:2222"])


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def inside(host):
    return ("ip", "netns", "exec", host)


def finish_checksums(interface):
    """Lets the sender fill in checksums: a card would do it later, but our slow cable is none."""
    set_tx_checksum, ethtool = 0x17, 0x8946
    value = ctypes.create_string_buffer(struct.pack("II", set_tx_checksum, 0))
    with socket.socket() as control:
        fcntl.ioctl(control, ethtool, struct.pack("16sP16x", interface.encode(), ctypes.addressof(value)))


class SlowCable:
    """Carries what comes out of one interface into the other, both ways, later: `delay` seconds give or take `jitter`,
    and less a share of `loss`, which are 0 until they are set. What `tc netem` does, for kernels without it."""

    def __init__(self, one, other):
        self.delay = self.jitter = self.loss = 0.0
        self.carried = self.lost = 0  # packets
        self._ends = []
        for interface in (one, other):
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.bind((interface, 0))
            end.setblocking(False)
            self._ends.append(end)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def close(self):
        self._stop.set()
        self._thread.join()
        for end in self._ends:
            end.close()

    def _carry(self):
        rng, under_way = random.Random(1), []
        while not self._stop.is_set():
            wait = 0.1
            if under_way:
                wait = min(wait, max(0.0, under_way[0][0] - time.monotonic()))
            for end in select.select(self._ends, [], [], wait)[0]:
                with contextlib.suppress(OSError):
                    while True:
                        packet, (_, _, direction, *_) = end.recvfrom(1 << 16)
                        if direction == socket.PACKET_OUTGOING:
                            continue  # our own
                        if self.loss and rng.random() < self.loss:
                            self.lost += 1
                            continue
                        when = time.monotonic() + max(0.0, self.delay + rng.uniform(-self.jitter, self.jitter))
                        self.carried += 1
                        heapq.heappush(under_way, (when, self.carried, self._ends.index(end), packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, source, packet = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # an interface that is down
                    self._ends[1 - source].send(packet)


class Watch:
    """`muster status --watch` on the host `client`: one connection to every task, for as long as it runs."""

    def __init__(self):
        self._lines = tempfile.NamedTemporaryFile(prefix="muster-watch-")
        self._process = subprocess.Popen([*inside("client"), MUSTER, "status", "--cluster", CLUSTER, "--watch", "--every",
                                          "0.2", "--json"], stdout=self._lines, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._lines.close()

    def looks(self):
        """What was seen, in order: each {task: row}."""
        with open(self._lines.name, encoding="utf-8") as lines:
            text, decoder, seen = lines.read(), json.JSONDecoder(), []
        while text:
            try:
                rows, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                break  # the last one is being written
            text = text[end:].lstrip()
            seen.append({row["task"]: row for row in rows})
        return seen

    def wait_for(self, condition, seconds, what):
        """Waits for a look from now on of which `condition` is true, and says after how many seconds it came."""
        begin, before = time.monotonic(), len(self.looks())
        wait_until(lambda: any(condition(look) for look in self.looks()[before:]), seconds, what)
        return time.monotonic() - begin


class Counting:
    """Training on the cluster, by a coordinator on the host `client`."""

    def __init__(self):
        self._said, self._errors = tempfile.NamedTemporaryFile(prefix="muster-count-"), tempfile.NamedTemporaryFile()
        cluster = json.dumps({**json.loads(CLUSTER), "chief": [HOSTS["client"] + ":2222"]})
        self.process = subprocess.Popen([*inside("client"), COUNT, "--cluster", cluster, "--task_type", "chief", "--task_index",
                                         "0"], stdin=subprocess.PIPE, stdout=self._said, stderr=self._errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self._said.close()
        self._errors.close()

    def errors(self):
        with open(self._errors.name, encoding="utf-8") as lines:
            return lines.read()

    def _last(self):
        """The last whole line, as {"scheduled": 40, "workers": 2}."""
        with open(self._said.name, encoding="utf-8") as lines:
            whole = lines.read().split("\n")[:-1]
        words = whole[-1].split() if whole else ["scheduled", "0", "workers", "0"]
        return dict(zip(words[::2], map(int, words[1::2])))

    def wait_for_steps(self, workers=None, seconds=PATIENCE):
        """Steps from now on, with so many workers if that is given."""
        before = self._last()["scheduled"]

        def going_on():
            if self.process.poll() is not None:
                raise AssertionError("the training has ended: " + self.errors())
            last = self._last()
            return last["scheduled"] >= before + 100 and workers in (None, last["workers"])

        wait_until(going_on, seconds, f"steps with {workers} workers")

    def finish(self):
        """Ends the training: steps that were scheduled, steps that have arrived, how often a worker was lost, and steps that may have
        arrived twice."""
        self.process.stdin.close()
        if self.process.wait(PATIENCE) != 0:
            raise AssertionError("the training has failed: " + self.errors())
        last = self._last()
        return last["scheduled"], last["counted"], last["failures"], last["repeated"]


def connections(server):
    """How many connections the server has, in the eyes of its kernel."""
    count = 0
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{server.process.pid}/net/{table}", encoding="ascii") as lines:
            for line in list(lines)[1:]:
                _, local, _, state, *_ = line.split()
                count += local.endswith(f":{server.port:04X}") and state == "01"
    return count


def up(look):
    return {task for task, row in look.items() if row["up"]}


def all_up(look):
    return up(look) == set(TASKS.values())


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ip("link", "set", "lo", "up")
        ip("link", "add", "switch", "type", "bridge")
        ip("link", "set", "switch", "up")
        for host, address in HOSTS.items():
            cls.connect(host, address)
        for name, host, job, index in (("ps", "ps", "ps", 0), ("worker0", "worker0", "worker", 0),
                                       ("worker1", "worker1", "worker", 1)):
            setattr(cls, name, cls.enterClassContext(
                ServerProcess(MUSTER, "--insecure", job=job, index=index, cluster=CLUSTER, address=None, before=inside(host))))

    @classmethod
    def connect(cls, host, address):
        """client -- switch; worker0 == slow cable == switch."""
        ip("netns", "add", host)
        ip("link", "add", "to-" + host, "type", "veth", "peer", "name", "eth0-" + host)
        finish_checksums("eth0-" + host)
        ip("link", "set", "eth0-" + host, "netns", host)
        for words in (["link", "set", "lo", "up"], ["addr", "add", address + "/24", "dev", "eth0-" + host],
                      ["link", "set", "eth0-" + host, "up"]):
            subprocess.run([*inside(host), "ip", *words], check=True, capture_output=True)
        if host == "worker0":
            ip("link", "add", "socket", "type", "veth", "peer", "name", "slow")
            for interface in ("slow", "to-" + host):
                ip("link", "set", interface, "up", "promisc", "on")
            cls.slow_cable = SlowCable("to-" + host, "slow")
            cls.addClassCleanup(cls.slow_cable.close)
        port = "socket" if host == "worker0" else "to-" + host
        ip("link", "set", port, "master", "switch")
        ip("link", "set", port, "up")

    def tearDown(self):
        self.slow_cable.delay = self.slow_cable.jitter = self.slow_cable.loss = 0
        for stopped in (self.ps, self.worker1):
            stopped.process.send_signal(signal.SIGCONT)
        for host in ("client", "ps", "worker1"):
            ip("link", "set", "to-" + host, "master", "switch")
            ip("link", "set", "to-" + host, "up")
        for server in (self.ps, self.worker0, self.worker1):
            self.assertIsNone(server.process.poll(), server.errors())

    def status(self, *arguments):
        return subprocess.run([*inside("client"), MUSTER, "status", "--cluster", CLUSTER, *arguments], capture_output=True,
                              text=True, check=False, timeout=PATIENCE)

    def test_all_hosts_are_up(self):
        done = self.status()

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for task in TASKS.values():
            self.assertIn(task, done.stdout)

    def assert_noticed(self, hosts, cut, mend):
        """The tasks on `hosts` are down in the eyes of who has a connection to them, and of who comes anew, until they are back."""
        cut_off = {TASKS[host] for host in hosts}
        with Watch() as watch:
            watch.wait_for(all_up, PATIENCE, "all tasks up")

            cut()
            watch.wait_for(lambda look: up(look) == set(TASKS.values()) - cut_off, 2 * KEEPALIVE + 2, f"{hosts} down")
            time.sleep(CUT_SECONDS)
            for task in cut_off:
                down = watch.looks()[-1][task]
                self.assertIn(down["code"], ("UNAVAILABLE", "DEADLINE_EXCEEDED"))
                self.assertIn(task, down["why"])

            anew = self.status()
            self.assertEqual(anew.returncode, 1)
            for task in TASKS.values():
                self.assertEqual(task + " is down" in anew.stdout, task in cut_off, anew.stdout)

            mend()
            watch.wait_for(all_up, 2 * KEEPALIVE, f"{hosts} up again")

    def test_hosts_that_are_unplugged_or_whose_packets_vanish_are_down_until_they_are_back(self):
        """Both at once: it takes as long as one."""
        def cut():
            ip("link", "set", "to-worker1", "down")
            # Its link stays up and nobody is told: the switch just does not know its port any more.
            ip("link", "set", "to-ps", "nomaster")

        def mend():
            ip("link", "set", "to-worker1", "up")
            ip("link", "set", "to-ps", "master", "switch")

        self.assert_noticed(["worker1", "ps"], cut, mend)

    def test_a_task_that_does_not_go_on_is_down_until_it_does(self):
        # Its host still answers: only the process misses its heartbeats.
        self.assert_noticed(["worker1"], cut=lambda: self.worker1.process.send_signal(signal.SIGSTOP),
                            mend=lambda: self.worker1.process.send_signal(signal.SIGCONT))

    def test_a_server_hangs_up_on_a_client_whose_packets_vanish(self):
        wait_until(lambda: connections(self.worker1) == 0, 2 * KEEPALIVE, "that the clients before have gone")
        with Watch() as watch:
            watch.wait_for(all_up, PATIENCE, "all tasks up")
            self.assertEqual(connections(self.worker1), 1)

            ip("link", "set", "to-client", "nomaster")

            wait_until(lambda: connections(self.worker1) == 0, 2 * KEEPALIVE + 2, "that the server hangs up")
            ip("link", "set", "to-client", "master", "switch")
            watch.wait_for(all_up, 2 * KEEPALIVE, "all tasks up again")

    @contextlib.contextmanager
    def vanishing(self, host):
        """Packets to and from the host vanish; nobody is told."""
        ip("link", "set", "to-" + host, "nomaster")
        yield
        ip("link", "set", "to-" + host, "master", "switch")

    def assert_nothing_was_lost(self, training):
        """And nothing was done twice of which the coordinator does not know that it may have been. How often workers were."""
        scheduled, counted, failures, repeated = training.finish()
        self.assertGreaterEqual(counted, scheduled, training.errors())
        self.assertLessEqual(counted, scheduled + repeated, training.errors())
        return failures

    def test_training_waits_for_any_host_whose_packets_vanish_for_a_second(self):
        with Counting() as training:
            for host in ("ps", "worker1", "client"):
                training.wait_for_steps(workers=2)
                with self.vanishing(host):
                    time.sleep(1)
            training.wait_for_steps(workers=2)

            self.assert_nothing_was_lost(training)

    def test_training_waits_for_any_process_that_stops_for_five_seconds(self):
        """Less than it takes to miss two heartbeats: nobody is lost, and no step is made twice."""
        with Counting() as training:
            for process in (self.ps.process, self.worker1.process, training.process):
                training.wait_for_steps(workers=2)
                process.send_signal(signal.SIGSTOP)
                time.sleep(5)
                process.send_signal(signal.SIGCONT)
            training.wait_for_steps(workers=2)

            self.assert_nothing_was_lost(training)

    def test_training_with_a_worker_that_is_far_away_loses_nothing(self):
        self.slow_cable.delay, self.slow_cable.jitter = 0.075, 0.050
        with Counting() as training:
            training.wait_for_steps(workers=2)

            self.assertEqual(self.assert_nothing_was_lost(training), 0)

    def test_training_goes_on_while_half_of_the_packets_of_a_worker_are_lost(self):
        with Counting() as training:
            training.wait_for_steps(workers=2)

            self.slow_cable.loss = 0.5
            training.wait_for_steps()
            self.assertGreater(self.slow_cable.lost, 0)
            self.slow_cable.loss = 0
            training.wait_for_steps(workers=2)

            self.assert_nothing_was_lost(training)

    def test_training_goes_on_without_half_of_its_workers_until_they_are_back(self):
        with Counting() as training:
            training.wait_for_steps(workers=2)

            with self.vanishing("worker1"):
                training.wait_for_steps(workers=1)
                time.sleep(CUT_SECONDS)
            training.wait_for_steps(workers=2)

            self.assertGreaterEqual(self.assert_nothing_was_lost(training), 1)

    @contextlib.contextmanager
    def bridged(self, one, other):
        """The two see everybody but each other; nobody is told."""
        route = HOSTS[other] + "/32"
        subprocess.run([*inside(one), "ip", "route", "add", "blackhole", route], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run([*inside(one), "ip", "route", "del", "blackhole", route], check=True, capture_output=True)

    def test_training_goes_on_while_a_worker_and_the_parameter_server_see_only_the_others(self):
        with Counting() as training:
            training.wait_for_steps(workers=2)

            with self.bridged("ps", "worker1"):
                training.wait_for_steps(workers=1)
                time.sleep(CUT_SECONDS)
            training.wait_for_steps(workers=2)

            self.assertGreaterEqual(self.assert_nothing_was_lost(training), 1)

    def test_training_ends_with_the_name_of_a_parameter_server_whose_packets_vanish(self):
        self.assert_training_ends(without="ps")

    def test_training_ends_when_its_own_packets_vanish_and_may_begin_anew(self):
        self.assert_training_ends(without="client")

    def assert_training_ends(self, without):
        with Counting() as training:
            training.wait_for_steps(workers=2)
            with self.vanishing(without):
                self.assertEqual(training.process.wait(PATIENCE), 1)
                time.sleep(CUT_SECONDS)
            self.assertIn(TASKS["ps"], training.errors())
            self.assertIn("UNAVAILABLE", training.errors())
        with Counting() as anew:
            anew.wait_for_steps(workers=2)
            self.assert_nothing_was_lost(anew)

    def test_a_host_that_is_far_away_answers_and_stays_up(self):
        self.slow_cable.delay, self.slow_cable.jitter = 0.075, 0.050
        with Watch() as watch:
            watch.wait_for(all_up, PATIENCE, "all tasks up")
            first = len(watch.looks())
            carried = self.slow_cable.carried
            for _ in range(5):  # who comes anew
                done = self.status()
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            wait_until(lambda: len(watch.looks()) >= first + 30, PATIENCE, "30 looks")

            self.assertTrue(all(all_up(look) for look in watch.looks()[first:]))
            self.assertGreater(self.slow_cable.carried, carried)


def way_inside():
    """The beginning of a command that runs inside namespaces of its own, or why there is none."""
    for command in ("ip", "unshare"):
        if shutil.which(command) is None:
            return None, f"needs the command {command} (packages iproute2 and util-linux)"
    errors = ""
    for flags in (["--mount", "--net"], ["--map-root-user", "--mount", "--net"]):
        # `ip netns` keeps its names in /run, which the namespaces share unless they get one of their own.
        command = ["unshare", *flags, "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
        trial = ("ip netns add host1 && ip link add cable1 type veth peer name cable2 && "
                 "ip link add switch1 type bridge && ip netns exec host1 true")
        tried = subprocess.run([*command, "sh", "-c", trial], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return command, ""
        errors = tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else f"exit code {tried.returncode}"
    return None, f"may not make network namespaces with veths and bridges here: {errors}"


if __name__ == "__main__":
    if INSIDE not in os.environ:
        command, why_not = way_inside()
        if command is not None:
            os.environ[INSIDE] = "1"
            os.execvp(command[0], [*command, sys.executable, *sys.argv])
        Hosts = unittest.skip(why_not)(Hosts)
        print("skipped:", why_not)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
