// Small pictures in SVG. Whatever they show is said in their label too.

const SVG = "http://www.w3.org/2000/svg";
const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export const shown = (value) => (typeof value === "number" ? format.format(value) : String(value));

export function draw(name, attributes = {}, children = []) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function picture(width, height, label, children) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, children);
}

const text = (x, y, what, more = {}) => draw("text", { x, y, ...more }, [what]);
const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

export function heights(values) {
  const width = 100 / values.length;
  const bars = values.map((value, i) =>
    draw("rect", { class: "area", x: i * width, y: 20 * (1 - value), width, height: 20 * value }),
  );
  return draw("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, bars);
}

// Bars to both sides of 0, each with its standard error.
export function bars(items, label, right = 70) {
  const [width, line, left] = [420, 24, 150];
  const ends = items.flatMap(({ value, error }) => [value - error, value + error, 0]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const scale = (value) => left + ((value - low) / (high - low || 1)) * (width - left - right);
  const parts = items.flatMap(({ name, value, error, note }, i) => {
    const y = i * line;
    const [from, to] = [scale(Math.min(0, value)), scale(Math.max(0, value))];
    return [
      text(left - 8, y + 16, cut(name, 20), { "text-anchor": "end" }),
      draw("rect", { class: value < 0 ? "down" : "up", x: from, y: y + 5, width: Math.max(to - from, 1), height: 14 }),
      draw("path", { class: "whisker", d: `M${scale(value - error)} ${y + 12}H${scale(value + error)}` }),
      text(width - right + 6, y + 16, note ?? shown(value), { class: "soft" }),
    ];
  });
  const axis = draw("path", { class: "axis", d: `M${scale(0)} 0V${items.length * line}` });
  return picture(width, items.length * line + 4, label, [...parts, axis]);
}

// Where the prediction may be: a histogram from its quantiles.
export function distribution(levels, quantiles, mean, interval) {
  const [width, height] = [420, 90];
  const all = [...quantiles, mean, ...(interval ?? [])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const scale = (value) => 10 + ((value - low) / (high - low || 1)) * (width - 20);
  const bins = 24;
  const mass = new Array(bins).fill(0);
  const place = (value) => Math.min(bins - 1, Math.floor(((value - low) / (high - low || 1)) * bins));
  for (let i = 1; i < levels.length; i++) {
    const [from, to] = [quantiles[i - 1], quantiles[i]];
    const [first, last] = [place(from), place(to)];
    for (let bin = first; bin <= last; bin++) mass[bin] += (levels[i] - levels[i - 1]) / (last - first + 1);
  }
  const most = Math.max(...mass);
  const step = (width - 20) / bins;
  const parts = mass.map((value, i) =>
    draw("rect", { class: "area", x: 10 + i * step, y: 55 - 45 * (value / most), width: step, height: 45 * (value / most) }),
  );
  parts.push(draw("path", { class: "axis", d: `M10 55H${width - 10}` }));
  parts.push(draw("path", { class: "line", d: `M${scale(mean)} 8V58` }));
  if (interval) {
    const [from, to] = interval.map(scale);
    parts.push(draw("path", { class: "whisker", d: `M${from} 64H${to}M${from} 60V68M${to} 60V68` }));
  }
  parts.push(text(10, 84, shown(low), { class: "soft" }));
  parts.push(text(width - 10, 84, shown(high), { class: "soft", "text-anchor": "end" }));
  const about = `The prediction may lie from ${shown(quantiles[0])} to ${shown(quantiles.at(-1))}, expected ${shown(mean)}.`;
  return picture(width, height, about, parts);
}

// The answer along a variable: steps over numbers, since trees are steps; dots over levels. A dot
// marks the current value and its answer.
export function curve(at, answers, current, label) {
  const [width, height, left, bottom] = [560, 190, 54, 26];
  const values = answers.flat();
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const numeric = at.every((x) => typeof x === "number");
  const place = numeric ? at : at.map((_, i) => i);
  const [first, last] = [place[0], place.at(-1)];
  const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - 12);
  const y = (value) => 10 + (1 - (value - low) / (high - low || 1)) * (height - bottom - 20);
  const parts = [
    draw("path", { class: "axis", d: `M${left} 6V${height - bottom}H${width - 8}` }),
    text(left - 6, y(high) + 4, shown(high), { class: "soft", "text-anchor": "end" }),
    text(left - 6, y(low) + 4, shown(low), { class: "soft", "text-anchor": "end" }),
  ];
  answers.forEach((line, side) => {
    const kind = side ? "other" : "own";
    if (numeric) {
      const path = line.map((value, i) => (i
        ? `H${x((place[i - 1] + place[i]) / 2)}V${y(value)}`
        : `M${x(place[0])} ${y(value)}`)).join("") + `H${x(place.at(-1))}`;
      parts.push(draw("path", { class: `line ${side ? "other" : ""}`, d: path }));
    } else line.forEach((value, i) => parts.push(draw("circle", { class: kind, cx: x(place[i]), cy: y(value), r: 4 })));
    const now = numeric ? current[side] : at.indexOf(current[side]);
    if (typeof now === "number" && now >= first && now <= last && (numeric || now >= 0)) {
      parts.push(draw("path", { class: "whisker", d: `M${x(now)} 6V${height - bottom}` }));
      const here = place.indexOf(now);
      if (here >= 0) parts.push(draw("circle", { class: `${kind} now`, cx: x(now), cy: y(line[here]), r: 4 }));
    }
  });
  const marks = numeric ? [first, last] : place.filter((_, i) => at.length <= 6 || i % Math.ceil(at.length / 6) === 0);
  for (const mark of marks)
    parts.push(text(x(mark), height - 8, numeric ? shown(mark) : cut(at[mark], 12), {
      class: "soft", "text-anchor": mark === first ? "start" : mark === last ? "end" : "middle",
    }));
  return picture(width, height, label, parts);
}
