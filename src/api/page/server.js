// Requests to the server that sent this page, with its key where it asks for one.

const kKeyName = "spillway-key";
let key = sessionStorage.getItem(kKeyName) || "";
let askForKey = null;  // (wasWrong) -> promise of a key
let asking = null;

export function onKeyNeeded(ask) {
  askForKey = ask;
}

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function messageOf(response) {
  try {
    const body = await response.json();
    return body.error?.message || body.message || `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

// One question for a key at a time, whoever needs it.
async function newKey(usedKey) {
  if (usedKey !== key) return;  // somebody else has asked meanwhile
  asking ??= askForKey(key !== "").then((given) => {
    key = given;
    sessionStorage.setItem(kKeyName, key);
    asking = null;
  });
  await asking;
}

// A response with a good status; throws ServerError, or something else when there is no connection. `timeout`: milliseconds for
// all of it, where nobody has a signal to end it with.
export async function request(path, { timeout, ...options } = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers };
    if (used) headers.authorization = `Bearer ${used}`;
    const signal = timeout ? AbortSignal.timeout(timeout) : options.signal;
    const response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
    if (response.ok) return response;
    if (response.status !== 401) throw new ServerError(response.status, await messageOf(response));
    await newKey(used);
  }
}

const kPatience = 20_000;  // a connection that is dead says nothing
export const getJson = async (path) => (await request(path, { timeout: kPatience })).json();

// The data of each server-sent event, as it arrives.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const lines = rest.slice(0, end).split("\n");
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length > 0) yield data.join("\n");
    }
  }
}
