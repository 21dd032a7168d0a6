// What the page is about: one row, or two that are compared, and the variable in focus. It is kept
// in the address, so that a link shows the same.

export const state = { rows: [{}], active: 0, focus: null };

export function row() {
  return state.rows[state.active];
}

export function set(name, value) {
  if (value === null) delete row()[name];
  else row()[name] = value;
}

export function write() {
  const parts = [`rows=${encodeURIComponent(JSON.stringify(state.rows))}`];
  if (state.focus !== null) parts.push(`focus=${encodeURIComponent(state.focus)}`);
  history.replaceState(null, "", `#${parts.join("&")}`);
}

// Takes what a link says, as far as the form knows it; returns the token, which stays out of links.
export function read(variables) {
  const said = new URLSearchParams(location.hash.slice(1));
  const names = new Set(variables.map((variable) => variable.name));
  let rows = [];
  try {
    rows = JSON.parse(said.get("rows") ?? "[{}]");
  } catch {
    rows = [];
  }
  const known = (Array.isArray(rows) ? rows : [])
    .filter((one) => one !== null && typeof one === "object")
    .slice(0, 2)
    .map((one) => Object.fromEntries(Object.entries(one).filter(([name]) => names.has(name))));
  state.rows = known.length ? known : [{}];
  state.active = 0;
  const focus = said.get("focus");
  state.focus = names.has(focus) ? focus : (variables[0]?.name ?? null);
}

export function givenToken() {
  return new URLSearchParams(location.hash.slice(1)).get("token");
}

// ---- rows as text ------------------------------------------------------------------------------

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

export function asCsv(one, variables) {
  const names = variables.map((variable) => variable.name);
  const cells = names.map((name) => (name in one ? String(one[name]) : ""));
  return `${names.map(quoted).join(",")}\n${cells.map(quoted).join(",")}\n`;
}

export function asPython(one) {
  const value = (x) => (typeof x === "boolean" ? (x ? "True" : "False") : JSON.stringify(x));
  const parts = Object.entries(one).map(([name, x]) => `${JSON.stringify(name)}: ${value(x)}`);
  return `row = {${parts.join(", ")}}  # columns that are not in it are missing`;
}

export function fromText(text, number, variables) {
  const trimmed = text.trim();
  let found;
  if (trimmed.startsWith("{") || trimmed.startsWith("[")) {
    const parsed = JSON.parse(trimmed);
    found = Array.isArray(parsed) ? parsed[number - 1] : parsed;
  } else {
    const lines = parseCsv(trimmed);
    if (lines.length < 2) throw new Error("CSV needs a header and a row.");
    const cells = lines[number];
    if (cells) found = Object.fromEntries(lines[0].map((name, i) => [name, cells[i] ?? ""]));
  }
  if (found === null || typeof found !== "object") throw new Error(`There is no row ${number}.`);
  const taken = {};
  for (const { name, kind } of variables) {
    const value = found[name];
    if (value === undefined || value === null || value === "") continue;
    taken[name] = kind === "categorical" || !Number.isFinite(Number(value)) ? value : Number(value);
  }
  if (!Object.keys(taken).length) throw new Error("The row has none of the model's columns.");
  return taken;
}

function parseCsv(text) {
  const lines = [[""]];
  let inside = false;
  for (let i = 0; i < text.length; i++) {
    const line = lines.at(-1);
    const sign = text[i];
    if (inside && sign === '"' && text[i + 1] === '"') {
      line[line.length - 1] += '"';
      i++;
    } else if (sign === '"') inside = !inside;
    else if (!inside && sign === ",") line.push("");
    else if (!inside && sign === "\n") lines.push([""]);
    else if (inside || sign !== "\r") line[line.length - 1] += sign;
  }
  return lines;
}
