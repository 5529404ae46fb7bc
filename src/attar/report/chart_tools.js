// What the charts of charts.js share: the facts of the page, controls, colours and axes.
// Both are one script. Nothing is fetched; every chart has its numbers in a table below it.
const facts = JSON.parse(document.getElementById("facts").textContent);
const runs = facts.runs;
// Each is three times as light or dark as the ground of both modes.
const PALETTE = ["#3b8ff3", "#af5105", "#0da44c", "#de62a3", "#8253c4", "#c08100", "#0d9da4", "#c23c3b", "#597604", "#0d6bcc", "#e26d11", "#a247a8", "#007d38", "#c76bcd", "#067595", "#806a00", "#ea625d", "#759a07", "#b73e80", "#a477ea"];
const hue = (place) => PALETTE[place] ?? `hsl(${(place * 137.5) % 360} 55% 48%)`;
const INK = "var(--ink)", SOFT = "var(--soft)", ACCENT = "var(--accent)", HEAT = "var(--heat)";
const hidden = new Set(); // methods that are switched off, on every chart
const redraws = [], followers = [];

function unique(values) { return [...new Set(values)]; }
function mean(values) { return values.reduce((sum, value) => sum + value, 0) / values.length; }
function element(name, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
}
function bytes(value) {
  for (const unit of ["B", "kB", "MB"]) { if (value < 1000) return `${+value.toPrecision(3)} ${unit}`; value /= 1000; }
  return `${+value.toPrecision(3)} GB`;
}
function parts(id) {
  const section = document.getElementById(id);
  return section && {
    section, controls: section.querySelector(".controls"), figure: section.querySelector(".drawing"),
    which: section.querySelector(".which"), numbers: section.querySelector("details .scroll"),
  };
}
function pick(controls, title, options, changed) {
  const select = element("select", { autocomplete: "off" });
  options.forEach(([text, value]) => select.append(element("option", { textContent: text, value })));
  select.addEventListener("change", () => changed(select.value));
  const label = element("label", { className: "pick" }, title, select);
  label.hidden = options.length === 1;
  controls.append(label);
  return select;
}
function boxes(controls, names, changed) { // gives a function that shows those of some runs alone
  const field = element("fieldset", {}, element("legend", { textContent: "Methods" }));
  const labels = new Map();
  names.forEach((name) => {
    const box = element("input", { type: "checkbox", checked: !hidden.has(name), value: name });
    box.addEventListener("change", () => { box.checked ? hidden.delete(name) : hidden.add(name); changed(); });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colour.get(name) ?? SOFT;
    labels.set(name, element("label", {}, box, swatch, name));
    field.append(labels.get(name));
  });
  controls.append(field);
  return (here) => labels.forEach((label, name) => { label.hidden = !here.some((run) => run.row === name); });
}
function show(place, made, header, lines, which = "") {
  place.figure.replaceChildren(made);
  place.which.textContent = which;
  const table = element("table");
  table.append(element("thead", {}, element("tr", {}, ...header.map((text) => element("th", { scope: "col", textContent: text })))));
  const body = element("tbody");
  lines.forEach((line) => {
    const [first, ...others] = line.map((value) => value ?? "");
    body.append(element("tr", {}, element("th", { scope: "row", textContent: first }), ...others.map((text) => element("td", { textContent: text }))));
  });
  table.append(body);
  place.numbers.replaceChildren(table);
}
let paper = null; // the width of the drawings while the page is printed
const width = (place) => paper ?? Math.max(280, Math.min(place.figure.clientWidth || 640, 1060));
function base(place, options) {
  return { width: width(place), marginLeft: 52, marginBottom: 42, style: { fontSize: width(place) < 480 ? "11px" : "12px" }, ...options };
}
function named(place, names) { // the vertical axis of rows with names, which are broken where they are long; the room for them
  const longest = Math.max(0, ...names.map((name) => name.length));
  const letters = Math.min(longest, width(place) < 480 ? 15 : 30);
  const lines = Math.max(1, ...names.map((name) => Math.ceil(name.length / (0.8 * letters))));
  return { left: 18 + 7.4 * letters, row: longest > letters ? 8 + 14 * lines : 0, axis: Plot.axisY({ label: null, tickSize: 0, lineWidth: 0.62 * letters }) };
}
function draw(job) {
  redraws.push(job);
  job();
}
const places = unique(runs.map((run) => run.place));
const at = (place) => runs.filter((run) => run.place === place);
const recipes = unique(places.map((place) => place.split(": ")[0]));
const words = (place) => (recipes.length === 1 ? place.replace(/^[^:]*: /, "") : place);
const placeOptions = (chosen) => chosen.map((place) => [words(place), place]);
function pickPlace(place, able, changed) { // a select box that follows the choice at the top of the page
  const select = pick(place.controls, "Place", placeOptions(able), changed);
  followers.push((wanted) => { if (able.includes(wanted)) { select.value = wanted; changed(wanted); } });
}
const rowsBest = (chosen) => unique(chosen.map((run) => run.row)) // the most accurate first
  .map((row) => [row, mean(chosen.filter((run) => run.row === row).map((run) => run.accuracy))]).sort((one, other) => other[1] - one[1]).map(([row]) => row);
const rows = rowsBest(runs);
const colour = new Map(); // no two rows of one recipe have the same
rows.forEach((row) => {
  const beside = unique(runs.filter((run) => run.row === row).map((run) => run.place.split(": ")[0]));
  const taken = new Set(runs.filter((run) => beside.includes(run.place.split(": ")[0])).map((run) => colour.get(run.row)));
  let place = 0;
  while (taken.has(hue(place))) place += 1;
  colour.set(row, hue(place));
});
const shade = (line) => colour.get(line.row) ?? SOFT;

function title(run) { return `${run.row}, ${words(run.place)}, seed ${run.seed}`; }

function heat(place, matrix, down, across, label, format, top) {
  const cells = matrix.flatMap((line, y) => line.map((value, x) => ({ x: across[x], y: down[y], value, text: format(value) })));
  const { left, row, axis } = named(place, down);
  const room = (width(place) - left - 20) / across.length;
  const most = top ?? Math.max(1e-9, ...cells.map((cell) => cell.value));
  const digits = Math.max(...cells.map((cell) => cell.text.length));
  return Plot.plot(base(place, {
    height: 90 + Math.max(row, Math.min(34, Math.max(20, room))) * down.length, marginLeft: left, marginBottom: 20 + 5.2 * Math.min(20, Math.max(...across.map((name) => name.length))), ariaLabel: label,
    x: { type: "band", domain: across, padding: 0, label: null, tickRotate: -40, tickSize: 0 }, y: { type: "band", domain: down, padding: 0, label: null }, opacity: { domain: [0, most] },
    marks: [
      axis,
      Plot.cell(cells, { x: "x", y: "y", fill: HEAT, fillOpacity: "value", inset: 0.5 }),
      ...(room > 6.5 * digits ? [Plot.text(cells, { x: "x", y: "y", text: "text", fill: INK, fontSize: room > 10 + 7 * digits ? undefined : 10 })] : []),
      Plot.tip(cells, Plot.pointer({ x: "x", y: "y", title: (d) => `${d.y}, ${d.x}: ${d.text}` })),
    ],
  }));
}

function round([low, high]) { // 1, 2, 5 times powers of ten; powers alone where there would be many
  const powers = Array.from({ length: 14 }, (_, power) => 10 ** power);
  const within = (values) => values.filter((value) => value >= low && value <= high);
  const fine = within(powers.flatMap((power) => [power, 2 * power, 5 * power]));
  return fine.length > 5 ? within(powers) : fine;
}
