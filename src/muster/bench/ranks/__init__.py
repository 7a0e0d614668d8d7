"""The code of a rank of `muster bench`; it is sent to the hosts and needs only torch there."""
