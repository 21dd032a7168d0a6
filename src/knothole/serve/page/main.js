// The page: what is known on the left, what follows from it on the right.

import { ask, useToken } from "./api.js";
import { build, show, showLost } from "./form.js";
import { bars, curve, distribution, shown } from "./plots.js";
import { asCsv, asPython, fromText, givenToken, read, row, state, write } from "./state.js";

const LEVELS = Array.from({ length: 41 }, (_, i) => i / 40);
const GRID = 33;
const CONFIDENCE_LEVEL = 0.9;
const byId = (id) => document.getElementById(id);
// Gains below this share of the largest are shown as "about 0".
const NOTHING = 1e-3;
const shares = (value) => `${shown(100 * value)} %`;

let form = null;
let predictions = [];

function make(name, kind, content) {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.append(...[content].flat());
  return element;
}

function trouble(error) {
  byId("trouble").textContent = error?.message ?? "";
  byId("trouble").hidden = !error;
}

// ---- the answer --------------------------------------------------------------------------------

const scalar = () => form.classes === null && form.outputs === 1;

async function answer() {
  const question = { rows: state.rows, std: true, usual: true, lost: true };
  if (scalar()) question.quantiles = LEVELS;
  if (form.conformalized && scalar()) question.interval = CONFIDENCE_LEVEL;
  if (form.conformalized && form.classes) question.set = CONFIDENCE_LEVEL;
  const found = await ask("/predict", question, "answer");
  if (!found || found.predictions.length !== state.rows.length) return; // asked again by then
  predictions = found.predictions;
  byId("cards").replaceChildren(...predictions.map(card));
  showLost(found.predictions[state.active].lost);
}

function card(found, side) {
  const title = state.rows.length > 1 ? `Prediction for ${"AB"[side]}` : "Prediction";
  const number = make("p", "number", shown(found.prediction));
  number.id = `prediction-${side}`;
  number.dataset.value = JSON.stringify(found.prediction);
  const parts = [make("h3", "", title), number];
  if (form.classes) parts.push(chances(found, side));
  else if (Number.isFinite(found.std)) parts.push(spread(found));
  if (found.interval) {
    const [low, high] = found.interval;
    const note = make("p", "note", `Interval for the true value, at ${shares(CONFIDENCE_LEVEL)} confidence: ${shown(low)} to ${shown(high)}.`);
    note.id = `interval-${side}`;
    note.dataset.value = JSON.stringify(found.interval);
    parts.push(note);
  }
  if (found.set) {
    const note = make("p", "note", `Set of classes for the true class, at ${shares(CONFIDENCE_LEVEL)} confidence: ${found.set.join(" or ")}.`);
    note.id = `set-${side}`;
    note.dataset.value = JSON.stringify(found.set);
    parts.push(note);
  }
  if (found.quantiles) {
    const figure = make("figure", "", distribution(LEVELS, found.quantiles, found.prediction, found.interval));
    parts.push(figure, make("p", "note", "How the missing values may change the prediction."));
  }
  parts.push(make("p", "note", usual(found.usual)));
  const element = make("section", "card", parts);
  element.setAttribute("aria-live", "polite");
  return element;
}

function spread(found) {
  const error = found.error > 0 ? `; error of the calculation ${shown(found.error)}` : "";
  return make("p", "note", found.std > 0 ? `Standard deviation from missing values: ± ${shown(found.std)}${error}.` : "No value is missing.");
}

function chances(found, side) {
  const items = Object.entries(found.probabilities).map(([name, value]) => ({
    name, value, error: 0, note: shares(value),
  }));
  const about = `Probabilities: ${items.map(({ name, note }) => `${name} ${note}`).join(", ")}.`;
  const figure = make("figure", "", bars(items.slice(0, 12), about));
  figure.id = `probabilities-${side}`;
  figure.dataset.value = JSON.stringify(found.probabilities);
  return figure;
}

function usual(share) {
  if (share === null || share === undefined) return "";
  if (share < 0.01) return "Typicality of this row: very low, less than 1 % of rows are less likely.";
  return `Typicality of this row: ${shares(share)} of rows are less likely.`;
}

// ---- along one variable ------------------------------------------------------------------------

async function along() {
  const variable = form.variables.find(({ name }) => name === state.focus);
  if (!variable || !(scalar() || form.classes)) return;
  const current = state.rows.map((one) => one[variable.name]);
  const at = variable.levels?.slice(0, 30) ?? grid(variable, current);
  const rows = state.rows.flatMap((one) => at.map((value) => ({ ...one, [variable.name]: value })));
  const found = await ask("/predict", { rows }, "along");
  if (!found || found.predictions.length !== state.rows.length * at.length) return;
  const label = form.classes?.[1];
  const values = found.predictions.map((one) => (form.classes ? one.probabilities[label] : one.prediction));
  const lines = state.rows.map((_, side) => values.slice(side * at.length, (side + 1) * at.length));
  const what = form.classes ? `Probability of ${label}` : "Prediction";
  byId("curve-title").textContent = `${what} by ${variable.name}`;
  byId("curve").replaceChildren(curve(at, lines, current, `${what} against ${variable.name}`));
  byId("curve").dataset.value = JSON.stringify(lines);
}

// The current values are among the points, so that the curve passes through the answer.
function grid({ low, high, kind }, current) {
  const step = (high - low) / (GRID - 1);
  const points = Array.from({ length: GRID }, (_, i) => low + i * step);
  const even = kind === "integer" ? points.map(Math.round) : points;
  const within = current.filter((value) => typeof value === "number" && value >= low && value <= high);
  return [...new Set([...even, ...within])].sort((a, b) => a - b);
}

// ---- why, and what next ------------------------------------------------------------------------

async function explain() {
  if (!Object.keys(row()).length) {
    byId("why").replaceChildren(make("p", "note", "No value is known yet."));
    return;
  }
  const found = await ask("/explain", { rows: [row()] });
  if (!found) return;
  const [{ base, values }] = found.explanations;
  const items = values.map(({ variable, value, error, missing }) => ({
    name: missing ? `${variable} missing` : variable, value, error,
  }));
  items.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const said = items.map(({ name, value }) => `${name} ${shown(value)}`).join(", ");
  byId("why").replaceChildren(
    make("p", "note", `Starting from ${shown(base)}, the prediction when no value is known:`),
    bars(items.slice(0, 12), `What each value adds: ${said}.`),
  );
  byId("why").dataset.value = JSON.stringify(found.explanations[0]);
}

const shown3 = (value) => shown(Number(value.toPrecision(3)));

// The standard deviation now, and after its variance has fallen by the gain.
const narrowing = (std, gain) => `± ${shown3(std)} to ± ${shown3(Math.sqrt(Math.max(0, std * std - gain)))}`;

async function acquire() {
  const std = predictions[state.active]?.std; // of the row that is asked about
  const found = await ask("/acquire", { rows: [row()] });
  if (!found) return;
  const costs = Object.keys(form.cost).length > 0;
  const narrows = scalar() && Number.isFinite(std);
  const largest = Math.max(...found.gains[0].map(({ gain }) => gain), 0);
  const items = found.gains[0].map(({ variable, gain, error, per_cost: perCost }) => ({
    name: variable,
    value: costs ? perCost : gain,
    error: costs && gain > 0 ? (error * perCost) / gain : error,
    note: gain <= NOTHING * largest ? "about 0" : narrows ? narrowing(std, gain) : `−${shown3(gain)}`,
  }));
  const unit = narrows ? "Expected narrowing of the ± of the prediction" : "Expected fall of the Brier score";
  const order = costs ? ", ordered by the gain for each unit of cost" : "";
  const said = items.map(({ name, note }) => `${name} ${note}`).join(", ");
  const nothing = make("p", "note", "No value is missing.");
  const content = [make("p", "note", `${form.classes || narrows ? unit : "Expected fall of the variance"}${order}:`)];
  if (items.length) content.push(bars(items.slice(0, 12), `${content[0].textContent} ${said}.`, 130));
  byId("next").replaceChildren(...(items.length ? content : [nothing]));
  byId("next").dataset.value = JSON.stringify(found.gains[0]);
}

// ---- updates: the answer at once, the rest when one pauses -----------------------------------------

let waiting = null;
let busy = false;
let again = false;

async function update() {
  show();
  write();
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  do {
    again = false;
    try {
      await Promise.all([answer(), along()]);
      trouble(null);
    } catch (error) {
      trouble(error);
    }
  } while (again);
  busy = false;
  clearTimeout(waiting);
  waiting = setTimeout(() => Promise.all([explain(), acquire()]).catch(trouble), 120);
}

function sides() {
  const both = state.rows.length > 1;
  byId("compare").setAttribute("aria-pressed", String(both));
  byId("sides").hidden = !both;
  for (const side of [0, 1]) byId(`side-${side}`).setAttribute("aria-pressed", String(state.active === side));
}

function listen() {
  const clicked = (id, work) => byId(id).addEventListener("click", () => {
    work();
    sides();
    update();
  });
  clicked("empty", () => (state.rows[state.active] = {}));
  clicked("compare", () => {
    state.rows = state.rows.length > 1 ? [row()] : [state.rows[0], { ...state.rows[0] }];
    state.active = state.rows.length - 1;
  });
  for (const side of [0, 1]) clicked(`side-${side}`, () => (state.active = side));
  byId("export").addEventListener("click", () => {
    byId("as-json").value = JSON.stringify(row());
    byId("as-csv").value = asCsv(row(), form.variables);
    byId("as-python").value = asPython(row());
    byId("as-link").value = location.href;
    byId("exported").showModal();
  });
  byId("close-exported").addEventListener("click", () => byId("exported").close());
  byId("load").addEventListener("click", () => byId("loading").showModal());
  byId("close-loading").addEventListener("click", () => byId("loading").close());
  byId("row-file").addEventListener("change", async ({ target }) => {
    if (target.files.length) byId("row-text").value = await target.files[0].text();
  });
  byId("take-row").addEventListener("click", () => {
    try {
      const number = byId("row-number").valueAsNumber || 1;
      state.rows[state.active] = fromText(byId("row-text").value, number, form.variables);
      byId("load-trouble").textContent = "";
      byId("loading").close();
      update();
    } catch (error) {
      byId("load-trouble").textContent = error.message;
    }
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => {
    read(form.variables);
    sides();
    update();
  });
}

async function start() {
  const token = givenToken() ?? sessionStorage.getItem("token");
  if (token) {
    useToken(token);
    sessionStorage.setItem("token", token);
  }
  form = await ask("/form");
  byId("model").textContent = form.model;
  document.title = `What if: ${form.model}`;
  read(form.variables);
  build(byId("form"), form.variables, update);
  listen();
  sides();
  await update();
}

start().catch(trouble);
