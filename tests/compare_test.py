#!/usr/bin/env python3
"""Tests of bench/compare, with scripts in place of Muster and its peers."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).resolve().parent.parent / "bench" / "compare"


def figure(peer, metric, value, workload="mlp_local", unit="samples/s"):
    return json.dumps({"peer": peer, "workload": workload, "metric": metric, "value": value, "unit": unit})


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.peers = self.folder / "peers"
        (self.peers / "tensorflow").mkdir(parents=True)
        (self.folder / "tensorflow.py").write_text("")  # what an import finds

    def script(self, path, lines, stderr="", code=0):
        """A program that counts its calls and prints the lines of that call."""
        path.write_text(f"""#!{sys.executable}
import pathlib, sys
calls = pathlib.Path({str(path)!r} + ".calls")
calls.write_text((calls.read_text() if calls.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
print({lines!r}[(len(calls.read_text().splitlines()) - 1) % {len(lines)}])
sys.stderr.write({stderr!r})
sys.exit({code})
""")
        path.chmod(0o755)
        return path

    def compare(self, *arguments):
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, str(COMPARE), "--muster", str(self.folder / "muster"),
                               "--python", f"tensorflow={sys.executable}", "--workloads", "mlp_local", *arguments],
                              capture_output=True, text=True, env=environment, check=False)

    def test_shows_the_best_of_all_rounds_with_their_ratio(self):
        self.script(self.folder / "muster", [figure("muster", "1threads_1steps_per_call", v) for v in (100, 300, 200)])
        self.script(self.peers / "tensorflow" / "local.py",
                    [figure("tensorflow 2.21", "1threads_1steps_per_call", v) for v in (150, 120, 140)])

        done = self.compare(str(self.peers), "--rounds", "2")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"mlp_local +1threads_1steps_per_call +samples/s +300 +tensorflow 2\.21 +150 +2\.00")

    def test_lets_muster_and_the_peers_take_turns(self):
        self.script(self.folder / "muster", [figure("muster", "1threads_1steps_per_call", 1)])
        self.script(self.peers / "tensorflow" / "local.py", [figure("tensorflow", "1threads_1steps_per_call", 1)])

        done = self.compare(str(self.peers), "--rounds", "2")

        turns = [line.split(": ")[1:] for line in done.stderr.splitlines() if line.startswith("round")]
        self.assertEqual(turns, 2 * [["mlp_local 2threads", "muster"], ["mlp_local 2threads", "tensorflow"],
                                     ["mlp_local 1threads", "muster"], ["mlp_local 1threads", "tensorflow"]])

    def test_holds_every_step_against_eager_libtorch(self):
        self.script(self.folder / "muster", ["\n".join([figure("muster", "2threads_10steps_per_call", 30),
                                                        figure("libtorch", "2threads_eager", 20),
                                                        figure("libtorch", "1threads_eager", 10)])])

        done = self.compare("--rounds", "1")

        self.assertRegex(done.stdout, r"2threads_10steps_per_call .* 30 +libtorch eager +20 +1\.50")
        self.assertNotIn(" 10 ", done.stdout)

    def test_takes_the_smaller_time_for_the_better_one(self):
        ours = [figure("muster", "first_call", value, unit="ms") for value in (4, 2)]
        theirs = [figure("tensorflow", "first_call", value, unit="ms") for value in (9, 3)]
        self.script(self.folder / "muster", ours)
        self.script(self.peers / "tensorflow" / "local.py", theirs)

        done = self.compare(str(self.peers), "--rounds", "1")

        self.assertRegex(done.stdout, r"first_call +ms +2 +tensorflow +3 +1\.50")

    def test_prefers_a_figure_from_a_quiet_machine_and_marks_the_others(self):
        name = "1threads_1steps_per_call"
        self.script(self.folder / "muster", [figure("muster", name, 100)], stderr=f"CONTENDED: mlp_local {name}: other\n")

        done = self.compare("--rounds", "1")

        self.assertIn("100*", done.stdout)
        self.assertIn("do not trust it", done.stdout)

    def test_writes_the_figures_as_json(self):
        self.script(self.folder / "muster", [figure("muster", "1threads_1steps_per_call", 7)])

        self.compare("--rounds", "1", "--json", str(self.folder / "figures.json"))

        self.assertEqual(json.loads((self.folder / "figures.json").read_text()),
                         [{"peer": "muster", "workload": "mlp_local", "metric": "1threads_1steps_per_call", "value": 7,
                           "unit": "samples/s", "contended": False}])

    def test_says_why_a_peer_cannot_run_and_goes_on_without_it(self):
        self.script(self.folder / "muster", [figure("muster", "1threads_1steps_per_call", 7)])
        (self.folder / "tensorflow.py").write_text("raise ImportError")

        done = self.compare(str(self.peers), "--rounds", "1")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tensorflow: left out:", done.stderr)
        self.assertIn("cannot import tensorflow", done.stderr)
        self.assertIn("1threads_1steps_per_call", done.stdout)

    def test_runs_a_peer_through_its_shell_script_with_each_setting(self):
        (self.peers / "tensorflow").rename(self.peers / "paddle")
        (self.folder / "paddle.py").write_text("")
        (self.peers / "paddle" / "run.sh").write_text('exec "$1" train.py\n')
        (self.peers / "paddle" / "train.py").write_text(f"""
import os
shards = os.environ.get("SHARDS", "1000")
print({figure("paddle 3.0.0", "async_2workers_2ps_Nshards", 10, "ctr_embedding")!r}.replace("N", shards))
""")
        self.script(self.folder / "muster", [figure("muster", "async_2workers_2ps", 20, "ctr_embedding")])

        done = self.compare(str(self.peers), "--rounds", "1", "--workloads", "ctr_embedding",
                            "--python", "paddle=" + os.path.relpath(sys.executable))

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r" 20 +paddle 3\.0\.0 1000shards +10 +2\.00")
        self.assertRegex(done.stdout, r"paddle 3\.0\.0 16shards +10 +2\.00")

    def test_fails_when_a_program_fails(self):
        self.script(self.folder / "muster", [figure("muster", "1threads_1steps_per_call", 7)], stderr="no memory\n", code=3)

        done = self.compare("--rounds", "1")

        self.assertEqual(done.returncode, 1)
        self.assertIn("no memory", done.stderr)
        self.assertIn("FAILED", done.stderr)

    def test_uses_colour_only_on_a_terminal(self):
        self.script(self.folder / "muster", ["\n".join([figure("muster", "2threads_1steps_per_call", 30),
                                                        figure("libtorch", "2threads_eager", 20)])])

        self.assertNotIn("\033", self.compare("--rounds", "1").stdout)

    def test_refuses_a_workload_that_it_does_not_know(self):
        done = self.compare("--workloads", "mlp")

        self.assertEqual(done.returncode, 2)
        self.assertIn('"mlp" is none of mlp_local', done.stderr)


if __name__ == "__main__":
    unittest.main()
