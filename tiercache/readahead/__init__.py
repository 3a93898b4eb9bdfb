"""What is fetched before it is asked for: the rest of files that are read in order, and the files of a plan."""

from tiercache.readahead.plan import Plan, Read, Step
from tiercache.readahead.planned import Brought, Planned, Running
from tiercache.readahead.sequential import ReadAhead, Window

__all__ = ["Brought", "Plan", "Planned", "Read", "ReadAhead", "Running", "Step", "Window"]
