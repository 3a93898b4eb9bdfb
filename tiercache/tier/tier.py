"""The files of one tier and the exact account of their bytes.

Invariant I3: ``used_bytes <= capacity_bytes``, with the bytes that fills in flight have asked for included. Accounts
are kept by one thread (the engine's); the blocking file calls of ``tier.files`` may run in any. With quotas each
version is charged to the room of its name, and the victim for a newcomer comes from the newcomer's room.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tiercache.decisions import FORGETFUL, Decisions, Topic
from tiercache.metrics import Metrics
from tiercache.model import Tier, VersionId
from tiercache.policies.admission import Admission, Candidate, Everything
from tiercache.tier.files import FoundFile, scan, unlink_quietly
from tiercache.tier.health import Health, probe
from tiercache.tier.rooms import Account, Quota, Room, Rooms

if TYPE_CHECKING:
    from tiercache.policies.base import Policy

ALLOCATION_UNIT_BYTES = 4096
"""Files are charged in whole units of the disk, an empty one with one unit: so ``du`` agrees with the account."""

WELCOME_MAX = 1024
"""Versions that somebody asked for, and that are not here yet."""

_NOBODY = VersionId(b"")

log = logging.getLogger(__name__)


def charge_bytes(size_bytes: int) -> int:
    """What an extent of this size takes on the disk."""
    return max(1, -(-size_bytes // ALLOCATION_UNIT_BYTES)) * ALLOCATION_UNIT_BYTES


class Reservation:
    """Room for one extent of one version. Ends exactly once, by ``settle`` (it is written) or ``cancel``."""

    __slots__ = ("_account", "_tier", "charged_bytes", "version")

    def __init__(self, tier: FileTier, version: VersionId, account: Account, charged_bytes: int) -> None:
        self._tier = tier
        self._account: Account | None = account
        self.version = version
        self.charged_bytes = charged_bytes

    def settle(self) -> None:
        """The bytes are in the file and recorded."""
        self._tier._close(self.version, self._take(), self.charged_bytes, written=True)

    def cancel(self) -> None:
        """The fill failed."""
        self._tier._close(self.version, self._take(), self.charged_bytes, written=False)

    def _take(self) -> Account:
        assert self._account is not None, "a reservation ends once"
        account, self._account = self._account, None
        return account


class FileTier:
    """One directory with ``ab/<version id>`` per version; used over tmpfs by the RAM tier as well.

    ``on_evict`` is called before a victim's file is unlinked, ``is_pinned`` is asked for each candidate,
    ``reserved_bytes`` tells how much of the disk others may claim at any time: it stays free besides the floor.
    ``on_out`` is called when the disk is taken out; whoever can take it back calls ``probe`` when it is due.
    ``slow_s``: what a block may take. ``policy`` decides for what no quota names, so it is made for what they leave.
    """

    def __init__(
        self,
        tier: Tier,
        directory: str | os.PathLike[str],
        *,
        capacity_bytes: int,
        free_space_floor_bytes: int,
        policy: Policy,
        metrics: Metrics,
        quotas: Sequence[Quota] = (),
        admission: Admission | None = None,
        decisions: Decisions = FORGETFUL,
        max_object_share: float = 0.5,
        slow_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier = tier
        self.directory = os.fspath(directory)
        self.capacity_bytes = capacity_bytes
        self.floor_bytes = free_space_floor_bytes
        self.policy = policy
        self._rooms = Rooms(capacity_bytes, max_object_share, policy, quotas)
        self.accessed: Callable[[VersionId], None] = self._accessed if quotas else policy.access
        """A version was read; unknown ones are ignored."""
        self.admission = Everything() if admission is None else admission
        self.is_choosy = admission is not None or bool(quotas)
        """Whether something may be refused for which there is room."""
        self.on_evict: Callable[[VersionId], None] = lambda version: None
        self.is_pinned: Callable[[VersionId], bool] = lambda version: False
        self.reserved_bytes: Callable[[], int] = lambda: 0
        self._accounts: dict[VersionId, Account] = {}
        self._welcome: OrderedDict[VersionId, None] = OrderedDict()
        self._pending_bytes = 0
        self.on_out: Callable[[], None] = lambda: None
        self.clock = clock
        self._health = Health(clock, slow_s=slow_s)
        self._show_state = metrics.tier_state.labels(tier=tier.label).set
        self._show_state(self._health.state)
        self._count_errors = metrics.tier_errors.labels(tier=tier.label)
        self._count_evictions = metrics.evictions.labels(tier=tier.label)
        self._count_evicted_bytes = metrics.evicted_bytes.labels(tier=tier.label)
        self._count_rejected = metrics.rejected.labels(tier=tier.label)
        self._refused = metrics.refused
        self._note = decisions.note
        self._show_used = metrics.used_bytes.labels(tier=tier.label)
        self._show_resident = metrics.resident.labels(tier=tier.label)
        metrics.capacity_bytes.labels(tier=tier.label).set(capacity_bytes)
        for room in self.quotas:
            metrics.quota_capacity_bytes.labels(rule=room.rule).set(room.capacity_bytes)
            metrics.quota_bytes.labels(rule=room.rule).set_function(partial(getattr, room, "used_bytes"))
        self._usable = capacity_bytes > 0 and self._make_directory()

    # --- what is here -------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of all files and of all fills in flight."""
        return self._rooms.used_bytes

    @property
    def quotas(self) -> Sequence[Room]:
        """To look at; the first that matches a name counts."""
        return self._rooms.named

    @property
    def works(self) -> bool:
        """False while the tier is off or its disk is out: everything is a miss then."""
        return self._usable and self._health.usable

    def path(self, version: VersionId) -> str:
        name = version.hex()
        return f"{self.directory}/{name[:2]}/{name}"

    def __contains__(self, version: VersionId) -> bool:
        return version in self._accounts

    def __len__(self) -> int:
        return len(self._accounts)

    def charged_bytes(self, version: VersionId) -> int:
        """What the account holds for one version, fills in flight included; 0 when it is not here."""
        account = self._accounts.get(version)
        return account.charged_bytes if account else 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether that much fits without any eviction, in a tier without quotas."""
        return self._rooms.rest.fits(charge_bytes(size_bytes))

    def rule(self, name: bytes) -> str:
        """The quota that an object of this name counts against; empty when there is none."""
        return self._rooms.of(name).rule

    def scan(self) -> Iterator[tuple[VersionId, FoundFile]]:
        """The files that are there now; blocking. OSError when the directory cannot be read."""
        return scan(self.directory)

    # --- room ---------------------------------------------------------------------------------------------------

    def takes(self, object_bytes: int, name: bytes) -> bool:
        """Whether an object of this size and name may be kept at all; larger ones are streamed."""
        return self.works and object_bytes <= self._rooms.of(name).max_object_bytes

    def shuts_out(self, object_bytes: int, name: bytes) -> str:
        """Why it does not take any object of this size and name, in a word; empty when it does."""
        return self._shuts_out(object_bytes, self._rooms.of(name))

    def reserve(
        self, version: VersionId, extent_bytes: int, *, object_bytes: int, name: bytes, is_there: bool = False
    ) -> Reservation | None:
        """Make room for an extent of a version, by eviction if need be; None when it cannot be kept.

        Policy and admission are asked at its first extent, with the version's whole size, and the admission is told
        what will be written; not so when the file ``is_there`` already: what was decided of its kind does not matter.

        Each extent is charged by itself, so that a few blocks of a large object take the room of a few blocks.
        """
        charge = charge_bytes(extent_bytes)
        account = self._accounts.get(version)
        room = self._rooms.of(name) if account is None else account.room
        why = self._shuts_out(object_bytes, room)
        asked = None if is_there or account is not None else Candidate(version, name)
        if not why and (why := self._refusal(version, charge, object_bytes, room, asked)):
            self._count_rejected.inc()
        if why:
            self._note(version, Topic.ADMISSION, self.tier, why)
            return None
        if account is None:
            account = self._accounts[version] = Account(room)
            self._welcome.pop(version, None)
            self._note(version, Topic.ADMISSION, self.tier)
        account.pending_bytes += charge
        self._pending_bytes += charge
        self._rooms.charge(room, charge)
        room.policy.insert(version, account.charged_bytes)
        if not is_there:
            self.admission.writes(charge, self.clock())
        self._show()
        return Reservation(self, version, account, charge)

    def restore(self, version: VersionId, charged_bytes: int, *, name: bytes) -> None:
        """Enter a version that an earlier run left into the accounts; ``trim`` afterwards."""
        account = self._accounts.setdefault(version, Account(self._rooms.of(name)))
        self._rooms.charge(account.room, charged_bytes)
        account.settled_bytes += charged_bytes
        account.room.policy.insert(version, account.settled_bytes)
        self._show()

    def welcome(self, version: VersionId) -> None:
        """Somebody asks for this version to be here, other than by reading it."""
        self.admission.welcome(version, self.clock())
        self._welcome[version] = None
        if len(self._welcome) > WELCOME_MAX:
            self._welcome.popitem(last=False)

    def trim(self) -> None:
        """Evict what is over the capacity, or a quota, or, because others fill the disk, under the floor."""
        if self.works:
            for room in self._rooms.all:
                self._evict_for(0, room)
            self._floor_allows(0)

    def give_room(self, wanted_bytes: int) -> bool:
        """Evict for bytes of others, to which the disk is full; False when nothing can go. Victims that somebody has
        open give their room back later."""
        goal, given = self.used_bytes - wanted_bytes, False
        if not self.works:
            return False
        while self.used_bytes > goal and self._evict_anywhere(_NOBODY, "staged bytes"):
            given = True
        return given

    def drop(self, version: VersionId) -> None:
        """Remove a version for another reason than room. Its fills in flight stay charged until they end."""
        account = self._forget(version)
        if account is not None:
            account.room.policy.remove(version)
        self._unlink(version)

    def rename(self, old: VersionId, new: VersionId, *, name: bytes) -> bool:
        """The file of ``old`` was renamed to that of ``new``, an object of this name; fills of ``old`` in flight are
        not part of it. False when the quota of the name does not take so large a file: it is gone then."""
        account = self._forget(old)
        charged_bytes = account.settled_bytes if account is not None else 0
        room = self._rooms.of(name)
        if account is not None:
            account.room.policy.remove(old)
            if room is not account.room and charged_bytes > room.max_object_bytes:
                self._unlink(new)
                return False
        self.restore(new, charged_bytes, name=name)
        self._evict_for(0, room, keep=new)
        return True

    # --- health -------------------------------------------------------------------------------------------------

    def failed(self, error: OSError, doing: str) -> None:
        """Count a failed file operation. A full disk is no illness: the floor deals with it."""
        self._count_errors.inc()
        log.warning("%s tier: %s failed: %s", self.tier.label, doing, error)
        self._judged(self._health.failed(error.errno), f"{doing} failed: {error.strerror or error}")

    def worked(self) -> None:
        """A file operation went well."""
        self._health.worked()
        self._show_state(self._health.state)

    def took(self, seconds: float, blocks: int = 1) -> None:
        """So long took the reading or writing of some blocks."""
        self._judged(self._health.took(seconds / max(1, blocks)), "it is slow")

    def _judged(self, out: bool, why: str) -> None:
        self._show_state(self._health.state)
        if out:
            log.error(
                "%s tier is out of use (%s): reads go to the origin, and nothing is cached in %s until it works again",
                self.tier.label,
                why,
                self.directory,
            )
            self.on_out()

    @property
    def probe_is_due(self) -> bool:
        """Whether a disk that is out should be looked at again."""
        return self._usable and self._health.probe_is_due

    def begin_probe(self) -> None:
        self._health.begin_probe()
        self._show_state(self._health.state)

    def probe(self) -> float | None:
        """How long the disk takes to take a file and give it back; None if it cannot. Blocking, for any thread."""
        began_s = self.clock()
        try:
            probe(self.directory)
        except OSError as error:
            log.info("%s tier stays out of use: %s", self.tier.label, error)
            return None
        return self.clock() - began_s

    def probed(self, took_s: float | None) -> bool:
        """What a probe told; True when the disk is in use again."""
        back = self._health.probed(took_s)
        self._show_state(self._health.state)
        if back:
            log.warning("%s tier is in use again; its copies are verified before they are read", self.tier.label)
        return back

    # --- inside -------------------------------------------------------------------------------------------------

    def _accessed(self, version: VersionId) -> None:
        account = self._accounts.get(version)
        if account is not None:
            account.room.policy.access(version)

    def _shuts_out(self, object_bytes: int, room: Room) -> str:
        if not self._usable:
            return "off"
        if not self._health.usable:
            return "disk out of use"
        if object_bytes <= room.max_object_bytes:
            return ""
        return "too large for its quota" if room.rule else "too large"

    def _refusal(self, version: VersionId, charge: int, object_bytes: int, room: Room, asked: Candidate | None) -> str:
        """Why there is no place for an extent, in a word; empty when there is one, made by eviction if need be."""
        if asked is not None:
            whole = charge_bytes(object_bytes)
            if not room.policy.admits(version, whole) and version not in self._welcome:
                return "quota" if room.rule and not room.fits(whole) else "policy"
            why = self.admission.refuses(asked, self.clock())
            if why:
                self._refused.labels(tier=self.tier.label, why=why).inc()
                return why
        if not self._evict_for(charge, room, keep=version):
            return "quota" if room.rule and not room.fits(charge) else "no room"
        return "" if self._floor_allows(charge, keep=version) else "free space"

    def _evict_for(self, charge: int, room: Room, *, keep: VersionId = _NOBODY) -> bool:
        while not room.fits(charge):
            if not self._evict_one(room, keep, "room"):
                return False
        # Another room is over its quota for a time, by a rename, and what is in it may be in use.
        while self._rooms.used_bytes + charge > self.capacity_bytes:
            if not self._evict_one(self._rooms.fullest_first()[0], keep, "room"):
                return False
        return True

    def _floor_allows(self, charge: int, *, keep: VersionId = _NOBODY) -> bool:
        try:
            missing = self._missing_free_bytes(charge)
        except OSError as error:
            self.failed(error, "asking for free space")
            return False
        # A victim that somebody has open gives its room back later: evict what is missing once, never all there is.
        goal = self._rooms.used_bytes - missing
        while missing > 0 and self._rooms.used_bytes > goal:
            if not self._evict_anywhere(keep, "free space"):
                return False
        return missing <= 0 or self._missing_free_bytes(charge) <= 0

    def _missing_free_bytes(self, charge: int) -> int:
        disk = os.statvfs(self.directory)
        wanted_bytes = self.floor_bytes + self.reserved_bytes() + charge + self._pending_bytes
        return wanted_bytes - disk.f_bavail * disk.f_frsize

    def _evict_anywhere(self, keep: VersionId, why: str) -> bool:
        """For bytes of others, which all rooms make way for: the fullest one first."""
        return any(self._evict_one(room, keep, why) for room in self._rooms.fullest_first())

    def _evict_one(self, room: Room, keep: VersionId, why: str) -> bool:
        victim = room.policy.evict(lambda key: key == keep or self.is_pinned(VersionId(key)))
        if victim is None:
            return False
        version = VersionId(victim)
        self._note(version, Topic.LEAVING, self.tier, why, room.policy.name, keep or None)
        self._count_evictions.inc()
        self._count_evicted_bytes.inc(self.charged_bytes(version))
        self.on_evict(version)
        self._forget(version)
        self._unlink(version)
        return True

    def _forget(self, version: VersionId) -> Account | None:
        account = self._accounts.pop(version, None)
        if account is not None:
            account.alive = False
            self._rooms.charge(account.room, -account.settled_bytes)
            self._show()
        return account

    def _unlink(self, version: VersionId) -> None:
        try:
            unlink_quietly(self.path(version))
        except OSError as error:
            self.failed(error, "unlinking a file")

    def _close(self, version: VersionId, account: Account, charge: int, *, written: bool) -> None:
        self._pending_bytes -= charge
        account.pending_bytes -= charge
        if written and account.alive:
            account.settled_bytes += charge
        else:
            self._rooms.charge(account.room, -charge)
        if account.alive and not written:
            if account.charged_bytes:
                account.room.policy.insert(version, account.charged_bytes)
            else:
                self.drop(version)
        elif not account.alive and version not in self._accounts:
            self._unlink(version)  # the fill may have made the file again after the version was dropped
        self._show()

    def _show(self) -> None:
        self._show_used.set(self._rooms.used_bytes)
        self._show_resident.set(len(self._accounts))

    def _make_directory(self) -> bool:
        try:
            os.makedirs(self.directory, 0o700, exist_ok=True)
            status = os.lstat(self.directory)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise PermissionError(f"{self.directory} is not a directory of ours")
        except OSError as error:
            self.failed(error, "making its directory")
            return False
        return True
