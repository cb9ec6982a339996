"""`muster server` as a process, for the tests that need one."""
import json
import os
import pathlib
import queue
import socket
import subprocess
import tempfile
import threading
import time

# For what happens at once, on a machine that may be busy with something else.
PATIENCE = 60


def wait_until(condition, seconds=PATIENCE, what="it"):
    """What `condition` returns, as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)
    return found


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def cluster_json(**jobs):
    return json.dumps(jobs)


class ServerProcess:
    """A task that listens once this is made, and has ended when the `with` is left."""

    def __init__(self, muster, *arguments, job="worker", index=0, cluster=None, address="127.0.0.1:0", before=(),
                 environment=None):
        cluster = cluster or cluster_json(**{job: ["127.0.0.1:1"]})
        self.log = tempfile.NamedTemporaryFile(prefix="muster-server-", suffix=".log")
        command = [*before, muster, "server", "--cluster", cluster, "--task_type", job, "--task_index", str(index),
                   "--threads", "1"]
        if address:
            command += ["--address", address]
        self.process = subprocess.Popen(command + [str(word) for word in arguments], stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, env={**os.environ, **(environment or {})})
        line = self._first_line()
        if not line.startswith("listening "):
            code = self.process.wait(PATIENCE)
            raise AssertionError(f"the server ended with {code} before it listened:\n{self.errors()}")
        _, self.task, self.address = line.split()
        self.host, port = self.address.rsplit(":", 1)
        self.port = int(port)
        self.target = "grpc://" + self.address

    def _first_line(self):
        lines = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        try:
            return lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.process.kill()
            return ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def errors(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def resident_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server has ended")

    def stop(self, signal, seconds=PATIENCE):
        """The exit code after `signal`."""
        self.process.send_signal(signal)
        return self.process.wait(seconds)
