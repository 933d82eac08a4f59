// Chosen runs, world by world: accuracy against energy, the front marked by rings, and accuracy over rounds.
import { axis, colour, draw, energyUnit, look } from "./charts.js";
import { byId, fetchJson, setText } from "./dom.js";

const shortened = (label) => (label.length > 48 ? `${label.slice(0, 47)}…` : label);
// Plotly reads markup in names; a name of a run is only a name.
const plain = (label) => shortened(label).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function rings(rows, size) {
  const front = rows.filter((row) => row.is_on_front);
  return {
    x: front.map((row) => row.figures.total_joules.mean / size), y: front.map((row) => row.figures.avg_accuracy.mean), mode: "markers",
    marker: { size: 22, symbol: "circle-open", color: colour("muted"), line: { width: 1.5 } }, hoverinfo: "skip", showlegend: false,
  };
}

function drawFront(rows, where) {
  const [unit, size] = energyUnit(Math.max(...rows.map((row) => row.figures.total_joules.mean)));
  const bar = (sd, shade) => ({ type: "data", array: [sd], color: shade, thickness: 1.2, width: 0 });
  const traces = [rings(rows, size)];
  rows.forEach((row, index) => {
    const { colour: shade, symbol } = look(row.look);
    const { total_joules: energy, avg_accuracy: accuracy } = row.figures;
    traces.push({
      x: row.seeds.map((seed) => seed.joules / size), y: row.seeds.map((seed) => seed.accuracy), mode: "markers", legendgroup: index,
      marker: { size: 5, color: shade, symbol, opacity: 0.45 }, showlegend: false, hoverinfo: "skip",
    }, {
      x: [energy.mean / size], y: [accuracy.mean], name: plain(row.label), legendgroup: index, mode: "markers",
      error_x: bar(energy.sd / size, shade), error_y: bar(accuracy.sd, shade),
      marker: { size: 13, color: shade, symbol, line: { width: 1.5, color: colour("paper") } },
      hovertemplate: `%{y:.1f} % for %{x:.3g} ${unit}`,
    });
  });
  draw(byId(`front-chart-${where}`), traces, {
    hovermode: "closest", showlegend: true, xaxis: axis(`Total energy (${unit})`, { rangemode: "tozero" }), yaxis: axis("Test accuracy (%)"),
  });
}

function drawAccuracy(rows, where) {
  const traces = rows.flatMap((row) => {
    const { colour: shade, dash } = look(row.look);
    const { played, mean } = row.curve;
    return [{ x: played, y: mean, name: plain(row.label), mode: played.length > 1 ? "lines" : "markers", line: { color: shade, width: 2.2, dash }, hovertemplate: "%{y:.1f} %" }];
  });
  draw(byId(`accuracy-chart-${where}`), traces, { showlegend: true, xaxis: axis("Round"), yaxis: axis("Validation accuracy (%)") });
}

async function start() {
  const content = await fetchJson(`/api/compare${location.search}`);
  // What saw the test data (D3) is listed, not drawn.
  const worlds = content.worlds.map((world) => world.rows.filter((row) => !row.leaks_test));
  const show = () => worlds.forEach((fair, where) => {
    if (fair.length === 0) return;
    drawFront(fair, where);
    drawAccuracy(fair, where);
  });
  content.worlds.forEach((world, where) => setText(`accuracy-title-${where}`, world.titles.accuracy));
  show();
  document.addEventListener("themechange", show);
}

start().catch((error) => setText("accuracy-title-0", error.message));
