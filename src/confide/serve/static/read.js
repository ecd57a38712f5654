import { byId, droppable, element, marked, opened, percent, post, surface } from "./marks.js";

const said = byId("said");
let sent = [];
let last = { sides: [], texts: [] };

const language = () => byId("language").value || null;
const types = () => byId("types").value.split(",").map((one) => one.trim()).filter(Boolean);

const find = async (files) => {
  const models = [...document.querySelectorAll("[name=model]:checked")].map((box) => box.value);
  if (!models.length) {
    said.textContent = "Choose a model.";
    return;
  }
  said.textContent = "Reading …";
  try {
    const texts = await opened(files);
    const own = byId("text").value;
    if (own.trim()) texts.unshift({ id: "pasted", text: own, entities: [] });
    if (!texts.length) {
      said.textContent = "Paste text or choose a file.";
      return;
    }
    const wanted = types();
    last = await post("/pages/read", { texts, models, language: language(), types: wanted.length ? wanted : null });
    sent = texts;
  } catch (error) {
    said.textContent = error.message;
    return;
  }
  byId("controls").hidden = false;
  byId("correct").hidden = !document.querySelector("nav a[href='/correct']");
  show();
};

const key = (entity) => JSON.stringify([entity.type, entity.fragments]);
const sure = (one) => one.confidence == null || 100 * one.confidence >= Number(byId("sure").value);

/** One row for each sentence of each text: what every side marks in it, and whether they differ. */
const rows = () =>
  last.texts.flatMap((text) => {
    const signs = Array.from(text.text);
    return text.rows.map(([from, to]) => {
      const sides = last.sides.map((side) => {
        const entities = text.found[side].entities.filter(
          (one) => sure(one) && one.fragments[0][0] >= from && one.fragments[0][0] < to,
        );
        const ids = new Set(entities.map((one) => one.id));
        const relations = text.found[side].relations.filter(
          (one) => sure(one) && ids.has(one.head) && ids.has(one.tail),
        );
        return { side, entities, relations };
      });
      const keys = sides.map((one) => one.entities.map(key).sort().join());
      return { id: text.id, signs, from, to, sides, differ: new Set(keys).size > 1 };
    });
  });

const show = () => {
  const all = rows();
  const differ = all.filter((row) => row.differ);
  const rest = all.filter((row) => !row.differ);
  const first = byId("hide").checked ? differ : byId("differ").checked ? [...differ, ...rest] : all;
  byId("found").replaceChildren(...first.slice(0, 500).map(card));
  const count = all.reduce((sum, row) => sum + row.sides[0].entities.length, 0);
  const sides = last.sides.length > 1 ? `; the sides differ in ${differ.length}` : "";
  const more = first.length > 500 ? "; the first 500 are shown" : "";
  said.textContent = `${all.length} sentences, ${count} entities by ${last.sides[0]}${sides}${more}.`;
};

const card = (row) => {
  const sides = row.sides.map(({ side, entities, relations }) => {
    const text = element("p", { class: "text", dir: "auto" });
    text.append(marked(row.signs, entities, row.from, row.to));
    const made = element("div", { class: "side" });
    if (last.sides.length > 1) made.append(element("p", { class: "fine" }, side));
    made.append(text);
    if (relations.length) {
      const byIds = new Map(entities.map((one) => [one.id, one]));
      const items = relations.map((one) =>
        element("li", { dir: "auto" }, `${surface(row.signs, byIds.get(one.head))} → ${one.type} → ` +
          `${surface(row.signs, byIds.get(one.tail))} ${percent(one.confidence)}`));
      made.append(element("ul", { class: "related" }, ...items));
    }
    return made;
  });
  const title = element("p", { class: "fine" }, row.id);
  if (row.differ) title.append(" · ", element("strong", {}, "the sides differ"));
  return element("article", { class: row.differ ? "card differ" : "card" }, title,
    element("div", { class: "sides" }, ...sides));
};

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  find([...byId("files").files]);
});
droppable(byId("drop"), find);
byId("sure").addEventListener("input", () => {
  byId("sure-shown").textContent = `${byId("sure").value} %`;
  show();
});
for (const id of ["differ", "hide"]) byId(id).addEventListener("change", show);
byId("correct").addEventListener("click", async () => {
  try {
    await post("/pages/pool", { texts: sent.map(({ id, text }) => ({ id, text })), language: language() });
    location.href = "/correct";
  } catch (error) {
    said.textContent = error.message;
  }
});
