"""The part of the module `socket` that agents need, without its enums, which take 2 ms of CPU on each host."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from socket import recv_fds as recv_fds
    from socket import send_fds as send_fds
else:
    import _socket
    from _socket import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from sys import byteorder

    _INT = 4  # bytes of a descriptor

    class socket(_socket.socket):
        """The socket class of C, with what Python adds to it."""

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.close()

        def accept(self):
            """A new connection, and the address of its other end."""
            fd, address = self._accept()
            return socket(self.family, self.type, self.proto, fd), address

        def set_inheritable(self, inheritable):
            """Whether programs that this process becomes get the descriptor."""
            from os import set_inheritable

            set_inheritable(self.fileno(), inheritable)

    def socketpair(family=_socket.AF_UNIX, type=_socket.SOCK_STREAM):
        """Two sockets that are connected to each other."""
        one, other = _socket.socketpair(family, type)
        return socket(family, type, 0, one.detach()), socket(family, type, 0, other.detach())

    def send_fds(sock, buffers, fds):
        """Send bytes with descriptors."""
        return sock.sendmsg(
            buffers, [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(fd.to_bytes(_INT, byteorder) for fd in fds))]
        )

    def recv_fds(sock, size, most):
        """Receive up to `size` bytes with up to `most` descriptors."""
        data, parts, flags, address = sock.recvmsg(size, _socket.CMSG_LEN(most * _INT))
        fds = []
        for level, kind, part in parts:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                whole = range(0, len(part) - _INT + 1, _INT)
                fds += [int.from_bytes(part[begin : begin + _INT], byteorder) for begin in whole]
        return data, fds, flags, address
