"""One thread at the start: the main one, which is the process."""

import os
import threading

print(
    threading.main_thread() is threading.current_thread(),
    threading.active_count(),
    threading.get_native_id() == os.getpid(),
)
print(
    threading.main_thread().name,
    threading.main_thread().ident == threading.get_ident(),
    len(os.listdir("/proc/self/task")),
)
print([thread.name for thread in threading.enumerate()], threading.stack_size())
