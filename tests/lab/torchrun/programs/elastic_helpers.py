"""What torch.distributed.elastic and its relatives say inside a rank."""

import os

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.distributed.elastic.utils import get_env_variable_or_raise, get_socket_with_port

print(dist.is_torchelastic_launched(), dist.is_available())
print(get_env_variable_or_raise("LOCAL_RANK") == os.environ["RANK"])
with get_socket_with_port() as found:
    print(found.getsockname()[1] > 0)
print(type(get_error_handler()).__name__, get_error_handler()._get_error_file_path() is not None)
print(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.distributed_c10d._get_default_timeout("gloo"))
