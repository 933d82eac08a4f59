"""A deployment whose machines are updated one by one: 0.1.0 and this version play one run, or say why not.

What 0.1.0 says was recorded (tests/fixtures/README.md): its edges are played back to a coordinator of this version.
"""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest
import yaml

from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.coordinator.settings import DeploySettings, split_layer
from hatdfed.deploy.coordinator.state_folder import resolve_for_state
from hatdfed.deploy.edge.setup import read_settings
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve, validate
from hatdfed.setup.run_identity import SETTINGS, Role, Setting, Since
from hatdfed.setup.versions import fill_in, settings_for

DEPLOYMENT = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1.0" / "deployment"
CALLS = json.loads((DEPLOYMENT / "messages.json").read_text(encoding="utf-8"))
AGENTS = sorted({call["from"] for call in CALLS})
SETTINGS_FILE = yaml.safe_load((DEPLOYMENT / "settings.yaml").read_text(encoding="utf-8"))


def requests(agent, method, kind):
    found = [call for call in CALLS if (call["from"], call["method"]) == (agent, method)]
    return [kind.FromString(bytes.fromhex(call["request"])) for call in found]


def answers(agent, method, kind):
    found = [call for call in CALLS if (call["from"], call["method"]) == (agent, method)]
    return [kind.FromString(bytes.fromhex(answer)) for call in found for answer in call["answers"]]


def keys(settings):
    """Names of settings, section by section."""
    return {key: keys(value) if isinstance(value, dict) else None for key, value in settings.items()}


# Old edges under a new coordinator.


class OldEdge:
    """An edge of 0.1.0, as far as a coordinator can tell: it says what one has said."""

    def __init__(self, agent, port):
        self.agent = agent
        self.rounds = []
        options = [("grpc.primary_user_agent", agent)]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub = CoordinationStub(self._channel)

    async def join(self):
        """Join, then take part in a task of its own."""
        self.welcome = await self.stub.Join(requests(self.agent, "Join", pb.Hello)[0])
        self._orders = self.stub.Watch(requests(self.agent, "Watch", pb.Watching)[0])
        await self._orders.initial_metadata()
        await self.stub.Ready(requests(self.agent, "Ready", pb.Prepared)[0])
        return asyncio.ensure_future(self._play())

    async def _play(self):
        reports = {report.round: report for report in requests(self.agent, "Report", pb.Outcome)}
        async for order in self._orders:
            what = order.WhichOneof("what")
            if what == "probe":
                peers = [peer.index for peer in order.probe.peers]
                await self.stub.Reached(pb.Reachable(epoch=order.epoch, yes=peers))
            elif what == "round":
                self.rounds.append(links_of(order.round))
                assert (await self.stub.Report(reports[order.round.round])).accepted
            elif what == "finish":
                await self.stub.Final(requests(self.agent, "Final", pb.FinalFigures)[0])
            elif what == "stop":
                break
        await self._channel.close()


def links_of(order):
    return order.round, [peer.index for peer in order.senders], [peer.index for peer in order.receivers]


def coordinator(folder, config):
    settings = DeploySettings(beat_seconds=0.2, away_seconds=5.0, idle_seconds=5.0, round_seconds=20.0)
    return CoordinatorProcess(config, settings, CoordinatorOptions(folder, "127.0.0.1:0", Endpoints(None)))


async def play_old_edges(folder, config):
    process = coordinator(folder, config)
    run = asyncio.ensure_future(process.serve())
    while not process.port:
        await asyncio.sleep(0.01)
    edges = [OldEdge(agent, process.port) for agent in AGENTS]
    tasks = [await edge.join() for edge in edges]
    summary = await asyncio.wait_for(run, 30)
    await asyncio.gather(*tasks)
    return summary, edges


def test_edges_of_0_1_play_a_run_under_a_newer_coordinator(play, tmp_path):
    layer, _ = split_layer({**SETTINGS_FILE, "rounds": 2})
    summary, edges = play(play_old_edges(tmp_path / "run", resolve(layer)))
    assert summary["rounds"] == 2
    assert not [note for note in summary["notes"] if "refused" in note]
    for edge in edges:
        theirs = answers(edge.agent, "Join", pb.Welcome)[0]
        # 0.1.0 dies of a setting that it does not know.
        assert keys(json.loads(edge.welcome.config)) == keys(json.loads(theirs.config))
        orders = [
            order.round for order in answers(edge.agent, "Watch", pb.Order) if order.WhichOneof("what") == "round"
        ]
        assert edge.rounds == [links_of(order) for order in orders], "the same links as a coordinator of 0.1.0 draws"


@pytest.fixture
def newer(monkeypatch):
    """Settings as a later version has them: one more, and one more in a section."""
    added = {
        "shields": Setting(Role.RESULT | Role.RESUME, 0, Since.V0_2),
        "learner.warm_up": Setting(Role.RESULT, 0.0, Since.V0_2),
    }
    for key, setting in added.items():
        monkeypatch.setitem(SETTINGS, key, setting)
    plain = Config().model_dump(mode="json")
    return {**plain, "shields": 0, "learner": {**plain["learner"], "warm_up": 0.0}}


def test_newer_settings_are_left_out_for_an_older_edge_where_they_change_nothing(newer):
    known = json.loads(answers(AGENTS[0], "Join", pb.Welcome)[0].config)
    sent = settings_for("0.1.0", newer)
    expected = {key: value for key, value in Config().model_dump(mode="json").items() if key in known}
    for section in ("learner", "energy"):  # of which settings came later, too
        expected[section] = {key: value for key, value in expected[section].items() if key in known[section]}
    assert sent == expected
    assert sent["learner"].keys() == known["learner"].keys()
    assert settings_for("0.2.0.dev0", newer) == newer
    assert settings_for("who knows", newer) == newer


@pytest.mark.parametrize("change", [{"shields": 3}, {"learner": {**Config().learner.model_dump(), "warm_up": 0.1}}])
def test_an_older_edge_is_refused_in_a_sentence_where_they_do(newer, change):
    with pytest.raises(
        ConfigError, match=r"hatdfed 0\.1\.0 does not know the setting (shields|learner\.warm_up), which is"
    ):
        settings_for("0.1.0", {**newer, **change})


def test_a_setting_that_means_nothing_beside_another_is_left_out_as_well(newer, monkeypatch):
    monkeypatch.setitem(SETTINGS, "learner.warm_up", Setting(Role.RESULT, 0.0, Since.V0_2, only_with="shields"))
    warm = {**newer, "learner": {**newer["learner"], "warm_up": 0.1}}
    assert settings_for("0.1.0", warm) == settings_for("0.1.0", newer)
    with pytest.raises(ConfigError, match="does not know the setting shields, which is 2"):
        settings_for("0.1.0", {**warm, "shields": 2})


# New edges under an old coordinator.


@pytest.mark.parametrize("agent", AGENTS)
def test_an_edge_reads_what_a_coordinator_of_0_1_sends(agent):
    layer, _ = split_layer({**SETTINGS_FILE, "rounds": 2})
    welcome = answers(agent, "Join", pb.Welcome)[0]
    assert welcome.version == ""
    assert read_settings(welcome) == resolve(layer)


def test_settings_that_an_older_version_does_not_have_are_neutral(newer):
    older = Config().model_dump(mode="json")
    del older["churn"], older["loss"], older["learner"]["cool_down"], older["schedule"]
    filled = fill_in(older)
    assert filled == newer
    assert validate({key: value for key, value in filled.items() if key not in ("shields", "learner")}) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({**Config().model_dump(mode="json"), "shields": 3}), "There is no setting 'shields'"),
        (json.dumps({**Config().model_dump(mode="json"), "feedback": "oracle"}), "feedback is 'oracle', but must"),
        (json.dumps({**Config().model_dump(mode="json"), "codec": "top-k"}), "codec top-k was removed"),
        ("[1]", "they are no settings"),
        ("{", "Expecting property name"),
    ],
)
def test_settings_of_a_newer_coordinator_that_an_edge_does_not_know_are_one_sentence(text, said):
    with pytest.raises(ConfigError, match="The settings that the coordinator sent cannot be used here") as caught:
        read_settings(pb.Welcome(config=text, version="0.3.0"))
    assert said in str(caught.value)
    assert "The coordinator runs hatdfed 0.3.0, this edge" in str(caught.value)
    assert "install the same version on both" in str(caught.value)


# A newer coordinator on the state of an older one.


@pytest.fixture
def state(tmp_path):
    """A copy of the state that 0.1.0 left in the middle of a run."""
    return shutil.copytree(DEPLOYMENT / "state", tmp_path / "state")


def open_coordinator(state, config):
    process = coordinator(state, config)
    process._journal.close()
    return process


def test_a_run_keeps_its_settings_where_a_later_version_has_other_defaults(state, monkeypatch):
    before = yaml.safe_load((state / "config.yaml").read_text(encoding="utf-8"))
    layer, _ = split_layer(SETTINGS_FILE)
    monkeypatch.setattr(
        "hatdfed.deploy.coordinator.state_folder.resolve", lambda layer: resolve({**layer, "gain_share": 0.9})
    )
    config = resolve_for_state(state, layer)
    assert config.gain_share == before["gain_share"] != 0.9
    assert open_coordinator(state, config).hub.next_round == 6


def test_what_the_user_changes_is_still_another_run(state):
    layer, _ = split_layer({**SETTINGS_FILE, "gain_share": 0.9})
    with pytest.raises(RunFolderError, match=r"holds a run that has gain_share 0\.6, but 0\.9 was asked for"):
        open_coordinator(state, resolve_for_state(state, layer))


def test_synonyms_are_settings_of_a_run_that_goes_on_too(state):
    layer, _ = split_layer({key: value for key, value in SETTINGS_FILE.items() if key != "servers"})
    assert resolve_for_state(state, {**layer, "num_servers": 3}).servers == 3


def test_a_state_of_a_later_version_is_refused(state):
    layer, _ = split_layer(SETTINGS_FILE)
    process = coordinator(state, resolve_for_state(state, layer))
    process._journal.write_fact("version", "0.9.1")
    process._journal.close()
    with pytest.raises(RunFolderError, match=r"was last used by hatdfed 0\.9\.1, and this is"):
        open_coordinator(state, resolve_for_state(state, layer))
    with closing(sqlite3.connect(state / "journal.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM plans").fetchone() == (7,)
