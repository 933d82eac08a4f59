"""One run with mailboxes, and the main loop for one run: for tests that want to look closely."""

from hatdfed.core import loop
from hatdfed.core.fleet import SeparateFleets
from hatdfed.core.loop import RunInPlay
from hatdfed.data.datasets import load_dataset
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch


def mailbox_simulation(config, dataset, *, run=""):
    """Coordinator and fleet of one run."""
    (simulation,) = make_batch([config], dataset, Placement("mailbox", "cpu"), names=[run]).simulations
    return simulation


def run_alone(coordinator, fleet, *, rounds, sinks=(), state=None):
    """Play one run, from its beginning or from `state` on; the state after it."""
    if state is None:
        state = coordinator.start(fleet.validation_accuracy())
    (state,) = loop.run([RunInPlay(coordinator, state, rounds, sinks)], SeparateFleets(fleet))
    return state


def play_undisturbed(config):
    """The links of every round of a simulation without faults, as sorted pairs, and the models of the last."""
    simulation, links = mailbox_simulation(config, load_dataset(config.dataset, options=config.dataset_options)), []
    run_alone(
        simulation.coordinator,
        simulation.fleet,
        rounds=config.rounds,
        sinks=[lambda state, record: links.append(sorted(map(tuple, record.draw.topology.pairs.tolist())))],
    )
    return links, simulation.fleet.models
