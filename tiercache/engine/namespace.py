"""The names of one origin as one profile sees them: what mounts and the server work with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from tiercache.cache import VersionRef
from tiercache.config import Profile
from tiercache.engine.attribute_changes import AttributeChanges
from tiercache.engine.changes import Changes
from tiercache.engine.checkpoints import Checkpoints
from tiercache.engine.client_files import ClientFiles
from tiercache.engine.conflicts import Conflicts
from tiercache.engine.entries import attributes_of, now_ns
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.handle import Handle
from tiercache.engine.live import live_entry
from tiercache.engine.names import Names, show
from tiercache.engine.parting import Parting
from tiercache.engine.parts import Parts
from tiercache.engine.promises import Promises
from tiercache.engine.renames import Renames
from tiercache.engine.resumption import Resumption
from tiercache.engine.tree import ChangeListener, Tree
from tiercache.engine.writes import Writes
from tiercache.engine.xattrs import Xattrs
from tiercache.errors import Absent, Changed, ReadOnly
from tiercache.model import Attributes, Capability, Entry, Key, Kind, OriginId, Space, VersionId, kept_time_ns
from tiercache.staging import StagedFile
from tiercache.writeback import Spilled

Children = list[tuple[bytes, Entry]]
"""Names (or whole keys) with their entries."""


class Namespace:
    """Every operation on names and files. Trio thread only; keys are full keys; errors are the domain's."""

    def __init__(self, tree: Tree, profile: Profile, promises: Promises, parts: Parts) -> None:
        self.tree = tree
        self.profile = profile
        self.promises = promises
        self.names = Names(tree, profile)
        self.writes = Writes(tree, self.names, profile, promises, parts)
        self.files = Files(tree, self.names, self.writes, parts)
        parting = Parting(tree, self.names, self.files, self.writes)
        self.client_files = ClientFiles(tree, self.names, self.files, self.writes, parting, parts)
        self._writeback = parts.writeback
        giving_way = GivingWay(tree, self.writes, parts)
        self.changes = Changes(tree, self.names, self.files, self.writes, parting, giving_way, parts.writeback)
        self.renames = Renames(
            tree, self.names, self.files, self.writes, self.client_files, self.changes, parting, parts
        )
        self.conflicts = Conflicts(tree, self.renames, parting, parts)
        self.resumption = Resumption(tree, self.names, self.files, self.changes, self.renames, parts)
        self.attributes = AttributeChanges(tree, self.names, self.files, self.writes)
        self.xattrs = Xattrs(self)
        self.checkpoints = Checkpoints(self, parts.checkpoints, parts.writeback.trees.announces)

    @property
    def origin_id(self) -> OriginId:
        return self.tree.origin_id

    @property
    def capabilities(self) -> Capability:
        return self.tree.origin.capabilities

    @property
    def read_only(self) -> bool:
        return self.profile.read_only or self.tree.can(Capability.READ_ONLY)

    @property
    def on_change(self) -> list[ChangeListener]:
        """Called with key and inode when a name's object became another one, here or at the origin."""
        return self.tree.listeners

    # -- names ------------------------------------------------------------------------------------

    def known(self, key: Key) -> Entry | None:
        """What the catalog can answer alone, an ABSENT entry included; None when the origin must be asked."""
        entry = self.names.known(key)
        return entry if entry is None or entry.kind is Kind.ABSENT else self._newest(entry)

    def entry(self, key: Key) -> Entry | None:
        """What the catalog has, fresh or not."""
        return self.tree.entry(key)

    async def lookup(self, key: Key) -> Entry:
        return self._newest(await self.names.lookup(key))

    async def root(self, key: Key) -> Entry:
        """The directory that a mount shows from now on, until ``Tree.hide``: an empty one for a prefix without
        objects."""
        self.tree.show(key)
        try:
            entry = await self.names.find(key)
            if entry is None and key in self.tree.mounted:
                entry = self.names.remember(key, None)  # a listing had told that it is not there
            if entry is None:
                raise Absent(f"{show(key)}: no such directory")
            if key in self.tree.hollow:
                await self.names.children(b"")  # an unknown bucket or a denied one is told here
        except BaseException:
            self.tree.hide(key)
            raise
        return entry

    def known_inode(self, inode: int) -> Entry | None:
        """As ``getattr`` where the catalog can answer alone, else None."""
        live = self.tree.live.get(inode)
        if live is not None and live.lost:
            raise Changed(f"inode {inode} stands for a file of which nothing is left")
        if live is not None and (live.key is None or live.staged is not None):
            return live_entry(live)
        key = self._live_key_of(inode)
        entry = self.known(key)
        # Replaced by another file: then ``getattr`` tells whether it has another name.
        return entry if entry is not None and entry.inode == inode else None

    def known_version(self, inode: int) -> VersionRef | None:
        """The version of a clean file, where the catalog can answer alone, else None."""
        key = self._live_key_of(inode)
        entry = self.names.known(key)
        if entry is None or entry.inode != inode or not entry.version or entry.staged:
            return None
        return self.tree.version_ref(key, entry)

    def staged_of(self, inode: int) -> StagedFile | None:
        """The staged file with the newest bytes of an inode; None if it is clean."""
        live = self.tree.live.get(inode)
        return None if live is None else live.staged

    def known_children(self, directory: Key) -> Children | None:
        """As ``list`` where a listing is remembered and fresh, else None."""
        children = self.names.known_children(directory)
        return None if children is None else [(name, self._newest(entry)) for name, entry in children]

    async def list(self, directory: Key, *, posix: bool = True) -> Children:
        children = await self.names.children(directory, posix=posix)
        return [(name, self._newest(entry)) for name, entry in children]

    async def walk(self, directory: Key) -> Children:
        return [(key, self._newest(entry)) for key, entry in await self.names.walk(directory)]

    def key_of(self, inode: int) -> Key:
        """The present name of an inode; Absent when it has none."""
        live = self.tree.live.get(inode)
        if live is not None:
            if live.key is None:
                raise Absent(f"inode {inode} has no name any more")
            return live.key
        found = self.tree.catalog.name_of_inode(inode)
        if found is None or found[0] != self.origin_id:
            raise Absent(f"inode {inode} is unknown")
        return found[1]

    async def getattr(self, inode: int) -> Entry:
        """Attributes by inode, also of an unlinked one that is still open."""
        known = self.known_inode(inode)
        if known is not None:
            return known
        key = self._live_key_of(inode)
        try:
            entry = await self.lookup(key)
            if entry.inode == inode:
                return entry
        except Absent:
            if not self._has_another_name(inode, key):
                raise
        if not self._has_another_name(inode, key):
            raise Changed(f"{show(key)}: replaced by another file")
        return await self.getattr(inode)

    def _has_another_name(self, inode: int, key: Key) -> bool:
        """Whether a hard-linked file that has lost ``key`` is known by another name."""
        try:
            return self.key_of(inode) != key
        except Absent:
            return False

    async def _present_key(self, inode: int) -> Key:
        """The name of an inode; of a file with several one that others have not removed."""
        key = self._live_key_of(inode)
        entry = self.tree.entry(key)
        if entry is not None and entry.link_count > 1:
            await self.getattr(inode)
            key = self._live_key_of(inode)
        return key

    def nameless(self, inode: int) -> Entry | None:
        """The entry of a file that lost its name, to us or to others, while it is open."""
        live = self.tree.live.get(inode)
        return live_entry(live) if live is not None and live.key is None and not live.lost else None

    def _live_key_of(self, inode: int) -> Key:
        """As ``key_of``, but Changed (ESTALE) for an inode without a name: the kernel then looks the name up again."""
        try:
            return self.key_of(inode)
        except Absent as error:
            raise Changed(f"inode {inode} stands for no name any more") from error

    def _newest(self, entry: Entry) -> Entry:
        live = self.tree.live.get(entry.inode)
        # By inode: a second name of a hard-linked file has an entry of its own, which does not tell of staged bytes.
        return entry if live is None or live.staged is None else live_entry(live)

    # -- files ------------------------------------------------------------------------------------

    async def open(
        self, inode: int, *, read: bool = True, write: bool = False, truncate: bool = False, append: bool = False
    ) -> Handle:
        if write or truncate:
            self._require_writable()
        live = self.tree.live.get(inode)
        if live is not None and live.key is None:
            return self.files.open_unlinked(live, write=write, append=append)
        key = await self._present_key(inode)
        return await self.files.open(key, write=write, truncate=truncate, append=append, bring=read and not write)

    def reopen(self, inode: int, *, writable: bool, append: bool, version: VersionId, size_bytes: int) -> Handle:
        """A handle that an earlier engine had; see ``Files.reopen``."""
        known = VersionRef(self.tree.origin, self.origin_id, b"", "", size_bytes, version)
        return self.files.reopen(inode, writable=writable, append=append, version=known)

    def open_known(self, inode: int) -> Handle | None:
        """As ``open`` for reading where the catalog can answer alone, else None."""
        live = self.tree.live.get(inode)
        if live is not None and live.key is None:
            return self.files.open_unlinked(live, write=False, append=False)
        key = self._live_key_of(inode)
        entry = self.names.known(key)
        if entry is None or entry.kind is not Kind.FILE or entry.inode != inode:
            return None
        return self.files.open_known(key, entry)

    def renew_inode(self, inode: int) -> None:
        """The file's names stand for a new inode from now on; who has the old one open keeps its bytes."""
        self.files.renew_inode(inode)

    async def create(
        self,
        key: Key,
        *,
        mode: int,
        uid: int,
        gid: int,
        exclusive: bool = False,
        truncate: bool = False,
        append: bool = False,
    ) -> tuple[Entry, Handle]:
        self._require_writable()
        attributes = Attributes(mode & 0o7777, uid, gid, now_ns())
        return await self.files.create(key, attributes, exclusive=exclusive, truncate=truncate, append=append)

    def create_now(
        self, key: Key, *, mode: int, uid: int, gid: int, exclusive: bool = False, append: bool = False
    ) -> tuple[Entry, Handle] | None:
        """``create`` where the catalog knows that there is no such file and nothing has to be waited for, else None."""
        self._require_writable()
        return self.files.create_now(
            key, Attributes(mode & 0o7777, uid, gid, now_ns()), exclusive=exclusive, append=append
        )

    # -- changes ----------------------------------------------------------------------------------

    async def sync_names(self) -> None:
        """What is staged under which names survives a power cut."""
        await self._writeback.sync_names()

    # ``resumed``: an earlier engine may have made it; then that is the answer.

    async def mkdir(self, key: Key, *, mode: int, uid: int, gid: int, resumed: bool = False) -> Entry:
        self._require_writable()
        at_ns = now_ns()
        attributes = Attributes(mode & 0o7777, uid, gid, at_ns, at_ns, at_ns)
        return await self.changes.mkdir(key, attributes, resumed=resumed)

    async def rmdir(self, key: Key) -> None:
        self._require_writable()
        await self.changes.rmdir(key)

    async def unlink(self, key: Key, *, keep_directory: bool = True) -> None:
        """``keep_directory``: on an object store the directory stands even if this was its last object."""
        self._require_writable()
        await self.changes.unlink(key, keep_directory=keep_directory)

    async def remove_tree(self, directory: Key) -> None:
        self._require_writable()
        await self.changes.remove_tree(directory)

    async def rename(
        self,
        source: Key,
        target: Key,
        *,
        no_replace: bool = False,
        exchange: bool = False,
        keep_directory: bool = True,
        begun: AbstractContextManager[object] | None = None,
    ) -> None:
        """``begun`` is entered when all has been judged, before anything changes."""
        self._require_writable()
        await self.renames.rename(
            source, target, no_replace=no_replace, exchange=exchange, keep_directory=keep_directory, begun=begun
        )

    async def resume_rename(self, source: Key, target: Key, *, inode: int, exchange: bool) -> bool:
        """Finish a rename that an earlier engine was killed in; see ``Resumption``."""
        self._require_writable()
        return await self.resumption.rename(source, target, inode=inode, exchange=exchange)

    async def was_removed(self, key: Key) -> None:
        """An earlier engine removed the name, which is gone at the origin: do what follows from that."""
        self.doubt(key)
        await self.changes.was_removed(key)

    def doubt(self, key: Key) -> None:
        """Ask the origin for this name at its next lookup."""
        self.tree.doubt(key)

    async def copy(self, source: Key, target: Key) -> Entry:
        self._require_writable()
        return await self.renames.copy(source, target)

    async def symlink(self, key: Key, target: bytes, *, uid: int, gid: int, resumed: bool = False) -> Entry:
        self._require_writable()
        at_ns = now_ns()
        attributes = Attributes(0o777, uid, gid, at_ns, at_ns, at_ns)
        return await self.changes.symlink(key, target, attributes, resumed=resumed)

    async def make_special(
        self, key: Key, kind: Kind, device: int, *, mode: int, uid: int, gid: int, resumed: bool = False
    ) -> Entry:
        """Make a pipe, socket or device file. Unsupported where the origin has none."""
        self._require_writable()
        at_ns = now_ns()
        attributes = Attributes(mode & 0o7777, uid, gid, at_ns, at_ns, at_ns)
        return await self.changes.make_special(key, kind, device, attributes, resumed=resumed)

    async def link(self, inode: int, key: Key, *, resumed: bool = False) -> Entry:
        """``resumed``: an earlier engine may have made the link; then it is the answer."""
        self._require_writable()
        return await self.changes.link(await self._present_key(inode), key, resumed=resumed)

    async def setattr(
        self,
        inode: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        mtime_ns: int | None = None,
        atime_ns: int | None = None,
        size: int | None = None,
    ) -> Entry:
        """Change what is not None. A new size goes through staging, the rest is stored with the object."""
        self._require_writable()
        if size is not None:
            await self._resize(inode, size)
        times = {"mtime_ns": mtime_ns, "atime_ns": atime_ns}
        changes = {"mode": mode, "uid": uid, "gid": gid}
        changes |= {name: None if time_ns is None else kept_time_ns(time_ns) for name, time_ns in times.items()}
        changes = {name: value for name, value in changes.items() if value is not None}
        if not changes:
            return await self.getattr(inode)
        entry = await self.getattr(inode)
        attributes = attributes_of(entry)._replace(ctime_ns=now_ns(), **changes)  # type: ignore[arg-type]
        return await self.set_attributes(inode, attributes)

    async def set_attributes(self, inode: int, attributes: Attributes) -> Entry:
        """Replace all attributes of an inode; of an unlinked one only in memory."""
        live = self.tree.live.get(inode)
        if live is not None and live.key is None:
            live.mtime_ns = 0
            live.entry = live.entry._replace(**{k: v for k, v in attributes._asdict().items() if k in Entry._fields})
            self.files.keep_attributes(live)
            return live_entry(live)
        return await self.attributes.set_attributes(await self._present_key(inode), attributes)

    async def _resize(self, inode: int, size_bytes: int) -> None:
        live = self.tree.live.get(inode)
        if live is not None and live.key is None:
            await self.writes.truncate(live, size_bytes)
            return
        handle = await self.files.open(await self._present_key(inode), write=True, truncate=False, append=False)
        try:
            live = self.tree.live.get(handle.inode)
            assert live is not None
            await self.writes.truncate(live, size_bytes)
            await handle.flush()
        finally:
            await handle.close()

    async def space(self, key: Key = b"") -> Space:
        return await self.tree.call(self.tree.origin.space, key)

    # -- extended attributes ----------------------------------------------------------------------

    async def getxattr(self, inode: int, name: bytes) -> bytes:
        return await self.xattrs.get(inode, name)

    async def setxattr(
        self, inode: int, name: bytes, value: bytes, *, create: bool = False, replace: bool = False
    ) -> None:
        self._require_writable()
        await self.xattrs.set(inode, name, value, create=create, replace=replace)

    async def removexattr(self, inode: int, name: bytes) -> None:
        self._require_writable()
        await self.xattrs.remove(inode, name)

    async def listxattr(self, inode: int) -> Sequence[bytes]:
        return await self.xattrs.names(inode)

    # -- files written by clients -----------------------------------------------------------------

    async def stage(self, key: Key, *, exclusive: bool, keep: bool) -> tuple[int, str, int]:
        """Staged id, path and present size of a file that a client will write itself."""
        self._require_writable()
        staged = await self.client_files.stage(key, exclusive=exclusive, keep=keep)
        return staged.id, staged.path, staged.size_bytes

    async def publish(self, staged_id: int, *, sync: bool = False) -> Entry:
        return await self.client_files.publish(staged_id, sync=sync)

    async def spill(self, staged_id: int, position: int, step_bytes: int) -> Spilled:
        return await self.client_files.spill(staged_id, position, step_bytes)

    async def sync_staged(self, staged_id: int) -> None:
        await self.client_files.sync_staged(staged_id)

    async def discard(self, staged_id: int) -> None:
        await self.client_files.discard(staged_id)

    def _require_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.tree.origin.identity} is read-only here")
