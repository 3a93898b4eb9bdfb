"""s3fs-fuse: the objects of the bucket, cached in files that have their names."""

from __future__ import annotations

from pathlib import Path

from tiercache.bench.peers.peer import Launch, Peer
from tiercache.bench.place import Place
from tiercache.bench.terms import Terms

STAT_CACHE_ENTRIES = 200_000


class S3fs(Peer):
    """https://github.com/s3fs-fuse/s3fs-fuse/wiki"""

    name = "s3fs"
    install = "apt-get install s3fs"
    tuning = (
        "s3fs-fuse: use_cache, a stat cache for every name, names and attributes believed as long as ours, "
        "enable_noobj_cache, kernel_cache where nothing is written. It uploads in close, so the clock of what it "
        "writes holds the upload; it has no way to put that off."
    )

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        bucket, _, prefix = place.root.partition("/")
        options = {
            "passwd_file": str(self._password_file()),
            "url": self.store.endpoint,
            "use_cache": str(cache),
            "tmpdir": str(cache),
            "max_stat_cache_size": str(STAT_CACHE_ENTRIES),
            "stat_cache_expire": str(terms.ttl_s),
            "attr_timeout": str(terms.ttl_s),
            "entry_timeout": str(terms.ttl_s),
        }
        flags = ["use_path_request_style", "enable_noobj_cache", *(["ro", "kernel_cache"] if terms.read_only else [])]
        told = ",".join([*(f"{name}={value}" for name, value in options.items()), *flags])
        return Launch([self.binary, f"{bucket}:/{prefix}", str(mountpoint), "-f", "-o", told], {})

    def _password_file(self) -> Path:
        path = self.directory / "password"
        self.directory.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(f"{self.store.key}:{self.store.secret}\n")
        return path
