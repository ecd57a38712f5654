import { byId, droppable, element, marked, opened, percent, post, surface } from "./marks.js";

const said = byId("said");
const types = JSON.parse(byId("work").dataset.types);
const skipped = { true: [], false: [] };
let annotator = "";
let item = null;
let signs = [];
let entities = [];
let relations = [];
let before = null;
let span = [0, 0];

const say = (words) => { said.textContent = words; };
const guarded = (act) => async (...given) => {
  try {
    await act(...given);
  } catch (error) {
    say(error.message);
  }
};

const whole = () => byId("whole").checked;

const next = async (id) => {
  const found = await post("/pages/next", { annotator, whole: whole(), skip: skipped[whole()], ...(id && { id }) });
  item = found.item;
  byId("work").hidden = !item;
  const units = whole() ? "texts" : "sentences";
  say(item ? `${found.done} of ${found.sentences} ${units} are corrected.` : "Nothing is left to correct here.");
  if (!item) return;
  byId("sentence-title").textContent = item.whole ? "Text" : "Sentence";
  signs = Array.from(item.text);
  entities = [
    ...item.entities.map((one) => ({ ...one, kept: true })),
    ...item.others.map((one) => ({ ...one, kept: false, other: true })),
  ].sort((a, b) => a.fragments[0][0] - b.fragments[0][0]);
  relations = item.relations.map((one) => ({ ...one, kept: true }));
  byId("why").textContent = item.saved ? "You saved this one before." : `Why this one: ${item.why}.`;
  const words = item.tokens.map(([start, end], n) =>
    [n, `${n + 1}: ${signs.slice(start, end).join("")}`]);
  for (const select of [byId("from"), byId("to")]) {
    select.replaceChildren(...words.map(([n, label]) => element("option", { value: n }, label)));
  }
  choose(...(item.tokens[0] || [0, 0]));
  show();
  byId("sentence-title").focus();
};

const kept = () => entities.filter((one) => one.kept);

const show = () => {
  const text = byId("sentence");
  const own = element("span", { class: "own" });
  own.append(marked(signs, kept()));
  text.replaceChildren(element("span", { class: "around" }, `${item.before.trim()} `), own,
    element("span", { class: "around" }, ` ${item.after.trim()}`));
  byId("entities").replaceChildren(...entities.map(entityRow));
  byId("related").textContent = relations.filter((one) => one.kept).length;
  byId("relations").replaceChildren(...relations.map(relationRow));
  for (const select of [byId("head"), byId("tail")]) {
    const chosen = select.value;
    select.replaceChildren(...kept().map((one) =>
      element("option", { value: one.id }, `${surface(signs, one)} (${one.type})`)));
    if (chosen) select.value = chosen;
  }
};

const toggle = (one, what) => {
  const button = element("button", { type: "button", "aria-label": `${one.kept ? "Reject" : "Keep"} ${what}` },
    one.kept ? "Reject" : "Keep");
  button.addEventListener("click", () => {
    one.kept = !one.kept;
    const place = [...document.querySelectorAll("#entities button, #relations button")].indexOf(button);
    show();
    document.querySelectorAll("#entities button, #relations button")[place]?.focus();
    say(`${what}: ${one.kept ? "kept" : "rejected"}.`);
  });
  return button;
};

const entityRow = (one) => {
  const words = surface(signs, one);
  const choice = element("select", { "aria-label": `Type of ${words}` },
    ...[...new Set([...types, one.type])].map((type) =>
      element("option", { value: type, selected: type === one.type }, type)));
  choice.addEventListener("change", () => {
    one.type = choice.value;
    delete one.confidence;
    show();
  });
  return element("li", { class: one.kept ? "" : one.other ? "offered" : "rejected" },
    element("bdi", { class: "words" }, words), choice,
    element("span", { class: "fine" }, state(one)), toggle(one, words));
};

const state = (one) => {
  if (one.kept) return percent(one.confidence);
  return one.other ? `only another model finds this, ${percent(one.confidence)}` : "rejected";
};

const relationRow = (one) => {
  const ends = [one.head, one.tail].map((id) => entities.find((entity) => entity.id === id));
  const words = `${surface(signs, ends[0])} → ${one.type} → ${surface(signs, ends[1])}`;
  return element("li", { class: one.kept ? "" : "rejected" }, element("bdi", { class: "words" }, words),
    element("span", { class: "fine" }, state(one)), toggle(one, words));
};

/** Choose a stretch to mark: as it is, or all of the words that it touches. */
const choose = (start, end) => {
  const inside = item.tokens.map((token, n) => [token, n]).filter(([token]) => token[0] < end && start < token[1]);
  if (!inside.length) return;
  byId("from").value = inside[0][1];
  byId("to").value = inside.at(-1)[1];
  span = byId("parts").checked ? [start, end] : [inside[0][0][0], inside.at(-1)[0][1]];
  byId("chosen").textContent = signs.slice(...span).join("");
};

/** The words from one to the other are chosen; the one that was not changed follows. */
const chooseWords = (event) => {
  const [from, to] = [Number(byId("from").value), Number(byId("to").value)];
  const own = Number(event.target.value);
  const [first, last] = from > to ? [own, own] : [from, to];
  choose(item.tokens[first][0], item.tokens[last][1]);
};

/** Move one end of the chosen stretch by one character, within the text. */
const nudge = (end, by) => {
  const moved = [...span];
  moved[end] += by;
  if (moved[0] < 0 || moved[1] > signs.length || moved[0] >= moved[1]) return;
  choose(...moved);
};

const newId = () => {
  const taken = new Set(entities.map((one) => one.id));
  let n = 1;
  while (taken.has(`A${n}`)) n += 1;
  return `A${n}`;
};

const mark = (type) => {
  let [start, end] = span;
  while (start < end && !signs[start].trim()) start += 1;
  while (start < end && !signs[end - 1].trim()) end -= 1;
  if (start === end) return;
  const same = (one) => one.kept && one.type === type && JSON.stringify(one.fragments) === JSON.stringify([[start, end]]);
  if (entities.some(same)) {
    say("That is marked already.");
    return;
  }
  entities.push({ id: newId(), type, fragments: [[start, end]], kept: true });
  entities.sort((a, b) => a.fragments[0][0] - b.fragments[0][0]);
  if (!types.includes(type)) types.push(type);
  show();
  say(`Marked as ${type}.`);
};

const save = guarded(async () => {
  const ids = new Set(kept().map((one) => one.id));
  await post("/pages/save", {
    annotator,
    id: item.id,
    entities: kept().map(({ id, type, fragments }) => ({ id, type, fragments })),
    relations: relations.filter((one) => one.kept && ids.has(one.head) && ids.has(one.tail))
      .map(({ type, head, tail }) => ({ type, head, tail })),
  });
  before = item.id;
  await next();
});

const skip = guarded(async () => {
  skipped[whole()].push(item.id);
  before = item.id;
  await next();
});

const back = guarded(async () => {
  if (before) await next(before);
  else say("There is none before this one.");
});

/** What is selected with mouse, finger or caret is chosen. */
const selected = () => {
  const selection = getSelection();
  const own = document.querySelector("#sentence .own");
  if (!own || !selection.rangeCount || selection.isCollapsed) return;
  const range = selection.getRangeAt(0);
  if (!own.contains(range.startContainer) || !own.contains(range.endContainer)) return;
  choose(place(own, range.startContainer, range.startOffset), place(own, range.endContainer, range.endOffset));
};

/** How many code points of the sentence come before a place; labels within marks do not count. */
const place = (own, node, offset) => {
  const range = document.createRange();
  range.setStart(own, 0);
  range.setEnd(node, offset);
  const copy = range.cloneContents();
  for (const label of copy.querySelectorAll("small")) label.remove();
  return Array.from(copy.textContent).length;
};

const add = guarded(async (files) => {
  say("Reading …");
  const texts = (await opened(files)).map(({ id, text }) => ({ id, text }));
  const own = byId("text").value;
  if (own.trim()) texts.unshift({ id: "pasted", text: own });
  if (!texts.length) {
    say("Paste text or choose a file.");
    return;
  }
  const found = await post("/pages/pool", { texts });
  byId("pool").textContent = found.sentences;
  byId("text").value = "";
  byId("more").open = false;
  say(`${found.added} sentences are new.`);
  if (annotator && !item) await next();
});

byId("start").addEventListener("submit", guarded(async (event) => {
  event.preventDefault();
  annotator = byId("annotator").value;
  await next();
}));
byId("add").addEventListener("submit", (event) => {
  event.preventDefault();
  add([...byId("files").files]);
});
droppable(byId("drop"), add);
byId("mark").addEventListener("submit", (event) => {
  event.preventDefault();
  mark(byId("type").value.trim());
});
byId("link").addEventListener("submit", (event) => {
  event.preventDefault();
  relations.push({ type: byId("relation").value.trim(), head: byId("head").value, tail: byId("tail").value, kept: true });
  show();
  say("The relation is added.");
});
byId("save").addEventListener("click", save);
byId("skip").addEventListener("click", skip);
byId("back").addEventListener("click", back);
document.addEventListener("selectionchange", selected);
for (const id of ["from", "to"]) byId(id).addEventListener("change", chooseWords);
byId("parts").addEventListener("change", () => {
  byId("nudges").hidden = !byId("parts").checked;
  choose(...span);
  selected();
});
for (const [id, end, by] of [["start-back", 0, -1], ["start-on", 0, 1], ["end-back", 1, -1], ["end-on", 1, 1]]) {
  byId(id).addEventListener("click", () => nudge(end, by));
}
byId("whole").addEventListener("change", guarded(async () => {
  before = null;
  if (annotator) await next();
}));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
  if (!byId("keys").checked || typing || !item || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { s: save, n: skip, b: back }[event.key];
  const type = types[Number(event.key) - 1];
  if (act) act();
  else if (type) mark(type);
});
