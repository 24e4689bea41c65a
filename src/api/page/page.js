// Puts the page together: the chat, the live view, the connection to the server, and its key.
import { startChat } from "./chat.js";
import { byId, element, setText } from "./dom.js";
import { LiveView } from "./live.js";
import { getJson, onKeyNeeded, ServerError } from "./server.js";
import { startSettings } from "./settings.js";

const kInterval = 250;  // the server makes no more than five pictures a second
const kSlow = 4000;     // while the live view cannot be seen
const kRetry = [500, 1000, 2000, 4000, 8000];

const live = new LiveView();
const narrow = matchMedia("(max-width: 60rem)");
let failures = 0;
let timer = null;
let isDue = false;  // something else can be seen than what a look on its way asked for
let model = null;

function setStatus(kind, text) {
  document.body.dataset.status = kind;
  setText(byId("status-text"), text);
  byId("notice").hidden = kind === "serving";
  const notices = {
    loading: "The model is being loaded. This page goes on by itself when it is there.",
    lost: "The server cannot be reached. This page tries again by itself; what is below is the last it knew.",
    draining: "The server is shutting down: running answers end, new ones are refused.",
    stalled: "The engine has not come round for long. It may be in a very long step, or stuck.",
  };
  if (notices[kind]) setText(byId("notice"), notices[kind]);
}

const kNames = { serving: "Serving", draining: "Shutting down", stalled: "Not responding" };

function show(state) {
  failures = 0;
  const inStep = state.in_step && state.age_ms > 2000;
  const text = inStep ? `In a step for ${Math.round(state.age_ms / 1000)} s` : kNames[state.status] || state.status;
  setStatus(state.status, text);
  live.show(state);
}

async function loadModels() {
  const { data } = await getJson("/v1/models");
  const names = data.map((entry) => entry.id);
  if (!names.includes(model)) model = names[0];
  setText(byId("model-name"), model);
  document.title = `${model} · Spillway`;
  const choice = byId("model-choice");
  choice.hidden = names.length < 2;
  byId("model-name").parentElement.classList.toggle("hidden", names.length > 1);
  choice.replaceChildren(...names.map((name) => element("option", { value: name, selected: name === model }, name)));
}

const isLiveSeen = () => !document.hidden && (!narrow.matches || document.body.dataset.view === "live");

async function look() {
  if (model === null) await loadModels();
  if (isLiveSeen()) {
    show(await getJson("/spillway/state"));
    return kInterval;
  }
  await getJson("/ready");
  failures = 0;
  setStatus("serving", "Serving");
  return kSlow;
}

function noteFailure(error) {
  live.lose();
  const isLoading = error instanceof ServerError && error.status === 503 && model === null;
  const isServer = error instanceof ServerError;
  if (isLoading) setStatus("loading", "Loading the model");
  else if (isServer && error.status === 503) setStatus("draining", "Not ready");
  else setStatus("lost", "No connection");
  if (!isServer) model = null;  // another server may come up here
  return kRetry[Math.min(failures++, kRetry.length - 1)];
}

async function loop() {
  clearTimeout(timer);
  timer = -1;  // on its way
  let wait = kSlow;
  if (!document.hidden) {
    try {
      wait = await look();
    } catch (error) {
      wait = noteFailure(error);
    }
  }
  timer = setTimeout(loop, isDue ? 0 : wait);
  isDue = false;
}

function wake() {
  if (timer === -1) isDue = true;
  else loop();
}

function setView(view) {
  document.body.dataset.view = view;
  byId("show-chat").setAttribute("aria-pressed", view === "chat");
  byId("show-live").setAttribute("aria-pressed", view === "live");
  wake();
}

// Resolves with the key that was typed; the dialog stays until there is one.
function askForKey(wasWrong) {
  const dialog = byId("key-dialog");
  byId("key-wrong").hidden = !wasWrong;
  setStatus("locked", "Needs a key");
  setText(byId("notice"), "This server asks for a key.");
  dialog.showModal();
  byId("key").select();
  return new Promise((resolve) => {
    byId("key-form").addEventListener("submit", () => resolve(byId("key").value.trim()), { once: true });
  });
}

byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());  // of browsers that do not know closedby
byId("model-choice").addEventListener("change", (event) => { model = event.target.value; });
byId("show-chat").addEventListener("click", () => setView("chat"));
byId("show-live").addEventListener("click", () => setView("live"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
narrow.addEventListener("change", wake);
onKeyNeeded(askForKey);
startSettings();
startChat(() => model);
loop();
