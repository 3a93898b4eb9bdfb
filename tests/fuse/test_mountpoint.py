"""What may become a mount point: each refusal is one line that says what to do, and leaves nothing mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercache.errors import MountError
from tiercache.fuse import mountpoint


def refusal(path: object, **options: object) -> str:
    with pytest.raises(MountError) as caught:
        mountpoint.prepare(str(path), **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    assert mountpoint.prepare(str(tmp_path)) == str(tmp_path)


def test_a_relative_path_and_a_link_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert mountpoint.prepare("link") == str(tmp_path / "real")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "mkdir" in refusal(tmp_path / "missing")


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "not a directory" in refusal(tmp_path / "file")


def test_another_mount_is_refused() -> None:
    assert "mounted there already" in refusal("/proc")


def test_a_directory_that_is_not_empty_will_do_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("x")
    mountpoint.prepare(str(tmp_path))
    assert "hidden" in caplog.text


def test_a_mount_over_the_engines_own_files_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "data" / "cache"
    own.mkdir(parents=True)
    assert str(own) in refusal(tmp_path / "data", private_paths=(str(own),))
    assert str(own) in refusal(own, private_paths=(str(own),))


def test_what_is_not_mounted_cannot_be_unmounted(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="not mounted"):
        mountpoint.unmount(str(tmp_path))


def test_mount_points_with_odd_names_are_read_right() -> None:
    assert mountpoint._unescape(r"/mnt/a\040b\011c\134d\012") == "/mnt/a b\tc\\d\n"
    assert mountpoint.mounted_at("/proc") is not None
    assert mountpoint.mounted_at(os.path.realpath("/proc/self")) is None
