"""The module `signal` without its enums: importing those takes 3 ms of CPU in every agent and rank."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
else:
    from _signal import *  # noqa: F403
