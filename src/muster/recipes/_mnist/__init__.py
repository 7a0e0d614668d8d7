"""What the MNIST recipes use besides training: flags, data, the position in it, and the start of their ranks."""

from .digits import load
from .mnist_flags import parse
from .position import Position
from .start import start

__all__ = ["Position", "load", "parse", "start"]
