"""The logging module at the start: no handlers, the default level, and lines where basicConfig sends them."""

import logging
import sys

print(logging.root.handlers, logging.root.level, logging.getLogger("mine").getEffectiveLevel(), logging.raiseExceptions)
print(logging._srcfile is not None, logging.lastResort)
logging.getLogger("mine").warning("by the last resort")
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(processName)s %(message)s")
logging.info("configured")
logging.captureWarnings(True)
