#!/usr/bin/env python3
"""Workers that read files together and are killed meanwhile: share_files_test.py MUSTER SHARE_FILES. For a network of its
own (own_network)."""
import contextlib
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from server_process import PATIENCE, ServerProcess, cluster_json, wait_until

MUSTER, SHARE_FILES = sys.argv[1:3]
FILES, ROWS = 40, 100


class Sharing:
    """A parameter server, workers and a chief, as processes. Leaving the `with` kills them all at once."""

    def __init__(self, directory, workers):
        self._data, checkpoints = pathlib.Path(directory) / "data", pathlib.Path(directory) / "checkpoints"
        ports = iter(range(21200, 21300))
        addresses = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
                     for job, count in {"ps": 1, "worker": workers, "chief": 1}.items()}
        self._cluster = cluster_json(**addresses)
        self._checkpoints = checkpoints
        self._ended = contextlib.ExitStack()
        self._ended.enter_context(self._server("ps", 0))
        self.workers = [self._ended.enter_context(self._server("worker", index)) for index in range(workers)]
        self._said = self._ended.enter_context(tempfile.NamedTemporaryFile(prefix="muster-share-"))
        self._errors = self._ended.enter_context(tempfile.NamedTemporaryFile(prefix="muster-share-"))
        self.chief = subprocess.Popen([SHARE_FILES, "--cluster", self._cluster, "--task_type", "chief", "--task_index", "0",
                                       "--files", str(self._data / "*.csv"), "--numbers", str(FILES * ROWS),
                                       "--directory", str(checkpoints)], stdout=self._said, stderr=self._errors)

    def _server(self, job, index):
        return ServerProcess(MUSTER, "--storage", self._checkpoints, "--data", self._data, job=job, index=index,
                             cluster=self._cluster, address="")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.chief.kill()
        self.chief.wait()
        self._ended.close()

    def kill(self, index):
        self.workers[index].process.send_signal(signal.SIGKILL)
        self.workers[index].process.wait()

    def start(self, index):
        self.workers[index] = self._ended.enter_context(self._server("worker", index))

    def rounds(self):
        return len(re.findall(r"scheduled \d+ workers \d+\n", pathlib.Path(self._said.name).read_text()))

    def wait_for_rounds(self, rounds):
        """Whether there are so many: a job may end before, where a worker takes long to start."""
        def enough():
            if self.chief.poll():
                raise AssertionError(f"the chief has failed: {pathlib.Path(self._errors.name).read_text()}")
            return self.chief.poll() is not None or self.rounds() >= rounds

        wait_until(enough, what=f"round {rounds}")
        return self.rounds() >= rounds

    def ended(self):
        """How often the number was used that was used least, and that most; how many in all; and workers that were lost."""
        self.chief.wait(PATIENCE)
        said = pathlib.Path(self._said.name).read_text()
        found = re.search(r"least (\d+) most (\d+) in all (\d+) failures (\d+)", said)
        if not found:
            raise AssertionError(said + pathlib.Path(self._errors.name).read_text())
        return [int(number) for number in found.groups()]


class ShareFilesTest(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory(prefix="muster-share-")
        self.addCleanup(self._directory.cleanup)
        for folder in ("data", "checkpoints"):
            (pathlib.Path(self._directory.name) / folder).mkdir()
        for file in range(FILES):
            rows = "".join(f"{file * ROWS + row}\n" for row in range(ROWS))
            (pathlib.Path(self._directory.name) / "data" / f"part-{file:02}.csv").write_text("number\n" + rows)

    def test_every_row_is_used_once_if_nobody_dies(self):
        with Sharing(self._directory.name, workers=3) as sharing:
            self.assertEqual(sharing.ended(), [1, 1, FILES * ROWS, 0])

    def test_every_row_is_used_though_workers_are_killed(self):
        with Sharing(self._directory.name, workers=3) as sharing:
            for victim in (0, 1, 2, 1):
                if not sharing.wait_for_rounds(sharing.rounds() + 2):
                    break
                sharing.kill(victim)
                if not sharing.wait_for_rounds(sharing.rounds() + 1):
                    break
                sharing.start(victim)
            least, _, in_all, failures = sharing.ended()
            self.assertGreaterEqual(least, 1)
            self.assertGreaterEqual(failures, 1)
            self.assertLess(in_all, 2 * FILES * ROWS, "what was used is not read again")

    def test_a_job_that_is_killed_goes_on_where_it_was_with_other_workers(self):
        with Sharing(self._directory.name, workers=2) as sharing:
            self.assertTrue(sharing.wait_for_rounds(20))
        with Sharing(self._directory.name, workers=3) as sharing:
            least, _, in_all, _ = sharing.ended()
            self.assertGreaterEqual(least, 1)
            self.assertLess(in_all, 2 * FILES * ROWS, "what was used is not read again")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
