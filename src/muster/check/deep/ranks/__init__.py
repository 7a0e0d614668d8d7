"""The code of a rank of the deep check; it is sent to the hosts and needs only torch there."""
