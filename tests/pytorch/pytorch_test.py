#!/usr/bin/env python3
"""Weights, exported models and optimizers beside PyTorch and safetensors: pytorch_test.py WITH_PYTORCH MUSTER FINE_TUNE. Needs both
packages, so it is run by `make check-pytorch`, not by `make test`."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

import write_net

PROGRAM, MUSTER, FINE_TUNE = sys.argv[1:4]
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Net(nn.Module):
    """What with_pytorch has, under the same names."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(36, 5)

    def forward(self, x):
        return self.head(torch.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Parameter(torch.randn(6, 3))
        self.decode = self.encode

    def forward(self, x):
        return x @ self.encode @ self.decode.T


class WithPyTorch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="muster-pytorch-")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def run_program(self, *words, program=PROGRAM):
        return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)

    def expect_success(self, *words, program=PROGRAM):
        done = self.run_program(*words, program=program)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def expect_same_forward(self, kind, net, weights, x, *more):
        np.save(self.folder / "x.npy", x.numpy())
        self.expect_success(kind, weights, self.folder / "x.npy", self.folder / "y.npy", *more)
        with torch.no_grad():
            np.testing.assert_allclose(np.load(self.folder / "y.npy"), net(x).numpy(), rtol=1e-4, atol=1e-5)


class ReadByMuster(WithPyTorch):
    def setUp(self):
        super().setUp()
        torch.manual_seed(2)
        self.net = Net()
        self.net(torch.randn(16, 1, 8, 8))  # changes the statistics
        self.net.eval()
        self.weights = self.folder / "weights.safetensors"

    def test_a_state_dict_gives_the_same_net(self):
        safetensors.torch.save_file(self.net.state_dict(), self.weights)

        self.expect_same_forward("forward", self.net, self.weights, torch.randn(3, 1, 8, 8))

    def test_other_element_types_are_converted(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            with self.subTest(dtype):
                net = Net()
                net.load_state_dict(self.net.state_dict())
                net.to(dtype).eval()
                safetensors.torch.save_file(net.state_dict(), self.weights)

                self.expect_same_forward("forward", net.float(), self.weights, torch.randn(3, 1, 8, 8))

    def test_prefixes_of_wrappers_are_taken_away(self):
        safetensors.torch.save_file(nn.DataParallel(self.net).state_dict(), self.weights)

        self.expect_same_forward("forward", self.net, self.weights, torch.randn(3, 1, 8, 8), "module.")

    def test_tensors_that_are_shared_are_in_the_file_once(self):
        net = Tied()
        safetensors.torch.save_model(net, self.weights)

        self.expect_same_forward("tied", net, self.weights, torch.randn(4, 6))

    def test_what_does_not_fit_is_named(self):
        state = self.net.state_dict()
        state["tail.weight"] = state.pop("head.weight")
        state["head.bias"] = torch.zeros(6)
        safetensors.torch.save_file(state, self.weights)

        done = self.run_program("forward", self.weights, self.folder / "x.npy", self.folder / "y.npy")

        self.assertEqual(done.returncode, 1)
        for words in (str(self.weights), 'it has no "head.weight"', 'the module has no "tail.weight"',
                      '"head.bias" is float32[6], expected float32[5]'):
            self.assertIn(words, done.stderr)

    def test_what_torch_save_writes_is_refused(self):
        torch.save(self.net.state_dict(), self.weights)

        done = self.run_program("forward", self.weights, self.folder / "x.npy", self.folder / "y.npy")

        self.assertEqual(done.returncode, 1)
        self.assertIn("DATA_LOSS", done.stderr)


class ReadByTheUnitTest(unittest.TestCase):
    def test_is_what_is_written_today(self):
        state = safetensors.torch.load_file(ROOT / "muster" / "fit" / "pytorch" / "net.safetensors")

        self.assertEqual(set(state), set(write_net.net().state_dict()))
        for name, tensor in write_net.net().state_dict().items():
            self.assertEqual(state[name].dtype, tensor.dtype, name)
            torch.testing.assert_close(state[name], tensor)


class FineTuned(WithPyTorch):
    """What the net of examples/fine_tune is in Python."""

    def setUp(self):
        super().setUp()
        x, y = self.folder / "x.npy", self.folder / "y.npy"
        self.expect_success("digits", x, y)
        torch.manual_seed(1)
        self.net = nn.Module()
        self.net.body = nn.Sequential(nn.Linear(784, 64), nn.ReLU())
        self.net.head = nn.Linear(64, 10)
        digits = torch.utils.data.TensorDataset(torch.from_numpy(np.load(x)), torch.from_numpy(np.load(y)))
        adam = torch.optim.Adam(self.net.parameters(), lr=0.001)
        for _ in range(3):
            for pictures, labels in torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True):
                adam.zero_grad()
                nn.functional.cross_entropy(self.net.head(self.net.body(pictures)), labels).backward()
                adam.step()

    def test_a_net_that_python_has_trained_gets_another_head(self):
        weights, odd = self.folder / "digits.safetensors", self.folder / "odd.safetensors"
        safetensors.torch.save_file(self.net.state_dict(), weights)

        said = self.expect_success(odd, weights, program=FINE_TUNE)

        self.assertIn("tells odd from even in ", said)
        state = safetensors.torch.load_file(odd)
        self.assertEqual(state["head.weight"].shape, (2, 64))
        for name, tensor in self.net.body.state_dict().items():
            self.assertTrue(torch.equal(state[f"body.{name}"], tensor), f"body.{name} was frozen")


class WrittenByMuster(WithPyTorch):
    def setUp(self):
        super().setUp()
        self.expect_success("write", self.folder)
        self.x = torch.from_numpy(np.load(self.folder / "x.npy"))
        self.y = np.load(self.folder / "y.npy")

    def expect_weights(self, name, tolerance):
        net = Net().eval()
        net.load_state_dict(safetensors.torch.load_file(self.folder / name))
        with torch.no_grad():
            np.testing.assert_allclose(net(self.x).numpy(), self.y, rtol=tolerance, atol=tolerance)

    def test_weights_are_a_state_dict(self):
        self.expect_weights("net.safetensors", 1e-5)
        with safetensors.safe_open(self.folder / "net.safetensors", "pt") as file:
            metadata = file.metadata()
        self.assertEqual({key: text for key, text in metadata.items() if not key.startswith("muster.crc32c.")},
                         {"epoch": "7", "format": "pt"})

    def test_values_that_are_changed_in_python_go_back_without_the_sums_of_those_before(self):
        with safetensors.safe_open(self.folder / "net.safetensors", "pt") as file:
            metadata = file.metadata()
        net = Net().eval()
        changed = self.folder / "changed.safetensors"
        safetensors.torch.save_file(net.state_dict(), changed, metadata=metadata)

        done = self.run_program("forward", changed, self.folder / "x.npy", self.folder / "z.npy")
        self.assertEqual(done.returncode, 1)
        self.assertIn('leave out what begins with "muster.crc32c."', done.stderr)

        kept = {key: text for key, text in metadata.items() if not key.startswith("muster.crc32c.")}
        safetensors.torch.save_file(net.state_dict(), changed, metadata=kept)
        self.expect_same_forward("forward", net, changed, self.x)

    def test_weights_of_half_the_size_are_a_state_dict(self):
        state = safetensors.torch.load_file(self.folder / "half.safetensors")
        self.assertEqual(state["head.weight"].dtype, torch.bfloat16)
        self.assertEqual(state["norm.num_batches_tracked"].dtype, torch.int64)

        self.expect_weights("half.safetensors", 5e-2)

    def test_an_exported_model_gives_what_pytorch_gives_with_its_weights(self):
        state = safetensors.torch.load_file(self.folder / "model.safetensors")
        net = Net().eval()
        self.assertEqual(set(net.state_dict()) - set(state), {"norm.num_batches_tracked"})
        net.load_state_dict(state, strict=False)
        for size in (1, 2, 9):
            x = torch.randn(size, 1, 8, 8)
            np.save(self.folder / "a.npy", x.numpy().astype(np.float64))

            self.expect_success("run-model", self.folder / "model.safetensors", "--cast", "--input",
                                self.folder / "a.npy", "--output", self.folder / "b.npy", program=MUSTER)

            with torch.no_grad():
                np.testing.assert_allclose(np.load(self.folder / "b.npy"), net(x).numpy(), rtol=1e-4, atol=1e-5)

    def test_an_exported_model_is_served(self):
        server = subprocess.Popen([MUSTER, "run-model", self.folder / "model.safetensors", "--serve", "0"],
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        url = server.stdout.readline().split()[-1]

        def post(body):
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
                return json.load(answer)

        answer = post({"inputs": {"input": self.x.tolist()}})
        np.testing.assert_allclose(np.array(answer["outputs"]["output"]), self.y, rtol=1e-4, atol=1e-5)
        with urllib.request.urlopen(url.removesuffix("run")) as signature:
            self.assertEqual(json.load(signature)["inputs"],
                             [{"name": "input", "dtype": "float32", "shape": [-1, 1, 8, 8]}])
        for wrong, words in (({"inputs": {"input": [[1, 2], [3]]}}, 'input "input": lists of 2 and of 1'),
                             ({"inputs": {"input": [[1, 2]]}}, 'input "input" is float32[1, 2], expected'),
                             ({"inputs": {"other": [[1, 2]]}}, 'input "input" is missing'), ([], "expected {")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                post(wrong)
            self.assertEqual(refused.exception.code, 400)
            self.assertIn(words, json.load(refused.exception)["error"])
            refused.exception.close()


class StepsOfMuster(WithPyTorch):
    """Each rule with the options of both sides: those of torch.optim, and what with_pytorch calls them."""

    RULES = [
        ("SGD", {"lr": 0.1}, {"learning_rate": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, {"learning_rate": 0.1, "momentum": 0.9}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": 1}),
        ("Adagrad", {}, {}),
        ("Adagrad", {"lr": 0.3, "initial_accumulator_value": 0.5, "eps": 1e-3},
         {"learning_rate": 0.3, "initial_accumulator": 0.5, "epsilon": 1e-3}),
        ("Adam", {}, {}),
        ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3},
         {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}),
        ("Adam", {"lr": 0.1, "amsgrad": True}, {"learning_rate": 0.1, "amsgrad": 1}),
        ("AdamW", {}, {}),
        ("AdamW", {"lr": 0.1, "amsgrad": True}, {"learning_rate": 0.1, "amsgrad": 1}),
        ("RMSprop", {}, {}),
        ("RMSprop", {"lr": 0.02, "alpha": 0.9, "momentum": 0.5, "centered": True},
         {"learning_rate": 0.02, "alpha": 0.9, "momentum": 0.5, "centered": 1}),
        ("Adadelta", {}, {}),
        ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3}, {"learning_rate": 0.5, "rho": 0.8, "epsilon": 1e-3}),
        ("Adamax", {}, {}),
        ("Adamax", {"lr": 0.1, "betas": (0.8, 0.9)}, {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9}),
        ("NAdam", {}, {}),
        ("NAdam", {"lr": 0.1, "momentum_decay": 0.1}, {"learning_rate": 0.1, "momentum_decay": 0.1}),
    ]

    def setUp(self):
        super().setUp()
        torch.manual_seed(4)
        self.start = torch.randn(3, 2, dtype=torch.float64)
        self.gradients = torch.randn(8, 3, 2, dtype=torch.float64)
        np.save(self.folder / "start.npy", self.start.numpy())
        np.save(self.folder / "gradients.npy", self.gradients.numpy())

    def of_muster(self, rule, options):
        self.expect_success("steps", rule, *(self.folder / name for name in ("start.npy", "gradients.npy", "values.npy")),
                            *(f"{name}={number}" for name, number in options.items()))
        return np.load(self.folder / "values.npy")

    def of_pytorch(self, rule, options, after_each=lambda weight: None):
        weight = nn.Parameter(self.start.clone())
        optimizer = getattr(torch.optim, rule)([weight], **options)
        values = []
        for gradient in self.gradients:
            weight.grad = gradient.clone()
            optimizer.step()
            after_each(weight)
            values.append(weight.detach().clone())
        return torch.stack(values).numpy()

    def test_all_rules_take_the_steps_of_torch_optim(self):
        for rule, theirs, ours in self.RULES:
            tolerance = 1e-7 if rule == "NAdam" else 1e-11  # PyTorch keeps the product of its momenta in float32
            for decay in ({}, {"weight_decay": 0}, {"weight_decay": 0.2}):
                with self.subTest(rule, **theirs, **decay):
                    np.testing.assert_allclose(self.of_muster(rule, {**ours, **decay}),
                                               self.of_pytorch(rule, {**theirs, **decay}), rtol=tolerance, atol=1e-12)

    def test_averages_are_those_of_an_averaged_model(self):
        weight = nn.ParameterList([nn.Parameter(self.start.clone())])
        averaged = torch.optim.swa_utils.AveragedModel(weight, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

        def add(value):
            with torch.no_grad():
                weight[0].copy_(value)
            averaged.update_parameters(weight)

        values = self.of_pytorch("Adam", {"lr": 0.1}, add)

        found = self.of_muster("Adam", {"learning_rate": 0.1, "average": 0.9})
        np.testing.assert_allclose(found[:-1], values, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(found[-1], averaged.module[0].detach().numpy(), rtol=1e-11, atol=1e-12)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
