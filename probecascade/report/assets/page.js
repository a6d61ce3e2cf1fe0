"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const list = document.getElementById("episodes");
  const pane = document.getElementById("transcript");
  const count = document.getElementById("count");
  const PARTS = { fit: "fitted its probes", calibrate: "set its thresholds", test: "none" };
  const ABORTS = { yes: "aborts", no: "lets through", unknown: "not shown (fitted its probes)" };
  const failed = (episode) => episode.outcome === "failure" || episode.outcome === "truncated";
  const aborts = (episode) => (episode.abort === null ? "unknown" : episode.abort >= 0 ? "yes" : "no");
  const words = (text) => text.replaceAll("_", " ");
  let shown = [];
  let chosen = -1;

  // Text goes in as text nodes only, so that nothing of a transcript is ever read as markup.
  function make(tag, options = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function choices(id, values, names = {}) {
    const select = document.getElementById(id);
    const found = [...new Set(values)].filter((value) => value !== "");
    if (found.length < 2 && id !== "by-outcome") select.parentElement.hidden = true;
    if (select.parentElement.hidden) select.parentElement.style.display = "none";
    select.append(make("option", { value: "" }, "all"));
    for (const value of found.sort()) select.append(make("option", { value }, names[value] ?? words(value)));
    select.addEventListener("change", filter);
    return select;
  }

  const all = data.episodes;
  const find = document.getElementById("find");
  const byOutcome = choices("by-outcome", all.map((e) => e.outcome));
  const byMode = choices("by-mode", all.map((e) => e.mode));
  const byPart = choices("by-part", all.map((e) => e.part), PARTS);
  const byAbort = choices("by-abort", data.gates.length ? all.map(aborts) : [], ABORTS);
  find.addEventListener("input", filter);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());

  function filter() {
    const text = find.value.trim().toLowerCase();
    const fits = (e) =>
      (!byOutcome.value || e.outcome === byOutcome.value) &&
      (!byMode.value || e.mode === byMode.value) &&
      (!byPart.value || e.part === byPart.value) &&
      (!byAbort.value || aborts(e) === byAbort.value) &&
      (!text || e.id.toLowerCase().includes(text) || e.group.toLowerCase().includes(text));
    const before = shown[chosen];
    shown = all.filter(fits);
    list.replaceChildren(...shown.map(row));
    const limited = all.length < data.of ? ` (the page holds ${all.length} of the run's ${data.of})` : "";
    count.textContent = `${shown.length} of ${all.length} episodes${limited}`;
    mark(shown.indexOf(before));
  }

  function row(episode, place) {
    const facts = [episode.outcome, episode.mode && words(episode.mode), `${episode.rounds} rounds`];
    if (episode.abort !== null && episode.abort >= 0) facts.push(`aborted at ${data.gates[episode.abort].name}`);
    const item = make("li", { role: "option", id: `episode-${place}`, "aria-selected": "false" });
    item.append(make("b", {}, episode.id), make("span", {}, facts.filter(Boolean).join(" · ")));
    item.addEventListener("click", () => choose(place));
    return item;
  }

  function mark(place) {
    list.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    chosen = place;
    if (place < 0) {
      list.removeAttribute("aria-activedescendant");
      return;
    }
    const item = list.children[place];
    item.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", item.id);
    const top = item.offsetTop - list.offsetTop;
    if (top < list.scrollTop) list.scrollTop = top;
    const bottom = top + item.offsetHeight - list.clientHeight;
    if (bottom > list.scrollTop) list.scrollTop = bottom;
  }

  function choose(place) {
    if (place < 0 || place >= shown.length) return;
    mark(place);
    document.getElementById("browser").classList.add("open");
    pane.replaceChildren(...transcript(shown[place]));
  }

  list.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && chosen >= 0) pane.focus();
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(shown.length - 1, Math.max(chosen, -1) + moves[event.key])));
  });

  function transcript(episode) {
    const head = [make("h3", {}, episode.id), make("p", {}, ...tags(episode))];
    const about = Object.entries(episode.about).map(([name, value]) => `${words(name)}: ${value}`);
    if (about.length) head.push(make("p", { class: "note" }, about.join(" · ")));
    if (data.checkpoints.length) head.push(make("p", { class: "note" }, standing(episode)));
    if (episode.live) head.push(make("p", { class: "note" }, `When it ran: ${episode.live}.`));
    const chart = curve(episode);
    if (chart) head.push(chart);
    const start = episode.points.filter((point) => data.checkpoints[point[0]] === "prompt");
    if (start.length) head.push(chips(start, episode));
    const state = { over: false };
    for (const step of episode.steps) head.push(...turn(step, episode, state));
    return head;
  }

  function tags(episode) {
    const outcome = make("span", { class: `tag ${failed(episode) ? "failed" : episode.outcome}` }, episode.outcome);
    const mode = episode.mode ? [make("span", { class: `tag ${failed(episode) ? "failed" : ""}` }, words(episode.mode))] : [];
    const lost = episode.lost ? `, lost in round ${episode.lost[0]} (after ${episode.lost[1]} tokens)` : "";
    return [outcome, ...mode, `${episode.rounds} rounds, ${episode.tokens} tokens, ended: ${words(episode.reason)}${lost}`];
  }

  function standing(episode) {
    const share = (100 * data.base).toFixed(0);
    const held = `Scores marked “held out” are of probes fitted on other groups (out of fold). Solid frame: at or above the run's share of failures, ${share} %; dashed: below.`;
    if (!data.gates.length) return held;
    if (episode.part === "fit")
      return `${held} This episode's group fitted the cascade's probes: their scores here would flatter, so they and what the cascade would have done are left out.`;
    if (episode.part === "calibrate")
      return `${held} This episode's group set the cascade's thresholds; the probes at its gates have not seen it.`;
    return `${held} This episode took no part in making the cascade.`;
  }

  function turn(step, episode, state) {
    const [round, part, text, observation, kind] = step;
    const points = episode.points.filter((point) => point[1] === round);
    const read = points.filter((point) => data.checkpoints[point[0]].startsWith("observation:"));
    const written = points.filter((point) => !read.includes(point) && data.checkpoints[point[0]] !== "prompt");
    const box = make("section", { class: state.over ? "round after" : "round" });
    box.append(make("h4", {}, round ? `Round ${round}, part ${part}` : "Transcript"), make("pre", {}, text));
    if (written.length) box.append(chips(written, episode));
    const parts = [box];
    let rest = box;
    const next = () => {
      rest = make("section", { class: "round after" });
      parts.push(end(episode), rest);
      state.over = true;
    };
    if (!state.over && aborted(written, episode)) next();
    const seen = data.texts[observation];
    if (seen) rest.append(make("pre", { class: "read" }, seen));
    if (kind && kind !== "content") rest.append(make("p", { class: "note" }, words(kind)));
    if (read.length) rest.append(chips(read, episode));
    if (!state.over && aborted(read, episode)) parts.push(end(episode)), (state.over = true);
    return parts;
  }

  const gateAt = (point) => data.gates.findIndex((gate) => gate.name === data.checkpoints[point[0]]);
  const aborted = (points, episode) => episode.abort !== null && points.some((p) => episode.abort >= 0 && gateAt(p) === episode.abort);

  function end(episode) {
    const [tokens, calls] = episode.saved;
    const what = failed(episode) ? "saved" : "lost with an episode that would have succeeded";
    const outcome = episode.outcome === "success" || failed(episode) ? `: ${tokens} tokens and ${calls} tool calls after this are ${what}` : "";
    return make("p", { class: "abort" }, `The cascade aborts here, at ${data.gates[episode.abort].name}${outcome}.`);
  }

  function chips(points, episode) {
    const box = make("div", { class: "points" });
    for (const point of points) {
      const [name, , tokens, held, own] = point;
      const gate = gateAt(point);
      const parts = [data.checkpoints[name]];
      if (held !== null) parts.push(`held out ${held.toFixed(2)}`);
      if (own !== null) {
        const limit = data.gates[gate].threshold;
        parts.push(limit === null ? `gate ${own.toFixed(2)}, off` : `gate ${own.toFixed(2)} ${own >= limit ? "≥" : "<"} ${limit.toFixed(2)}`);
      } else if (gate >= 0 && episode.part === "fit") parts.push("gate: not shown");
      const level = held === null ? own : held;
      const look = level === null ? "" : level >= data.base ? " high" : " low";
      box.append(make("span", { class: `point${look}`, title: `${tokens} tokens so far` }, parts.join(" · ")));
    }
    return box;
  }

  function curve(episode) {
    const points = episode.points.filter((point) => point[3] !== null);
    if (points.length < 2) return null;
    const W = 640, H = 180, L = 40, R = 12, T = 22, B = 34;
    const x = (tokens) => L + ((W - L - R) * tokens) / Math.max(1, episode.tokens);
    const y = (score) => H - B - (H - T - B) * score;
    const draw = (tag, options, ...children) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(options)) element.setAttribute(name, value);
      element.append(...children);
      return element;
    };
    const label = `Held-out score over the episode's tokens: from ${points[0][3].toFixed(2)} to ${points.at(-1)[3].toFixed(2)}.`;
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label, "font-size": 12, "font-family": "sans-serif" });
    for (const tick of [0, 0.5, 1]) {
      svg.append(draw("line", { x1: L, x2: W - R, y1: y(tick), y2: y(tick), stroke: "#ddd" }));
      svg.append(draw("text", { x: L - 6, y: y(tick) + 4, "text-anchor": "end", fill: "#333" }, String(tick)));
    }
    svg.append(draw("text", { x: L, y: H - 6, fill: "#333" }, `held-out P(failure) over ${episode.tokens} tokens`));
    const upright = (tokens, colour, dash, text, height) => {
      svg.append(draw("line", { x1: x(tokens), x2: x(tokens), y1: T, y2: H - B, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash }));
      const right = x(tokens) > W * 0.8;
      svg.append(draw("text", { x: x(tokens) + (right ? -4 : 4), y: height, fill: colour, "text-anchor": right ? "end" : "start" }, text));
    };
    if (episode.lost) upright(episode.lost[1], "#555", "2 3", "lost", T - 8);
    if (episode.abort !== null && episode.abort >= 0) upright(episode.tokens - episode.saved[0], "#b34700", "", "aborted", H - B + 14);
    const line = points.map((point) => `${x(point[2]).toFixed(1)},${y(point[3]).toFixed(1)}`).join(" ");
    svg.append(draw("polyline", { points: line, fill: "none", stroke: "#0072B2", "stroke-width": 2 }));
    for (const point of points) {
      const title = draw("title", {}, `${data.checkpoints[point[0]]}: ${point[3].toFixed(2)}`);
      svg.append(draw("circle", { cx: x(point[2]), cy: y(point[3]), r: 4, fill: "#0072B2" }, title));
    }
    return svg;
  }

  filter();
})();
