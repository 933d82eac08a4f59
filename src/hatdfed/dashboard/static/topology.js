// One round's links: servers on a circle, arrows from sender to receiver. Many servers become a matrix instead.
import { CELL_GAP, axis, colour, draw, jouleRamp, mixed, scaleBar, scaled } from "./charts.js";
import { decimal, element, joules, percent, setText } from "./dom.js";

const MAX_NODES = 40;
const MAX_CELLS = 1500; // servers on a side of the matrix; a browser draws no more
const SIDE = 480;
const RING = 172;
const CIRCLE_NOTE = "Arrows go from sender to receiver, their colour says what they cost. Beside each server, and as its size: validation accuracy in percent.";
const MATRIX_NOTE = "Every coloured cell is a link, its colour says what it cost. Rows receive, columns send. A cross: it did not arrive.";
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function drawTopology(target, round) {
  const servers = round.accuracy.length;
  const isMatrix = servers > MAX_NODES;
  const cut = round.links_are_cut ? ` Only the first ${round.links.length} links are drawn.` : "";
  setText("topology-note", (isMatrix ? MATRIX_NOTE : CIRCLE_NOTE) + cut);
  if (servers > MAX_CELLS) target.replaceChildren(element("p", { class: "scale" }, `${servers} servers are too many to draw. Links are in the table below.`));
  else if (isMatrix) drawMatrix(target, round, servers);
  else drawCircle(target, round, servers);
}

function range(values, least) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return [0, least];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return high - low < least ? [low - least / 2, high + least / 2] : [low, high];
}

function drawCircle(target, round, servers) {
  const widest = Math.min(30, 400 / servers);
  const [low, high] = range(round.accuracy, 1);
  const radius = round.accuracy.map((value) => widest * Math.sqrt(0.4 + 0.6 * (value === null ? 0 : (value - low) / (high - low))));
  const place = round.accuracy.map((_, server) => {
    const turn = 2 * Math.PI * (server / servers + (servers === 2 ? 0.75 : 0));
    return [SIDE / 2 + RING * Math.sin(turn), SIDE / 2 - RING * Math.cos(turn), Math.sin(turn), -Math.cos(turn)];
  });
  const scale = jouleScale(round.links);
  const picture = shape("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": round.titles.links });
  picture.append(shape("circle", { class: "ring", cx: SIDE / 2, cy: SIDE / 2, r: RING }));
  const byPrice = [...round.links].sort((one, other) => (one.joules ?? 0) - (other.joules ?? 0)); // dear ones on top
  for (const link of byPrice) picture.append(arrow(link, place, radius, scale, round.links.length));
  place.forEach((_, server) => picture.append(node(server, place[server], radius[server], round.accuracy[server], servers)));
  const [focused, pointed] = ["focus", "hover"].map((state) => target.querySelector(`.server:${state}`)?.dataset.server);
  const show = highlight(picture);
  target.replaceChildren(picture, legend(scale, round.links));
  // Whoever was at a server stays there when the round changes.
  if (focused !== undefined) picture.querySelector(`[data-server="${focused}"]`)?.focus();
  else if (pointed !== undefined) show(pointed);
}

function jouleScale(links) {
  const known = links.map((link) => link.joules).filter((value) => value !== null);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
  const ramp = jouleRamp();
  const shade = (value) => (value === null ? colour("muted") : mixed(ramp, high > low ? (value - low) / (high - low) : 0.5));
  return { low, high, shade, ramp, isKnown: known.length > 0 };
}

function arrow(link, place, radius, scale, links) {
  const [x0, y0] = place[link.from];
  const [x1, y1] = place[link.to];
  const [dx, dy] = [x1 - x0, y1 - y0];
  // Always bent to the same side of the way, so that opposite links do not meet.
  const [bx, by] = [(x0 + x1) / 2 - 0.14 * dy, (y0 + y1) / 2 + 0.14 * dx];
  const towards = ([fx, fy], [tx, ty], far) => {
    const way = Math.hypot(tx - fx, ty - fy) || 1;
    return [fx + ((tx - fx) / way) * far, fy + ((ty - fy) / way) * far];
  };
  const width = Math.max(0.8, Math.min(2.4, 60 / Math.max(links, 1)));
  const head = 5 + 2.6 * width;
  const start = towards([x0, y0], [bx, by], radius[link.from] + 2);
  const tip = towards([x1, y1], [bx, by], radius[link.to] + 2);
  const neck = towards([x1, y1], [bx, by], radius[link.to] + 2 + head);
  const [ux, uy] = [(tip[0] - neck[0]) / head, (tip[1] - neck[1]) / head];
  const half = head * 0.42;
  const shade = scale.shade(link.joules);
  const point = (pair) => pair.map((value) => value.toFixed(1)).join(" ");
  const sides = [tip, [neck[0] - uy * half, neck[1] + ux * half], [neck[0] + uy * half, neck[1] - ux * half]];
  const words = `server ${link.from} → server ${link.to}: ${joules(link.joules)}, probability ${decimal(link.propensity)}${link.delivered ? "" : ", did not arrive"}`;
  const line = { d: `M${point(start)} Q${bx.toFixed(1)} ${by.toFixed(1)} ${point(neck)}`, stroke: shade, "stroke-width": width, fill: "none" };
  if (!link.delivered) line["stroke-dasharray"] = "6 4";
  return shape(
    "g", { class: "link", "data-from": link.from, "data-to": link.to },
    shape("title", {}, words), shape("path", line), shape("path", { d: `M${sides.map(point).join(" L")} Z`, fill: shade }),
  );
}

function node(server, [x, y, outX, outY], radius, accuracy, servers) {
  const small = servers > 20 ? " small" : "";
  const away = radius + 15 + 8 * Math.abs(outX);
  return shape(
    "g", { class: "server", tabindex: 0, "data-server": server, role: "img", "aria-label": `Server ${server}, accuracy ${percent(accuracy)}` },
    shape("title", {}, `Server ${server}: ${percent(accuracy)}`),
    shape("circle", { cx: x, cy: y, r: radius }),
    shape("text", { x, y, class: `name${small}` }, String(server)),
    shape("text", { x: x + outX * away, y: y + outY * away, class: `value${small}` }, accuracy === null ? "–" : accuracy.toFixed(1)),
  );
}

// Whoever points at a server, or comes to it by keys, sees its own links alone.
function highlight(picture) {
  const show = (server) => {
    picture.classList.toggle("pointed", server !== null);
    for (const link of picture.querySelectorAll(".link")) {
      link.classList.toggle("near", link.dataset.from === server || link.dataset.to === server);
    }
  };
  for (const place of picture.querySelectorAll(".server")) {
    for (const event of ["mouseenter", "focus"]) place.addEventListener(event, () => show(place.dataset.server));
    for (const event of ["mouseleave", "blur"]) place.addEventListener(event, () => show(null));
  }
  return show;
}

function legend(scale, links) {
  const line = element("p", { class: "scale" });
  if (!links.length) line.append("No link in this round.");
  else if (!scale.isKnown) line.append("The ledger has no joules for these links.");
  else {
    const width = 120;
    const bar = shape("svg", { viewBox: `0 0 ${width} 10`, width, height: 10, "aria-hidden": "true" });
    const steps = 24;
    for (let step = 0; step < steps; step += 1) {
      bar.append(shape("rect", { x: (step * width) / steps, y: 0, width: width / steps + 0.5, height: 10, fill: mixed(scale.ramp, step / (steps - 1)) }));
    }
    line.append("Energy of a link ", joules(scale.low), " ", bar, " ", joules(scale.high));
  }
  if (links.some((link) => !link.delivered)) line.append(" Dashed: did not arrive.");
  return line;
}

function drawMatrix(target, round, servers) {
  const values = Array.from({ length: servers }, () => new Array(servers).fill(null));
  for (const link of round.links) values[link.to][link.from] = link.joules ?? 0;
  let chart = target.querySelector(".chart");
  if (!chart) {
    chart = element("div", { class: "chart square" });
    target.replaceChildren(chart);
  }
  const bar = { ...scaleBar(chart), ticksuffix: " J" };
  const hovertemplate = "server %{x} → server %{y}: %{z:.3g} J<extra></extra>";
  const cells = { type: "heatmap", z: values, colorscale: scaled(jouleRamp()), colorbar: bar, hovertemplate, hoverongaps: false, xgap: CELL_GAP, ygap: CELL_GAP };
  const lost = round.links.filter((link) => !link.delivered);
  const crosses = {
    x: lost.map((link) => link.from), y: lost.map((link) => link.to), mode: "markers", marker: { symbol: "x-thin", size: 6, line: { width: 1.5, color: colour("ink") } }, hoverinfo: "skip",
  };
  draw(chart, [cells, crosses], {
    hovermode: "closest",
    xaxis: axis("Sending server", { showgrid: false, constrain: "domain" }),
    yaxis: axis("Receiving server", { showgrid: false, autorange: "reversed", scaleanchor: "x", constrain: "domain" }),
  });
}
