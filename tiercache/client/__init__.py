"""The client: what the fsspec filesystem and the commands use, in any process."""

from tiercache.client.client import Client, connect
from tiercache.client.origin import RemoteOrigin
from tiercache.client.plan import Plan, Planner
from tiercache.client.reader import Reader
from tiercache.client.writer import Writer

__all__ = ["Client", "Plan", "Planner", "Reader", "RemoteOrigin", "Writer", "connect"]
