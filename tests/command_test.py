#!/usr/bin/env python3
"""Tests of the muster command: command_test.py MUSTER CONTROL_FLOW, the latter being the example that writes a program."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

MUSTER, CONTROL_FLOW = sys.argv[1:3]


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
        self.assertIn('there is no command "nosuch", only dump, bench, certs, run, server, status', done.stderr)

    def test_server_ends_its_help_with_an_example(self):
        done = muster("server", "--help")

        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"Example[^\n]*:\n(  muster server --cluster .* --task_index 0\n)+$")

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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
