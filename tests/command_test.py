#!/usr/bin/env python3
"""Tests of the muster command: command_test.py MUSTER CONTROL_FLOW, the latter being the example that writes a program."""
import contextlib
import http.client
import json
import os
import pathlib
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import urllib.error
import urllib.request
import xml.etree.ElementTree

MUSTER, CONTROL_FLOW = sys.argv[1:3]


def crc32c(data):
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82F63B78 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


def record(data):
    """As it stands in a TFRecord file."""
    def total(of):
        crc = crc32c(of)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    length = struct.pack("<Q", len(data))
    return length + total(length) + data + total(data)


def scalar_event(tag, step, value):
    """An event of TensorBoard, field by field: the time, the step, a summary of one value."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data
    one = field(1, field(1, tag.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", value))
    return record(bytes([1 << 3 | 1]) + struct.pack("<d", 1.7e9 + step) + bytes([2 << 3, step]) + field(5, one))


def muster(*arguments):
    return subprocess.run([MUSTER, *map(str, arguments)], capture_output=True, text=True, check=False)


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.program = cls.folder / "square_root.program"
        subprocess.run([CONTROL_FLOW, str(cls.program)], check=True, capture_output=True)

    def test_dump_shows_a_program_before_and_after_the_passes(self):
        done = muster("dump", self.program)

        self.assertEqual((done.returncode, done.stderr), (0, ""))
        before, after = done.stdout.split("\nAfter the passes (")
        self.assertTrue(before.startswith('As it was traced:\nprogram "square_root"'), before)
        self.assertIn("muster::loop(trips=None", before)
        self.assertRegex(after, r"^\d+ dead, \d+ views, \d+ pooled, \d+ repeated, ")
        self.assertIn("muster::loop(trips=None", after)

    def test_dump_shows_the_optimized_program_alone(self):
        done = muster("dump", self.program, "--optimized")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count('program "square_root"'), 1)
        self.assertNotIn("@", done.stdout)

    def test_dump_shows_the_placed_program_with_full_device_names(self):
        done = muster("dump", self.program, "--placed")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("@ /job:localhost/replica:0/task:0/device:CPU:0", done.stdout)

    def test_dump_draws_a_picture(self):
        done = muster("dump", self.program, "--dot", "--placed")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("digraph"), done.stdout[:100])
        self.assertIn("subgraph", done.stdout)

    def test_names_the_commands_that_there_are_when_it_is_given_another(self):
        done = muster("nosuch", "--flag")

        self.assertEqual(done.returncode, 2)
        self.assertIn("expected a command: dump, bench,", muster().stderr)
        self.assertIn('there is no command "nosuch", only dump, bench, certs, plot, run, export, run-model, server, status', done.stderr)

    def test_server_ends_its_help_with_an_example(self):
        done = muster("server", "--help")

        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"Example[^\n]*:\n(  muster server --cluster .* --task_index 0\n)+$")

    def test_server_says_how_a_cluster_is_given(self):
        for arguments in ([], ["--task_type", "worker"]):
            done = muster("server", *arguments)

            self.assertEqual(done.returncode, 1)
            self.assertIn("which cluster? Give --cluster", done.stderr)
            self.assertIn("--task_type worker --task_index 0", done.stderr)

    def test_status_says_once_why_a_task_is_down(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            target = f"127.0.0.1:{unused.getsockname()[1]}"

            done = muster("status", "--target", target)

        self.assertEqual(done.returncode, 1)
        self.assertIn(target + " is down\n", done.stdout)
        self.assertEqual((done.stdout + done.stderr).count("UNAVAILABLE"), 1, done.stdout + done.stderr)

    def test_run_writes_no_cluster_to_a_file_without_a_name(self):
        done = muster("run", "--workers", "1", "--write-cluster", "", "true")

        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--write-cluster: expected the name of a file", done.stderr)

    def test_status_of_a_job_is_no_error_though_its_chief_has_no_server(self):
        cluster = self.folder / "cluster.json"
        until_up = 'for i in $(seq 300); do "$0" status --cluster "$1" && exit 0; sleep 0.1; done; exit 1'

        done = muster("run", "--workers", "1", "--ps", "1", "--write-cluster", cluster, "sh", "-c", until_up, MUSTER, cluster)

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(json.loads(cluster.read_text())), ["chief", "ps", "worker"])
        self.assertRegex(done.stdout, r"/job:chief/replica:0/task:0 +127\.0\.0\.1:\d+ +no server")
        self.assertIn("/job:chief/replica:0/task:0 has no server: the chief of parameter servers needs none\n", done.stdout)

    def test_run_names_the_flag_that_there_is_not_before_one_that_is_missing(self):
        done = muster("run", "--worker", "2", "true")

        self.assertEqual(done.returncode, 2)
        self.assertIn("run: there is no flag --worker;", done.stderr)
        self.assertIn("--workers is required", muster("run", "true").stderr)

    def test_server_says_what_is_wrong_with_the_memory_of_a_run(self):
        for wrong in ("lots", "0", "-1GB"):
            done = muster("server", f"--memory={wrong}")

            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertIn("--memory", done.stderr)

    def test_dump_names_a_file_that_is_not_there(self):
        done = muster("dump", self.folder / "nowhere")

        self.assertEqual(done.returncode, 1)
        self.assertIn("nowhere: cannot be read (No such file or directory)", done.stderr)

    def test_dump_refuses_a_directory(self):
        done = muster("dump", self.folder)

        self.assertEqual(done.returncode, 1)
        self.assertIn("is a directory, not a program", done.stderr)

    def test_dump_refuses_what_is_no_program(self):
        garbage = self.folder / "garbage"
        garbage.write_text("this is no program")

        done = muster("dump", garbage)

        self.assertEqual(done.returncode, 1)
        self.assertIn("garbage: ", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_dump_refuses_a_program_that_was_cut_short(self):
        short = self.folder / "short"
        short.write_bytes(self.program.read_bytes()[:-20])

        done = muster("dump", short)

        self.assertEqual(done.returncode, 1)
        self.assertIn("short: ", done.stderr)

    def test_run_model_and_export_name_the_file_that_is_not_there_or_is_no_model(self):
        garbage = self.folder / "garbage"
        garbage.write_text("this is no model")
        for words, status in ((("run-model", self.folder / "nowhere"), "NOT_FOUND"), (("run-model", garbage), "DATA_LOSS"),
                              (("export", self.folder / "nowhere", self.folder / "out"), "NOT_FOUND"),
                              (("export", garbage, self.folder / "out"), "DATA_LOSS"),
                              (("export", self.folder, self.folder / "out"), "NOT_FOUND")):
            done = muster(*words)

            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(status, done.stderr)
            self.assertIn(str(words[1]), done.stderr)
            self.assertFalse((self.folder / "out").exists())

    def test_run_model_does_not_share_the_port_of_another_one(self):
        model = self.folder / "words.safetensors"
        model.write_bytes((pathlib.Path(__file__).parent.parent / "muster/fit/fuzz_corpus/words").read_bytes()[1:])
        with socket.socket() as taken:
            # As httplib opens its sockets by default: whoever does the same would get in beside it.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()

            done = subprocess.run([MUSTER, "run-model", model, "--serve", str(taken.getsockname()[1])],
                                  capture_output=True, text=True, check=False, timeout=60)  # a server would never end

        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("cannot listen on 127.0.0.1:", done.stderr)

    def test_run_model_refuses_numbers_that_an_input_cannot_hold(self):
        model, words = self.folder / "words.safetensors", self.folder / "words.npy"
        model.write_bytes((pathlib.Path(__file__).parent.parent / "muster/fit/fuzz_corpus/words").read_bytes()[1:])
        for kind, numbers, code, said in (("<f8", (1.0, 3.0), 0, ""), ("<f8", (1.0, 2.5), 1, 'input "input": 2.5 is no int64'),
                                          ("<c16", (1.0, 2.0, 3.0, 4.0), 1, 'input "input": complex numbers are no int64')):
            header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': (2,), }}".ljust(117) + "\n"
            words.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                              struct.pack(f"<{len(numbers)}d", *numbers))

            done = muster("run-model", model, "--input", words, "--cast")

            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr)

    def served_model(self, corpus="words"):
        """The address where a model answers: it takes two numbers of words, or with "file" rows of three numbers."""
        model = self.folder / "served.safetensors"
        model.write_bytes((pathlib.Path(__file__).parent.parent / "muster/fit/fuzz_corpus" / corpus).read_bytes()[1:])
        server = subprocess.Popen([MUSTER, "run-model", model, "--serve", "0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        self.server = server
        return server.stdout.readline().split()[-1]

    def test_run_model_refuses_what_is_not_json_and_numbers_beyond_the_type_of_the_input(self):
        url = self.served_model("file")

        with urllib.request.urlopen(urllib.request.Request(url, b'{"inputs": {"input": [[3e38, 0, 0]]}}')) as answer:
            self.assertIn("outputs", json.load(answer))
        with urllib.request.urlopen(urllib.request.Request(url, b'{"inputs": {"input": [[null, 0, 0]]}}')) as answer:
            self.assertIn("null", answer.read().decode(), "what is computed of a number that is missing")
        for body, words in ((b'{"inputs": {"input": [["Oslo", 0, 0]]}}', 'input "input": expected numbers, got a text'),
                            (b'{"inputs": {"input": [[0, 1e39, 0]]}}', 'input "input": 1e+39 is no float32, which the model takes'),
                            (b'{"inputs": {"input": [[0, 1e999, 0]]}}', "not JSON: a number is too large"),
                            (b'{"inputs": {,}}', "not JSON: byte 13 is not expected there")):
            with self.subTest(body), self.assertRaises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(url, body))
            self.assertEqual(error.exception.code, 400)
            self.assertIn(words, json.load(error.exception)["error"])

    def test_run_model_says_what_paths_there_are(self):
        url = self.served_model()

        for wrong in (url, url + "/predict"):
            with self.subTest(wrong), self.assertRaises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(wrong)
            self.assertEqual(error.exception.code, 404)
            said = json.load(error.exception)["error"]
            self.assertIn("there is no GET /" + wrong.split("/", 3)[3], said)
            self.assertIn("POST /run runs it", said)

    def test_run_model_answers_while_others_never_end_what_they_say(self):
        url = self.served_model()
        host, port = url.split("/")[2].split(":")
        body = b'{"inputs": {"input": [0, 1]}}'
        over = threading.Event()

        def whisper(connections):
            while not over.wait(0.5):  # more often than the server gives up on one
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")

        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(40)]
            thread = threading.Thread(target=whisper, args=[connections])
            thread.start()
            stack.callback(thread.join)
            stack.callback(over.set)
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as said:
                self.assertIn("outputs", json.load(said))

    def test_run_model_keeps_a_connection_for_all_that_a_client_asks(self):
        address = self.served_model().split("/")[2]
        connection = http.client.HTTPConnection(address, timeout=60)
        self.addCleanup(connection.close)
        connection.connect()
        first = connection.sock.getsockname()

        for _ in range(100):
            connection.request("POST", "/run", b'{"inputs": {"input": [0, 1]}}')
            self.assertIn(b"outputs", connection.getresponse().read())
            self.assertEqual(connection.sock and connection.sock.getsockname(), first)

    def test_run_model_reads_large_requests_one_after_the_other(self):
        url = self.served_model()
        body = b'{"inputs": {"input": [' + b"1," * 17_000_000 + b'"x"]}}'  # refused when all of it is read

        def ask():
            with self.assertRaises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(url, body), timeout=300)
            self.assertEqual(error.exception.code, 400)

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) >> 10
        self.assertLess(peak, 2_000)  # MiB; 900 for one

    def test_run_model_takes_large_requests_but_makes_nothing_of_brackets_alone(self):
        url = self.served_model()

        def refused(body, kind):
            with self.assertRaises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": kind}))
            return error.exception.code, error.exception.read().decode()

        form = "application/x-www-form-urlencoded"  # what `curl -d` says of everything
        large = b" " * 100_000 + b'{"inputs": {"input": [0, 1]}}'
        with urllib.request.urlopen(urllib.request.Request(url, large, {"Content-Type": form})) as answer:
            self.assertIn("outputs", json.load(answer))
        for body, kind, status, words in ((b"[" * 1_000_000, form, 400, "at most 20 deep"),
                                          (b"[" * 1_000_000, "application/json", 400, "at most 20 deep"),
                                          (b"--a\r\n", "multipart/form-data; boundary=a", 400, ""),
                                          (b" " * ((64 << 20) + 1), "application/json", 413, "")):
            code, said = refused(body, kind)
            self.assertEqual(code, status, said)
            self.assertIn(words, said)

    def test_bench_lists_its_workloads(self):
        done = muster("bench", "--list")

        self.assertEqual(done.returncode, 0)
        for name in ("mlp_local", "cnn_local", "trace"):
            self.assertIn(name + "\n", done.stdout)

    def test_bench_refuses_a_workload_that_it_does_not_know(self):
        done = muster("bench", "mlp")

        self.assertEqual(done.returncode, 2)
        self.assertIn('"mlp" is none of mlp_local', done.stderr)

    def test_bench_measures_a_part_and_prints_json(self):
        done = muster("bench", "trace", "--part", "per_op", "--repeats", "1")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'^\{"peer":"muster","workload":"trace","metric":"per_op","value":[^,]+,"unit":"us"\}\n')

    def test_bench_simulates_a_cluster_of_which_a_part_is_cut_off(self):
        curves = self.folder / "curves"
        with unittest.mock.patch.dict(os.environ, MUSTER_CURVES=str(curves)):
            done = muster("bench", "simulate", "--workers", 4, "--ps", 2, "--processes", 2, "--seconds", 1, "--delay", 1,
                          "--distribution", "lognormal", "--stragglers", 0.25, "--cut", 0.5, "--cut-share", 0.5)

        self.assertEqual(done.returncode, 0, done.stderr)
        figures = {line["metric"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}
        size = "_4workers_2ps"
        self.assertGreater(figures["closure_rate" + size], 0)
        self.assertLess(figures["time_to_heal" + size], 60)
        plot = self.folder / "simulate.svg"
        self.assertEqual(muster("plot", curves, "--svg", plot).returncode, 0)
        self.assertIn("closures a second", plot.read_text())

    def test_bench_refuses_a_distribution_that_it_does_not_know(self):
        done = muster("bench", "simulate", "--distribution", "fair")

        self.assertEqual(done.returncode, 2)
        self.assertIn("lognormal", done.stderr)

    def test_a_call_that_is_not_understood_is_answered_with_exit_code_2(self):
        for arguments in ([], ["fly"], ["dump"], ["dump", "a", "--upside-down"], ["bench"], ["bench", "trace", "--repeats", "0"]):
            with self.subTest(arguments):
                done = muster(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn("--help", done.stderr)

    def test_help_is_no_error(self):
        done = muster("dump", "--help")

        self.assertEqual(done.returncode, 0)
        self.assertIn("--placed", done.stdout)


class Plot(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, run, tag, values, more=b""):
        path = self.folder / run / "events.out.tfevents.1.host"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as out:
            out.write(b"".join(scalar_event(tag, step, value) for step, value in enumerate(values)) + more)
        return path

    def test_draws_a_chart_for_each_tag_with_a_curve_for_each_run(self):
        self.write("train", "loss", [2.0, 1.0, 0.5])
        self.write("validation", "loss", [2.0, 1.5, 1.25])
        self.write("train", "accuracy", [0.1, 0.8, 0.9])

        done = muster("plot", self.folder)

        self.assertEqual((done.returncode, done.stderr), (0, ""))
        accuracy, loss = done.stdout.split("\n\n")
        self.assertTrue(accuracy.startswith("accuracy\n"), accuracy)
        self.assertIn("train 0.9", accuracy)
        self.assertNotIn("validation", accuracy)
        self.assertLess(loss.index("validation 1.25"), loss.index("train 0.5"), "the end that is higher stands above")
        self.assertRegex(loss, "[\u2801-\u28ff]")
        self.assertNotIn("\x1b", done.stdout, "colours are for terminals")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_a_rising_curve_rises(self):
        self.write("run", "value", range(50))

        picture = [line.split("│")[-1].split("┤")[-1] for line in muster("plot", self.folder).stdout.splitlines()[1:13]]

        begins = [re.search("[\u2801-\u28ff]", line).start() for line in picture]
        self.assertEqual(begins, sorted(begins, reverse=True))
        self.assertEqual(begins[-1], 0)

    def test_has_colours_and_the_width_of_the_terminal(self):
        self.write("train", "loss", [2.0, 1.0, 0.5])
        ours, theirs = pty.openpty()
        subprocess.run(["stty", "cols", "57"], stdin=theirs, check=True)

        done = subprocess.run([MUSTER, "plot", str(self.folder)], stdout=theirs, check=False,
                              env={name: value for name, value in os.environ.items() if name != "NO_COLOR"})

        os.close(theirs)
        text = b""
        try:
            while some := os.read(ours, 65536):
                text += some
        except OSError:  # how a terminal says that nobody writes any more
            pass
        os.close(ours)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"\x1b[38;5;", text)
        widths = [len(line) for line in re.sub("\x1b[^m]*m", "", text.decode()).splitlines()]
        self.assertTrue(50 <= max(widths) <= 57, widths)

    def test_writes_a_picture(self):
        self.write("a<b", "loss", [2.0, float("nan"), 1.0, 0.5])
        self.write("c", "loss", [1.0])
        picture = self.folder / "loss.svg"

        done = muster("plot", self.folder, "--svg", picture)

        self.assertEqual((done.returncode, done.stdout), (0, f"{picture}\n"), done.stderr)
        root = xml.etree.ElementTree.parse(picture).getroot()
        words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("a<b", words)
        self.assertIn("loss", words)
        lines = [line.get("points").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
        self.assertEqual([len(line) for line in lines], [1, 2, 1], "a value that is no number breaks the line")

    def test_draws_the_point_of_a_training_of_one_epoch_with_its_value(self):
        self.write("train", "loss", [0.2345])
        self.write("validation", "loss", [0.5432])
        picture = self.folder / "loss.svg"

        done = muster("plot", self.folder)

        self.assertEqual((done.returncode, done.stderr), (0, ""))
        points = [line for line in done.stdout.splitlines() if "●" in line]
        self.assertEqual([line.count("●") for line in points], [1, 1], done.stdout)
        self.assertTrue(points[0].endswith("validation 0.5432"), "the higher one stands above")
        self.assertTrue(points[1].endswith("train 0.2345"), done.stdout)
        self.assertEqual(done.stdout.splitlines()[14].split(), ["0"], "there is no step beside the only one")

        self.assertEqual(muster("plot", self.folder, "--svg", picture).returncode, 0)
        root = xml.etree.ElementTree.parse(picture).getroot()
        words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("0.2345", words)
        self.assertIn("0.5432", words)
        self.assertEqual(len(list(root.iter("{http://www.w3.org/2000/svg}circle"))), 2)

    def test_draws_the_tags_that_were_asked_for(self):
        for tag in ("loss", "accuracy", "rate"):
            self.write("train", tag, [1.0, 2.0])

        done = muster("plot", self.folder, "--tags", "rate,accuracy")

        self.assertEqual([line for line in done.stdout.splitlines() if line.isalpha()], ["rate", "accuracy"])
        done = muster("plot", self.folder, "--tags", "rate,los")
        self.assertEqual(done.returncode, 1)
        self.assertIn('tag "los": there is none in', done.stderr)
        self.assertIn("only accuracy, loss, rate", done.stderr)

    def test_an_event_that_is_being_written_is_no_error(self):
        self.write("train", "loss", [2.0, 1.0], more=scalar_event("loss", 2, 0.5)[:-3])

        done = muster("plot", self.folder)

        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("train 1\n", done.stdout)

    def test_says_what_is_damaged_and_draws_the_rest(self):
        damaged = bytearray(scalar_event("loss", 2, 0.5))
        damaged[-6] ^= 1
        self.write("train", "loss", [2.0, 1.0], more=bytes(damaged) + scalar_event("loss", 3, 0.25))

        done = muster("plot", self.folder)

        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r'^muster: file "[^"]*tfevents[^"]*": record 2: ')
        self.assertIn("train 0.25\n", done.stdout)

    def test_prints_no_control_characters_of_names(self):
        self.write("train\x1b[2J", "loss\x1b]0;title\x07 \u009b31m é", [2.0, 1.0])

        done = muster("plot", self.folder)

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("loss?]0;title? ?31m é\n", done.stdout)
        self.assertIn("train?[2J 1\n", done.stdout)

    def test_says_what_is_missing(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for arguments, words in (([self.folder / "nowhere"], "nowhere\": there is none"),
                                 ([empty], "there are no event files"),
                                 ([self.write("one", "loss", [1.0])], "is a file, expected the directory that it is in"),
                                 ([self.write("nan", "loss", [float("nan")]).parent], "none of its scalars is a finite number"),
                                 ([self.write("train", "loss", [1.0]).parent, "--svg", "/nowhere/a.svg"], "cannot be written")):
            with self.subTest(words):
                done = muster("plot", *arguments)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
