// Asks for news once a second and shows them. What comes from a job is only ever set as text, never as HTML.

import { onAttempt, showAttempts } from "./attempts.js";
import { $, element, fill, get } from "./dom.js";
import { showFindings } from "./findings.js";
import { clock, duration, known, moment, percent, seconds, significant } from "./format.js";
import { chosenRank, onChoice, showHosts } from "./hosts.js";
import { showCharts, unitOf } from "./job_charts.js";
import { chooseAttempt, chooseLog, followLog, showLogChoices } from "./logview.js";
import { jobState, shape } from "./shapes.js";

const SECOND = 1000;
const WHEN_HIDDEN = 20 * SECOND;
const WHEN_ENDED = 10 * SECOND;
const LONGEST_WAIT = 15 * SECOND;
const MOST_MOMENTS = 2000;
const AGAIN = "Connected again.";

let history = [];
let last = null; // the last view that came
let failures = 0;
let lost = 0; // when the connection was lost, by this machine's clock
let timer = 0;

const newest = () => (history.length ? history[history.length - 1].time : 0);

async function poll() {
  clearTimeout(timer);
  let view = null;
  try {
    view = await get("view.json", { since: newest() });
    failures = 0;
  } catch (error) {
    failures += 1;
    lost ||= Date.now();
    showLoss(error);
  }
  try {
    if (view) show(view);
  } finally {
    clearTimeout(timer);
    timer = setTimeout(poll, pause());
  }
  if (view) await followLog().catch(() => {}); // if the connection is lost, the next request shows it
}

function pause() {
  if (failures) return Math.min(SECOND * 2 ** (failures - 1), LONGEST_WAIT);
  if (document.hidden) return WHEN_HIDDEN;
  return last && isOver(last) ? WHEN_ENDED : SECOND;
}

const isOver = (view) => ["ended", "died"].includes(view.life);

function show(view) {
  last = view;
  const state = view.state;
  showConnection(view);
  if (!state) return;
  history.push(...state.history.filter((moment) => moment.time > newest()));
  if (history.length > MOST_MOMENTS) history = history.filter((_, at) => at % 2 === 0);
  showHead(state, view);
  showStart(state, isOver(view), jobState({ ...state, ...view }));
  showFindings(state);
  $("log").hidden = !state.ranks.length; // before the ranks start, or if they never did
  $("charts").hidden = !state.ranks.length || (isOver(view) && history.length < 2);
  document.querySelector("main").classList.toggle("single", !state.ranks.length);
  showHosts(state, history);
  showAttempts(state, view.life);
  showCharts(history, state, chosenRank());
  showLogChoices(state, view.attempts);
  fitLog();
}

// The log ends where the window ends, unless findings have pushed it far down.
function fitLog() {
  const above = document.querySelector("main").offsetTop;
  document.documentElement.style.setProperty("--above", `${above < 0.45 * innerHeight ? above : 0}px`);
}

function showHead(state, { life, status }) {
  const job = { ...state, life, status };
  const name = jobState(job);
  $("phase").className = `badge solid ${name}`;
  fill($("phase"), [shape(name), job.status]);
  $("id").textContent = state.id;
  $("command").textContent = state.command;
  $("sentence").textContent = state.phase === "ended" && state.failures.length ? "" : state.sentence;
  document.title = `${job.status} · ${state.command}`;
  const steps = state.ranks.map((rank) => rank.steps).filter((number) => number > 0);
  const rates = state.ranks.map((rank) => rank.step_rate).filter(known);
  const waits = state.ranks.map((rank) => rank.waiting).filter(known);
  const hosts = state.attempts.at(-1)?.hosts.length ?? state.hosts.length;
  const figures = [
    ["started", moment(state.begin)],
    ["duration", duration(state.now - state.begin)],
    [`${hosts === 1 ? "host" : "hosts"} (${state.engine})`, hosts],
    ...["spare", "lost", "bad", "draining", "returning"].map((name) => hostsThat(state, name)),
    ["ranks", state.world_size || "–"],
    state.phase === "ended" && known(state.exit_code) && ["exit code", state.exit_code],
    steps.length && ["steps", Math.min(...steps)],
    state.phase === "running" && rates.length && [`${unitOf(state)}/s`, significant(Math.min(...rates))],
    state.phase === "running" && waits.length && ["mean waiting", percent(waits.reduce((a, b) => a + b) / waits.length)],
    state.attempt > 0 && ["restarts", state.attempt],
  ];
  fill($("figures"), figures.filter(Boolean).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

// How many hosts are spare or in some other state; nothing if none is, or if the job is over.
function hostsThat({ hosts, phase }, name) {
  const found = hosts.filter((host) => (name === "spare" ? host.role === name && ["up", "silent"].includes(host.state) : host.state === name));
  const title = name === "spare" ? (found.length === 1 ? "spare" : "spares") : name;
  return phase !== "ended" && found.length > 0 && [title, found.length > 2 ? found.length : found.map((host) => host.name).join(", ")];
}

const PHASES = [
  ["connected", "Connect", "Until every host had answered"],
  ["imported", "Prepare", "Check the code, import torch and find the addresses where ranks meet"],
  ["first collective", "First collective", "Until every rank had finished its first collective"],
];

// The phases of the start with the time each took, and the time since.
function showStart(state, isOver, job) {
  const times = state.phases;
  const reached = PHASES.filter(([key]) => known(times[key]));
  $("start").hidden = !reached.length && isOver;
  let before = 0;
  const items = [];
  for (const [key, title, about] of PHASES) {
    const isNow = !known(times[key]) && !isOver && items.every((item) => item.className === "done");
    if (!known(times[key]) && isOver) continue;
    const took = known(times[key]) ? seconds(Math.max(0, times[key] - before)) : isNow ? seconds(Math.max(0, state.now - state.begin - before)) : "";
    before = times[key] ?? before;
    const name = known(times[key]) ? "done" : isNow ? "now" : "later";
    items.push(phase(name, { done: "ended", now: "running", later: "starting" }[name], title, took, about));
  }
  if (known(times.imported)) items.push(phase(isOver ? "done" : "now", job, "Run", duration(state.now - state.begin - before)));
  fill($("start"), items);
}

const phase = (name, state, title, took, about) => element("li", { class: name, title: about }, shape(state), element("span", {}, title), element("b", {}, took));

function showConnection(view) {
  const banner = $("connection");
  if (lost) {
    banner.textContent = AGAIN;
    setTimeout(() => banner.textContent === AGAIN && (banner.textContent = ""), 5 * SECOND);
  } else if (banner.textContent !== AGAIN) {
    banner.textContent = newsOf(view);
  }
  lost = 0;
  const stays = view.stays ? `while it is open and for ${Math.round(view.stays / 60)} minutes after that` : "until you stop `muster dashboard`";
  $("stays").textContent = isOver(view) ? `The job has ended. This dashboard stays up ${stays}.` : "";
}

// Where the data comes from, if not from the controller itself.
function newsOf({ job, life, state }) {
  if (!state) return `Nothing is known about ${job} yet.`;
  const written = `This is its state at ${clock(state.now)}.`;
  if (life === "died") return `The controller of this job was killed; its agents stop the ranks within 10 seconds. ${written}`;
  if (life === "elsewhere") return `The controller runs on ${state.host} and cannot be reached from here. ${written}`;
  return "";
}

function showLoss(error) {
  const ago = duration((Date.now() - lost) / SECOND);
  const why = { 403: "Another server answers at this address now.", undefined: "The connection to the dashboard's server is lost." };
  const job = last ? ` If it has stopped, \`muster dashboard ${last.job}\` starts it again.` : "";
  $("connection").textContent = `${why[error.status] ?? `The dashboard's server returned an error: ${error.message}.`} Retrying for ${ago}.${job}`;
}

// null: a small chart of a host is to be drawn again.
onChoice((rank) => {
  if (rank === null) return showHosts(last.state, history);
  chooseLog(rank);
  if (!last?.state) return;
  showLogChoices(last.state, last.attempts);
  showCharts(history, last.state, rank);
});
onAttempt((attempt) => {
  chooseAttempt(attempt);
  showLogChoices(last.state, last.attempts);
  $("log").scrollIntoView({ block: "nearest" });
});
$("jobs").href = /\/jobs\/[^/]+\/$/.test(location.pathname) ? "../" : "jobs/";
document.addEventListener("visibilitychange", () => document.hidden || poll());
window.addEventListener("resize", () => last?.state && showCharts(history, last.state, chosenRank()));
poll();
