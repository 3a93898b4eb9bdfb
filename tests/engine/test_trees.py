"""Origins of an engine: opened once, with secrets that stay in memory."""

from __future__ import annotations

from typing import cast

import trio
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import InterposedOrigin
from tiercache.engine.engine import Engine
from tiercache.engine.trees import public_options
from tiercache.origins import Origin
from tiercache.writeback import DrainResult


def test_no_secret_is_written_to_the_journal(s3_ground: Ground) -> None:
    async def scenario() -> None:
        async with s3_ground.engine(staging={"capacity": "16MiB", "upload_delay_s": 3600}) as (_, names):
            await names.root(s3_ground.root)
            await write_file(names, s3_ground.key("f"), b"1")

    run(scenario)
    secret = s3_ground.options["secret"].encode()
    files = [path for path in s3_ground.cache_dir.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret in path.read_bytes()] == []


def test_what_names_a_secret_is_left_out_at_every_depth() -> None:
    options = {
        "key": "a",
        "secret": "b",
        "token": "c",
        "endpoint_url": "http://localhost",
        "client_kwargs": {"aws_secret_access_key": "d", "region_name": "x"},
        "password": "e",
        "anon": False,
    }
    assert public_options(options) == {
        "endpoint_url": "http://localhost",
        "client_kwargs": {"region_name": "x"},
        "anon": False,
    }


def test_staged_files_wait_for_the_client_that_brings_the_keys(s3_ground: Ground) -> None:
    async def scenario() -> None:
        async with s3_ground.engine(staging={"capacity": "16MiB", "upload_delay_s": 3600}) as (_, names):
            await names.root(s3_ground.root)
            await write_file(names, s3_ground.key("f"), b"saved")
        async with s3_ground.started() as engine:
            assert len((await engine.drain(30)).left) == 1
            assert s3_ground.names() == []
            names, _ = await engine.attach(s3_ground.url, options=s3_ground.options)
            assert await read_file(names, s3_ground.key("f")) == b"saved"
            assert (await engine.drain(30)).left == []
            assert s3_ground.get("f") == b"saved"

    run(scenario)


def test_a_try_that_began_before_the_keys_came_says_nothing_about_them(s3_ground: Ground) -> None:
    drained: list[DrainResult] = []

    async def drain(engine: Engine) -> None:
        drained.append(await engine.drain(30))

    async def scenario() -> None:
        async with s3_ground.engine(staging={"capacity": "16MiB", "upload_delay_s": 3600}) as (_, names):
            await names.root(s3_ground.root)
            await write_file(names, s3_ground.key("f"), b"saved")
        async with s3_ground.started() as engine:
            [tree] = engine.trees
            interposed = InterposedOrigin(tree.origin)
            tree.origin = cast(Origin, interposed)
            assert len((await engine.drain(30)).left) == 1
            stop = interposed.stop("abort_uploads")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, engine)
                await stop.reached()
                await engine.attach(s3_ground.url, options=s3_ground.options)
                nursery.start_soon(drain, engine)
                await trio.testing.wait_all_tasks_blocked()
                stop.open()
            assert [(result.left, result.errors) for result in drained] == [([], {})] * 2
            assert s3_ground.get("f") == b"saved"

    run(scenario)


def test_two_urls_of_one_bucket_are_one_origin(s3_ground: Ground) -> None:
    async def scenario() -> None:
        async with s3_ground.engine() as (engine, names):
            other, root = await engine.attach(s3_ground.url + "/below", options=s3_ground.options)
            assert other.tree is names.tree
            assert root == s3_ground.key("below")

    run(scenario)
