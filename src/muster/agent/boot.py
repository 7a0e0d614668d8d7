"""How this package reaches another interpreter: a short command line, then everything else over a file descriptor."""

from __future__ import annotations

import json
import marshal
import sys
import zlib
from _frozen_importlib import ModuleSpec  # what importlib.machinery re-exports, without its import cost
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

TRAVEL_NAME = "_muster_agent"

COMMAND = 'import sys;exec(open(0,"rb",0,closefd=False).readline())'
"""The code given to `python -c`. No single quote, backslash or newline: it crosses sh, csh, zsh and fish unharmed."""

# Read by COMMAND as one line, byte by byte, so it stays short. {fields} are filled in by `payload`.
_FIRST_STAGE = """\
import os,sys,zlib,marshal
if sys.version_info<(3,9):sys.exit("muster: Python 3.9 or newer is needed, this one is %d.%d"%sys.version_info[:2])
def read(n):
 b=bytearray()
 while len(b)<n:
  c=os.read(0,n-len(b))
  if not c:sys.exit("muster: the connection closed before the agent had arrived")
  b+=c
 return bytes(b)
parcel=[read(n) for n in {sizes}]
sources=marshal.loads(zlib.decompress(parcel[1]))
space=dict(__name__="{name}.boot")
exec(compile(sources["boot"],"<muster>/boot.py","exec"),space)
space["enter"](parcel,sources)
"""


def payload(package: tuple[bytes, bytes], entry: str, config: dict[str, Any]) -> bytes:
    """All that COMMAND reads from descriptor 0 to import the package and call `main(config)` of module `entry`."""
    order = json.dumps({"entry": entry, "config": config}).encode()
    parcel = [*package, order]
    stage = _FIRST_STAGE.format(sizes=[len(part) for part in parcel], name=TRAVEL_NAME)
    return b"exec(" + ascii(stage).encode() + b")\n" + b"".join(parcel)


def pack(modules: dict[str, tuple[str, CodeType]]) -> tuple[bytes, bytes]:
    """Compress module sources, and their byte code for interpreters of this very version."""
    codes = marshal.dumps((MAGIC_NUMBER, {name: code for name, (_, code) in modules.items()}))
    # Version 2 of marshal's format is read by every Python 3.
    sources = marshal.dumps({name: source for name, (source, _) in modules.items()}, 2)
    return zlib.compress(codes, 6), zlib.compress(sources, 6)


def own_parcel() -> tuple[bytes, bytes]:
    """The package this interpreter got, to be sent on to another."""
    return sys.modules[TRAVEL_NAME].parcel


def enter(parcel: list[bytes], sources: dict[str, str]) -> NoReturn:
    """Install the importer for the package that arrived, and run the module it was sent for."""
    codes_blob, sources_blob, order_blob = parcel
    sys.meta_path.insert(0, _Importer(sources, codes_blob))
    order = json.loads(order_blob)
    from importlib import import_module

    package = import_module(TRAVEL_NAME)
    package.__dict__["parcel"] = (codes_blob, sources_blob)
    module = import_module(f"{TRAVEL_NAME}.{order['entry']}")
    sys.exit(module.main(order["config"]))


class _Importer:
    """Imports the package from memory; byte code where the interpreter's version matches, source otherwise."""

    def __init__(self, sources: dict[str, str], codes: bytes) -> None:
        self.sources = sources
        data = zlib.decompress(codes)
        self.codes: dict[str, CodeType] = {}
        # The magic number is tested before anything else is unmarshalled: byte code of another version may not load.
        if MAGIC_NUMBER in data[:64]:
            self.codes = marshal.loads(data)[1]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == TRAVEL_NAME:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if name.startswith(TRAVEL_NAME + ".") and name[len(TRAVEL_NAME) + 1 :] in self.sources:
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        short = module.__name__[len(TRAVEL_NAME) + 1 :] or "__init__"
        code = self.codes.get(short) or compile(self.sources[short], f"<muster>/{short}.py", "exec")
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str:
        return self.sources[name[len(TRAVEL_NAME) + 1 :] or "__init__"]
