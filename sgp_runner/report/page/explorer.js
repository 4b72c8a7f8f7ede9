// The explorer of a plan: times between the points of a grid, a ranking, and a map.
"use strict";
const grids = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const AXES = ["nodes", "latency", "rate", "period"]; // in the order of the times
const SAVES = 0.05; // a slower method counts as fast if it is within this share
const LEAST = 1e-6; // s; a shorter latency is as far on a logarithmic axis
const COLOURS = { "Data parallel": "#3381ef", DiLoCo: "#d2691e", "Streaming DiLoCo, FP4": "#7a4fc0", "PowerSGD, rank 2": "#8a8f98", SGP: "#2a9d7f", "OSGP, tau 1": "#7fa800" };
const TEXTS = { rate: "bandwidth", latency: "latency, one way", nodes: "nodes", period: "H, steps between exchanges" };
const $ = (id) => document.getElementById(id);
let grid, at, checked; // checked: whether the user checked a method, by number; absent: as its quality is known

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Numbers as text.

function digits(value) {
  return value >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

function withPrefix(value, unit) {
  const [size, prefix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [0, ""]].find(([least]) => value >= least);
  return `${digits(value / (size || 1))} ${prefix}${unit}`;
}

function seconds(value) {
  if (value >= 1 || value === 0) return `${digits(value)} s`;
  return value >= 0.9995e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
}

const SHOWN = { rate: (x) => withPrefix(x, "bit/s"), latency: seconds, nodes: digits, period: digits };

// Times between the points of the grid.

function values(axis) {
  return { rate: grid.rates, latency: grid.latencies, nodes: grid.nodes, period: grid.periods }[axis];
}

function scaled(axis, value) {
  return Math.log(axis === "latency" ? Math.max(value, LEAST) : value);
}

// The place of a value on an axis: the number of the point before it, and the share of the way to the next.
function place(axis, value) {
  const points = values(axis).map((each) => scaled(axis, each));
  const here = scaled(axis, value);
  if (points.length === 1) return [0, 0];
  let i = 0;
  while (i < points.length - 2 && here >= points[i + 1]) i += 1;
  const share = Math.min(1, Math.max(0, (here - points[i]) / (points[i + 1] - points[i])));
  return share > 1 - 1e-6 ? [i + 1, 0] : share < 1e-6 ? [i, 0] : [i, share];
}

// Between two times beyond computing: on a logarithmic scale, or linearly if one of them is hidden.
function between(a, b, share) {
  if (share === 0) return a;
  if (a === null || b === null) return null;
  const least = 1e-9 * grid.compute;
  return a > least && b > least ? Math.exp(Math.log(a) * (1 - share) + Math.log(b) * share) : a * (1 - share) + b * share;
}

// The times of a method beyond computing, over the axes that are free; the others have the values of ``point``.
function slice(method, point, free) {
  const axes = method.periodic ? AXES : AXES.slice(0, 3);
  const sizes = axes.map((axis) => values(axis).length);
  const walk = (depth, offset) => {
    if (depth === axes.length) {
      const time = method.seconds[offset];
      return time === null ? null : Math.max(0, time - grid.compute);
    }
    const next = (i) => walk(depth + 1, offset * sizes[depth] + i);
    if (free.includes(axes[depth])) return values(axes[depth]).map((_, i) => next(i));
    const [i, share] = place(axes[depth], point[axes[depth]]);
    return share === 0 ? next(i) : blended(next(i), next(i + 1), share);
  };
  return walk(0, 0);
}

function blended(a, b, share) {
  return Array.isArray(a) ? a.map((each, i) => blended(each, b[i], share)) : between(a, b, share);
}

function time(method, point) {
  const beyond = slice(method, point, []);
  return beyond === null ? null : grid.compute + beyond;
}

// The rate at which a method no longer saves 5 % of data parallel, or data parallel computes half of the time.
function highest(gain) {
  const first = Math.log(values("rate")[0]), last = Math.log(values("rate").at(-1));
  const STEPS = 60;
  const positive = (share) => gain({ ...at, rate: Math.exp(first + (last - first) * share) }) > 0;
  let i = STEPS;
  while (i >= 0 && !positive(i / STEPS)) i -= 1;
  if (i < 0) return 0;
  if (i === STEPS) return Infinity;
  let [low, high] = [i / STEPS, (i + 1) / STEPS];
  for (let halving = 0; halving < 12; halving += 1) {
    const middle = (low + high) / 2;
    if (positive(middle)) low = middle;
    else high = middle;
  }
  return Math.exp(first + (last - first) * low);
}

function rateText(rate) {
  const [least, most] = [values("rate")[0], values("rate").at(-1)].map((each) => withPrefix(each, ""));
  return rate === Infinity ? `> ${most}` : rate === 0 ? `< ${least}` : withPrefix(rate, "");
}

// The number of the fastest method: the first one that is within 5 % of the least time.
function fastest(times) {
  let least = Infinity;
  for (const each of times) if (each !== null && each < least) least = each;
  return times.findIndex((each) => each !== null && (1 - SAVES) * each <= least);
}

// Whether a method may be the answer at H: by the user's choice, or by its known quality.
function chosen(number, period) {
  if (checked.has(number)) return checked.get(number);
  const { periodic, near } = grid.methods[number];
  return periodic ? period <= near : near;
}

function steps() {
  const { steps, divided } = grid.budget;
  return steps === null ? null : divided ? (steps * grid.start.nodes) / at.nodes : steps;
}

function name(method) {
  return method.periodic ? method.title.replace("DiLoCo", `DiLoCo, H ${digits(at.period)}`) : method.title;
}

function timeText(each) {
  return steps() === null ? `${digits(each)} s per step` : `${digits((each * steps()) / 3600)} h`;
}

function cost(each) {
  const hours = ((each * steps()) / 3600) * at.nodes;
  const { price_per_hour: price, watts, kwh_price: kwh } = grid.budget;
  if (price === null && (watts === null || kwh === null)) return null;
  return hours * (price || 0) + (watts !== null && kwh !== null ? ((hours * watts) / 1000) * kwh : 0);
}

// The page.

function cell(row, text, right) {
  const td = row.insertCell();
  td.textContent = text;
  if (right) td.className = "right";
  return td;
}

function showAnswer(times, best) {
  const base = grid.methods.findIndex((method) => method.title === "Data parallel");
  const answer = $("answer");
  answer.textContent = "";
  if (grid.answer && !checked.size && AXES.every((axis) => at[axis] === grid.start[axis])) return answer.append(grid.answer);
  if (best < 0) return answer.append("No method is chosen that runs on these machines.");
  const strong = document.createElement("b");
  strong.textContent = `${name(grid.methods[best])}: ${timeText(times[best])}`;
  answer.append(strong);
  if (base >= 0 && base !== best && times[base] !== null) answer.append(` instead of ${timeText(times[base])}`);
  answer.append(`, ${digits((100 * Math.min(1, grid.compute / times[best])))} % of it computing.`);
  if (base < 0) return;
  const half = highest((point) => time(grid.methods[base], point) - 2 * grid.compute);
  const where = grid.sites > 1 ? " between sites" : "";
  if (half === Infinity) answer.append(` Data parallel computes less than half of the time at all of these rates${where}.`);
  else if (half > 0) answer.append(` Below ${SHOWN.rate(half)}${where}, data parallel computes less than half of the time.`);
}

function showTable(times, best) {
  const columns = ["method", "s/step", "comp.", ...(steps() === null ? [] : ["hours"]), ...(steps() !== null && cost(1) !== null ? ["cost"] : []), "pays < bit/s"];
  $("head").replaceChildren(...columns.map((text, i) => {
    const th = document.createElement("th");
    th.textContent = text;
    if (i) th.className = "right";
    return th;
  }));
  const base = grid.methods.find((method) => method.title === "Data parallel");
  const order = times.map((_, i) => i).sort((a, b) => (times[a] ?? Infinity) - (times[b] ?? Infinity));
  const rows = order.map((i) => {
    const method = grid.methods[i], row = document.createElement("tr");
    row.className = [chosen(i, at.period) ? "" : "out", i === best ? "best" : ""].join(" ");
    const label = document.createElement("label"), box = document.createElement("input"), dot = document.createElement("i");
    box.type = "checkbox";
    box.checked = chosen(i, at.period);
    box.addEventListener("change", () => { checked.set(i, box.checked); show(); });
    dot.style.background = COLOURS[method.title];
    label.append(box, dot, name(method));
    cell(row, "").append(label);
    if (times[i] === null) return cell(row, "cannot run here"), row;
    cell(row, digits(times[i]), true);
    cell(row, `${Math.round(100 * Math.min(1, grid.compute / times[i]))} %`, true);
    if (steps() !== null) cell(row, digits((times[i] * steps()) / 3600), true);
    if (columns.includes("cost")) cell(row, digits(cost(times[i])), true);
    cell(row, !base || method === base ? "" : rateText(highest((point) => (1 - SAVES) * time(base, point) - time(method, point))), true);
    return row;
  });
  $("methods").replaceChildren(...rows);
}

function show() {
  for (const axis of AXES) {
    $(`${axis}-value`).textContent = SHOWN[axis](at[axis]);
    $(axis).value = String(Math.round(1000 * shareOf(axis, at[axis])));
    $(axis).setAttribute("aria-valuetext", SHOWN[axis](at[axis]));
  }
  const times = grid.methods.map((method) => time(method, at));
  const best = fastest(times.map((each, i) => (chosen(i, at.period) ? each : null)));
  showAnswer(times, best);
  const other = fastest(times);
  const faster = other >= 0 && best >= 0 && !chosen(other, at.period) && times[other] < (1 - SAVES) * times[best];
  $("faster").textContent = faster
    ? `Faster, but not chosen: ${name(grid.methods[other])}, ${timeText(times[other])}. Chosen at first are methods with published figures within 1 % of data parallel at this H or a longer one.`
    : "";
  const exact = AXES.every((axis) => place(axis, at[axis])[1] === 0);
  $("source").textContent = exact ? "Simulated at this point." : "Interpolated between simulated points.";
  showTable(times, best);
  draw();
}

// The map.

function shareOf(axis, value) {
  const points = values(axis);
  const [first, last] = [points[0], points.at(-1)].map((each) => scaled(axis, each));
  return last > first ? (scaled(axis, value) - first) / (last - first) : 0;
}

function valueAt(axis, share) {
  const points = values(axis);
  for (const point of points) if (Math.abs(shareOf(axis, point) - share) < 0.012) return point;
  const [first, last] = [points[0], points.at(-1)].map((each) => scaled(axis, each));
  const value = Math.exp(first + (last - first) * Math.min(1, Math.max(0, share)));
  return axis === "nodes" || axis === "period" ? Math.round(value) : value;
}

const MARGIN = { left: 62, right: 12, top: 8, bottom: 44 };

function size() {
  const width = $("map").clientWidth;
  return { width, height: Math.round(Math.min(560, Math.max(300, width * 0.75))) };
}

// The fastest method at each pixel, and how many times faster than data parallel it is.
function winners(width, height, rows) {
  const base = grid.methods.findIndex((method) => method.title === "Data parallel");
  const slices = grid.methods.map((method) => {
    const found = slice(method, at, method.periodic || rows !== "period" ? ["rate", rows] : ["rate"]);
    if (rows === "period") return method.periodic ? found : found.map((each) => values("period").map(() => each));
    return values("rate").map((_, i) => found.map((row) => row[i]));
  });
  const across = Array.from({ length: width }, (_, x) => place("rate", valueOf("rate", x / (width - 1))));
  const down = Array.from({ length: height }, (_, y) => place(rows, valueOf(rows, 1 - y / (height - 1))));
  const best = new Int8Array(width * height), gain = new Float32Array(width * height);
  for (let y = 0; y < height; y += 1) {
    const [j, b] = down[y];
    const period = rows === "period" ? valueOf("period", 1 - y / (height - 1)) : at.period;
    const kept = grid.methods.map((_, k) => chosen(k, period));
    for (let x = 0; x < width; x += 1) {
      const [i, a] = across[x];
      const times = slices.map((table) => {
        const low = between(table[i][j], b ? table[i][j + 1] : null, b);
        const high = a ? between(table[i + 1][j], b ? table[i + 1][j + 1] : null, b) : null;
        const beyond = between(low, high, a);
        return beyond === null ? null : grid.compute + beyond;
      });
      const first = fastest(times.map((each, k) => (kept[k] ? each : null)));
      best[y * width + x] = first;
      gain[y * width + x] = first >= 0 && base >= 0 ? times[base] / times[first] : 1;
    }
  }
  return { best, gain };
}

function valueOf(axis, share) {
  const points = values(axis);
  const [first, last] = [points[0], points.at(-1)].map((each) => scaled(axis, each));
  return Math.exp(first + (last - first) * share);
}

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function draw() {
  const canvas = $("map"), rows = $("rows").value;
  const { width, height } = size();
  if (!width) return;
  const ratio = Math.min(3, devicePixelRatio || 1);
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const { best, gain } = winners(inner.width, inner.height, rows);
  const image = pen.createImageData(inner.width, inner.height);
  const paper = rgb(colour("--paper")), ink = rgb(colour("--ink"));
  const tints = grid.methods.map((method) => rgb(COLOURS[method.title]));
  for (let k = 0; k < best.length; k += 1) {
    const x = k % inner.width;
    const edge = (x + 1 < inner.width && best[k] !== best[k + 1]) || (k + inner.width < best.length && best[k] !== best[k + inner.width]);
    const strength = edge ? 1 : 0.35 + 0.65 * Math.min(1, Math.max(0, Math.log10(gain[k])));
    const tint = edge ? ink : best[k] < 0 ? paper : tints[best[k]];
    for (let c = 0; c < 3; c += 1) image.data[4 * k + c] = paper[c] + (tint[c] - paper[c]) * strength;
    image.data[4 * k + 3] = 255;
  }
  const whole = document.createElement("canvas");
  whole.width = inner.width;
  whole.height = inner.height;
  whole.getContext("2d").putImageData(image, 0, 0);
  pen.scale(ratio, ratio);
  pen.drawImage(whole, MARGIN.left, MARGIN.top);
  ticks(pen, inner, rows);
  names(pen, inner, best);
  const x = MARGIN.left + shareOf("rate", at.rate) * inner.width;
  const y = MARGIN.top + (1 - shareOf(rows, at[rows])) * inner.height;
  for (const [line, style] of [[5, colour("--paper")], [2, colour("--ink")]]) {
    pen.beginPath();
    pen.arc(x, y, 8, 0, 2 * Math.PI);
    pen.lineWidth = line;
    pen.strokeStyle = style;
    pen.stroke();
  }
}

function ticks(pen, inner, rows) {
  const narrow = inner.width < 420;
  pen.font = `${narrow ? 11 : 12}px ${getComputedStyle(document.body).fontFamily}`;
  pen.fillStyle = pen.strokeStyle = colour("--ink");
  pen.lineWidth = 1;
  const bottom = MARGIN.top + inner.height;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (let power = 8; power <= 12; power += 1) {
    const share = shareOf("rate", 10 ** power);
    if (share < -1e-9 || share > 1 + 1e-9) continue;
    const x = MARGIN.left + share * inner.width;
    pen.fillRect(x, bottom, 1, 4);
    pen.fillText(withPrefix(10 ** power, ""), x, bottom + 6);
  }
  pen.fillText(`bandwidth${grid.sites > 1 ? " between sites" : ""} in bit/s`, MARGIN.left + inner.width / 2, bottom + 24);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  let free = Infinity;
  for (const value of values(rows)) {
    const y = MARGIN.top + (1 - shareOf(rows, value)) * inner.height;
    if (free - y < 14) continue;
    free = y;
    pen.fillRect(MARGIN.left - 4, y, 4, 1);
    pen.fillText(SHOWN[rows](value), MARGIN.left - 7, Math.min(bottom - 6, Math.max(MARGIN.top + 6, y)));
  }
  pen.strokeStyle = colour("--line");
  pen.strokeRect(MARGIN.left + 0.5, MARGIN.top + 0.5, inner.width - 1, inner.height - 1);
}

// The name of each method, in the middle of the rows of its region that are wide enough for it.
function names(pen, inner, best) {
  pen.font = `600 ${inner.width < 420 ? 12 : 14}px ${getComputedStyle(document.body).fontFamily}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const rows = grid.methods.map(() => []); // of each method, its widest part of each row: [width, middle, row]
  for (let y = 4; y < inner.height - 4; y += 1) {
    const widest = new Map();
    for (let x = 1, begin = 0; x <= inner.width; x += 1) {
      const here = best[y * inner.width + begin];
      if (x < inner.width && best[y * inner.width + x] === here) continue;
      if (here >= 0 && x - begin > (widest.get(here) || [0])[0]) widest.set(here, [x - begin, (begin + x) / 2, y]);
      begin = x;
    }
    for (const [number, part] of widest) rows[number].push(part);
  }
  for (const [number, parts] of rows.entries()) {
    const title = grid.methods[number].title.split(",")[0];
    for (const lines of [[title], title.split(" ")]) {
      const width = Math.max(...lines.map((line) => pen.measureText(line).width)) + 10;
      const wide = parts.filter((part) => part[0] >= width);
      if (wide.length < 20 * lines.length) continue;
      const [, x, y] = wide[Math.floor(wide.length / 2)];
      pen.lineWidth = 4;
      pen.lineJoin = "round";
      pen.strokeStyle = colour("--paper");
      pen.fillStyle = colour("--ink");
      for (const [i, line] of lines.entries()) {
        const down = MARGIN.top + y + 18 * (i - (lines.length - 1) / 2);
        pen.strokeText(line, MARGIN.left + x, down);
        pen.fillText(line, MARGIN.left + x, down);
      }
      break;
    }
  }
}

function move(event) {
  const box = $("map").getBoundingClientRect(), { width, height } = size();
  const x = (event.clientX - box.left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
  const y = (event.clientY - box.top - MARGIN.top) / (height - MARGIN.top - MARGIN.bottom);
  if (x < -0.02 || x > 1.02 || y < -0.02 || y > 1.02) return;
  at.rate = valueAt("rate", x);
  at[$("rows").value] = valueAt($("rows").value, 1 - y);
  show();
}

function open(number) {
  grid = grids[number];
  at = { ...grid.start };
  checked = new Map();
  for (const axis of AXES) $(axis).disabled = values(axis).length < 2;
  for (const option of $("rows").options) option.disabled = values(option.value).length < 2;
  if ($("rows").selectedOptions[0].disabled) $("rows").value = "period";
  const listed = (id, texts) => $(id).replaceChildren(...texts.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  listed("quality", grid.methods.flatMap((method) => method.quality.map((text) => `${method.title}: ${text}`)));
  listed("assumed", grid.assumed);
  show();
}

for (const [number, each] of grids.entries()) {
  const option = document.createElement("option");
  option.value = String(number);
  option.textContent = each.title;
  $("grid").append(option);
}
$("grid").addEventListener("change", () => open(Number($("grid").value)));
$("rows").addEventListener("change", draw);
for (const axis of AXES) {
  $(axis).addEventListener("input", () => { at[axis] = valueAt(axis, Number($(axis).value) / 1000); show(); });
}
$("map").addEventListener("pointerdown", move);
$("map").addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
let width = document.documentElement.clientWidth;
addEventListener("resize", () => {
  if (document.documentElement.clientWidth === width) return; // a phone's bars come and go
  width = document.documentElement.clientWidth;
  draw();
});
dark.addEventListener("change", draw);
open(0);
