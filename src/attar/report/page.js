"use strict";
// Draws the charts from the facts in this page. Nothing is fetched; every chart has its numbers in a table below it.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const runs = facts.runs;
  const PALETTE = ["#3b75c4", "#d9822b", "#2f9e6e", "#c44f7b", "#8a6fd1", "#a3862b", "#2aa0b5", "#d0543c", "#6b8e23", "#7d7d7d", "#b05fc4", "#4a6a8a"];
  const rows = unique([...facts.tables.flatMap((table) => table.lines.map((line) => line.row)), ...runs.map((run) => run.row)]).filter((row) => runs.some((run) => run.row === row));
  const colour = new Map(rows.map((row, place) => [row, PALETTE[place % PALETTE.length]]));
  const hidden = new Set(); // methods that are switched off, on every chart
  const redraws = [];

  function unique(values) { return [...new Set(values)]; }
  function mean(values) { return values.reduce((sum, value) => sum + value, 0) / values.length; }
  function deviation(values) {
    if (values.length < 2) return 0;
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
  }
  function element(name, properties = {}, ...inside) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...inside);
    return made;
  }
  function style(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function short(name) { return name.length > 22 ? `${name.slice(0, 21)}…` : name; }
  function readable(value, most) { return value !== null && value > 0.55 * most ? style("--surface") : style("--ink"); }
  function bytes(value) {
    for (const unit of ["B", "kB", "MB"]) { if (value < 1000) return `${+value.toPrecision(3)} ${unit}`; value /= 1000; }
    return `${+value.toPrecision(3)} GB`;
  }
  function parts(id) {
    const section = document.getElementById(id);
    return {
      section, controls: section.querySelector(".controls"), figure: section.querySelector("figure"),
      numbers: section.querySelector("details .scroll"),
    };
  }
  function pick(controls, title, options, changed) {
    const select = element("select");
    options.forEach(([text, value]) => select.append(element("option", { textContent: text, value })));
    select.addEventListener("change", () => changed(select.value));
    controls.append(element("label", { className: "pick" }, title, select));
    return select;
  }
  function boxes(controls, names, changed) { // gives a function that shows those of some runs alone
    const field = element("fieldset", {}, element("legend", { textContent: "Methods" }));
    const labels = new Map();
    names.forEach((name) => {
      const box = element("input", { type: "checkbox", checked: !hidden.has(name), value: name });
      box.addEventListener("change", () => { box.checked ? hidden.delete(name) : hidden.add(name); changed(); });
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = colour.get(name) ?? "currentColor";
      labels.set(name, element("label", {}, box, swatch, name));
      field.append(labels.get(name));
    });
    controls.append(field);
    return (here) => labels.forEach((label, name) => { label.hidden = !here.some((run) => run.row === name); });
  }
  function show(place, made, header, lines, empty) {
    place.figure.replaceChildren(made ?? element("p", { className: "empty", textContent: empty }));
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
  function base(place, options) {
    const width = Math.max(280, Math.min(place.figure.clientWidth || 640, 1060));
    return { width, marginLeft: 52, marginBottom: 42, style: { fontSize: width < 480 ? "11px" : "12px" }, ...options };
  }
  function draw(place, job) {
    const again = () => job();
    redraws.push(again);
    again();
  }
  const places = unique(runs.map((run) => `${run.recipe}: ${run.place}`));
  const at = (place) => runs.filter((run) => `${run.recipe}: ${run.place}` === place);
  const placeOptions = (chosen) => chosen.map((place) => [place.replace(/^[^:]*: /, ""), place]);

  function curves() {
    const place = parts("curves");
    const able = places.filter((one) => at(one).some((run) => run.curve.length > 1));
    if (!able.length) return show(place, null, [], [], "No run here has a curve.");
    let chosen = able[0];
    let unit = at(chosen).some((run) => run.curve.length && run.unit === "steps") ? "share" : "epochs";
    pick(place.controls, "Place", placeOptions(able), (value) => { chosen = value; job(); });
    const across = pick(place.controls, "Across", [["epochs", "epochs"], ["share of the run, %", "share"]], (value) => { unit = value; job(); });
    across.value = unit;
    const offer = boxes(place.controls, rows, () => job());
    function job() {
      offer(at(chosen));
      const here = at(chosen).filter((run) => !hidden.has(run.row));
      const drawn = here.filter((run) => run.curve.length > 1 && (unit === "share" || run.unit === "epochs"));
      const points = drawn.flatMap((run, line) => {  // a method may have run twice with one seed, with other settings
        const last = run.curve[run.curve.length - 1][0];
        return run.curve.map(([step, accuracy]) => ({ step: unit === "share" ? (100 * step) / last : step, accuracy, row: run.row, line, run: `${run.row}, seed ${run.seed}` }));
      });
      const flat = unique(here.filter((run) => !drawn.includes(run)).map((run) => run.row)).map((row) => ({ row, accuracy: mean(here.filter((run) => run.row === row).map((run) => run.accuracy)) }));
      const made = Plot.plot(base(place, {
        height: 380, ariaLabel: "Accuracy against epochs", grid: true,
        x: { label: unit === "share" ? "share of the run, %" : "epoch", nice: true }, y: { label: "accuracy, %" },
        marks: [
          Plot.ruleY(flat, { y: "accuracy", stroke: (d) => colour.get(d.row), strokeDasharray: "5 4", strokeWidth: 1.5 }),
          Plot.lineY(points, { x: "step", y: "accuracy", z: "line", stroke: (d) => colour.get(d.row), strokeWidth: 1.8 }),
          Plot.dot(points, { x: "step", y: "accuracy", fill: (d) => colour.get(d.row), r: 2.2 }),
          Plot.tip(points, Plot.pointer({ x: "step", y: "accuracy", title: (d) => `${d.run}\n${d.accuracy.toFixed(1)} %` })),
        ],
      }));
      show(place, made, ["run", "unit", "accuracies on the way, %", "last, %", "best on test, %"],
        here.map((run) => [`${run.row}, seed ${run.seed}`, run.unit, run.curve.map(([step, value]) => `${step}: ${value}`).join("  "), run.accuracy, run.best]));
    }
    draw(place, job);
  }

  function heterogeneity() {
    const place = parts("heterogeneity");
    const able = facts.tables.filter((table) => Object.values(table.axes).some((labels) => labels.length > 1) && table.lines.some((line) => line.mean !== null));
    if (!able.length) return show(place, null, [], [], "No recipe here has an axis with several values that were run.");
    let table = able[0], axis, rest;
    pick(place.controls, "Table", able.map((one, number) => [one.title, String(number)]), (value) => { table = able[Number(value)]; axes(); job(); });
    const other = pick(place.controls, "Place", [], (value) => { rest = value; job(); });
    const offer = boxes(place.controls, rows, () => job());
    const where = (line) => Object.entries(line.labels).filter(([name]) => name !== axis).map(([name, label]) => `${name} ${label}`).join(", ");
    function axes() {
      const names = Object.keys(table.axes).filter((name) => table.axes[name].length > 1);
      axis = names.find((name) => ["alpha", "C", "sigma", "split", "k"].includes(name)) ?? names[names.length - 1];
      const others = unique(table.lines.filter((line) => line.mean !== null).map(where));
      rest = others[0];
      other.replaceChildren(...others.map((text) => element("option", { textContent: text || "everywhere", value: text })));
      other.parentElement.hidden = others.length < 2;
    }
    function job() {
      const there = table.lines.filter((line) => where(line) === rest && line.seed === null);
      offer(there);
      const lines = there.filter((line) => !hidden.has(line.row));
      const ran = lines.filter((line) => line.mean !== null).map((line) => ({ ...line, label: line.labels[axis] }));
      const theirs = lines.filter((line) => line.published !== null).map((line) => ({ ...line, label: line.labels[axis] }));
      const shade = (line) => colour.get(line.row) ?? style("--soft");
      const made = Plot.plot(base(place, {
        height: 360, ariaLabel: "Accuracy against heterogeneity", grid: true,
        x: { type: "point", domain: table.axes[axis], label: axis, padding: 0.4 }, y: { label: "accuracy, %" },
        marks: [
          Plot.lineY(theirs, { x: "label", y: "published", z: "row", stroke: shade, strokeDasharray: "2 4", strokeOpacity: 0.7 }),
          Plot.dot(theirs, { x: "label", y: "published", stroke: shade, symbol: "diamond", r: 4 }),
          Plot.ruleX(ran, { x: "label", y1: (d) => d.mean - (d.std ?? 0), y2: (d) => d.mean + (d.std ?? 0), stroke: shade, strokeWidth: 1.5 }),
          Plot.lineY(ran, { x: "label", y: "mean", z: "row", stroke: shade, strokeWidth: 1.8 }),
          Plot.dot(ran, { x: "label", y: "mean", fill: shade, r: 4 }),
          Plot.tip(ran, Plot.pointer({ x: "label", y: "mean", title: (d) => `${d.row}\n${d.mean} ± ${d.std ?? "?"} (${d.n})\npaper ${d.published ?? "none"}` })),
        ],
      }));
      show(place, made, ["method", axis, "ours, %", "±", "seeds", "paper, %"], lines.map((line) => [line.row, line.labels[axis], line.mean ?? line.status, line.std, line.n, line.published]));
    }
    axes();
    draw(place, job);
  }

  function partition() {
    const place = parts("partition");
    if (!facts.federations.length) return show(place, null, [], [], "These clients withheld how many images of each class they have.");
    let chosen = facts.federations[0];
    pick(place.controls, "Federation", facts.federations.map((one, number) => [one.title, String(number)]), (value) => { chosen = facts.federations[Number(value)]; job(); });
    function job() {
      const dots = chosen.counts.flatMap((counts, client) => counts.map((count, label) => ({ client: chosen.clients[client], label: chosen.classes[label], count }))).filter((dot) => dot.count);
      const settings = base(place, {
        height: 60 + 26 * chosen.classes.length, marginLeft: 20 + 7 * Math.min(16, Math.max(...chosen.classes.map((name) => name.length))), marginBottom: 50,
        ariaLabel: "Who holds what", grid: true,
        x: { type: "point", domain: chosen.clients, label: null, tickFormat: (name) => name.replace(/^client-/, ""), padding: 0.6 },
        y: { type: "point", domain: chosen.classes, label: null, padding: 0.6 },
        r: { range: [0.5, Math.min(13, 0.38 * ((place.figure.clientWidth || 640) / (chosen.clients.length + 2)))] },
        marks: [
          Plot.dot(dots, { x: "client", y: "label", r: "count", fill: style("--accent"), fillOpacity: 0.8 }),
          Plot.tip(dots, Plot.pointer({ x: "client", y: "label", title: (d) => `${d.client}, ${d.label}: ${d.count} images` })),
        ],
      });
      show(place, Plot.plot(settings), ["client", ...chosen.classes], chosen.counts.map((counts, client) => [chosen.clients[client], ...counts]));
    }
    draw(place, job);
  }

  function weights() {
    const place = parts("weights");
    const flat = (run) => Array.isArray(run.arrays.weights) && run.arrays.weights.length === run.clients.length && !Array.isArray(run.arrays.weights[0]);
    const able = places.filter((one) => at(one).some(flat) || at(one).some((run) => run.alone.some((value) => value !== null)));
    if (!able.length) return show(place, null, [], [], "No run here has weights of its clients.");
    let chosen = able[0];
    pick(place.controls, "Place", placeOptions(able), (value) => { chosen = value; job(); });
    function job() {
      const seed = Math.min(...at(chosen).map((run) => run.seed));
      const here = at(chosen).filter((run) => run.seed === seed);
      const first = here.find((run) => run.alone.some((value) => value !== null));
      const cells = here.filter(flat).flatMap((run) => {
        const sum = run.arrays.weights.reduce((total, value) => total + value, 0) || 1;
        return run.clients.map((client, place) => ({ client, row: run.row, share: run.arrays.weights[place] / sum, text: (100 * run.arrays.weights[place] / sum).toFixed(0) }));
      });
      if (first) first.clients.forEach((client, place) => first.alone[place] !== null && cells.push({ client, row: "accuracy alone", share: null, text: first.alone[place].toFixed(0) }));
      const names = unique(cells.map((cell) => cell.row));
      const most = Math.max(0.01, ...cells.map((cell) => cell.share ?? 0));
      const made = Plot.plot(base(place, {
        height: 60 + 34 * names.length, marginLeft: 20 + 7 * Math.min(20, Math.max(...names.map((name) => name.length))), marginBottom: 34, ariaLabel: "Weights of the clients, in percent",
        x: { type: "band", domain: unique(cells.map((cell) => cell.client)), label: null, tickFormat: (name) => name.replace(/^client-/, "") },
        y: { type: "band", domain: names, label: null, tickFormat: short }, color: { range: [style("--low"), style("--accent")], interpolate: "rgb", domain: [0, most], unknown: "transparent" },
        marks: [
          Plot.cell(cells, { x: "client", y: "row", fill: "share", inset: 1 }),
          Plot.text(cells, { x: "client", y: "row", text: "text", fill: (cell) => readable(cell.share, most) }),
        ],
      }));
      show(place, made, ["method", "client", "value, %"], cells.map((cell) => [cell.row, cell.client, cell.text]));
    }
    draw(place, job);
  }

  function heat(place, matrix, down, across, label, format) {
    const cells = matrix.flatMap((line, y) => line.map((value, x) => ({ x: across[x], y: down[y], value, text: format(value) })));
    const room = (place.figure.clientWidth || 640) / (across.length + 3);
    const most = Math.max(1e-9, ...cells.map((cell) => cell.value));
    return Plot.plot(base(place, {
      height: 90 + Math.min(34, Math.max(20, room)) * down.length, marginLeft: 20 + 7 * Math.min(16, Math.max(...down.map((name) => name.length))), marginBottom: 78, ariaLabel: label,
      x: { type: "band", domain: across, label: null, tickRotate: -40 }, y: { type: "band", domain: down, label: null },
      color: { range: [style("--low"), style("--accent")], interpolate: "rgb", domain: [0, most] },
      marks: [
        Plot.cell(cells, { x: "x", y: "y", fill: "value", inset: 0.5 }),
        ...(room > 10 + 7 * Math.max(...cells.map((cell) => cell.text.length)) ? [Plot.text(cells, { x: "x", y: "y", text: "text", fill: (cell) => readable(cell.value, most) })] : []),
        Plot.tip(cells, Plot.pointer({ x: "x", y: "y", title: (d) => `${d.y}, ${d.x}: ${d.text}` })),
      ],
    }));
  }
  const named = (run) => `${run.row}, ${run.place}, seed ${run.seed}`;

  function table() {
    const place = parts("table");
    const able = runs.flatMap((run) => Object.entries(run.arrays).filter(([, value]) => Array.isArray(value[0]) && value.length === run.clients.length && value[0].length === run.classes.length).map(([name, value]) => ({ run, name, value })));
    able.sort((one, other) => (other.name === "guidance") - (one.name === "guidance")); // FedHydra's U first
    if (!able.length) return show(place, null, [], [], "No run here made a table of clients and classes.");
    let chosen = able[0];
    pick(place.controls, "Run", able.map((one, number) => [`${one.name}: ${named(one.run)}`, String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    function job() {
      const few = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(2)));
      const made = heat(place, chosen.value, chosen.run.clients, chosen.run.classes, "Clients and classes", few);
      show(place, made, ["client", ...chosen.run.classes], chosen.value.map((line, client) => [chosen.run.clients[client], ...line.map(few)]));
    }
    draw(place, job);
  }

  function confusion() {
    const place = parts("confusion");
    const able = runs.filter((run) => run.confusion);
    if (!able.length) return show(place, null, [], [], "No run here has few enough classes.");
    let chosen = able.reduce((best, run) => (run.oracle === null && run.accuracy > best.accuracy ? run : best), able.find((run) => run.oracle === null) ?? able[0]);
    const select = pick(place.controls, "Run", able.map((run, number) => [`${named(run)} (${run.accuracy} %)`, String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    select.value = String(able.indexOf(chosen));
    function job() {
      const shares = chosen.confusion.map((line) => { const sum = line.reduce((a, b) => a + b, 0) || 1; return line.map((value) => (100 * value) / sum); });
      const made = heat(place, shares, chosen.classes, chosen.classes, "Confusion matrix", (value) => (value < 0.5 ? "" : value.toFixed(0)));
      show(place, made, ["true class", ...chosen.classes, "right, %"], chosen.confusion.map((line, row) => [chosen.classes[row], ...line, chosen.per_class[row]]));
    }
    draw(place, job);
  }

  function gallery() {
    const place = parts("gallery");
    const able = runs.filter((run) => run.gallery);
    if (!able.length) return show(place, null, [], [], "No run here kept synthetic images.");
    let chosen = able[0];
    pick(place.controls, "Run", able.map((run, number) => [named(run), String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    function job() {
      const image = element("img", { src: chosen.gallery.src, alt: `Synthetic images of ${named(chosen)}: a row for each of the ${chosen.unit} ${chosen.gallery.steps.join(", ")}` });
      const moments = element("ol", {}, ...chosen.gallery.steps.map((step) => element("li", { textContent: `${chosen.unit === "steps" ? "step" : "epoch"} ${step}` })));
      show(place, element("div", { className: "moments" }, moments, image), ["row", chosen.unit], chosen.gallery.steps.map((step, row) => [row + 1, step]));
    }
    draw(place, job);
  }

  function round([low, high]) { // 1, 2, 5 times powers of ten; powers alone where there would be many
    const powers = Array.from({ length: 14 }, (_, power) => 10 ** power);
    const within = (values) => values.filter((value) => value >= low && value <= high);
    const fine = within(powers.flatMap((power) => [power, 2 * power, 5 * power]));
    return fine.length > 5 ? within(powers) : fine;
  }

  function bytesChart() {
    const place = parts("bytes");
    if (!places.length) return show(place, null, [], [], "There is no run.");
    let chosen = places[0];
    pick(place.controls, "Place", placeOptions(places), (value) => { chosen = value; job(); });
    const offer = boxes(place.controls, rows, () => job());
    function job() {
      offer(at(chosen));
      const here = at(chosen).filter((run) => !hidden.has(run.row));
      const points = unique(here.map((run) => run.row)).map((row) => { const mine = here.filter((run) => run.row === row); return { row, bytes: mean(mine.map((run) => run.bytes)), accuracy: mean(mine.map((run) => run.accuracy)), n: mine.length, reached: mine.map((run) => run.reached).filter(Boolean) }; });
      const ways = here.flatMap((run) => run.rounds.map(([sent, accuracy], place) => ({ row: run.row, run: `${run.row}, seed ${run.seed}`, round: place + 1, bytes: sent, accuracy })));
      const sizes = [...points, ...ways].map((point) => point.bytes);
      const domain = [Math.max(1, Math.min(...sizes) / 2), Math.max(2, Math.max(...sizes) * 2)];
      const made = Plot.plot(base(place, {
        height: 360, ariaLabel: "Bytes against accuracy", grid: true, marginRight: 40, marginBottom: 40,
        x: { type: "log", domain, ticks: round(domain), label: "bytes sent by all clients, up and down", tickFormat: bytes }, y: { label: "accuracy, %" },
        marks: [
          Plot.ruleY(unique(here.flatMap((run) => (run.reached ? [run.reached.accuracy] : []))), { stroke: style("--soft"), strokeDasharray: "5 4" }),
          Plot.lineY(ways, { x: "bytes", y: "accuracy", z: "run", stroke: (d) => colour.get(d.row), strokeWidth: 1.8 }),
          Plot.dot(ways, { x: "bytes", y: "accuracy", fill: (d) => colour.get(d.row), r: 2.2 }),
          Plot.dot(points, { x: "bytes", y: "accuracy", fill: (d) => colour.get(d.row), r: 5 }),
          Plot.tip([...points, ...ways], Plot.pointer({ x: "bytes", y: "accuracy", title: (d) => `${d.run ?? d.row}\n${bytes(d.bytes)}\n${d.accuracy.toFixed(1)} % (${d.n ?? `round ${d.round}`})` })),
        ],
      }));
      const compared = points.some((point) => point.reached.length) ? ["all reach, %", "rounds to it", "bytes to it"] : [];
      show(place, made, ["method", "bytes", "accuracy, %", "seeds", ...compared], points.map((point) => {
        const spent = point.reached.length ? [mean(point.reached.map((one) => one.accuracy)).toFixed(2), +mean(point.reached.map((one) => one.rounds)).toFixed(1), bytes(mean(point.reached.map((one) => one.bytes)))] : compared.map(() => "");
        return [point.row, bytes(point.bytes), point.accuracy.toFixed(2), point.n, ...spent];
      }));
    }
    draw(place, job);
  }

  function time() {
    const place = parts("time");
    const able = places.filter((one) => at(one).some((run) => run.seconds > 0));
    if (!able.length) return show(place, null, [], [], "There is no run.");
    let chosen = able[0];
    pick(place.controls, "Place", placeOptions(able), (value) => { chosen = value; job(); });
    function job() {
      const here = at(chosen);
      const bars = unique(here.map((run) => run.row)).flatMap((row) => {
        const mine = here.filter((run) => run.row === row);
        const named = unique(mine.flatMap((run) => Object.keys(run.phases)));
        const spent = named.map((phase) => ({ row, phase, seconds: mean(mine.map((run) => run.phases[phase] ?? 0)) }));
        const rest = mean(mine.map((run) => run.seconds)) - spent.reduce((sum, one) => sum + one.seconds, 0);
        return rest > 0.005 ? [...spent, { row, phase: "other", seconds: rest }] : spent;
      }).filter((bar) => bar.seconds > 0);
      const names = unique(bars.map((bar) => bar.row));
      const phases = unique(bars.map((bar) => bar.phase));
      const made = Plot.plot(base(place, {
        height: 60 + 26 * names.length, marginLeft: 20 + 6.5 * Math.min(22, Math.max(0, ...names.map((name) => name.length))), ariaLabel: "Time per phase",
        x: { label: "seconds", grid: true }, y: { type: "band", domain: names, label: null, tickFormat: short },
        color: { type: "categorical", domain: phases, range: phases.map((_, place) => PALETTE[place % PALETTE.length]), legend: true },
        marks: [Plot.barX(bars, { x: "seconds", y: "row", fill: "phase", inset: 1, title: (d) => `${d.row}, ${d.phase}: ${d.seconds.toFixed(2)} s` })],
      }));
      show(place, made, ["method", "phase", "seconds"], bars.map((bar) => [bar.row, bar.phase, bar.seconds.toFixed(2)]));
    }
    draw(place, job);
  }

  [curves, heterogeneity, partition, weights, table, confusion, gallery, bytesChart, time].forEach((chart) => chart());
  const redrawAll = () => redraws.forEach((again) => again());
  let width = window.innerWidth, waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redrawAll, 120);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  // A method that is switched off in one chart is off in all.
  document.addEventListener("change", (event) => {
    if (event.target.type !== "checkbox") return;
    document.querySelectorAll('input[type="checkbox"]').forEach((box) => { box.checked = !hidden.has(box.value); });
    redrawAll();
  });
  document.documentElement.dataset.drawn = "yes";
})();
