"""The built-in profiles promise what the documentation says of them."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from tiercache.config import PROFILES, Config, Profile


def test_a_dataset_is_read_only_believed_for_ever_and_held() -> None:
    dataset = PROFILES["dataset"]
    assert (dataset.ttl_s, dataset.read_only) == (math.inf, True)


def test_scratch_never_reaches_the_origin_and_everything_else_does() -> None:
    assert {name for name, profile in PROFILES.items() if not profile.upload} == {"scratch"}


def test_whatever_is_written_by_others_is_seen_within_a_second_by_default() -> None:
    assert PROFILES["general"].ttl_s == PROFILES["checkpoint"].ttl_s == 1.0


def test_an_absence_is_believed_for_at_most_five_seconds() -> None:
    assert all(profile.negative_ttl_s <= 5 for profile in PROFILES.values())
    with pytest.raises(ValidationError):
        Profile(name="general", negative_ttl_s=6)


def test_a_checkpoint_is_durable_at_close() -> None:
    assert PROFILES["checkpoint"].sync_on_close
    assert PROFILES["checkpoint"].ack == "local"


def test_profiles_and_configuration_are_constant() -> None:
    with pytest.raises(ValidationError):
        PROFILES["general"].ttl_s = 5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Config().verify = "read"  # type: ignore[misc]
