// A control for every variable, each with "unknown" as a state like any other.

import { heights, shown } from "./plots.js";
import { row, set, state } from "./state.js";

const CAUSES = { "(lost)": "lost", "(not recorded)": "not recorded" };

const controls = new Map();

function make(name, attributes = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function number(variable, id, changed) {
  const ends = { min: variable.low, max: variable.high, step: variable.step };
  const slider = make("input", { type: "range", id: `${id}-slider`, ...ends, "aria-label": `${variable.name}, slider` });
  const box = make("input", { type: "number", id: `${id}-number`, step: "any", "aria-label": variable.name, class: "value" });
  slider.addEventListener("input", () => changed(Number(slider.value)));
  box.addEventListener("input", () => {
    if (box.value === "") changed(null);
    else if (Number.isFinite(box.valueAsNumber)) changed(box.valueAsNumber);
  });
  const slide = make("div", { class: "slide" }, [heights(variable.heights), slider]);
  return {
    parts: [slide, box],
    show(value) {
      const known = typeof value === "number";
      slider.value = known ? value : variable.middle;
      if (!known) box.value = "";
      else if (box.valueAsNumber !== value) box.value = value;
    },
    start: () => (variable.kind === "integer" ? Math.round(variable.middle) : Number(slider.value)),
  };
}

function levels(variable, id, changed) {
  const options = variable.levels.map((level) => make("option", { value: level }, [level]));
  const list = make("select", { id: `${id}-level`, "aria-label": variable.name, class: "value" }, [
    make("option", { value: "" }, ["unknown"]),
    ...options,
  ]);
  list.addEventListener("change", () => changed(list.value === "" ? null : list.value));
  const most = variable.levels[variable.shares.indexOf(Math.max(...variable.shares))];
  return {
    parts: [list],
    show(value) {
      list.value = value === undefined || value in CAUSES ? "" : String(value);
    },
    start: () => most,
  };
}

export function build(form, variables, update) {
  form.replaceChildren();
  controls.clear();
  const beside = make("section", { id: "auxiliary", "aria-labelledby": "auxiliary-title" }, [
    make("h3", { id: "auxiliary-title" }, ["Auxiliary: not inputs of the model, but informative about them"]),
  ]);
  variables.forEach((variable, i) => {
    const id = `v${i}`;
    const changed = (value) => {
      set(variable.name, value);
      state.focus = variable.name;
      update();
    };
    const control = (variable.kind === "categorical" ? levels : number)(variable, id, changed);
    const unknown = make("input", { type: "checkbox", id: `${id}-unknown` });
    unknown.addEventListener("change", () => changed(unknown.checked ? null : control.start()));
    const states = [make("label", {}, [unknown, ` unknown`, make("span", { class: "skip" }, [`: ${variable.name}`])])];
    const causes = Object.entries(variable.nullable ? CAUSES : {}).map(([value, text]) => {
      const box = make("input", { type: "checkbox", id: `${id}-${text.replace(" ", "-")}` });
      box.addEventListener("change", () => changed(box.checked ? value : null));
      states.push(make("label", {}, [box, ` ${text}`]));
      return { value, box };
    });
    const chance = make("span", { class: "chance", id: `${id}-chance` });
    states.push(chance);
    const field = make("fieldset", { id, "data-name": variable.name }, [
      make("legend", {}, [variable.name]),
      make("div", { class: "control" }, [...control.parts, make("div", { class: "unknown" }, states)]),
    ]);
    field.addEventListener("focusin", () => {
      if (state.focus === variable.name) return;
      state.focus = variable.name;
      update();
    });
    (variable.auxiliary ? beside : form).append(field);
    controls.set(variable.name, { control, unknown, causes, chance, nullable: variable.nullable, field });
  });
  if (variables.some(({ auxiliary }) => auxiliary)) form.append(beside);
}

export function show() {
  for (const [name, { control, unknown, causes, field }] of controls) {
    const value = row()[name];
    control.show(value);
    unknown.checked = value === undefined;
    for (const { value: cause, box } of causes) box.checked = value === cause;
    field.classList.toggle("is-unknown", value === undefined);
    field.classList.toggle("focus", name === state.focus);
  }
}

// Beside each missing value whose cause is not known, the probability that it was lost.
export function showLost(probabilities) {
  for (const [name, { chance, nullable }] of controls) {
    const known = !nullable || row()[name] !== undefined || !(name in probabilities);
    chance.textContent = known ? "" : `lost with probability ${shown(probabilities[name])}`;
  }
}
