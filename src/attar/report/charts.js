// A function for each chart, by the identifier of its section; see charts.py.
const charts = {
  clients(place) {
    let chosen = facts.federations[0];
    const select = pick(place.controls, "Federation", facts.federations.map((one) => [one.title, String(one.number)]), (value) => { chosen = facts.federations[Number(value)]; job(); });
    followers.push((wanted) => { const found = facts.federations.find((one) => one.place === wanted); if (found) { chosen = found; select.value = String(found.number); job(); } });
    function counted(text, unit) {
      const cell = element("td", { textContent: text });
      cell.dataset.unit = unit; // shown where there is no head
      return cell;
    }
    function job() {
      const fused = runs.filter((run) => run.federation === chosen.number && run.oracle === null).sort((one, other) => other.accuracy - one.accuracy)[0];
      const most = 1.02 * Math.max(1, fused?.accuracy ?? 0, ...chosen.alone.map((value) => value ?? 0));
      const table = element("table", { className: "bars clients" });
      const measured = chosen.alone.some((value) => value !== null);
      if (fused && measured) table.style.setProperty("--central-at", `${(100 * fused.accuracy) / most}%`);
      const head = ["client", "", "alone, %", "sent", "images", "classes"];
      table.append(element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col", textContent: text })))));
      const order = chosen.clients.map((_, client) => client).sort((one, other) => (chosen.alone[other] ?? -1) - (chosen.alone[one] ?? -1));
      const lines = order.map((client) => {
        const counts = chosen.counts?.[client];
        const classes = counts ? `${counts.filter((count) => count).length} of ${counts.length}` : "withheld";
        return [chosen.clients[client], chosen.alone[client], chosen.sends[client], chosen.images[client], classes, bytes(chosen.bytes[client])];
      });
      table.append(element("tbody", {}, ...lines.map(([client, alone, sent, images, classes, size]) => {
        const bar = element("i");
        bar.style.width = `${(100 * (alone ?? 0)) / most}%`;
        return element("tr", {}, element("th", { scope: "row", textContent: client }), element("td", { className: "track" }, bar), element("td", { className: "alone", textContent: alone === null ? "–" : alone.toFixed(1) }),
          element("td", { className: "words" }, sent, element("small", { textContent: ` ${size}` })), counted(images.toLocaleString("en"), "images"), counted(classes, "classes"));
      })));
      const line = fused ? ` The vertical line is the best model fused from these clients, ${fused.row}: ${fused.accuracy.toFixed(1)} %.` : "";
      const dash = chosen.alone.includes(null) ? " A dash: it sent no classifier." : "";
      show(place, element("div", { className: "scroll" }, table), ["client", "alone, %", "sent", "images", "classes", "bytes"], lines, measured ? `Bars: the accuracy of its own net on all classes.${line}${dash}` : "Their accuracy alone was not measured.");
    }
    draw(job);
  },

  classes(place) {
    const able = places.filter((one) => at(one).some((run) => run.per_class.some((value) => value !== null)));
    let chosen = able[0];
    pickPlace(place, able, (value) => { chosen = value; job(); });
    function job() {
      const here = at(chosen), classes = here[0].classes, order = rowsBest(here);
      const table = order.map((row) => classes.map((_, label) => {
        const known = here.filter((run) => run.row === row).map((run) => run.per_class[label]).filter((value) => value !== null && value !== undefined);
        return known.length ? mean(known) : null;
      }));
      const from = facts.federations[here[0].federation];
      (from?.per_class ?? []).forEach((line, client) => { if (line) { order.push(`${from.clients[client]} alone`); table.push(classes.map((_, label) => line[label] ?? null)); } });
      const made = heat(place, table, order, classes, "Accuracy of each class", (value) => (value === null ? "" : value.toFixed(0)), 100);
      show(place, made, ["model", ...classes], table.map((line, row) => [order[row], ...line.map((value) => value?.toFixed(1))]), `Shown: ${words(chosen)}.`);
    }
    draw(job);
  },

  partition(place) {
    const able = facts.federations.filter((one) => one.counts);
    let chosen = able[0];
    const select = pick(place.controls, "Federation", able.map((one, number) => [one.title, String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    followers.push((wanted) => { const found = able.findIndex((one) => one.place === wanted); if (found >= 0) { chosen = able[found]; select.value = String(found); job(); } });
    function job() {
      const dots = chosen.counts.flatMap((counts, client) => counts.map((count, label) => ({ client: chosen.clients[client], label: chosen.classes[label], count }))).filter((dot) => dot.count);
      const { left, axis } = named(place, chosen.classes);
      const step = (width(place) - left) / (chosen.clients.length + 1);
      const short = (name) => name.replace(/^client-/, "");
      const turned = Math.max(...chosen.clients.map((name) => short(name).length)) * 7 > step;
      const most = Math.max(...dots.map((dot) => dot.count));
      const settings = base(place, {
        height: 70 + 26 * chosen.classes.length, marginLeft: left, marginBottom: turned ? 74 : 44, ariaLabel: "Who holds what",
        x: { type: "point", domain: chosen.clients, label: "client", labelAnchor: "center", labelArrow: "none", tickFormat: short, tickRotate: turned ? -40 : 0, padding: 0.6, grid: true },
        y: { type: "point", domain: chosen.classes, label: null, padding: 0.6, grid: true },
        r: { range: [0, Math.min(13, 0.48 * step)], domain: [0, most] },
        marks: [
          axis,
          Plot.dot(dots, { x: "client", y: "label", r: "count", fill: ACCENT, fillOpacity: 0.8 }),
          Plot.tip(dots, Plot.pointer({ x: "client", y: "label", title: (d) => `${d.client}, ${d.label}: ${d.count} images` })),
        ],
      });
      show(place, Plot.plot(settings), ["client", ...chosen.classes], chosen.counts.map((counts, client) => [chosen.clients[client], ...counts]), `The largest is ${most.toLocaleString("en")} images. Shown: ${chosen.title}.`);
    }
    draw(job);
  },

  confusion(place) {
    const able = runs.filter((run) => run.confusion);
    const best = (some) => some.reduce((found, run) => (run.oracle === null && run.accuracy > found.accuracy ? run : found), some.find((run) => run.oracle === null) ?? some[0]);
    let chosen = best(able);
    const select = pick(place.controls, "Run", able.map((run, number) => [`${title(run)} (${run.accuracy.toFixed(1)} %)`, String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    select.value = String(able.indexOf(chosen));
    followers.push((wanted) => { const here = able.filter((run) => run.place === wanted); if (here.length) { chosen = best(here); select.value = String(able.indexOf(chosen)); job(); } });
    function job() {
      const shares = chosen.confusion.map((line) => { const sum = line.reduce((a, b) => a + b, 0) || 1; return line.map((value) => (100 * value) / sum); });
      const made = heat(place, shares, chosen.classes, chosen.classes, "Confusion matrix", (value) => (value < 0.5 ? "" : value.toFixed(0)), 100);
      show(place, made, ["true class", ...chosen.classes, "right, %"], chosen.confusion.map((line, row) => [chosen.classes[row], ...line, chosen.per_class[row]]), `Shown: ${title(chosen)}, ${chosen.accuracy.toFixed(1)} % right.`);
    }
    draw(job);
  },

  weights(place) {
    const flat = (run) => Array.isArray(run.arrays.weights) && run.arrays.weights.length === run.clients.length && !Array.isArray(run.arrays.weights[0]);
    const able = places.filter((one) => at(one).some(flat));
    let chosen = able[0];
    pickPlace(place, able, (value) => { chosen = value; job(); });
    function job() {
      const seed = Math.min(...at(chosen).filter(flat).map((run) => run.seed));
      const here = at(chosen).filter((run) => run.seed === seed && flat(run));
      const alone = here.find((run) => run.alone.some((value) => value !== null));
      const cells = here.flatMap((run) => {
        const sum = run.arrays.weights.reduce((total, value) => total + value, 0) || 1;
        return run.clients.map((client, number) => ({ client, row: run.row, share: run.arrays.weights[number] / sum, text: ((100 * run.arrays.weights[number]) / sum).toFixed(0) }));
      });
      if (alone) alone.clients.forEach((client, number) => alone.alone[number] !== null && cells.push({ client, row: "accuracy alone", share: 0, text: alone.alone[number].toFixed(0) }));
      const names = unique(cells.map((cell) => cell.row));
      const { left, row, axis } = named(place, names);
      const made = Plot.plot(base(place, {
        height: 56 + Math.max(34, row) * names.length, marginLeft: left, marginBottom: 40, ariaLabel: "Weights of the clients, in percent",
        x: { type: "band", domain: unique(cells.map((cell) => cell.client)), padding: 0, label: "client", labelAnchor: "center", labelArrow: "none", tickFormat: (name) => name.replace(/^client-/, "") },
        y: { type: "band", domain: names, padding: 0, label: null }, opacity: { domain: [0, Math.max(0.01, ...cells.map((cell) => cell.share))] },
        marks: [axis, Plot.cell(cells, { x: "client", y: "row", fill: HEAT, fillOpacity: "share", inset: 1 }), Plot.text(cells, { x: "client", y: "row", text: "text", fill: INK })],
      }));
      show(place, made, ["method", "client", "value, %"], cells.map((cell) => [cell.row, cell.client, cell.text]), `Shown: ${words(chosen)}, seed ${seed}.`);
    }
    draw(job);
  },

  table(place) {
    const able = runs.flatMap((run) => Object.entries(run.arrays).filter(([, value]) => Array.isArray(value[0]) && value.length === run.clients.length && value[0].length === run.classes.length).map(([name, value]) => ({ run, name, value })));
    able.sort((one, other) => (other.name === "guidance") - (one.name === "guidance")); // FedHydra's U first
    let chosen = able[0];
    const select = pick(place.controls, "Run", able.map((one, number) => [`${one.name}: ${title(one.run)}`, String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    followers.push((wanted) => { const found = able.findIndex((one) => one.run.place === wanted); if (found >= 0) { chosen = able[found]; select.value = String(found); job(); } });
    function job() {
      const few = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(2)));
      const made = heat(place, chosen.value, chosen.run.clients, chosen.run.classes, "Clients and classes", few);
      show(place, made, ["client", ...chosen.run.classes], chosen.value.map((line, client) => [chosen.run.clients[client], ...line.map(few)]), `Shown: ${chosen.name} of ${title(chosen.run)}.`);
    }
    draw(job);
  },

  curves(place) {
    const able = places.filter((one) => at(one).some((run) => run.curve.length > 1));
    let chosen = able[0];
    const usual = () => (at(chosen).some((run) => run.curve.length && run.unit === "steps") ? "share" : "epochs");
    let unit = usual();
    pickPlace(place, able, (value) => { chosen = value; job(); });
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
      const flat = rowsBest(here.filter((run) => !drawn.includes(run))).map((row) => ({ row, accuracy: mean(here.filter((run) => run.row === row).map((run) => run.accuracy)) }));
      const made = Plot.plot(base(place, {
        height: 380, ariaLabel: "Accuracy during training", grid: true, marginRight: 24,
        x: { label: unit === "share" ? "share of the run, %" : "epoch", domain: points.length ? undefined : [0, 1], nice: true }, y: { label: "accuracy, %", nice: true },
        marks: [
          Plot.ruleY(flat, { y: "accuracy", stroke: shade, strokeDasharray: "5 4", strokeWidth: 1.5 }),
          Plot.lineY(points, { x: "step", y: "accuracy", z: "line", stroke: shade, strokeWidth: 2 }),
          Plot.dot(points, { x: "step", y: "accuracy", fill: shade, r: 2.2 }),
          Plot.tip(points, Plot.pointer({ x: "step", y: "accuracy", title: (d) => `${d.run}\n${d.accuracy.toFixed(1)} %` })),
        ],
      }));
      show(place, made, ["run", unit === "share" ? "share, %" : "epoch", "accuracy, %"], [...points.map((point) => [point.run, +point.step.toFixed(1), point.accuracy]), ...flat.map((line) => [line.row, "", line.accuracy.toFixed(2)])], `Shown: ${words(chosen)}.`);
    }
    draw(job);
  },

  heterogeneity(place) {
    const measured = (table, name) => unique(table.lines.filter((line) => line.mean !== null).map((line) => line.labels[name])).length;
    const able = facts.tables.filter((table) => Object.keys(table.axes).some((name) => measured(table, name) > 1));
    let table = able[0], axis, rest;
    pick(place.controls, "Table", able.map((one, number) => [one.title, String(number)]), (value) => { table = able[Number(value)]; axes(); job(); });
    const other = pick(place.controls, "Place", [], (value) => { rest = value; job(); });
    const offer = boxes(place.controls, rows, () => job());
    const where = (line) => Object.entries(line.labels).filter(([name]) => name !== axis).map(([name, label]) => `${name} ${label}`).join(", ");
    function axes() {
      const names = Object.keys(table.axes).filter((name) => measured(table, name) > 1);
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
      const here = rows.filter((row) => lines.some((line) => line.row === row));
      const room = width(place) / (table.axes[axis].length + 1);
      const beside = (row) => ((here.indexOf(row) + 0.5) / here.length - 0.5) * Math.min(0.6 * room, 9 * here.length);
      const made = Plot.plot(base(place, {
        height: 380, ariaLabel: "Accuracy along an axis", grid: true,
        x: { type: "point", domain: table.axes[axis], label: axis, labelAnchor: "center", labelArrow: "none", padding: 0.5 }, y: { label: "accuracy, %", nice: true },
        marks: [
          ...here.flatMap((row) => {
            const dx = beside(row), mine = ran.filter((line) => line.row === row), papers = theirs.filter((line) => line.row === row);
            return [
              Plot.lineY(papers, { x: "label", y: "published", stroke: shade, strokeDasharray: "2 4", strokeOpacity: 0.7, dx }),
              Plot.dot(papers, { x: "label", y: "published", stroke: shade, symbol: "diamond", r: 4, dx }),
              Plot.ruleX(mine, { x: "label", y1: (d) => d.mean - (d.std ?? 0), y2: (d) => d.mean + (d.std ?? 0), stroke: shade, strokeWidth: 1.5, dx }),
              Plot.lineY(mine, { x: "label", y: "mean", stroke: shade, strokeWidth: 1.2, strokeOpacity: 0.55, dx }),
              Plot.dot(mine, { x: "label", y: "mean", fill: shade, r: 4, dx }),
            ];
          }),
          Plot.tip(ran, Plot.pointer({ x: "label", y: "mean", title: (d) => `${d.row}\n${d.mean.toFixed(1)} ± ${d.std?.toFixed(1) ?? "?"} (${d.n})\npaper ${d.published ?? "none"}` })),
        ],
      }));
      show(place, made, ["method", axis, "ours, %", "±", "seeds", "paper, %"], lines.map((line) => [line.row, line.labels[axis], line.mean?.toFixed(2) ?? line.status, line.std?.toFixed(2), line.n, line.published]), `Shown: ${table.title}${rest ? `, ${rest}` : ""}.`);
    }
    axes();
    draw(job);
  },

  gallery(place) {
    const able = runs.filter((run) => run.gallery);
    let chosen = able[0];
    const select = pick(place.controls, "Run", able.map((run, number) => [title(run), String(number)]), (value) => { chosen = able[Number(value)]; job(); });
    followers.push((wanted) => { const found = able.findIndex((run) => run.place === wanted); if (found >= 0) { chosen = able[found]; select.value = String(found); job(); } });
    function job() {
      const image = element("img", { src: chosen.gallery.src, alt: `Synthetic images of ${title(chosen)}: a row for each of the ${chosen.unit} ${chosen.gallery.steps.join(", ")}` });
      const moments = element("ol", {}, ...chosen.gallery.steps.map((step) => element("li", { textContent: `${chosen.unit === "steps" ? "step" : "epoch"} ${step}` })));
      show(place, element("div", { className: "moments" }, moments, image), ["row", chosen.unit], chosen.gallery.steps.map((step, row) => [row + 1, step]), `Shown: ${title(chosen)}.`);
    }
    draw(job);
  },

  bytes(place) {
    const sent = (one) => at(one).filter((run) => run.oracle === null).map((run) => run.bytes);
  const able = places.filter((one) => sent(one).length && (at(one).some((run) => run.rounds.length) || Math.max(...sent(one)) > 1.5 * Math.min(...sent(one)))); // as charts.py has it
    let chosen = able[0];
    pickPlace(place, able, (value) => { chosen = value; job(); });
    const offer = boxes(place.controls, rows, () => job());
    function job() {
      offer(at(chosen));
      const here = at(chosen).filter((run) => run.oracle === null && !hidden.has(run.row));
      const points = rowsBest(here).map((row) => { const mine = here.filter((run) => run.row === row); return { row, bytes: mean(mine.map((run) => run.bytes)), accuracy: mean(mine.map((run) => run.accuracy)), n: mine.length, reached: mine.map((run) => run.reached).filter(Boolean) }; });
      const ways = here.flatMap((run) => run.rounds.map(([sent, accuracy], number) => ({ row: run.row, run: `${run.row}, seed ${run.seed}`, round: number + 1, bytes: sent, accuracy })));
      const sizes = [...points, ...ways].map((point) => point.bytes);
      const domain = [Math.max(1, Math.min(...sizes) / 2), Math.max(2, Math.max(...sizes) * 2)];
      const made = Plot.plot(base(place, {
        height: 380, ariaLabel: "Bytes against accuracy", grid: true, marginRight: 40, marginBottom: 40,
        x: { type: "log", domain, ticks: round(domain), label: "bytes sent by all clients, up and down", tickFormat: bytes }, y: { label: "accuracy, %", nice: true, inset: 8 },
        marks: [
          Plot.ruleY(unique(here.flatMap((run) => (run.reached ? [run.reached.accuracy] : []))), { stroke: SOFT, strokeDasharray: "5 4" }),
          Plot.lineY(ways, { x: "bytes", y: "accuracy", z: "run", stroke: shade, strokeWidth: 1.8 }),
          Plot.dot(ways, { x: "bytes", y: "accuracy", fill: shade, r: 2.2 }),
          Plot.dot(points, { x: "bytes", y: "accuracy", fill: shade, fillOpacity: 0.85, r: 5 }),
          Plot.tip([...points, ...ways], Plot.pointer({ x: "bytes", y: "accuracy", title: (d) => `${d.run ?? d.row}\n${bytes(d.bytes)}\n${d.accuracy.toFixed(1)} % (${d.n ?? `round ${d.round}`})` })),
        ],
      }));
      const compared = points.some((point) => point.reached.length) ? ["all reach, %", "rounds to it", "bytes to it"] : [];
      show(place, made, ["method", "bytes", "accuracy, %", "seeds", ...compared], points.map((point) => {
        const spent = point.reached.length ? [mean(point.reached.map((one) => one.accuracy)).toFixed(2), +mean(point.reached.map((one) => one.rounds)).toFixed(1), bytes(mean(point.reached.map((one) => one.bytes)))] : compared.map(() => "");
        return [point.row, bytes(point.bytes), point.accuracy.toFixed(2), point.n, ...spent];
      }), `Shown: ${words(chosen)}.`);
    }
    draw(job);
  },

  time(place) {
    const able = places.filter((one) => at(one).some((run) => run.seconds > 0));
    let chosen = able[0];
    pickPlace(place, able, (value) => { chosen = value; job(); });
    function job() {
      const here = at(chosen);
      const bars = rowsBest(here).flatMap((row) => {
        const mine = here.filter((run) => run.row === row);
        const spent = unique(mine.flatMap((run) => Object.keys(run.phases))).map((phase) => ({ row, phase, seconds: mean(mine.map((run) => run.phases[phase] ?? 0)) }));
        const rest = mean(mine.map((run) => run.seconds)) - spent.reduce((sum, one) => sum + one.seconds, 0);
        return rest > 0.005 ? [...spent, { row, phase: "other", seconds: rest }] : spent;
      }).filter((bar) => bar.seconds > 0);
      const names = unique(bars.map((bar) => bar.row)), phases = unique(bars.map((bar) => bar.phase));
      const { left, row, axis } = named(place, names);
      const made = Plot.plot(base(place, {
        height: 60 + Math.max(26, row) * names.length, marginLeft: left, marginRight: 24, ariaLabel: "Time of the server",
        x: { label: "seconds", grid: true }, y: { type: "band", domain: names, label: null },
        color: { type: "categorical", domain: phases, range: phases.map((phase, number) => (phase === "other" ? "#8a94a0" : hue(number))), legend: true },
        marks: [axis, Plot.barX(bars, { x: "seconds", y: "row", fill: "phase", insetTop: 2, insetBottom: 2, title: (d) => `${d.row}, ${d.phase}: ${d.seconds.toFixed(2)} s` })],
      }));
      show(place, made, ["method", "phase", "seconds"], bars.map((bar) => [bar.row, bar.phase, bar.seconds.toFixed(2)]), `Shown: ${words(chosen)}.`);
    }
    draw(job);
  },
};

Object.entries(charts).forEach(([name, chart]) => { const place = parts(name); if (place) chart(place); });
const view = document.getElementById("view");
function look() { // shows the standing that was chosen, and the same place in every chart
  document.querySelectorAll(".view").forEach((one) => { one.hidden = one.id !== `view-${view.value}`; });
  followers.forEach((follow) => follow(view.selectedOptions[0].dataset.place));
}
if (view) { view.addEventListener("change", look); look(); }
const redrawAll = () => redraws.forEach((again) => again());
let before = window.innerWidth, waiting;
window.addEventListener("resize", () => {
  if (window.innerWidth === before) return;
  before = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(redrawAll, 120);
});
window.addEventListener("beforeprint", () => { paper = 680; redrawAll(); });
window.addEventListener("afterprint", () => { paper = null; redrawAll(); });
// A method that is switched off in one chart is off in all.
document.addEventListener("change", (event) => {
  if (event.target.type !== "checkbox") return;
  document.querySelectorAll('input[type="checkbox"]').forEach((box) => { box.checked = !hidden.has(box.value); });
  redrawAll();
});
document.documentElement.dataset.drawn = "yes";
