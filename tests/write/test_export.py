"""Staged bytes are rescued from a cache directory whose engine is dead, whatever state they are in."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xxhash

from rig.writing_desk import ATTRIBUTES, Desk, crash, in_trio
from tiercache.errors import InvalidArgument
from tiercache.journal import Journal
from tiercache.model import PartedUpload
from tiercache.writeback.export import MANIFEST, Exported, export_staged


def export(cache_dir: Path, target: Path) -> tuple[Exported, dict[str, Any]]:
    seen: list[tuple[int, int]] = []
    done = export_staged(cache_dir, target, lambda done, total: seen.append((done, total)))
    assert len(seen) == done.files
    assert not seen or seen[-1] == (done.size_bytes, done.size_bytes)
    lines = [json.loads(line) for line in (target / MANIFEST).read_text().splitlines()]
    files = {os.path.relpath(path, target) for path in target.rglob("*") if path.is_file()} - {MANIFEST}
    assert {line["path"] for line in lines} == files
    for line in lines:
        data = (target / line["path"]).read_bytes()
        assert (line["size_bytes"], line["xxh3_64"]) == (len(data), xxhash.xxh3_64_hexdigest(data))
    return done, {line["path"]: line for line in lines}


def desk_at(directory: Path, **options: Any) -> Desk:
    directory.mkdir(exist_ok=True)
    return Desk(directory, **options)


def place(desk: Desk, name: str) -> str:
    return "file/" + os.fsdecode(desk.key(name))


@in_trio
async def test_a_sealed_file_comes_out_under_its_name_with_its_attributes(tmp_path: Path) -> None:
    desk = desk_at(tmp_path / "node")
    await desk.save("d/a", b"bytes")
    crash(desk)
    done, lines = export(desk.root, tmp_path / "out")
    path = f"files/{place(desk, 'd/a')}"
    assert (tmp_path / "out" / path).read_bytes() == b"bytes"
    assert (done.files, done.whole, done.complaint) == (1, 1, "")
    assert (lines[path]["whole"], lines[path]["state"], lines[path]["url"]) == (True, "sealed", "file:///")
    status = (tmp_path / "out" / path).stat()
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (ATTRIBUTES.mode, ATTRIBUTES.mtime_ns)


@in_trio
async def test_each_kind_of_file_has_its_place_and_only_sound_ones_count_as_whole(tmp_path: Path) -> None:
    desk = desk_at(tmp_path / "node")
    await desk.stage("open", b"half")
    await desk.stage("unpublished", b"writer died", published=False)
    spilled = await desk.stage("spilled", b"\0\0\0\0rest", published=False)
    await desk.journal.put(desk.record(spilled)._replace(parted=PartedUpload("the store's", 0)))
    link = await desk.save("link", b"../target")
    await desk.journal.put(desk.record(link)._replace(link_target=b"../target"))
    await desk.save("twice", b"older")
    await desk.save("twice", b"newer")
    torn = await desk.save("torn", b"0123456789")
    odd = await desk.save("odd", b"odd")
    await desk.journal.put(desk.record(odd)._replace(key=b"a/../../etc/passwd"))
    (desk.root / "staging" / "123").write_bytes(b"nobody's")
    desk.shrink(torn, 4)
    lost = await desk.save("lost", b"lost bytes")
    await desk.write_back._uploader.lose(desk.record(lost), "bad luck")
    crash(desk)
    done, lines = export(desk.root, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "symlinks" / place(desk, "link")).read_bytes() == b"../target"
    assert (out / "files" / place(desk, "twice")).read_bytes() == b"newer"
    assert (out / "files" / place(desk, "open")).read_bytes() == b"half"
    assert (out / "files" / place(desk, "torn")).read_bytes() == b"0123"
    assert (out / "superseded" / place(desk, "twice")).read_bytes() == b"older"
    assert (out / "unpublished" / place(desk, "unpublished")).read_bytes() == b"writer died"
    assert (out / "spilled" / place(desk, "spilled")).read_bytes() == b"\0\0\0\0rest"
    assert (out / "lost" / place(desk, "lost")).read_bytes() == b"lost bytes"
    assert lines[f"lost/{place(desk, 'lost')}"]["last_error"] == "bad luck"
    assert {path.read_bytes() for path in (out / "unnamed").iterdir()} == {b"nobody's", b"odd"}
    assert done.files == 10
    whole = {path for path, line in lines.items() if line["whole"]}
    assert whole == {
        f"files/{place(desk, 'twice')}",
        f"superseded/{place(desk, 'twice')}",
        f"symlinks/{place(desk, 'link')}",
        f"unnamed/{odd}",
    }
    assert not (tmp_path / "etc").exists()


@in_trio
async def test_what_no_commit_covers_yet_is_exported_too(tmp_path: Path) -> None:
    """It was noted in the page cache of the machine that the engine died on."""
    desk = desk_at(tmp_path / "node")
    await desk.save("a", b"a", sync=False)
    old = await desk.save("b", b"b")
    await desk.journal.note(put=[desk.record(old)._replace(key=desk.key("renamed"))])
    crash(desk)
    export(desk.root, tmp_path / "out")
    assert (tmp_path / "out" / "files" / place(desk, "a")).read_bytes() == b"a"
    assert (tmp_path / "out" / "files" / place(desk, "renamed")).read_bytes() == b"b"


@in_trio
async def test_of_another_boot_only_what_the_journal_lacks_is_believed(tmp_path: Path) -> None:
    """After a power cut a file that was cut short may have its old length again."""
    desk = desk_at(tmp_path / "node", make_journal=partial(Journal, boot_id=b"another"))
    await desk.save("a", b"a", sync=False)
    old = await desk.save("b", b"b")
    await desk.journal.note(put=[desk.record(old)._replace(key=desk.key("renamed"))])
    crash(desk)
    export(desk.root, tmp_path / "out")
    assert (tmp_path / "out" / "files" / place(desk, "a")).read_bytes() == b"a"
    assert (tmp_path / "out" / "files" / place(desk, "b")).read_bytes() == b"b"


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_without_a_journal_the_bytes_come_out_all_the_same(tmp_path: Path, how: str) -> None:
    @in_trio
    async def scenario() -> None:
        desk = desk_at(tmp_path / "node")
        staged_id = await desk.save("a", b"bytes")
        crash(desk)
        if how == "gone":
            shutil.rmtree(desk.root / "journal")
        else:
            (desk.root / "journal" / "data.mdb").write_bytes(b"nonsense" * 4096)
        done, _ = export(desk.root, tmp_path / "out")
        assert (tmp_path / "out" / "unnamed" / str(staged_id)).read_bytes() == b"bytes"
        assert done.whole == 0
        assert "cannot be read" in done.complaint

    scenario()


@in_trio
async def test_a_damaged_row_costs_its_name_alone(tmp_path: Path) -> None:
    desk = desk_at(tmp_path / "node")
    for name in ("a", "b"):
        await desk.save(name, name.encode())
    [first, _] = list(desk.journal.records())
    with desk.journal._env.begin(write=True) as txn:
        txn.put(first.id.to_bytes(8, "big"), b"nonsense", db=desk.journal._rows)
    crash(desk)
    done, _ = export(desk.root, tmp_path / "out")
    assert (tmp_path / "out" / "files" / place(desk, "b")).read_bytes() == b"b"
    assert (tmp_path / "out" / "unnamed" / str(first.id)).read_bytes() == b"a"
    assert f"row {first.id}" in done.complaint


@in_trio
async def test_an_export_changes_nothing_and_the_next_engine_goes_on(tmp_path: Path) -> None:
    desk = desk_at(tmp_path / "node")
    staged_id = await desk.save("a", b"bytes")
    crash(desk)
    before = {path: path.stat().st_mtime_ns for path in desk.root.rglob("*")}
    export(desk.root, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in desk.root.rglob("*")} == before
    again = desk_at(tmp_path / "node")
    await again.write_back.recover()
    async with again.running():
        await again.write_back.wait(staged_id)
    assert again.object("a") == b"bytes"
    again.close()


def test_a_place_that_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    (tmp_path / "node" / "staging").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="no staged files are kept there"):
        export_staged(tmp_path, tmp_path / "out", lambda done, total: None)
    with pytest.raises(InvalidArgument, match="is not empty"):
        export_staged(tmp_path / "node", tmp_path / "full", lambda done, total: None)
    assert not (tmp_path / "out").exists()
