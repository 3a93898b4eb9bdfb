"""A training run that saves checkpoints with real libraries, and one that goes on from them.

``python -m rig.saves save FORMAT RANK DIRECTORY BYTES`` saves ``checkpoint-N`` for each line N of its standard input,
and prints N when the save has returned. ``python -m rig.saves resume FORMAT URL BYTES OPTIONS`` loads the checkpoint at
the URL, compares it bit for bit with what was saved under its number, and prints that; OPTIONS in JSON are those of the
URL's fsspec filesystem. Any error, and any wrong bit, ends them with a traceback.

What a checkpoint holds follows from its number and its size, so that nobody has to be told of it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.utils.data
from fsspec.core import url_to_fs
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.tensor import Shard, distribute_tensor

State = dict[str, torch.Tensor]

RANKS = 4
SHARDS = 3
INDEX = "model.safetensors.index.json"
BATCHES_MAX = 1000

_COLUMNS = 1023


def state_of(number: int, size_bytes: int) -> State:
    """What ``checkpoint-<number>`` holds: weights whose rows no number of ranks divides, other types, an empty one."""
    generator = torch.Generator().manual_seed(number)
    rows = size_bytes // (8 * _COLUMNS) | 1
    return {
        "embedding.weight": torch.randn(rows, _COLUMNS, generator=generator),
        "layer.weight": torch.randn(rows, _COLUMNS, generator=generator).to(torch.bfloat16),
        "head.weight": torch.randn(rows // 2 + 1, _COLUMNS, generator=generator),
        "norm.weight": torch.randn(_COLUMNS, generator=generator),
        "empty": torch.empty(0),
        "step": torch.tensor(number),
    }


def compare(found: State, number: int, size_bytes: int) -> None:
    expected = state_of(number, size_bytes)
    assert found.keys() == expected.keys(), f"checkpoint-{number}: {sorted(found)}"
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, f"checkpoint-{number}: {name}"
        assert torch.equal(found[name], tensor), f"checkpoint-{number}: {name}"


Numbers = Iterator[int]
"""Of the checkpoints to save. Who takes the next one tells by it that the save before has returned."""


def train_with_torch(numbers: Numbers, rank: int, directory: Path, size_bytes: int) -> None:
    for number in numbers:
        checkpoint = directory / f"checkpoint-{number}"
        checkpoint.mkdir()
        torch.save(state_of(number, size_bytes), checkpoint / "state.pt")


def load_torch(url: str, options: dict[str, Any], size_bytes: int) -> State:
    fs, path = url_to_fs(url, **options)
    with fs.open(f"{path}/state.pt", "rb") as file:
        found: State = torch.load(file, weights_only=True)
    return found


def shard_name(number: int) -> str:
    return f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"


def train_with_safetensors(numbers: Numbers, rank: int, directory: Path, size_bytes: int) -> None:
    """Saves the shards and then the index, as Transformers does it."""
    for number in numbers:
        checkpoint = directory / f"checkpoint-{number}"
        checkpoint.mkdir()
        state = state_of(number, size_bytes)
        weight_map = {name: shard_name(place % SHARDS) for place, name in enumerate(state)}
        for shard in sorted(set(weight_map.values())):
            tensors = {name: tensor for name, tensor in state.items() if weight_map[name] == shard}
            safetensors.torch.save_file(tensors, checkpoint / shard, metadata={"format": "pt"})
        (checkpoint / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2))


def load_safetensors(url: str, options: dict[str, Any], size_bytes: int) -> State:
    fs, path = url_to_fs(url, **options)
    found: State = {}
    for shard in sorted(set(json.loads(fs.cat_file(f"{path}/{INDEX}"))["weight_map"].values())):
        found |= safetensors.torch.load(fs.cat_file(f"{path}/{shard}"))
    return found


def train_with_dcp(numbers: Numbers, rank: int, directory: Path, size_bytes: int) -> None:
    """Every rank saves its rows, in the background."""
    store = dist.FileStore(f"{directory}.rendezvous", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for number in numbers:
        spread = {
            name: distribute_tensor(tensor, mesh, [Shard(0)]) if tensor.ndim == 2 else tensor
            for name, tensor in state_of(number, size_bytes).items()
        }
        dcp.async_save(spread, checkpoint_id=directory / f"checkpoint-{number}").result()
    dist.destroy_process_group()


def load_dcp(url: str, options: dict[str, Any], size_bytes: int) -> State:
    found = {name: torch.zeros_like(tensor) for name, tensor in state_of(0, size_bytes).items()}
    dcp.load(found, storage_reader=FsspecReader(url, **options), no_dist=True)
    return found


class Batches(torch.utils.data.IterableDataset[int]):
    """A batch for each checkpoint: training takes the next when what it saved has returned."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __iter__(self) -> Iterator[int]:
        yield from self._numbers

    def __len__(self) -> int:
        return BATCHES_MAX  # who does not know it takes a batch ahead, to see whether there is one


def train_with_lightning(numbers: Numbers, rank: int, directory: Path, size_bytes: int) -> None:
    """Saves with the callback ``ModelCheckpoint``."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            for name, tensor in state_of(0, size_bytes).items():
                self.register_buffer(_attribute(name), tensor)

        def configure_optimizers(self) -> None:
            """There is nothing to learn."""

        def training_step(self, batch: int, _: int) -> None:
            self.load_state_dict({_attribute(name): tensor for name, tensor in state_of(batch, size_bytes).items()})
            # A step of an optimizer is what the callback counts.
            self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed += 1

    name = "checkpoint-{step}"
    callback = ModelCheckpoint(
        directory,
        name,
        every_n_train_steps=1,
        save_top_k=-1,
        auto_insert_metric_name=False,
        save_on_train_epoch_end=False,
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(numbers), batch_size=None))


def train_with_transformers(numbers: Numbers, rank: int, directory: Path, size_bytes: int) -> None:
    """Saves as its ``Trainer`` does, after every step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learns = torch.nn.Parameter(torch.zeros(1))
            for name, tensor in state_of(0, size_bytes).items():
                self.register_buffer(_attribute(name), tensor)

        def become(self, number: int) -> None:
            for name, tensor in state_of(number, size_bytes).items():
                setattr(self, _attribute(name), tensor)

        def forward(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.learns.sum()}

    class Next(TrainerCallback):
        """Not the samples tell what to save: they are taken ahead."""

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            number = next(numbers, None)
            if number is None:
                control.should_training_stop = True
            else:
                model.become(number)

    model = Model()
    model.become(next(numbers))
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=BATCHES_MAX,
        save_strategy="steps",
        save_steps=1,
        per_device_train_batch_size=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    samples = [{"sample": 0}] * BATCHES_MAX
    Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[Next()]).train()


def load_transformers(url: str, options: dict[str, Any], size_bytes: int) -> State:
    fs, path = url_to_fs(url, **options)
    found = safetensors.torch.load(fs.cat_file(f"{path}/model.safetensors"))
    state = json.loads(fs.cat_file(f"{path}/trainer_state.json"))
    assert state["global_step"] == int(found["step"])
    return {name: found[_attribute(name)] for name in state_of(0, size_bytes)}


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def load_lightning(url: str, options: dict[str, Any], size_bytes: int) -> State:
    fs, path = url_to_fs(url, **options)
    with fs.open(path, "rb") as file:
        found = torch.load(file, weights_only=False)["state_dict"]
    return {name: found[_attribute(name)] for name in state_of(0, size_bytes)}


class Format(NamedTuple):
    """How a kind of program saves and loads."""

    train: Callable[[Numbers, int, Path, int], None]
    """Saves ``checkpoint-<number>`` for each number; takes the rank of this process, the directory and the size."""
    load: Callable[[str, dict[str, Any], int], State]
    """Takes the size of the state, too."""
    names: tuple[str, ...]
    """All files of a checkpoint below its directory, the one last that announces it; none if it is one file itself."""
    ranks: int = 1
    suffix: str = ""
    """Of the checkpoint's name."""


FORMATS = {
    "torch": Format(train_with_torch, load_torch, ("state.pt",)),
    "safetensors": Format(train_with_safetensors, load_safetensors, (*map(shard_name, range(SHARDS)), INDEX)),
    "dcp": Format(train_with_dcp, load_dcp, (*(f"__{rank}_0.distcp" for rank in range(RANKS)), ".metadata"), RANKS),
    "lightning": Format(train_with_lightning, load_lightning, (), suffix=".ckpt"),
    "transformers": Format(
        train_with_transformers,
        load_transformers,
        (
            "model.safetensors",
            "training_args.bin",
            "optimizer.pt",
            "scheduler.pt",
            "rng_state.pth",
            "trainer_state.json",
        ),
    ),
}


def _started(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "rig.saves", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


class Training:
    """All ranks of a run that saves, under a test's control."""

    def __init__(self, kind: str, directory: Path, size_bytes: int) -> None:
        ranks = range(FORMATS[kind].ranks)
        self._processes = [_started("save", kind, rank, directory, size_bytes) for rank in ranks]

    def begin(self, number: int) -> None:
        """Let it save this checkpoint."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()

    def saved(self, number: int, patience_s: float) -> None:
        """Return when the save has returned on every rank."""
        for process in self._processes:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], patience_s)[0], f"checkpoint-{number} is not saved"
            said = process.stdout.readline()
            assert said == f"{number}\n", f"checkpoint-{number}: {said}\n" + "\n".join(self.kill())

    def end(self, patience_s: float) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()  # all of them: ranks may end together only
            process.stdin = None
        for process in self._processes:
            _, errors = process.communicate(timeout=patience_s)
            assert process.returncode == 0, errors

    def kill(self) -> list[str]:
        """What the ranks said of their failures."""
        errors = []
        for process in self._processes:
            process.kill()
            errors.append("" if process.stdout is None or process.stdout.closed else process.communicate()[1])
        return errors


def go_on(kind: str, url: str, size_bytes: int, **options: Any) -> int:
    """Load the checkpoint at the URL, compare it bit for bit with what was saved, and tell its number."""
    found = FORMATS[kind].load(url, options, size_bytes)
    number = int(found["step"])
    compare(found, number, size_bytes)
    return number


def go_on_in_another_process(kind: str, url: str, size_bytes: int, *, patience_s: float, **options: Any) -> int:
    process = _started("resume", kind, url, size_bytes, json.dumps(options))
    try:
        said, errors = process.communicate(timeout=patience_s)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return int(said)


def _asked_for() -> Numbers:
    for line in sys.stdin:
        yield int(line)
        print(line, end="", flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["save", kind, rank, directory, size_bytes]:
            torch.set_num_threads(1)
            FORMATS[kind].train(_asked_for(), int(rank), Path(directory), int(size_bytes))
        case ["resume", kind, url, size_bytes, options]:
            print(go_on(kind, url, int(size_bytes), **json.loads(options)))
        case others:
            raise ValueError(f"{others}: neither a save nor a resumption")


if __name__ == "__main__":
    main()
