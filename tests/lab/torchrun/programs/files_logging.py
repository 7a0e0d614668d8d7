"""Handlers of logging are flushed at the end: a file, and a memory handler in front of one."""

import logging
import logging.handlers
import os

where = f"{os.environ['OUT']}/rank-{os.environ['RANK']}"
logger = logging.getLogger("training")
logger.setLevel(logging.INFO)
logger.addHandler(logging.FileHandler(f"{where}.log"))
logger.addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler(f"{where}.memory")))
logger.info("started")
logger.warning("done")
