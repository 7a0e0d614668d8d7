# exit: 1
# ranks: 1
# stderr: not compared: @record prints the time
"""@record writes the exception where the launcher says, for its report."""

import json
import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise RuntimeError("recorded")


try:
    main()
finally:
    error = json.loads(Path(os.environ["TORCHELASTIC_ERROR_FILE"]).read_text())
    print(sorted(error), error["message"]["message"], sorted(error["message"]["extraInfo"]))
