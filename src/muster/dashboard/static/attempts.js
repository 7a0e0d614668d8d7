// The attempts of a job: a bar over time with the recoveries between them, and a table. Below, what happened to hosts.

import { $, element, fill } from "./dom.js";
import { clock, duration, known, moment, seconds } from "./format.js";

const MOST_ROWS = 50; // the newest ones

let choose = () => {};

// Calls `listener` with the number of an attempt whose log is wanted.
export const onAttempt = (listener) => (choose = listener);

export function showAttempts(state, life) {
  const all = state.attempts;
  const changes = state.host_changes.slice(-MOST_ROWS).reverse();
  $("attempts").hidden = all.length < 2 && !changes.length;
  fill($("host-changes"), changes.map(({ time, host, state: phase, why }) => element("li", {}, element("time", { title: moment(time) }, clock(time)), ` ${host} is ${phase === "up" ? "back" : phase}${why ? `: ${why}` : ""}`)));
  for (const part of [$("attempt-bar"), $("attempt-rows").parentElement]) part.hidden = all.length < 2;
  if (all.length < 2) return;
  const recoveries = all.map((attempt) => attempt.recovery).filter(known);
  const longest = recoveries.reduce((most, value) => Math.max(most, value), 0);
  $("attempts-words").textContent = recoveries.length ? `last recovery: ${seconds(recoveries.at(-1))}${recoveries.length > 1 ? `, longest: ${seconds(longest)}` : ""}` : "";
  const shown = all.slice(-MOST_ROWS);
  fill($("attempt-bar"), shown.flatMap((attempt, at) => parts(attempt, shown[at + 1], state, life)));
  fillRows($("attempt-rows"), shown.map((attempt, at) => row(attempt, shown[at + 1], state, life)).reverse());
}

// Cell by cell, so that a button keeps the focus while a time beside it grows.
function fillRows(body, rows) {
  if (body.rows.length !== rows.length) return body.replaceChildren(...rows);
  rows.forEach((made, at) => [...made.cells].forEach((cell, column) => fill(body.rows[at].cells[column], [...cell.childNodes])));
}

const endOf = (attempt, next, state) => attempt.lost_at ?? next?.begin ?? state.now;

// The time an attempt ran, and the time until the next one worked.
function parts(attempt, next, state, life) {
  const end = endOf(attempt, next, state);
  const name = known(attempt.lost_at) || next || life === "died" ? "failed" : outcome(state);
  const made = [part(`ran ${name}`, end - attempt.begin, `attempt ${attempt.number}: ${seconds(Math.max(0, end - attempt.begin))}`)];
  const until = next ? (known(next.recovery) ? end + next.recovery : next.begin) : end;
  if (next) made.push(part("gap", Math.max(0, until - end), `recovery: ${seconds(Math.max(0, until - end))}`));
  return made;
}

function outcome({ phase, stopped_by: stopper, exit_code: code }) {
  if (phase !== "ended") return "running";
  return stopper ? "canceled" : code === 0 ? "ended" : "failed";
}

function standing({ phase, stopped_by: stopper, exit_code: code }, life) {
  if (phase !== "ended") return life === "died" ? "its controller was killed" : "still running";
  return stopper ? `stopped by ${stopper}` : `exit code ${code}`;
}

function part(name, share, title) {
  const made = element("i", { class: name, title });
  made.style.flexGrow = Math.max(share, 0.001);
  return made;
}

function row(attempt, next, state, life) {
  const end = endOf(attempt, next, state);
  const took = end - attempt.begin;
  const swaps = Object.entries(next?.swaps ?? {}).map(([spare, lost]) => `${spare} replaced ${lost}`);
  const recovery = next && known(next.recovery) ? [seconds(next.recovery)] : [];
  const reason = attempt.lost_to || (next ? "" : standing(state, life));
  const button = element("button", { type: "button", class: "small", "data-attempt": attempt.number, title: `Show the logs of attempt ${attempt.number}` }, String(attempt.number));
  const hosts = attempt.hosts.length === 1 ? attempt.hosts[0] : `${attempt.hosts.length} hosts`;
  return element(
    "tr",
    {},
    element("td", {}, button),
    element("td", { title: moment(attempt.begin) }, clock(attempt.begin)),
    element("td", {}, took < 59.5 ? seconds(Math.max(0, took)) : duration(took)),
    element("td", { title: attempt.hosts.join(", ") }, `${attempt.world_size} on ${hosts}`),
    element("td", { class: "why" }, reason),
    element("td", { class: "then" }, [...recovery, ...swaps].join(", ") || "–"),
  );
}

$("attempt-rows").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) choose(Number(button.dataset.attempt));
});
