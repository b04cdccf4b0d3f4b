"""Moving items between devices costs time where they are moved, overlaps with work, and decides between plans."""

from __future__ import annotations

import dataclasses

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.profile.profile import EdgeProfile, Link, Profile, Sample, WorkerProfile

ITEMS = 64


def chain(link: Link | None, mib: float | None = 16.0, whole: bool = False) -> Profile:
    """Two workers that scale with devices: 2 s and 2 s on one device each; 64 items of 16 MiB are a GiB."""
    workers = {name: WorkerProfile((Sample(1, ITEMS, 2.0),), exponent=0.0) for name in ("make", "use")}
    return Profile(ITEMS, workers, (EdgeProfile("make", "use", whole=whole, item_mib=mib),), "chain", link=link)


def seconds(profile: Profile) -> dict[str, float]:
    return {planned.mode: planned.seconds for planned in reversed(lab.plan(profile, 2))}


def apart(profile: Profile) -> lab.Timeline:
    """The plan with both workers on devices of their own, simulated."""
    return next(p for p in lab.plan(profile, 2) if p.mode == "spatial").simulate()


def test_moving_takes_latency_and_bytes_over_bandwidth() -> None:
    free, moved = apart(chain(None)), apart(chain(Link(1.0)))
    spans = moved.to_pandas()
    sent = spans[(spans["worker"] == "link_make_to_use") & (spans["kind"] == "run")].groupby("iteration")["seconds"].sum()
    assert sent.tolist() == pytest.approx([1.0] * len(sent), rel=1e-6)  # a GiB at a GiB/s
    assert moved.elapsed_ns > free.elapsed_ns
    late = apart(chain(Link(1.0, 0.01))).to_pandas()
    batches = late[(late["worker"] == "link_make_to_use") & (late["kind"] == "run") & (late["iteration"] == 0)]
    assert batches["seconds"].sum() == pytest.approx(1.0 + 0.01 * len(batches), rel=1e-6) and len(batches) > 1


def test_moving_overlaps_with_work_but_for_its_last_batch() -> None:
    """The whole batch is wanted: 2 s of making, of which the last part is still to be moved, 2 s of using."""
    timeline = apart(chain(Link(1.0), whole=True))
    first = timeline.iterations()["seconds"].iloc[0]
    assert 4.0 < first <= 4.0 + 1.0 + 1e-6
    assert apart(chain(None, whole=True)).iterations()["seconds"].iloc[0] == pytest.approx(4.0)


def test_a_slow_link_decides_for_sharing_devices() -> None:
    assert lab.plan(chain(Link(1000.0)), 2).best.mode == "spatial"
    slow = lab.plan(chain(Link(0.1)), 2)  # 10 s to move what takes 4 s to make and to use on the same devices
    assert slow.best.mode == "temporal" and slow.best.seconds < 10 < next(p.seconds for p in slow if p.mode == "spatial")


def test_links_travel_in_json_and_bad_ones_are_named() -> None:
    profile = chain(Link(12.0, 1e-4))
    assert Profile.from_json(profile.to_json()) == profile
    data = profile.to_dict()
    data["link"]["gib_per_s"] = 0
    with pytest.raises(ConfigError, match=r"link\.gib_per_s"):
        Profile.from_dict(data)
    with pytest.raises(ConfigError, match="item_mib"):
        dataclasses.replace(profile, edges=(EdgeProfile("make", "use", item_mib=-1.0),))
