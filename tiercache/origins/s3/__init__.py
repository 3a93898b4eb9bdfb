"""S3 as an origin: botocore for the control plane, obstore for the bytes."""

from tiercache.origins.s3.options import S3Options
from tiercache.origins.s3.origin import S3Origin

__all__ = ["S3Options", "S3Origin"]
