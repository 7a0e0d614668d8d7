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

    Packed = dict[tuple[str, ...], bytes]
    """Modules by their names; those that are loaded together are compressed together."""

TRAVEL_NAME = "_muster_agent"
"""The name of the package on a host."""

FOLDERS = ("agent", "agent.probes", "rank", "shared")
"""The packages of Muster that are sent; they are subpackages of TRAVEL_NAME on the host."""

TOGETHER = (
    "rank.kept_errors rank.process_title rank.questions shared.light_ctypes shared.light_json shared.light_signal "
    "shared.processes shared.wire",
    "rank.failure_text rank.frames rank.reporter rank.script shared.user_code",
    "rank.preloaded shared.batch_systems shared.light_collections shared.light_selectors shared.light_socket "
    "shared.line_log shared.machine shared.protocol shared.reports shared.requests shared.resume_proof "
    "shared.spawner_messages",
    "agent.agent agent.channel agent.code_sync agent.connectivity agent.controller_session agent.deadline "
    "agent.failure_evidence agent.guard agent.job_environment agent.job_exit agent.kernel_log agent.lease "
    "agent.local_ranks agent.master_port agent.prompts agent.rank_hold agent.rank_process agent.rank_reports "
    "agent.rank_sessions agent.rank_starter agent.rank_stdin agent.resume_socket agent.signal_relay agent.spawner "
    "agent.spawner_client agent.stopping agent.store_process agent.usage_reports",
)
"""Modules that start together: in agents and ranks, in ranks, and the last two in agents.

Loading them at once takes an agent 1 ms less CPU. Ranks do not get those with `agent` in their names.
"""

COMMAND = 'import sys;exec(open(0,"rb",0,closefd=False).readline())'
"""The code for `python -c`; without single quotes, backslashes or newlines, so that sh, csh, zsh and fish keep it."""

_EVERY_PYTHON = 2
"""The version of marshal's format that every Python 3 can read."""

SOURCE_REQUEST = b"\x1emuster-source\x1e\n"
"""What an interpreter writes if it cannot read the byte code, and the line before the sources that it gets then."""

_SIZE = 8
"""Number of digits of the size of the sources."""

# COMMAND reads this as one line, byte by byte, so it is short. `payload` fills in the {fields}. `channel`, `take` and
# `give` exist already if the agent dialed its controller (dial_back.py); so does `order`, which redial.py reads later.
_FIRST_STAGE = """\
import sys
if sys.path[:1]==[""]:del sys.path[0]
import gc,os,zlib,marshal
gc.disable()
if sys.version_info<(3,9):sys.exit("muster: Python 3.9 or newer is required, this is %d.%d"%sys.version_info[:2])
if "take" not in globals():channel,take,give=None,lambda n:os.read(0,n),lambda b:os.write(1,b)
def read(n):
 b=bytearray()
 while len(b)<n:
  c=take(min(n-len(b),65536))
  if not c:sys.exit("muster: the connection closed before the agent arrived")
  b+=c
 return b
package,entry=[read(n) for n in {sizes}]
magic,packed=marshal.loads(package)
import _frozen_importlib_external as x
if magic not in (b"",x.MAGIC_NUMBER):
 give({request})
 b=b""
 while not b.endswith({request}):b+=read(1)
 magic,packed=marshal.loads(read(int(read({size}))))
code,=marshal.loads(zlib.decompress(packed[("shared.bootstrap",)]))
if not magic:code=compile(code,"<muster>/shared/bootstrap.py","exec")
space=dict(__name__="{name}.shared.bootstrap")
exec(code,space)
space["enter"](magic,packed,entry,channel)
"""


def payload(package: bytes, entry: str, config: Mapping[str, Any]) -> bytes:
    """What COMMAND reads from descriptor 0 to import the package and call `main(config)` of module `entry`."""
    parcel = [package, marshal.dumps((entry, dict(config)), _EVERY_PYTHON)]
    sizes = [len(part) for part in parcel]
    stage = _FIRST_STAGE.format(sizes=sizes, name=TRAVEL_NAME, request=SOURCE_REQUEST, size=_SIZE)
    return b"exec(" + ascii(stage).encode() + b")\n" + b"".join(parcel)


def pack_codes(codes: Mapping[str, CodeType]) -> bytes:
    """Pack byte code for this Python version."""
    return _pack(MAGIC_NUMBER, codes)


def pack_sources(sources: Mapping[str, str]) -> bytes:
    """Pack sources, which every Python version can read."""
    return _pack(b"", sources)


def _pack(magic: bytes, modules: Mapping[str, CodeType | str]) -> bytes:
    together = [tuple(name for name in names.split() if name in modules) for names in TOGETHER]
    alone = [(name,) for name in modules if not any(name in names for names in together)]
    version = (marshal.version,) if magic else (_EVERY_PYTHON,)
    # Level 1, because this runs at every start and takes 15 ms instead of 30, for 5 % more bytes.
    packed: Packed = {
        names: zlib.compress(marshal.dumps(tuple(modules[name] for name in names), *version), 1)
        for names in (*together, *alone)
    }
    return marshal.dumps((magic, packed), _EVERY_PYTHON)


def source_answer(package: bytes) -> bytes:
    """The answer to SOURCE_REQUEST: packed sources."""
    return SOURCE_REQUEST + b"%0*d" % (_SIZE, len(package)) + package


def own_package(*folders: str) -> bytes:
    """The part of the package that this interpreter received, to send it to another; the whole without `folders`."""
    importer = sys.modules[TRAVEL_NAME].importer
    chosen: Packed = {
        names: modules
        for names, modules in importer.packed.items()
        if not folders or all(name.rpartition(".")[0] in folders for name in names)
    }
    return marshal.dumps((importer.magic, chosen), _EVERY_PYTHON)


def own_channel() -> ssl.SSLSocket | None:
    """The connection over which this interpreter received the package; None if it was descriptor 0."""
    return sys.modules[TRAVEL_NAME].channel


def enter(magic: bytes, packed: Packed, start: bytes, channel: ssl.SSLSocket | None) -> NoReturn:
    """Install an importer for the received modules, and run the entry module that `start` names.

    `channel` is the connection over which they were received, or None for descriptor 0.
    """
    import gc

    importer = _Importer(magic, packed)
    sys.meta_path.insert(0, importer)
    entry, config = marshal.loads(start)
    name = f"{TRAVEL_NAME}.{entry}"
    __import__(name)
    sys.modules[TRAVEL_NAME].__dict__.update(importer=importer, channel=channel)
    gc.freeze()  # what has been loaded is never garbage, and looking through it takes each process 2 ms of CPU
    gc.enable()
    sys.exit(sys.modules[name].main(config))


class _Importer:
    """Imports the package from memory: byte code of the version `magic`, or sources if that is empty."""

    def __init__(self, magic: bytes, packed: Packed) -> None:
        self.magic = magic
        self.packed = packed
        self._place = {name: names for names in packed for name in names}
        self._loaded: dict[str, Any] = {}
        """What was unpacked along with another module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        root, _, short = name.partition(".")
        if root != TRAVEL_NAME or not (short in ("", *FOLDERS) or short in self._place):
            return None
        return ModuleSpec(name, self, is_package=short in ("", *FOLDERS))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        short = module.__name__[len(TRAVEL_NAME) + 1 :]
        if short not in self._place:
            return
        code = self._load(short)
        exec(code if self.magic else compile(code, f"<muster>/{short.replace('.', '/')}.py", "exec"), module.__dict__)

    def _load(self, short: str) -> Any:
        if short not in self._loaded:
            names = self._place[short]
            self._loaded.update(zip(names, marshal.loads(zlib.decompress(self.packed[names]))))  # noqa: B905, Python 3.9
        return self._loaded.pop(short)

    def get_source(self, name: str) -> str | None:
        short = name[len(TRAVEL_NAME) + 1 :]
        return None if self.magic or short not in self._place else self._load(short)
