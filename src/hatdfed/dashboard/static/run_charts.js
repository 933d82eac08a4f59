// The curves of one run, and the probabilities of one round.
import { CELL_GAP, axis, chanceRamp, colour, cursor, draw, energyUnit, inkOn, mixed, scaleBar, scaled } from "./charts.js";
import { makeChanceScale } from "./chance_scale.js";
import { byId, setText } from "./dom.js";

const ROUNDS = "Round";
const DIGIT_PIXELS = 9; // of a number in a cell
const AROUND_CELLS = 80; // pixels of a chart that its cells do not have

export function drawCurves(series, round) {
  for (const [name, title] of Object.entries(series.titles)) setText(`${name}-title`, title);
  drawAccuracy(series, round);
  drawEnergy(series, round);
  drawBoth(series, round);
  drawRegret(series, round);
  for (const metric of series.more) drawMetric(series, metric, round);
}

export function chartNames(series) {
  return ["accuracy", "energy", "both", "regret", ...series.more.map((metric) => metric.name)];
}

export function moveCursor(series, round) {
  for (const name of chartNames(series).filter((each) => each !== "both")) Plotly.relayout(byId(`${name}-chart`), { shapes: cursor(round) });
  const at = nearest(series.played, round);
  const [, size] = energyUnit(series.total_joules.at(-1) ?? 0);
  Plotly.restyle(byId("both-chart"), { x: [[series.total_joules[at] / size]], y: [[series.accuracy.avg[at]]] }, [1]);
}

export function nearest(played, round) {
  let best = 0;
  played.forEach((value, index) => { if (Math.abs(value - round) < Math.abs(played[best] - round)) best = index; });
  return best;
}

function drawAccuracy(series, round) {
  const { played, accuracy, servers } = series;
  const traces = servers.length ? servers.map((line, server) => ({
    x: played, y: line, name: `server ${server}`, mode: "lines", line: { color: colour("server"), width: 1.2 }, opacity: 0.8, hovertemplate: "%{y:.1f} %",
  })) : bands(played, accuracy);
  const mode = played.length > 1 ? "lines" : "markers";
  traces.push({ x: played, y: accuracy.avg, name: "mean", mode, line: { color: colour("accent"), width: 3 }, hovertemplate: "%{y:.1f} %" });
  setText("accuracy-note", servers.length
    ? "Validation accuracy. Thick: mean over servers. Thin: each server."
    : "Validation accuracy. Line: mean over servers. Bands: one standard deviation, and from the worst server to the best.");
  draw(byId("accuracy-chart"), traces, { shapes: cursor(round), xaxis: axis(ROUNDS), yaxis: axis("Validation accuracy (%)") });
}

function bands(played, { avg, std, best, worst }) {
  const fill = colour("band");
  const edge = (y, name, more = {}) => ({ x: played, y, name, mode: "lines", line: { width: 0 }, hovertemplate: "%{y:.1f} %", ...more });
  const shift = (sign) => avg.map((value, index) => (value === null ? null : value + sign * (std[index] ?? 0)));
  return [
    edge(worst, "worst server"), edge(best, "best server", { fill: "tonexty", fillcolor: fill }),
    edge(shift(-1), "mean − 1 sd"), edge(shift(1), "mean + 1 sd", { fill: "tonexty", fillcolor: fill }),
  ];
}

function drawEnergy(series, round) {
  const [unit, size] = energyUnit(series.total_joules.at(-1) ?? 0);
  const traces = Object.entries(series.causes).map(([column, { cause, label }]) => ({
    x: [0, ...series.played],
    y: [0, ...series.joules[column].map((value) => value / size)],
    name: label,
    mode: "lines",
    stackgroup: "energy",
    line: { width: 0.5, color: colour(`cause-${cause}`) },
    fillcolor: colour(`cause-${cause}`),
    hovertemplate: `%{y:.3g} ${unit}`,
  }));
  draw(byId("energy-chart"), traces, {
    shapes: cursor(round), showlegend: true, xaxis: axis(ROUNDS), yaxis: axis(`Energy so far (${unit})`, { rangemode: "tozero" }),
  });
}

function drawBoth(series, round) {
  const [unit, size] = energyUnit(series.total_joules.at(-1) ?? 0);
  const x = series.total_joules.map((value) => value / size);
  const at = nearest(series.played, round);
  const line = {
    x, y: series.accuracy.avg, mode: x.length > 1 ? "lines" : "markers", line: { color: colour("accent"), width: 2.4 }, customdata: series.played,
    hovertemplate: `round %{customdata}: %{y:.1f} % for %{x:.3g} ${unit}<extra></extra>`,
  };
  const here = { x: [x[at]], y: [series.accuracy.avg[at]], mode: "markers", marker: { size: 11, color: colour("accent"), line: { width: 2, color: colour("paper") } }, hoverinfo: "skip" };
  draw(byId("both-chart"), [line, here], {
    hovermode: "closest", xaxis: axis(`Energy so far (${unit})`, { rangemode: "tozero" }), yaxis: axis("Mean validation accuracy (%)"),
  });
}

function drawRegret(series, round) {
  const line = (values, name, shade, dash) => ({
    x: series.played, y: values, name, mode: "lines", line: { color: colour(shade), width: 2.2, dash }, hovertemplate: "%{y:.3g}",
  });
  const traces = [
    line(series.regret.best_fixed, "against the best fixed links", "accent", "solid"),
    line(series.regret.best_each_round, "against the best links of each round", "cause-link", "dash"),
  ];
  draw(byId("regret-chart"), traces, { shapes: cursor(round), showlegend: true, xaxis: axis(ROUNDS), yaxis: axis("Cumulative regret") });
}

function drawMetric(series, { name, label, values, title }, round) {
  setText(`${name}-title`, title);
  const mode = series.played.length > 1 ? "lines" : "markers";
  const line = { x: series.played, y: values, name: label, mode, line: { color: colour("accent"), width: 2.2 }, hovertemplate: "%{y:.3g}" };
  draw(byId(`${name}-chart`), [line], { shapes: cursor(round), xaxis: axis(ROUNDS), yaxis: axis(label, { rangemode: "tozero" }) });
}

export function drawPropensity(target, round) {
  setText("propensity-title", round.titles.propensity);
  target.hidden = !round.propensity;
  if (!round.propensity) return;
  const servers = round.propensity.map((_, server) => server);
  const isSmall = servers.length <= 12;
  const scale = makeChanceScale(round.propensity);
  setText("propensity-scale", scale.words);
  const shown = round.propensity.map((row) => row.map((value) => (value === null ? null : scale.place(value))));
  const bar = { ...scaleBar(target), tickvals: scale.ticks.map(([at]) => at), ticktext: scale.ticks.map(([, text]) => text) };
  const trace = {
    type: "heatmap", z: shown, text: round.propensity, x: servers, y: servers, colorscale: scaled(chanceRamp()), zmin: 0, zmax: 1, colorbar: bar,
    xgap: isSmall ? 2 : CELL_GAP, ygap: isSmall ? 2 : CELL_GAP, hoverongaps: false, hovertemplate: "server %{x} → server %{y}: %{text:.3f}<extra></extra>",
  };
  const ticks = isSmall ? { tickvals: servers } : {};
  draw(target, [trace], {
    hovermode: "closest",
    annotations: isSmall && hasRoom(target, servers.length, scale.digits) ? cellTexts(round.propensity, scale) : [],
    xaxis: axis("Sending server", { showgrid: false, constrain: "domain", ...ticks }),
    yaxis: axis("Receiving server", { showgrid: false, autorange: "reversed", scaleanchor: "x", constrain: "domain", ...ticks }),
  });
}

function hasRoom(target, servers, digits) {
  const side = Math.min(target.clientWidth - AROUND_CELLS, target.clientHeight - AROUND_CELLS) / servers;
  return side >= (digits + 2) * DIGIT_PIXELS;
}

function cellTexts(chances, scale) {
  const shades = chanceRamp();
  return chances.flatMap((row, y) => row.map((value, x) => ({
    x, y, text: value === null ? "" : value.toFixed(scale.digits), showarrow: false, font: { color: inkOn(mixed(shades, value === null ? 0 : scale.place(value))) },
  })));
}
