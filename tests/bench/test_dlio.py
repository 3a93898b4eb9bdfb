"""DLIO's runs over our mount. A program that takes its settings stands for it: DLIO itself needs MPI and gigabytes."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from tiercache.bench.dlio import LOCAL, OURS, SHAPES, UNCACHED, Result, main, print_results
from tiercache.bench.peers.rclone import Rclone

STAND_IN = f"""#!{sys.executable} -I
import json, sys
from pathlib import Path

given = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:])
data, output = Path(given["workload.dataset.data_folder"]), Path(given["hydra.run.dir"])
numbers = {{part: int(given[f"workload.dataset.num_files_{{part}}"]) for part in ("train", "eval")}}
parts = {{"train": numbers["train"], "valid": numbers["eval"]}}
output.mkdir(parents=True)
if given["workload.workflow.generate_data"] == "True":
    for part, number in parts.items():
        (data / part).mkdir(parents=True)
        for place in range(number):
            (data / part / f"{{place}}.npz").write_bytes(b"record %d" % place)
else:
    for epoch in range(int(given["workload.train.epochs"])):
        for part, number in parts.items():
            found = [path.read_bytes() for path in (data / part).iterdir()]
            assert sorted(found) == sorted(b"record %d" % place for place in range(number)), found
    metric = {{"train_au_percentage": [50.0, 90.0], "train_throughput_samples_per_second": [10.0, 20.0]}}
    (output / "summary.json").write_text(json.dumps({{"metric": metric}}))
"""


def stand_in(tmp_path: Path, text: str) -> str:
    path = tmp_path / "dlio_benchmark"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.timeout(300)
def test_every_shape_trains_over_every_row_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    arguments = [
        f"--dlio={stand_in(tmp_path, STAND_IN)}", "--rounds=1", "--scale=0.001", "--simulate-origin=latency=1ms",
        f"--work-dir={tmp_path / 'work'}", f"--json={tmp_path / 'r.json'}",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert os.listdir(tmp_path / "work") == []
    found = {(each["shape"], each["row"]): each for each in json.loads((tmp_path / "r.json").read_text())}
    rows = {OURS, LOCAL, *([UNCACHED] if Rclone.find() else [])}
    assert found.keys() == {(shape.name, row) for shape in SHAPES for row in rows}
    for shape in SHAPES:
        files = 2 * shape.batch + 1
        assert found[shape.name, LOCAL]["gets"] == 0
        assert found[shape.name, OURS]["gets"] == files  # in the first epoch alone
    assert "| resnet50 | tiercache mount | 50.0 % | 90.0 % | 10 | 20 | 65 |" in capsys.readouterr().out


def test_a_run_that_fails_says_what_dlio_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work").mkdir()
    program = stand_in(tmp_path, "#!/bin/sh\necho no such workload >&2\nexit 3\n")
    assert main([f"--dlio={program}", f"--work-dir={tmp_path / 'work'}"]) == 1
    assert "tiercache: dlio: DLIO failed: no such workload" in capsys.readouterr().err
    assert os.listdir(tmp_path / "work") == []


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"--dlio={tmp_path / 'nothing'}", f"--work-dir={tmp_path}"])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'nothing'} is not there" in line


def test_the_table_has_medians_of_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([Result("unet3d", OURS, (10.0 * n, 90.0), (5.0, 6.0), 7) for n in (1, 2, 6)])
    assert capsys.readouterr().out.splitlines()[-1] == "| unet3d | tiercache mount | 20.0 % | 90.0 % | 5 | 6 | 7 |"
