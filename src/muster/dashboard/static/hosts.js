// The hosts with their ranks as tiles and their GPUs as meters; one rank is always the chosen one.

import { $, bytes, bytesOf, element, fill, known, percent, significant } from "./words.js";

// Each state has a shape besides its colour, in a square of 12.
const SHAPES = {
  starting: "M6 1a5 5 0 1 0 .01 0zM6 3a3 3 0 1 1-.01 0z",
  running: "M2 1l9 5-9 5z",
  waiting: "M2 1h8L6.8 6 10 11H2l3.200-5z",
  stopped: "M2 1h3v10H2zM7 1h3v10H7z",
  disk: "M1 2h10v3H1zM1 7h10v3H1z",
  ended: "M1 6.500l1.500-1.500L5 7.500l4.800-5.500L11.300 3.400 5 10.500z",
  failed: "M2.500 1L6 4.500 9.500 1 11 2.500 7.500 6 11 9.500 9.500 11 6 7.500 2.500 11 1 9.500 4.500 6 1 2.500z",
  lost: "M5 1h2v6H5zM5 9h2v2H5z",
};
const WORDS = { disk: "waits for disk", ended: "ended", waiting: "waiting" };
const MANY = 64;

let chosen = 0;
let tell = () => {};
let shown = ""; // which ranks on which hosts the tiles stand for

export const chosenRank = () => chosen;
export const onChoice = (listener) => (tell = listener);

export function choose(rank) {
  chosen = rank;
  for (const tile of document.querySelectorAll(".tile")) mark(tile);
  tell(rank);
}

function mark(tile) {
  const mine = Number(tile.dataset.rank) === chosen;
  tile.setAttribute("aria-pressed", mine);
  tile.tabIndex = mine ? 0 : -1;
}

export function shape(state) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("class", `shape ${state}`);
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", SHAPES[state] || SHAPES.starting);
  svg.append(path);
  return svg;
}

export function showHosts(state, causes) {
  const which = JSON.stringify([state.hosts.map((host) => host.name), state.ranks.map((rank) => [rank.rank, rank.host])]);
  if (which !== shown) build(state);
  shown = which;
  $("hosts").classList.toggle("many", state.ranks.length > MANY);
  for (const host of state.hosts) showHost(host);
  for (const rank of state.ranks) showTile(rank, causes.has(rank.rank));
  const counts = Object.keys(SHAPES).map((name) => [name, state.ranks.filter((rank) => rank.state === name).length]);
  fill($("legend"), counts.filter(([, number]) => number).map(([name, number]) => element("li", {}, shape(name), `${number} ${WORDS[name] || name}`)));
}

function build(state) {
  const cards = state.hosts.map((host) => {
    const mine = state.ranks.filter((rank) => rank.host === host.name);
    const tiles = mine.map((rank) => element("button", { type: "button", class: "tile", "data-rank": rank.rank, id: `rank-${rank.rank}` }));
    return element(
      "article",
      { class: "host", "data-host": host.name },
      element("header", {}, element("h3", {}, host.name), element("p", { class: "words" })),
      element("div", { class: "tiles", role: "group", "aria-label": `Ranks on ${host.name}` }, ...tiles),
      element("details", { class: "gpus", open: state.ranks.length <= MANY }, element("summary"), element("div")),
    );
  });
  $("hosts").replaceChildren(...cards);
  if (state.ranks.length && !state.ranks.some((rank) => rank.rank === chosen)) chosen = state.ranks[0].rank;
  for (const tile of document.querySelectorAll(".tile")) mark(tile);
}

function showHost(host) {
  const card = [...document.querySelectorAll(".host")].find((found) => found.dataset.host === host.name);
  const [head, , gpus] = card.children;
  const [summary, list] = gpus.children;
  const words = [
    host.state === "up" ? "" : host.state,
    known(host.cpu_use) && `CPU ${percent(host.cpu_use)} of ${host.cpus}`,
    known(host.memory_used) && `memory ${bytesOf(host.memory_used, host.memory_total)}`,
    known(host.network_in) && host.network_in + (host.network_out || 0) > 1000 && `network ${bytes(host.network_in)}/s in, ${bytes(host.network_out || 0)}/s out`,
    known(host.disk_wait) && host.disk_wait > 0.05 && `disk wait ${percent(host.disk_wait)}`,
  ];
  head.lastChild.textContent = words.filter(Boolean).join(" · ");
  card.classList.toggle("lost", host.state === "lost");
  gpus.hidden = !host.gpus.length;
  summary.textContent = gpuSummary(host.gpus);
  fill(list, host.gpus.map(gpuLine));
}

function gpuSummary(gpus) {
  const uses = gpus.map((gpu) => gpu.use).filter(known);
  const held = gpus.filter((gpu) => gpu.throttled).length;
  const mean = uses.length ? `, mean use ${percent(uses.reduce((a, b) => a + b) / uses.length)}` : "";
  return `${gpus.length} ${gpus.length === 1 ? "GPU" : "GPUs"}${mean}${held ? `, ${held} held down` : ""}`;
}

function gpuLine(gpu) {
  const clock = known(gpu.clock) && gpu.clock_max ? `${gpu.clock} of ${gpu.clock_max} MHz` : "";
  const use = [known(gpu.use) ? `use ${percent(gpu.use)}` : "use unknown", known(gpu.temperature) && `${gpu.temperature} °C`];
  const share = gpu.memory_total ? gpu.memory_used / gpu.memory_total : null;
  const held = gpu.throttled ? [element("span", { class: "words" }, `held down: ${gpu.throttled}${clock && `, ${clock}`}`)] : [];
  return element(
    "div",
    { class: "gpu", title: [gpu.name, clock].filter(Boolean).join(", ") },
    `GPU ${gpu.index}`,
    meter(gpu.use, use.filter(Boolean).join(", ")),
    meter(share, known(gpu.memory_used) ? bytesOf(gpu.memory_used, gpu.memory_total) : "memory unknown"),
    ...held,
  );
}

function meter(share, words) {
  const bar = element("i");
  bar.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share || 0)))}%`;
  return element("span", { class: "meter" }, bar, element("em", {}, words));
}

function showTile(rank, cause) {
  const tile = $(`rank-${rank.rank}`);
  const code = known(rank.exit_code) && rank.exit_code !== 0 ? `, code ${rank.exit_code}` : "";
  const rate = known(rank.step_rate) && ["running", "waiting"].includes(rank.state) ? `${significant(rank.step_rate)}/s` : "";
  const words = `${WORDS[rank.state] || rank.state}${code}`;
  tile.className = `tile ${rank.state}${cause ? " cause" : ""}`;
  tile.setAttribute("aria-label", `Rank ${rank.rank} on ${rank.host}: ${words}${cause ? ", named in the last report" : ""}`);
  tile.title = `rank ${rank.rank}: ${words}${known(rank.gpu) ? `, GPU ${rank.gpu}` : ""}`;
  fill(tile, [shape(rank.state), element("b", {}, String(rank.rank)), element("small", {}, rate), element("span", {}, words)]);
}

// Arrows move among tiles as they lie on the screen; Tab leaves them.
$("hosts").addEventListener("keydown", (event) => {
  const tiles = [...document.querySelectorAll(".tile")];
  const at = tiles.indexOf(document.activeElement);
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up", Home: -at, End: tiles.length - 1 - at }[event.key];
  if (at < 0 || by === undefined) return;
  event.preventDefault();
  const next = typeof by === "number" ? tiles[at + by] : nearest(tiles, tiles[at], by);
  if (!next) return;
  choose(Number(next.dataset.rank));
  next.focus();
});

// The tile in the next line that lies closest.
function nearest(tiles, from, way) {
  const here = from.getBoundingClientRect();
  const away = (tile) => {
    const there = tile.getBoundingClientRect();
    const down = way === "down" ? there.top - here.top : here.top - there.top;
    return down < 2 ? Infinity : 10 * down + Math.abs(there.left - here.left);
  };
  const best = tiles.reduce((a, b) => (away(b) < away(a) ? b : a));
  return away(best) < Infinity ? best : null;
}

$("hosts").addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  choose(Number(tile.dataset.rank));
  if (matchMedia("(max-width: 70rem)").matches) $("log").scrollIntoView(); // else it is beside the tiles
});
