// Why the job failed, and what Muster found while it ran, newest first; stacks side by side, where ranks at the same place share one.

import { $, copyButton, element, get } from "./dom.js";
import { clock, ranks } from "./format.js";

const MOST_COLUMNS = 24;
const RECENT = 60; // seconds
const KINDS = { hang: "Hang", straggler: "Straggler", stacks: "Stack traces" };
const DOCS = {
  failure: ["troubleshooting.md", "Troubleshooting"],
  hang: ["hangs.md", "Hang detection"],
  stacks: ["hangs.md", "Hang detection"],
  straggler: ["stragglers.md", "Stragglers"],
};

let cards = []; // one for each report, the oldest first
let failed = new Map(); // the card of each failure

export function showFindings(state) {
  const [list, older] = [$("report-list"), $("older")];
  $("findings").hidden = !state.reports.length && !state.failures.length;
  for (const failure of state.failures.filter((one) => !failed.has(keyOf(one)))) failed.set(keyOf(failure), failureCard(failure, state.cwd));
  const hosts = new Map(state.ranks.map((rank) => [rank.rank, rank.host]));
  // A job that runs or is done has recovered from the failures of earlier attempts.
  const hasFailed = state.phase === "ended" && state.exit_code !== 0;
  const isNow = state.failures.map((failure) => hasFailed || failure.attempt >= state.attempt);
  const isPast = isNow.includes(true) || (state.phase === "running" && state.hung_since === null);
  for (const report of state.reports.slice(cards.length)) cards.push(card(report, cards.length, { hosts, cwd: state.cwd, isPast }));
  const inSight = cards.map((_, at) => isCurrent(state, at));
  place(list, cards.filter((_, at) => inSight[at]).reverse());
  const ofFailures = (now) => state.failures.filter((_, at) => isNow[at] === now).map((failure) => failed.get(keyOf(failure)));
  placeFailures(ofFailures(true).reverse());
  const past = [...cards.filter((_, at) => !inSight[at]), ...ofFailures(false)].reverse();
  place(older, [older.firstElementChild, ...past]);
  older.hidden = !past.length;
  older.firstElementChild.textContent = `${past.length} earlier ${past.length === 1 ? "finding" : "findings"}`;
}

const keyOf = ({ attempt, time }) => `${attempt} ${time}`;

// Whether a report is about what happens now, or about the end of a job: the newest of its kind, unless that is over.
function isCurrent({ reports, phase, now, hung_since: hungSince, slow }, at) {
  const { kind, time } = reports[at];
  if (reports.slice(at + 1).some((report) => report.kind === kind)) return false;
  if (phase !== "running" || now - time < RECENT) return true;
  return kind === "hang" ? hungSince !== null : kind === "straggler" && slow.length > 0;
}

function place(parent, children) {
  const same = parent.childElementCount === children.length && children.every((child, at) => child === parent.children[at]);
  if (!same) parent.replaceChildren(...children);
}

// Links open in a new tab, and get nothing of this address, which contains the token.
function docsLink(kind) {
  const [page, title] = DOCS[kind] || DOCS.failure;
  return element("a", { class: "docs", href: `docs/${page}`, target: "_blank", rel: "noopener noreferrer" }, `Documentation: ${title}`);
}

// The newest failure with its traceback, those of earlier attempts below it.
function placeFailures(shown) {
  const list = $("failures");
  if (list.childElementCount === shown.length && list.firstChild === (shown[0] ?? null)) return;
  shown.forEach((made, at) => made.querySelectorAll(".text").forEach((text) => (text.open = at === 0)));
  list.replaceChildren(...shown);
  for (const text of list.querySelectorAll("pre")) text.scrollTop = text.scrollHeight; // the exception itself is at the end
}

function failureCard(failure, cwd) {
  const title = failure.attempt > 0 || failed.size > 0 ? `Failure of attempt ${failure.attempt}` : "Failure";
  return element(
    "article",
    { class: "report failure" },
    element("p", { class: "when" }, element("span", { class: "badge solid" }, title), `at ${clock(failure.time)}`, docsLink("failure")),
    element("p", { class: "sentence" }, failure.sentence),
    ...(failure.detail ? [traceback(failure, cwd)] : []),
    ...failure.lines.map((line) => element("p", { class: line.startsWith("Fix: ") ? "fix" : "note" }, line)),
  );
}

function traceback({ detail, rank }, cwd) {
  const what = detail.includes("Traceback (most recent call last)") ? "Traceback" : "Last lines of stderr";
  const title = rank === null ? what : `${what} of rank ${rank}`;
  return element(
    "details",
    { class: "text", open: true },
    element("summary", {}, element("h3", {}, title), copyButton(() => detail)),
    element("pre", { tabindex: "0", "aria-label": title }, shortened(detail, cwd).replace(/\n+$/, "")),
  );
}

function card(report, number, about) {
  const made = element(
    "article",
    { class: `report ${report.kind}` },
    element("p", { class: "when" }, element("span", { class: "badge solid" }, KINDS[report.kind] || report.kind), `at ${clock(report.time)}`, docsLink(report.kind)),
    element("p", { class: "sentence" }, report.sentence),
  );
  const detail = element("pre", {}, report.detail);
  if (report.detail && report.stacks) made.append(element("details", {}, element("summary", {}, "Details"), detail));
  else if (report.detail) made.append(detail);
  if (report.stacks) made.append(...stacksOf(report, number, about));
  return made;
}

function stacksOf(report, number, about) {
  const columns = element("div", { class: "columns", id: `stacks-${number}`, hidden: true });
  const words = (verb) => `${verb} stack traces of ${report.stacks} ${report.stacks === 1 ? "rank" : "ranks"}`;
  const button = element("button", { type: "button", class: "small", "aria-expanded": "false", "aria-controls": columns.id }, words("Show"));
  const toggle = async () => {
    if (!columns.childNodes.length) {
      try {
        columns.replaceChildren(...columnsOf(await get("stacks.json", { report: number }), report, about));
      } catch (error) {
        columns.replaceChildren(`Could not read the stack traces: ${error.message}`);
      }
    }
    columns.hidden = !columns.hidden;
    button.setAttribute("aria-expanded", !columns.hidden);
    button.textContent = words(columns.hidden ? "Show" : "Hide");
  };
  button.addEventListener("click", toggle);
  if (report.kind === "hang" && !about.isPast) toggle();
  return [button, columns];
}

function columnsOf(stacks, report, about) {
  const groups = new Map();
  for (const [rank, text] of Object.entries(stacks)) {
    const key = text.replace(/0x[0-9a-f]+/g, ""); // threads have other addresses in each process
    if (!groups.has(key)) groups.set(key, { text, members: [] });
    groups.get(key).members.push(Number(rank));
  }
  const isCause = (group) => group.members.some((rank) => report.ranks.includes(rank));
  const order = [...groups.values()].sort((a, b) => isCause(b) - isCause(a) || a.members.length - b.members.length || a.members[0] - b.members[0]);
  const columns = order.slice(0, MOST_COLUMNS).map((group) => column(group, isCause(group), about));
  if (order.length > MOST_COLUMNS) {
    const rest = order.slice(MOST_COLUMNS);
    const more = element("button", { type: "button" }, `${rest.length} more stack traces`);
    more.addEventListener("click", () => more.replaceWith(...rest.map((group) => column(group, isCause(group), about))));
    columns.push(more);
  }
  return columns;
}

function column({ text, members }, cause, { hosts, cwd }) {
  const where = [...new Set(members.map((rank) => hosts.get(rank)).filter(Boolean))];
  const title = `${ranks(members)}${where.length ? ` on ${where.join(", ")}` : ""}`;
  return element(
    "article",
    { class: cause && "cause" },
    element("header", {}, element("h3", {}, title[0].toUpperCase() + title.slice(1), ...(cause ? [" ", element("small", {}, `the others are waiting for ${members.length === 1 ? "it" : "them"}`)] : [])), copyButton(() => text)),
    element("pre", { tabindex: "0", "aria-label": `Stack trace of ${title}` }, shortened(text, cwd) || "(no stack trace could be taken)"),
  );
}

// Where packages and the script are says little, and takes the room of what does.
const shortened = (text, cwd) => text.replaceAll(`"${cwd}/`, '"').replace(/"[^"\n]*\/(?:site-packages|dist-packages|lib\/python3\.\d+)\//g, '"…/');
