"""torch.distributed's own view of ranks on this host, without the environment."""

import torch.distributed as dist

dist.init_process_group("gloo")
print(dist.get_node_local_rank(), dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(None))
print(dist.group.WORLD is not None, dist.GroupMember.WORLD.name(), dist.get_pg_count())
dist.barrier()
dist.destroy_process_group()
