"""Images for a model to learn from: JPEG files of about 110 KB; the brightness runs in the direction of the class."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from typing import Any

from tiercache.bench.dataset import Told

CLASSES = 4
SIDE_PIXELS = 420
SIDE_SPREAD = 0.12
"""Sigma of the logarithm of an image's side."""
NOISE = 45.0
"""Makes an image as large as a photograph is."""
NOISE_PIXELS = 1024
QUALITY = 92


def make_images(directory: Path, number: int, seed: int, told: Told) -> None:
    """Write ``number`` images as ``CLASS/NUMBER.jpg``. Sizes and classes are the same for the same seed."""
    image: Any = import_module("PIL.Image")
    numbers = random.Random(seed)
    noise = image.merge("RGB", [image.effect_noise((NOISE_PIXELS, NOISE_PIXELS), NOISE) for _ in range(3)])
    ramps = [image.linear_gradient("L").rotate(360 / CLASSES * kind).convert("RGB") for kind in range(CLASSES)]
    for place in range(number):
        kind = place % CLASSES
        side = min(int(SIDE_PIXELS * numbers.lognormvariate(0, SIDE_SPREAD)), NOISE_PIXELS // 2)
        left, top = numbers.randrange(NOISE_PIXELS - side), numbers.randrange(NOISE_PIXELS - side)
        grain = noise.crop((left, top, left + side, top + side))
        path = directory / str(kind) / f"{place:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.blend(ramps[kind].resize((side, side)), grain, 0.5).save(path, quality=QUALITY)
        told(path.stat().st_size)


def class_of(name: str) -> int:
    """By its directory."""
    return int(name.partition("/")[0])
