"""A cluster of virtual hosts on this machine, with faults to inject: `with Lab(4) as lab:`."""

from muster.lab.cluster import HostStatus, Lab

__all__ = ["HostStatus", "Lab"]
