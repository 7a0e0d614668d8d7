import sys

if "torch" in sys.modules:
    raise ImportError("import early before torch")
WORD = "early enough"
