"""A manifest goes up after the files that it tells of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rig.writing_desk import Desk, in_jumping_time, in_trio
from tiercache.errors import Busy, UploadFailed
from tiercache.model import StagedState

SHARD = b"s" * 1000


def directories(desk: Desk, *names: str) -> None:
    for name in names:
        (desk.files / name).mkdir(parents=True)


@in_jumping_time
async def test_a_manifest_goes_up_after_what_was_written_below_its_directory_before_it(desk: Desk) -> None:
    directories(desk, "c/deep", "other")
    for _ in range(3):
        desk.origin.write_errors.append(Busy("503"))
    shards = [await desk.save(name, SHARD) for name in ("c/a", "c/deep/b", "c/z")]
    manifest = await desk.save("c/.metadata", b"m")
    late = await desk.save("c/late", b"l")
    async with desk.running():
        await desk.write_back.wait([*shards, manifest, late])
    landed = desk.landed()
    assert {"c/a", "c/deep/b", "c/z"} <= set(landed[: landed.index("c/.metadata")])


@in_trio
async def test_a_manifest_waits_for_nothing_outside_nor_for_what_came_after_it(desk: Desk) -> None:
    directories(desk, "c", "other")
    desk.origin.hold_writes = True
    outside = await desk.save("other/big", SHARD)
    async with desk.running():
        await desk.origin.held.wait()
        desk.origin.hold_writes = False
        manifest = await desk.save("c/model.safetensors.index.json", b"{}")
        await desk.write_back.wait(manifest)
        assert desk.object("c/model.safetensors.index.json") == b"{}"
        assert desk.object("other/big") is None
        desk.origin.release.set()
        await desk.write_back.wait(outside)


@in_trio
async def test_manifests_of_one_directory_go_up_in_the_order_of_their_seals(desk: Desk) -> None:
    directories(desk, "c")
    names = ["c/trainer_state.json", "c/model.safetensors.index.json", "c/.metadata"]
    saved = [await desk.save(name, b"{}") for name in names]
    async with desk.running():
        await desk.write_back.wait(saved)
    assert desk.landed() == names


@in_trio
async def test_a_manifest_goes_up_when_the_file_that_it_waits_for_is_removed(desk: Desk) -> None:
    directories(desk, "c")
    desk.origin.hold_writes = True
    shard = await desk.save("c/a", SHARD)
    manifest = await desk.save("c/.metadata", b"m")
    async with desk.running():
        await desk.origin.held.wait()
        desk.origin.hold_writes = False
        await desk.write_back.cancel(shard, wait=False)
        desk.origin.release.set()
        await desk.write_back.wait(manifest)
    assert desk.object("c/a") is None
    assert desk.object("c/.metadata") == b"m"


@in_trio
async def test_a_manifest_goes_up_when_the_file_that_it_waits_for_is_renamed_away(desk: Desk) -> None:
    directories(desk, "c", "other")
    desk.origin.write_errors.append(Busy("503"))
    desk.origin.hold_writes = True
    shard = await desk.save("c/a", SHARD)
    manifest = await desk.save("c/.metadata", b"m")
    async with desk.running():
        while not desk.record(shard).last_error:
            await desk.write_back.changed()
        # The shard waits for its next try; that one would be held.
        await desk.write_back.rename(shard, desk.key("other/a"))
        await desk.origin.held.wait()
        desk.origin.hold_writes = False
        desk.origin.release.set()
        await desk.write_back.wait([shard, manifest])
    assert desk.object("other/a") == SHARD
    assert desk.object("c/.metadata") == b"m"


async def has_its_turn(desk: Desk) -> None:
    """Whatever may go up now has gone up, or is at the origin's door."""
    await desk.write_back.wait(await desk.save("elsewhere", b"e"))


@in_trio
async def test_a_manifest_waits_for_a_shard_that_is_opened_again_before_it_went_up(desk: Desk) -> None:
    directories(desk, "c")
    shard = await desk.save("c/a", SHARD)
    manifest = await desk.save("c/.metadata", b"m")
    assert await desk.write_back.unseal(shard)
    async with desk.running():
        await has_its_turn(desk)
        assert desk.object("c/.metadata") is None
        await desk.write_back.seal(shard)
        await desk.write_back.wait([shard, manifest])
    assert [name for name in desk.landed() if name != "elsewhere"] == ["c/a", "c/.metadata"]


@pytest.mark.parametrize("how", ["written again", "renamed over"])
def test_a_manifest_waits_for_what_takes_the_place_of_a_shard(desk: Desk, how: str) -> None:
    @in_trio
    async def scenario(desk: Desk) -> None:
        directories(desk, "c")
        desk.origin.hold_writes = True
        shard = await desk.save("c/a", SHARD)
        async with desk.running():
            await desk.origin.held.wait()
            desk.origin.hold_writes = False
            manifest = await desk.save("c/.metadata", b"m")
            newer = await desk.save("c/a" if how == "written again" else "c/a.tmp", b"newer")
            if how == "renamed over":
                await desk.write_back.rename(newer, desk.key("c/a"))
            desk.origin.release.set()
            await desk.write_back.wait([shard, newer, manifest])
        assert desk.landed() == ["c/a", "c/.metadata"]
        assert desk.object("c/a") == b"newer"

    scenario(desk=desk)


@in_trio
async def test_a_manifest_waits_for_a_shard_whose_last_writer_has_gone(tmp_path: Path) -> None:
    written: set[bytes] = set()
    desk = Desk(tmp_path, is_open=lambda record: record.key in written)
    directories(desk, "c")
    written.add(desk.key("c/log"))
    await desk.stage("c/log", b"line")
    shard = await desk.stage("c/a", SHARD)
    manifest = await desk.save("c/.metadata", b"m")
    async with desk.running():
        await has_its_turn(desk)
        assert desk.object("c/.metadata") is None
        await desk.write_back.seal(shard)
        await desk.write_back.wait([shard, manifest])
    assert [name for name in desk.landed() if name != "elsewhere"] == ["c/a", "c/.metadata"]
    desk.close()


@in_trio
async def test_manifests_that_are_opened_again_do_not_wait_for_each_other(desk: Desk) -> None:
    directories(desk, "c")
    names = ["c/trainer_state.json", "c/.metadata"]
    first, second = [await desk.save(name, b"{}") for name in names]
    assert await desk.write_back.unseal(first)
    async with desk.running():
        await desk.write_back.wait(second)
        await desk.write_back.seal(first)
        await desk.write_back.wait(first)
    assert desk.landed() == ["c/.metadata", "c/trainer_state.json"]


@pytest.mark.parametrize("how", ["conflict", "lost"])
def test_a_manifest_is_kept_back_while_a_file_beside_it_cannot_go_up(desk: Desk, how: str) -> None:
    @in_jumping_time
    async def scenario(desk: Desk) -> None:
        directories(desk, "c")
        (desk.files / "c/a").write_bytes(b"old")
        shard = await desk.save("c/a", SHARD, base_etag=desk.etag("c/a"), condition=1)
        if how == "conflict":
            (desk.files / "c/a").write_bytes(b"another writer's")
        else:
            os.truncate(desk.staging.path(shard), 1)
        manifest = await desk.save("c/.metadata", b"m")
        async with desk.running():
            await desk.reaches(shard, StagedState(how))
            with pytest.raises(UploadFailed, match=r"held back: .*c/a', which goes up before it, is"):
                await desk.write_back.wait(manifest)
            result = await desk.write_back.drain(30)
            assert set(result.left) == {shard, manifest}
            assert "held back" in result.errors[manifest]
            assert desk.object("c/.metadata") is None
            await desk.write_back.cancel(shard)
            while desk.write_back.error_of(manifest) is not None:
                await desk.write_back.changed()
            await desk.write_back.wait(manifest)
        assert desk.object("c/.metadata") == b"m"

    scenario(desk=desk)


@pytest.mark.parametrize("in_mount", [True, False])
@in_jumping_time
async def test_a_symlink_to_an_absolute_path_in_a_mount_still_waits_after_a_restart(
    tmp_path: Path, in_mount: bool
) -> None:
    """Whether the mount is back by then or not."""
    desk = Desk(tmp_path)
    directories(desk, "c")
    shard = await desk.save("c/a", SHARD)
    link = await desk.save("latest", b"/mnt/c")
    place = desk.key("c") if in_mount else None
    await desk.journal.put(desk.record(link)._replace(link_target=b"/mnt/c", link_place=place))
    again = desk.again()
    await again.write_back.recover()
    again.origin.write_errors.append(Busy("503"))
    async with again.running():
        await again.write_back.wait([shard, link])
    assert again.landed() == (["c/a", "latest"] if in_mount else ["latest", "c/a"])
    again.close()


@in_trio
async def test_a_manifest_still_waits_after_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    directories(desk, "c")
    shard = await desk.save("c/a", SHARD)
    manifest = await desk.save("c/.metadata", b"m")
    again = desk.again()
    await again.write_back.recover()
    again.origin.hold_writes = True
    async with again.running():
        await again.origin.held.wait()
        assert again.origin.written() == [again.key("c/a")]
        assert again.write_back.status()[1].state is StagedState.SEALED
        again.origin.hold_writes = False
        again.origin.release.set()
        await again.write_back.wait([shard, manifest])
    assert again.landed() == ["c/a", "c/.metadata"]
    again.close()
