"""``fs.pin`` and ``fs.unpin``."""

from __future__ import annotations

from pathlib import Path

from rig.engines import attached_client, small_config
from tiercache.filesystem import TierCacheFileSystem


def test_a_program_pins_files_and_directories_and_unpins_them(tmp_path: Path) -> None:
    (tmp_path / "top" / "sub").mkdir(parents=True)
    (tmp_path / "top" / "sub" / "a").write_bytes(b"a" * 1000)
    (tmp_path / "top" / "b").write_bytes(b"b" * 1000)
    with attached_client(small_config(tmp_path / "cache")) as client:
        fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(client.cache_dir))
        paths = [str(tmp_path / "top" / name) for name in ("sub", "b")]
        fs.pin(paths)
        assert fs.cat_file(paths[1]) == b"b" * 1000
        told = {pin["name"].rpartition("/")[2]: pin["resident_bytes"] for pin in client.request("pins")}
        assert told == {"sub": 0, "b": 1000}
        fs.unpin(paths[0])
        fs.unpin(paths)
        assert client.request("pins") == []
