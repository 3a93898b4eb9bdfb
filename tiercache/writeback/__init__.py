"""Write-back: sealed files go to the origin, and every one of them ends clean, in conflict or lost, never silently."""

from tiercache.writeback.drain import DrainResult
from tiercache.writeback.recovery import RecoveryReport
from tiercache.writeback.spills import Spilled
from tiercache.writeback.status import FileStatus
from tiercache.writeback.unwanted import Leftover
from tiercache.writeback.upload import wanted_condition
from tiercache.writeback.writeback import WriteBack

__all__ = ["DrainResult", "FileStatus", "Leftover", "RecoveryReport", "Spilled", "WriteBack", "wanted_condition"]
