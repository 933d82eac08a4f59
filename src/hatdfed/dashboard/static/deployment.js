// A deployment as its coordinator tells it, once a second.
import { byId, count, fillTable, joules, percent, setText } from "./dom.js";
import { watch } from "./live.js";

const STATES = { running: "running", finishing: "running", done: "done", stopped: "stale" };
const HERE = { here: "here", away: "away", drained: "drained", quarantined: "in quarantine", ended: "run is over" };

function seen(seconds) {
  if (seconds === null) return "–";
  return seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

function waits(status) {
  if (status.state !== "done") return describeWait(status);
  return `Finished: all ${count(status.rounds)} rounds are completed. The coordinator needs no more reports; the run's results are in its folder.`;
}

function describeWait({ waits_for: whom, waits_seconds: seconds }) {
  if (!whom) return "Waits for nobody.";
  if (seconds === null) return `Waits for ${whom}. There is no limit on that.`;
  const until = new Date(Date.now() + 1000 * seconds).toLocaleTimeString().replace(/\s/g, "\u00a0"); // on one line
  return `Waits for ${whom}. At most ${Math.round(seconds)} s more, until ${until}.`;
}

function show(status) {
  byId("trouble").hidden = !status.trouble;
  byId("status").hidden = Boolean(status.trouble);
  byId("state").hidden = Boolean(status.trouble);
  if (status.trouble) {
    setText("trouble-sentence", status.trouble);
    return;
  }
  setText("state", status.state);
  byId("state").className = `state ${STATES[status.state] ?? ""}`;
  setText("played", count(status.round));
  setText("planned", `of ${count(status.rounds)}, run ${status.run}`);
  setText("accuracy", percent(status.accuracy));
  setText("energy-name", status.energy_source ? `Energy, ${status.energy_source}` : "Energy");
  setText("energy", joules(status.joules));
  setText("links", count(status.links));
  for (const [name, text] of Object.entries(status.figures)) setText(name, text);
  const arrived = status.links ? "all of them arrived" : "none so far";
  setText("undelivered", status.undelivered ? `${count(status.undelivered)} of them did not arrive` : arrived);
  setText("waits", waits(status));
  byId("results").hidden = !status.results;
  if (status.results) byId("results").href = `/runs/${status.results}`;
  byId("no-servers").hidden = status.servers.length > 0;
  byId("servers").hidden = status.servers.length === 0;
  fillTable(byId("servers"), status.servers.map((server) => [
    server.index === null ? "–" : `server ${server.index}`, server.name, [HERE[server.here], `presence ${server.here}`], [seen(server.seen_seconds_ago), "number"],
    [server.round === null ? "–" : count(server.round + 1), "number"], [count(server.refused), "number"], server.doing, server.address,
  ]));
  byId("nothing-refused").hidden = status.refused.length > 0;
  byId("refused").hidden = status.refused.length === 0;
  fillTable(byId("refused"), status.refused.map((refused) => [refused.reason, [count(refused.count), "number"]]));
}

watch("/api/deployment/events", show);
