// The list: filters that act at once, chosen runs that are counted, rows that renew themselves.
import { byId } from "./dom.js";
import { watch } from "./live.js";

const MINUTE_MS = 60000;
const TYPING_MS = 200;
const rows = byId("rows");
const MAX_CHOSEN = Number(byId("choose")?.dataset.most);

function ticked() {
  return [...document.querySelectorAll("#rows input[name=run]:checked")].map((box) => box.value);
}

const boxes = (more = "") => [...rows.querySelectorAll(`input[name=run]${more}`)];

// A box for many shows whether all, some or none of them are chosen.
function mirror(box, of) {
  const chosen = of.filter((one) => one.checked).length;
  box.checked = of.length > 0 && chosen === of.length;
  box.indeterminate = chosen > 0 && chosen < of.length;
}

function choose({ target }) {
  const of = target.id === "all" ? boxes() : target.dataset.group ? boxes(`[data-of="${target.dataset.group}"]`) : [];
  for (const box of of) box.checked = target.checked;
  count();
}

function count() {
  mirror(byId("all"), boxes());
  for (const box of rows.querySelectorAll("[data-group]")) mirror(box, boxes(`[data-of="${box.dataset.group}"]`));
  const number = ticked().length;
  byId("compare").disabled = number < 1 || number > MAX_CHOSEN;
  byId("chosen").textContent = number === 0 ? `Tick two or more runs, ${MAX_CHOSEN} at most.`
    : number > MAX_CHOSEN ? `${number} runs are chosen, but ${MAX_CHOSEN} is the most.`
      : `${number} run${number > 1 ? "s" : ""} chosen.`;
}

async function renew() {
  const address = new URL(location.href);
  address.searchParams.set("part", "rows");
  const answer = await fetch(address).catch(() => null); // a lost connection is said by `watch`
  if (!answer?.ok) return;
  const kept = new Set(ticked());
  const focused = document.activeElement?.closest?.("#rows a, #rows input");
  const where = focused?.getAttribute("href") ?? focused?.value;
  rows.innerHTML = await answer.text(); // our own template, which escapes whatever a run brings
  for (const box of boxes()) box.checked = kept.has(box.value);
  if (where) [...rows.querySelectorAll("a, input")].find((found) => (found.getAttribute("href") ?? found.value) === where)?.focus();
  byId("count").textContent = boxes().length;
  count();
}

// While somebody types, only the rows change; the address keeps the words.
let typed = null;
function search() {
  clearTimeout(typed);
  typed = setTimeout(() => {
    const address = new URL(location.href);
    address.searchParams.set("search", byId("search").value);
    history.replaceState(null, "", address);
    for (const link of document.querySelectorAll(".runs thead a")) {
      const sorted = new URL(link.href);
      sorted.searchParams.set("search", byId("search").value);
      link.href = sorted;
    }
    renew();
  }, TYPING_MS);
}

if (rows) {
  byId("all-label").hidden = false;
  byId("search").addEventListener("input", search);
  byId("filters").addEventListener("change", ({ target }) => { if (target.id !== "search") byId("filters").requestSubmit(); });
  byId("show").hidden = true; // which is for those without scripts
  byId("choose").addEventListener("change", choose);
  addEventListener("pageshow", count); // the browser may bring ticks back
  count();
}

let last = null;
watch("/api/runs/events", ({ stamp, total }) => {
  const isNews = last !== null && stamp !== last;
  last = stamp;
  if (isNews && !rows) location.reload(); // the first run of an empty list
  if (!rows) return;
  byId("total").textContent = total;
  if (isNews) renew();
});
if (rows) setInterval(() => { if (!document.hidden) renew(); }, MINUTE_MS); // for how long ago things were
