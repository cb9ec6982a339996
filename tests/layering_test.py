#!/usr/bin/env python3
"""Tests of the rules in layering.py."""
import pathlib
import unittest

import layering


def complaints(path: str, text: str) -> str:
    return "\n".join(layering.complaints_about(pathlib.Path(path), text))


class Layering(unittest.TestCase):
    def test_lets_a_folder_include_what_its_row_names(self):
        self.assertEqual(complaints("muster/runtime/executor/executor.cc", '#include "muster/graph/program.h"\n'), "")

    def test_refuses_an_include_from_below_to_above(self):
        self.assertIn("graph may include base graph",
                      complaints("muster/graph/program.cc", '#include "muster/runtime/executor/executor.h"\n'))

    def test_refuses_torch_in_base_and_graph(self):
        self.assertIn("knows nothing of torch", complaints("muster/base/log.cc", "#include <c10/core/Device.h>\n"))
        self.assertEqual(complaints("muster/runtime/executor/executor.cc", "#include <ATen/core/Tensor.h>\n"), "")

    def test_refuses_grpc_outside_rpc(self):
        self.assertIn("only rpc knows gRPC", complaints("muster/session/session.cc", "#include <grpcpp/grpcpp.h>\n"))
        self.assertEqual(complaints("muster/rpc/channel.cc", "#include <grpcpp/grpcpp.h>\n"), "")

    def test_refuses_to_measure_time_by_a_clock_that_jumps(self):
        self.assertIn("steady_clock", complaints("muster/rpc/channel.cc", "std::chrono::system_clock::now()"))
        self.assertIn("steady_clock", complaints("muster/base/timer.h", "absl::Now() + time"))
        self.assertEqual(complaints("muster/base/log.cc", "std::chrono::system_clock::now()"), "")
        self.assertEqual(complaints("muster/rpc/channel.cc", "std::chrono::steady_clock::now()"), "")

    def test_refuses_long_files(self):
        self.assertIn("limit is 200", complaints("muster/base/log.h", "\n" * 201))
        self.assertIn("limit is 600", complaints("muster/base/log.cc", "\n" * 601))

    def test_refuses_a_folder_that_is_not_in_the_table(self):
        self.assertIn("not in the table", complaints("muster/util/things.h", ""))

    def test_refuses_includes_that_are_not_named_from_the_root(self):
        self.assertIn("named from the root", complaints("muster/base/log.cc", '#include "log.h"\n'))

    def test_takes_a_test_for_one_of_its_source_or_of_a_topic_of_it(self):
        self.assertEqual(layering.stems_tested_by("tracer_layers_test.cc"), ["tracer_layers", "tracer"])
        self.assertEqual(layering.stems_tested_by("placer_test.cc"), ["placer"])

    def test_names_only_folders_that_have_a_row(self):
        for row in layering.MAY_INCLUDE.values():
            for folder in row.split():
                self.assertIn(folder, layering.MAY_INCLUDE)


if __name__ == "__main__":
    unittest.main()
