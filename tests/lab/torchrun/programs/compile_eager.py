# row: 9
"""torch.compile with the backend that compiles nothing."""

import torch


@torch.compile(backend="eager")
def function(x):
    return torch.relu(x - 1).sum() * 2


print(function(torch.arange(4.0)).item(), function(torch.arange(5.0)).item())
model = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
model(torch.ones(1, 2)).sum().backward()
print(model.weight.grad.tolist())
