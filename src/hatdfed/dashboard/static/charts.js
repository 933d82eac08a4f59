// How every chart looks. Colours come from the style sheet, so light and dark have one source.

const style = () => getComputedStyle(document.documentElement);

export const colour = (name) => style().getPropertyValue(`--${name}`).trim();

export const isDark = () => document.documentElement.dataset.theme === "dark";

// Okabe and Ito's colours without their yellow, as in the printed figures.
const ON_PAPER = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#4D4D4D"];
const ON_DARK = ["#56B4E9", "#E8742A", "#2BC49A", "#CC79A7", "#E69F00", "#9CC7E8", "#D8A0FF", "#B9C0C7"];
// Plotly scales a map without gaps as an image, by an inline style that our policy refuses. With any gap it draws cells.
export const CELL_GAP = 0.2;

const NARROW = 430; // pixels

const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "triangle-up", "diamond"];

export function look(index) {
  const palette = isDark() ? ON_DARK : ON_PAPER;
  const turn = Math.floor(index / palette.length);
  return { colour: palette[index % palette.length], dash: DASHES[turn % 4], symbol: SYMBOLS[turn % 4] };
}

// From little to much: darker on paper, brighter in the dark.
const JOULES = { light: ["#FDBE5B", "#F28522", "#CC4C02", "#8C2D04", "#521A04"], dark: ["#8A4713", "#C46A16", "#F0932B", "#FEC44F", "#FFF1C2"] };
const CHANCE = { light: ["#F1F4F8", "#C5D6E8", "#74A9CF", "#1F77B4", "#04395E"], dark: ["#1D2630", "#24506F", "#2F7FB3", "#73BDEB", "#E6F5FF"] };

// From bad over undecided to good.
const VERDICT = { light: ["#D55E00", "#F3F5F7", "#0072B2"], dark: ["#E8742A", "#262D35", "#56B4E9"] };

const ramp = (ramps) => ramps[isDark() ? "dark" : "light"];

export const jouleRamp = () => ramp(JOULES);

export const chanceRamp = () => ramp(CHANCE);

export const verdictRamp = () => ramp(VERDICT);

export const scaled = (shades) => shades.map((shade, index) => [index / (shades.length - 1), shade]);

// Black or white, whichever is read better on a shade that `mixed` gave.
export function inkOn(shade) {
  const [red, green, blue] = shade.match(/\d+/g).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#0d1114" : "#ffffff";
}

export function mixed(shades, share) {
  const place = Math.min(Math.max(share, 0), 1) * (shades.length - 1);
  const from = Math.min(Math.floor(place), shades.length - 2);
  const part = (shade, at) => parseInt(shade.slice(at, at + 2), 16);
  const channel = (at) => Math.round(part(shades[from], at) + (place - from) * (part(shades[from + 1], at) - part(shades[from], at)));
  return `rgb(${channel(1)}, ${channel(3)}, ${channel(5)})`;
}

export function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8, font: { size: 13 } },
    gridcolor: colour("line"),
    linecolor: colour("muted"),
    zeroline: false,
    automargin: true,
    fixedrange: true,
    ...more,
  };
}

export function draw(target, traces, layout) {
  const font = { family: style().getPropertyValue("--sans"), size: 13, color: colour("muted") };
  const base = {
    font,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 12, r: 16, t: 8, b: 8 },
    hovermode: "x unified",
    hoverdistance: 200,
    hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("line"), font: { ...font, color: colour("ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" },
    showlegend: false,
    dragmode: false,
  };
  return Plotly.react(target, traces, { ...base, ...layout }, { displayModeBar: false, responsive: true });
}

// The bar that explains a map's colours: beside it, or on a phone below it.
export function scaleBar(target) {
  const below = { orientation: "h", y: -0.22, yanchor: "top", nticks: 5 };
  return { thickness: 10, outlinewidth: 0, ...(target.clientWidth < NARROW ? below : {}) };
}

export function cursor(round) {
  return [{ type: "line", x0: round, x1: round, y0: 0, y1: 1, yref: "paper", line: { color: colour("muted"), width: 1, dash: "dot" } }];
}

export function energyUnit(largest) {
  return largest >= 999500 ? ["MJ", 1e6] : largest >= 999.5 ? ["kJ", 1e3] : ["J", 1];
}
