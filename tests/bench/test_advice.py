"""What ``tiercache advise`` makes of traces whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiercache.bench.simulator import advice as module
from tiercache.bench.simulator.advice import Advice, advise, epochs_of
from tiercache.bench.simulator.advice_words import as_dictionary, sentences, title
from tiercache.bench.simulator.recorded import Recorded, recorded, recorded_in
from tiercache.bench.simulator.traces import Trace, epochs_trace, zipf_trace
from tiercache.errors import ConfigError
from tiercache.policies import POLICIES

DAY_S = 86_400.0
OBJECT_BYTES = 102_400  # as charged
MIB = 1024 * 1024


def epochs(objects: int = 500, number: int = 5) -> Trace:
    return epochs_trace(objects=objects, epochs=number, spread=0, seed=1)


def asked(trace: Trace, *, share: float = 0.5, added: float = 0.3, policy: str = "s3fifo", day: bool = False) -> Advice:
    footprint_bytes = trace.footprint_bytes()
    found = Recorded(trace, began_s=0, ended_s=DAY_S if day else 0)
    added_bytes = int(footprint_bytes * added)
    return advise(found, capacity_bytes=int(footprint_bytes * share), policy=policy, added_bytes=added_bytes)


def test_of_epochs_it_advises_hold_and_a_plan() -> None:
    found = asked(epochs())
    assert found.epochs == 5
    assert found.uncounted == 500, "the first epoch fills the cache"
    said = sentences(found)
    assert any(
        line.startswith("Policy hold instead of s3fifo at 24.4 MiB: hit ratio .50 instead of .1") for line in said
    )
    assert any(line.startswith("Each object is read once in each epoch (5 times in all): a plan") for line in said)
    hold = found.cell("hold", found.capacity_bytes)
    assert hold.counts.hit_ratio == 0.5
    assert found.origin_bytes(hold) == 4 * 250 * OBJECT_BYTES


def test_with_hold_more_room_gives_what_it_holds_more() -> None:
    found = asked(epochs(), policy="hold", day=True)
    said = sentences(found)
    # A day of five epochs: four are counted, in four fifths of the day.
    less = 5 * 150 * OBJECT_BYTES / MIB
    assert (
        f"With 39.1 MiB instead of 24.4 MiB: hit ratio .80 instead of .50, {less:.3g} MiB a day less from the origin."
        in said
    )
    more = 5 * 125 * OBJECT_BYTES / MIB
    assert (
        f"With 12.2 MiB instead of 24.4 MiB: hit ratio .25 instead of .50, {more:.3g} MiB a day more from the origin."
        in said
    )
    assert any(line.startswith("No other policy spares the origin notably more bytes than hold") for line in said)
    assert "Admission by the second miss saves no writes: there are none." in said


def test_of_a_short_time_it_says_nothing_of_days() -> None:
    [line] = [line for line in sentences(asked(epochs(), policy="hold")) if line.startswith("With 39.1 MiB")]
    assert line.endswith("58.6 MiB of 195 MiB that are read less from the origin.")


def test_of_skewed_reads_it_advises_a_policy_and_no_plan() -> None:
    found = asked(zipf_trace(objects=3000, reads=30_000, alpha=1, spread=0, seed=1), share=0.05, policy="lru")
    assert not found.epochs
    said = sentences(found)
    assert any(line.startswith("Policy wtinylfu instead of lru at ") for line in said)
    assert any(line.startswith("No epochs are to be seen") for line in said)
    [saves] = [line for line in said if line.startswith("Admission by the second miss (nvme.second_miss_s) saves ")]
    assert int(saves.split("saves ")[1].split("%")[0]) > 30


def test_where_all_fits_more_room_gives_nothing() -> None:
    said = sentences(asked(epochs(), share=1.5))
    assert "All that was read, 48.8 MiB, fits into 73.2 MiB: more room gives nothing." in said
    assert [line[:24] for line in said if line.startswith("With ")] == ["With 36.6 MiB instead of"], "only less room"


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (epochs(100, 5), "it has 500 reads; with fewer than 1,000 nothing can be said"),
        (epochs(1000, 1), "it reads each object 1.0 times in the mean; nothing can be said before it is 2 times"),
    ],
)
def test_of_a_trace_that_is_too_short_it_says_so_and_no_more(trace: Trace, why: str) -> None:
    found = asked(trace)
    assert sentences(found) == [f"No advice: the trace is too short: {why}."]
    assert found.grid is None
    assert as_dictionary(found)["results"] == []


def test_epochs_are_told_from_reads_by_chance_and_may_be_cut_off() -> None:
    assert epochs_of(epochs(500, 5).reads[:-123]) == 5
    assert not epochs_of(zipf_trace(objects=500, reads=2500, alpha=0, spread=0, seed=1).reads), "evenly, but by chance"


@pytest.mark.parametrize("policy", ["lru", "s3fifo", "hold"])
def test_a_sample_tells_what_the_whole_trace_tells(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its own share of the capacity, and where advise itself takes a sample of a long trace."""
    whole = zipf_trace(objects=20_000, reads=100_000, alpha=1, spread=1, seed=1)
    kept = {key for key, _ in whole.reads if hash_of(key) < 0.2}
    sample = Trace("sample", [read for read in whole.reads if read[0] in kept])
    capacity_bytes = whole.footprint_bytes() // 10
    ratios, bytes_ratios = [], []
    for trace, share, reads_max in ((whole, 1.0, 10**9), (sample, 0.2, 10**9), (whole, 1.0, 20_000)):
        monkeypatch.setattr(module, "READS_MAX", reads_max)
        monkeypatch.setattr(module, "POLICIES", {policy: POLICIES[policy]})
        told = Recorded(trace, sample=share, all_reads=len(whole.reads))
        found = advise(told, capacity_bytes=capacity_bytes, policy=policy, added_bytes=capacity_bytes)
        ratios.append(found.now.counts.hit_ratio)
        bytes_ratios.append(found.now.counts.byte_hit_ratio)
        assert found.footprint_bytes == pytest.approx(whole.footprint_bytes(), rel=0.05)
        assert found.read_bytes == pytest.approx(sum(size for _, size in whole.reads[50_000:]), rel=0.1)
    assert ratios[1:] == pytest.approx([ratios[0]] * 2, abs=0.03)
    assert bytes_ratios[1:] == pytest.approx([bytes_ratios[0]] * 2, abs=0.05)


def hash_of(key: bytes) -> float:
    """Of a trace's number, spread evenly over 0 to 1, and not as advise spreads them."""
    return int(key) * 0.618033988749895 % 1


HEADER = '# tiercache {"sample": 0.5, "capacity_bytes": 1000, "policy": "lru", "began": 100}\n'


def test_a_recorded_trace_tells_of_its_engine(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "reads.1.csv").write_text(HEADER + "a,1\n# at 150 of 1\n")
    later = HEADER.replace("100", "160").replace("lru", "hold")
    (tmp_path / "trace" / "reads.csv").write_text(later + "b,1\n# at 200 of 2\n")
    found = recorded_in(tmp_path)
    assert [key[:1] for key, _ in found.trace.reads] == [b"a", b"b"]
    assert (found.sample, found.capacity_bytes, found.policy, found.duration_s) == (0.5, 1600, "hold", 100)
    assert (found.all_reads, found.weight) == (3, 0.75)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,1\nb\n", "line 2 is not key,size, with the size in bytes"),
        ("# tiercache {\na,1\n", "a remark is not as tiercache writes it: # tiercache {"),
        ('# tiercache {"sample": 7}\na,1\n', "a remark is not as tiercache writes it"),
        ("# tiercache []\na,1\n", "a remark is not as tiercache writes it"),
        ("# at 1\na,1\n", "a remark is not as tiercache writes it: # at 1"),
        ("# at noon of 3\na,1\n", "a remark is not as tiercache writes it: # at noon of 3"),
        ("# at\n", "has no reads"),
        ("\0\0\n", "line 1 is not key,size"),
    ],
)
def test_a_damaged_trace_is_one_line_that_names_it(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "reads.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        recorded([path])
    assert str(error.value).startswith(f"{path}: {complaint}")


def test_programs_get_figures_and_sentences() -> None:
    told = json.loads(json.dumps(as_dictionary(asked(epochs(), day=True))))
    assert told["counted_s"] == pytest.approx(0.8 * DAY_S)
    assert {row["policy"] for row in told["results"]} >= {"s3fifo", "hold", "planned"}
    assert len({row["capacity_bytes"] for row in told["results"]}) == 4
    assert told["second_miss"]["policy"] == "s3fifo"
    assert told["advice"] == sentences(asked(epochs(), day=True))
    assert title(asked(epochs(), day=True)) == "2,500 reads of 500 objects, in 1 d; 48.8 MiB in all"


def test_a_policy_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="policy 'belady' cannot be simulated; allowed: fifo, lru"):
        asked(epochs(), policy="belady")
