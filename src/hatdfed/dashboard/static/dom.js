// Small things that every page needs. Text always goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function setText(id, text) {
  const element = byId(id);
  if (element && element.textContent !== text) element.textContent = text;
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

export function fillTable(table, rows) {
  // A cell is a text, or [text, class].
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent); // which cards on a phone repeat
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell, index) => {
    const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
    return element("td", { "data-label": headings[index], ...(kind ? { class: kind } : {}) }, text);
  })));
  table.tBodies[0].replaceChildren(...lines);
}

export async function fetchJson(address, signal) {
  const answer = await fetch(address, { signal, headers: { Accept: "application/json" } });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.trouble ?? `The dashboard answered ${answer.status}.`);
  return content;
}

const SPACE = "\u00a0";

export function joules(value) {
  if (value === null || value === undefined) return "–";
  const [size, unit] = Math.abs(value) >= 999500 ? [1e6, "MJ"] : Math.abs(value) >= 999.5 ? [1e3, "kJ"] : [1, "J"];
  return `${value === 0 ? 0 : threeDigits(value / size)}${SPACE}${unit}`;
}

const grouped = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function threeDigits(value) {
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3))))));
  return grouped(value, Math.min(digits, 6));
}

export const count = (value) => (value === null || value === undefined ? "–" : grouped(value, 0));

export const percent = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(1)}${SPACE}%`);

export const decimal = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function bits(value) {
  if (!value) return "–";
  const [size, unit] = value >= 8e6 ? [8e6, "MB"] : value >= 8e3 ? [8e3, "kB"] : [8, "B"];
  return `${threeDigits(value / size)}${SPACE}${unit}`;
}
