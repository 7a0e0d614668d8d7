"""A cluster of virtual hosts on this machine, with fault injection: `with Lab(4) as lab:`."""

from muster.lab.cluster import HostStatus, Lab

__all__ = ["HostStatus", "Lab"]
