"""From the reads of a real engine to advice."""

from __future__ import annotations

import random

from rig.engine_ground import Ground, read_file, run
from tiercache.bench.simulator.advice import advise
from tiercache.bench.simulator.advice_words import sentences
from tiercache.bench.simulator.grid import simulate
from tiercache.bench.simulator.recorded import recorded_in
from tiercache.units import Size

FILES = 340
EPOCHS = 3
FILE_BYTES = 4096


def test_an_engine_hits_as_often_as_the_replay_of_its_trace_and_gets_the_right_advice(s3_ground: Ground) -> None:
    ground = s3_ground
    capacity_bytes = FILES // 2 * FILE_BYTES
    ground.settings = {
        "ram": {"capacity": 0},
        "nvme": {"capacity": capacity_bytes, "free_space_floor": 0, "policy": "lru"},
        "trace": {"on": True},
    }

    async def scenario() -> None:
        for number in range(FILES):
            ground.put(f"f{number}", bytes([number % 256]) * FILE_BYTES)
        keys = [ground.key(f"f{number}") for number in range(FILES)]
        async with ground.engine() as (engine, names):
            for epoch in range(EPOCHS):
                for key in random.Random(epoch).sample(keys, FILES):
                    await read_file(names, key)
            figures = engine.metrics.snapshot()
        found = recorded_in(ground.cache_dir)
        [cell] = simulate(found.trace, ["lru"], [Size(capacity_bytes)]).cells
        assert cell.counts.reads == EPOCHS * FILES
        assert cell.counts.reads - cell.counts.hits == figures["misses_total"]
        advice = advise(
            found, capacity_bytes=found.capacity_bytes, policy=found.policy, added_bytes=capacity_bytes // 2
        )
        assert advice.epochs == EPOCHS
        assert advice.cell("hold", capacity_bytes).counts.hit_ratio == 0.5
        assert any(line.startswith("Policy hold instead of lru at 680 KiB: ") for line in sentences(advice))

    run(scenario)
