#!/usr/bin/env python3
"""Workers that train in step, and what becomes of them when one is lost: in_step_test.py MUSTER IN_STEP [--rounds N], which
many times in a row, then what unittest takes. For a network of its own (own_network)."""
import array
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from server_process import PATIENCE, free_ports, wait_until

MUSTER, IN_STEP = sys.argv[1:3]

# What messages call a worker, by its rank.
NAMED = r"rank {0} \(/job:worker/replica:0/task:{0} at 127.0.0.1:\d+, incarnation \d+\)"


def left(seconds):
    """Whether somebody sleeps for so long, which tells whose sleep it is."""
    return subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], stdout=subprocess.DEVNULL).returncode == 0


class Worker:
    """One process of a job."""

    def __init__(self, addresses, index, *flags, near=True):
        self.log = tempfile.NamedTemporaryFile(prefix="muster-in-step-", suffix=".log")
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        self.process = subprocess.Popen([IN_STEP, *flags], stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, "TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1", "MUSTER_LOG": "debug",
                                             **({} if near else {"MUSTER_NEAR_MEMORY": "off"})})

    def output(self):
        return pathlib.Path(self.log.name).read_text()

    def has_printed(self, words):
        return lambda: words in self.output()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Job:
    """Two workers or more, of which some may come later."""

    def __init__(self, *flags, started=(0, 1), size=2, near=lambda index: True):
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
        self.flags = flags
        self.near = near  # by rank: whether it shares memory with others of this machine
        self.workers = {index: self.start(index) for index in started}

    def start(self, index):
        return Worker(self.addresses, index, *self.flags, near=self.near(index))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for index, worker in self.workers.items():
            worker.end()
            if exception[0] is not None:
                print(f"---- worker {index}:\n{worker.output()[-3000:]}", file=sys.stderr)

    def expect_success(self):
        for index, worker in self.workers.items():
            code = worker.process.wait(PATIENCE * 2)
            if code != 0:
                raise AssertionError(f"worker {index} has ended with {code}")


def reachable(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def floats(path):
    values = array.array("f")
    values.frombytes(pathlib.Path(path).read_bytes())
    return values


def loopback_bytes():
    """That this network has carried; None if it is not of this test alone."""
    lines = [line.split(":") for line in pathlib.Path("/proc/net/dev").read_text().splitlines() if ":" in line]
    if [name.strip() for name, _ in lines] != ["lo"]:
        return None
    return int(lines[0][1].split()[0])


class OfJobs(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory(prefix="muster-in-step-")
        self.addCleanup(self._directory.cleanup)
        self.directory = pathlib.Path(self._directory.name)

    def run_alone(self, *flags):
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        return subprocess.run([IN_STEP, *flags], check=True, stdout=subprocess.PIPE, text=True,
                              env={**environment, "OMP_NUM_THREADS": "1"}, timeout=PATIENCE).stdout

    def trained_alone(self, *flags):
        path = self.directory / "alone"
        self.run_alone(*flags, "--weights", path)
        return floats(f"{path}.0")

    def trained_together(self, *flags):
        path = self.directory / "together"
        with Job(*flags, "--weights", path) as job:
            job.expect_success()
        first, second = (pathlib.Path(f"{path}.{index}").read_bytes() for index in (0, 1))
        self.assertEqual(first, second, "the workers' weights differ")
        return floats(f"{path}.0")

    def assert_close(self, some, others):
        self.assertEqual(len(some), len(others))
        self.assertLess(max(abs(a - b) for a, b in zip(some, others)), 2e-5)


class InStep(OfJobs):
    def test_processes_and_devices_train_the_same_weights(self):
        four = ",".join(f"/device:CPU:{number}" for number in range(4))
        for flags in (["--optimizer", "momentum"], ["--optimizer", "adam"], ["--norm", "synchronized", "--steps", "5"]):
            one = self.trained_alone(*flags)
            self.assert_close(one, self.trained_alone(*flags, "--devices", four))
            self.assert_close(one, self.trained_together(*flags))
            self.assert_close(one, self.trained_together(*flags, "--devices", "/device:CPU:0,/device:CPU:1"))
            self.assert_close(one, self.trained_together(*flags, "--layers-on", "/device:CPU:0,/device:CPU:1"))

    def test_copies_and_what_optimizers_keep_beside_them_stay_equal(self):
        for optimizer in ("momentum", "adam"):
            self.trained_together("--optimizer", optimizer, "--steps", "100", "--slots", "yes",
                                  "--devices", "/device:CPU:0,/device:CPU:1")

    def test_each_replica_may_norm_its_own_rows(self):
        flags = ("--norm", "of-replicas", "--steps", "5")
        two = "/device:CPU:0,/device:CPU:1"
        self.assert_close(self.trained_together(*flags), self.trained_alone(*flags, "--devices", two))

    def test_the_ring_that_is_asked_for_measures_nothing(self):
        path = self.directory / "ring"
        with Job("--communication", "ring", "--weights", path) as job:
            job.expect_success()
            self.assertIn("all 2 are here; sums of up to ", job.workers[0].output())
            self.assertNotIn("(measured: ", job.workers[0].output())
        self.assert_close(floats(f"{path}.0"), self.trained_together())

    def bytes_per_step(self, *flags):
        flags += ("--communication", "ring")  # which measures nothing: how much it sends for that depends on the machine's mood
        carried = []
        for steps in (20, 220):
            before = loopback_bytes()
            with Job(*flags, "--steps", str(steps), near=lambda _: False) as job:
                job.expect_success()
            carried.append(loopback_bytes() - before)
        return (carried[1] - carried[0]) / 200

    @unittest.skipIf(loopback_bytes() is None, "others use this network")
    def test_devices_of_a_worker_are_summed_before_anything_crosses_the_wire(self):
        gradients = 4 * (8 * 300 + 300 + 300 * 40 + 40 + 40 + 1)
        one = self.bytes_per_step()
        four = self.bytes_per_step("--devices", ",".join(f"/device:CPU:{number}" for number in range(4)))
        for sent in (one, four):  # by both workers, with the rows of the table and what they say about them
            self.assertGreater(sent, 2 * gradients)
            self.assertLess(sent, 2.3 * gradients)

    def test_strategies_are_made_anew_in_the_same_processes(self):
        for size, rounds, near, way in ((2, "20", lambda _: True, "auto"), (2, "3", lambda _: True, "ring"), (4, "6", lambda _: True, "auto"),
                                        (4, "6", lambda index: index < 2, "auto"), (4, "3", lambda index: index < 2, "ring")):
            with Job("--rounds", rounds, "--communication", way, started=range(size), size=size, near=near) as job:
                job.expect_success()

    def test_gradients_in_many_packs_are_those_in_one(self):
        self.assertEqual(self.trained_together("--optimizer", "adam", "--bytes-per-pack", "1"),
                         self.trained_together("--optimizer", "adam"))

    def test_workers_export_the_model_that_they_have_fitted(self):
        for accumulate in ("1", "2"):  # of two, the last of three batches is left out
            path = self.directory / f"model{accumulate}"
            with Job("--export", path, "--accumulate", accumulate) as job:
                job.expect_success()
                outputs = [job.workers[index].output() for index in (0, 1)]
            losses = [output.split("\nloss ")[1].split()[0] for output in outputs]
            self.assertEqual(*losses)
            if accumulate == "1":  # nor does the second one have rows of the last batch; it is the same in one process
                alone = subprocess.run([IN_STEP, "--export", self.directory / "alone", "--devices", "/device:CPU:0,/device:CPU:1"],
                                       stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True).stdout
                self.assertAlmostEqual(float(losses[0]), float(alone.split("\nloss ")[1].split()[0]), places=4)
            self.assertIn("epoch 2/2", outputs[0])
            self.assertNotIn("epoch", outputs[1])
            self.assertEqual(len(pathlib.Path(f"{path}.logs.0/log.csv").read_text().splitlines()), 3)
            self.assertTrue(list(pathlib.Path(f"{path}.logs.0/train").iterdir()))
            self.assertFalse(pathlib.Path(f"{path}.logs.1").exists(), "only the chief writes")
            for index in (0, 1):
                trace = json.loads(pathlib.Path(f"{path}.board/profile/worker-{index}.json").read_text())
                rows = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
                self.assertIn("other tasks", rows, "what a worker has waited for")
            models = [pathlib.Path(f"{path}.{index}").read_bytes() for index in (0, 1)]
            self.assertEqual(models[0], models[1])

    def test_workers_learn_linear_and_wide_and_deep_models_in_three_epochs(self):
        with Job("--linear-models", "yes") as job:
            job.expect_success()
            said = {line for worker in job.workers.values() for line in worker.output().splitlines() if line.startswith("linear")}
        self.assertEqual(len(said), 1, "each epoch's loss is that of all workers")
        losses = [float(word) for word in said.pop().split()[1::2]]
        self.assertEqual(len(losses), 2)
        self.assertLess(max(losses), 0.2)

    def test_metrics_and_losses_are_those_of_one_process_and_fit_ends_early_at_all_workers(self):
        def numbers(output):
            return {tuple(line.split()[1:3]): float(line.split()[3]) for line in output.splitlines() if line.startswith("number ")}

        alone = numbers(self.run_alone("--metrics", "yes"))
        with Job("--metrics", "yes") as job:
            job.expect_success()
            first, second = (numbers(job.workers[index].output()) for index in (0, 1))
        self.assertEqual(first, second)
        self.assertEqual(first.keys(), alone.keys())
        for name, number in alone.items():
            self.assertLess(abs(first[name] - number), 1e-5 * max(1, abs(number)), name)
        for name in (("labels", "val_auc"), ("numbers", "r2_score"), ("sequences", "accuracy"), ("sequences_trained", "loss"),
                     ("labels", "train_on_batch_auc"), ("numbers", "test_on_batch_loss")):
            self.assertIn(name, alone)
        self.assertEqual(first["stopped", "epochs"], 3)

    def test_a_job_whose_objects_are_saved_goes_on_with_the_batches_that_come_next(self):
        flags = ("--optimizer", "adam", "--objects", "yes", "--checkpoints", self.directory / "checkpoints")
        weights = []
        for name in ("first", "again"):  # what the checkpoint says of the order of batches is the same each time
            path = self.directory / name
            with Job(*flags, "--steps", "23") as job:
                job.expect_success()
            for later in (25, 30):
                shutil.rmtree(self.directory / "checkpoints" / f"ckpt-{later}", ignore_errors=True)
            with Job(*flags, "--steps", "30", "--weights", path) as job:
                job.expect_success()
                for worker in job.workers.values():
                    self.assertIn("restored 20\n", worker.output())
            weights.append(pathlib.Path(f"{path}.0").read_bytes())
            self.assertEqual(weights[-1], pathlib.Path(f"{path}.1").read_bytes())
            for later in (25, 30):
                shutil.rmtree(self.directory / "checkpoints" / f"ckpt-{later}")
        self.assertEqual(*weights)

    def test_a_job_that_saves_while_it_goes_on_is_killed_and_goes_on(self):
        flags = ("--optimizer", "adam", "--save-async", "yes", "--save-every", "3", "--checkpoints",
                 self.directory / "checkpoints")
        with Job(*flags, "--steps", "1000000") as job:
            wait_until(lambda: (self.directory / "checkpoints" / "ckpt-9").exists(), what="a checkpoint")
            job.workers[0].process.kill()
            self.assertEqual(job.workers[1].process.wait(PATIENCE), 1)
            self.assertEqual(["nothing is restored" in job.workers[index].output() for index in (0, 1)], [True, False])
        last = max(int(path.name[5:]) for path in (self.directory / "checkpoints").glob("ckpt-*"))
        path = self.directory / "weights"
        with Job(*flags, "--steps", str(last + 10), "--weights", path) as job:
            job.expect_success()
            for worker in job.workers.values():
                self.assertIn(f"restored {last}\n", worker.output())
            # What is said by all of them is said once.
            self.assertEqual(["variables from" in job.workers[index].output() for index in (0, 1)], [True, False])
        self.assertEqual(pathlib.Path(f"{path}.0").read_bytes(), pathlib.Path(f"{path}.1").read_bytes())

    def test_run_starts_workers_and_ends_with_the_code_of_the_one_that_fails(self):
        done = subprocess.run([MUSTER, "run", "--workers", "2", IN_STEP, "--steps", "3"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout)
        for index in (0, 1):
            self.assertIn(f"[worker {index}] 2 replicas\n", done.stdout)
            self.assertIn(f"[worker {index}] step 3\n", done.stdout)

        script = 'case "$TF_CONFIG" in *\'"index":1\'*) exit 7;; esac; exec sleep 1000'
        done = subprocess.run([MUSTER, "run", "--workers", "3", "--grace", "1", "sh", "-c", script],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 7, done.stdout)
        self.assertIn("worker 1 has ended with 7", done.stdout)

    def test_run_starts_a_program_as_the_chief_of_servers(self):
        script = "import json, os, sys; print(sorted(json.loads(os.environ['TF_CONFIG'])['cluster'].items())); sys.exit(7)"
        done = subprocess.run([MUSTER, "run", "--workers", "2", "--ps", "1", sys.executable, "-c", script],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertRegex(done.stdout, r"\[chief\] \[\('chief', \['127.*\('ps', \['127[^,]*'\]\), \('worker', \['127.*', '127.*'\]\)\]")
        self.assertIn("chief has ended with 7", done.stderr)

    def test_run_makes_the_storage_of_its_servers_and_says_nothing_of_it(self):
        storage = self.directory / "of" / "checkpoints"
        script = "import os, subprocess, sys; print(subprocess.run(['ps', '--ppid', str(os.getppid()), '-o', 'args'], stdout=-1, text=True).stdout); sys.exit(not os.path.isdir(sys.argv[1]))"
        done = subprocess.run([MUSTER, "run", "--workers", "1", "--ps", "1", "--storage", storage, sys.executable, "-c", script, storage],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("is not there", done.stdout + done.stderr)
        self.assertIn("[chief] muster server --cluster", done.stdout)

        (self.directory / "file").touch()
        done = subprocess.run([MUSTER, "run", "--workers", "1", "--ps", "1", "--storage", self.directory / "file" / "below", "true"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('below" cannot be made: Not a directory', done.stderr)

    def test_run_starts_a_server_again_that_was_killed(self):
        script = """
import os, signal, time
def worker():
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat") as stat, open(f"/proc/{number}/cmdline") as words:
                if stat.read().rsplit(")", 1)[1].split()[1] == str(os.getppid()) and "worker" in words.read().split(chr(0)):
                    return int(number)
        except OSError:
            pass
def wait_for_another_than(before):
    while worker() in (None, before):
        time.sleep(0.01)
    return worker()
first = wait_for_another_than(None)
os.kill(first, signal.SIGKILL)
wait_for_another_than(first)
print("is back")
"""
        done = subprocess.run([MUSTER, "run", "--workers", "1", "--ps", "1", sys.executable, "-c", script],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("[chief] is back", done.stdout)
        self.assertIn("worker 0 has ended with 137 and is started again", done.stderr)

    def test_run_kills_a_program_that_does_not_end_when_it_is_told_to_and_names_it(self):
        deaf = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 10773; done"]
        for flags, why in ((["--notice", "0.1"], "it has not ended 0.1 s after it was told to"),
                           (["--notice", "1000"], "there was a second signal")):
            with self.subTest(flags), tempfile.NamedTemporaryFile() as said:
                def has_said(words):
                    return lambda: words in pathlib.Path(said.name).read_text()

                run = subprocess.Popen([MUSTER, "run", "--workers", "1", "--ps", "1", *flags, *deaf], stdout=said,
                                       stderr=subprocess.STDOUT)
                try:
                    wait_until(has_said("[chief] deaf\n"), what="the chief")
                    run.send_signal(signal.SIGTERM)
                    wait_until(has_said(f"{flags[1]} s for it (--notice)"), what="what it says")
                    if why == "there was a second signal":
                        wait_until(lambda: run.send_signal(signal.SIGTERM) or run.poll() is not None, what="the end")
                    code = run.wait(PATIENCE)
                finally:
                    run.kill()
                    run.wait()
                self.assertEqual(code, 128 + signal.SIGKILL)
                text = pathlib.Path(said.name).read_text()
                self.assertIn("muster run: chief is killed: " + why, text)
                self.assertNotIn("worker 0 is killed", text, "servers are not waited for")

    def test_run_passes_on_a_signal_that_comes_while_it_starts_the_program(self):
        run = subprocess.Popen([MUSTER, "run", "--workers", "20", "--notice", "1000", "sleep", "10774"])

        def hears():
            caught = re.search(r"SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{run.pid}/status").read_text()).group(1)
            return int(caught, 16) >> (signal.SIGTERM - 1) & 1

        try:
            wait_until(hears, what="its handlers")
            run.send_signal(signal.SIGTERM)
            code = run.wait(PATIENCE)
        finally:
            run.kill()
            run.wait()
        self.assertEqual(code, 128 + signal.SIGTERM)

    def test_run_says_that_the_program_has_used_none_of_its_servers(self):
        script = """
import json, os, socket, subprocess, sys, time
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
def until(done):
    while not done():
        time.sleep(0.05)
def listens(address):
    with socket.socket() as client:
        return client.connect_ex((address.split(":")[0], int(address.split(":")[1]))) == 0
for address in cluster["worker"] + cluster["ps"]:
    until(lambda: listens(address))
if len(sys.argv) > 1:
    until(lambda: subprocess.run([sys.argv[1], "status", "--target", cluster["ps"][0]]).returncode == 0)
"""
        words = "muster run: the program has used none of this job's servers"
        for arguments, idle in (([], True), ([MUSTER], False)):
            done = subprocess.run([MUSTER, "run", "--workers", "1", "--ps", "2", sys.executable, "-c", script, *arguments],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)

            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(words in done.stderr, idle, done.stderr)
            self.assertNotIn("listening", done.stdout)

    def test_run_goes_on_when_nobody_reads_what_it_prints(self):
        with tempfile.TemporaryDirectory() as there:
            script = f"echo first; while [ ! -e {there}/unread ]; do sleep 0.1; done; echo second; echo third; touch {there}/saved"
            run = subprocess.Popen([MUSTER, "run", "--workers", "1", "--ps", "1", "sh", "-c", script], stdout=subprocess.PIPE)
            try:
                self.assertIn(b"first", run.stdout.readline())
                run.stdout.close()
                pathlib.Path(there, "unread").touch()
                self.assertEqual(run.wait(PATIENCE), 0)
            finally:
                run.kill()
                run.wait()
            self.assertTrue(pathlib.Path(there, "saved").exists())

    def test_run_that_is_killed_takes_along_who_is_deaf_and_what_that_has_started(self):
        run = subprocess.Popen([MUSTER, "run", "--workers", "2", "--grace", "1", "--notice", "1", "sh", "-c", "trap '' TERM; sleep 10775; true"])
        wait_until(lambda: left(10775), what="what the workers start")
        run.kill()
        run.wait()
        wait_until(lambda: not left(10775), what="the end of what the workers have started")

    def test_run_leaves_nothing_behind(self):
        # What a worker has started holds its output.
        done = subprocess.run([MUSTER, "run", "--workers", "2", "sh", "-c", "sleep 10771 & exit 0"], timeout=PATIENCE)
        self.assertEqual(done.returncode, 0)
        wait_until(lambda: not left(10771), what="the end of what workers have started")

        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            with self.subTest(number):
                run = subprocess.Popen([MUSTER, "run", "--workers", "2", "--grace", "1", "sleep", "10772"])
                wait_until(lambda: left(10772), what="a worker")
                run.send_signal(number)
                run.wait(PATIENCE)
                wait_until(lambda: not left(10772), what="the end of the workers")


class Faults(OfJobs):
    def test_a_lost_worker_ends_the_step_of_the_others_with_its_name(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(number), Job("--steps", "1000000") as job:
                wait_until(job.workers[0].has_printed("step 5\n"), what="a step")
                job.workers[1].process.send_signal(number)
                self.assertEqual(job.workers[0].process.wait(PATIENCE), 1)
                self.assertRegex(job.workers[0].output(), "in_step: UNAVAILABLE.*" + NAMED.format(1))

    def test_a_stopped_worker_does_not_hold_up_the_others_for_ever(self):
        with Job("--steps", "1000000") as job:
            wait_until(job.workers[0].has_printed("step 5\n"), what="a step")
            job.workers[1].process.send_signal(signal.SIGSTOP)
            self.assertEqual(job.workers[0].process.wait(PATIENCE * 2), 1)
            self.assertRegex(job.workers[0].output(), "in_step: UNAVAILABLE.*" + NAMED.format(1))
            job.workers[1].process.send_signal(signal.SIGCONT)
            self.assertEqual(job.workers[1].process.wait(PATIENCE * 2), 1)

    def test_all_wait_for_a_worker_that_comes_late_and_say_so(self):
        with Job(started=(0,)) as job:
            wait_until(job.workers[0].has_printed("waits for rank 1 (/job:worker/replica:0/task:1 at "), what="a word")
            self.assertRegex(job.workers[0].output(), NAMED.format(0) + ": waits for ")
            job.workers[1] = job.start(1)
            job.expect_success()

    def test_a_worker_that_never_comes_is_named(self):
        with Job("--start-timeout", "1000", started=(0,)) as job:
            self.assertEqual(job.workers[0].process.wait(PATIENCE), 1)
            self.assertRegex(job.workers[0].output(), "in_step: DEADLINE_EXCEEDED.*" + NAMED.format(0) + r": these have not come within 1 s: rank 1 \(/job:worker/replica:0/task:1 at ")

    def test_a_worker_that_does_not_come_to_a_sum_is_named(self):
        for kind in ("dense", "dense-many", "rows", "rows-many"):
            with self.subTest(kind), Job("--timeout", "1000", "--stays-away-from", kind) as job:
                self.assertEqual(job.workers[0].process.wait(PATIENCE), 1)
                self.assertIn("step 1\n", job.workers[0].output())
                self.assertRegex(job.workers[0].output(),
                                 "in_step: DEADLINE_EXCEEDED.*" + NAMED.format(1) + r" did not come to call \d+ of the group within 1 s\n")

    def test_a_worker_that_is_started_anew_before_the_first_step_is_waited_for(self):
        with Job(started=(1,)) as job:
            wait_until(job.workers[1].has_printed("waits for rank 0"), what="a word")
            job.workers[1].end()
            job.workers[0] = job.start(0)
            job.workers[1] = job.start(1)
            job.expect_success()

    def test_workers_at_different_calls_are_both_named_with_what_differs(self):
        for what, first, second in (
                ("purpose", r"all_reduce\(sum\) for .* tensors: .*", r"all_reduce\(sum\) for reduce\(sum\) of 1 tensors: float32\[3\]"),
                ("type", r"all_reduce\(sum\) for .* float32\[3\]", r"all_reduce\(sum\) for .* float64\[3\]"),
                ("shape", r"all_reduce\(sum\) for .* float32\[3\]", r"all_reduce\(sum\) for .* float32\[5\]"),
                ("reduction", r"all_reduce\(sum\) for reduce\(sum\) of .*", r"all_reduce\(max\) for reduce\(max\) of .*"),
                ("order", r"all_reduce\(sum\) for .*", r"all_gather for gather of .*")):
            with self.subTest(what), Job("--differs-at", "3", "--differs-in", what) as job:
                for index in (0, 1):
                    self.assertEqual(job.workers[index].process.wait(PATIENCE), 1)
                    own, other = NAMED.format(index), NAMED.format(1 - index)
                    calls = (first, second) if index == 0 else (second, first)
                    self.assertRegex(job.workers[index].output(),
                                     f"in_step: INVALID_ARGUMENT.*different calls: ({own} is at {calls[0]}; {other} is at {calls[1]}|{other} is at {calls[1]}; {own} is at {calls[0]})")

    def test_a_worker_that_dies_while_variables_get_their_first_values_is_named(self):
        for victim in (0, 1):  # who gives the values, and who gets them
            with self.subTest(victim), Job("--variables-of", "64") as job:
                wait_until(job.workers[0].has_printed("variable 3\n"), what="a variable")
                job.workers[victim].end()
                survivor = job.workers[1 - victim]
                self.assertEqual(survivor.process.wait(PATIENCE), 1)
                self.assertRegex(survivor.output(), 'in_step: UNAVAILABLE.*variable "variable.*' + NAMED.format(victim))

    def test_no_sum_has_parts_of_a_worker_that_died_and_of_the_one_that_came_for_it(self):
        go_on, path = self.directory / "go-on", self.directory / "together"
        with Job("--steps", "20", "--waits-for", go_on, "--weights", path) as job:
            for worker in job.workers.values():
                wait_until(worker.has_printed("step 1\n"), what="a step")
            job.workers[1].end()  # while the first one is between two steps
            job.workers[1] = job.start(1)
            wait_until(lambda: reachable(job.addresses[1]), what="a new worker")
            go_on.touch()
            self.assertEqual(job.workers[0].process.wait(PATIENCE), 1)
            # The end of the first process, or the next one in its place: whichever is seen first.
            self.assertRegex(job.workers[0].output(), "in_step: (UNAVAILABLE|FAILED_PRECONDITION).*" + NAMED.format(1))
            self.assertNotIn("step 2\n", job.workers[0].output())
            self.assertNotIn("step 1\n", job.workers[1].output())
            job.workers[0] = job.start(0)
            job.expect_success()
        self.assertEqual(pathlib.Path(f"{path}.0").read_bytes(), pathlib.Path(f"{path}.1").read_bytes())
        self.assert_close(floats(f"{path}.0"), self.trained_alone("--steps", "20"))

    def test_a_job_that_is_started_anew_goes_on_where_it_was(self):
        flags = ("--optimizer", "adam", "--steps", "40", "--checkpoints", self.directory / "checkpoints")
        with Job(*flags) as job:
            wait_until(job.workers[0].has_printed("step 12\n"), what="a step")
            job.workers[1].process.kill()
            self.assertEqual(job.workers[0].process.wait(PATIENCE), 1)
        weights = self.trained_together(*flags)
        self.assert_close(weights, self.trained_alone("--optimizer", "adam", "--steps", "40"))

    def test_what_each_replica_has_for_itself_is_saved_as_what_all_have_together(self):
        flags = ("--counts", "yes", "--checkpoints", self.directory / "checkpoints")
        two = ("--devices", "/device:CPU:0,/device:CPU:1")
        for step in range(3):
            with Job(*flags, *two) as job:
                job.expect_success()
                for worker in job.workers.values():
                    self.assertIn(f"restored {step}\n", worker.output())

    def test_a_worker_that_stays_goes_on_with_the_one_that_comes_back(self):
        path = self.directory / "weights"
        with Job("--again", "yes", "--optimizer", "adam", "--steps", "600", "--save-every", "50",
                 "--checkpoints", self.directory / "checkpoints", "--weights", path) as job:
            wait_until(job.workers[0].has_printed("step 60\n"), what="a step")
            job.workers[1].end()
            job.workers[1] = job.start(1)
            job.expect_success()
            first = job.workers[0].output()
            self.assertRegex(first, "in_step: (UNAVAILABLE|FAILED_PRECONDITION).*" + NAMED.format(1))
            restored = [int(step) for step in re.findall(r"^restored (\d+)$", first, re.MULTILINE)]
            self.assertEqual(len(restored), 2)
            self.assertGreaterEqual(restored[1], 50)
        self.assertEqual(pathlib.Path(f"{path}.0").read_bytes(), pathlib.Path(f"{path}.1").read_bytes())

    def test_a_job_of_which_one_worker_is_told_to_end_saves_and_goes_on_later(self):
        everybody = range(4)
        flags = ("--optimizer", "adam", "--checkpoints", self.directory / "checkpoints", "--preemption", "yes",
                 "--save-every", "1000000")
        with Job(*flags, "--steps", "1000000", started=everybody, size=4) as job:
            for worker in job.workers.values():
                wait_until(worker.has_printed("step 12\n"), what="a step")
            job.workers[2].process.send_signal(signal.SIGTERM)
            for index in everybody:
                self.assertEqual(job.workers[index].process.wait(PATIENCE), 42)
            last = {re.findall(r"^step (\d+)$", worker.output(), re.MULTILINE)[-1] for worker in job.workers.values()}
            self.assertEqual(len(last), 1, "workers have ended after different steps")
            done = int(last.pop())
        steps = ("--steps", str(done + 3))
        with Job(*flags, *steps, "--weights", self.directory / "later", started=everybody, size=4) as job:
            job.expect_success()
            for worker in job.workers.values():
                self.assertIn(f"restored {done}\n", worker.output())
        with Job("--optimizer", "adam", *steps, "--weights", self.directory / "at-once", started=everybody, size=4) as job:
            job.expect_success()
        self.assertEqual((self.directory / "later.3").read_bytes(), (self.directory / "at-once.0").read_bytes())
    def test_fit_that_one_worker_is_told_to_end_goes_on_after_its_backup(self):
        for saves_async in ("", "yes"):
            with self.subTest(saves_async=saves_async):
                self.expect_going_on_after_a_backup(self.directory / f"backup{saves_async}", saves_async)

    def expect_going_on_after_a_backup(self, backup, saves_async):
        flags = ("--checkpoints", backup, "--save-async", saves_async)
        with Job("--fit", "1000000", *flags) as job:
            for worker in job.workers.values():
                wait_until(worker.has_printed("epoch 3\n"), what="an epoch")
            job.workers[1].process.send_signal(signal.SIGTERM)
            for worker in job.workers.values():
                self.assertEqual(worker.process.wait(PATIENCE), 42)
            last = {re.findall(r"^epoch (\d+)$", worker.output(), re.MULTILINE)[-1] for worker in job.workers.values()}
            self.assertEqual(len(last), 1, "workers have ended after different epochs")
            done = int(last.pop())
        self.assertTrue((backup / f"ckpt-{done}").exists(), "the backup of the last epoch")
        with Job("--fit", str(done + 2), *flags) as job:
            job.expect_success()
            for worker in job.workers.values():
                self.assertEqual(re.findall(r"^epoch (\d+)$", worker.output(), re.MULTILINE), [str(done + 1), str(done + 2)])
        self.assertFalse(backup.exists(), "the backup of a training that has ended")


if __name__ == "__main__":
    rounds, arguments = 1, sys.argv[3:]
    if arguments[:1] == ["--rounds"]:
        rounds, arguments = int(arguments[1]), arguments[2:]
    for _ in range(rounds):
        program = unittest.main(argv=[sys.argv[0], *arguments], exit=False)
        if not program.result.wasSuccessful():
            sys.exit(1)
