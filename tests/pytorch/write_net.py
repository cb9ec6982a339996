#!/usr/bin/env python3
"""Writes the small file of PyTorch's weights that a unit test reads (muster/fit/model_from_pytorch_test.cc), and prints what that
net gives: write_net.py FILE. Needs PyTorch and safetensors; `make check-pytorch` looks whether it would still write the same."""
import sys

import safetensors.torch
import torch
from torch import nn


def net():
    """A body and a head, whose weights are made of sines; the head is in half precision."""
    net = nn.Sequential()
    net.body = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    net.head = nn.Linear(4, 3)
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.sin(torch.arange(parameter.numel()) + number).view(parameter.shape))
    net.head.to(torch.bfloat16)
    return net


def outputs():
    """Of two pictures."""
    of = net().float()
    with torch.no_grad():
        return of((torch.arange(12.0) / 12).view(2, 6))


if __name__ == "__main__":
    safetensors.torch.save_file(net().state_dict(), sys.argv[1])
    print(f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, safetensors {safetensors.__version__}")
    print(outputs().flatten().tolist())
