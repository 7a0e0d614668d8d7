// The log of the chosen rank, in pieces, and the search through one log or all of them.

import { $, copy, element, fill, get } from "./dom.js";
import { bytes, clock, known, moment, percent, ranks, significant } from "./format.js";
import { choose } from "./hosts.js";
import { unitOf } from "./job_charts.js";
import { rankState, rankWords } from "./shapes.js";

const MOST_LINES = 4000; // kept in the browser
const MOST_RANKS = 100000; // a damaged state may have more

let rank = 0;
let attempt = null; // null: the newest
let attempts = [];
let start = null; // what part of the log is shown, in bytes; null: none yet
let end = 0;
let asking = 0; // counts questions, so that a late answer to an old one is dropped
let wanted = null; // a line to be brought into sight

const which = () => ({ rank, attempt: attempt ?? attempts[attempts.length - 1] ?? 0 });

export function chooseLog(number) {
  rank = number;
  $("log-rank").value = number;
  restart();
}

export function chooseAttempt(number) {
  attempt = number;
  $("log-attempt").value = number;
  restart();
}

function restart() {
  start = null;
  wanted = null;
  $("lines").replaceChildren();
  $("earlier").disabled = true;
  $("follow").checked = true;
  linkDownload();
  answered(followLog());
}

const linkDownload = () => ($("download").href = `log.txt?${new URLSearchParams(which())}`);

// A request that the user made reports when it gets no answer.
const answered = (asked) => asked.catch(() => ($("log-words").textContent = "The log could not be read."));

export function showLogChoices(state, newAttempts) {
  const moved = attempt === null && newAttempts.length > attempts.length && attempts.length > 0;
  attempts = newAttempts;
  fill($("log-rank"), ranksOf(state, which().attempt).map(([number, host]) => element("option", { value: number }, `${number} on ${host}`)));
  $("log-rank").value = rank;
  fill($("log-attempt"), attempts.map((number) => element("option", { value: number }, String(number))));
  $("log-attempt").value = which().attempt;
  document.querySelector(".attempt").hidden = attempts.length < 2;
  const isNow = which().attempt === state.attempt;
  showFacts(isNow ? state.ranks.find((item) => item.rank === rank) : undefined, state);
  linkDownload();
  if (moved) restart();
}

// The ranks of an attempt with their hosts; an earlier one may have had others.
function ranksOf(state, number) {
  const now = state.ranks.map((item) => [item.rank, item.host]);
  const earlier = number === state.attempt ? undefined : state.attempts.find((item) => item.number === number);
  if (!earlier?.slots.length || earlier.slots.reduce((a, b) => a + b) > MOST_RANKS) return now;
  return earlier.hosts.flatMap((host, at) => Array(earlier.slots[at] || 0).fill(host)).map((host, at) => [at, host]);
}

function showFacts(item, state) {
  const unit = unitOf(state);
  const runs = item && !known(item.exit_code);
  const facts = item && [
    ["state", rankWords(rankState(item, state.slow))],
    known(item.exit_code) && ["exit code", item.exit_code],
    item.place && [item.state === "failed" ? "failed at" : runs ? "at" : "last seen at", item.place],
    known(item.gpu) && ["GPU", item.gpu],
    item.steps > 0 && ["steps", item.steps],
    item.collectives > 0 && ["collectives", item.collectives],
    known(item.step_rate) && [`${unit}/s`, significant(item.step_rate)],
    runs && known(item.waiting) && ["waiting", percent(item.waiting)],
    runs && known(item.cpu) && ["CPU cores", significant(item.cpu)],
    runs && known(item.memory) && ["memory", bytes(item.memory)],
    runs && known(item.gpu_memory) && ["GPU memory", bytes(item.gpu_memory)],
    known(item.pid) && ["pid", item.pid],
  ];
  const pairs = (facts || []).filter(Boolean);
  fill($("rank-facts"), pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

// What is new at the end, if the end is what is looked at.
export async function followLog() {
  if (!$("follow").checked) return;
  const mine = (asking += 1);
  const piece = await get("log.json", start === null ? which() : { ...which(), since: end });
  if (mine !== asking) return;
  if (start === null || piece.skipped) {
    $("lines").replaceChildren();
    start = piece.start;
  }
  end = piece.end;
  $("lines").querySelector(".unfinished")?.remove();
  const near = $("lines").scrollHeight - $("lines").scrollTop - $("lines").clientHeight < 40;
  $("lines").append(...piece.lines.map(lineOf));
  if (piece.unfinished) $("lines").append(element("span", { class: "unfinished" }, piece.unfinished));
  while ($("lines").childElementCount > MOST_LINES) $("lines").firstChild.remove();
  start = Number($("lines").querySelector("[data-at]")?.dataset.at ?? start);
  if (near || piece.skipped) $("lines").scrollTop = $("lines").scrollHeight;
  $("earlier").disabled = start === 0;
  if (!$("find").value) $("log-words").textContent = piece.size ? bytes(piece.size) : "no output yet";
}

async function showEarlier() {
  $("follow").checked = false;
  const mine = (asking += 1);
  const piece = await get("log.json", { ...which(), before: start });
  if (mine !== asking) return;
  const before = $("lines").scrollHeight;
  $("lines").prepend(...piece.lines.map(lineOf));
  $("lines").scrollTop += $("lines").scrollHeight - before;
  start = piece.lines.length ? piece.start : 0;
  while ($("lines").childElementCount > MOST_LINES) $("lines").lastChild.remove();
  $("earlier").disabled = start === 0;
}

// A found line among those around it.
async function goTo(number, at) {
  if (number !== rank) choose(number);
  $("follow").checked = false;
  const mine = (asking += 1);
  const piece = await get("log.json", { ...which(), before: at + 24576 });
  if (mine !== asking) return;
  start = piece.start;
  end = piece.end;
  wanted = at;
  $("lines").replaceChildren(...piece.lines.map(lineOf));
  if (piece.unfinished) $("lines").append(element("span", { "data-at": piece.end, class: piece.end === at && "here" }, piece.unfinished));
  $("earlier").disabled = start === 0;
  const here = $("lines").querySelector(".here");
  if (here) $("lines").scrollTop = here.offsetTop - $("lines").offsetTop - $("lines").clientHeight / 3;
  $("lines").focus({ preventScroll: true });
}

function lineOf([at, text, time]) {
  const parts = known(time) ? [...timeOf(time), element("span", {}, ...marked(text))] : marked(text);
  return element("span", { "data-at": at, class: at === wanted && "here" }, ...parts);
}

const timeOf = (time) => (known(time) ? [element("time", { datetime: new Date(1000 * time).toISOString(), title: moment(time) }, clock(time))] : []);

// Text with what is searched for marked in it.
function marked(text) {
  const needle = $("find").value.trim().toLowerCase();
  const parts = [];
  let from = 0;
  for (let at; needle && (at = text.toLowerCase().indexOf(needle, from)) >= 0; from = at + needle.length) {
    parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + needle.length)));
  }
  return [...parts, text.slice(from)];
}

async function search(before = null) {
  const find = $("find").value.trim();
  $("found").hidden = !find;
  if (!find) {
    $("log-words").textContent = "";
    return;
  }
  $("log-words").textContent = "Searching…";
  try {
    const { attempt: number } = which();
    const found = $("where").value === "one" ? await inOne(find, before) : await inAll(find, number);
    $("log-words").textContent = found;
  } catch (error) {
    $("found").replaceChildren();
    $("log-words").textContent = error.status === 404 ? error.message : "The search got no answer.";
  }
}

async function inOne(find, before) {
  const piece = await get("log.json", { ...which(), find, ...(before === null ? {} : { before }) });
  const buttons = piece.lines.map(([at, text, time]) => foundLine(rank, at, text, time, false));
  if (piece.start > 0) {
    const more = element("button", { type: "button" }, `Search the ${bytes(piece.start)} before these`);
    more.addEventListener("click", () => search(piece.start));
    buttons.unshift(more);
  }
  $("found").replaceChildren(...buttons);
  $("found").scrollTop = $("found").scrollHeight;
  return `${lines(piece.lines.length)} in ${bytes(piece.end - piece.start)}${before === null ? "" : ", further back"}`;
}

async function inAll(find, number) {
  const found = await get("log.json", { find, attempt: number });
  $("found").replaceChildren(...found.lines.map(([of, at, text, time]) => foundLine(of, at, text, time, true)));
  $("found").scrollTop = 0;
  const more = found.not_all_of.length ? `; older lines of ${ranks(found.not_all_of)} were not searched: search “in this rank”` : "";
  return `${lines(found.lines.length)} in ${new Set(found.lines.map(([of]) => of)).size} ranks${more}`;
}

const lines = (number) => `${number} ${number === 1 ? "line" : "lines"}`;

function foundLine(of, at, text, time, named) {
  const button = element("button", { type: "button" }, ...(named ? [element("span", { class: "rank" }, `rank ${of}`), " "] : []), ...timeOf(time), ...marked(text));
  button.addEventListener("click", () => answered(goTo(of, at)));
  return button;
}

const shownText = () => [...$("lines").children].map((line) => (line.querySelector(":scope > span") ?? line).textContent).join("\n") + "\n";

$("copy").addEventListener("click", () => copy(shownText(), $("copy")));
$("times").checked = !matchMedia("(max-width: 40rem)").matches; // a phone is too narrow for them
const showTimes = () => $("log").classList.toggle("no-times", !$("times").checked);
$("times").addEventListener("change", showTimes);
showTimes();
$("log-rank").addEventListener("change", () => choose(Number($("log-rank").value)));
$("log-attempt").addEventListener("change", () => chooseAttempt(Number($("log-attempt").value)));
$("earlier").addEventListener("click", () => answered(showEarlier()));
$("follow").addEventListener("change", () => $("follow").checked && restart());
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
$("find").addEventListener("search", () => $("find").value || search());
$("find").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  $("find").value = "";
  search();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || ["INPUT", "SELECT"].includes(document.activeElement.tagName)) return;
  event.preventDefault();
  $("find").focus();
});
