"""How much memory a stacked fleet takes, known before it is made, and how much of it can be done at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from hatdfed.errors import HatdfedError
from hatdfed.fleets.stacked.choose_model import choose_model
from hatdfed.fleets.stacked.merging import is_verbatim
from hatdfed.fleets.stacked.model import BytesPerSample
from hatdfed.fleets.stacked.rows import ROW_ALIGNMENT, Execution, RunServers, load_of
from hatdfed.server.learner import Learner

SMALL_NETWORK = 100_000  # parameters
MOST_AT_ONCE = {"cpu": 64, "cuda": 1024}  # servers; more gain nothing
USED_SHARE = 0.8  # of the memory that is free; the rest is for what nobody counted
FLOAT = 4  # bytes


class DoesNotFitError(HatdfedError):
    """There is not enough memory for all servers of a fleet."""


class Sizes(NamedTuple):
    """What the memory of a fleet depends on, besides its network and how many servers it has."""

    batch: int  # the largest that is trained on
    judged_images: int  # the most that a model is asked at once: the validation set, as a rule
    pool_images: int
    copies: int = 0  # of every model, where receivers see another than its owner, or a codec remembers


@dataclass(frozen=True)
class Footprint:
    """Bytes."""

    a_server: int  # that stay
    training: int  # of one server while it is trained
    judging: int  # of one server while its models are judged
    fixed: int  # images

    def total(self, servers: int, how: Execution) -> int:
        """The peak for so many servers."""
        trained, judged = min(servers, how.rows_at_once), min(servers, how.judged_at_once)
        return self.fixed + servers * self.a_server + max(trained * self.training, judged * self.judging)


def compute_footprint(learner: Learner, sample: BytesPerSample, sizes: Sizes) -> Footprint:
    """Of a fleet of such networks."""
    row = -(-learner.num_kept // ROW_ALIGNMENT) * ROW_ALIGNMENT * FLOAT
    moments = sum(part.numel() for part in learner.optimiser.init(1)[1:])
    return Footprint(
        a_server=(2 + moments + sizes.copies) * row,  # models, those that are being merged, moments
        training=learner.num_trainable * FLOAT + sizes.batch * sample.training,
        judging=sizes.judged_images * sample.judging,
        fixed=sizes.pool_images * sample.kept,
    )


def sizes_of(members: Sequence[RunServers]) -> Sizes:
    """As large as any member needs it."""
    sources = [source for member in members for source in member.sources]
    distinct = {id(source.validation.x): len(source.validation.y) for source in sources}
    images = len(sources[0].pool.y) + sum(distinct.values())
    codecs = [member.program.codec for member in members]
    copies = int(not all(map(is_verbatim, codecs))) + int(any(len(codec.init(1)) for codec in codecs))
    return Sizes(max(source.largest_batch for source in sources), max(distinct.values()), images, copies)


def predicted_bytes(members: Sequence[RunServers], how: Execution) -> int:
    """The peak of a fleet of these runs."""
    return _need(members, how.device).total(sum(len(member.sources) for member in members), how)


def execution_for(members: Sequence[RunServers], device: torch.device) -> Execution:
    """As many servers at once as memory holds and speed wants; refuses a fleet that does not fit at all."""
    need = _need(members, device)
    servers = sum(len(member.sources) for member in members)
    free, one = int(USED_SHARE * free_memory(device)) - need.fixed, max(need.training, need.judging)
    room = free - servers * need.a_server
    if room < one:
        fit = max(0, free - one) // need.a_server
        raise DoesNotFitError(
            f"{servers} servers need {(need.fixed + servers * need.a_server + one) / 1e9:.1f} GB, but of the memory "
            f"that is free on {device.type}, {(free + need.fixed) / 1e9:.1f} GB can be used. "
            f"About {fit} would fit: use fewer servers, fewer runs at once, or fewer processes (--jobs 1)."
        )
    most = MOST_AT_ONCE[device.type]
    if device.type == "cpu" and members[0].program.learner.num_total > SMALL_NETWORK:
        most = 5  # they share the cost of a call; what they touch should not leave the cache in between
    trained, judged = (max(1, min(most, room // each)) for each in (need.training, need.judging))
    return Execution(device, trained, judged, exact=device.type == "cpu")


def _need(members: Sequence[RunServers], device: torch.device) -> Footprint:
    learner, pool = members[0].program.learner, members[0].sources[0].pool
    model = choose_model(learner, pool, device, load_of(members))
    return compute_footprint(learner, model.bytes_per_sample, sizes_of(members))


def free_memory(device: torch.device) -> int:
    """Bytes that can be had now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        share = int(torch.cuda.get_per_process_memory_fraction() * total)  # other processes may have the rest
        return min(free + cached, share - torch.cuda.memory_allocated())
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 8 << 30  # not told: as much as any machine that trains networks has
