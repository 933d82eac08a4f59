// One run: its curves, the round that the slider points at, and updates while it plays.
import { bits, byId, decimal, fetchJson, fillTable, joules, setText } from "./dom.js";
import { watch } from "./live.js";
import { chartNames, drawCurves, drawPropensity, moveCursor } from "./run_charts.js";
import { drawTopology } from "./topology.js";
import { drawTrust } from "./trust.js";

const MAX_CACHED = 40; // rounds; the last ones shown
const PLAY_MS = 500;
const id = byId("run").dataset.run;
const slider = byId("slider");
const cache = new Map();
let series = null;
let trust = null;
let shown = null;
let wanted = 0;
let request = null;
let timer = null;
let stopWatching = null;
let loading = null;

function showTrouble(error) {
  if (error.name === "AbortError") return;
  setText("trouble-sentence", error.message);
  byId("trouble").hidden = false;
}

// Events may come faster than answers: one request at a time, so that no old answer overtakes a new one.
function reload() {
  loading ??= loadSeries().catch(showTrouble).finally(() => { loading = null; });
  return loading;
}

async function loadSeries() {
  const wasAtEnd = series === null || Number(slider.value) >= series.rounds;
  series = await fetchJson(`/api/runs/${id}/series`);
  showFigures();
  byId("waiting").hidden = series.rounds > 0;
  byId("pictures").hidden = series.rounds === 0;
  if (!series.rounds) return;
  slider.max = series.rounds;
  if (wasAtEnd && !timer) slider.value = series.rounds;
  drawCurves(series, Number(slider.value));
  for (const name of chartNames(series)) listen(byId(`${name}-chart`));
  await goTo(Number(slider.value));
  await loadTrust();
}

async function loadTrust() {
  trust = await fetchJson(`/api/runs/${id}/trust`);
  byId("trust").hidden = trust.servers.length === 0;
  if (trust.servers.length) drawTrust(trust);
}

const isOver = (state) => state === "done" || state === "stopped";

function showFigures() {
  const { figures, state } = series;
  for (const [name, text] of Object.entries(figures)) setText(name, text);
  const badge = byId("state");
  const before = badge.textContent;
  setText("state", state);
  badge.className = `state ${state}`;
  if (isOver(state) && !isOver(before)) location.reload(); // results, which come with the page
}

async function goTo(number) {
  const last = series.rounds;
  wanted = Math.min(Math.max(number, 1), last);
  slider.value = wanted;
  slider.setAttribute("aria-valuetext", `round ${wanted} of ${last}`);
  setText("round", `round ${wanted} of ${last}`);
  if (shown?.played === wanted) return;
  request?.abort();
  request = new AbortController();
  try {
    const round = cache.get(wanted) ?? await fetchJson(`/api/runs/${id}/rounds/${series.first + wanted - 1}`, request.signal);
    cacheRound(round);
    if (round.played === wanted) showRound(round);
  } catch (error) {
    showTrouble(error);
  }
}

function cacheRound(round) {
  cache.delete(round.played);
  cache.set(round.played, round);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
}

function showRound(round) {
  shown = round;
  setText("topology-title", round.titles.links);
  drawTopology(byId("topology"), round);
  drawPropensity(byId("propensity"), round);
  moveCursor(series, round.played);
  showTables(round);
}

function showTables(round) {
  const server = (index) => (index === null ? "devices" : `server ${index}`);
  fillTable(byId("links-table"), round.links.slice(0, 500).map((link) => [
    server(link.from), server(link.to), [joules(link.joules), "number"], [decimal(link.propensity), "number"], [decimal(link.utility), "number"],
    [decimal(link.importance), "number"], link.delivered ? "yes" : "no",
  ]));
  setText("ledger-round", `round ${round.played}`);
  const total = round.ledger.reduce((sum, line) => sum + (line.joules ?? 0), 0);
  setText("ledger-sum", round.ledger_is_cut
    ? `The first ${round.ledger.length} lines of this round. All of them are in the CSV file.`
    : `${round.ledger.length} lines, ${joules(total)} in all.`);
  fillTable(byId("ledger-table"), round.ledger.map((line) => [
    line.cause, server(line.sender), server(line.receiver), [bits(line.bits), "number"], [joules(line.joules), "number"], line.source,
  ]));
}

function listen(chart) {
  if (chart.dataset.listens) return;
  chart.dataset.listens = "yes";
  chart.on("plotly_click", ({ points: [point] }) => goTo(chart.id === "both-chart" ? point.customdata : point.x));
}

function play() {
  const stop = () => { clearInterval(timer); timer = null; setText("play", "Play"); };
  if (timer) { stop(); return; }
  setText("play", "Stop");
  if (wanted >= series.rounds) goTo(1);
  timer = setInterval(() => (wanted >= series.rounds ? stop() : goTo(wanted + 1)), PLAY_MS);
}

slider.addEventListener("input", () => goTo(Number(slider.value)));
slider.addEventListener("keydown", (event) => {
  const step = { PageUp: 1, PageDown: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  goTo(wanted + step * Math.max(1, Math.round(series.rounds / 10)));
});
byId("play").addEventListener("click", play);
document.addEventListener("themechange", () => {
  if (!series?.rounds) return;
  drawCurves(series, wanted);
  if (trust?.servers.length) drawTrust(trust);
  if (shown) showRound(shown);
});

async function start() {
  await reload();
  if (isOver(series?.state)) return;
  stopWatching = watch(`/api/runs/${id}/events`, (news) => {
    if (news.rounds !== series?.rounds || news.state !== series?.state) reload();
    if (isOver(news.state)) stopWatching();
  });
}

start();
