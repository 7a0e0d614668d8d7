// Asks for news once a second and shows them. What comes from a job is only ever set as text, never as HTML.

import { showCurves } from "./curves.js";
import { chosenRank, onChoice, showHosts } from "./hosts.js";
import { chooseLog, followLog, showLogChoices } from "./logview.js";
import { showReports } from "./reports.js";
import { $, clock, duration, element, fill, get, known, percent, significant } from "./words.js";

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
  if (view) await followLog().catch(() => {}); // if the connection is lost, the next question tells
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
  const causes = new Set(state.phase === "ended" ? [] : state.reports.slice(-1).flatMap((report) => report.ranks));
  showHead(state, view);
  showReports(state);
  showHosts(state, causes);
  showCurves(history, state, chosenRank());
  showLogChoices(state, view.attempts);
}

function showHead(state, { life, status }) {
  const failed = state.phase === "ended" && state.exit_code !== 0;
  $("phase").textContent = status;
  $("phase").className = `badge ${life === "died" || status.startsWith("silent") ? "died" : failed ? "failed" : state.phase}`;
  $("id").textContent = state.id;
  $("command").textContent = state.command;
  $("sentence").textContent = state.sentence;
  document.title = `${status} · ${state.command}`;
  const steps = state.ranks.map((rank) => rank.steps).filter((number) => number > 0);
  const rates = state.ranks.map((rank) => rank.step_rate).filter(known);
  const waits = state.ranks.map((rank) => rank.waiting).filter(known);
  const figures = [
    [["ended", "died"].includes(life) ? "ran" : "running for", duration(state.now - state.begin)],
    [`${state.hosts.length === 1 ? "host" : "hosts"} (${state.engine})`, state.hosts.length],
    ["ranks", state.world_size || "–"],
    state.phase === "ended" && known(state.exit_code) && ["exit code", state.exit_code],
    steps.length && ["steps", Math.min(...steps)],
    state.phase === "running" && rates.length && [steps.length ? "steps/s" : "collectives/s", significant(Math.min(...rates))],
    state.phase === "running" && waits.length && ["mean waiting", percent(waits.reduce((a, b) => a + b) / waits.length)],
    state.attempt > 0 && ["restarts", state.attempt],
  ];
  fill($("figures"), figures.filter(Boolean).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

function showConnection(view) {
  const banner = $("connection");
  if (lost) {
    banner.textContent = AGAIN;
    setTimeout(() => banner.textContent === AGAIN && (banner.textContent = ""), 5 * SECOND);
  } else if (banner.textContent !== AGAIN) {
    banner.textContent = newsOf(view);
  }
  lost = 0;
  const stays = view.stays ? `while it is open, and ${Math.round(view.stays / 60)} minutes longer` : "until the command that serves it is ended";
  $("stays").textContent = isOver(view) ? `The job is over; this page shows what it left, ${stays}.` : "";
}

// Where the news come from, if not from the controller itself.
function newsOf({ job, life, state }) {
  if (!state) return `Nothing is known of ${job} yet.`;
  const written = `This is what it wrote at ${clock(state.now)}.`;
  if (life === "died") return `The controller of this job was killed; its agents end the ranks within 10 seconds. ${written}`;
  if (life === "elsewhere") return `The controller runs on ${state.host} and cannot be asked from here. ${written}`;
  return "";
}

function showLoss(error) {
  const ago = duration((Date.now() - lost) / SECOND);
  const why = { 403: "Another server answers here now.", undefined: "The connection to the page's server is lost." };
  const job = last ? ` If it has ended, \`muster page ${last.job}\` brings it back.` : "";
  $("connection").textContent = `${why[error.status] ?? `The page's server has no answer: ${error.message}.`} Trying again, for ${ago} so far.${job}`;
}

onChoice((rank) => {
  chooseLog(rank);
  if (!last?.state) return;
  showLogChoices(last.state, last.attempts);
  showCurves(history, last.state, rank);
});
document.addEventListener("visibilitychange", () => document.hidden || poll());
window.addEventListener("resize", () => last?.state && showCurves(history, last.state, chosenRank()));
poll();
