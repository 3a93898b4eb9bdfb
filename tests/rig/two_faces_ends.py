"""How a node's two faces come through what others write, kills, power losses and the loss of the node."""

from __future__ import annotations

import os
import random
import shutil
import sys

from rig.inodes import File, Loss, Model
from rig.two_faces import Faces, Open, close_level
from tiercache.model import Durability, Keep, Kind, StagedState

TOLD = (StagedState.CONFLICT, StagedState.LOST)


class Ends(Faces):
    """What happens to all."""

    def tear_down(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else a step has failed
                self.settle("")
                self.drain()
                self.look()
        finally:
            self.drop_writings()
            for reading in self.readings:
                reading.reader.close()
            self.node.close()
            shutil.rmtree(self.base)

    # -- others ---------------------------------------------------------------------------------------

    def settle(self, path: str) -> None:
        """Before a name, or a directory, is changed: no two things are true of it."""
        for contested in list(self.contests):
            if not path or contested == path or contested.startswith(path + "/"):
                self.end_contest(contested)

    def end_contest(self, path: str, keep: Keep = Keep.THEIRS) -> None:
        """See who won, and end a conflict."""
        contest = self.contests[path]
        self.close_all(contest.ours)
        self.drain()
        del self.contests[path]
        ours, found = contest.ours, self.node.at_origin().get(path)
        records = self.node.engine.journal.at(self.node.names.origin_id, self.key(path))
        if any(record.state is StagedState.CONFLICT for record in records):
            assert found == contest.theirs
            assert self.read(path) == self.fs.cat_file(self.place + path) == ours.data
            self.run(self.node.names.conflicts.resolve, self.key(path), keep)
            self.node.drain()
            found = self.node.at_origin().get(path)
            assert found == (ours.data if keep is Keep.OURS else contest.theirs)
        elif found == ours.data:
            assert ours.whole, "what others wrote was replaced by what was made from something else"
        else:
            assert found == contest.theirs
        if found != ours.data:
            self.model.remove(path)
            ours.replaced = True
            if found is not None:
                self.adopt(path, found)
        self.forget_empty_directories()
        self.drain()

    def close_all(self, file: File) -> None:
        for opened in [opened for opened in self.opens if opened.file is file]:
            self.opens.remove(opened)
            self.close(opened)

    def close(self, opened: Open) -> None:
        self.run(self.node.vfs.files.flush, opened.number)
        if opened.writable:
            self.acknowledge_name(opened.file, close_level)
        self.run(self.node.vfs.files.release, opened.number)

    def forget_empty_directories(self) -> None:
        """On a store an empty directory may have been a memory of the engine: it may go, and those above it."""
        for path in sorted(self.model.directories - {""}, reverse=True):
            if self.store and not self.model.children(path):
                try:
                    self.node_of(path)
                except FileNotFoundError:
                    self.model.directories.discard(path)

    # -- the end of engines ---------------------------------------------------------------------------

    def kill(self, calls: int = 0) -> None:
        """Nothing is lost, and what is open in the mount stays open."""
        self.drop_writings()
        if calls:
            self.node.die_at(calls)
        else:
            self.node.kill()
        self.node.start()
        self.forget_empty_directories()

    def stop(self) -> None:
        self.opens.clear()
        self.drop_writings()
        self.node.stop()
        self.node.start()
        self.forget_empty_directories()

    def drop_writings(self) -> None:
        for writing in self.writings:
            writing.writer.discard()
        self.writings.clear()

    def lose(self, loss: Loss, seed: int) -> None:
        """The machine loses power, or the node is lost: what was promised at that level is there or told of. From then
        on the model is what there is."""
        self.settle("")
        self.opens.clear()
        self.drop_writings()
        if loss is Loss.POWER:
            self.node.lose_power(random.Random(seed))
        else:
            self.node.lose()
        self.node.start()
        self.node.drain()
        self.node.drain()
        told = self.told()
        torn = {path for path, state in told.items() if state is StagedState.CONFLICT}
        found = self.node.at_origin()
        for file in self.model.losable:
            assert file.survived(loss, found, torn), (loss, file.names, file.promises[loss].states)
        states = {data for file in self.model.ever for data in file.seen}
        assert set(found.values()) <= states, "a state that never was is at the origin"
        for path in told:
            self.run(self.node.names.conflicts.resolve, self.key(path), Keep.THEIRS)
        self.adopt_all()

    def told(self) -> dict[str, StagedState]:
        """Files that did not go up; each is kept and says why."""
        told = {}
        for record in self.node.engine.journal.records():
            assert record.state in TOLD, record
            assert record.last_error, record
            told[record.key.removeprefix(self.node.root + b"/").decode()] = record.state
        return told

    def adopt_all(self) -> None:
        for reading in self.readings:
            reading.reader.close()
        self.model, self.readings = Model(), []
        left = [""]
        while left:
            directory = left.pop()
            self.model.directories.add(directory)
            entries = self.run(self.node.names.list, self.key(directory))
            below = [name.decode() for name, entry in entries if entry.kind is Kind.DIRECTORY]
            left += [f"{directory}/{name}".lstrip("/") for name in below]
        links: dict[int, File] = {}
        for path, data in self.node.at_origin().items():
            inode = 0 if self.store else os.stat(b"/" + self.key(path)).st_ino
            if inode in links:
                self.model.put(path, links[inode])
                self.model.acknowledge(links[inode], Durability.ORIGIN)
            else:
                self.adopt(path, data)
            if inode:
                links[inode] = self.model.files[path]
        self.look()
