// The list of jobs, each with a link to its dashboard.

import { $, element, fill, get } from "./dom.js";
import { duration, known, moment } from "./format.js";
import { SHAPES, jobState, shape } from "./shapes.js";

const EVERY = 5000;
let timer = 0;

async function poll() {
  clearTimeout(timer);
  try {
    show((await get("../jobs.json")).jobs);
    $("connection").textContent = "";
  } catch (error) {
    $("connection").textContent = error.status ? `The dashboard's server returned an error: ${error.message}.` : "The connection to the dashboard's server is lost. Retrying.";
  }
  timer = setTimeout(poll, document.hidden ? 12 * EVERY : EVERY);
}

function show(jobs) {
  const states = jobs.map(jobState);
  const counts = Object.keys(SHAPES).map((name) => [name, states.filter((state) => state === name).length]);
  const words = { ended: "done", canceled: "stopped", lost: "lost or unknown" };
  fill($("legend"), counts.filter(([, number]) => number).map(([name, number]) => element("li", {}, shape(name), `${number} ${words[name] || name}`)));
  fill($("list"), jobs.map((job, at) => line(job, states[at])));
}

function line(job, state) {
  const ended = ["ended", "died"].includes(job.life);
  const took = known(job.begin) ? duration((ended ? job.now : Math.max(job.now, Date.now() / 1000)) - job.begin) : "";
  const why = job.reason || (state === "starting" ? job.sentence : "");
  return element(
    "li",
    {},
    shape(state),
    element("div", { class: "what" }, element("a", { href: `${encodeURIComponent(job.id)}/` }, job.command || job.id), element("small", {}, job.id), ...(why ? [element("p", {}, why)] : [])),
    element("span", { class: `status ${state}` }, job.status),
    element("span", { class: "where" }, job.where || ""),
    element("span", { class: "when" }, known(job.begin) ? moment(job.begin) : ""),
    element("span", { class: "took" }, took),
  );
}

document.addEventListener("visibilitychange", () => document.hidden || poll());
poll();
