#!/usr/bin/env python3
"""A whole cluster that is killed and comes back, or whose clocks jump: restart_test.py MUSTER COUNT JUMPING_CLOCK. For a
network of its own (own_network)."""
import contextlib
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from server_process import PATIENCE, ServerProcess, cluster_json, wait_until

MUSTER, COUNT, JUMPING_CLOCK = sys.argv[1:4]
STEPS_PER_ROUND = 20  # of count.cc
STEPS_PER_EPOCH = 16


class Clock:
    """The clock on the wall of a process."""

    def __init__(self):
        self._ahead = tempfile.NamedTemporaryFile(prefix="muster-clock-")
        self.set(ahead=0)
        self.environment = {"LD_PRELOAD": JUMPING_CLOCK, "JUMPING_CLOCK": self._ahead.name}

    def set(self, ahead):
        self._ahead.seek(0)
        self._ahead.write(struct.pack("q", ahead))
        self._ahead.flush()


class Cluster:
    """Parameter servers, workers and a chief that counts, as processes. Leaving the `with` kills them all at once."""

    def __init__(self, directory, ps, workers, lease=60, ballast=0, fit=0):
        tasks = {"ps": ps, "worker": workers, "chief": 1}
        ports = iter(range(21000, 21100))
        addresses = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in tasks.items()}
        cluster = cluster_json(**addresses)
        self._ended = contextlib.ExitStack()
        self.clocks = [Clock() for _ in range(ps + workers + 1)]
        clocks = iter(self.clocks)
        self._servers = [self._ended.enter_context(ServerProcess(MUSTER, "--storage", directory, "--lease", lease, job=job, index=index,
                                                                 cluster=cluster, address="", environment=next(clocks).environment))
                         for job in ("ps", "worker") for index in range(tasks[job])]
        self._said = self._ended.enter_context(tempfile.NamedTemporaryFile(prefix="muster-restart-"))
        self._errors = self._ended.enter_context(tempfile.NamedTemporaryFile(prefix="muster-restart-"))
        self.chief = subprocess.Popen([COUNT, "--cluster", cluster, "--task_type", "chief", "--task_index", "0", "--directory",
                                       directory, "--parts", str(ps), "--ballast", str(ballast), "--fit", str(fit)], stdin=subprocess.PIPE, stdout=self._said, stderr=self._errors,
                                      env={**os.environ, **next(clocks).environment})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.chief, *(server.process for server in self._servers)]:
            process.send_signal(signal.SIGKILL)
        self.chief.wait()
        self.chief.stdin.close()
        self._ended.close()

    def kill_ps(self):
        servers = [server.process for server in self._servers if "/job:ps/" in server.task]
        for process in servers:
            process.send_signal(signal.SIGKILL)
        for process in servers:
            process.wait()

    def said(self):
        return pathlib.Path(self._said.name).read_text()

    def errors(self):
        return pathlib.Path(self._errors.name).read_text() + "".join(server.errors() for server in self._servers)

    def wait_for(self, pattern, times=1):
        """The first of so many."""
        def found():
            if self.chief.poll() is not None:
                raise AssertionError(f"the chief has ended with {self.chief.returncode}:\n{self.said()}{self.errors()}")
            matches = list(re.finditer(pattern, self.said()))
            return matches[0] if len(matches) >= times else None

        return wait_until(found, what=pattern)

    def restored(self):
        """Step, counter and the sums of two tables, as the chief found them."""
        return [int(number) for number in self.wait_for(r"restored (\d+) counted (\d+) table (\d+) rows (\d+)\n").groups()]

    def rounds(self):
        return len(re.findall(r"scheduled \d+ workers \d+\n", self.said()))

    def wait_for_rounds(self, rounds):
        self.wait_for(r"scheduled \d+ workers \d+\n", rounds)

    def finish(self):
        """Steps and counter after the last round, how often a worker was lost, and steps that were made again."""
        self.chief.stdin.close()
        self.chief.wait(PATIENCE)
        return [int(number) for number in re.search(r"scheduled (\d+) counted (\d+) failures (\d+) repeated (\d+)",
                                                    self.said()).groups()]


def steps_in(directory):
    return sorted(int(path.name[len("ckpt-"):]) for path in pathlib.Path(directory).glob("ckpt-*"))


def under_way(directory):
    """Step and bytes so far of the checkpoint that is being written; None if none is. Others may be left of who was killed."""
    for temporary in pathlib.Path(directory).glob(".tmp-*"):
        step = int(temporary.name.split("-")[1])
        if step <= steps_in(directory)[-1]:
            continue
        sizes = []
        for file in temporary.glob("shard-*"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(file.stat().st_size)
        return step, sum(sizes)
    return None


class RestartTest(unittest.TestCase):
    def test_servers_that_are_killed_at_any_moment_of_a_save_leave_the_checkpoint_before_it(self):
        ballast = 48
        with tempfile.TemporaryDirectory(prefix="muster-checkpoints-") as directory:
            last = most = 0
            moments = [0, 0.01, 0.3, 0.6, 0.9, 1]  # how much of it has been written
            for moment, ps in zip(moments, (2, 3, 1, 2, 3, 2)):
                with Cluster(directory, ps=ps, workers=1, ballast=ballast) as cluster:
                    step, counted, table, rows = cluster.restored()
                    self.assertEqual(step, last)
                    for number in (counted, table / 6, rows):  # of the moments of the save, while it went on
                        self.assertGreaterEqual(number, step)
                        self.assertLessEqual(number, most)
                    cluster.wait_for_rounds(1)
                    wait_until(lambda: steps_in(directory)[-1:] > [last], what="a checkpoint")

                    def has_come_so_far():
                        found = under_way(directory)
                        return found and found[1] >= moment * ballast * 2**20 and found

                    saving, _ = wait_until(has_come_so_far, what=f"a save of which {moment} is written")
                    cluster.kill_ps()
                    most = (cluster.rounds() + 1) * STEPS_PER_ROUND + max(counted, table / 6, rows)
                last = steps_in(directory)[-1]
                self.assertLessEqual(last, saving)

    def test_a_cluster_that_is_killed_goes_on_at_the_step_of_its_last_checkpoint_with_any_number_of_servers(self):
        with tempfile.TemporaryDirectory(prefix="muster-checkpoints-") as directory:
            with Cluster(directory, ps=2, workers=1) as cluster:
                self.assertEqual(cluster.restored(), [0, 0, 0, 0])
                cluster.wait_for_rounds(3)
            self.assertNotEqual(list(pathlib.Path(directory).glob("ckpt-*/shard-*.of-*")), [], "none is on top of another")

            for ps, workers in [(3, 2), (1, 1)]:
                last = steps_in(directory)[-1]
                self.assertGreaterEqual(last, 2 * STEPS_PER_ROUND)
                with Cluster(directory, ps=ps, workers=workers) as cluster:
                    step, counted, table, rows = cluster.restored()
                    self.assertEqual((step, counted, table, rows), (last, last, 6 * last, last))
                    cluster.wait_for_rounds(1)
                    if ps == 1:
                        scheduled, counted, _, _ = cluster.finish()
                        self.assertEqual(counted, scheduled)
                        self.assertGreater(scheduled, last)

            self.assertEqual([path.name for path in pathlib.Path(directory).glob(".*")], [], "of those who were killed")
            self.assertLessEqual(len(steps_in(directory)), 3)

    def test_fit_of_a_cluster_that_is_killed_goes_on_after_its_backup_with_any_number_of_servers(self):
        with tempfile.TemporaryDirectory(prefix="muster-backup-") as directory:
            with Cluster(directory, ps=2, workers=2, fit=1_000_000) as cluster:
                cluster.wait_for(r"epoch 3\n")
                wait_until(lambda: steps_in(directory), what="a backup")
            ended = steps_in(directory)[-1]

            with Cluster(directory, ps=3, workers=1, fit=ended + 2) as cluster:
                self.assertEqual(cluster.chief.wait(PATIENCE), 0, cluster.errors())
                said = cluster.said()
                self.assertIn(f"fit goes on with epoch {ended + 1} of {ended + 2}", cluster.errors())
            epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+)$", said, re.MULTILINE)]
            self.assertEqual(epochs, [ended + 1, ended + 2])
            begin, end = (int(re.search(rf"{when} after (\d+) steps", said).group(1)) for when in ("begins", "ends"))
            self.assertGreaterEqual(begin, ended * STEPS_PER_EPOCH)  # and some of the epoch that was trained meanwhile
            self.assertEqual(end, begin + 2 * STEPS_PER_EPOCH)
            self.assertEqual(steps_in(directory), [], "the backup of a training that has ended")

    def test_fit_that_is_told_to_end_saves_its_last_epoch_while_the_servers_are_there(self):
        with tempfile.TemporaryDirectory(prefix="muster-backup-") as storage, tempfile.NamedTemporaryFile() as said:
            def run(epochs):
                return [MUSTER, "run", "--workers", "1", "--ps", "2", "--storage", storage, "--notice", str(PATIENCE),
                        COUNT, "--directory", f"{storage}/backup", "--fit", str(epochs)]

            def epochs_in(text):
                return [int(epoch) for epoch in re.findall(r"^\[chief\] epoch (\d+)$", text, re.MULTILINE)]

            job = subprocess.Popen(run(1_000_000), stdout=said, stderr=subprocess.STDOUT)
            try:
                wait_until(lambda: len(epochs_in(pathlib.Path(said.name).read_text())) >= 3, what="an epoch")
                job.send_signal(signal.SIGTERM)
                code = job.wait(PATIENCE)
            finally:
                job.kill()
                job.wait()
            text = pathlib.Path(said.name).read_text()
            self.assertEqual(code, 42, text)
            self.assertIn("told to end", text)
            last = epochs_in(text)[-1]
            self.assertEqual(steps_in(f"{storage}/backup"), [last])

            done = subprocess.run(run(last + 2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)

        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(epochs_in(done.stdout), [last + 1, last + 2])

    def test_a_cluster_does_not_begin_anew_where_its_only_checkpoint_is_damaged(self):
        with tempfile.TemporaryDirectory(prefix="muster-checkpoints-") as directory:
            with Cluster(directory, ps=1, workers=1) as cluster:
                cluster.wait_for_rounds(1)
            for file in pathlib.Path(directory).glob("ckpt-*/shard-*"):
                file.write_bytes(file.read_bytes()[:-1])

            with Cluster(directory, ps=1, workers=1) as cluster:
                self.assertEqual(cluster.chief.wait(PATIENCE), 1)
                self.assertIn("damaged", cluster.errors())
                self.assertIn(directory, cluster.errors())

    def test_a_cluster_takes_no_notice_of_clocks_that_jump(self):
        lease = 1
        with tempfile.TemporaryDirectory(prefix="muster-checkpoints-") as directory:
            with Cluster(directory, ps=1, workers=2, lease=lease) as cluster:
                cluster.wait_for_rounds(1)
                for ahead in (60, -60):
                    for clock in cluster.clocks:
                        clock.set(ahead)
                        time.sleep(2 * lease)  # what is timed by it, and not renewed, would end
                        cluster.wait_for_rounds(cluster.rounds() + 2)

                scheduled, counted, lost, repeated = cluster.finish()
                self.assertEqual((counted, lost, repeated), (scheduled, 0, 0), cluster.errors())
                self.assertNotIn("was not heard of", cluster.errors())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
