// The hosts with their ranks as tiles, what they use as small charts, and their GPUs as meters; one rank is always the chosen one.

import { $, element, fill, svgPart } from "./dom.js";
import { spark } from "./draw.js";
import { bytes, bytesOf, clock, duration, known, percent, significant } from "./format.js";
import { SHAPES, rankState, rankWords, shape } from "./shapes.js";

const SHORT = { disk: "disk wait", stopped: "suspended", ended: "finished", canceled: "stopped" }; // on a tile
const MANY = 64; // ranks
const MANY_HOSTS = 16;

// What is drawn for each host: its place in a moment's values, and a value in words. Network is the sum of in and out.
const USES = {
  CPU: { value: (use) => use[0], words: (host) => known(host.cpu_use) && `${percent(host.cpu_use)} of ${host.cpus}`, top: 1, at: percent },
  GPU: { value: (use) => use[2], words: (host) => gpuUse(host.gpus), top: 1, at: percent },
  Memory: { value: (use) => use[1], words: (host) => known(host.memory_used) && bytesOf(host.memory_used, host.memory_total).replace(" of ", "/"), top: 1, at: percent },
  Network: {
    value: (use) => (known(use[3]) ? use[3] + (use[4] || 0) : null),
    words: (host) => known(host.network_in) && `${bytes(host.network_in + (host.network_out || 0))}/s`,
    top: null,
    at: (value) => `${bytes(value)}/s`,
  },
};

let chosen = 0;
let isPicked = false; // by the user; else it is the rank that matters most
let onChosen = () => {};
let shown = ""; // which ranks on which hosts the tiles stand for
let pointed = null; // the small chart under the pointer: its host, its use, and how far right of its beginning

export const chosenRank = () => chosen;
export const onChoice = (listener) => (onChosen = listener);

export function choose(rank, byUser = true) {
  chosen = rank;
  isPicked ||= byUser;
  for (const tile of document.querySelectorAll(".tile")) mark(tile);
  onChosen(rank);
}

function mark(tile) {
  const mine = Number(tile.dataset.rank) === chosen;
  tile.setAttribute("aria-pressed", mine);
  tile.tabIndex = mine ? 0 : -1;
}

export function showHosts(state, history) {
  const which = JSON.stringify([state.hosts.map((host) => host.name), state.ranks.map((rank) => [rank.rank, rank.host])]);
  if (which !== shown) build(state);
  shown = which;
  $("hosts").classList.toggle("many", state.ranks.length > MANY);
  $("hosts").classList.toggle("many-hosts", state.hosts.length > MANY_HOSTS);
  for (const host of state.hosts) showHost(host, history, state.hosts.length <= MANY_HOSTS, state);
  const failure = lastFailure(state);
  const first = failure?.sentence.includes("failed first") ? failure.rank : null; // not where all failed the same way
  for (const rank of state.ranks) showTile({ ...rank, state: rankState(rank, state.slow) }, rank.rank === first);
  const counts = Object.keys(SHAPES).map((name) => [name, state.ranks.filter((rank) => rankState(rank, state.slow) === name).length]);
  fill($("legend"), counts.filter(([, number]) => number).map(([name, number]) => element("li", {}, shape(name), `${number} ${rankWords(name)}`)));
  if (!isPicked) chooseWorst(state);
}

// Until the user picks one: the rank that failed first, else one that failed, hangs or is lost.
function chooseWorst(state) {
  const { ranks } = state;
  const first = (name) => ranks.find((rank) => rank.state === name)?.rank;
  const worst = lastFailure(state)?.rank ?? first("failed") ?? first("hung") ?? first("lost") ?? state.slow[0];
  if (worst !== undefined && worst !== chosen && ranks.some((rank) => rank.rank === worst)) choose(worst, false);
}

const lastFailure = ({ failures, attempt }) => failures.findLast((failure) => failure.attempt === attempt);

function build(state) {
  const cards = state.hosts.map((host) => {
    const mine = state.ranks.filter((rank) => rank.host === host.name);
    const tiles = mine.map((rank) => element("button", { type: "button", class: "tile", "data-rank": rank.rank, id: `rank-${rank.rank}` }));
    return element(
      "article",
      { class: "host", "data-host": host.name },
      element("header", {}, element("h3", {}, host.name), element("p", { class: "words" })),
      element("div", { class: "tiles", role: "group", "aria-label": `Ranks on ${host.name}` }, ...tiles),
      element("div", { class: "sparks" }, ...Object.keys(USES).map((name) => sparkOf(host.name, name))),
      element("details", { class: "gpus", open: state.ranks.length <= MANY }, element("summary"), element("div")),
    );
  });
  $("hosts").replaceChildren(...cards);
  if (state.ranks.length && !state.ranks.some((rank) => rank.rank === chosen)) chosen = state.ranks[0].rank;
  for (const tile of document.querySelectorAll(".tile")) mark(tile);
}

function sparkOf(host, name) {
  const chart = svgPart("svg", { "aria-hidden": "true" });
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    pointed = { host, name, share: Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) };
    onChosen(null);
  });
  chart.addEventListener("pointerleave", () => {
    pointed = null;
    onChosen(null);
  });
  return element("div", { class: "spark", "data-use": name, hidden: true }, element("p", {}, element("span", {}, name), element("b")), chart);
}

function showHost(host, history, hasSparks, { now, phase }) {
  const isOver = phase === "ended";
  const card = [...document.querySelectorAll(".host")].find((found) => found.dataset.host === host.name);
  const [head, , sparks, gpus] = card.children;
  const [summary, list] = gpus.children;
  const use = hasSparks ? [] : Object.entries(USES).map(([name, { words }]) => words(host) && `${name} ${words(host)}`);
  const disk = known(host.disk_wait) && host.disk_wait > 0.05 && `disk wait ${percent(host.disk_wait)}`;
  head.lastChild.textContent = [host.role === "spare" && "spare", hostWords(host, now, isOver), ...use, disk].filter(Boolean).join(" · ");
  for (const name of ["lost", "bad", "draining"]) card.classList.toggle(name, host.state === name);
  card.classList.toggle("spare", host.role === "spare");
  const moments = history.filter((moment) => moment.hosts?.[host.name]);
  for (const chart of hasSparks ? sparks.children : []) showSpark(chart, host, moments);
  gpus.hidden = !host.gpus.length;
  summary.textContent = gpuSummary(host.gpus);
  fill(list, host.gpus.map(gpuLine));
}

// The state of a host that is not simply up, and why.
function hostWords({ state, why, deadline }, now, isOver) {
  if (state === "up") return "";
  if (state === "connecting") return isOver ? "not connected" : state;
  const left = state === "draining" && known(deadline) && (deadline > now ? `, ${duration(deadline - now)} left` : ", its time is over");
  return `${state}${left || ""}${why ? `: ${why}` : ""}`;
}

function showSpark(chart, host, moments) {
  const { value, words, top, at } = USES[chart.dataset.use];
  const points = moments.map((moment) => [moment.time, value(moment.hosts[host.name])]);
  const highest = points.reduce((most, [, number]) => Math.max(most, number || 0), 0);
  const mine = pointed && pointed.host === host.name && pointed.name === chart.dataset.use && points.length > 1;
  const index = mine ? nearestTo(points, pointed.share) : null;
  const read = index === null ? null : points[index];
  chart.hidden = !known(points.at(-1)?.[1]) && !words(host);
  chart.querySelector("b").textContent = read && known(read[1]) ? `${at(read[1])} at ${clock(read[0])}` : words(host) || "";
  chart.title = points.length ? `${chart.dataset.use} of ${host.name} since ${clock(points[0][0])}; highest: ${at(highest)}` : "";
  spark(chart.querySelector("svg"), points, top ?? (highest || 1), index);
}

// The point at this share of the time between the first and the last.
function nearestTo(points, share) {
  const time = points[0][0] + share * (points.at(-1)[0] - points[0][0]);
  return points.reduce((best, [when], at) => (Math.abs(when - time) < Math.abs(points[best][0] - time) ? at : best), 0);
}

function gpuUse(gpus) {
  const uses = gpus.map((gpu) => gpu.use).filter(known);
  return uses.length > 0 && `${percent(uses.reduce((a, b) => a + b) / uses.length)} of ${gpus.length}`;
}

function gpuSummary(gpus) {
  const uses = gpus.map((gpu) => gpu.use).filter(known);
  const held = gpus.filter((gpu) => gpu.throttled).length;
  const mean = uses.length ? `, mean use ${percent(uses.reduce((a, b) => a + b) / uses.length)}` : "";
  return `${gpus.length} ${gpus.length === 1 ? "GPU" : "GPUs"}${mean}${held ? `, ${held} throttled` : ""}`;
}

function gpuLine(gpu) {
  const clock = known(gpu.clock) && gpu.clock_max ? `${gpu.clock} of ${gpu.clock_max} MHz` : "";
  const use = [known(gpu.use) ? `use ${percent(gpu.use)}` : "use unknown", known(gpu.temperature) && `${gpu.temperature} °C`];
  const share = gpu.memory_total ? gpu.memory_used / gpu.memory_total : null;
  const held = gpu.throttled ? [element("span", { class: "words" }, `throttled: ${gpu.throttled}${clock && `, ${clock}`}`)] : [];
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

function showTile(rank, isFirst) {
  const tile = $(`rank-${rank.rank}`);
  const code = rank.state === "failed" && known(rank.exit_code) ? `exit code ${rank.exit_code}` : "";
  const rate = known(rank.step_rate) && ["running", "waiting", "slow"].includes(rank.state) ? `${significant(rank.step_rate)}/s` : "";
  const words = `${rankWords(rank.state)}${isFirst ? " first" : ""}${code && `, ${code}`}`;
  tile.className = `tile ${rank.state}`;
  tile.setAttribute("aria-label", `Rank ${rank.rank} on ${rank.host}: ${words}`);
  tile.title = `rank ${rank.rank}: ${words}${known(rank.gpu) ? `, GPU ${rank.gpu}` : ""}`;
  fill(tile, [shape(rank.state), element("b", {}, String(rank.rank)), element("small", {}, rate), element("span", {}, isFirst ? "failed first" : code || SHORT[rank.state] || rank.state)]);
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
  if (matchMedia("(max-width: 63.99rem)").matches) $("log").scrollIntoView(); // elsewhere it is beside the tiles
});
