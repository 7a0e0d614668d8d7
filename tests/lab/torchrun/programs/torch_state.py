# ranks: 1
"""The state of torch after `import torch`: defaults, threads, determinism, no GPU touched."""

import torch

print(torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device())
print(torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.is_anomaly_enabled())
print(torch.cuda.is_initialized(), torch.cuda.is_available(), torch.backends.cudnn.benchmark)
print(torch.multiprocessing.get_sharing_strategy(), torch.multiprocessing.get_start_method(allow_none=True))
print(torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state().shape)
print(torch.utils.data.get_worker_info(), torch.overrides.is_tensor_like(1), torch._C._get_tracing_state())
