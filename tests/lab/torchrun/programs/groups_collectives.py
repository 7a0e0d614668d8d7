"""One of each collective of gloo."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine = torch.arange(2.0) + rank
for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
    value = mine.clone()
    dist.all_reduce(value, operation)
    print(value.tolist())
parts = [torch.zeros(2) for _ in range(2)]
dist.all_gather(parts, mine)
print([part.tolist() for part in parts])
value = mine.clone()
dist.broadcast(value, 1)
print(value.tolist())
received = torch.zeros(2)
dist.scatter(received, parts if rank == 0 else None, 0)
print(received.tolist())
if rank == 0:
    dist.send(mine, 1)
else:
    dist.recv(received, 0)
    print(received.tolist())
work = dist.all_reduce(mine, async_op=True)
work.wait()
print(mine.tolist())
dist.barrier()
dist.destroy_process_group()
