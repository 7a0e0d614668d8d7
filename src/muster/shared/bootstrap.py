"""Starts the agent's package in another interpreter: a short command line, and the code over a file descriptor."""

from __future__ import annotations

import marshal
import sys
import zlib
from _frozen_importlib import ModuleSpec  # what importlib.machinery re-exports, without its import cost
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

TRAVEL_NAME = "_muster_agent"
"""The name of the package on a host."""

FOLDERS = ("agent", "agent.probes", "rank", "shared")
"""The packages of Muster that are sent; they are subpackages of TRAVEL_NAME on the host."""

COMMAND = 'import sys;exec(open(0,"rb",0,closefd=False).readline())'
"""The code for `python -c`; without single quotes, backslashes or newlines, so that sh, csh, zsh and fish keep it."""

_EVERY_PYTHON = 2
"""The version of marshal's format that every Python 3 can read."""

# COMMAND reads this as one line, byte by byte, so it is short. `payload` fills in the {fields}. `take` and `channel`
# exist already if the agent connected to its controller (dial_back.py).
_FIRST_STAGE = """\
import sys
if sys.path[:1]==[""]:del sys.path[0]
import os,zlib,marshal
if sys.version_info<(3,9):sys.exit("muster: Python 3.9 or newer is required, this is %d.%d"%sys.version_info[:2])
if "take" not in globals():channel,take=None,lambda n:os.read(0,n)
def read(n):
 b=bytearray()
 while len(b)<n:
  c=take(n-len(b))
  if not c:sys.exit("muster: the connection closed before the agent arrived")
  b+=c
 return bytes(b)
parcel=[read(n) for n in {sizes}]
import _frozen_importlib_external as x
magic,codes=marshal.loads(parcel[0])
if magic==x.MAGIC_NUMBER:code=marshal.loads(zlib.decompress(codes["shared.bootstrap"]))
else:code=compile(marshal.loads(zlib.decompress(parcel[1]))["shared.bootstrap"],"<muster>/shared/bootstrap.py","exec")
space=dict(__name__="{name}.shared.bootstrap")
exec(code,space)
space["enter"](parcel,channel)
"""


def payload(package: tuple[bytes, bytes], entry: str, config: Mapping[str, Any]) -> bytes:
    """What COMMAND reads from descriptor 0 to import the package and call `main(config)` of module `entry`."""
    parcel = [*package, marshal.dumps((entry, dict(config)), _EVERY_PYTHON)]
    stage = _FIRST_STAGE.format(sizes=[len(part) for part in parcel], name=TRAVEL_NAME)
    return b"exec(" + ascii(stage).encode() + b")\n" + b"".join(parcel)


def pack(modules: dict[str, tuple[str, CodeType]]) -> tuple[bytes, bytes]:
    """Pack module sources, and byte code for this Python version, each module separately, because a rank needs few."""
    # Level 1, because this runs at every start and takes 20 ms instead of 35, for 10 % more bytes.
    codes = {name: zlib.compress(marshal.dumps(code), 1) for name, (_, code) in modules.items()}
    sources = {name: source for name, (source, _) in modules.items()}
    return marshal.dumps((MAGIC_NUMBER, codes), _EVERY_PYTHON), zlib.compress(marshal.dumps(sources, _EVERY_PYTHON), 1)


def own_parcel() -> tuple[bytes, bytes]:
    """The package that this interpreter received, to send it to another."""
    return sys.modules[TRAVEL_NAME].parcel


def own_channel() -> ssl.SSLSocket | None:
    """The connection over which this interpreter received the package; None if it was descriptor 0."""
    return sys.modules[TRAVEL_NAME].channel


def enter(parcel: list[bytes], channel: ssl.SSLSocket | None) -> NoReturn:
    """Install an importer for the received package, and run its entry module.

    `channel` is the connection over which it was received, or None for descriptor 0.
    """
    codes, sources, order = parcel
    sys.meta_path.insert(0, _Importer(codes, sources))
    entry, config = marshal.loads(order)
    name = f"{TRAVEL_NAME}.{entry}"
    __import__(name)
    sys.modules[TRAVEL_NAME].__dict__.update(parcel=(codes, sources), channel=channel)
    sys.exit(sys.modules[name].main(config))


class _Importer:
    """Imports the package from memory: byte code if the interpreter's version matches, otherwise source."""

    def __init__(self, codes: bytes, sources: bytes) -> None:
        magic, by_name = marshal.loads(codes)
        self.codes: dict[str, bytes] = by_name if magic == MAGIC_NUMBER else {}
        self._packed = sources
        self._sources: dict[str, str] = {}

    @property
    def sources(self) -> dict[str, str]:
        """The sources of the modules, unpacked on first use, mostly for tracebacks."""
        self._sources = self._sources or marshal.loads(zlib.decompress(self._packed))
        return self._sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        root, _, short = name.partition(".")
        if root != TRAVEL_NAME or not (short in ("", *FOLDERS) or short in (self.codes or self.sources)):
            return None
        return ModuleSpec(name, self, is_package=short in ("", *FOLDERS))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        short = module.__name__[len(TRAVEL_NAME) + 1 :]
        if short in self.codes:
            exec(marshal.loads(zlib.decompress(self.codes[short])), module.__dict__)
        elif short in self.sources:
            exec(compile(self.sources[short], f"<muster>/{short.replace('.', '/')}.py", "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        return self.sources[name[len(TRAVEL_NAME) + 1 :]]
