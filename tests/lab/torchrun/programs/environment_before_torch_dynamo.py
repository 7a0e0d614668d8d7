# ranks: 1
# row: 12
"""TORCHDYNAMO_DISABLE, set by the script before it imports torch, decides that nothing is compiled."""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch

calls = []


def backend(graph, inputs):
    calls.append(graph)
    return graph.forward


print(torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist(), len(calls))
print(torch._dynamo.config.disable)
