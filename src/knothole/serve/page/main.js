// The page: what is known on the left, what follows from it on the right.

import { ask, useToken } from "./api.js";
import { build, show, showLost } from "./form.js";
import { bars, curve, distribution, shown } from "./plots.js";
import { asCsv, asPython, fromText, givenToken, read, row, state, write } from "./state.js";

const LEVELS = Array.from({ length: 41 }, (_, i) => i / 40);
const GRID = 33;
const CONFIDENCE_LEVEL = 0.9;
const byId = (id) => document.getElementById(id);
const shares = (value) => `${shown(100 * value)} %`;

let form = null;

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
const binary = () => form.classes !== null && form.classes.length === 2;

async function answer() {
  const question = { rows: state.rows, std: true, usual: true, lost: true };
  if (scalar() || (binary() && form.outputs === 1)) question.quantiles = LEVELS;
  if (form.conformalized && scalar()) question.interval = CONFIDENCE_LEVEL;
  if (form.conformalized && form.classes) question.set = CONFIDENCE_LEVEL;
  const found = await ask("/predict", question, "answer");
  if (!found) return;
  byId("cards").replaceChildren(...found.predictions.map(card));
  showLost(found.predictions[state.active].lost);
}

function card(found, side) {
  const title = state.rows.length > 1 ? `Answer for ${"AB"[side]}` : "Answer";
  const number = make("p", "number", shown(found.prediction));
  number.id = `prediction-${side}`;
  number.dataset.value = JSON.stringify(found.prediction);
  const parts = [make("h3", "", title), number];
  if (form.classes) parts.push(chances(found, side));
  else if (Number.isFinite(found.std)) parts.push(spread(found));
  if (found.interval) {
    const [low, high] = found.interval;
    const note = make("p", "note", `True value from ${shown(low)} to ${shown(high)} in ${shares(CONFIDENCE_LEVEL)} of cases.`);
    note.id = `interval-${side}`;
    note.dataset.value = JSON.stringify(found.interval);
    parts.push(note);
  }
  if (found.set) {
    const note = make("p", "note", `True class: ${found.set.join(" or ")} in ${shares(CONFIDENCE_LEVEL)} of cases.`);
    note.id = `set-${side}`;
    note.dataset.value = JSON.stringify(found.set);
    parts.push(note);
  }
  if (found.quantiles) {
    const mean = form.classes ? found.probabilities[form.classes[1]] : found.prediction;
    const figure = make("figure", "", distribution(LEVELS, found.quantiles, mean, found.interval));
    const about = form.classes ? `the probability of ${form.classes[1]}` : "the prediction";
    parts.push(figure, make("p", "note", `Where ${about} may be, were all known.`));
  }
  parts.push(make("p", "note", usual(found.usual)));
  const element = make("section", "card", parts);
  element.setAttribute("aria-live", "polite");
  return element;
}

function spread(found) {
  const error = found.error > 0 ? `, computed to ± ${shown(found.error)}` : "";
  return make("p", "note", found.std > 0 ? `± ${shown(found.std)} by what is unknown${error}` : "nothing is unknown");
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
  if (share < 0.01) return "A very unusual row: hardly any is less likely.";
  return `How usual: ${shares(share)} of rows are less likely than this.`;
}

// ---- along one variable ------------------------------------------------------------------------

async function along() {
  const variable = form.variables.find(({ name }) => name === state.focus);
  if (!variable || !(scalar() || form.classes)) return;
  const at = variable.levels?.slice(0, 30) ?? grid(variable);
  const rows = state.rows.flatMap((one) => at.map((value) => ({ ...one, [variable.name]: value })));
  const found = await ask("/predict", { rows }, "along");
  if (!found) return;
  const label = form.classes?.[1];
  const values = found.predictions.map((one) => (form.classes ? one.probabilities[label] : one.prediction));
  const lines = state.rows.map((_, side) => values.slice(side * at.length, (side + 1) * at.length));
  const what = form.classes ? `Probability of ${label}` : "Prediction";
  byId("curve-title").textContent = `${what} along ${variable.name}`;
  const current = state.rows.map((one) => one[variable.name]);
  byId("curve").replaceChildren(curve(at, lines, current, `${what} against ${variable.name}`));
  byId("curve").dataset.value = JSON.stringify(lines);
}

function grid({ low, high, kind }) {
  const step = (high - low) / (GRID - 1);
  const points = Array.from({ length: GRID }, (_, i) => low + i * step);
  return kind === "integer" ? [...new Set(points.map(Math.round))] : points;
}

// ---- why, and what next ------------------------------------------------------------------------

async function explain() {
  if (!Object.keys(row()).length) {
    byId("why").replaceChildren(make("p", "note", "Nothing is known yet."));
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
    make("p", "note", `From ${shown(base)}, the answer when nothing is known:`),
    bars(items.slice(0, 12), `What each adds: ${said}.`),
  );
  byId("why").dataset.value = JSON.stringify(found.explanations[0]);
}

async function acquire() {
  const found = await ask("/acquire", { rows: [row()] });
  if (!found) return;
  const items = found.gains[0].map(({ variable, gain, error }) => ({ name: variable, value: gain, error }));
  const said = items.map(({ name, value }) => `${name} ${shown(value)}`).join(", ");
  const nothing = make("p", "note", "Nothing is unknown.");
  byId("next").replaceChildren(items.length ? bars(items.slice(0, 12), `Gains: ${said}.`) : nothing);
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
  try {
    do {
      again = false;
      await Promise.all([answer(), along()]);
    } while (again);
    trouble(null);
  } catch (error) {
    trouble(error);
  } finally {
    busy = false;
  }
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
