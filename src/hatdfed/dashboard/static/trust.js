// What a run's policy believes: verdicts of servers on each other, and their groups over rounds.
import { CELL_GAP, axis, colour, draw, look, scaleBar, scaled, verdictRamp } from "./charts.js";
import { byId, fillTable, setText } from "./dom.js";

const MAX_NAMED = 40; // servers; beyond that their numbers along an axis are too small to read
const MAX_GROUPS = 5; // in the legend
const GROUP_COLOURS = 7; // the last colour is a grey, which means alone
const SYMBOLS = { "introduced again": "triangle-up", left: "x-thin" };

export function drawTrust(trust) {
  drawVerdicts(byId("verdicts"), trust.verdicts);
  drawGroups(byId("groups"), trust);
  setText("trust-events-note", trust.events_are_cut ? `The last ${trust.events.length} changes.` : "");
  fillTable(byId("trust-table"), trust.events.map(([round, ...rest]) => [[round, "number"], ...rest]));
}

function serverAxis(title, servers, more) {
  const names = servers.length <= MAX_NAMED ? { tickvals: servers.map((_, place) => place), ticktext: servers.map(String) } : { showticklabels: false };
  return axis(title, { showgrid: false, ...names, ...more });
}

function drawVerdicts(target, verdicts) {
  target.hidden = !verdicts;
  setText("verdicts-title", verdicts ? verdicts.title : "No verdicts were kept");
  setText("verdicts-note", verdicts ? verdicts.note : "");
  if (!verdicts) return;
  const { servers, values } = verdicts;
  const labels = values.map((row, y) => row.map((_, x) => `server ${servers[x]} → server ${servers[y]}`));
  const cells = { type: "heatmap", text: labels, xgap: CELL_GAP, ygap: CELL_GAP, hoverongaps: false };
  const known = {
    ...cells, z: values, zmin: -1, zmax: 1, colorscale: scaled(verdictRamp()), colorbar: { ...scaleBar(target), tickformat: ".1f" },
    hovertemplate: "%{text}: %{z:.2f}<extra></extra>",
  };
  const unknown = {
    ...cells, z: values.map((row, y) => row.map((value, x) => (value === null && x !== y ? 0 : null))), showscale: false,
    colorscale: scaled([colour("unknown"), colour("unknown")]), hovertemplate: "%{text}: unknown<extra></extra>",
  };
  draw(target, [unknown, known], {
    hovermode: "closest",
    xaxis: serverAxis("Sending server", servers, { constrain: "domain" }),
    yaxis: serverAxis("Receiving server", servers, { autorange: "reversed", scaleanchor: "x", constrain: "domain" }),
  });
}

// What a stretch of rounds is called in the legend, and its colour.
function describe(span, groups) {
  if (span.group === null) return [span.state, colour(span.state)];
  const name = span.group < Math.min(groups.length, MAX_GROUPS) ? groups[span.group] : "other groups";
  return [name, look(span.group % GROUP_COLOURS).colour];
}

function bars(spans, groups, row) {
  const traces = new Map();
  for (const span of spans) {
    const [name, shade] = describe(span, groups);
    const trace = traces.get(name) ?? {
      type: "bar", orientation: "h", name, x: [], base: [], y: [], text: [], textposition: "none", marker: { color: [], line: { width: 0 } },
      hovertemplate: "%{text}<extra></extra>", width: 0.82,
    };
    trace.x.push(span.to - span.from + 1);
    trace.base.push(span.from - 0.5);
    trace.y.push(row.get(span.server));
    trace.text.push(`server ${span.server}, rounds ${span.from} to ${span.to}: ${name}`);
    trace.marker.color.push(shade);
    traces.set(name, trace);
  }
  return [...traces.values()];
}

function crosses(marks, row) {
  return Object.entries(SYMBOLS).map(([kind, symbol]) => {
    const some = marks.filter((mark) => mark.kind === kind);
    const marker = { symbol, size: 8, color: colour("ink"), line: { width: symbol === "x-thin" ? 2 : 0, color: colour("ink") } };
    return {
      x: some.map((mark) => mark.round), y: some.map((mark) => row.get(mark.server)), mode: "markers", marker, showlegend: false,
      text: some.map((mark) => `server ${mark.server}, round ${mark.round}: ${kind}`), hovertemplate: "%{text}<extra></extra>",
    };
  });
}

function drawGroups(target, { servers, spans, marks, groups, title }) {
  target.hidden = !spans.length;
  setText("groups-title", title);
  if (!spans.length) return;
  const row = new Map(servers.map((server, place) => [server, place]));
  draw(target, [...bars(spans, groups, row), ...crosses(marks, row)], {
    barmode: "overlay", hovermode: "closest", showlegend: true,
    xaxis: axis("Round", { showgrid: false }),
    yaxis: serverAxis("Server", servers, { range: [servers.length - 0.5, -0.5] }),
  });
}
