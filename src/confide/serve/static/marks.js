// Text with marks in it. Offsets count code points, as Python does; never UTF-16 units.
// Everything from a text or a model becomes a text node: nothing here parses HTML.

export const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};

const hues = new Map();
export const hue = (type) => {
  if (!hues.has(type)) hues.set(type, hues.size % 8);
  return `hue${hues.get(type)}`;
};

export const percent = (confidence) =>
  confidence == null ? "" : `${Math.round(100 * confidence)} %`;

/** The marks of a stretch [from, to) of `signs`, an array of code points. */
export const marked = (signs, entities, from = 0, to = signs.length) => {
  const parts = entities.flatMap((entity) =>
    entity.fragments.map(([start, end], n) => ({ entity, start, end, first: n === 0 })),
  ).filter((part) => part.start < to && from < part.end);
  const cuts = new Set([from, to]);
  for (const part of parts) {
    cuts.add(Math.max(from, part.start));
    cuts.add(Math.min(to, part.end));
  }
  const places = [...cuts].sort((a, b) => a - b);
  const made = document.createDocumentFragment();
  for (let n = 0; n + 1 < places.length; n += 1) {
    const [start, end] = [places[n], places[n + 1]];
    const over = parts
      .filter((part) => part.start <= start && end <= part.end)
      .sort((a, b) => b.end - b.start - (a.end - a.start));
    made.append(nested(signs.slice(start, end).join(""), over, start, end));
  }
  return made;
};

const nested = (words, over, start, end) => {
  let inner = document.createTextNode(words);
  for (const part of [...over].reverse()) {
    const mark = element("mark", { class: hue(part.entity.type), dir: "auto" }, inner);
    if (part.end === end) {
      const sure = percent(part.entity.confidence);
      const said = (part.entity.attributes || []).map(([name, value]) => ` ${value || name}`).join("");
      mark.append(element("small", { dir: "ltr" }, ` ${part.entity.type}${sure && ` ${sure}`}${said}`));
    }
    inner = mark;
  }
  return inner;
};

export const surface = (signs, entity) =>
  entity.fragments.map(([start, end]) => signs.slice(start, end).join("")).join(" … ");

/** Send JSON to our own server; gives the answer, or throws an Error with its words. */
export const post = async (path, body) => {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer.");
  }
  return answered(answer);
};

export const answered = async (answer) => {
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) {
    throw new Error("Your time is over, or the server was started again. Open the address that it printed in another tab, then go on here.");
  }
  if (!answer.ok) throw new Error(found.what || `The server answered ${answer.status}.`);
  return found;
};

/** The texts in files, read by the server, which knows the formats. */
export const opened = async (files) => {
  const texts = [];
  for (const file of files) {
    const answer = await fetch(`/pages/open?name=${encodeURIComponent(file.name)}`, {
      method: "POST",
      headers: { "content-type": "application/octet-stream" },
      body: file,
    });
    const found = await answered(answer);
    const known = new Set(texts.map((text) => text.id));
    for (const text of found.texts) {
      let id = text.id.replace(/^file(\.\w+)?/, file.name).slice(0, 150);
      for (let n = 2; known.has(id); n += 1) id = `${text.id}-${n}`;
      known.add(id);
      texts.push({ ...text, id });
    }
  }
  return texts;
};

/** Let files be dropped onto `zone`; calls `then` with them. */
export const droppable = (zone, then) => {
  const over = (event) => {
    event.preventDefault();
    zone.classList.toggle("over", event.type === "dragover");
  };
  for (const kind of ["dragover", "dragleave", "drop"]) zone.addEventListener(kind, over);
  zone.addEventListener("drop", (event) => then([...event.dataTransfer.files]));
};

export const byId = (id) => document.getElementById(id);
