"""What a path or a URL stands for, as an engine sees it over a file tree and over a store."""

from __future__ import annotations

import os

import pytest

from rig.engine_ground import Ground, run, write_file
from tiercache.engine.places import LINKS_MAX, Asker
from tiercache.errors import Absent, InvalidArgument

LATER = {"capacity": "16MiB", "upload_delay_s": 3600}


def test_links_of_a_url_are_followed_inside_the_origin(ground: Ground) -> None:
    """What is dirty is found by whatever link, and what a link leads to is not called absent."""
    ground.put("disk/step-1/model", b"12345")

    async def scenario() -> None:
        async with ground.engine(staging=LATER) as (engine, names):
            for link, target in (("runs", b"disk"), ("file", b"./runs/../runs/step-1/model"), ("nothing", b"gone")):
                await names.symlink(ground.key(link), target, uid=os.getuid(), gid=os.getgid())
            await write_file(names, ground.key("disk/step-1/new"), b"123")
            for name, size_bytes, staged in (
                ("runs/step-1/model", 5, False),
                ("file", 5, False),
                ("runs/step-1/new", 3, True),
            ):
                place = await engine.places.look(f"{ground.url}/{name}", Asker())
                assert place.entry is not None
                assert (place.entry.size_bytes, bool(place.entry.staged)) == (size_bytes, staged), name
                assert place.key.startswith(ground.key("disk/step-1/"))
                assert ground.key(name) in place.keys
            dangling = await engine.places.look(f"{ground.url}/nothing", Asker())
            assert dangling.key == ground.key("nothing")
            with pytest.raises(Absent, match=f"^{ground.url}/runs/step-2: no such file or directory$"):
                await engine.places.look(f"{ground.url}/runs/step-2", Asker())
            for number in range(LINKS_MAX + 1):
                target = f"chain-{number + 1}".encode()
                await names.symlink(ground.key(f"chain-{number}"), target, uid=os.getuid(), gid=os.getgid())
            with pytest.raises(InvalidArgument, match="/chain-0: too many symbolic links"):
                await engine.places.look(f"{ground.url}/chain-0", Asker())

    run(scenario)


def test_of_several_origins_under_one_url_the_asker_s_options_choose(s3_ground: Ground) -> None:
    s3_ground.put("f", b"1")
    other = s3_ground.options | {"endpoint_url": s3_ground.options["endpoint_url"].replace("127.0.0.1", "localhost")}

    async def scenario() -> None:
        async with s3_ground.engine() as (engine, names):
            url = f"{s3_ground.url}/f"
            again, _ = await engine.attach(s3_ground.url, options=other)
            assert again.origin_id != names.origin_id
            for options, expected in ((s3_ground.options, names), (other, again)):
                place = await engine.places.find(url, Asker(options=options))
                assert place.namespace.origin_id == expected.origin_id
            with pytest.raises(InvalidArgument, match="several origins with this URL are in use"):
                await engine.places.find(url, Asker())

    run(scenario)
