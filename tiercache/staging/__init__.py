"""Written bytes that the origin does not have: files with a budget of their own, invisible to eviction."""

from tiercache.staging.budget import Budget, Hope
from tiercache.staging.disk import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Disk
from tiercache.staging.file import StagedFile
from tiercache.staging.staging import FoundFile, Staging

__all__ = ["FALLOC_KEEP_SIZE", "FALLOC_PUNCH_HOLE", "Budget", "Disk", "FoundFile", "Hope", "StagedFile", "Staging"]
