"""Requests that come again after an engine carried them out and was killed: one effect, the first time's outcome."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rig.engine_ground import Ground, make_ground, run
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Exists, NoAttribute
from tiercache.fuse.attributes import Caller
from tiercache.fuse.estate import Estate
from tiercache.fuse.kernel import wire
from tiercache.fuse.kernel.requests import HANDLERS, Answer
from tiercache.fuse.kernel.resent import RESENT
from tiercache.fuse.kernel.wire import Opcode, Request
from tiercache.fuse.nodes import ROOT_NODE
from tiercache.fuse.options import MountOptions
from tiercache.fuse.vfs import Vfs
from tiercache.model import Key

ROOT = Caller(0, 0, 1)


class Engines:
    """One engine after the other on a mount: what the earlier one had open, the later one takes over."""

    def __init__(self, make: Callable[[Estate], Vfs], namespace: Namespace, root: Key) -> None:
        self._make = make
        self._namespace = namespace
        self._root = root
        self._estate = Estate.create()
        self.vfs = make(self._estate)
        self._last_number = 100

    def request(self, opcode: Opcode, body: bytes, *, node: int = ROOT_NODE, data: bytes = b"") -> Request:
        self._last_number += 2
        return Request(opcode, self._last_number, node, 0, 0, 1, body, memoryview(data))

    async def answer(self, request: Request) -> Answer:
        return await HANDLERS[request.opcode](self.vfs, request)

    async def names(self) -> list[bytes]:
        return [name for name, _ in await self._namespace.list(self._root)]

    def replace(self) -> None:
        self._estate = Estate(os.dup(self._estate.descriptor))
        self.vfs = self._make(self._estate)
        self.vfs.files.take_over()

    async def again(self, request: Request) -> Answer:
        """The next engine gets it once more."""
        self.replace()
        again = request._replace(unique=request.unique | wire.UNIQUE_RESENT)
        return await RESENT.get(request.opcode, HANDLERS[request.opcode])(self.vfs, again)

    async def twice(self, request: Request) -> tuple[Answer, Answer]:
        return await self.answer(request), await self.again(request)


Scenario = Callable[[Engines, Ground], Awaitable[None]]


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("posix", request, tmp_path)


def on(ground: Ground, scenario: Scenario) -> None:
    async def body() -> None:
        async with ground.engine() as (_, namespace):
            root = await namespace.root(ground.root)

            def make(estate: Estate) -> Vfs:
                return Vfs(namespace, ground.root, root_inode=root.inode, options=MountOptions(), estate=estate)

            await scenario(Engines(make, namespace, ground.root), ground)

    run(body)


def node_of(answer: Answer) -> int:
    node: int = wire.ENTRY_OUT.unpack_from(answer[0])[0]
    return node


def handle_of(answer: Answer) -> int:
    handle: int = wire.OPEN_OUT.unpack_from(answer[-1])[0]
    return handle


async def file_of(engines: Engines, ground: Ground) -> bytes:
    """The name of a file, and the listing that has told it is fresh."""
    ground.put("file", b"1")
    assert b"file" in await engines.names()
    return b"file"


CREATE = wire.CREATE_IN.pack(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640, 0, 0) + b"file\0"


def test_an_open_or_create_that_was_done_is_answered_with_its_handle(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        first, second = await engines.twice(engines.request(Opcode.CREATE, CREATE))
        assert (node_of(first), handle_of(first)) == (node_of(second), handle_of(second))
        opening = engines.request(Opcode.OPEN, wire.OPEN_IN.pack(os.O_RDONLY, 0), node=node_of(first))
        first, second = await engines.twice(opening)
        assert handle_of(first) == handle_of(second)

    on(ground, scenario)


def test_a_create_that_was_done_but_for_its_handle_opens_the_file(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        request = engines.request(Opcode.CREATE, CREATE)
        first = await engines.answer(request)
        await engines.vfs.files.release(handle_of(first))
        second = await engines.again(request)
        assert node_of(second) == node_of(first)
        assert handle_of(second) != handle_of(first)
        with pytest.raises(Exists):  # one that is new is judged as ever
            await engines.answer(engines.request(Opcode.CREATE, CREATE))

    on(ground, scenario)


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (Opcode.MKDIR, wire.MKDIR_IN.pack(0o755, 0) + b"made\0"),
        (Opcode.MKNOD, wire.MKNOD_IN.pack(0o100644, 0, 0, 0) + b"made\0"),
        (Opcode.SYMLINK, b"made\0somewhere\0"),
    ],
)
def test_a_name_that_was_made_is_the_answer(ground: Ground, opcode: Opcode, body: bytes) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        first, second = await engines.twice(engines.request(opcode, body))
        assert node_of(first) == node_of(second)
        with pytest.raises(Exists):
            await engines.answer(engines.request(opcode, body))

    on(ground, scenario)


def test_a_name_that_only_the_origin_knows_of_is_the_answer_whatever_was_listed(ground: Ground) -> None:
    """Made before the engine could tell the catalog, nor the origin its mode."""

    async def scenario(engines: Engines, ground: Ground) -> None:
        await engines.vfs.lookup(ROOT_NODE, await file_of(engines, ground))
        os.mkdir(ground.path("dir"), 0o700)
        os.symlink("somewhere", ground.path("symlink"))
        os.mkfifo(ground.path("pipe"), 0o600)
        making = [
            (Opcode.MKDIR, wire.MKDIR_IN.pack(0o751, 0) + b"dir\0"),
            (Opcode.SYMLINK, b"symlink\0somewhere\0"),
            (Opcode.MKNOD, wire.MKNOD_IN.pack(0o010640, 0, 0, 0) + b"pipe\0"),
        ]
        nodes = {node_of(await engines.again(engines.request(opcode, body))) for opcode, body in making}
        found = [await engines.vfs.lookup(ROOT_NODE, name) for name in (b"dir", b"symlink", b"pipe")]
        assert {entry.attr.node for entry in found} == nodes
        assert [stat.S_IMODE(os.lstat(ground.path(name)).st_mode) for name in ("dir", "pipe")] == [0o751, 0o640]

    on(ground, scenario)


def test_a_link_that_only_the_origin_knows_of_is_the_answer_whatever_was_listed(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        node = (await engines.vfs.lookup(ROOT_NODE, await file_of(engines, ground))).attr.node
        os.link(ground.path("file"), ground.path("linked"))
        made = await engines.again(engines.request(Opcode.LINK, wire.LINK_IN.pack(node) + b"linked\0"))
        assert node_of(made) == node

    on(ground, scenario)


def test_a_directory_that_is_gone_at_the_origin_is_listed_no_more(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        ground.put("file", b"1")
        await engines.answer(engines.request(Opcode.MKDIR, wire.MKDIR_IN.pack(0o755, 0) + b"gone\0"))
        assert await engines.names() == [b"file", b"gone"]
        os.rmdir(ground.path("gone"))
        await engines.again(engines.request(Opcode.RMDIR, b"gone\0"))
        assert await engines.names() == [b"file"]
        with pytest.raises(Absent):
            await engines.vfs.lookup(ROOT_NODE, b"gone")

    on(ground, scenario)


def test_a_directory_is_no_answer_to_who_made_a_link(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        await engines.answer(engines.request(Opcode.MKDIR, wire.MKDIR_IN.pack(0o755, 0) + b"made\0"))
        with pytest.raises(Exists):
            await engines.again(engines.request(Opcode.SYMLINK, b"made\0somewhere\0"))

    on(ground, scenario)


def test_a_name_that_was_removed_may_be_gone(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        ground.put("file", b"1")
        await engines.answer(engines.request(Opcode.MKDIR, wire.MKDIR_IN.pack(0o755, 0) + b"dir\0"))
        for opcode, name in ((Opcode.UNLINK, b"file\0"), (Opcode.RMDIR, b"dir\0")):
            await engines.twice(engines.request(opcode, name))
            with pytest.raises(Absent):
                await engines.answer(engines.request(opcode, name))

    on(ground, scenario)


def test_a_file_is_renamed_and_linked_once(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        ground.put("a", b"1")
        await engines.twice(engines.request(Opcode.RENAME, wire.RENAME_IN.pack(ROOT_NODE) + b"a\0b\0"))
        entry = await engines.vfs.lookup(ROOT_NODE, b"b")
        await engines.twice(engines.request(Opcode.RENAME2, wire.RENAME2_IN.pack(ROOT_NODE, 1, 0) + b"b\0c\0"))
        linking = engines.request(Opcode.LINK, wire.LINK_IN.pack(entry.attr.node) + b"d\0")
        first, second = await engines.twice(linking)
        assert node_of(first) == node_of(second) == entry.attr.node
        assert ground.names() == ["c", "d"]

    on(ground, scenario)


def test_what_was_appended_is_there_once(ground: Ground) -> None:
    """Also where the kernel knows of a shorter file, where the same bytes came before, and where the kill came in the
    middle of them."""

    async def scenario(engines: Engines, ground: Ground) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        made = await engines.answer(engines.request(Opcode.CREATE, wire.CREATE_IN.pack(flags, 0o640, 0, 0) + b"log\0"))
        handle = handle_of(made)

        def write(offset: int, data: bytes) -> Request:
            body = wire.WRITE_IN.pack(handle, offset, len(data), 0, 0, 0, 0)
            return engines.request(Opcode.WRITE, body, node=node_of(made), data=data)

        await engines.answer(write(0, b"xx"))
        assert await engines.twice(write(2, b"xx")) == ((wire.WRITE_OUT.pack(2, 0),),) * 2
        await engines.again(write(4, b"xx"))  # the first try did not come to it
        await engines.answer(write(6, b"ab"))  # as far as the next one came
        assert await engines.again(write(6, b"abcd")) == (wire.WRITE_OUT.pack(4, 0),)
        await engines.vfs.files.flush(handle)
        opened = await engines.vfs.files.open(node_of(made), os.O_RDONLY, ROOT)
        assert bytes(await engines.vfs.files.read(opened.handle, 0, 100)) == b"xxxxxxabcd"

    on(ground, scenario)


def test_a_release_that_was_done_is_done(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        made = await engines.answer(engines.request(Opcode.CREATE, CREATE))
        await engines.twice(engines.request(Opcode.RELEASE, wire.RELEASE_IN.pack(handle_of(made), 0, 0, 0)))
        assert not engines.vfs.files.is_open(handle_of(made))

    on(ground, scenario)


def test_attributes_are_made_and_removed_once(ground: Ground) -> None:
    async def scenario(engines: Engines, ground: Ground) -> None:
        ground.put("file", b"1")
        node = (await engines.vfs.lookup(ROOT_NODE, b"file")).attr.node
        making = wire.SETXATTR_IN.pack(5, os.XATTR_CREATE) + b"user.x\0value"
        await engines.twice(engines.request(Opcode.SETXATTR, making, node=node))
        with pytest.raises(Exists):
            await engines.again(
                engines.request(
                    Opcode.SETXATTR, wire.SETXATTR_IN.pack(5, os.XATTR_CREATE) + b"user.x\0other", node=node
                )
            )
        await engines.twice(engines.request(Opcode.REMOVEXATTR, b"user.x\0", node=node))
        with pytest.raises(NoAttribute):
            await engines.answer(engines.request(Opcode.REMOVEXATTR, b"user.x\0", node=node))

    on(ground, scenario)
