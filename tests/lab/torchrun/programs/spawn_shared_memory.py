"""multiprocessing.shared_memory with its resource tracker."""

import os
from multiprocessing import shared_memory

memory = shared_memory.SharedMemory(create=True, size=100)
memory.buf[:3] = b"abc"
other = shared_memory.SharedMemory(memory.name)
print(bytes(other.buf[:3]))
other.close()
memory.close()
memory.unlink()
print(os.path.exists(f"/dev/shm/{memory.name}"))
