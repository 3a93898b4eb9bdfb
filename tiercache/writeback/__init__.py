"""Write-back: sealed files go to the origin, and every one of them ends clean, in conflict or lost, never silently."""

from tiercache.writeback.drain import DrainResult
from tiercache.writeback.recovery import RecoveryReport
from tiercache.writeback.status import FileStatus
from tiercache.writeback.writeback import WriteBack

__all__ = ["DrainResult", "FileStatus", "RecoveryReport", "WriteBack"]
