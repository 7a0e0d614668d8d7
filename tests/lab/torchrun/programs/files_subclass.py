"""A writer of the script's own that writes its last words when it is closed or destroyed."""

import io
import os


class Footer(io.FileIO):
    def close(self):
        if not self.closed:
            self.write(b"footer\n")
        super().close()


class Logger:
    def __init__(self, path):
        self.file = open(path, "w")

    def __del__(self):
        self.file.write("closed by __del__\n")
        self.file.close()


where = f"{os.environ['OUT']}/rank-{os.environ['RANK']}"
footer = Footer(f"{where}.raw", "w")
footer.write(b"body\n")
buffered = io.BufferedWriter(Footer(f"{where}.buffered", "w"))
buffered.write(b"body\n")
logger = Logger(f"{where}.log")
