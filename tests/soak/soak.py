#!/usr/bin/env python3
"""Kills chiefs, makes functions and lets clients come and go at a cluster of processes, and looks at what stays.

Prints memory, descriptors, threads, programs and variables of every task before and after, and fails if anything has
grown by more than 5 %. Usage: soak.py MUSTER SOAK [--chiefs 100] [--functions 1000000] [--seconds 3600]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_process import ServerProcess, free_ports, wait_until  # noqa: E402

ALLOWED = 0.05
MOST_ROUNDS = 10
THREADS_STAY = 10  # seconds without work, as the pools of a task have it
# What a process needs to be alive may differ by as much as this, whatever its size: a thread more or a buffer of malloc.
SLACK = {"memory MiB": 8, "descriptors": 4, "threads": 4, "programs": 0, "variables": 0}


class Cluster:
    """Two workers and two parameter servers, each a process."""

    def __init__(self, muster, lease):
        ports = free_ports(4)
        self.muster = muster
        self.spec = json.dumps({"worker": [f"127.0.0.1:{port}" for port in ports[:2]],
                                "ps": [f"127.0.0.1:{port}" for port in ports[2:]]})
        self.tasks = []
        for job, count in (("worker", 2), ("ps", 2)):
            for index in range(count):
                self.tasks.append(ServerProcess(muster, "--lease", str(lease), job=job, index=index,
                                                cluster=self.spec, address=None))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for task in self.tasks:
            if exception[0] is not None:
                print(task.errors()[-2000:], file=sys.stderr)
            task.__exit__(*exception)

    def status(self):
        out = subprocess.run([self.muster, "status", "--cluster", self.spec, "--json"], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
        return {task["task"]: task for task in json.loads(out)}

    def is_empty(self):
        tasks = self.status().values()
        return all(task["programs"] == 0 and task["variables"] == 0 and task["sessions"] == 0 for task in tasks)

    def figures(self):
        """By task: what it holds."""
        status = self.status()
        rows = {}
        for task in self.tasks:
            process = pathlib.Path(f"/proc/{task.process.pid}")
            rows[task.task] = {"memory MiB": task.resident_bytes() / 2**20,
                               "descriptors": len(list((process / "fd").iterdir())),
                               "threads": len(list((process / "task").iterdir())),
                               "programs": status[task.task]["programs"],
                               "variables": status[task.task]["variables"]}
        return rows


def run(soak, cluster, *words):
    subprocess.run([soak, *words, "--cluster", cluster.spec], check=True, stdout=subprocess.DEVNULL)


def kill_chief(soak, cluster):
    with subprocess.Popen([soak, "train", "--cluster", cluster.spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as chief:
        if not chief.stdout.readline():
            raise AssertionError(f"the chief has ended with {chief.wait()} before it trained")
        chief.kill()


def print_table(before, after):
    names = list(SLACK)
    print(f"{'task':34}" + "".join(f"{name:>22}" for name in names))
    for task, row in before.items():
        cells = (f"{row[name]:.0f} -> {after[task][name]:.0f}" for name in names)
        print(f"{task:34}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def grown(before, after):
    return [f"{task}: {name} {row[name]:.0f} -> {after[task][name]:.0f}" for task, row in before.items()
            for name in SLACK if after[task][name] > row[name] * (1 + ALLOWED) + SLACK[name]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("muster")
    parser.add_argument("soak")
    parser.add_argument("--chiefs", type=int, default=100)
    parser.add_argument("--functions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--lease", type=float, default=20)
    flags = parser.parse_args()
    with Cluster(flags.muster, flags.lease) as cluster:

        def everything(chiefs, functions, seconds):
            for _ in range(chiefs):
                kill_chief(flags.soak, cluster)
            run(flags.soak, cluster, "functions", str(functions))
            run(flags.soak, cluster, "clients", str(seconds))
            # Two variables of the clients, without a container, are meant to stay.
            subprocess.run([flags.soak, "reset", "--cluster", cluster.spec], check=True)
            wait_until(cluster.is_empty, 60 + 3 * flags.lease, "that all leases have ended and nothing is left")
            time.sleep(THREADS_STAY + 2)

        def round_of(chiefs, functions, seconds, before):
            everything(chiefs, functions, seconds)
            after = cluster.figures()
            print_table(before, after)
            return after, grown(before, after)

        # Threads, connections and pools of memory are made when they are first needed, and stay: so short rounds go
        # before, until one has left everything where it was.
        is_long = flags.chiefs or flags.functions or flags.seconds
        warming = (10, 1000, 10) if is_long else (3, 200, 3)
        figures, growth = cluster.figures(), ["everything"]
        for _ in range(MOST_ROUNDS):
            if not growth:
                break
            figures, growth = round_of(*warming, figures)
        if not growth and is_long:
            figures, growth = round_of(flags.chiefs, flags.functions, flags.seconds, figures)
        if growth:
            sys.exit("soak: these have grown:\n  " + "\n  ".join(growth))


if __name__ == "__main__":
    main()
