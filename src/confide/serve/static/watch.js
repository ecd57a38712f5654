// The server says when a run has changed; the page then takes its own new state from the server.
const said = document.getElementById("said");
const about = document.getElementById("live").dataset.run;
let before = "";

const renew = () => {
  const ask = new XMLHttpRequest();
  ask.open("GET", location.href);
  ask.responseType = "document";
  ask.addEventListener("load", () => {
    const fresh = ask.response?.getElementById("live");
    const old = document.getElementById("live");
    if (!fresh || old.contains(document.activeElement)) return;
    old.replaceWith(document.adoptNode(fresh));
  });
  ask.send();
};

const words = (runs) => {
  const shown = about ? runs.filter((run) => run.name === about) : runs.filter((run) => run.state === "running");
  return shown.map((run) => `${run.name}: ${run.state}, round ${run.done} of ${run.rounds}`).join("; ");
};

const events = new EventSource("/watch/events");
events.addEventListener("message", (event) => {
  const now = words(JSON.parse(event.data));
  said.textContent = now || "No run is in progress.";
  if (before) renew();
  before = event.data;
});
events.addEventListener("error", () => {
  said.textContent = "The server does not answer; this page tries again.";
});
