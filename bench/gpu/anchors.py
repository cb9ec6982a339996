"""The steps of bench/gpu_steps.cc in Python: eager, torch.compile(mode="reduce-overhead"), and the whole step as one CUDA graph.
Prints a JSON line per figure, in microseconds a step when many are under way. Usage: anchors.py [PART ...]."""
import json
import sys
import time

import torch
from torch import nn

PARTS = ["mlp_fp32", "transformer_fp32", "transformer_tf32", "cnn_fp32", "cnn_bf16"]
LEARNING_RATE = 0.01


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, dropout=0.0), 6, enable_nested_tensor=False)
        self.head = nn.Linear(512, 1000)

    def forward(self, x):
        return self.head(self.encoder(x)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.around = None
        if before != after or stride != 1:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        way = x if self.around is None else self.around(x)
        return torch.relu(self.second_norm(self.second(torch.relu(self.first_norm(self.first(x))))) + way)


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for after in (64, 128, 256, 512):
        layers += [Residual(before, after, 1 if before == after else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def subject(name):
    torch.manual_seed(1)
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        return net, torch.rand(64, 784), torch.randint(10, (64,)), 2000
    if name == "transformer":
        return Transformer(), torch.rand(64, 16, 512), torch.randint(1000, (64 * 16,)), 100
    return resnet18(), torch.rand(64, 3, 224, 224), torch.randint(1000, (64,)), 30


def step_of(name, precision):
    net, x, y, steps = subject(name)
    net, x, y = net.cuda(), x.cuda(), y.cuda()
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            output = net(x)
        loss = nn.functional.cross_entropy(output.float(), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, net, optimizer, x, y, steps


def eager(name, precision):
    step, _, _, _, _, steps = step_of(name, precision)
    return step, steps


def compiled(name, precision):
    _, net, optimizer, x, y, steps = step_of(name, precision)
    forward = torch.compile(net, mode="reduce-overhead")

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            output = forward(x)
        nn.functional.cross_entropy(output.float(), y).backward()
        optimizer.step()

    return step, steps


def graph(name, precision):
    step, net, optimizer, _, _, steps = step_of(name, precision)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(recorded):
        step()
    return recorded.replay, steps


def us_per_step(step, steps):
    for _ in range(8):
        step()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) * 1e6 / steps)
    return best


def main(parts):
    for part in parts:
        name, precision = part.rsplit("_", 1)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for kind, make in (("eager", eager), ("graph", graph), ("compile", compiled)):
            try:
                figure = us_per_step(*make(name, precision))
            except Exception as error:  # the others are still of use
                print("%s_%s: %s" % (part, kind, str(error).split("\n")[0]), file=sys.stderr)
                continue
            print(json.dumps({"workload": "gpu_steps", "metric": "%s_%s" % (part, kind), "value": figure, "unit": "us/step", "peer": "pytorch"}), flush=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:] or PARTS)
