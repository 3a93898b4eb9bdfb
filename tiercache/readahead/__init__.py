"""What is fetched before it is asked for: the rest of files that are read in order, and the files of a plan,
told or guessed."""

from tiercache.readahead.guess import Guess
from tiercache.readahead.layouts import Layouts
from tiercache.readahead.plan import Plan, Read, Step
from tiercache.readahead.planned import Brought, Planned, Running
from tiercache.readahead.sequential import ReadAhead
from tiercache.readahead.window import Window

__all__ = ["Brought", "Guess", "Layouts", "Plan", "Planned", "Read", "ReadAhead", "Running", "Step", "Window"]
