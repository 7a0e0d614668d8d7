"""The type `deque` without the module `collections`: importing that takes 2 ms of CPU in every agent."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque as deque
else:
    from _collections import deque as deque
